//! One connection: reading messages, running them one after another, sending answers.
//!
//! Nothing is held for a client that is idle, slow or gone: a command has finished, and let go of
//! snapshots and locks, before its reply is written.

mod bytes;
mod patience;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sheaf_errors::{Code, Error};
use sheaf_wire::{
    ADDED_ON_THE_WAY, Compressor, Flags, HEADER_LEN, Header, MAX_MESSAGE_SIZE, OpCode, WireError, compress,
    decompress, finish_msg, op_reply,
};

use crate::audit::noted;
use crate::buffers::{Claim, FREE_BYTES};
use crate::client::Client;
use crate::dispatch;
use crate::front::Front;
use crate::message::{Message, Place};
use crate::outcome::RequestOutcome;

use crate::reactor::{LONG_BYTES, give_way};
use crate::role::{Role, Wait};
use crate::stream::{Shared, Socket};
use bytes::Arrival;
use patience::Patience;

/// Room that an idle connection keeps for its next message.
const IDLE_BUFFER_BYTES: usize = 4096;

/// A buffer that grew beyond this is given back after the message; a batch of 4 MB comes and goes in one that stays.
const KEPT_BUFFER_BYTES: usize = 8 * 1024 * 1024;

/// How long a busy connection's thread waits for a client to take a reply; then the reactor does.
const DIRECT_WRITE_PATIENCE: Duration = Duration::from_millis(200);

/// Commands whose messages are never compressed, as the protocol demands.
const UNCOMPRESSED: &[&str] = &[
    "hello",
    "isMaster",
    "ismaster",
    "saslStart",
    "saslContinue",
    "getnonce",
    "authenticate",
    "createUser",
    "updateUser",
    "copydbSaslStart",
    "copydbgetnonce",
    "copydb",
];

/// A connection whose messages come closer together than this is busy...
const BUSY_GAP: Duration = Duration::from_millis(2);

/// ...after so many of them, and gets a thread...
const BUSY_MESSAGES: u32 = 8;

/// ...until it has been silent for so long.
const BUSY_SILENCE: Duration = Duration::from_millis(50);

/// Serves a connection until it ends: on the runtime that this is called in, and on the data runtime as soon as the
/// client asks for data.
pub async fn serve<S: Socket>(stream: S, client: Arc<Client>, role: Arc<dyn Role>) {
    let front = role.front().clone();
    let data = front.data_runtime().cloned();
    let stream = Shared::new(stream);
    client.stop.watch_on(stream.watched());
    let claim = Claim::on(&front.incoming);
    let greeted = !front.access.enabled;
    let connection = Connection {
        greeted,
        stream,
        client,
        front,
        role,
        control: data.is_some(),
        claim,
        buffer: Vec::new(),
        filled: 0,
        early: Vec::new(),
        quick: 0,
        patience: Patience::new(),
    };
    let (Some(mut connection), Some(data)) = (connection.serve().await, data) else { return };
    connection.control = false;
    match connection.stream.leave_reactor() {
        Ok(()) => {
            data.spawn(async move {
                match connection.stream.to_reactor() {
                    Ok(()) => _ = connection.serve().await,
                    Err(error) => connection.end(Err(error.to_string())),
                }
            });
        }
        Err(error) => connection.end(Err(error.to_string())),
    }
}

/// Why [`Connection::run`] came back.
enum Pause {
    /// The client has gone.
    End,
    /// The reactor has it, and a thread should.
    Busy,
    /// A thread has it, and the reactor should.
    Silent,
    /// The control runtime has it, and the data runtime should.
    Data,
}

struct Connection<S> {
    stream: Shared<S>,
    client: Arc<Client>,
    front: Arc<Front>,
    role: Arc<dyn Role>,
    /// Whether it is on the control runtime, where nothing is done that takes time.
    control: bool,
    /// The room for `buffer`, and for what is unpacked from it.
    claim: Claim,
    /// Bytes read; the first `filled` are real.
    buffer: Vec<u8>,
    filled: usize,
    /// Bytes that arrived while an answer was held back; they follow those in `buffer`.
    early: Vec<u8>,
    /// Whether the client has said something, or may take its time.
    greeted: bool,
    /// Messages in a row that came in quick succession.
    quick: u32,
    /// How its thread waits for messages, if it has one.
    patience: Patience,
}

/// What to send, and what then.
struct Answer {
    bytes: Vec<u8>,
    /// Run the same request again.
    again: bool,
}

