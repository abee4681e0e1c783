//! Figures.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Figures for `serverStatus`; counters are since the engine was opened.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Bytes of all memtables.
    pub memtable_bytes: u64,
    /// Size of the block cache.
    pub cache_capacity: u64,
    /// Bytes in the block cache.
    pub cache_used: u64,
    /// Bytes of log segments kept.
    pub log_bytes: u64,
    /// Oldest entry kept.
    pub log_first_index: u64,
    /// Newest entry.
    pub log_last_index: u64,
    /// Entries appended.
    pub log_appends: u64,
    /// Bytes appended.
    pub log_append_bytes: u64,
    /// Syncs of the log.
    pub log_syncs: u64,
    /// Time spent in them.
    pub log_sync_micros: u64,
    /// How often old entries were removed.
    pub log_truncations: u64,
    /// Time spent on that.
    pub log_truncation_micros: u64,
    /// Units committed.
    pub commits: u64,
    /// Memtable flushes.
    pub flushes: u64,
    /// Transactions open now.
    pub open_transactions: u64,
    /// Times that a write waited for a lock.
    pub lock_waits: u64,
    /// Write conflicts of transactions.
    pub conflicts: u64,
    /// Bytes of RocksDB's table files.
    pub sst_bytes: u64,
    /// Bytes of RocksDB's blob files.
    pub blob_bytes: u64,
}

/// Operations of others that a member of a set has applied, by kind; those of transactions count one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct AppliedOps {
    pub insert: u64,
    pub update: u64,
    pub delete: u64,
    pub command: u64,
    pub noop: u64,
}

impl AppliedOps {
    /// All of them.
    pub fn all(&self) -> u64 {
        self.insert + self.update + self.delete + self.command + self.noop
    }
}

/// What a member of a set has applied of the entries that others have ordered, since the engine was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// By kind.
    pub ops: AppliedOps,
    /// In how many batches.
    pub batches: u64,
    /// How long these took.
    pub micros: u64,
}

/// The same, counted.
#[derive(Default)]
pub(crate) struct AppliedCount([AtomicU64; 7]);

impl AppliedCount {
    pub fn add(&self, ops: AppliedOps, took: Duration) {
        let AppliedOps { insert, update, delete, command, noop } = ops;
        let more = [insert, update, delete, command, noop, 1, took.as_micros() as u64];
        for (count, more) in self.0.iter().zip(more) {
            count.fetch_add(more, Ordering::Relaxed);
        }
    }

    pub fn get(&self) -> Applied {
        let [insert, update, delete, command, noop, batches, micros] =
            self.0.each_ref().map(|count| count.load(Ordering::Relaxed));
        Applied { ops: AppliedOps { insert, update, delete, command, noop }, batches, micros }
    }
}
