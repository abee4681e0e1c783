//! Sessions and transactions as a router knows them: which shards take part, and how each of them was told to begin.
//!
//! A shard takes part from its first statement on; that one carries `startTransaction` and the read concern.

use parking_lot::Mutex;
use sheaf_bson::{DocBuf, DocWriter, RawDoc, Timestamp, Value};
use sheaf_cluster::{Directory, Shard};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_front::generic::append_attempt;
use sheaf_front::reply::Reply;
use sheaf_front::session::{self, LogicalSessionId};
use sheaf_shard::Executed;

use crate::open_times::OpenTime;
use crate::target::Target;

/// A session of a router.
pub type Session = session::Session<SessionState>;

/// What a session carries from one statement to the next.
#[derive(Default)]
pub struct SessionState {
    /// The newest transaction number.
    pub newest: Option<i64>,
    /// The transaction of that number.
    pub transaction: Option<Transaction>,
}

impl session::Carried for SessionState {
    fn is_nothing(&self) -> bool {
        self.newest.is_none() && self.transaction.is_none()
    }
}

impl SessionState {
    /// A retryable write of this number; an earlier transaction is over.
    pub fn begin_write(&mut self, number: i64) {
        if self.newest.is_none_or(|newest| newest < number) {
            self.newest = Some(number);
            self.transaction = None;
        }
    }
}

/// How far a transaction has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// It takes statements.
    Open,
    /// Its commit was begun.
    Committing,
    /// Another router was to commit it: a shard is asked for the outcome.
    Recovering,
    /// Nothing is left of it.
    Aborted,
}

impl Stage {
    /// As errors name it.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Open => "in progress",
            Stage::Committing | Stage::Recovering => "committed",
            Stage::Aborted => "aborted",
        }
    }
}

/// A transaction and the shards that take part in it.
pub struct Transaction {
    /// Its number.
    pub number: i64,
    /// How far it has come.
    pub stage: Stage,
    /// That of its first statement.
    pub read_concern: Option<DocBuf>,
    /// The time as of which all shards are read: chosen by the first one, or here where several begin at once.
    pub read_at: Option<Timestamp>,
    /// Has shards keep their states at that time, while it is open.
    pub open_time: Option<OpenTime>,
    /// Who takes part.
    pub participants: Vec<Participant>,
    /// Whether a statement has answered write errors, after which its shard has aborted.
    pub failed: bool,
}

/// A shard that takes part.
pub struct Participant {
    /// The shard.
    pub target: Target,
    /// Whether it has answered a statement, and so knows of the transaction.
    pub begun: bool,
    /// Whether a statement that it was sent writes.
    pub writes: bool,
    /// What it has executed, as its last answer said.
    pub executed: Option<Executed>,
}

impl Participant {
    /// The shard; the config servers are one, too.
    pub fn shard(&self, directory: &Directory) -> Shard {
        match &self.target {
            Target::Shard(shard) => shard.clone(),
            Target::Config(_) => directory.config_shard(),
        }
    }
}

impl Transaction {
    /// Notes that a statement goes to this target.
    pub fn take_part(&mut self, target: &Target, writes: bool) {
        if let Some(known) = self.participants.iter_mut().find(|known| known.target.name() == target.name()) {
            known.writes |= writes;
            return;
        }
        self.participants.push(Participant { target: target.clone(), begun: false, writes, executed: None });
    }

    /// A target has answered a statement: it knows of the transaction now, and has executed this of it.
    ///
    /// Errors: `NoSuchTransaction`, if it has executed something else before: it has lost what it was sent.
    pub fn answered(&mut self, target: &Target, reply: RawDoc<'_>) -> Result<()> {
        let known = self.participants.iter_mut().find(|known| known.target.name() == target.name());
        let Some(known) = known else { return Ok(()) };
        known.begun = true;
        if let (None, Some(Value::Timestamp(at))) = (self.read_at, reply.get("readAt")) {
            self.read_at = Some(at);
        }
        let Some(executed) = Executed::parse(reply) else { return Ok(()) };
        let before = known.executed.replace(executed);
        if before.is_some_and(|before| (before.term, before.opening) != (executed.term, executed.opening)) {
            let text = format!("shard {} has lost the transaction's first statements", target.name());
            return Err(Error::new(Code::NO_SUCH_TRANSACTION, text).with_label("TransientTransactionError"));
        }
        Ok(())
    }

