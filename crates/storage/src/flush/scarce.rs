//! What is done where room on the disk is scarce, as [`Disk`](super::disk::Disk) has seen it: flushes in time, refusals, and what gives room back.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sheaf_errors::{Code, Error, Result};

use super::Flushes;
use super::disk::ROOM_BYTES;
use crate::core::Core;
use crate::db::blobs::Reason;
use crate::db::{Cf, Db};
use crate::oplog::log_error;

/// Flushing less than this part of what is kept is not worth a file, unless it deletes the other part: what is deleted takes room until the
/// deletions are merged with it.
const FLUSH_PART: u64 = 4;
const GONE_PART: u64 = 8;

/// So many flushes are waited for, each of which may give room, before a write is refused.
const FLUSHES_TRIED: u64 = 2;

/// And so many rounds of the keeper, the first of which may have begun before, and which may take long.
const ROUNDS_TRIED: u64 = 2;
const ROUNDS_PATIENCE: Duration = Duration::from_secs(2);

/// For so long what a drop gives back is not for those who add to the data.
const CLEARING: Duration = Duration::from_secs(15);

/// Where room is scarce, earlier states of the set are kept for so long after a drop, and where there is none. (Readers who name a time get `SnapshotTooOld` then.)
const PAST_AGE: Duration = Duration::from_secs(1);

impl Flushes {
    /// Looks how much room there is. A file system that does not say has enough.
    pub(super) fn look_for_room(&self) {
        let Ok(stats) = fs4::statvfs(&self.base.options.path) else { return };
        let (db, memory) = (&self.base.db, self.base.options.memtable_bytes());
        self.disk.saw(stats.available_space(), stats.total_space(), memtables(db), memory, self.is_at_work());
    }

    /// Whether room is so scarce that some is to be made.
    pub fn wants_room(&self) -> bool {
        self.disk.lacks(self.disk.kept())
    }

    /// Why large values are moved by compactions.
    pub(super) fn why_blobs_move(&self) -> Reason {
        if self.wants_room() { Reason::Scarce { room: self.disk.kept() / 4 } } else { Reason::Garbage }
    }

    /// Whether so much may be copied, which gives back more when it has been flushed.
    pub fn has_room_for_copy(&self, bytes: u64) -> bool {
        self.look_for_room();
        self.disk.has_room_for_copy(bytes)
    }

    /// Whether a flush or a compaction is under way.
    fn is_at_work(&self) -> bool {
        self.is_flushing() || self.base.db.property("rocksdb.num-running-compactions") > 0
    }

    /// [`Flushes::look_for_room`], if enough was written since, or there is less than is wanted; whether it was.
    pub(super) fn look_in_time(&self, wanted: u64) -> bool {
        let due = self.disk.lacks(wanted)
            || self.disk.written.load(Ordering::Relaxed) >= self.disk.look_at.load(Ordering::Relaxed);
        if due {
            self.look_for_room();
        }
        due
    }

    /// Whether a flush is due because later there may be no room for it.
    pub(super) fn is_last_chance(&self) -> bool {
        let kept = self.disk.kept();
        let is_worth = self.unflushed() + self.left.load(Ordering::Relaxed) >= kept / FLUSH_PART
            || self.gone.load(Ordering::Relaxed) >= kept / GONE_PART;
        self.disk.is_short() && is_worth
    }
}

