//! Figures.

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
