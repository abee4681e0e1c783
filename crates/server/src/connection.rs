//! One connection: reading messages, running them one after another, sending answers.
//!
//! Nothing is held for a client that is idle, slow or gone: a command has finished, and let go of
//! snapshots and locks, before its reply is written.

mod waiting;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use sheaf_bson::{Timestamp, Value};
use sheaf_errors::{Code, Error};
use sheaf_wire::{
    Compressor, Flags, HEADER_LEN, Header, OpCode, WireError, compress, decompress, finish_msg, op_reply,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::Client;
use crate::dispatch::{self, Outcome, Request, Wait};
use crate::node::Node;
use crate::replication::Replica;
use crate::stream::Socket;
use waiting::{fulfilled, interrupted};

/// Room that an idle connection keeps for its next message.
const IDLE_BUFFER_BYTES: usize = 4096;

/// The most that is allocated for a message of which little has arrived yet.
const FIRST_STEP_BYTES: usize = 64 * 1024;

/// A buffer that grew beyond this is given back after the message; a batch of 4 MB comes and goes in one that stays.
const KEPT_BUFFER_BYTES: usize = 8 * 1024 * 1024;

/// A large buffer is given back when the connection has been silent for this long.
const SILENCE: Duration = Duration::from_secs(2);

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

/// Serves a connection until it ends.
pub async fn serve<S: Socket>(stream: S, client: Arc<Client>, node: Arc<Node>) {
    let mut connection = Connection {
        stream,
        client: client.clone(),
        node,
        buffer: Vec::new(),
        filled: 0,
        early: Vec::new(),
        quick: 0,
    };
    let ended = loop {
        let result = match connection.run().await {
            Ok(Pause::Busy) => match connection.run_on_thread().await {
                Some((back, result)) => {
                    connection = back;
                    result
                }
                // The runtime is going away, and the thread with it.
                None => return,
            },
            other => other,
        };
        match result {
            Ok(Pause::End) => break Ok(()),
            Ok(Pause::Busy | Pause::Silent) => {}
            Err(reason) => break Err(reason),
        }
    };
    if let Err(reason) = ended {
        let attributes = sheaf_bson::doc! { "remote": &client.remote_text(), "error": &reason };
        crate::log::debug(
            "NETWORK",
            22988,
            &client.context(),
            "Error receiving request from client. Ending connection from remote",
            Some(attributes),
        );
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
}

/// What came of reading.
enum Arrival {
    /// A whole message of this length stands at the start of the buffer.
    Message(usize),
    /// Nothing, for [`BUSY_SILENCE`]; only on a thread.
    Silence,
    /// The client closed the connection between two messages.
    End,
}

struct Connection<S> {
    stream: S,
    client: Arc<Client>,
    node: Arc<Node>,
    /// Bytes read; the first `filled` are real.
    buffer: Vec<u8>,
    filled: usize,
    /// Bytes that arrived while an answer was held back; they follow those in `buffer`.
    early: Vec<u8>,
    /// Messages in a row that came in quick succession.
    quick: u32,
}

/// What to send, and what then.
struct Answer {
    bytes: Vec<u8>,
    /// Run the same request again.
    again: bool,
}

impl<S: Socket> Connection<S> {
    /// Serves the connection on a thread of the runtime's pool until it falls silent, and gives it back to the
    /// reactor. `None`: the runtime is being shut down.
    async fn run_on_thread(mut self) -> Option<(Self, Result<Pause, String>)> {
        let node = self.node.clone();
        let runtime = tokio::runtime::Handle::current();
        let served = tokio::task::spawn_blocking(move || {
            let moved = self.stream.to_thread(BUSY_SILENCE, self.node.options.write_timeout);
            let mut result = moved.map_err(|error| error.to_string()).map(|()| Pause::Silent);
            if result.is_ok() {
                result = runtime.block_on(self.run());
            }
            if let Err(error) = self.stream.to_reactor() {
                result = Err(error.to_string());
            }
            (self, result)
        });
        let served = served.await;
        node.busy.leave();
        served.ok()
    }

    /// Whether this connection, in the reactor until now, gets a thread.
    fn gets_thread(&mut self, waited: Duration) -> bool {
        self.quick = if waited < BUSY_GAP { self.quick + 1 } else { 0 };
        if self.quick < BUSY_MESSAGES {
            return false;
        }
        self.quick = 0;
        self.node.busy.enter()
    }

    async fn run(&mut self) -> Result<Pause, String> {
        loop {
            let direct = self.stream.is_direct();
            let idle_since = Instant::now();
            let length = match self.read_message().await? {
                Arrival::Message(length) => length,
                Arrival::Silence => return Ok(Pause::Silent),
                Arrival::End => return Ok(Pause::End),
            };
            let busy = !direct && self.gets_thread(idle_since.elapsed());
            self.node.metrics.physical_bytes_in.add(length as u64);
            let header = Header::parse(&self.buffer[..HEADER_LEN]).map_err(reason)?;
            if header.opcode == OpCode::Compressed {
                let (message, compressor) = decompress(&self.buffer[..length]).map_err(reason)?;
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
            if self.buffer.len() > KEPT_BUFFER_BYTES && self.filled == 0 {
                self.buffer = Vec::new();
            }
            if busy {
                return Ok(Pause::Busy);
            }
            if direct
                && (!self.stream.is_direct() || self.node.busy.crowded() || self.node.is_shutting_down())
            {
                return Ok(Pause::Silent);
            }
        }
    }

    /// Reads until one whole message stands at the start of the buffer.
    async fn read_message(&mut self) -> Result<Arrival, String> {
        loop {
            let mut wanted = IDLE_BUFFER_BYTES;
            if self.filled >= HEADER_LEN {
                let length = Header::parse(&self.buffer[..HEADER_LEN]).map_err(reason)?.length as usize;
                if self.filled >= length {
                    return Ok(Arrival::Message(length));
                }
                // What is allocated follows what has arrived, not what the header claims.
                wanted = length.min((self.filled * 4).max(FIRST_STEP_BYTES));
            }
            if self.buffer.len() < wanted {
                self.buffer.resize(wanted, 0);
            }
            let Some(n) = self.read_some().await? else { return Ok(Arrival::Silence) };
            if n == 0 {
                return if self.filled == 0 {
                    Ok(Arrival::End)
                } else {
                    Err("connection closed within a message".into())
                };
            }
            self.filled += n;
        }
    }

    /// Reads what there is, waiting for some. `None`: nothing came for [`BUSY_SILENCE`] on a thread.
    async fn read_some(&mut self) -> Result<Option<usize>, String> {
        if self.stream.is_direct() {
            return match self.stream.read(&mut self.buffer[self.filled..]).await {
                Ok(n) => Ok(Some(n)),
                Err(error) if is_timeout(&error) => Ok(None),
                Err(error) => Err(error.to_string()),
            };
        }
        loop {
            let large = self.buffer.len() > IDLE_BUFFER_BYTES && self.filled == 0;
            let reading = self.stream.read(&mut self.buffer[self.filled..]);
            if !large {
                return reading.await.map(Some).map_err(|error| error.to_string());
            }
            match tokio::time::timeout(SILENCE, reading).await {
                Ok(result) => return result.map(Some).map_err(|error| error.to_string()),
                Err(_) => self.buffer = vec![0; IDLE_BUFFER_BYTES],
            }
        }
    }

    /// Runs one message and sends what it is answered with, several times for an exhaust request.
    async fn answer(&mut self, message: &[u8], compressor: Option<Compressor>) -> Result<(), String> {
        self.node.metrics.bytes_in.add(message.len() as u64);
        let mut response_to = None;
        *self.client.told_topology.lock() = None;
        loop {
            let answer = self.run_message(message, compressor, response_to).await?;
            let Some(Answer { bytes, again }) = answer else { return Ok(()) };
            response_to = Header::parse(&bytes).ok().map(|header| header.request_id);
            self.send(&bytes).await?;
            if !again {
                return Ok(());
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
        let (outcome, flags, packable) = match sheaf_wire::parse(message) {
            Ok(sheaf_wire::Request::Msg(msg)) => {
                let (sequences, count) = msg.sequences();
                let request = Request {
                    body: msg.body,
                    sequences: &sequences[..count],
                    flags: msg.flags,
                    query_db: None,
                };
                let name = msg.body.iter().next().map_or("", |first| first.key());
                let mut outcome = dispatch::run(&self.node, &self.client, &request);
                while let Some(parked) = outcome.parked.take() {
                    self.park(&parked).await?;
                    outcome = if let Some(error) = self.stopped(&parked) {
                        self.client.current.lock().end();
                        Outcome::of_error(&error)
                    } else {
                        dispatch::resume(&self.node, &self.client, &request)
                    };
                }
                (outcome, msg.flags, !UNCOMPRESSED.contains(&name))
            }
            Ok(sheaf_wire::Request::Query(query)) => {
                let bytes = self.run_query(&query, response_to).await?;
                return Ok(Some(Answer { bytes, again: false }));
            }
            Err(WireError::Answer(error)) => (Outcome::of_error(&error), Flags::default(), true),
            Err(WireError::Close(text)) => return Err(text),
        };
        if outcome.close {
            return Err("closed by a fail point".into());
        }
        let again = outcome.exhaust;
        let unanswered = outcome.error.as_ref().filter(|_| flags.more_to_come());
        if unanswered.is_some_and(|error| dispatch::is_not_primary(error.code())) {
            // The only way to tell.
            self.node.metrics.not_primary_unacknowledged.add(1);
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
        finish_msg(&mut bytes, self.node.next_op_id() as i32, response_to, out_flags);
        self.node.metrics.bytes_out.add(bytes.len() as u64);
        if let Some(compressor) = compressor.filter(|_| packable) {
            let level = self.node.parameters.int("zlibCompressionLevel") as u32;
            bytes = compress(&bytes, compressor, level).map_err(|error| error.to_string())?;
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
                let request =
                    Request { body: query.body, sequences: &[], flags: Flags::default(), query_db: Some(db) };
                dispatch::run(&self.node, &self.client, &request)
            }
            _ => Outcome::of_error(&Error::new(
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
        Ok(op_reply(&reply, self.node.next_op_id() as i32, response_to))
    }

    /// Waits for what the reply has to wait for, and closes its document.
    async fn complete(&mut self, mut outcome: Outcome) -> Result<Vec<u8>, String> {
        if let Some(wait) = outcome.wait.take() {
            let waited = tokio::select! {
                waited = fulfilled(&self.node, &wait) => waited,
                error = interrupted(&self.node, &self.client) => Err(error),
            };
            self.client.current.lock().end();
            match waited {
                Ok(()) => {}
                Err(error) if wait.vital => {
                    outcome = Outcome { operation_time: outcome.operation_time, ..Outcome::of_error(&error) };
                }
                Err(error) => write_concern_failed(&mut outcome, &error, &wait),
            }
        }
        if let Some(until) = outcome.hold_until {
            self.hold(until).await?;
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
            reply.append("ok", 1.0);
        }
        if let Some(replica) = self.node.replica() {
            let ending = self.node.is_ending();
            if codes.into_iter().flatten().any(|code| dispatch::is_state_change(code, ending)) {
                // That this member goes down is a change, too.
                let counter = replica.role().topology_version as i64 + i64::from(ending);
                let process = self.node.process_id;
                reply = reply.with_document("topologyVersion", |version| {
                    version.append("processId", process).append("counter", counter);
                });
            }
            reply.fill(|doc| gossip(&self.node, replica, outcome.operation_time, doc));
        }
        Ok(reply.into_bytes())
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.node.metrics.physical_bytes_out.add(bytes.len() as u64);
        let mut rest = bytes;
        while !rest.is_empty() {
            let piece = &rest[..rest.len().min(1 << 20)];
            // Most replies fit into the socket's buffer, and need no clock.
            let stream = &mut self.stream;
            let at_once = poll_fn(|cx| match Pin::new(&mut *stream).poll_write(cx, piece) {
                Poll::Ready(result) => Poll::Ready(Some(result)),
                Poll::Pending => Poll::Ready(None),
            });
            let written = match at_once.await {
                Some(result) => result,
                // The clock runs anew with every piece that the client takes.
                None => tokio::time::timeout(self.node.options.write_timeout, self.stream.write(piece))
                    .await
                    .map_err(|_| "the client does not read its replies".to_owned())?,
            };
            let n = written.map_err(|error| match is_timeout(&error) {
                true => "the client does not read its replies".to_owned(),
                false => error.to_string(),
            })?;
            if n == 0 {
                return Err("connection closed".into());
            }
            rest = &rest[n..];
        }
        Ok(())
    }
}

/// Whether a read or write on a thread has waited as long as it may.
fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

fn reason(error: WireError) -> String {
    match error {
        WireError::Close(text) => text,
        WireError::Answer(error) => error.to_string(),
    }
}

/// What a member of a set adds to every reply: how far its time has come, with the signature of a
/// server that has no keys, and the time of what the operation wrote or read.
fn gossip(
    node: &Node,
    replica: &Replica,
    operation_time: Option<u64>,
    doc: &mut sheaf_bson::DocWriter<'_, Vec<u8>>,
) {
    let role = replica.role();
    if !role.state.readable() {
        return;
    }
    let operation_time = Timestamp(operation_time.unwrap_or_else(|| node.engine().last_applied().time));
    {
        let mut cluster = doc.document("$clusterTime");
        cluster.append("clusterTime", replica.cluster_time().max(operation_time));
        let hash = Value::Binary(sheaf_bson::Binary { subtype: 0, bytes: &[0; 20] });
        cluster.document("signature").append("hash", hash).append("keyId", 0i64);
    }
    doc.append("operationTime", operation_time);
}

/// Adds a `writeConcernError`, and what follows from it.
fn write_concern_failed(outcome: &mut Outcome, error: &Error, wait: &Wait) {
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
        out.append("errInfo", &wait.concern.error_info(timed_out));
    });
    outcome.write_concern_code = Some(code);
    if outcome.ok && outcome.retryable && dispatch::is_retryable(code) {
        outcome.labels.push(dispatch::RETRYABLE.to_owned());
    }
}

/// A moment that lies `millis` ahead.
pub fn after_millis(millis: u64) -> Instant {
    Instant::now() + Duration::from_millis(millis)
}
