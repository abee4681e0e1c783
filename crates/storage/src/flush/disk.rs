//! Room on the disk: it is looked at often enough that a flush is made while there is room for it, and that what only frees room can always be done.
//!
//! Memory that cannot be flushed is a dead end: data that were dropped stay until their drop is in RocksDB's files, and so does the log. So before
//! the room falls below what a flush needs and [`Disk::kept`], one is made, which gives back the log as well; and when that has not helped,
//! whatever adds to the data is refused. What deletes, and drops, is not: it lives off what is kept, and so do compactions.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What a flush needs on the disk besides the size of its memtables.
pub(super) const ROOM_BYTES: u64 = 1 << 20;

/// So much of the disk is kept, within these bounds: what deletions and drops write, and compactions until they have made room.
const KEPT_PART: u64 = 64;
const KEPT_MIN: u64 = 8 << 20;
const KEPT_MAX: u64 = 1 << 30;

/// Memtables take no more than this part of the disk, nor less than so much: what is not flushed must be little beside what is kept, a flush or two
/// later, where it cannot be refused (a member that follows takes what others have ordered).
const MEMTABLES_PART: u64 = 32;
const MEMTABLES_MIN: u64 = 8 << 20;

/// Where it was short when something was dropped, what comes back first is the merge's that takes the rest away, up to this part of the disk.
const CLEARING_PART: u64 = 4;

/// About a hundred deletions.
const SMALL_DELETION: u64 = 64 << 10;

/// Others hear that there is no room when the keeper has found none so many times in a row.
const LOOKS_SHORT: u64 = 2;

/// It is looked for again when a part of the room has been written, within these bounds. (What others write is seen by the keeper, who looks twice a second.)
const LOOK_PART: u64 = 8;
const LOOK_MIN: u64 = 128 << 10;
const LOOK_MAX: u64 = 64 << 20;

/// What was seen of the disk at the last look, and what follows from it. Without a lock: those who look at the same time see the same.
#[derive(Default)]
pub(crate) struct Disk {
    /// Bytes that were written into memtables or left in the log, and at how many it is looked for again.
    pub(super) written: AtomicU64,
    pub(super) look_at: AtomicU64,
    /// The disk's size, 0 before it was looked at.
    total: AtomicU64,
    /// What there is besides what memtables hold.
    spare: AtomicU64,
    /// What memtables may come to hold.
    memory: AtomicU64,
    /// Whether a flush or a compaction was under way, which gives back what it takes for a while.
    at_work: AtomicBool,
    /// What somebody waits for.
    pub(super) asked: AtomicU64,
    /// What others have heard of its being short, and of its having little.
    told_short: AtomicBool,
    told_little: AtomicBool,
    short_looks: AtomicU64,
    /// How often the keeper has looked, and done what makes room.
    pub(super) rounds: AtomicU64,
    /// If data were removed that level 0 may hold yet: an index above that of the newest entry at that time.
    pub(super) removed: AtomicU64,
    /// Whether level 0 is being merged at once.
    pub(super) merging: AtomicBool,
    /// Whether something was dropped that is not gone.
    pub(super) clearing: AtomicBool,
}

/// What is kept of the disk that this folder is on. One that does not say how large it is is large.
pub(crate) fn kept_on(folder: &Path) -> u64 {
    kept_of(fs4::total_space(folder).unwrap_or(u64::MAX))
}

/// What is kept of a disk of so many bytes.
pub(crate) fn kept_of(total: u64) -> u64 {
    (total / KEPT_PART).clamp(KEPT_MIN, KEPT_MAX)
}

/// As large may a segment of the log be, so that what is wanted of it can be copied into what is kept.
pub(crate) fn segment_bytes_on(folder: &Path) -> u64 {
    kept_on(folder) / 4
}

