//! A message to a member and its answer.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, RawDoc};
use sheaf_client::{Connection, Message};
use sheaf_errors::{Code, Error, Result};
use sheaf_meter::Held;

use crate::failure::{is_not_primary, unreachable};
use crate::preference::Preference;
use crate::set::{ReplicaSet, SELECTION};

/// How long a member may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// After so long it is tried anew, by who still should; then for twice as long.
const CONNECT_TURN: Duration = Duration::from_millis(1500);

/// How long one write may make no progress.
const WRITE: Duration = Duration::from_secs(60);

/// How often who waits for an answer is asked whether it should.
const ASK: Duration = Duration::from_millis(50);

/// Who has been waited for so long has to prove that it is there: nobody else would find out that a member hangs before its next word to a
/// monitor is overdue.
const LONG: Duration = Duration::from_secs(2);

/// How long who was lost may take to come back, or another to take its place, however long was waited before.
const AFTER_LOSS: Duration = Duration::from_secs(5);

/// What a connection that is kept may keep for replies.
const KEPT_BYTES: usize = 256 << 10;

/// Who asks: says whether to go on, and is told of errors that are worth another try.
pub struct Asker<'q> {
    /// Which members may answer.
    pub preference: Preference<'q>,
    /// Whether the request may be sent again, as it then still happens once: a read, a retryable write.
    pub again: bool,
    /// Errors: why not to go on.
    pub go_on: &'q dyn Fn() -> Result<()>,
}

/// A message that was sent, and whose answer has not been received.
pub struct Call {
    set: Arc<ReplicaSet>,
    host: String,
    connection: Connection,
    /// When it was sent, and how often the member had been found silent by then.
    sent: Sent,
}

/// When a member was asked for something, and how often it had been found silent by then.
#[derive(Clone, Copy)]
struct Sent {
    at: Instant,
    silences: u64,
}

impl Sent {
    fn now(set: &ReplicaSet, host: &str) -> Sent {
        Sent { at: Instant::now(), silences: set.silences(host) }
    }

    /// Whether an answer can still come. Who is waited for long is looked after.
    fn is_hoped_for(&self, set: &ReplicaSet, host: &str) -> bool {
        if self.at.elapsed() >= LONG {
            set.awaited(host);
        }
        self.silences == set.silences(host)
    }
}

/// An answer. Its connection goes back to the pool when it is dropped.
pub struct Answer {
    set: Arc<ReplicaSet>,
    host: String,
    connection: Option<Connection>,
    /// The memory of a large one.
    _held: Option<Held>,
}

impl Answer {
    /// The reply.
    pub fn reply(&self) -> RawDoc<'_> {
        self.connection.as_ref().expect("it is there until the drop").reply()
    }

    /// The reply, for good.
    pub fn into_reply(mut self) -> DocBuf {
        self.connection.as_mut().expect("it is there until the drop").take_reply()
    }

    /// Who has answered, "host:port".
    pub fn host(&self) -> &str {
        &self.host
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(mut connection) = self.connection.take() {
            connection.shrink(KEPT_BYTES);
            self.set.pool.put_back(&self.host, connection);
        }
    }
}

/// Why there is no answer.
enum Lost {
    /// Whoever asks does not want to know any more.
    Stopped(Error),
    /// The network's.
    Network(sheaf_client::Error),
}

impl Call {
    /// Sends a message to a member that may answer it.
    ///
    /// Errors: `ShardNotFound`, `FailedToSatisfyReadPreference`, `HostUnreachable`; those of [`Asker::go_on`].
    pub fn send(set: &Arc<ReplicaSet>, message: &mut Message, asker: &Asker<'_>) -> Result<Call> {
        Call::send_until(set, message, asker, Instant::now() + SELECTION)
    }

