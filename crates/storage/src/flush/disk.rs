//! Room on the disk: it is looked at often enough that a flush is made while there is room for it, and that what only frees room can always be done.
//!
//! Memory that cannot be flushed is a dead end: data that were dropped stay until their drop is in RocksDB's files, and so does the log. So before
//! the room falls below what a flush needs and [`Disk::kept`], one is made, which gives back the log as well; and when that has not helped,
//! whatever adds to the data is refused. What deletes, and drops, is not: it lives off what is kept, and so do compactions.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sheaf_errors::{Code, Error, Result};

use super::Flushes;
use super::checkpoint::ROOM_BYTES;
use crate::core::Core;
use crate::db::Db;

/// So much of the disk is kept, within these bounds: what deletions and drops write, and compactions until they have made room.
const KEPT_PART: u64 = 64;
const KEPT_MIN: u64 = 8 << 20;
const KEPT_MAX: u64 = 256 << 20;

/// It is looked for again when a part of the room has been written, within these bounds. (What others write is seen by the keeper, who looks twice a second.)
const LOOK_PART: u64 = 8;
const LOOK_MIN: u64 = 128 << 10;
const LOOK_MAX: u64 = 64 << 20;

/// Flushing less than this part of what is kept is not worth a file.
const FLUSH_PART: u64 = 4;

/// So many flushes are waited for, each of which may give room, before a write is refused.
const FLUSHES_TRIED: u64 = 2;

/// What was seen of the disk. Without a lock: those who look at the same time see the same.
#[derive(Default)]
pub(crate) struct Disk {
    /// Bytes that were written into memtables or left in the log, and at how many it is looked for again.
    written: AtomicU64,
    look_at: AtomicU64,
    /// What is kept.
    kept: AtomicU64,
    /// Whether a flush may soon have no room.
    short: AtomicBool,
    /// Whether data were removed that level 0 may hold yet.
    removed: AtomicBool,
    /// Whether level 0 is being merged at once.
    merging: AtomicBool,
    /// Whether it soon will be short, if it goes on like this.
    near: AtomicBool,
    /// Whether there is no room for a flush, nor will be soon.
    beyond_help: AtomicBool,
    /// Whether room is scarce enough that nothing is to lie about.
    tight: AtomicBool,
}

impl Disk {
    /// Takes note of bytes that were written.
    pub fn note(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether a flush may soon have no room.
    pub fn is_short(&self) -> bool {
        self.short.load(Ordering::Acquire)
    }

    /// Whether what adds to the data is refused.
    fn refuses(&self) -> bool {
        self.is_short() && !self.beyond_help.load(Ordering::Acquire)
    }

    /// Whether what the log keeps for want of a reason to remove it should go.
    pub fn is_tight(&self) -> bool {
        self.tight.load(Ordering::Acquire)
    }

    /// What is kept of a disk of so many bytes.
    fn kept(total: u64) -> u64 {
        (total / KEPT_PART).clamp(KEPT_MIN, KEPT_MAX)
    }

    /// Takes note of so much room on a disk of so many bytes, where memtables hold `unwritten` and may come to hold `memory`.
    fn saw(&self, available: u64, total: u64, unwritten: u64, memory: u64, at_work: bool) {
        let kept = Self::kept(total);
        self.kept.store(kept, Ordering::Relaxed);
        let slack = available.saturating_sub(unwritten + kept);
        let step = (slack / LOOK_PART).clamp(LOOK_MIN, LOOK_MAX);
        self.look_at.store(self.written.load(Ordering::Relaxed) + step, Ordering::Relaxed);
        self.tight.store(slack < memory * 2 + kept, Ordering::Release);
        self.short.store(slack == 0, Ordering::Release);
        self.near.store((1..kept * 2).contains(&slack), Ordering::Release);
        self.beyond_help.store(!at_work && available < unwritten + ROOM_BYTES, Ordering::Release);
    }
}

impl Flushes {
    /// Looks how much room there is. A file system that does not say has enough.
    pub(super) fn look_for_room(&self) {
        let Ok(stats) = fs4::statvfs(&self.base.options.path) else { return };
        let (db, memory) = (&self.base.db, self.base.options.memtable_bytes());
        let at_work = self.is_flushing() || db.property("rocksdb.num-running-compactions") > 0;
        self.disk.saw(stats.available_space(), stats.total_space(), memtables(db), memory, at_work);
    }

    /// [`Flushes::look_for_room`], if enough was written since; whether it was.
    pub(super) fn look_in_time(&self) -> bool {
        let due = self.disk.written.load(Ordering::Relaxed) >= self.disk.look_at.load(Ordering::Relaxed);
        if due {
            self.look_for_room();
        }
        due
    }

