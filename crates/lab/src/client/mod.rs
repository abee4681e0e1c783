//! A client as thin as one can be, so that what is measured is the server: blocking sockets, one thread per client,
//! messages written straight into the buffer that is sent, replies read in place.
//!
//! [`Client`] knows a deployment by its [`ConnectionString`], finds the primary, and holds one connection for writes
//! and one for reads (the same one unless the read preference says otherwise). It is meant to be owned by one thread.

mod address;
mod auth;
mod batch;
mod concern;
mod connection;
mod session;

use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, DocWriter, RawDoc, Value};

pub use address::{ConnectionString, ReadPreference, without_password};
pub use auth::Credentials;
pub use batch::{WriteBatch, Written};
pub use concern::{W, WriteConcern};
pub use connection::{Connection, Message};
pub use session::TransactionOptions;

use crate::error::{Error, Result};
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
}

/// Which connection an operation goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Primary,
    Reader,
}

/// How long a client looks for a primary before it gives up: longer than an election takes.
const SELECTION: Duration = Duration::from_secs(30);

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
        };
        client.ensure(Side::Primary)?;
        Ok(client)
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

    /// Runs a command where the read preference says.
    pub fn read_command(&mut self, db: &str, command: &DocBuf) -> Result<RawDoc<'_>> {
        self.begin(db, command);
        let side = self.read_side();
        self.exchange(side)?;
        self.reply()
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
        let session = &mut self.session;
        self.message.begin(0, |body| {
            body.append("find", from.name.as_str());
            filter(&mut body.document("filter"));
            body.append("limit", 1).append("singleBatch", true);
            read_fields(body, session, from);
            session.append(body);
            body.append("$db", from.db.as_str());
        });
        let side = self.read_side();
        self.exchange(side)?;
        let batch = self.reply()?.get("cursor").and_then(|c| c.as_doc()).and_then(|c| c.get("firstBatch"));
        let batch = batch.and_then(|b| b.as_array()).ok_or_else(|| Error::failed("find gave no batch"))?;
        Ok(batch.values().next().and_then(|document| document.as_doc()))
    }

    /// Runs a command that opens a cursor (find, aggregate, listIndexes) and hands every document to `each`, through
    /// all batches. How many there were.
    pub fn for_each(
        &mut self,
        db: &str,
        command: &DocBuf,
        mut each: impl FnMut(RawDoc<'_>) -> Result<()>,
    ) -> Result<u64> {
        let batch_size = command.as_raw().get("batchSize").and_then(|n| n.as_exact_i64());
        let mut count = 0;
        let mut reply = self.read_command(db, command)?;
        loop {
            let cursor = reply
                .get("cursor")
                .and_then(|c| c.as_doc())
                .ok_or_else(|| Error::failed("the reply has no cursor"))?;
            let batch = cursor.get("firstBatch").or_else(|| cursor.get("nextBatch"));
            for value in batch.and_then(|b| b.as_array()).into_iter().flat_map(|array| array.values()) {
                let document = value.as_doc().ok_or_else(|| Error::failed("a batch holds no documents"))?;
                each(document)?;
                count += 1;
            }
            let id = cursor.get("id").and_then(|id| id.as_exact_i64()).unwrap_or(0);
            if id == 0 {
                return Ok(count);
            }
            let ns = cursor.get("ns").and_then(|ns| ns.as_str()).unwrap_or("");
            let collection = ns.split_once('.').map_or(ns, |(_, name)| name).to_owned();
            let mut more = sheaf_bson::doc! { "getMore": id, "collection": collection.as_str() };
            // An opening batch of 0 only asks for the cursor; the next must hold something.
            if let Some(size) = batch_size.filter(|size| *size > 0) {
                more.append("batchSize", size);
            }
            reply = self.read_command(db, &more)?;
        }
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
        let elsewhere = self.to.read_preference != ReadPreference::Primary && !self.session.in_transaction();
        if elsewhere && !self.to.direct { Side::Reader } else { Side::Primary }
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
        let outcome = connection.exchange(&mut self.message);
        if outcome.is_err() {
            // What comes next on this connection is not known: the next operation takes a new one.
            *slot = None;
        }
        outcome
    }

    /// The last reply, or the error in it.
    fn reply(&mut self) -> Result<RawDoc<'_>> {
        let slot = match self.replied {
            Side::Primary => &mut self.primary,
            Side::Reader => &mut self.reader,
        };
        let problem = match slot {
            Some(connection) => connection::error_in(connection.reply()),
            None => Some(Error::failed("no connection")),
        };
        if let Some(error) = problem {
            // A node that is not the primary any more (NotWritablePrimary and its family): look again.
            if matches!(error.code(), Some(10107 | 13435 | 11602 | 11600 | 189 | 91)) {
                *slot = None;
            }
            return Err(error);
        }
        match slot {
            Some(connection) => Ok(connection.reply()),
            None => Err(Error::failed("no connection")),
        }
    }

    /// Makes sure that there is a connection.
    fn ensure(&mut self, side: Side) -> Result<()> {
        match side {
            Side::Primary if self.primary.is_none() => {
                self.primary = Some(find_node(&self.to, ReadPreference::Primary)?);
            }
            Side::Reader if self.reader.is_none() => {
                self.reader = Some(find_node(&self.to, self.to.read_preference)?);
            }
            _ => {}
        }
        Ok(())
    }
}

