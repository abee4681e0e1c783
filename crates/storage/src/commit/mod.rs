//! Commits: who may write what, in which order it becomes visible, and what of it a set has agreed to.
//!
//! - [`prepared`]: what a writer hands over;
//! - [`queue`]: who leads, and who waits;
//! - [`pipeline`]: order, log, apply, publish;
//! - [`units`]: the same of what a set has ordered;
//! - [`chain`]: transactions that are several entries of the log;
//! - [`recent`]: what transactions look at for conflicts;
//! - [`transactions`]: what is prepared over several shards, and how it ended;
//! - [`watch`]: who is told of changes as soon as they are visible;
//! - [`majority`]: states that a majority of the set has;
//! - [`fsync_lock`]: all commits held back.

pub(crate) mod chain;
mod fsync_lock;
pub(crate) mod majority;
mod pipeline;
mod position;
pub(crate) mod prepared;
mod queue;
mod recent;
pub(crate) mod step;
pub(crate) mod transaction_rows;
pub(crate) mod transactions;
mod units;
pub(crate) mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rocksdb::WriteBatch;
use sheaf_errors::{Code, Error, Result};

use crate::base::Base;
use crate::critical::must;
use crate::db::Cf;
use crate::keys::catalog_key;
use crate::locks::{LockKey, LockTable, Pass};
use crate::oplog::LogEntry;
use crate::options::{Interrupt, OpTime};
use crate::order::{Mutex, MutexGuard, rank};
use crate::stats::AppliedCount;
use fsync_lock::FsyncLock;
use majority::Majority;
pub(crate) use position::Position;
use queue::Queue;
use recent::Recent;
use transactions::Transactions;
use uuid::Uuid;
use watch::{Watch, Watcher};

/// Buffers kept, and the largest one that is.
const BUFFERS_MAX: usize = 4;
const BUFFER_BYTES_MAX: usize = 8 << 20;

/// The owner of commits. The pipeline itself has the rank [`rank::PIPELINE`]; who waits for it is under [`rank::QUEUE`] and
/// [`rank::SLOT`]. Batches become visible under [`rank::RECENT`], states of the set are under [`rank::MAJORITY`], the locks of
/// `fsyncLock` under [`rank::WRITE_LOCKS`] and its gate under [`rank::GATES`]; the rest are leaves.
pub(crate) struct Commits {
    base: Arc<Base>,
    queue: Queue,
    /// On record keys and unique index keys.
    locks: Arc<LockTable>,
    transactions: Transactions,
    recent: Mutex<{ rank::RECENT }, Recent>,
    /// The entries at the log's end that begin a transaction whose last entry has not come; see [`chain`].
    chain: Mutex<{ rank::LEAF }, Vec<LogEntry>>,
    /// Grows with entries that others have ordered. What was prepared on an older state must not be committed on it.
    others: AtomicU64,
    majority: Majority,
    watch: Watch,
    fsync_lock: FsyncLock,
    /// Payload buffers to be used again: large ones are costly to get from the system.
    buffers: Mutex<{ rank::LEAF }, Vec<Vec<u8>>>,
    /// Up to where the log is in memtables and files, and the number of the last batch, in all runs. What is published may be
    /// further: within a transaction over several entries, and where entries have no effect.
    position: Mutex<{ rank::LEAF }, Position>,
    count: AtomicU64,
    conflicts: AtomicU64,
    /// What was applied of the entries of others.
    applied: AppliedCount,
}

impl Commits {
    /// Which go on from here.
    pub fn new(base: Arc<Base>, position: Position) -> Commits {
        Commits {
            base,
            queue: Queue::default(),
            locks: Arc::new(LockTable::new()),
            transactions: Transactions::default(),
            recent: Mutex::default(),
            chain: Mutex::default(),
            others: AtomicU64::new(0),
            majority: Majority::default(),
            watch: Watch::default(),
            fsync_lock: FsyncLock::default(),
            buffers: Mutex::default(),
            position: Mutex::new(position),
            count: AtomicU64::new(0),
            conflicts: AtomicU64::new(0),
            applied: AppliedCount::default(),
        }
    }

    /// Locks on record keys and unique index keys.
    pub fn locks(&self) -> &Arc<LockTable> {
        &self.locks
    }

    /// What is prepared over several shards, and how it ended.
    pub fn transactions(&self) -> &Transactions {
        &self.transactions
    }

