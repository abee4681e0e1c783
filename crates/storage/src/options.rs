//! How a data folder is opened.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sheaf_errors::Result;
pub use sheaf_log::OpTime;

/// Runs a closure that may wait long; the server sets it to `tokio::task::block_in_place`.
pub type Block = Arc<dyn Fn(&mut dyn FnMut()) + Send + Sync>;

/// See [`Options::reopen`].
pub type Reopen = Arc<dyn Fn(&str) + Send + Sync>;

/// Called again and again while something waits; an error (killed, `maxTimeMS`) ends the wait.
pub type Interrupt<'i> = &'i (dyn Fn() -> Result<()> + Sync);

/// How to open a data folder.
#[derive(Clone)]
pub struct Options {
    /// The data folder (`--dbpath`). It must exist.
    pub path: PathBuf,
    /// Memory for block cache and memtables together.
    pub cache_bytes: u64,
    /// Whether there is a log (`--nojournal` sets false).
    pub journal: bool,
    /// How long unsynced log bytes may wait (`journalCommitInterval`, default 100 ms).
    pub journal_commit_interval: Duration,
    /// How long memtables may stay unflushed (`syncdelay`, default 60 s; zero: only by memory used).
    pub sync_delay: Duration,
    /// How much log is kept (`--oplogSize`); where room on the disk is scarce a single server keeps what is not flushed, and what somebody reads.
    pub oplog_bytes: u64,
    /// How old entries of the log must be to be removed; zero: its size alone decides.
    pub oplog_retention: Duration,
    /// Whether this is a member of a replica set, whose commits a [`Sequencer`](crate::Sequencer) orders.
    pub replica: bool,
    /// Memory that the uncommitted changes of one transaction may take, if not less is left for operations.
    pub transaction_bytes: u64,
    /// How large the operations may be that one entry of the log has of a transaction, if it is more than one: a larger
    /// transaction is a chain of entries.
    pub transaction_entry_bytes: usize,
    /// How many files RocksDB may hold open; below 0: all that there are (default).
    pub open_files: i32,
    /// Wraps long waits.
    pub block: Block,
    /// Ends this process's use of the folder and opens it anew: what RocksDB needs after some errors that have passed (the
    /// disk was full). Told why. `None`: writes are refused until somebody else does it.
    pub reopen: Option<Reopen>,
    /// Operations of the log that are to be left out: [`repair`](crate::repair) alone sets this.
    pub repair: Option<Arc<crate::Repair>>,
    /// Microseconds since the epoch.
    pub clock_micros: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl Options {
    /// Defaults for this folder: 256 MiB of memory, a journal, MongoDB's intervals.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Options {
            path: path.into(),
            cache_bytes: 256 << 20,
            journal: true,
            journal_commit_interval: Duration::from_millis(100),
            sync_delay: Duration::from_secs(60),
            oplog_bytes: 990 << 20,
            oplog_retention: Duration::ZERO,
            replica: false,
            transaction_bytes: 2 << 30,
            // An entry's document stays below the largest BSON document.
            transaction_entry_bytes: 15 << 20,
            open_files: -1,
            block: Arc::new(|wait| wait()),
            reopen: None,
            repair: None,
            clock_micros: Arc::new(|| {
                #[expect(clippy::disallowed_methods, reason = "the default of what is passed in")]
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                now.map_or(0, |since| since.as_micros() as u64)
            }),
        }
    }

    /// Milliseconds since the epoch, as documents have dates.
    pub(crate) fn wall_millis(&self) -> i64 {
        ((self.clock_micros)() / 1000) as i64
    }

    /// Memory for memtables before a flush is due.
    pub(crate) fn memtable_bytes(&self) -> u64 {
        self.log_bytes().min(MEMTABLE_BYTES_MAX)
    }

    /// How much may be in the log alone, in documents that are left there, before a flush is due.
    pub(crate) fn log_bytes(&self) -> u64 {
        (self.cache_bytes / 4).clamp(8 << 20, 256 << 20)
    }

    /// How much of a plain write's changes may come together at most: a log entry and a batch of this size exist beside the memtables.
    pub(crate) fn pending_bytes(&self) -> usize {
        (self.memtable_bytes() / 2).min(PENDING_BYTES_MAX) as usize
    }

    /// Whether the memory that is left for the system's page cache is little, too.
    pub(crate) fn is_scarce(&self) -> bool {
        self.cache_bytes < SCARCE_CACHE_BYTES
    }

    /// Whether there is so little memory that what RocksDB holds beside cache and memtables counts: index blocks that are
    /// kept whatever the cache may have, and the blocks of several compactions at once.
    pub(crate) fn is_small(&self) -> bool {
        self.cache_bytes < SMALL_CACHE_BYTES
    }

    /// What the smallest and largest keys of table files may take before no more long ones are taken in. RocksDB has them in
    /// memory once for the file and once for each state of the database that somebody reads.
    pub(crate) fn file_key_bytes_max(&self) -> u64 {
        self.cache_bytes / 4
    }

    /// How many files of large documents may be open at a time, beside RocksDB's.
    pub(crate) fn open_values(&self) -> usize {
        usize::try_from(self.open_files)
            .map_or(OPEN_VALUES.1, |files| (files / 8).clamp(OPEN_VALUES.0, OPEN_VALUES.1))
    }

    /// Memory in which an index build sorts entries before it spills them to files.
    pub(crate) fn sort_bytes(&self) -> usize {
        (self.cache_bytes / 10).clamp(1 << 20, 100 << 20) as usize
    }

    /// Memory for the block cache.
    pub(crate) fn block_cache_bytes(&self) -> u64 {
        // One memtable generation may be filling while another is being flushed.
        self.cache_bytes.saturating_sub(self.memtable_bytes() * 3 / 2).max(8 << 20)
    }
}

/// As many of them, at least and at most: 64 GB of documents.
const OPEN_VALUES: (usize, usize) = (8, 1024);

/// Larger memtables save a few per cent of what compactions write, and a start after a kill has to fill them again, at 20 to 60 MB/s.
const MEMTABLE_BYTES_MAX: u64 = 64 << 20;

/// What is pending in a plain write is committed when it has grown to this, however much memory there is.
const PENDING_BYTES_MAX: u64 = 32 << 20;

/// Less is what a machine or a control group of less than 4 GB has by default.
const SCARCE_CACHE_BYTES: u64 = 1 << 30;

/// What a machine of a gigabyte has by default is not small.
const SMALL_CACHE_BYTES: u64 = 256 << 20;