    /// Whether a flush is due because later there may be no room for it.
    pub(super) fn is_last_chance(&self) -> bool {
        let worth = self.disk.kept.load(Ordering::Relaxed) / FLUSH_PART;
        self.disk.is_short() && self.unflushed() + self.left.load(Ordering::Relaxed) >= worth
    }
}

impl Core {
    /// Refuses what adds to the data where it would take the room that is kept, after flushes that may have made some.
    /// In a set another member may have room, and the set sees to that when the log has none. Where somebody else has filled the disk, so that no flush
    /// has room, nothing is gained by it, and the log may take what is left.
    ///
    /// Errors: `OutOfDiskSpace`; what ends the operation.
    pub(crate) fn wait_for_disk_space(&self) -> Result<()> {
        let flushes = &self.flushes;
        if flushes.look_in_time() && flushes.disk.near.load(Ordering::Acquire) {
            self.keep_room_for_log();
        }
        if !flushes.disk.refuses() || self.base.is_ordered() {
            return Ok(());
        }
        let before = flushes.count();
        let lacks = || {
            flushes.look_for_room();
            if !flushes.disk.refuses() {
                return Ok(false);
            }
            let flushes_more = flushes.is_flushing() || flushes.is_last_chance();
            if !flushes_more || flushes.count() >= before + FLUSHES_TRIED || flushes.error.lock().is_some() {
                return Err(self.no_room_to_add());
            }
            flushes.signals.ask();
            Ok(true)
        };
        self.wait_while(lacks, |patience| {
            flushes.room_made.wait_for(&mut flushes.room.lock(), patience);
        })
    }

    /// The keeper's part: where room is `tight` the log's beginning goes, and so does at once what was `removed`.
    pub(super) fn make_room_on_disk(&self, tight: bool, removed: bool) -> Result<()> {
        let (disk, db) = (&self.flushes.disk, &self.base.db);
        if tight {
            self.thin_log()?;
        }
        let merging = disk.merging.load(Ordering::Relaxed);
        disk.removed.fetch_or(removed, Ordering::Relaxed);
        if tight && disk.removed.load(Ordering::Relaxed) {
            // Files at level 0 stay until they are merged with the deletions, which are in memory yet.
            self.try_checkpoint()?;
            db.merge_level0(true)?;
            disk.merging.store(true, Ordering::Relaxed);
            disk.removed.store(false, Ordering::Relaxed);
        } else if merging && (!tight || db.level0_is_merged()) {
            db.merge_level0(false)?;
            disk.merging.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// As much as a quarter of what is kept is the log's alone: compactions and flushes may take all the rest for a while.
    fn keep_room_for_log(&self) {
        let bytes = self.flushes.disk.kept.load(Ordering::Relaxed) / 4;
        if let Some(log) = self.durability.log().filter(|_| !self.base.is_ordered())
            && let Err(error) = log.reserve(bytes as usize, true)
        {
            tracing::debug!(%error, "no room can be kept for the log");
        }
    }

    fn no_room_to_add(&self) -> Error {
        let text = match fs4::statvfs(&self.base.options.path) {
            Ok(stats) => format!(
                "{} MB are left on the disk, which are kept for what frees room: only deletions and drops are taken until there is more",
                stats.available_space() >> 20
            ),
            Err(error) => format!("no room on the disk: {error}"),
        };
        Error::new(Code::OUT_OF_DISK_SPACE, text)
    }
}

/// Bytes of all memtables, which a flush may need on the disk.
pub(super) fn memtables(db: &Db) -> u64 {
    db.property("rocksdb.cur-size-all-mem-tables")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;
    const GB: u64 = 1 << 30;

    #[test]
    fn a_flush_is_made_while_there_is_room_for_it() {
        let disk = Disk::default();
        let at = |available, total, unwritten| {
            disk.saw(available, total, unwritten, 64 * MB, false);
            (disk.is_tight(), disk.is_short())
        };
        assert_eq!(at(50 * GB, 100 * GB, 64 * MB), (false, false));
        assert_eq!(at(GB / 2, 100 * GB, 64 * MB), (true, false));
        assert_eq!(
            at(320 * MB, 100 * GB, 64 * MB),
            (true, true),
            "a flush of 64 MB and 256 MB that are kept"
        );
        assert_eq!(at(320 * MB, 100 * GB, 63 * MB), (true, false));
        assert_eq!(at(24 * MB, 160 * MB, 15 * MB), (true, false), "a small disk has less kept");
        assert_eq!(at(23 * MB, 160 * MB, 15 * MB), (true, true));
    }

    #[test]
    fn nothing_is_refused_where_no_flush_has_room_anyway() {
        let disk = Disk::default();
        let refuses = |available, at_work| {
            disk.saw(available, 160 * MB, 15 * MB, 64 * MB, at_work);
            disk.refuses()
        };
        assert!(!refuses(24 * MB, false));
        assert!(refuses(16 * MB, false));
        assert!(!refuses(15 * MB, false), "somebody else has filled it");
        assert!(refuses(15 * MB, true), "what a compaction takes comes back");
    }

    #[test]
    fn it_is_looked_for_room_the_more_often_the_less_there_is() {
        let disk = Disk::default();
        let next = |available| {
            disk.saw(available, 100 * GB, 0, 64 * MB, false);
            disk.look_at.load(Ordering::Relaxed) - disk.written.load(Ordering::Relaxed)
        };
        disk.note(5 * MB);
        assert_eq!(next(50 * GB), LOOK_MAX);
        assert_eq!(next(336 * MB), 10 * MB);
        assert_eq!(next(0), LOOK_MIN);
    }
}
