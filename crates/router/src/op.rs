//! One operation on a router.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::MutexGuard;
use sheaf_bson::{DocBuf, RawDoc, Timestamp, Value};
use sheaf_cluster::{Asker, Preference};
use sheaf_errors::{Code, Error, Result};
use sheaf_front::command::Access;
use sheaf_front::concern::ReadLevel;
use sheaf_front::outcome::Parked;
use sheaf_front::request::Request;
use sheaf_front::session::LogicalSessionId;

use crate::router::Router;
use crate::session::{Own, Session, SessionState, Transaction};
use crate::target::Target;

/// How often who waits for another operation of its session is asked whether it should.
const ASK: Duration = Duration::from_millis(20);

/// One operation on a router: a request, and what its answer has been found to be besides the reply.
pub struct Operation<'a> {
    /// What every role knows of it.
    pub request: &'a Request<'a>,
    /// The router.
    pub router: &'a Arc<Router>,
    /// The session's transaction, while a statement of it runs.
    pub transaction: RefCell<Option<Transaction>>,
    /// The transaction of the router's own that its statements belong to, while there is one.
    pub own: RefCell<Option<Own>>,
    /// The attempt at the statement that is under way, where more than one shard may execute that.
    pub attempt: Cell<Option<u128>>,
    /// What was set for queries of its shape, which its shards obey.
    pub settings: RefCell<Option<DocBuf>>,
    /// The command as it runs, where that is not as it came: about the buckets of a time-series collection.
    pub rewritten: Cell<Option<RawDoc<'a>>>,
    /// Whether a shard has said that this router is wrong about what is a time-series collection with sharded buckets.
    pub corrected: Cell<bool>,
    /// Instead of an answer: wait, and run the same request again.
    pub parked: RefCell<Option<Parked>>,
    /// The time as of which shards are read, outside a transaction.
    read_at: Cell<Option<Timestamp>>,
    /// The latest `operationTime` that a shard has answered.
    time: Cell<u64>,
}

impl<'a> Deref for Operation<'a> {
    type Target = Request<'a>;

    fn deref(&self) -> &Request<'a> {
        self.request
    }
}

impl<'a> Operation<'a> {
    /// An operation that has done nothing yet.
    pub fn new(request: &'a Request<'a>, router: &'a Arc<Router>) -> Self {
        Operation {
            request,
            router,
            transaction: RefCell::new(None),
            own: RefCell::new(None),
            attempt: Cell::new(None),
            settings: RefCell::new(None),
            rewritten: Cell::new(None),
            corrected: Cell::new(false),
            parked: RefCell::new(None),
            read_at: Cell::new(None),
            time: Cell::new(0),
        }
    }

