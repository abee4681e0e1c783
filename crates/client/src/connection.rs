//! One socket to one node.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, DocWriter, ObjectId, RawDoc, Value, doc};
use sheaf_wire::{ADDED_ON_THE_WAY, Flags, HEADER_LEN, Header, MAX_MESSAGE_SIZE, OpCode, REPLY_HEAD};

use sheaf_tls::Blocking;

use super::ConnectionString;
use super::auth::log_in;
use crate::dial::{Patience, dial};
use crate::error::{Error, Result, ServerError};

/// A request under construction, in the buffer that will be sent. The buffer is used again and again.
#[derive(Default)]
pub struct Message {
    bytes: Vec<u8>,
    flags: u32,
    /// Where the open document sequence begins.
    sequence: usize,
}

impl Message {
    /// An empty buffer.
    pub fn new() -> Message {
        Message { bytes: Vec::with_capacity(16 * 1024), flags: 0, sequence: 0 }
    }

    /// Starts over with a body, which `fill` writes in place.
    pub fn begin(&mut self, flags: u32, fill: impl FnOnce(&mut DocWriter<'_, Vec<u8>>)) {
        self.bytes.clear();
        self.bytes.resize(REPLY_HEAD, 0);
        self.flags = flags;
        fill(&mut DocWriter::new(&mut self.bytes));
    }

    /// Starts a section of documents that belong to this field of the command.
    pub fn begin_sequence(&mut self, field: &str) {
        self.bytes.push(1);
        self.sequence = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(field.as_bytes());
        self.bytes.push(0);
    }

    /// Closes the section.
    pub fn end_sequence(&mut self) {
        let length = (self.bytes.len() - self.sequence) as i32;
        self.bytes[self.sequence..self.sequence + 4].copy_from_slice(&length.to_le_bytes());
    }

    /// The buffer, to append documents to an open section.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

/// One socket to one node.
pub struct Connection {
    stream: Blocking,
    address: String,
    received: Vec<u8>,
    /// Length of the last reply.
    length: usize,
    request_id: i32,
}

/// What a node says it is.
#[derive(Clone, Debug, Default)]
pub struct Role {
    /// The server takes writes: a standalone, a primary, a router.
    pub primary: bool,
    /// The server is a secondary.
    pub secondary: bool,
    /// Name of its replica set.
    pub set: Option<String>,
    /// The members that it knows: those that can become primary.
    pub hosts: Vec<String>,
    /// Those that hold data and cannot become primary.
    pub passives: Vec<String>,
    /// Who it believes is the primary.
    pub primary_host: Option<String>,
    /// `electionId` of a primary.
    pub election: Option<[u8; 12]>,
}

impl Role {
    /// What a reply to `hello` says.
    pub fn of(reply: RawDoc<'_>) -> Role {
        let flag = |key: &str| reply.get(key).and_then(|value| value.as_bool()).unwrap_or(false);
        let text = |key: &str| reply.get(key).and_then(|value| value.as_str()).map(str::to_owned);
        let hosts = |key: &str| {
            let hosts = reply.get(key).and_then(|hosts| hosts.as_array());
            let hosts = hosts.into_iter().flat_map(|hosts| hosts.values());
            hosts.filter_map(|host| host.as_str().map(str::to_owned)).collect()
        };
        let election = match reply.get("electionId") {
            Some(Value::ObjectId(ObjectId(id))) => Some(id),
            _ => None,
        };
        Role {
            primary: flag("isWritablePrimary"),
            secondary: flag("secondary"),
            set: text("setName"),
            hosts: hosts("hosts"),
            passives: hosts("passives"),
            primary_host: text("primary"),
            election,
        }
    }
}

/// Bytes of an OP_MSG before its first section's document.
const HEAD: usize = REPLY_HEAD;
/// What one read asks for: with small replies, header and body come in one call.
const READ_SIZE: usize = 64 * 1024;

impl Connection {
    /// Connects to "host:port", and logs in when there is somebody to log in.
    pub fn open(address: &str, to: &ConnectionString) -> Result<Connection> {
        let patience = Patience { connect: to.connect_timeout, each: to.socket_timeout };
        let socket = dial(address, patience)?;
        let stream = match &to.tls {
            Some(tls) => Blocking::connect(socket, tls, address, to.connect_timeout)?,
            None => Blocking::plain(socket),
        };
        let (address, received) = (address.to_owned(), vec![0; READ_SIZE]);
        let mut connection = Connection { stream, address, received, length: 0, request_id: 0 };
        if let Some(credentials) = &to.credentials {
            log_in(&mut connection, credentials)?;
        }
        Ok(connection)
    }

    /// How long to wait for an answer from now on.
    pub fn set_timeout(&mut self, timeout: Duration) -> Result<()> {
        self.set_patience(timeout, timeout)
    }

    /// "host:port".
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Asks the node what it is.
    pub fn hello(&mut self) -> Result<Role> {
        Ok(Role::of(self.command("admin", &doc! { "hello": 1 })?))
    }

    /// Runs a command and gives the answer, whatever it says.
    pub fn ask(&mut self, db: &str, command: &DocBuf) -> Result<DocBuf> {
        let mut message = Message::new();
        message.begin(0, |body| {
            body.append_all(command.as_raw()).append("$db", db);
        });
        self.exchange(&mut message)?;
        Ok(DocBuf::from(self.reply()))
    }

    /// Runs a command; an error in the reply is an error.
    pub fn command(&mut self, db: &str, command: &DocBuf) -> Result<RawDoc<'_>> {
        let mut message = Message::new();
        message.begin(0, |body| {
            body.append_all(command.as_raw()).append("$db", db);
        });
        self.exchange(&mut message)?;
        match error_in(self.reply()) {
            Some(error) => Err(error),
            None => Ok(self.reply()),
        }
    }

    /// Sends a message, and unless it says that more is to come, receives the reply.
    pub fn exchange(&mut self, message: &mut Message) -> Result<()> {
        self.exchange_while(message, &mut no_answer)
    }

    /// The same. `go_on` is asked each time that nothing has come for as long as a read waits.
    ///
    /// Errors: the network's, and those of `go_on`; nothing more can be said on this connection then.
    pub fn exchange_while(
        &mut self,
        message: &mut Message,
        go_on: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        self.send(message)?;
        if message.flags & Flags::MORE_TO_COME != 0 { Ok(()) } else { self.receive_while(go_on) }
    }

    /// The last reply's document.
    pub fn reply(&self) -> RawDoc<'_> {
        RawDoc::new(&self.received[HEAD..self.length])
    }

