//! When what is committed becomes part of RocksDB's files, and how much of it waits for that in memory.
//!
//! - [`checkpoint`]: flushes, ordered with the pipeline held, and what goes with them;
//! - [`gate`]: flushes that RocksDB begins by itself wait until what they write may be in files;
//! - [`keeper`]: the thread that flushes by memory and by age, and clears away;
//! - [`signals`]: what that thread is told;
//! - [`pace`]: writers slow down as memory fills while a flush is writing;
//! - [`room`]: writers that are faster than the disk wait;
//! - [`disk`]: how much room the disk has;
//! - [`scarce`]: flushes before there is no room for them, and what adds to the data refused;
//! - [`ahead`]: flushes ahead of the set's commit point, and the way back behind them;
//! - [`stable`]: copies that these leave beside the data.

mod ahead;
mod checkpoint;
pub(crate) mod disk;
mod gate;
mod keeper;
mod pace;
mod room;
mod scarce;
mod signals;
pub(crate) mod stable;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sheaf_errors::{Error, Result};

use crate::base::Base;
use crate::critical::must;
use crate::db::Cf;
use crate::options::OpTime;
use crate::order::rank::CHECKPOINTING;
use crate::order::{Condvar, Mutex, MutexGuard, rank};
pub(crate) use checkpoint::{Bookkeeping, read_applied};
use disk::Disk;
use pace::Pace;
use signals::Signals;
use stable::StableCopies;

/// So often those who wait for another's flush look whether they still may.
const LOOK_UP: Duration = Duration::from_millis(10);

/// The owner of flushes. Its locks have the ranks [`rank::CHECKPOINTING`] (one flush at a time, held over all of it),
/// [`rank::FLUSHED`] (where the files are) and [`rank::ROOM`] (writers who wait); the rest are leaves.
pub(crate) struct Flushes {
    base: Arc<Base>,
    turn: Mutex<{ rank::CHECKPOINTING }, ()>,
    /// Position of the newest commit that is in RocksDB's files.
    flushed: Mutex<{ rank::FLUSHED }, OpTime>,
    /// A flush up to here has begun and is not known to be on disk.
    flushing_to: Mutex<{ rank::LEAF }, Option<OpTime>>,
    /// Bytes of batches since the last flush began.
    unflushed: AtomicU64,
    /// The same of what a flush is writing: it is in memory until it is on disk.
    flushing: AtomicU64,
    /// Bytes of documents that commits have left in the log since then, and those before a flush that is under way.
    left: AtomicU64,
    flushing_left: AtomicU64,
    /// Bytes of documents that were deleted since then, and those before a flush that is under way.
    gone: AtomicU64,
    flushing_gone: AtomicU64,
    pace: Pace,
    disk: Disk,
    /// Bytes of the smallest and largest keys of table files, as the last flush has found them.
    file_key_bytes: AtomicU64,
    /// How many there were.
    count: AtomicU64,
    /// Index up to which files may hold the log's operations: a checkpoint has asked the log and the set.
    allowed: AtomicU64,
    /// Whether a checkpoint has sealed memtables, and sees to it that they may be written.
    ordering: AtomicBool,
    /// How many memtables had been sealed with the last flush that a checkpoint has ordered.
    ordered_seals: AtomicU64,
    /// What the files held before they were flushed ahead of the commit point.
    copies: StableCopies,
    signals: Signals,
    /// What was removed where room is tight, and may be at level 0 yet.
    removed: Mutex<{ rank::LEAF }, Vec<(Cf, u32)>>,
    /// Since when what was dropped on a disk without room is being taken away.
    clearing_since: Mutex<{ rank::LEAF }, Option<Instant>>,
    room: Mutex<{ rank::ROOM }, ()>,
    room_made: Condvar,
    /// Why the last flush failed, until one succeeds.
    error: Mutex<{ rank::LEAF }, Option<Error>>,
}

impl Flushes {
    /// Of files that hold everything up to `flushed`.
    pub fn new(base: Arc<Base>, flushed: OpTime, copies: StableCopies) -> Flushes {
        Flushes {
            turn: Mutex::new(()),
            flushed: Mutex::new(flushed),
            flushing_to: Mutex::default(),
            unflushed: AtomicU64::new(0),
            left: AtomicU64::new(0),
            flushing_left: AtomicU64::new(0),
            gone: AtomicU64::new(0),
            flushing_gone: AtomicU64::new(0),
            flushing: AtomicU64::new(0),
            pace: Pace::default(),
            disk: Disk::default(),
            file_key_bytes: AtomicU64::new(base.db.file_key_bytes()),
            count: AtomicU64::new(0),
            allowed: AtomicU64::new(0),
            ordering: AtomicBool::new(false),
            ordered_seals: AtomicU64::new(0),
            copies,
            signals: Signals::default(),
            removed: Mutex::default(),
            clearing_since: Mutex::default(),
            room: Mutex::new(()),
            room_made: Condvar::new(),
            error: Mutex::default(),
            base,
        }
    }

    /// Position of the newest commit that is in RocksDB's files.
    pub fn flushed(&self) -> OpTime {
        *self.flushed.lock()
    }

    /// How many flushes there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Bytes of the smallest and largest keys of table files, as the last flush has found them.
    pub fn file_key_bytes(&self) -> u64 {
        self.file_key_bytes.load(Ordering::Relaxed)
    }

    /// What these may take before no more long keys are taken in.
    pub fn file_key_bytes_max(&self) -> u64 {
        self.base.options.file_key_bytes_max()
    }

    /// What the keeper is told.
    pub fn signals(&self) -> &Signals {
        &self.signals
    }

    /// Ends the keeper, and the waits of writers for it.
    pub fn stop(&self) {
        self.signals.stop();
        self.room_made.notify_all();
    }

    /// Whether a checkpoint sees to it that what it has sealed may be written.
    pub(crate) fn is_ordering(&self) -> bool {
        self.ordering.load(Ordering::Acquire)
    }

    /// One flush at a time; whoever cannot wait for another's is not held up by it.
    fn take_turn(&self) -> Result<MutexGuard<'_, CHECKPOINTING, ()>> {
        loop {
            sheaf_meter::check()?;
            if let Some(turn) = self.turn.try_lock_for(LOOK_UP) {
                return Ok(turn);
            }
        }
    }

    /// The files hold everything up to this position. The flush's turn is held.
    fn ended(&self, at: OpTime) {
        let under_way = self.flushing_to.lock().take();
        must!(under_way == Some(at), "the flush that has ended is the one that was begun");
        let mut flushed = self.flushed.lock();
        must!(
            at.index >= flushed.index && at.term >= flushed.term,
            "a flush up to {at:?} has ended after one up to {flushed:?}",
            flushed = *flushed
        );
        *flushed = at;
        drop(flushed);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.room_made.notify_all();
    }
}
