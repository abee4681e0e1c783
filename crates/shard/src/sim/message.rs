//! What processes say to each other. Every message but those within a set carries its sender's cluster time.

use std::collections::BTreeMap;
use std::sync::Arc;

use sheaf_repl::Envelope;

use crate::moves::{Misfit, MoveAnswer, MoveRequest, MoveStatement};
use crate::placement::{Belief, RoutingTable};
use crate::time::ClusterTime;
use crate::transaction::{Answer, Executed, Outcome, Request};
use crate::types::TransactionId;

use super::deciding::Decided;
use super::store::{Key, Statements, Value};

/// Where a message comes from or goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Address {
    Member(usize),
    Router(usize),
    Client(usize),
}

/// One statement of a transaction.
#[derive(Clone, Debug, Default)]
pub(super) struct Op {
    pub reads: Vec<Key>,
    pub write: Option<Change>,
}

/// Adds to a document's balance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub key: Key,
    pub delta: i64,
    /// The write's number, which the document then carries.
    pub writer: u64,
}

impl Op {
    pub fn keys(&self) -> Vec<Key> {
        self.reads.iter().copied().chain(self.write.map(|write| write.key)).collect()
    }
}

/// What a document was when it was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub key: Key,
    pub value: Value,
}

/// Which retryable statement a write is.
#[derive(Clone, Debug)]
pub(super) struct Retryable {
    pub lsid: Arc<[u8]>,
    pub number: i64,
    pub stmt: u32,
}

/// What a donor gives: documents, or names of those that are gone, and what is on record of sessions.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Batch {
    pub documents: BTreeMap<Key, Option<Value>>,
    pub statements: BTreeMap<Arc<[u8]>, Statements>,
}

/// What a router asks of a shard has its belief of what that owns; none where documents have fixed places.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Execute {
        id: TransactionId,
        after: Option<Executed>,
        read_at: Option<ClusterTime>,
        op: Op,
        belief: Option<Belief>,
    },
    Request(Request),
    /// Commits; the answer says which of them are applied, or which a majority has.
    Decide {
        all: Vec<Decided>,
        applied: bool,
    },
    ReadAt {
        at: ClusterTime,
        keys: Vec<Key>,
        belief: Option<Belief>,
    },
    Write {
        change: Change,
        retryable: Option<Retryable>,
        belief: Option<Belief>,
    },
    ReadTable,
    Move(MoveRequest),
    /// The first statement of this transaction.
    Statement {
        id: TransactionId,
        statement: MoveStatement,
    },
}

#[derive(Clone, Debug)]
pub(super) enum Return {
    NotPrimary,
    Failed,
    /// The shard does not own what the router believes.
    Stale,
    Table(RoutingTable),
    Move(MoveAnswer, Batch),
    Statement(Result<Executed, Misfit>),
    Executed {
        executed: Executed,
        read_at: ClusterTime,
        seen: Vec<Seen>,
    },
    Read(Vec<Seen>),
    Written {
        before: Value,
    },
    Answer(Answer),
    Decided(Vec<bool>),
}

#[derive(Clone, Debug)]
pub(super) enum Command {
    /// `first` is `startTransaction`.
    Statement {
        id: TransactionId,
        first: bool,
        shard: usize,
        op: Op,
    },
    /// With the recovery token: a shard that has written.
    Commit {
        id: TransactionId,
        token: Option<usize>,
    },
    Abort {
        id: TransactionId,
    },
    /// As of the router's present, or of a time that an earlier scan was given.
    Scan {
        at: Option<ClusterTime>,
    },
    Write {
        change: Change,
        retryable: Option<Retryable>,
    },
}

#[derive(Clone, Debug)]
pub(super) enum Done {
    Executed {
        read_at: ClusterTime,
        seen: Vec<Seen>,
        /// Where it has written.
        wrote: Option<usize>,
    },
    Ended(Outcome),
    /// No router and no shard knows any more.
    Forgotten,
    Scanned {
        at: ClusterTime,
        seen: Vec<Seen>,
    },
    Written {
        before: Value,
    },
    Failed,
}

#[derive(Clone, Debug)]
pub(super) enum Message {
    Repl(Box<Envelope>),
    Call { number: u64, time: ClusterTime, call: Call },
    Return { number: u64, time: ClusterTime, result: Return },
    Command { number: u64, time: ClusterTime, command: Command },
    Done { number: u64, time: ClusterTime, done: Done },
}
