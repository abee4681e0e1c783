//! What routers and shards keep of decisions that go together: see [`super::decisions`].

use std::collections::{BTreeMap, BTreeSet};

use crate::time::ClusterTime;
use crate::transaction::ReplyId;
use crate::types::TransactionId;

use super::message::Address;

/// A transaction and the time of its commit.
pub(super) type Decided = (TransactionId, ClusterTime);

/// What a router has to tell a shard.
#[derive(Default)]
pub(super) struct Outbox {
    pub waiting: Vec<Decided>,
    /// When the first of these came.
    pub since: u64,
    pub is_busy: bool,
}

/// A commit of which shards are being told.
pub(super) struct Telling {
    pub at: ClusterTime,
    pub writers: BTreeSet<usize>,
    pub left: usize,
    pub has_failed: bool,
}

/// A commit that all its shards have applied.
pub(super) struct Applied {
    pub id: TransactionId,
    pub at: ClusterTime,
    pub writers: BTreeSet<usize>,
}

/// A question about all of these.
pub(super) struct Round {
    pub all: Vec<Applied>,
    pub unsure: BTreeSet<usize>,
    pub left: usize,
}

/// What a router has decided and its shards do not all have yet.
#[derive(Default)]
pub(super) struct Deciding {
    pub boxes: BTreeMap<usize, Outbox>,
    pub telling: BTreeMap<TransactionId, Telling>,
    /// Where that has failed, and the commit goes on by itself.
    pub alone: BTreeSet<TransactionId>,
    pub applied: Vec<Applied>,
    pub round: Option<Round>,
    pub asked_at: u64,
}

impl Deciding {
    /// Whether the commit's own machine tells its shards.
    pub fn is_alone(&self, id: &TransactionId) -> bool {
        self.alone.contains(id)
    }
}

/// A message with decisions that a shard has not answered.
pub(super) struct Batch {
    pub from: Address,
    pub number: u64,
    pub all: Vec<Decided>,
    /// What is applied up to here is told.
    pub until: u64,
}

/// A question whether a majority has decisions.
pub(super) struct Question {
    pub from: Address,
    pub number: u64,
    pub all: Vec<Decided>,
    pub has: Vec<bool>,
    pub left: BTreeMap<ReplyId, usize>,
}