    /// The last reply's document, for good: a large one is not copied.
    pub fn take_reply(&mut self) -> DocBuf {
        if self.length <= READ_SIZE {
            return DocBuf::from(self.reply());
        }
        let mut bytes = std::mem::replace(&mut self.received, vec![0; READ_SIZE]);
        bytes.truncate(self.length);
        bytes.drain(..HEAD);
        self.length = 0;
        DocBuf::from_bytes(bytes)
    }

    /// How long one read of the socket waits, and how long a write may make no progress.
    pub fn set_patience(&mut self, read: Duration, write: Duration) -> Result<()> {
        self.stream.socket().set_read_timeout(Some(read))?;
        Ok(self.stream.socket().set_write_timeout(Some(write))?)
    }

    /// Gives back what the buffer of replies has beyond so many bytes.
    pub fn shrink(&mut self, most: usize) {
        if self.received.len() > most {
            self.received = vec![0; READ_SIZE];
            self.length = 0;
        }
    }

    /// Whether a read would not wait: there is something to be read, or the connection is over.
    pub fn is_readable(&mut self) -> bool {
        self.stream.is_readable()
    }

    /// The socket once more, for who waits until it can be read.
    pub fn socket(&self) -> io::Result<TcpStream> {
        self.stream.socket().try_clone()
    }