impl<S: Socket> Connection<S> {
    /// Serves the connection until it ends, or until it is to go to the data runtime and is given back.
    async fn serve(self) -> Option<Self> {
        let mut connection = self;
        let ended = loop {
            let result = match connection.run().await {
                Ok(Pause::Busy) => match connection.run_on_thread().await {
                    Some((back, result)) => {
                        connection = back;
                        result
                    }
                    // The runtime is going away, and the thread with it.
                    None => return None,
                },
                other => other,
            };
            match result {
                Ok(Pause::End) => break Ok(()),
                Ok(Pause::Busy | Pause::Silent) => {}
                Ok(Pause::Data) => return Some(connection),
                Err(reason) => break Err(reason),
            }
        };
        connection.end(ended);
        None
    }

    /// Forgets the client, whose connection has ended.
    fn end(&self, how: Result<(), String>) {
        let context = self.client.context();
        if let Err(reason) = how {
            let attributes = sheaf_bson::doc! { "remote": &self.client.remote_text(), "error": &reason };
            let text = "Error receiving request from client. Ending connection from remote";
            crate::log::debug(
                "NETWORK",
                crate::log::ids::CONNECTION_BROKEN,
                &context,
                text,
                Some(attributes),
            );
        }
        if let Err(error) = noted::logged_out(&self.front, &self.client, None, "Client has disconnected") {
            let attributes = sheaf_bson::doc! { "error": error.message() };
            let text = "The end of a login is missing in the audit log";
            crate::log::warning(
                "ACCESS",
                crate::log::ids::AUDIT_NOT_WRITTEN,
                &context,
                text,
                Some(attributes),
            );
        }
        self.front.disconnect(&self.client);
        if !crate::log::is_quiet() {
            let attributes = self.client.about(&self.front);
            crate::log::info(
                "NETWORK",
                crate::log::ids::CONNECTION_ENDED,
                &context,
                "Connection ended",
                Some(attributes),
            );
        }
    }

    /// Serves the connection on a thread of the runtime's pool until it falls silent, and gives it back to the
    /// reactor. `None`: the runtime is being shut down.
    async fn run_on_thread(mut self) -> Option<(Self, Result<Pause, String>)> {
        let front = self.front.clone();
        let runtime = tokio::runtime::Handle::current();
        let served = tokio::task::spawn_blocking(move || {
            let moved = self.stream.to_thread(BUSY_SILENCE, DIRECT_WRITE_PATIENCE);
            let mut result = moved.map_err(|error| error.to_string()).map(|()| Pause::Silent);
            if result.is_ok() {
                self.patience = Patience::new();
                result = runtime.block_on(self.run());
            }
            if let Err(error) = self.stream.to_reactor() {
                result = Err(error.to_string());
            }
            (self, result)
        });
        let served = served.await;
        front.busy.leave();
        served.ok()
    }

    /// Whether this connection, in the reactor until now, should have a thread.
    fn is_busy(&mut self, waited: Duration) -> bool {
        self.quick = if waited < BUSY_GAP { self.quick + 1 } else { 0 };
        let busy = self.quick >= BUSY_MESSAGES;
        if busy {
            self.quick = 0;
        }
        busy
    }

    /// Whether a message asks for what the control runtime does itself.
    fn asks_for_control(&self, message: &[u8]) -> bool {
        let found = sheaf_wire::command_name(message).and_then(|name| self.role.find(name));
        found.is_some_and(|found| found.command.spec.threads.is_control())
    }

    /// Whether what is done now, if it takes long, keeps others waiting.
    fn place(&self, bytes: usize) -> Place {
        match self.stream.is_direct() {
            true => Place::Thread,
            false if bytes >= LONG_BYTES => Place::ReactorLong,
            false => Place::Reactor,
        }
    }

