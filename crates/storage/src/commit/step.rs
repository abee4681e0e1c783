//! What an entry of the log does to transactions over several shards, and what a prepared one keeps from others.

use std::sync::Arc;

use smallvec::SmallVec;
use uuid::Uuid;

use crate::catalog::Collection;
use crate::commit::prepared::Counts;
use crate::locks::{Hold, LockKey, LockTable, Owner, Pass};
use crate::oplog::{TransactionKey, TransactionRecord};
use crate::read::overlay::Overlay;

/// What a prepared transaction keeps from others until it is dropped: locks of records and of unique keys, passes through
/// the gates of its collections, and holds on those whose placements it changes.
pub(crate) struct Holding {
    pub table: Arc<LockTable>,
    pub owner: Owner,
    pub locks: Vec<LockKey>,
    pub passes: SmallVec<[(Arc<Collection>, Pass); 2]>,
    pub holds: Vec<Hold>,
    /// What it changes, for readers.
    pub writes: Overlay,
    /// What it does to the counts of its collections, if a commit writes just `writes`.
    pub counts: Option<Counts>,
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.table.unlock(&self.locks, self.owner);
        self.passes.drain(..).for_each(|(_, pass)| pass.leave_lightly());
        self.holds.drain(..).for_each(Hold::leave_lightly);
    }
}

/// What an entry says, with what its application needs.
pub(crate) struct Step {
    pub record: TransactionRecord,
    /// Of a prepare: its operations, one after another, the entries that it is, and the collections that it changes.
    pub operations: Vec<u8>,
    pub entries: u64,
    pub collections: Vec<Uuid>,
    /// Of a prepare of this member's own: what it holds already.
    pub holding: Option<Holding>,
}

impl Step {
    pub fn of(record: TransactionRecord) -> Step {
        Step { record, operations: Vec::new(), entries: 1, collections: Vec::new(), holding: None }
    }

    /// The time as of which it commits what was prepared; 0 if it does not.
    pub fn commits_as_of(&self) -> u64 {
        match &self.record {
            TransactionRecord::Commit { at, .. } => at.0,
            _ => 0,
        }
    }

    /// Whether it lets go of what a transaction holds, so that it must not be refused for want of room.
    pub fn frees(&self) -> bool {
        use TransactionRecord::{Abort, Commit, Settled};
        matches!(self.record, Commit { .. } | Abort { .. } | Settled { .. })
    }

    /// Whether it is about the session of one of these.
    pub fn shares_session(&self, other: &Step) -> bool {
        fn keys(record: &TransactionRecord) -> &[TransactionKey] {
            match record {
                TransactionRecord::Prepare { key, .. }
                | TransactionRecord::Commit { key, .. }
                | TransactionRecord::Abort { key }
                | TransactionRecord::Alone { key } => std::slice::from_ref(key),
                TransactionRecord::Settled { keys } => keys,
                TransactionRecord::Ceiling(_) | TransactionRecord::SessionsEnded { .. } => &[],
            }
        }
        let others = keys(&other.record);
        keys(&self.record).iter().any(|key| others.iter().any(|other| other.lsid == key.lsid))
    }
}