    /// Sends a message; its reply is to be [received](Connection::receive_while).
    pub fn send(&mut self, message: &mut Message) -> Result<()> {
        let bytes = self.numbered(message)?;
        Ok(self.stream.write_all(bytes)?)
    }

    /// The same. `go_on` is asked each time that nothing was taken for as long as a write waits; after `most` of that it is over.
    ///
    /// Errors: the network's, and those of `go_on`; nothing more can be said on this connection then.
    pub fn send_while(
        &mut self,
        message: &mut Message,
        most: Duration,
        go_on: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let mut left = self.numbered(message)?;
        let mut progress = None;
        while !left.is_empty() {
            match self.stream.write(left) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Ok(n) => (left, progress) = (&left[n..], None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if progress.get_or_insert_with(Instant::now).elapsed() >= most {
                        return Err(io::Error::from(io::ErrorKind::TimedOut).into());
                    }
                    go_on()?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// The message with its header.
    fn numbered<'m>(&mut self, message: &'m mut Message) -> Result<&'m [u8]> {
        let bytes = &mut message.bytes;
        if bytes.len() > MAX_MESSAGE_SIZE + ADDED_ON_THE_WAY {
            return Err(Error::usage(format!("a message of {} bytes is too large", bytes.len())));
        }
        self.request_id = self.request_id.wrapping_add(1);
        let length = bytes.len() as u32;
        Header { length, request_id: self.request_id, response_to: 0, opcode: OpCode::Msg }.write(bytes);
        bytes[HEADER_LEN..HEADER_LEN + 4].copy_from_slice(&message.flags.to_le_bytes());
        Ok(bytes)
    }

    /// Receives the reply to the message that was sent last. `go_on` is asked each time that nothing has come for as long as a read waits.
    ///
    /// Errors: the network's, and those of `go_on`; nothing more can be said on this connection then.
    pub fn receive_while(&mut self, go_on: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.receive_if(&mut |_| Ok(()), go_on)
    }

    /// The same, if there is room for the reply: `room` is told how many bytes it has before these are received.
    ///
    /// Errors: those of [`Connection::receive_while`], and those of `room`.
    pub fn receive_if(
        &mut self,
        room: &mut dyn FnMut(usize) -> Result<()>,
        go_on: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let mut filled = 0;
        let mut wanted = HEAD + 5;
        let mut header_known = false;
        while filled < wanted {
            if self.received.len() < wanted {
                self.received.resize(wanted, 0);
            }
            match self.stream.read(&mut self.received[filled..]) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => go_on()?,
                Err(error) => return Err(error.into()),
            }
            if !header_known && filled >= HEADER_LEN {
                wanted = self.length_announced()?;
                room(wanted)?;
                header_known = true;
            }
        }
        // Nothing may follow: one request is under way at a time.
        if filled != wanted || self.received[HEADER_LEN + 4] != 0 {
            return Err(Error::failed("the reply is not one plain document"));
        }
        self.length = wanted;
        Ok(())
    }

    fn length_announced(&self) -> Result<usize> {
        let header = Header::parse(&self.received)
            .map_err(|error| Error::failed(format!("the reply's header is wrong: {error:?}")))?;
        if header.opcode != OpCode::Msg || header.response_to != self.request_id {
            return Err(Error::failed("the reply is not for this request"));
        }
        if (header.length as usize) < HEAD + 5 {
            return Err(Error::failed("the reply is too short"));
        }
        Ok(header.length as usize)
    }
}

/// Nobody goes on waiting.
pub(super) fn no_answer() -> Result<()> {
    Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time").into())
}