    async fn run(&mut self) -> Result<Pause, String> {
        let mut arrived = None;
        loop {
            let direct = self.stream.is_direct();
            let idle_since = Instant::now();
            let length = match self.read_message().await? {
                Arrival::Message(length) => length,
                Arrival::Silence => return Ok(Pause::Silent),
                Arrival::End => return Ok(Pause::End),
            };
            self.greeted = true;
            if self.client.is_stranger.load(Ordering::Relaxed) {
                self.front.strangers.spoke(&self.client);
            }
            let now = Instant::now();
            let waited = now - idle_since;
            if direct && let Some(before) = arrived.replace(now) {
                self.patience.message(now, idle_since - before, waited, self.front.busy.is_roomy());
            }
            let busy = !direct && self.is_busy(waited);
            if self.control && (busy || !self.asks_for_control(&self.buffer[..length])) {
                return Ok(Pause::Data);
            }
            let busy = busy && self.front.busy.enter();
            self.front.metrics.physical_bytes_in.add(length as u64);
            let header = Header::parse(&self.buffer[..HEADER_LEN]).map_err(reason)?;
            if header.opcode == OpCode::Compressed {
                self.check_stranger(unpacked_length(&self.buffer[..length]))?;
                self.room(self.buffer.len() + unpacked_length(&self.buffer[..length])).await?;
                let packed = &self.buffer[..length];
                let long = !self.stream.is_direct() && unpacked_length(packed) >= LONG_BYTES;
                let (message, compressor) = give_way(long, || decompress(packed)).map_err(reason)?;
                self.answer(&message, Some(compressor)).await?;
            } else {
                // The message is taken out while it is worked on, because `self` is needed too.
                let buffer = std::mem::take(&mut self.buffer);
                let result = self.answer(&buffer[..length], None).await;
                self.buffer = buffer;
                result?;
            }
            self.buffer.copy_within(length..self.filled, 0);
            self.filled -= length;
            if !self.early.is_empty() {
                self.buffer.truncate(self.filled);
                self.buffer.append(&mut self.early);
                self.filled = self.buffer.len();
            }
            let kept = if self.front.incoming.is_pressed() { FREE_BYTES } else { KEPT_BUFFER_BYTES };
            if self.buffer.len() > kept && self.filled == 0 {
                self.buffer = Vec::new();
            }
            self.room(self.buffer.len()).await?;
            if busy {
                return Ok(Pause::Busy);
            }
            if direct
                && (!self.stream.is_direct() || self.front.busy.crowded() || self.front.is_shutting_down())
            {
                return Ok(Pause::Silent);
            }
        }
    }

    /// Runs one message and sends what it is answered with, several times for an exhaust request.
    async fn answer(&mut self, message: &[u8], compressor: Option<Compressor>) -> Result<(), String> {
        self.front.metrics.bytes_in.add(message.len() as u64);
        let mut response_to = None;
        *self.client.told_topology.lock() = None;
        loop {
            self.client.answering.store(true, Ordering::Release);
            let answer = self.run_message(message, compressor, response_to).await?;
            if self.client.delay.load(Ordering::Relaxed) != 0 {
                let delay = self.client.delay.swap(0, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(delay)).await;
            }
            if let Some(Answer { bytes, .. }) = &answer {
                response_to = Header::parse(bytes).ok().map(|header| header.request_id);
                self.send_counted(bytes).await?;
            }
            self.client.answering.store(false, Ordering::Release);
            if !answer.is_some_and(|answer| answer.again) {
                return Ok(());
            }
            if self.front.is_shutting_down() {
                // Nothing holds back the next answer any more, and nobody but the end of the process would end this.
                return Err("the server shuts down".into());
            }
        }
    }

    async fn run_message(
        &mut self,
        message: &[u8],
        compressor: Option<Compressor>,
        response_to: Option<i32>,
    ) -> Result<Option<Answer>, String> {
        let header = Header::parse(message).map_err(reason)?;
        let response_to = response_to.unwrap_or(header.request_id);
        let place = self.place(message.len());
        let parsed = give_way(place == Place::ReactorLong, || sheaf_wire::parse(message));
        let (outcome, flags, packable) = match parsed {
            Ok(sheaf_wire::Request::Msg(msg)) => {
                let (sequences, count) = msg.sequences();
                let request = Message {
                    body: msg.body,
                    sequences: &sequences[..count],
                    flags: msg.flags,
                    query_db: None,
                    place,
                };
                let name = msg.body.iter().next().map_or("", |first| first.key());
                let mut outcome = dispatch::run(&*self.role, &self.client, &request);
                while let Some(parked) = outcome.parked.take() {
                    self.park(&parked).await?;
                    outcome = if let Some(error) = self.stopped(&parked) {
                        self.client.current.lock().end();
                        RequestOutcome::of_error(&error)
                    } else {
                        dispatch::resume(&*self.role, &self.client, &request)
                    };
                }
                (outcome, msg.flags, !UNCOMPRESSED.contains(&name))
            }
            Ok(sheaf_wire::Request::Query(query)) => {
                let bytes = self.run_query(&query, response_to).await?;
                return Ok(Some(Answer { bytes, again: false }));
            }
            Err(WireError::Answer(error)) => (RequestOutcome::of_error(&error), Flags::default(), true),
            Err(WireError::Close(text)) => return Err(text),
        };
        if outcome.close {
            return Err("closed by a fail point".into());
        }
        let again = outcome.exhaust;
        let unanswered = outcome.error.as_ref().filter(|_| flags.more_to_come());
        if unanswered.is_some_and(|error| dispatch::is_not_primary(error.code())) {
            // The only way to tell.
            self.front.metrics.not_primary_unacknowledged.add(1);
            return Err("a write without an answer came to a member that is not primary".into());
        }
        let reply = self.complete(outcome).await?;
        if flags.more_to_come() {
            return Ok(None);
        }
        let mut out_flags = 0;
        if flags.checksum_present() {
            out_flags |= Flags::CHECKSUM_PRESENT;
        }
        if again {
            out_flags |= Flags::MORE_TO_COME;
        }
        let mut bytes = reply;
        finish_msg(&mut bytes, self.front.next_op_id() as i32, response_to, out_flags);
        self.front.metrics.bytes_out.add(bytes.len() as u64);
        if let Some(compressor) = compressor.filter(|_| packable) {
            let level = self.front.parameters.int("zlibCompressionLevel") as u32;
            let long = self.place(bytes.len()) == Place::ReactorLong;
            let packed = give_way(long, || compress(&bytes, compressor, level));
            bytes = packed.map_err(|error| error.to_string())?;
        }
        Ok(Some(Answer { bytes, again }))
    }