    /// The time as of which its statements read, if a shard has chosen it, or its client has named it.
    pub fn reads_as_of(&self) -> Option<Timestamp> {
        let named = || match self.read_concern.as_ref()?.as_raw().get("atClusterTime") {
            Some(Value::Timestamp(at)) => Some(at),
            _ => None,
        };
        self.read_at.or_else(named)
    }

    /// Write errors have ended the transaction on their shard.
    pub fn fail(&mut self) {
        self.failed = true;
    }

    /// Adds what a shard's first statement carries.
    pub fn append_start(&self, target: &str, out: &mut DocWriter<'_, Vec<u8>>) {
        let begun = self.participants.iter().any(|known| known.target.name() == target && known.begun);
        if begun || self.stage != Stage::Open {
            return;
        }
        out.append("startTransaction", true);
        if let Some(at) = self.read_at {
            append_snapshot(at, out);
        } else if let Some(concern) = &self.read_concern {
            out.append("readConcern", concern.as_raw());
        }
    }

    /// Adds `recoveryToken`, by which another router can find out what has become of the transaction.
    pub fn append_token(&self, reply: &mut Reply) {
        if let Some(shard) = self.recovery_shard() {
            reply.fill(|out| {
                out.document("recoveryToken").append("recoveryShardId", shard);
            });
        }
    }

    /// The shard that is to be asked how the transaction has ended. A commit that was begun may have come to its end although nobody was told:
    /// who has only been read has forgotten the transaction by then, and what it says of it now says nothing about the others.
    ///
    /// Errors: `NoSuchTransaction`, if nobody here knows who took part.
    pub fn to_be_asked(&self, stage: Stage, directory: &Directory) -> Result<Option<Shard>> {
        let writer = || self.participants.iter().find(|participant| participant.writes);
        match stage {
            Stage::Open | Stage::Aborted => Ok(None),
            Stage::Committing if self.participants.len() == 1 => Ok(None),
            Stage::Committing => Ok(writer().map(|writer| writer.shard(directory))),
            Stage::Recovering => match self.participants.first() {
                Some(named) => Ok(Some(named.shard(directory))),
                None => bail!(
                    Code::NO_SUCH_TRANSACTION,
                    "Transaction {} is not known here, and there is no recoveryToken",
                    self.number
                ),
            },
        }
    }

    fn recovery_shard(&self) -> Option<&str> {
        let writer = self.participants.iter().find(|participant| participant.writes);
        writer.or(self.participants.first()).map(|participant| participant.target.name())
    }
}

/// Adds the read concern of who reads the cluster as of this time.
pub fn append_snapshot(at: Timestamp, out: &mut DocWriter<'_, Vec<u8>>) {
    out.document("readConcern").append("level", "snapshot").append("atClusterTime", at);
}

/// A session of the router's own.
pub struct OwnSession {
    /// Its id.
    pub lsid: LogicalSessionId,
    /// The number of its last transaction.
    pub number: i64,
}

/// Sessions of the router's own that nobody uses at the moment.
pub type OwnSessions = Mutex<Vec<OwnSession>>;

/// The transaction of the router's own that an operation's statements belong to.
pub struct Own {
    /// Its session.
    pub lsid: LogicalSessionId,
    /// Its number there.
    pub number: i64,
    /// Whether statements are recorded as the client's.
    pub records: bool,
    /// The client's session and the number of its write, if that is a retryable one.
    pub retry_of: Option<(LogicalSessionId, i64)>,
    /// The attempt at the statement, where more than one shard may execute that.
    pub attempt: Option<u128>,
    /// What a retry of the client's statement is answered with, where the shard's own does not say it.
    pub result: Option<DocBuf>,
}

impl Own {
    /// Adds to a request what makes it a statement of the transaction.
    pub fn append(&self, out: &mut DocWriter<'_, Vec<u8>>) {
        self.lsid.write(out, "lsid");
        out.append("txnNumber", self.number).append("autocommit", false).append("routersOwn", true);
        if let Some((lsid, number)) = self.retry_of.filter(|_| self.records) {
            let mut of = out.document("retryOf");
            lsid.write(&mut of, "lsid");
            of.append("txnNumber", number);
            if let Some(attempt) = self.attempt {
                append_attempt(attempt, &mut of, "attempt");
            }
            if let Some(result) = &self.result {
                of.append("result", result.as_raw());
            }
        }
    }

    /// Whether a field of the client's request stays behind: the transaction has its own.
    pub fn replaces(name: &str) -> bool {
        matches!(
            name,
            "lsid" | "txnNumber" | "autocommit" | "writeConcern" | "readConcern" | "stmtId" | "stmtIds"
        )
    }
}