fn read_fields(body: &mut DocWriter<'_, Vec<u8>>, session: &Session, from: &Collection) {
    if let Some(level) = from.read_concern.as_deref().filter(|_| !session.in_transaction()) {
        body.document("readConcern").append("level", level);
    }
}

/// Looks for a node that may be used so, until the patience of [`SELECTION`] is over.
fn find_node(to: &ConnectionString, preference: ReadPreference) -> Result<Connection> {
    let deadline = Instant::now() + SELECTION;
    loop {
        let last = match try_nodes(to, preference) {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        // One node that does not answer will not answer better later: only a set elects.
        if to.hosts.len() == 1 && to.replica_set.is_none() || Instant::now() > deadline {
            return Err(last);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn try_nodes(to: &ConnectionString, preference: ReadPreference) -> Result<Connection> {
    let mut problem = Error::failed("no hosts");
    let mut fallback = None;
    let mut hosts: Vec<String> = to.hosts.clone();
    let mut at = 0;
    while at < hosts.len() {
        let host = hosts[at].clone();
        at += 1;
        let mut connection = match Connection::open(&host, to) {
            Ok(connection) => connection,
            Err(error) => {
                problem = error.context(&host);
                continue;
            }
        };
        if to.direct {
            return Ok(connection);
        }
        let role = match connection.hello() {
            Ok(role) => role,
            Err(error) => {
                problem = error.context(&host);
                continue;
            }
        };
        if let Some(wanted) = to.replica_set.as_deref().filter(|name| role.set.as_deref() != Some(name)) {
            problem = Error::failed(format!("{host} is not a member of the replica set {wanted}"));
            continue;
        }
        for other in &role.hosts {
            if !hosts.contains(other) {
                hosts.push(other.clone());
            }
        }
        match (preference, role.primary, role.secondary) {
            (ReadPreference::Primary | ReadPreference::PrimaryPreferred, true, _)
            | (ReadPreference::Secondary | ReadPreference::SecondaryPreferred, false, true)
            | (ReadPreference::Nearest, true, _)
            | (ReadPreference::Nearest, _, true) => return Ok(connection),
            (ReadPreference::PrimaryPreferred, _, true) | (ReadPreference::SecondaryPreferred, true, _) => {
                fallback = Some(connection);
            }
            _ => problem = Error::failed(format!("no {} among {}", preference.name(), hosts.join(","))),
        }
    }
    fallback.ok_or(problem)
}
