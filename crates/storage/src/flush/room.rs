//! Memory of memtables: what is in them, and who waits until there is less.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sheaf_errors::{Code, Error, Result};

use super::Flushes;
use crate::core::Core;
use crate::critical::must;

/// A member that follows waits no longer than this for a flush before it goes on.
const FOLLOWER_PATIENCE: Duration = Duration::from_millis(100);
/// And for so long where room on the disk is short.
const LAST_PATIENCE: Duration = Duration::from_millis(500);

/// So often those who wait look whether they still have to.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// So many generations of memtables may be in the log in the documents that are left there, until a flush has ended.
const IN_LOG: u64 = 8;

impl Flushes {
    /// A batch of this size is in memtables.
    pub fn note_written(&self, bytes: u64) {
        self.unflushed.fetch_add(bytes, Ordering::Relaxed);
        self.disk.note(bytes);
    }

    /// Documents of so many bytes were left in the log: they take no memory, but a start has to go through them.
    pub fn note_left(&self, bytes: u64) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The log has taken so many bytes.
    pub fn note_logged(&self, bytes: u64) {
        self.disk.note(bytes);
    }

    /// Documents of so many bytes were deleted.
    pub fn note_gone(&self, bytes: u64) {
        if bytes > 0 {
            self.gone.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Bytes of documents that are in the log alone, because a flush has not ended since.
    fn in_log(&self) -> u64 {
        self.left.load(Ordering::Relaxed) + self.flushing_left.load(Ordering::Relaxed)
    }

    /// So much comes together in memtables before a flush.
    pub(super) fn memtable_bytes(&self) -> u64 {
        self.base.options.memtable_bytes().min(self.disk.memtables_max())
    }

    /// Bytes of batches since the last flush began.
    pub fn unflushed(&self) -> u64 {
        self.unflushed.load(Ordering::Relaxed)
    }

    /// Bytes of batches that memtables hold, those included that are being flushed.
    fn in_memtables(&self) -> u64 {
        self.unflushed() + self.flushing.load(Ordering::Relaxed)
    }

    /// Whether a flush is writing.
    pub(super) fn is_flushing(&self) -> bool {
        self.flushing.load(Ordering::Relaxed) > 0
    }

    /// Whether as much as may come together before a flush is in memtables, or only in the log; or it may be the last that has room.
    pub fn is_due(&self) -> bool {
        let (options, unflushed) = (&self.base.options, self.unflushed());
        unflushed >= self.memtable_bytes()
            || unflushed + self.left.load(Ordering::Relaxed) >= options.log_bytes()
            || self.is_last_chance()
    }

    /// Whether memtables hold as much as they may, with those that are being flushed, or so much is in the log that flushes cannot keep up.
    pub fn is_crowded(&self) -> bool {
        let options = &self.base.options;
        self.in_memtables() >= self.memtable_bytes() * 2 || self.in_log() >= options.log_bytes() * IN_LOG
    }

    /// What memtables hold is being flushed from now on. Gives how much that is.
    pub(super) fn move_to_flush(&self) -> u64 {
        let bytes = self.unflushed.swap(0, Ordering::Relaxed);
        self.flushing_left.store(self.left.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        self.flushing_gone.store(self.gone.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        let before = self.flushing.swap(bytes, Ordering::Relaxed);
        must!(before == 0, "a flush has begun while {before} bytes of another are being written");
        self.pace.begin(Instant::now());
        bytes
    }

    /// The flush of so much is over; what could not be written is in memory as before.
    pub(super) fn flush_over(&self, bytes: u64, written: bool) {
        let flushing = self.flushing.swap(0, Ordering::Relaxed);
        must!(flushing == bytes, "the flush that is over is the one that was begun");
        let left = self.flushing_left.swap(0, Ordering::Relaxed);
        let gone = self.flushing_gone.swap(0, Ordering::Relaxed);
        self.pace.end(Instant::now(), written.then_some(bytes));
        if !written {
            self.note_written(bytes);
            self.note_left(left);
            self.note_gone(gone);
        }
    }

    /// Whether who has taken in a megabyte had better let a flush begin: what takes room and memory at a stretch would leave none for that.
    pub fn wants_pause(&self) -> bool {
        self.look_in_time(0);
        self.is_crowded() || self.is_last_chance()
    }

    /// For how long whoever writes now should pause, so that memory lasts until the flush that is under way has ended.
    fn pause(&self) -> Option<Duration> {
        let flushing = self.flushing.load(Ordering::Relaxed);
        if flushing == 0 {
            return None;
        }
        let room = (self.memtable_bytes() * 2).saturating_sub(flushing);
        self.pace.pause(Instant::now(), flushing, self.unflushed(), room)
    }

    /// [`Core::wait_for_room`] for a member that follows: it is held back a little where flushes do not keep up, but never
    /// for long. What it has may never be committed, and the unit that takes it back must come through.
    pub fn make_room(&self) {
        self.look_in_time(0);
        if self.is_due() {
            self.signals.ask();
        }
        // What comes before the flush that is the last to have room is the last that there is room for.
        let is_last = self.is_last_chance() && !self.disk.is_beyond_help();
        if (self.is_crowded() || is_last) && self.signals.works() {
            let patience = if is_last { LAST_PATIENCE } else { FOLLOWER_PATIENCE };
            self.room_made.wait_for(&mut self.room.lock(), patience);
        }
    }

    /// The error of writes after RocksDB has stopped.
    fn stopped(&self) -> Error {
        let events = self.base.db.events();
        let code = if events.may_go_on() { Code::OUT_OF_DISK_SPACE } else { Code::LOG_WRITE_FAILED };
        Error::new(
            code,
            format!("storage accepts no writes until it is opened anew: {}", events.last_error()),
        )
    }
}

impl Core {
    /// Writers that are faster than the disk wait here: so that memtables keep to their memory, and that what is not synced stays little. Not those
    /// of what `frees`, which is little, and may be what a flush waits for.
    ///
    /// Errors: what ends the operation (killed, `maxTimeMS`, shutdown); `OutOfDiskSpace` if there is no room for a flush.
    pub fn wait_for_room(&self, frees: bool) -> Result<()> {
        if !frees {
            self.wait_for_disk()?;
        }
        self.wait_for_memory(frees)
    }

    /// [`Core::wait_for_room`] for what goes into memtables and not into the log.
    ///
    /// Errors: the same.
    pub fn wait_for_memory(&self, frees: bool) -> Result<()> {
        let flushes = &self.flushes;
        if self.base.db.events().is_stopped() {
            return Err(flushes.stopped());
        }
        if flushes.is_due() {
            flushes.signals.ask();
        }
        if frees {
            return Ok(());
        }
        if !flushes.is_crowded() {
            return flushes.pause().map_or(Ok(()), |pause| self.slow_down(pause));
        }
        let crowded = || match flushes.error.lock().clone() {
            Some(error) if flushes.is_crowded() => Err(error),
            _ => Ok(flushes.is_crowded()),
        };
        self.wait_while(crowded, |patience| {
            flushes.room_made.wait_for(&mut flushes.room.lock(), patience);
        })
    }

    /// Waits until the log is on the disk as far as it should be.
    ///
    /// Errors: what ends the operation.
    fn wait_for_disk(&self) -> Result<()> {
        let durability = &self.durability;
        if durability.is_failed() || !durability.is_far_ahead() {
            return Ok(());
        }
        self.wait_while(|| Ok(durability.is_far_ahead()), |patience| durability.rest_until_synced(patience))
    }

    /// Rests as long as the disk `lags` and anything comes of waiting.
    pub(super) fn wait_while(&self, lags: impl Fn() -> Result<bool>, rest: impl Fn(Duration)) -> Result<()> {
        let mut outcome = Ok(());
        (self.base.options.block)(&mut || {
            while outcome.is_ok() && self.may_wait_for_disk() {
                outcome = match lags() {
                    Ok(false) => break,
                    Ok(true) => sheaf_meter::check(),
                    Err(error) => Err(error),
                };
                if outcome.is_ok() {
                    rest(LOOK_AGAIN);
                }
            }
        });
        outcome
    }

    /// Waits so long, or until the flush that is under way has ended.
    ///
    /// Errors: what ends the operation.
    fn slow_down(&self, pause: Duration) -> Result<()> {
        let (flushes, until) = (&self.flushes, Instant::now() + pause);
        let flush = flushes.count();
        let mut outcome = Ok(());
        (self.base.options.block)(&mut || {
            while outcome.is_ok() && flushes.count() == flush {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() || !flushes.signals.works() {
                    break;
                }
                flushes.room_made.wait_for(&mut flushes.room.lock(), left.min(Duration::from_millis(20)));
                outcome = sheaf_meter::check();
            }
        });
        outcome
    }

    /// Whether anything comes of waiting.
    fn may_wait_for_disk(&self) -> bool {
        // The commit of a primary that has lost its office would be refused anyway.
        !self.durability.is_failed() && self.base.leads() && self.flushes.signals.works()
    }

    /// After a failed write: what is in the log, and is not in memtables, a restart will apply. If one is to come, nobody
    /// must act on the state in between.
    pub fn wait_for_restart(&self) {
        let comes = || self.base.db.events().may_go_on() && self.base.options.reopen.is_some();
        (self.base.options.block)(&mut || {
            while comes() && !self.is_stopping() && !self.durability.is_failed() {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
    }
}