    fn send_until(
        set: &Arc<ReplicaSet>,
        message: &mut Message,
        asker: &Asker<'_>,
        until: Instant,
    ) -> Result<Call> {
        loop {
            let host = set.select_until(&asker.preference, until, asker.go_on)?;
            match Call::send_while(set, &host, message, asker.go_on) {
                Ok(call) => return Ok(call),
                Err(Lost::Stopped(error)) => return Err(error),
                // The message cannot be sent at all.
                Err(Lost::Network(error @ sheaf_client::Error::Usage(_))) => {
                    return Err(unreachable(&host, &error));
                }
                Err(Lost::Network(error)) => {
                    set.lost(&host);
                    if !asker.again || Instant::now() >= until {
                        return Err(unreachable(&host, &error));
                    }
                }
            }
        }
    }

    /// Sends a message to this member.
    pub fn send_to(set: &Arc<ReplicaSet>, host: &str, message: &mut Message) -> sheaf_client::Result<Call> {
        Call::send_while(set, host, message, &|| Ok(())).map_err(|lost| match lost {
            Lost::Network(error) => error,
            Lost::Stopped(_) => sheaf_client::Error::Interrupted,
        })
    }

    fn send_while(
        set: &Arc<ReplicaSet>,
        host: &str,
        message: &mut Message,
        go_on: &dyn Fn() -> Result<()>,
    ) -> Result<Call, Lost> {
        let sent_at = Sent::now(set, host);
        let mut stopped = None;
        let mut goes_on = || goes_on(set, host, &sent_at, go_on, &mut stopped);
        let sent = match set.pool.take(host) {
            Some(kept) => Ok(kept),
            None => open(set, host, &mut goes_on),
        };
        let sent = sent.and_then(|mut connection| {
            connection.send_while(message, WRITE, &mut goes_on)?;
            Ok(connection)
        });
        match (sent, stopped) {
            (Ok(connection), _) => {
                Ok(Call { set: set.clone(), host: host.to_owned(), connection, sent: sent_at })
            }
            (Err(_), Some(error)) => Err(Lost::Stopped(error)),
            (Err(error), None) => Err(Lost::Network(error)),
        }
    }

    /// Whether something of the answer is there, or nothing can come any more.
    pub fn is_ready(&mut self) -> bool {
        self.connection.is_readable() || !self.sent.is_hoped_for(&self.set, &self.host)
    }

    /// The socket, for who waits for the answer without a thread.
    ///
    /// Errors: the process has no room for another.
    pub fn socket(&self) -> std::io::Result<std::net::TcpStream> {
        self.connection.socket()
    }

    /// Who is asked, "host:port".
    pub fn host(&self) -> &str {
        &self.host
    }

    fn receive(mut self, go_on: &dyn Fn() -> Result<()>) -> Result<Answer, Lost> {
        let (mut stopped, mut full, mut held) = (None, None, None);
        let received = self.connection.receive_if(
            &mut |bytes| {
                if bytes <= KEPT_BYTES {
                    return Ok(());
                }
                sheaf_meter::reserve(bytes as u64).map(|reserved| held = Some(reserved)).map_err(|error| {
                    full = Some(error);
                    sheaf_client::Error::Interrupted
                })
            },
            &mut || goes_on(&self.set, &self.host, &self.sent, go_on, &mut stopped),
        );
        match (received, stopped.or(full)) {
            (Ok(()), _) => {
                let connection = Some(self.connection);
                Ok(Answer { set: self.set, host: self.host, connection, _held: held })
            }
            (Err(_), Some(error)) => Err(Lost::Stopped(error)),
            (Err(error), None) => Err(Lost::Network(error)),
        }
    }

