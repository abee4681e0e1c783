//! What a router has decided and its shards do not all have yet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use parking_lot::Mutex;
use sheaf_shard::{ClusterTime, ShardId, TransactionId};

/// What is decided and not settled yet.
#[derive(Default)]
pub struct Decided {
    /// What is to be sent to each shard.
    pub boxes: Mutex<BTreeMap<ShardId, Outbox>>,
    /// What all shards have applied.
    pub applied: Mutex<Vec<Applied>>,
    /// Whether somebody is asking what is on majorities.
    pub asking: AtomicBool,
}

impl Decided {
    /// The oldest of what all shards have applied, no more than so many.
    pub fn take_applied(&self, most: usize) -> Vec<Applied> {
        let mut applied = self.applied.lock();
        let some = applied.len().min(most);
        applied.drain(..some).collect()
    }
}

/// What is to be sent to a shard.
#[derive(Default)]
pub struct Outbox {
    /// Decisions, oldest first.
    pub waiting: Vec<Waiting>,
    /// Whether somebody sends what is waiting.
    pub busy: bool,
}

/// A decision for one shard.
pub struct Waiting {
    /// On which transaction.
    pub id: TransactionId,
    /// The time of its commit.
    pub at: ClusterTime,
    /// The commit, of which others are told as well.
    pub of: Arc<Telling>,
}

/// What tells shards of a commit if this way has failed.
pub type Otherwise = Box<dyn FnOnce() + Send>;

/// A commit of which the shards are being told.
pub struct Telling {
    /// All of them.
    pub writers: Vec<ShardId>,
    /// How many have not answered.
    pub left: AtomicUsize,
    /// Whether some shard may not have it.
    pub failed: AtomicBool,
    /// Goes on then.
    pub otherwise: Mutex<Option<Otherwise>>,
}

/// A commit that all its shards have applied.
pub struct Applied {
    /// Of which transaction.
    pub id: TransactionId,
    /// Its time.
    pub at: ClusterTime,
    /// Where it has written.
    pub writers: Vec<ShardId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_confirmed_first_and_not_all_at_once() {
        let decided = Decided::default();
        for number in 0..7 {
            let id = TransactionId::new(*b"session", number);
            let at = ClusterTime::default();
            decided.applied.lock().push(Applied { id, at, writers: Vec::new() });
        }
        let taken = || decided.take_applied(3).iter().map(|one| one.id.number).collect::<Vec<_>>();
        assert_eq!([taken(), taken(), taken(), taken()], [vec![0, 1, 2], vec![3, 4, 5], vec![6], vec![]]);
    }
}
