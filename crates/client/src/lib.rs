//! How one process speaks MongoDB's protocol to another: members to members, secondaries to their primary, the laboratory to whatever it
//! measures.
//!
//! - [`dial`] opens sockets; what encrypts them has its place there.
//! - [`Connection`] speaks over one; [`pool`] keeps those that will be used again.
//! - [`Client`] knows a deployment.
//!
//! It is as thin as a client can be, so that what is measured is the server: blocking sockets, one thread per client,
//! messages written straight into the buffer that is sent, replies read in place.
//!
//! [`Client`] knows a deployment by its [`ConnectionString`], finds the primary, and holds one connection for writes
//! and one for reads (the same one unless the read preference says otherwise). It is meant to be owned by one thread.
//! With `retryWrites=true` it does what drivers do when a primary is lost: it looks for the new one and sends again what
//! may be sent again; reads on its own, writes with a transaction number, so that they happen once. That costs the server
//! something, so a connection string has to ask for it, other than with drivers.

#![forbid(unsafe_code)]

mod address;
mod auth;
mod batch;
mod concern;
mod connection;
mod cursor;
pub mod dial;
pub mod error;
mod membership;
pub mod pool;
mod select;
mod session;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, DocWriter, RawDoc, Value};

pub use address::{ConnectionString, ReadPreference, without_password};
pub use auth::Credentials;
pub use batch::{WriteBatch, Written};
pub use concern::{W, WriteConcern};
pub use connection::{Connection, Message, Role};
pub use cursor::Cursor;
pub use membership::Membership;
/// How a connection speaks TLS.
pub mod tls {
    pub use sheaf_tls::{ClientOptions, Identity, TlsClient};
}

pub use session::{TransactionOptions, commit_is_unknown};

pub use error::{Error, Result, ServerError};
use select::{Election, SELECTION, find_node, still_worth_waiting};
use session::Session;

/// A namespace and how it is written to.
#[derive(Clone, Debug)]
pub struct Collection {
    /// Database.
    pub db: String,
    /// Collection.
    pub name: String,
    /// Sent with every write outside of a transaction, unless it is the default.
    pub write_concern: WriteConcern,
    /// Sent with every read outside of a transaction: "majority".
    pub read_concern: Option<String>,
}

impl Collection {
    /// With the server's default concerns.
    pub fn new(db: &str, name: &str) -> Collection {
        Collection {
            db: db.to_owned(),
            name: name.to_owned(),
            write_concern: WriteConcern::default(),
            read_concern: None,
        }
    }

    /// With another write concern.
    #[must_use]
    pub fn with_concern(mut self, concern: &WriteConcern) -> Collection {
        self.write_concern = concern.clone();
        self
    }
}

/// One thread's way to a deployment.
pub struct Client {
    to: ConnectionString,
    primary: Option<Connection>,
    /// Only when reads go elsewhere.
    reader: Option<Connection>,
    session: Session,
    message: Message,
    /// Where the last reply is.
    replied: Side,
    /// The last election that was heard of: no client goes back to an older primary.
    newest: Option<Election>,
}

/// Which connection an operation goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Primary,
    Reader,
}

/// Pause before something is sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

impl Client {
    /// Connects: finds the primary, or with `directConnection=true` takes the one node that is named.
    pub fn connect(to: &ConnectionString) -> Result<Client> {
        let mut client = Client {
            to: to.clone(),
            primary: None,
            reader: None,
            session: Session::new(),
            message: Message::new(),
            replied: Side::Primary,
            newest: None,
        };
        client.ensure(Side::Primary)?;
        Ok(client)
    }

    /// Makes the client causally consistent: what it reads, on whichever member, is never older than what it has read or
    /// written before.
    #[must_use]
    pub fn causal(mut self) -> Client {
        self.session.causal = true;
        self
    }

    /// Where it connects to.
    pub fn connection_string(&self) -> &ConnectionString {
        &self.to
    }

