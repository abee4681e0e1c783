//! Transactions over several shards: one round of prepares, no coordinator's record.
//!
//! A transaction whose participants all have prepared on a majority *is* committed, at the highest of the times at which they did.
//! One that a participant has refused on a majority before it prepared can never be. Both are facts that never change, so whoever
//! asks all participants finds the one outcome: the router that commits it ([`Committer`]), or a shard that holds it in doubt
//! ([`Settler`]). [`Participant`] is what keeps the facts.

mod commit;
mod decision;
mod participant;
mod rows;
mod settle;

use std::sync::Arc;

pub use commit::{Committer, CommitterEffect, Part};
pub use participant::{NotRun, Participant, ParticipantEffect, ReplyId, WaiterId};
pub use rows::{Row, Rows};
pub use settle::{Settler, SettlerEffect};

use crate::time::ClusterTime;
use crate::types::{ShardId, TransactionId};

/// How a transaction ended, on all its shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Committed as of this time.
    Committed(ClusterTime),
    /// Nothing of it has happened.
    Aborted,
}

/// What a shard has executed of a transaction: comes with each statement's answer, and is given back with the next statement and the
/// commit. A first statement that was sent twice may be executed twice, on two primaries or on one that has lost and regained its
/// office; only one of these executions is what the router was told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Executed {
    /// The primary's election term.
    pub term: u64,
    /// The primary's number for this beginning of the transaction.
    pub opening: u64,
    /// How many statements.
    pub statements: u32,
}

/// What a shard's log says about transactions. The entry's operations, where it has any, are the driver's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// `{applyOps, prepare: true, participants}`: holds the operations, which happen only with the commit.
    Prepare {
        /// Which.
        id: TransactionId,
        /// All shards that write in it.
        participants: Arc<[ShardId]>,
    },
    /// `{applyOps}`: the transaction wrote on this shard only and commits with this entry, at its time.
    Alone {
        /// Which.
        id: TransactionId,
    },
    /// `{commitTransaction: 1, commitTimestamp, prepared}`: the operations have happened as of that time.
    Commit {
        /// Which.
        id: TransactionId,
        /// The highest of the participants' prepare times.
        at: ClusterTime,
    },
    /// `{abortTransaction: 1}`, also of a transaction never heard of: it will never be prepared here.
    Abort {
        /// Which.
        id: TransactionId,
    },
    /// `{settledTransactions: [...]}`: all participants have these commits on majorities, nobody will ask for them.
    Settled {
        /// Which.
        ids: Vec<TransactionId>,
    },
}

/// What a shard's primary is asked about a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// `prepareTransaction`. Answered by [`Answer::Prepared`], or by what has happened instead.
    Prepare {
        /// Which.
        id: TransactionId,
        /// All shards that write in it.
        participants: Arc<[ShardId]>,
        /// What the router has had executed here: anything else is not the transaction.
        executed: Executed,
    },
    /// `commitTransaction` to the only shard that writes. Answered by [`Answer::Committed`] or by what has happened instead.
    CommitAlone {
        /// Which.
        id: TransactionId,
        /// As in `Prepare`.
        executed: Executed,
    },
    /// To a shard that was only read, before anything is prepared: is what it showed on a majority, and will the past at this time
    /// stay as it was? Answered by [`Answer::Confirmed`], or by [`Answer::Aborted`].
    Confirm {
        /// Which.
        id: TransactionId,
        /// As in `Prepare`.
        executed: Executed,
        /// The time that the transaction reads at.
        read_at: ClusterTime,
    },
    /// `commitTransaction` with `commitTimestamp`: the outcome, which is certain. Answered by [`Answer::Committed`] when it is on a
    /// majority.
    Commit {
        /// Which.
        id: TransactionId,
        /// The highest of the participants' prepare times.
        at: ClusterTime,
    },
    /// The outcome, which is certain. Answered by [`Answer::Aborted`] when it is on a majority.
    Abort {
        /// Which.
        id: TransactionId,
    },
    /// `abortTransaction` before anything was prepared: its client has given it up. Answered at once.
    Abandon {
        /// Which.
        id: TransactionId,
    },
    /// What has become of it here? What has not prepared will not any more. Answered by a fact that is on a majority.
    Ask {
        /// Which.
        id: TransactionId,
    },
    /// A client asks for the outcome with a recovery token: like `Ask`, but what is in doubt is settled first.
    Recover {
        /// Which.
        id: TransactionId,
    },
    /// All participants have these commits on majorities. Not answered.
    Settled {
        /// Which.
        ids: Vec<TransactionId>,
    },
}

impl Request {
    /// The transaction that is asked about; none for `Settled`.
    pub fn id(&self) -> Option<&TransactionId> {
        match self {
            Request::Prepare { id, .. }
            | Request::CommitAlone { id, .. }
            | Request::Confirm { id, .. }
            | Request::Commit { id, .. }
            | Request::Abort { id }
            | Request::Abandon { id }
            | Request::Ask { id }
            | Request::Recover { id } => Some(id),
            Request::Settled { .. } => None,
        }
    }
}

/// What a shard says about a transaction. All but `Confirmed` and `Abandoned` are facts that are on a majority and never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It prepared at this time.
    Prepared(ClusterTime),
    /// It committed as of this time.
    Committed(ClusterTime),
    /// It has not prepared and never will, or it was told that another has not.
    Aborted,
    /// There is nothing of it, and its session is past its number: it has not prepared and never will, or it has been settled.
    TooOld,
    /// What it read is on a majority, and the past at its time will not change.
    Confirmed,
    /// Its operations, which were in memory only, are gone.
    Abandoned,
}
