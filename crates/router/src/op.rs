//! One operation on a router.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::MutexGuard;
use sheaf_bson::{RawDoc, Value};
use sheaf_cluster::{Asker, Preference};
use sheaf_errors::{Code, Error, Result};
use sheaf_front::command::Access;
use sheaf_front::outcome::Parked;
use sheaf_front::request::Request;

use crate::router::Router;
use crate::session::{Session, SessionState, Transaction};
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
    /// Instead of an answer: wait, and run the same request again.
    pub parked: RefCell<Option<Parked>>,
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
            parked: RefCell::new(None),
            time: Cell::new(0),
        }
    }

    /// Whether the command writes, now or in any case.
    pub fn writes(&self) -> bool {
        match self.command.spec.access {
            Access::Write => true,
            Access::ReadOrWrite(_) => self.writes_after_all,
            Access::None | Access::Read => false,
        }
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
            false => Preference::of(self.generic.read_preference),
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
        if makes {
            return directory.make_database(db, None, &go_on).map(Target::Shard);
        }
        if let Some(shard) = directory.database(db, &go_on)? {
            return Ok(Target::Shard(shard));
        }
        let any = directory.shards(&go_on)?.into_iter().next();
        any.map(Target::Shard).ok_or_else(|| Error::new(Code::SHARD_NOT_FOUND, "No shards found"))
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

    /// Takes in what a reply of a shard tells of times.
    pub fn heard(&self, reply: RawDoc<'_>) {
        self.router.clock.see(reply);
        if let Some(Value::Timestamp(time)) = reply.get("operationTime") {
            self.time.set(self.time.get().max(time.0));
        }
    }

    /// The latest `operationTime` that a shard has answered.
    pub fn operation_time(&self) -> Option<u64> {
        Some(self.time.get()).filter(|time| *time > 0)
    }
}