/// The error that a reply reports, be it the command's, a single write's, or the write concern's.
pub(super) fn error_in(reply: RawDoc<'_>) -> Option<Error> {
    let ok = reply.get("ok").is_some_and(|ok| ok.truthy());
    if !ok {
        return Some(server_error(reply, reply));
    }
    if let Some(errors) = reply.get("writeErrors").and_then(|errors| errors.as_array()) {
        let first = errors.values().next().and_then(|error| error.as_doc());
        return first.map(|error| server_error(error, reply));
    }
    let concern = reply.get("writeConcernError").and_then(|error| error.as_doc());
    concern.map(|error| server_error(error, reply))
}

fn server_error(error: RawDoc<'_>, reply: RawDoc<'_>) -> Error {
    let text = |key: &str| error.get(key).and_then(|value| value.as_str()).unwrap_or("").to_owned();
    let labels = reply.get("errorLabels").and_then(|labels| labels.as_array());
    let code = error.get("code").and_then(|code| code.as_exact_i64()).unwrap_or(0) as i32;
    Error::Server(Box::new(ServerError {
        code,
        code_name: text("codeName"),
        message: text("errmsg"),
        labels: labels
            .into_iter()
            .flat_map(|labels| labels.values())
            .filter_map(|label| label.as_str().map(str::to_owned))
            .collect(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_found_wherever_they_stand() {
        let find = |reply: DocBuf| match error_in(reply.as_raw()) {
            Some(Error::Server(error)) => Some((error.code, error.message, error.labels)),
            _ => None,
        };
        assert_eq!(find(doc! { "ok": 1.0, "n": 1 }), None);
        let labels = vec!["TransientTransactionError".to_owned()];
        let reply =
            doc! { "ok": 0.0, "errmsg": "busy", "code": 112, "errorLabels": ["TransientTransactionError"] };
        assert_eq!(find(reply), Some((112, "busy".into(), labels)));
        let reply =
            doc! { "n": 0, "writeErrors": [{ "index": 0, "code": 11000, "errmsg": "twice" }], "ok": 1.0 };
        assert_eq!(find(reply), Some((11000, "twice".into(), vec![])));
        let reply = doc! { "n": 1, "writeConcernError": { "code": 64, "errmsg": "waiting" }, "ok": 1.0 };
        assert_eq!(find(reply), Some((64, "waiting".into(), vec![])));
    }

    #[test]
    fn messages_are_what_the_wire_crate_parses() {
        let mut message = Message::new();
        // Twice, because the buffer is used again.
        for _ in 0..2 {
            message.begin(Flags::MORE_TO_COME, |body| {
                body.append("insert", "plants").append("$db", "lab");
            });
            message.begin_sequence("documents");
            for id in 0..3 {
                message.bytes().extend_from_slice(doc! { "_id": id }.as_bytes());
            }
            message.end_sequence();
            let mut bytes = message.bytes().clone();
            let length = bytes.len() as u32;
            Header { length, request_id: 7, response_to: 0, opcode: OpCode::Msg }.write(&mut bytes);
            let Ok(sheaf_wire::Request::Msg(parsed)) = sheaf_wire::parse(&bytes) else { panic!("no OP_MSG") };
            assert_eq!(parsed.body.get("insert").and_then(|name| name.as_str()), Some("plants"));
            let (sequences, count) = parsed.sequences();
            assert_eq!((count, sequences[0].name), (1, "documents"));
            assert_eq!(sequences[0].iter().count(), 3);
        }
    }

    #[test]
    fn a_server_that_says_nothing_is_not_waited_for_for_ever() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut to = ConnectionString::direct(&listener.local_addr().unwrap().to_string());
        to.socket_timeout = std::time::Duration::from_millis(30);
        let mut connection = Connection::open(&to.hosts[0], &to).unwrap();
        let error = connection.hello().unwrap_err();
        assert!(matches!(&error, Error::Io(io) if io.kind() == io::ErrorKind::TimedOut), "{error}");
    }
}