impl Core {
    /// Refuses what adds so many bytes where it would take the room that is kept, after flushes that may have made some.
    /// In a set another member that has room is offered the lead first; then this one takes no writes any more, which is told later. Where somebody else
    /// has filled the disk, so that no flush has room, nothing is gained by it, and the log may take what is left.
    ///
    /// Errors: `OutOfDiskSpace`; what ends the operation.
    pub(crate) fn wait_for_disk_space(&self, bytes: u64) -> Result<()> {
        let (flushes, disk) = (&self.flushes, &self.flushes.disk);
        if flushes.look_in_time(bytes) && disk.log_wants_room() {
            self.keep_room_for_log();
        }
        let others_lack = || self.base.sequencer().is_some_and(|sequencer| sequencer.others_lack_room());
        if !disk.refuses(bytes) && !others_lack() {
            return Ok(());
        }
        let (before, rounds) = (flushes.count(), disk.rounds.load(Ordering::Acquire));
        let began = Instant::now();
        let lacks = || {
            // The last that have room are made for this one.
            disk.asked.fetch_max(bytes, Ordering::Relaxed);
            flushes.look_for_room();
            if !self.base.leads() {
                return Ok(false);
            }
            if !disk.refuses(bytes) {
                return if others_lack() { Err(others_have_no_room()) } else { Ok(false) };
            }
            // The keeper takes it back.
            disk.tell_short();
            if self.base.sequencer().is_some_and(|sequencer| sequencer.short_of_room(true)) {
                return Ok(true);
            }
            let flushes_more = (flushes.is_flushing() || flushes.is_last_chance())
                && flushes.count() < before + FLUSHES_TRIED;
            let tries_more = disk.rounds.load(Ordering::Acquire) < rounds + ROUNDS_TRIED
                && began.elapsed() < ROUNDS_PATIENCE;
            if !(flushes_more || tries_more) || flushes.error.lock().is_some() {
                return Err(self.no_room_but_for("deletions and drops"));
            }
            flushes.signals.ask();
            Ok(true)
        };
        let outcome = self.wait_while(lacks, |patience| {
            flushes.room_made.wait_for(&mut flushes.room.lock(), patience);
        });
        disk.asked.store(0, Ordering::Relaxed);
        flushes.look_for_room();
        outcome
    }

    /// Holds back deletions where they would leave too little of the room that is kept: until they are merged with what they delete they take some
    /// themselves, and a million of them all that there is, after which nothing could be flushed, merged or dropped any more.
    ///
    /// Errors: `OutOfDiskSpace`; what ends the operation.
    pub(crate) fn wait_for_room_to_delete(&self, bytes: u64) -> Result<()> {
        let (flushes, disk) = (&self.flushes, &self.flushes.disk);
        flushes.look_in_time(bytes);
        if !disk.refuses_deletion(bytes) {
            return Ok(());
        }
        let (rounds, began) = (disk.rounds.load(Ordering::Acquire), Instant::now());
        let lacks = || {
            flushes.look_for_room();
            if !disk.refuses_deletion(bytes) || !self.base.leads() {
                return Ok(false);
            }
            // Not for long: a drop waits for who has been let into the collection.
            let tries_more = disk.rounds.load(Ordering::Acquire) < rounds + ROUNDS_TRIED
                || flushes.is_flushing()
                || flushes.is_last_chance();
            if !tries_more || began.elapsed() >= ROUNDS_PATIENCE || flushes.error.lock().is_some() {
                return Err(self.no_room_but_for("drops"));
            }
            flushes.signals.ask();
            Ok(true)
        };
        self.wait_while(lacks, |patience| {
            flushes.room_made.wait_for(&mut flushes.room.lock(), patience);
        })
    }

    /// A flush that cannot come to its end is not begun: it would take the room that the log may still have.
    pub(crate) fn check_room(&self) -> Result<()> {
        let needed = memtables(&self.base.db) + ROOM_BYTES;
        let lacks = fs4::available_space(&self.base.options.path).is_ok_and(|room| room < needed);
        if lacks { Err(no_room()) } else { Ok(()) }
    }