    /// "host:port" of the node that writes go to.
    pub fn primary_address(&self) -> Option<&str> {
        self.primary.as_ref().map(Connection::address)
    }

    /// Runs a command on the primary. Errors that the reply reports, those of single writes and of the write concern
    /// among them, come back as errors.
    pub fn command(&mut self, db: &str, command: &DocBuf) -> Result<RawDoc<'_>> {
        self.begin(db, command);
        self.exchange(Side::Primary)?;
        self.reply()
    }

    /// Runs a command where the read preference says. One that begins something (not a getMore) is sent again when a
    /// member was lost, if the connection string asks for it.
    pub fn read_command(&mut self, db: &str, command: &DocBuf) -> Result<RawDoc<'_>> {
        self.read_command_at(db, command, None)
    }

    /// Runs a command with a read concern where the read preference says, for find, aggregate, count and distinct.
    fn read_command_at(&mut self, db: &str, command: &DocBuf, level: Option<&str>) -> Result<RawDoc<'_>> {
        let name = command.as_raw().iter().next().map_or("", |first| first.key());
        let preference = self.read_preference();
        let session = &mut self.session;
        self.message.begin(0, |body| {
            body.append_all(command.as_raw());
            // Others have no read concern, or are not told by a sequence of operations.
            let reads = matches!(name, "find" | "aggregate" | "count" | "distinct");
            if reads && command.as_raw().get("readConcern").is_none() {
                session.append_read_concern(body, level);
            }
            session.append(body);
            append_preference(body, preference);
            body.append("$db", db);
        });
        let again =
            self.to.retry && !self.session.in_transaction() && !matches!(name, "getMore" | "killCursors");
        self.round_trip(self.read_side(), again)?;
        self.last_reply()
    }

    /// Runs a command that writes one document and is no insert, update or delete, such as findAndModify; with a
    /// transaction number, and again when the primary was lost, if the connection string asks for it.
    pub fn write_command(&mut self, db: &str, command: &DocBuf) -> Result<RawDoc<'_>> {
        let again = self.to.retry && !self.session.in_transaction();
        let session = &mut self.session;
        self.message.begin(0, |body| {
            body.append_all(command.as_raw());
            if again {
                session.append_retryable(body);
            } else {
                session.append(body);
            }
            body.append("$db", db);
        });
        self.round_trip(Side::Primary, again)?;
        self.last_reply()
    }

    /// Starts an insert. Add documents, then [`WriteBatch::send`].
    pub fn insert(&mut self, into: &Collection) -> WriteBatch<'_> {
        WriteBatch::begin(self, "insert", "documents", into)
    }

    /// Starts an update command; its statements are `{q, u, upsert, multi}`.
    pub fn update(&mut self, into: &Collection) -> WriteBatch<'_> {
        WriteBatch::begin(self, "update", "updates", into)
    }

    /// Starts a delete command; its statements are `{q, limit}`.
    pub fn delete(&mut self, from: &Collection) -> WriteBatch<'_> {
        WriteBatch::begin(self, "delete", "deletes", from)
    }

    /// The document with this `_id`.
    pub fn find_by_id<'v>(
        &mut self,
        from: &Collection,
        id: impl Into<Value<'v>>,
    ) -> Result<Option<RawDoc<'_>>> {
        let id = id.into();
        self.find_one(from, |filter| {
            filter.append("_id", id);
        })
    }

    /// The first document that matches the filter.
    pub fn find_one(
        &mut self,
        from: &Collection,
        filter: impl FnOnce(&mut DocWriter<'_, Vec<u8>>),
    ) -> Result<Option<RawDoc<'_>>> {
        let preference = self.read_preference();
        let session = &mut self.session;
        self.message.begin(0, |body| {
            body.append("find", from.name.as_str());
            filter(&mut body.document("filter"));
            body.append("limit", 1).append("singleBatch", true);
            session.append_read_concern(body, from.read_concern.as_deref());
            session.append(body);
            append_preference(body, preference);
            body.append("$db", from.db.as_str());
        });
        let again = self.to.retry && !self.session.in_transaction();
        self.round_trip(self.read_side(), again)?;
        let batch =
            self.last_reply()?.get("cursor").and_then(|c| c.as_doc()).and_then(|c| c.get("firstBatch"));
        let batch = batch.and_then(|b| b.as_array()).ok_or_else(|| Error::failed("find gave no batch"))?;
        Ok(batch.values().next().and_then(|document| document.as_doc()))
    }

    /// [`Client::for_each`] for find and aggregate, with a read concern.
    pub fn for_each_at(
        &mut self,
        db: &str,
        command: &DocBuf,
        level: &str,
        mut each: impl FnMut(RawDoc<'_>) -> Result<()>,
    ) -> Result<u64> {
        let (mut cursor, mut count) = self.open_cursor_at(db, command, Some(level), &mut each)?;
        while cursor.is_open() {
            count += self.next_batch(&mut cursor, None, &mut each)?;
        }
        Ok(count)
    }

    /// Runs a command that opens a cursor (find, aggregate, listIndexes) and hands every document to `each`, through
    /// all batches. How many there were.
    pub fn for_each(
        &mut self,
        db: &str,
        command: &DocBuf,
        mut each: impl FnMut(RawDoc<'_>) -> Result<()>,
    ) -> Result<u64> {
        let (mut cursor, mut count) = self.open_cursor(db, command, &mut each)?;
        while cursor.is_open() {
            count += self.next_batch(&mut cursor, None, &mut each)?;
        }
        Ok(count)
    }

    /// The number of documents that match, by aggregation (exact, as drivers' `countDocuments`).
    pub fn count(&mut self, from: &Collection, filter: &DocBuf) -> Result<i64> {
        let command = sheaf_bson::doc! {
            "aggregate": from.name.as_str(),
            "pipeline": [
                { "$match": filter.as_raw() },
                { "$group": { "_id": 1, "n": { "$sum": 1 } } }
            ],
            "cursor": {}
        };
        let mut n = 0;
        self.for_each(&from.db, &command, |group| {
            n = group.get("n").and_then(|n| n.as_exact_i64()).unwrap_or(0);
            Ok(())
        })?;
        Ok(n)
    }

    /// Drops a collection; it need not exist.
    pub fn drop_collection(&mut self, collection: &Collection) -> Result<()> {
        match self.command(&collection.db, &sheaf_bson::doc! { "drop": collection.name.as_str() }) {
            Ok(_) => Ok(()),
            // NamespaceNotFound, which newer servers no longer answer.
            Err(error) if error.code() == Some(26) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Waits until the server has done everything that was sent, unacknowledged writes among it: a connection's
    /// messages are handled one after another.
    pub fn barrier(&mut self) -> Result<()> {
        self.command("admin", &sheaf_bson::doc! { "ping": 1 }).map(drop)
    }

    /// Puts a command into the send buffer, with what session and database add.
    fn begin(&mut self, db: &str, command: &DocBuf) {
        let session = &mut self.session;
        self.message.begin(0, |body| {
            body.append_all(command.as_raw());
            session.append(body);
            body.append("$db", db);
        });
    }

    fn read_side(&self) -> Side {
        let elsewhere = self.read_preference().is_some();
        if elsewhere && !self.to.direct { Side::Reader } else { Side::Primary }
    }

    /// What reads say about it: nothing when they go to the primary.
    fn read_preference(&self) -> Option<ReadPreference> {
        let elsewhere = self.to.read_preference != ReadPreference::Primary && !self.session.in_transaction();
        elsewhere.then_some(self.to.read_preference)
    }

    /// Sends the message and waits for a reply without an error; with `again`, to another member if need be, as long as
    /// the search for one may take.
    fn round_trip(&mut self, side: Side, again: bool) -> Result<()> {
        let began = Instant::now();
        loop {
            match self.exchange(side).and_then(|()| self.judge()) {
                Err(error) if again && may_be_sent_again(&error) && began.elapsed() < SELECTION => {
                    std::thread::sleep(RETRY_PAUSE);
                }
                outcome => return outcome,
            }
        }
    }

    /// Sends the message and waits for the reply, unless it asks for none.
    fn exchange(&mut self, side: Side) -> Result<()> {
        self.ensure(side)?;
        self.replied = side;
        let slot = match side {
            Side::Primary => &mut self.primary,
            Side::Reader => &mut self.reader,
        };
        let Some(connection) = slot else { return Err(Error::failed("no connection")) };
        let preference =
            if side == Side::Primary { ReadPreference::Primary } else { self.to.read_preference };
        let (to, newest, address) = (&self.to, &mut self.newest, connection.address().to_owned());
        let began = Instant::now();
        let outcome = connection.exchange_while(&mut self.message, &mut || {
            if began.elapsed() >= to.socket_timeout {
                return connection::no_answer();
            }
            still_worth_waiting(to, &address, preference, newest)
        });
        if outcome.is_err() {
            // What comes next on this connection is not known: the next operation takes a new one.
            *slot = None;
        }
        outcome
    }

    /// The last reply, or the error in it.
    fn reply(&mut self) -> Result<RawDoc<'_>> {
        self.judge()?;
        self.last_reply()
    }

    /// The last reply, which was judged before.
    fn last_reply(&self) -> Result<RawDoc<'_>> {
        let slot = match self.replied {
            Side::Primary => &self.primary,
            Side::Reader => &self.reader,
        };
        slot.as_ref().map(Connection::reply).ok_or_else(|| Error::failed("no connection"))
    }

    /// The error in the last reply, if there is one.
    fn judge(&mut self) -> Result<()> {
        let slot = match self.replied {
            Side::Primary => &mut self.primary,
            Side::Reader => &mut self.reader,
        };
        let Some(connection) = slot else { return Err(Error::failed("no connection")) };
        let reply = connection.reply();
        let problem = connection::error_in(reply);
        // A reply with an error has the times, too.
        self.session.advance(reply);
        let Some(error) = problem else { return Ok(()) };
        if error.code().is_some_and(|code| NOT_THIS_MEMBER.contains(&code)) {
            *slot = None;
        }
        Err(error)
    }

    /// Makes sure that there is a connection.
    fn ensure(&mut self, side: Side) -> Result<()> {
        match side {
            Side::Primary if self.primary.is_none() => {
                self.primary = Some(find_node(&mut self.to, ReadPreference::Primary, &mut self.newest)?);
            }
            Side::Reader if self.reader.is_none() => {
                let preference = self.to.read_preference;
                self.reader = Some(find_node(&mut self.to, preference, &mut self.newest)?);
            }
            _ => {}
        }
        Ok(())
    }
}

/// The member cannot do it any more, another one can: NotWritablePrimary, NotPrimaryNoSecondaryOk,
/// NotPrimaryOrSecondary, InterruptedDueToReplStateChange, InterruptedAtShutdown, PrimarySteppedDown, ShutdownInProgress,
/// LegacyNotPrimary.
const NOT_THIS_MEMBER: [i32; 8] = [10107, 13435, 13436, 11602, 11600, 189, 91, 10058];

/// Whether it makes sense to send it once more. A write concern that was not met in time is an answer: the write is done.
fn may_be_sent_again(error: &Error) -> bool {
    error.is_transient() && error.code() != Some(64)
}

fn append_preference(body: &mut DocWriter<'_, Vec<u8>>, preference: Option<ReadPreference>) {
    if let Some(preference) = preference {
        body.document("$readPreference").append("mode", preference.name());
    }
}