impl Disk {
    /// Takes note of bytes that were written.
    pub fn note(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The keeper looks: what other members are to hear, if it is news. This one's disk is short of room when it was so again and again, with nothing
    /// `at_work` that may help; and not any more when room has come for as much again as is kept.
    pub fn changes(&self, at_work: bool) -> Option<bool> {
        let told = self.told_short.load(Ordering::Relaxed);
        let before = self.short_looks.load(Ordering::Relaxed);
        let looks = if self.is_short() && !at_work { before + 1 } else { 0 };
        self.short_looks.store(looks, Ordering::Relaxed);
        let now = looks >= LOOKS_SHORT || (told && self.lacks(self.kept()));
        self.told_short.store(now, Ordering::Relaxed);
        (now != told).then_some(now)
    }

    /// The keeper looks: whether others are to hear, if it is news, that a primary here would soon be short.
    pub fn little_changes(&self) -> Option<bool> {
        let memory = self.memory.load(Ordering::Relaxed).min(self.memtables_max());
        let now = self.lacks(self.kept() + 2 * memory);
        (self.told_little.swap(now, Ordering::Relaxed) != now).then_some(now)
    }

    /// Others hear now that this disk is short of room.
    pub fn tell_short(&self) {
        self.told_short.store(true, Ordering::Relaxed);
    }

    /// What there is besides what memtables hold. A disk that says nothing has enough.
    fn spare(&self) -> u64 {
        if self.total.load(Ordering::Relaxed) == 0 { u64::MAX } else { self.spare.load(Ordering::Relaxed) }
    }

    /// What is kept.
    pub fn kept(&self) -> u64 {
        kept_of(self.total.load(Ordering::Relaxed))
    }

    /// What there is besides what is kept and what memtables hold.
    fn slack(&self) -> u64 {
        self.spare().saturating_sub(self.kept())
    }

    /// Whether a flush may soon have no room.
    pub fn is_short(&self) -> bool {
        self.slack() <= self.asked.load(Ordering::Relaxed)
    }

    /// Whether what adds so much is refused.
    pub fn refuses(&self, bytes: u64) -> bool {
        (self.is_short() || self.lacks(bytes.saturating_add(self.cleared_first()))) && !self.is_beyond_help()
    }

    /// Whether a deletion that takes so much, before it gives any back, would leave too little of what is kept: a flush, and drops, need some. Small
    /// ones, among which are those of the server itself, have half of that, too.
    pub fn refuses_deletion(&self, bytes: u64) -> bool {
        let part = self.kept() / 4;
        let left = if bytes < SMALL_DELETION { part } else { 2 * part };
        self.spare() < left + bytes.min(part) && !self.is_beyond_help()
    }

    /// Whether so much may be copied, which gives back more when it has been flushed: of what is kept the last half only where it is used already.
    pub fn has_room_for_copy(&self, bytes: u64) -> bool {
        let left = if self.is_short() { self.kept() / 8 } else { self.kept() / 2 };
        self.spare() >= bytes.saturating_add(ROOM_BYTES + left)
    }

    /// What a drop has given back first is not for what adds to the data: merging away the rest may need it, and the first writer who finds it would
    /// take it.
    fn cleared_first(&self) -> u64 {
        let most = self.total.load(Ordering::Relaxed) / CLEARING_PART;
        if self.clearing.load(Ordering::Relaxed) { self.memory.load(Ordering::Relaxed).min(most) } else { 0 }
    }

    /// Whether there is less than that besides what is kept.
    pub fn lacks(&self, bytes: u64) -> bool {
        self.slack() < bytes
    }

    /// Whether room is scarce enough that nothing is to lie about, as what the log keeps for want of a reason to remove it.
    pub fn is_tight(&self) -> bool {
        self.slack() < self.memory.load(Ordering::Relaxed) * 2 + self.kept()
    }

    /// Whether it soon will be short, or is, and the log can have some of what is kept without taking the room of a flush.
    pub fn log_wants_room(&self) -> bool {
        self.slack() < self.kept() * 2 && self.spare() >= ROOM_BYTES + self.kept() / 2
    }

    /// So much may be in memtables.
    pub fn memtables_max(&self) -> u64 {
        match self.total.load(Ordering::Relaxed) {
            0 => u64::MAX,
            total => (total / MEMTABLES_PART).max(MEMTABLES_MIN),
        }
    }

    /// Whether there is no room for a flush, nor will be soon.
    pub fn is_beyond_help(&self) -> bool {
        !self.at_work.load(Ordering::Relaxed) && self.spare() < ROOM_BYTES
    }

    /// Takes note of so much room on a disk of so many bytes, where memtables hold `unwritten` and may come to hold `memory`; `at_work` says that a flush or a
    /// compaction is under way.
    pub fn saw(&self, available: u64, total: u64, unwritten: u64, memory: u64, at_work: bool) {
        self.spare.store(available.saturating_sub(unwritten), Ordering::Relaxed);
        self.memory.store(memory, Ordering::Relaxed);
        self.at_work.store(at_work, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
        let step = (self.slack() / LOOK_PART).clamp(LOOK_MIN, LOOK_MAX);
        self.look_at.store(self.written.load(Ordering::Relaxed) + step, Ordering::Relaxed);
    }
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
        assert_eq!(at(8 * GB, 16 * GB, 64 * MB), (false, false));
        assert_eq!(at(GB / 2, 16 * GB, 64 * MB), (true, false));
        assert_eq!(at(320 * MB, 16 * GB, 64 * MB), (true, true), "a flush of 64 MB and 256 MB that are kept");
        assert_eq!(at(320 * MB, 16 * GB, 63 * MB), (true, false));
        assert_eq!(at(24 * MB, 160 * MB, 15 * MB), (true, false), "a small disk has less kept");
        assert_eq!(at(23 * MB, 160 * MB, 15 * MB), (true, true));
    }

    #[test]
    fn a_disk_that_says_nothing_has_room() {
        let disk = Disk::default();
        assert!(!disk.is_short() && !disk.is_tight() && !disk.refuses(GB) && !disk.is_beyond_help());
        assert_eq!(disk.changes(false), None);
    }

    #[test]
    fn nothing_is_refused_where_no_flush_has_room_anyway() {
        let disk = Disk::default();
        let refuses = |available, at_work| {
            disk.saw(available, 160 * MB, 15 * MB, 64 * MB, at_work);
            disk.refuses(1)
        };
        assert!(!refuses(24 * MB, false));
        assert!(refuses(16 * MB, false));
        assert!(!refuses(15 * MB, false), "somebody else has filled it");
        assert!(refuses(15 * MB, true), "what a compaction takes comes back");
    }

    #[test]
    fn deletions_leave_half_of_what_is_kept() {
        let disk = Disk::default();
        assert!(!disk.refuses_deletion(GB));
        let refuses = |available| {
            disk.saw(available * MB, 160 * MB, 15 * MB, 64 * MB, true);
            (disk.refuses(1), disk.refuses_deletion(MB), disk.refuses_deletion(1000))
        };
        let seen = [24, 23, 20, 19, 18, 16].map(refuses);
        assert_eq!(seen[..3], [(false, false, false), (true, false, false), (true, false, false)]);
        assert_eq!(seen[3..], [(true, true, false), (true, true, false), (true, true, true)]);
    }

    #[test]
    fn what_a_drop_gives_back_is_first_for_the_merge_of_the_rest() {
        let disk = Disk::default();
        let refuses = |available| {
            disk.saw(available, 320 * MB, 0, 64 * MB, false);
            disk.refuses(1)
        };
        assert!(!refuses(50 * MB));
        disk.clearing.store(true, Ordering::Relaxed);
        assert!(refuses(50 * MB) && !refuses(80 * MB));
        disk.clearing.store(false, Ordering::Relaxed);
        assert!(!refuses(50 * MB));
    }

    #[test]
    fn others_hear_that_there_is_room_again_when_there_is_enough() {
        let disk = Disk::default();
        let news = |available, at_work| {
            disk.saw(available, 160 * MB, 15 * MB, 64 * MB, false);
            disk.changes(at_work)
        };
        let changes = |mb: u64| news(mb * MB, false);
        assert_eq!([20, 20].map(|mb| news(mb * MB, true)), [None; 2]);
        assert_eq!([25, 23, 20, 24, 30].map(changes), [None, None, Some(true), None, None]);
        assert_eq!([31, 23, 24, 23, 23].map(changes), [Some(false), None, None, None, Some(true)]);
        assert_eq!(changes(31), Some(false));
        disk.tell_short();
        assert_eq!([24, 31].map(changes), [None, Some(false)], "a writer has told them");
    }

    #[test]
    fn others_hear_in_time_that_there_is_little_room() {
        let disk = Disk::default();
        assert_eq!(disk.little_changes(), None);
        let news = |available| {
            disk.saw(available * MB, 160 * MB, 15 * MB, 64 * MB, false);
            disk.little_changes()
        };
        assert_eq!([47, 46, 30, 40, 47].map(news), [None, Some(true), None, None, Some(false)]);
    }

    #[test]
    fn it_is_looked_for_room_the_more_often_the_less_there_is() {
        let disk = Disk::default();
        let next = |available| {
            disk.saw(available, 16 * GB, 0, 64 * MB, false);
            disk.look_at.load(Ordering::Relaxed) - disk.written.load(Ordering::Relaxed)
        };
        disk.note(5 * MB);
        assert_eq!(next(8 * GB), LOOK_MAX);
        assert_eq!(next(336 * MB), 10 * MB);
        assert_eq!(next(0), LOOK_MIN);
    }
}