    /// The keeper's part: where room is `tight` no log is kept that is not needed, unless other members may want it, and what was `removed` goes at once.
    pub(super) fn make_room_on_disk(&self, tight: bool, removed: &[(Cf, u32)]) -> Result<()> {
        let (disk, db) = (&self.flushes.disk, &self.base.db);
        // First, whatever fails below.
        self.note_clearing(tight, removed);
        if !removed.is_empty() {
            self.flushes.removed.lock().extend(removed);
            disk.removed.store(self.published.last().index + 1, Ordering::Relaxed);
        }
        self.tell_of_room();
        if self.flushes.wants_room() {
            // Again and again: at the end of a flush it is told if it fails.
            _ = self.base.db.tune_blobs(self.flushes.why_blobs_move());
        }
        let by_itself = self.base.is_by_itself();
        if let Some(log) = self.durability.log() {
            log.be_lean(tight, tight && by_itself);
            if tight && by_itself {
                self.thin_log()?;
            }
        }
        // States of the set see what was dropped, or deleted.
        if tight && (disk.is_short() || !self.definitions.garbage().is_empty()) {
            self.forget_past(PAST_AGE, 0);
        }
        let merging = disk.merging.load(Ordering::Relaxed);
        let since = disk.removed.load(Ordering::Relaxed);
        if disk.log_wants_room() {
            self.keep_room_for_log();
        }
        if tight && since > 0 && self.forget_past(Duration::ZERO, since) {
            // Large documents among them may be in the segment that is being written.
            if let Some(log) = self.durability.log().filter(|_| by_itself) {
                log.end_segment().map_err(log_error)?;
            }
            // Files at level 0 stay until they are merged with the deletions, which are in memory yet.
            if !self.try_checkpoint()? {
                return Ok(());
            }
            db.events().expect_less(true);
            // By range: else RocksDB takes old files that do not overlap each other alone, without the file of the deletion, and writes them again.
            let removed = std::mem::take(&mut *self.flushes.removed.lock());
            if !db.level0_is_merged() {
                removed.into_iter().for_each(|(cf, ident)| db.compact_prefix(cf, ident));
            }
            db.merge_level0(true)?;
            disk.merging.store(true, Ordering::Relaxed);
            disk.removed.store(0, Ordering::Relaxed);
        } else if disk.is_short() && !merging {
            // Deletions make room when they are merged with what they delete.
            db.merge_level0(true)?;
            disk.merging.store(true, Ordering::Relaxed);
        } else if merging && !disk.is_short() && (!tight || db.level0_is_merged()) {
            db.events().expect_less(false);
            db.merge_level0(false)?;
            disk.merging.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What the set is to hear of the room here. Nothing is news before there is a set that hears it.
    fn tell_of_room(&self) {
        let (flushes, disk) = (&self.flushes, &self.flushes.disk);
        let Some(sequencer) = self.base.sequencer() else { return };
        let may_flush = flushes.is_last_chance() && !disk.is_beyond_help();
        if let Some(short) = disk.changes(flushes.is_at_work() || may_flush) {
            sequencer.short_of_room(short);
        }
        if let Some(little) = disk.little_changes() {
            sequencer.little_room(little);
        }
    }

    /// Takes note of whether what was dropped while there was no room is being taken away: for a while what comes back is not for writers then.
    fn note_clearing(&self, tight: bool, removed: &[(Cf, u32)]) {
        let (disk, db) = (&self.flushes.disk, &self.base.db);
        let dropped = !removed.is_empty()
            || disk.removed.load(Ordering::Relaxed) > 0
            || !self.definitions.garbage().is_empty();
        let merged = disk.merging.load(Ordering::Relaxed) && !db.level0_is_merged();
        if !tight {
            self.flushes.removed.lock().clear();
        }
        let mut since = self.flushes.clearing_since.lock();
        let goes_on = since.is_some() && (dropped || merged) || dropped && disk.is_short();
        *since = since.filter(|_| goes_on && tight).or_else(|| (goes_on && tight).then(Instant::now));
        disk.clearing.store(since.is_some_and(|since| since.elapsed() < CLEARING), Ordering::Relaxed);
    }

    /// Whether no state of the set is left that is from before the entry `since`.
    fn forget_past(&self, age: Duration, since: u64) -> bool {
        if !self.base.is_ordered() {
            return true;
        }
        let _still = self.still();
        self.commits.majority().forget_past(&self.published, age, since)
    }

    /// As much as a quarter of what is kept, or half a segment, is the log's alone: compactions and flushes may take all the rest for a while.
    fn keep_room_for_log(&self) {
        let bytes = self.flushes.disk.kept() / 4;
        if let Some(log) = self.durability.log()
            && let Err(error) = log.keep_room(bytes)
        {
            tracing::debug!(%error, "no room can be kept for the log");
        }
    }

    /// Where only these are `taken`.
    fn no_room_but_for(&self, taken: &str) -> Error {
        let text = match fs4::statvfs(&self.base.options.path) {
            Ok(stats) => format!(
                "{} MB are left on the disk, which are kept for what frees room: only {taken} are taken until there is more",
                stats.available_space() >> 20
            ),
            Err(error) => format!("no room on the disk: {error}"),
        };
        Error::new(Code::OUT_OF_DISK_SPACE, text)
    }
}

fn others_have_no_room() -> Error {
    let text = "so many members of the set have no room on their disks that the others are no majority: only deletions and drops are taken until there is more";
    Error::new(Code::OUT_OF_DISK_SPACE, text)
}

pub(super) fn no_room() -> Error {
    Error::new(Code::OUT_OF_DISK_SPACE, "no room on the disk for flushing memtables")
}

/// Bytes of all memtables, which a flush may need on the disk.
fn memtables(db: &Db) -> u64 {
    db.property("rocksdb.cur-size-all-mem-tables")
}