    /// What transactions look at for conflicts.
    pub fn recent(&self) -> MutexGuard<'_, { rank::RECENT }, Recent> {
        self.recent.lock()
    }

    /// States that a majority of the set has.
    pub fn majority(&self) -> &Majority {
        &self.majority
    }

    /// All commits held back.
    pub fn fsync_lock(&self) -> &FsyncLock {
        &self.fsync_lock
    }

    /// A pass through `fsyncLock`'s gate.
    pub fn pass(&self, interrupt: Interrupt<'_>) -> Result<Pass> {
        self.fsync_lock.pass(&self.base.options.block, interrupt)
    }

    /// [`Commits::pass`], if nobody has to be waited for.
    pub fn try_pass(&self) -> Option<Pass> {
        self.fsync_lock.try_pass()
    }

    // ---- what others have ordered ----

    /// How often others have ordered something. What depends on the state now must not be committed when there are more.
    pub fn others(&self) -> u64 {
        self.others.load(Ordering::Acquire)
    }

    /// Others have ordered something.
    pub fn note_others(&self) {
        self.others.fetch_add(1, Ordering::AcqRel);
    }

    /// Errors: `InterruptedDueToReplStateChange` if [`Commits::others`] is not what it was.
    pub fn check_no_others(&self, since: u64) -> Result<()> {
        let now = self.others();
        must!(since <= now, "what others have ordered is counted backwards: {since}, then {now}");
        if now == since {
            return Ok(());
        }
        Err(Error::new(
            Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE,
            "operation was interrupted: the member's state changed while it ran",
        ))
    }

    // ---- batches ----

    /// Where the newest batch ends, and its number.
    pub fn position(&self) -> Position {
        *self.position.lock()
    }

    /// Writes a batch that ends at this operation of the log (`None`: nothing of it is in the log) and has these locks. It is
    /// visible when this returns. The pipeline is held, or nobody else is there yet. Gives its size as well. What was prepared is
    /// committed `as_of` a time; the rest says 0.
    pub fn write(
        &self,
        mut batch: WriteBatch,
        locks: &[LockKey],
        at: Option<OpTime>,
        as_of: u64,
    ) -> (u64, Result<()>) {
        let mut recent = self.recent.lock();
        let bytes = self.seal_under(&mut recent, &mut batch, (locks, as_of), at);
        let touched = self.watch.touched(&batch);
        let written = self.base.db.write(batch);
        drop(recent);
        if let (Ok(()), Some((touched, watcher))) = (&written, touched) {
            watcher(touched);
        }
        (bytes, written)
    }

    /// [`Commits::write`] at a start, when nobody reads or watches, but for the writing: that is left to the caller, in the order of the
    /// calls.
    pub fn seal(&self, batch: &mut WriteBatch, locks: &[LockKey], at: Option<OpTime>) -> u64 {
        self.seal_under(&mut self.recent.lock(), batch, (locks, 0), at)
    }

    fn seal_under(
        &self,
        recent: &mut Recent,
        batch: &mut WriteBatch,
        (locks, as_of): (&[LockKey], u64),
        at: Option<OpTime>,
    ) -> u64 {
        let next = self.next_position(at);
        batch.put_cf(self.base.db.cf(Cf::Catalog), catalog_key::POSITION, next.encode());
        recent.committed(locks, as_of);
        batch.size_in_bytes() as u64
    }

    /// Has a watcher told of all changes of these collections (their records' prefixes, their UUIDs) that are not visible yet, and of no
    /// others.
    pub fn watch(&self, collections: Vec<(u32, Uuid)>, watcher: Option<Watcher>) {
        // Batches become visible under it.
        let _none = self.recent.lock();
        self.watch.set(&self.base.db, collections, watcher);
    }

    /// The position of the next batch.
    fn next_position(&self, at: Option<OpTime>) -> Position {
        let mut position = self.position.lock();
        if let Some(at) = at {
            let before = position.at;
            must!(
                at.term >= before.term && (at.index, at.time) >= (before.index, before.time),
                "a batch ends at {at:?}, and one before it at {before:?}"
            );
            position.at = at;
        }
        position.batch += 1;
        *position
    }

    /// An empty buffer for a payload.
    pub fn take_buffer(&self) -> Vec<u8> {
        let buffer = self.buffers.lock().pop().unwrap_or_default();
        debug_assert!(buffer.is_empty(), "a buffer has come back with {} bytes of a commit", buffer.len());
        buffer
    }

    /// Takes a payload's buffer back, to be used again.
    pub fn give_buffer(&self, mut buffer: Vec<u8>) {
        if (1..=BUFFER_BYTES_MAX).contains(&buffer.capacity()) {
            buffer.clear();
            let mut buffers = self.buffers.lock();
            if buffers.len() < BUFFERS_MAX {
                buffers.push(buffer);
            }
        }
    }

    // ---- figures ----

    /// Counts a commit.
    pub fn count_one(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Counts a transaction's conflict.
    pub fn count_conflict(&self) {
        self.conflicts.fetch_add(1, Ordering::Relaxed);
    }

    /// How many conflicts transactions have met.
    pub fn conflicts(&self) -> u64 {
        self.conflicts.load(Ordering::Relaxed)
    }

    /// What was applied of the entries of others.
    pub fn applied(&self) -> &AppliedCount {
        &self.applied
    }
}