    /// The command that runs, generic arguments included.
    pub fn body(&self) -> RawDoc<'a> {
        self.rewritten.get().unwrap_or_else(|| self.request.body())
    }

    /// Whether the command writes, now or in any case.
    pub fn writes(&self) -> bool {
        match self.command.spec.access {
            Access::Write => true,
            Access::ReadOrWrite(_) => self.writes_after_all,
            Access::None | Access::Read => false,
        }
    }

    /// Whether its statements belong to a transaction: the client's, or one of the router's own.
    pub fn in_transaction(&self) -> bool {
        self.request.in_transaction() || self.own.borrow().is_some()
    }

    /// Whether statements carry their numbers, so that each happens once however often they are sent.
    pub fn records_statements(&self) -> bool {
        self.request.is_retryable_write()
    }

    /// Whether it is sent as a retryable write.
    pub fn is_retryable_write(&self) -> bool {
        self.request.is_retryable_write() && self.own.borrow().is_none()
    }

    /// The session of what is sent, if there is one.
    pub fn lsid(&self) -> Option<LogicalSessionId> {
        self.own.borrow().as_ref().map(|own| own.lsid).or(self.request.lsid())
    }

    /// Whether it may be sent again when a member was lost, because it then still happens once.
    pub fn may_be_sent_again(&self) -> bool {
        if self.in_transaction() {
            return false;
        }
        let reads =
            matches!(self.command.spec.access, Access::Read | Access::ReadOrWrite(_)) && !self.writes();
        (reads && self.command.name != "getMore") || self.is_retryable_write()
    }

    /// Whom to ask, and for how long.
    pub fn asker<'q>(&self, go_on: &'q dyn Fn() -> Result<()>) -> Asker<'q>
    where
        'a: 'q,
    {
        let preference = match self.writes() || self.in_transaction() {
            true => Preference::default(),
            false => Preference::of(self.generic.read_preference).within(self.router.local_threshold()),
        };
        Asker { preference, again: self.may_be_sent_again(), go_on }
    }

    /// Where a database's collections are that are not spread. A database that nobody has made is made if the command writes to it, and
    /// otherwise any shard says what there is to say of nothing.
    ///
    /// Errors: `ShardNotFound` without shards; `InvalidNamespace`; those of asking the config servers.
    pub fn target(&self, db: &str, makes: bool) -> Result<Target> {
        sheaf_front::args::check_db_name(db)?;
        let go_on = || self.check_interrupt();
        let directory = &self.router.directory;
        match db {
            "admin" | "config" => return Ok(Target::Config(directory.config().clone())),
            "local" => {
                return Err(Error::new(
                    Code::ILLEGAL_OPERATION,
                    "Cannot access the local database through mongos; connect to the member itself",
                ));
            }
            _ => {}
        }
        if let Some(shard) = directory.known_database(db) {
            return Ok(Target::Shard(shard));
        }
        // Each second one of them asks, and waits.
        self.blocking(|| {
            if makes {
                return directory.make_database(db, &go_on).map(Target::Shard);
            }
            if let Some(shard) = directory.database(db, &go_on)? {
                return Ok(Target::Shard(shard));
            }
            let any = directory.shards(&go_on)?.into_iter().next();
            any.map(Target::Shard).ok_or_else(|| Error::new(Code::SHARD_NOT_FOUND, "No shards found"))
        })
    }

    /// The state of the operation's session, of which one operation with a number runs at a time.
    ///
    /// Errors: those of [`Request::check_interrupt`], while another one runs.
    pub fn session_state<'s>(&self, session: &'s Session) -> Result<MutexGuard<'s, SessionState>> {
        if let Some(state) = session.state.try_lock() {
            return Ok(state);
        }
        self.blocking(|| {
            loop {
                self.check_interrupt()?;
                if let Some(state) = session.state.try_lock_for(ASK) {
                    return Ok(state);
                }
            }
        })
    }

    /// The time as of which shards are to be read, outside a transaction: `snapshot` is of one state of the whole cluster, whichever members
    /// show it.
    pub fn read_at(&self) -> Option<Timestamp> {
        let concern =
            self.generic.read_concern.filter(|concern| concern.level == Some(ReadLevel::Snapshot))?;
        let on_primaries = || {
            let preference = self.generic.read_preference.and_then(|preference| preference.get("mode"));
            preference.is_none_or(|mode| mode.as_str() == Some("primary"))
        };
        if self.in_transaction() || concern.at_cluster_time.is_some() {
            return None;
        }
        if self.read_at.get().is_none() {
            let at = if on_primaries() { self.present() } else { self.lately() };
            self.read_at.set(Some(at));
        }
        self.read_at.get()
    }

    /// The time as of which the operation's statement reads, if that is known already: its transaction's, the client's, or the one that is
    /// chosen here.
    pub fn reads_as_of(&self) -> Option<Timestamp> {
        match &*self.transaction.borrow() {
            Some(transaction) => transaction.reads_as_of(),
            None => {
                let concern = self.generic.read_concern;
                concern.and_then(|concern| concern.at_cluster_time).or_else(|| self.read_at())
            }
        }
    }

    /// Forgets the time that was chosen to read at, so that another one is; false if none was.
    pub fn choose_anew(&self) -> bool {
        self.read_at.take().is_some()
    }

    /// Several shards are about to be asked: of a transaction that has not read anything the time is chosen now, if its client names none.
    pub fn choose_read_time(&self) {
        if let Some(transaction) = &mut *self.transaction.borrow_mut()
            && transaction.participants.iter().all(|participant| !participant.begun)
        {
            let at = transaction.reads_as_of().unwrap_or_else(|| self.present());
            transaction.read_at = Some(at);
        }
    }

    /// The present as this router knows it, and not before what the client has seen elsewhere. The shards, which get the client's time
    /// too, decide whether that is to be believed.
    pub fn present(&self) -> Timestamp {
        let after = self.generic.read_concern.and_then(|concern| concern.after_cluster_time);
        let seen = self.generic.cluster_time.max(after);
        seen.map_or(self.router.present(), |seen| seen.max(self.router.present()))
    }

    /// A time that is about to be on secondaries, and not before what anybody has seen who has spoken to this router: they have the entries up
    /// to it, or ask their primaries for one.
    fn lately(&self) -> Timestamp {
        let after = self.generic.read_concern.and_then(|concern| concern.after_cluster_time);
        let seen = self.generic.cluster_time.max(after);
        seen.map_or(self.router.lately(), |seen| seen.max(self.router.lately()))
    }

    /// Takes in what a reply of a shard tells of times.
    pub fn heard(&self, reply: RawDoc<'_>) {
        self.router.clock.see(reply);
        if let Some(Value::Timestamp(time)) = reply.get("operationTime") {
            self.note_time(time);
        }
    }

    /// The operation has come into effect at this time.
    pub fn note_time(&self, at: Timestamp) {
        self.time.set(self.time.get().max(at.0));
    }

    /// The latest `operationTime` that a shard has answered.
    pub fn operation_time(&self) -> Option<u64> {
        Some(self.time.get()).filter(|time| *time > 0)
    }
}