    /// Receives the answer. Where a member was lost or is not what the message needs, another one is asked, if that may be.
    ///
    /// Errors: `HostUnreachable`, `NetworkTimeout`, `FailedToSatisfyReadPreference`; `ExceededMemoryLimit`, if the operation has no room for
    /// the answer; those of [`Asker::go_on`].
    pub fn finish(self, message: &mut Message, asker: &Asker<'_>) -> Result<Answer> {
        let began = Instant::now();
        let mut call = self;
        loop {
            let (set, host) = (call.set.clone(), call.host.clone());
            let again = asker.again && began.elapsed() < SELECTION;
            match call.receive(asker.go_on) {
                Ok(answer) => match not_primary(answer.reply()) {
                    Some(_) if again => set.stepped_down(&answer.host),
                    Some(error) => {
                        set.stepped_down(&answer.host);
                        return Err(error);
                    }
                    None => return Ok(answer),
                },
                Err(Lost::Stopped(error)) => return Err(error),
                Err(Lost::Network(error)) => {
                    set.lost(&host);
                    if !again {
                        return Err(unreachable(&host, &error));
                    }
                }
            }
            // Who has waited long for a member that hangs does not wait as long again.
            let until = (began + SELECTION).max(Instant::now() + AFTER_LOSS);
            call = Call::send_until(&set, message, asker, until)?;
        }
    }

    /// Receives the answer of the one member that it was sent to.
    pub fn finish_there(self, go_on: &dyn Fn() -> Result<()>) -> Result<Answer> {
        let host = self.host.clone();
        self.receive(go_on).map_err(|lost| match lost {
            Lost::Stopped(error) => error,
            Lost::Network(error) => unreachable(&host, &error),
        })
    }
}

impl ReplicaSet {
    /// Sends a message to a member that may answer it, and gives its answer.
    ///
    /// Errors: those of [`Call::send`] and [`Call::finish`]. An error that the member answers is an answer.
    pub fn ask(self: &Arc<Self>, message: &mut Message, asker: &Asker<'_>) -> Result<Answer> {
        Call::send(self, message, asker)?.finish(message, asker)
    }
}

/// The error by which a member says that another one has to be asked. It reaches clients, who must not take this process for that
/// member, with another code.
fn not_primary(reply: RawDoc<'_>) -> Option<Error> {
    if reply.get("ok").is_none_or(|ok| ok.truthy()) {
        return None;
    }
    let code = Code(reply.get("code").and_then(|code| code.as_exact_i64()).unwrap_or(0) as i32);
    let text = reply.get("errmsg").and_then(|text| text.as_str()).unwrap_or_default();
    is_not_primary(code).then(|| Error::new(code, text))
}

/// Whether to go on waiting for a member: whoever asks wants to, and it was not found silent since the request went out.
fn goes_on(
    set: &ReplicaSet,
    host: &str,
    sent: &Sent,
    go_on: &dyn Fn() -> Result<()>,
    stopped: &mut Option<Error>,
) -> sheaf_client::Result<()> {
    if !sent.is_hoped_for(set, host) {
        let text = format!("{host} does not answer any more");
        return Err(io::Error::new(io::ErrorKind::ConnectionAborted, text).into());
    }
    go_on().map_err(|error| {
        *stopped = Some(error);
        sheaf_client::Error::Interrupted
    })
}

fn open(
    set: &ReplicaSet,
    host: &str,
    goes_on: &mut dyn FnMut() -> sheaf_client::Result<()>,
) -> sheaf_client::Result<Connection> {
    let began = Instant::now();
    let mut to = set.membership.direct(host);
    (to.connect_timeout, to.socket_timeout) = (CONNECT_TURN, CONNECT);
    loop {
        match Connection::open(host, &to) {
            Ok(mut connection) => {
                connection.set_patience(ASK, ASK)?;
                return Ok(connection);
            }
            // A link that is cut says nothing; meanwhile another one may have become primary.
            Err(sheaf_client::Error::Io(error))
                if error.kind() == io::ErrorKind::TimedOut && began.elapsed() < CONNECT =>
            {
                goes_on()?;
                // Or it is slow: what TLS needs at the beginning may take longer than the first turn.
                to.connect_timeout *= 2;
            }
            Err(error) => return Err(error),
        }
    }
}