    /// OP_QUERY: MongoDB 5.1 and later take handshakes only.
    async fn run_query(
        &mut self,
        query: &sheaf_wire::OpQuery<'_>,
        response_to: i32,
    ) -> Result<Vec<u8>, String> {
        let name = query.body.iter().next().map_or("", |first| first.key());
        let handshake = matches!(name, "hello" | "isMaster" | "ismaster");
        let outcome = match query.command_db() {
            Some(db) if handshake => {
                let request = Message {
                    body: query.body,
                    sequences: &[],
                    flags: Flags::default(),
                    query_db: Some(db),
                    place: self.place(query.body.len()),
                };
                dispatch::run(&*self.role, &self.client, &request)
            }
            _ => RequestOutcome::of_error(&Error::new(
                sheaf_errors::Code(352),
                format!(
                    "Unsupported OP_QUERY command: {name}. The client driver may require an upgrade. For more details see https://dochub.mongodb.org/core/legacy-opcode-removal"
                ),
            )),
        };
        if outcome.close {
            return Err("closed by a fail point".into());
        }
        let reply = self.complete(outcome).await?;
        Ok(op_reply(&reply, self.front.next_op_id() as i32, response_to))
    }

    /// Waits for what the reply has to wait for, and closes its document.
    async fn complete(&mut self, mut outcome: RequestOutcome) -> Result<Vec<u8>, String> {
        if let Some(wait) = outcome.wait.take() {
            let waited = self.fulfilled(&*wait).await?;
            self.client.current.lock().end();
            match waited {
                Ok(()) => wait.add_to(&mut outcome.reply),
                Err(error) if wait.is_vital() => {
                    outcome = RequestOutcome {
                        operation_time: outcome.operation_time,
                        ..RequestOutcome::of_error(&error)
                    };
                }
                Err(error) => write_concern_failed(&mut outcome, &error, &*wait),
            }
        }
        let codes = [outcome.error.as_ref().map(Error::code), outcome.write_concern_code];
        let mut reply = outcome.reply;
        if !outcome.labels.is_empty() {
            reply = reply.with_array("errorLabels", |labels| {
                outcome.labels.iter().for_each(|label| {
                    labels.push(label.as_str());
                });
            });
        }
        if outcome.ok {
            reply.append_ok();
        }
        Ok(self.role.finish(reply, codes, outcome.operation_time).into_bytes())
    }
}

/// The length of a packed message's contents, as it claims; too large a claim is refused later.
fn unpacked_length(packed: &[u8]) -> usize {
    let claim = packed.get(HEADER_LEN + 4..).and_then(|rest| rest.first_chunk::<4>());
    claim.map_or(0, |claim| u32::from_le_bytes(*claim) as usize).min(MAX_MESSAGE_SIZE + ADDED_ON_THE_WAY)
}

fn reason(error: WireError) -> String {
    match error {
        WireError::Close(text) => text,
        WireError::Answer(error) => error.to_string(),
    }
}

/// Adds a `writeConcernError`, and what follows from it.
fn write_concern_failed(outcome: &mut RequestOutcome, error: &Error, wait: &dyn Wait) {
    let code = error.code();
    if let Some(failed) = outcome.error.as_ref().filter(|failed| failed.code() == Code::NO_SUCH_TRANSACTION) {
        outcome.reply = dispatch::without_transient(failed);
    }
    let timed_out = code == Code::WRITE_CONCERN_FAILED;
    outcome.reply.fill(|doc| {
        let mut out = doc.document("writeConcernError");
        out.append("code", code.0);
        out.append("codeName", &*code.name());
        out.append("errmsg", error.message());
        out.append("errInfo", &wait.error_info(timed_out));
    });
    outcome.write_concern_code = Some(code);
    if outcome.ok && outcome.retryable && dispatch::is_retryable(code) {
        outcome.labels.push(dispatch::RETRYABLE.to_owned());
    }
}
