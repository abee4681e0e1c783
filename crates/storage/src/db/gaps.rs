//! Stretches of keys among which none lives: only deleted ones.
//!
//! RocksDB keeps a deleted key until compaction has met all that lies below it, and whoever seeks a key walks over all that are deleted
//! before the next one that lives: a quarter of a microsecond each. Whoever takes the first document of a collection and deletes it, as
//! queues do, walks over all that were taken before, each time. So a seek that has taken long is done once more here, and if it walks over
//! many keys they are remembered; later ones begin behind them.
//!
//! What makes that right:
//!
//! - A stretch is announced ([`Gaps::announce`]) while nobody writes, and walked over after that. A write that is not seen by the walk
//!   comes later, and shortens the stretch before it is made ([`Gaps::writing`]), so that none of its keys lies within.
//! - A stretch is used only at snapshots that were taken after it was walked over: older ones may see keys that were deleted since.
//!   [`Gaps::known`] is asked before a snapshot is taken, and counts the stretches that had been walked over.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{RwLock, RwLockReadGuard};
use rocksdb::{ErrorKind, ReadOptions, WriteBatch, WriteBatchIteratorCf};

use super::{Cf, Db};
use crate::keys::FullKey;
use crate::order::{Mutex, rank};

/// A seek that takes longer may have walked over many keys.
const SLOW: Duration = Duration::from_micros(if cfg!(test) { 0 } else { 25 });

/// Seeks are done once more no more often than this. They may be slow for other reasons: each time that it was in vain doubles the pause, up to
/// the other.
const PAUSE_MICROS: u64 = if cfg!(test) { 0 } else { 1000 };
const PAUSE_MICROS_MAX: u64 = 2_000_000;

/// Only one of so many seeks of a thread is looked at: the clock costs as much as some of them.
const LOOK: u32 = if cfg!(test) { 1 } else { 8 };

/// A walk over fewer deleted keys is not worth remembering.
const LEAST: u64 = if cfg!(test) { 1 } else { 64 };

/// So many stretches are remembered.
const MOST: usize = if cfg!(test) { 6 } else { 64 };

/// No key that lives is in `from..to`.
#[derive(Debug)]
struct Gap {
    cf: Cf,
    from: FullKey,
    to: FullKey,
    /// How many had been walked over when this was, itself included. Of one that is being walked over: the how manieth was announced.
    number: u64,
    /// It ends where the reader's range does: what is added there shortens it, which must not cost what lies before.
    open: bool,
}

impl Gap {
    fn holds(&self, cf: Cf, key: &[u8]) -> bool {
        self.cf == cf && &self.from[..] <= key && key < &self.to[..]
    }
}

/// Where a reader goes, and how far.
pub(crate) struct Way<'k> {
    pub cf: Cf,
    pub forward: bool,
    /// The reader's range, the upper bound not included.
    pub lower: &'k [u8],
    pub upper: &'k [u8],
    /// [`Gaps::known`] from before its snapshot was taken.
    pub known: u64,
}

#[derive(Default)]
struct State {
    /// In order, none over another.
    gaps: Vec<Gap>,
    /// Those that are being walked over.
    walking: Vec<Gap>,
    announced: u64,
}

/// The stretches of one database.
#[derive(Default)]
pub(crate) struct Gaps {
    /// Held by who writes, from before it shortens stretches until its keys are there.
    writes: RwLock<()>,
    state: Mutex<{ rank::LEAF }, State>,
    /// Whether there are any, or are going to be.
    any: AtomicBool,
    /// How many have been walked over.
    walked: AtomicU64,
    began: OnceLock<Instant>,
    /// When a seek was last done once more, and the pause after it.
    learned_micros: AtomicU64,
    pause_micros: AtomicU64,
}

impl Gaps {
    /// To be asked before a snapshot is taken.
    pub fn known(&self) -> u64 {
        self.walked.load(Ordering::Acquire)
    }

    /// What is to be written lies in no gap from now on. The guard is to be held until it is written. `families` are the numbers of
    /// records and indexes.
    pub fn writing(&self, batch: &WriteBatch, families: [u32; 2]) -> RwLockReadGuard<'_, ()> {
        let guard = self.writes.read();
        if self.any.load(Ordering::Acquire) {
            let mut state = self.state.lock();
            let mut shorten = Shorten { state: &mut state, families, changed: false };
            batch.iterate_cf(&mut shorten);
            if shorten.changed {
                self.tidy(&mut state);
            }
        }
        guard
    }

    /// Keys come that no batch has. The guard is to be held until they are there.
    pub fn ingesting(&self) -> RwLockReadGuard<'_, ()> {
        let guard = self.writes.read();
        let mut state = self.state.lock();
        (state.gaps, state.walking) = Default::default();
        self.tidy(&mut state);
        guard
    }

    /// Where a seek for `key` may begin instead; `exclusive`: the key itself is not wanted.
    pub fn beyond(&self, way: &Way<'_>, key: &[u8], exclusive: bool) -> Option<FullKey> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let state = self.state.lock();
        let mut at: Option<&FullKey> = None;
        // One may begin where another ends.
        let pass = |gap: &Gap| gap.cf == way.cf && gap.number <= way.known;
        if way.forward {
            for gap in state.gaps.iter().filter(|gap| pass(gap)) {
                if gap.holds(way.cf, at.map_or(key, |at| at)) {
                    at = Some(&gap.to);
                }
            }
        } else {
            for gap in state.gaps.iter().rev().filter(|gap| pass(gap)) {
                let here = at.map_or(key, |at| at);
                // No key that lives is where another begins.
                let behind = here == &gap.to[..] && (exclusive || at.is_some());
                if &gap.from[..] < here && (here < &gap.to[..] || behind) {
                    at = Some(&gap.from);
                }
            }
        }
        at.cloned()
    }

    /// The beginning of a seek, if it is to be looked at how long it takes.
    pub fn look() -> Option<Instant> {
        thread_local!(static SEEKS: Cell<u32> = const { Cell::new(0) });
        let seeks = SEEKS.get().wrapping_add(1);
        SEEKS.set(seeks);
        seeks.is_multiple_of(LOOK).then(Instant::now)
    }

    /// Whether a seek that took so long is to be done once more.
    pub fn is_to_learn(&self, took: Duration) -> bool {
        if took < SLOW {
            return false;
        }
        let now = self.began.get_or_init(Instant::now).elapsed().as_micros() as u64;
        let last = self.learned_micros.load(Ordering::Relaxed);
        let due = last == 0 || now >= last + self.pause_micros.load(Ordering::Relaxed);
        due && self
            .learned_micros
            .compare_exchange(last, now.max(1), Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// Seeks from `key` in the newest state, and remembers what is walked over.
    pub fn learn(&self, db: &Db, way: &Way<'_>, key: &[u8], exclusive: bool) {
        // What others have learned since need not be walked over.
        let known = self.beyond(&Way { known: u64::MAX, ..*way }, key, exclusive);
        // Where one begins no key lives, and the next must not lie over it.
        let exclusive = exclusive || known.is_some();
        let key = known.as_deref().unwrap_or(key);
        // The stretch as if nothing lived there; what lies beyond the reader's range is not walked over.
        let (from, to) = match way.forward {
            true => (FullKey::from_slice(key.max(way.lower)), FullKey::from_slice(way.upper)),
            false if exclusive || key >= way.upper => {
                (FullKey::from_slice(way.lower), FullKey::from_slice(key.min(way.upper)))
            }
            false => (FullKey::from_slice(way.lower), above(key)),
        };
        let Some(announced) = self.announce(Gap { cf: way.cf, from, to, number: 0, open: false }) else {
            return;
        };
        let go = |most: u64| {
            let mut options = ReadOptions::default();
            options.set_iterate_lower_bound(way.lower);
            options.set_iterate_upper_bound(way.upper);
            // It fails where it has walked over more than that.
            options.set_max_skippable_internal_keys(most);
            let mut iter = db.raw().raw_iterator_cf_opt(db.cf(way.cf), options);
            if way.forward {
                iter.seek(key);
            } else {
                iter.seek_for_prev(key);
                if exclusive && iter.key() == Some(key) {
                    iter.prev();
                }
            }
            iter.status().map(|()| {
                iter.key().map(|found| if way.forward { FullKey::from_slice(found) } else { above(found) })
            })
        };
        // It may have been slow for another reason.
        let are_many = go(LEAST).is_err_and(|error| error.kind() == ErrorKind::Incomplete);
        let found = if are_many { go(0).ok() } else { None };
        let pause = if are_many { PAUSE_MICROS } else { self.pause_micros.load(Ordering::Relaxed) * 2 };
        self.pause_micros.store(pause.clamp(PAUSE_MICROS, PAUSE_MICROS_MAX), Ordering::Relaxed);
        self.walked_over(announced, way.forward, found);
    }

    /// Notes that a stretch will be walked over, and gives its number. `None`: somebody writes at this moment, or walks.
    fn announce(&self, gap: Gap) -> Option<u64> {
        let _nobody_writes = self.writes.try_write()?;
        let mut state = self.state.lock();
        if gap.from >= gap.to || state.walking.iter().any(|other| other.cf == gap.cf) {
            return None;
        }
        state.announced += 1;
        let number = state.announced;
        state.walking.push(Gap { number, ..gap });
        self.tidy(&mut state);
        Some(number)
    }

    /// A stretch that was announced has been walked over, up to a key that lives, if there is one; or it was not worth it.
    fn walked_over(&self, announced: u64, forward: bool, found: Option<Option<FullKey>>) {
        let mut state = self.state.lock();
        // Who has written meanwhile has shortened it, or taken it away.
        let Some(at) = state.walking.iter().position(|gap| gap.number == announced) else { return };
        let mut gap = state.walking.remove(at);
        match (forward, &found) {
            (true, Some(Some(found))) if *found < gap.to => gap.to = found.clone(),
            (false, Some(Some(found))) => gap.from = found.clone(),
            (_, Some(None)) => gap.open = true,
            _ => {}
        }
        if found.is_some() && gap.from < gap.to {
            gap.number = self.walked.fetch_add(1, Ordering::AcqRel) + 1;
            let gaps = &mut state.gaps;
            gaps.retain(|other| other.cf != gap.cf || other.to <= gap.from || gap.to <= other.from);
            let at = gaps.partition_point(|other| (other.cf, &other.from) < (gap.cf, &gap.from));
            gaps.insert(at, gap);
        }
        self.tidy(&mut state);
    }

    /// Forgets those that hold nothing, and some where there are too many.
    fn tidy(&self, state: &mut State) {
        state.gaps.retain(|gap| gap.from < gap.to);
        state.walking.retain(|gap| gap.from < gap.to);
        while state.gaps.len() > MOST {
            make_room(&mut state.gaps);
        }
        self.any.store(!state.gaps.is_empty() || !state.walking.is_empty(), Ordering::Release);
    }
}

/// Makes one of two that follow one another, of the oldest such; else the oldest is forgotten.
fn make_room(gaps: &mut Vec<Gap>) {
    let pairs = gaps.windows(2).enumerate().filter_map(|(at, pair)| {
        let [one, other] = pair else { return None };
        let follow = one.cf == other.cf && one.to == other.from && !one.open && !other.open;
        follow.then(|| (one.number.max(other.number), at))
    });
    if let Some((number, at)) = pairs.min() {
        gaps[at].to = gaps.remove(at + 1).to;
        gaps[at].number = number;
    } else if let Some((_, at)) = gaps.iter().enumerate().map(|(at, gap)| (gap.number, at)).min() {
        gaps.remove(at);
    }
}

/// Takes keys that are written out of stretches: what lies before them stays.
struct Shorten<'g> {
    state: &'g mut State,
    families: [u32; 2],
    changed: bool,
}

impl WriteBatchIteratorCf for Shorten<'_> {
    fn put_cf(&mut self, family: u32, key: &[u8], _: &[u8]) {
        let [records, indexes] = self.families;
        let cf = match family {
            _ if family == records => Cf::Records,
            _ if family == indexes => Cf::Indexes,
            _ => return,
        };
        let State { gaps, walking, .. } = &mut *self.state;
        let next = gaps.partition_point(|gap| (gap.cf, &gap.from[..]) <= (cf, key));
        let last = next.checked_sub(1).and_then(|at| gaps.get_mut(at));
        for gap in last.into_iter().chain(walking).filter(|gap| gap.holds(cf, key)) {
            gap.to = FullKey::from_slice(key);
            self.changed = true;
        }
    }

    fn delete_cf(&mut self, _: u32, _: &[u8]) {}

    fn merge_cf(&mut self, family: u32, key: &[u8], value: &[u8]) {
        self.put_cf(family, key, value);
    }
}

fn above(key: &[u8]) -> FullKey {
    let mut above = FullKey::from_slice(key);
    above.push(0);
    above
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::super::{IterCell, SnapshotCell};
    use super::*;
    use crate::options::Options;

    const KEYS: u16 = 300;

    fn open() -> (tempfile::TempDir, Arc<Db>) {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), &Options::new(dir.path())).unwrap();
        (dir, Arc::new(db))
    }

    fn key(number: u16) -> [u8; 2] {
        number.to_be_bytes()
    }

    fn write(db: &Db, cf: Cf, puts: &[u16], deletes: &[u16]) {
        let mut batch = WriteBatch::default();
        puts.iter().for_each(|number| batch.put_cf(db.cf(cf), key(*number), b"value"));
        deletes.iter().for_each(|number| batch.delete_cf(db.cf(cf), key(*number)));
        db.write(batch).unwrap();
    }

    /// The key that a seek finds, through gaps or without them.
    fn sought(
        db: &Arc<Db>,
        snapshot: &SnapshotCell,
        way: &Way<'_>,
        at: &[u8],
        exclusive: bool,
        plain: bool,
    ) -> Option<Vec<u8>> {
        let mut options = snapshot.read_options();
        options.set_iterate_lower_bound(way.lower);
        options.set_iterate_upper_bound(way.upper);
        let mut cell = IterCell::open(db, way.cf, options, snapshot.pin().clone());
        let mut found = match plain {
            false => cell.seek(way, at, exclusive).unwrap(),
            true => {
                cell.step(|iter| if way.forward { iter.seek(at) } else { iter.seek_for_prev(at) }).unwrap()
            }
        };
        if found && exclusive && cell.key() == Some(at) {
            found = cell.step(|iter| if way.forward { iter.next() } else { iter.prev() }).unwrap();
        }
        cell.key().filter(|_| found).map(<[u8]>::to_vec)
    }

    fn first(db: &Arc<Db>, snapshot: &SnapshotCell) -> Option<Vec<u8>> {
        let (lower, upper) = (key(0), key(KEYS));
        let way =
            Way { cf: Cf::Indexes, forward: true, lower: &lower, upper: &upper, known: snapshot.known() };
        sought(db, snapshot, &way, &lower, false, false)
    }

    #[test]
    fn a_queue_is_not_walked_over_from_its_beginning() {
        let (_dir, db) = open();
        let all: Vec<u16> = (0..KEYS).collect();
        write(&db, Cf::Indexes, &all, &[]);
        let mut begins = 0;
        for number in 0..KEYS - 1 {
            write(&db, Cf::Indexes, &[], &[number]);
            let snapshot = SnapshotCell::take(&db);
            assert_eq!(first(&db, &snapshot), Some(key(number + 1).to_vec()));
            let (lower, upper) = (key(0), key(KEYS));
            let way =
                Way { cf: Cf::Indexes, forward: true, lower: &lower, upper: &upper, known: snapshot.known() };
            let beyond = db.gaps.beyond(&way, &lower, false);
            // One key alone is not worth it.
            begins += u32::from(beyond.is_some_and(|at| at[..] >= key(number.saturating_sub(1))[..]));
        }
        assert!(begins >= u32::from(KEYS) - 4, "each begins where one before it has ended: {begins}");
    }

    #[test]
    fn an_older_snapshot_sees_what_has_been_deleted_since() {
        let (_dir, db) = open();
        write(&db, Cf::Indexes, &[1, 2, 3, 9], &[]);
        write(&db, Cf::Indexes, &[], &[1]);
        let before = SnapshotCell::take(&db);
        assert_eq!(first(&db, &before), Some(key(2).to_vec()));
        write(&db, Cf::Indexes, &[], &[2, 3]);
        let after = SnapshotCell::take(&db);
        assert_eq!(first(&db, &after), Some(key(9).to_vec()));
        assert_eq!(first(&db, &before), Some(key(2).to_vec()));
        // What is added is found, and not by who cannot see it.
        let between = SnapshotCell::take(&db);
        write(&db, Cf::Indexes, &[2], &[]);
        assert_eq!(first(&db, &SnapshotCell::take(&db)), Some(key(2).to_vec()));
        assert_eq!(first(&db, &between), Some(key(9).to_vec()));
    }

    /// One writes, others read through gaps what they read without them at the same snapshot.
    #[test]
    fn nothing_is_passed_over() {
        let (_dir, db) = open();
        let used = AtomicU32::new(0);
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for seed in 1..=2 {
                let (db, used, ends) = (&db, &used, &ends);
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(seed);
                    while !ends.load(Ordering::Relaxed) {
                        let snapshot = SnapshotCell::take(db);
                        for _ in 0..4 {
                            let cf = if random.random() { Cf::Records } else { Cf::Indexes };
                            let (lower, upper) =
                                (key(random.random_range(0..20)), key(KEYS - random.random_range(0..20)));
                            let forward = random.random();
                            let way =
                                Way { cf, forward, lower: &lower, upper: &upper, known: snapshot.known() };
                            let (at, exclusive) = match random.random_range(0..3) {
                                0 => (key(random.random_range(0..KEYS)), random.random()),
                                _ if forward => (lower, false),
                                _ => (upper, true),
                            };
                            used.fetch_add(
                                u32::from(db.gaps.beyond(&way, &at, exclusive).is_some()),
                                Ordering::Relaxed,
                            );
                            let through = sought(db, &snapshot, &way, &at, exclusive, false);
                            let plain = sought(db, &snapshot, &way, &at, exclusive, true);
                            assert_eq!(
                                through,
                                plain,
                                "{cf:?} {forward} {at:?} {exclusive} {:?}",
                                db.gaps.state.lock().gaps
                            );
                        }
                    }
                });
            }
            let mut random = StdRng::seed_from_u64(3);
            for round in 0..30_000u32 {
                let cf = if random.random() { Cf::Records } else { Cf::Indexes };
                // Mostly empty, so that there are long stretches; now and then something within.
                let some = |random: &mut StdRng, count: usize| -> Vec<u16> {
                    (0..count).map(|_| random.random_range(0..KEYS)).collect()
                };
                let puts = some(&mut random, usize::from(round % 3 == 0));
                let deletes = some(&mut random, 3);
                write(&db, cf, &puts, &deletes);
                if round % 4 == 0 {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
            ends.store(true, Ordering::Relaxed);
        });
        let used = used.into_inner();
        assert!(used > 1000, "gaps are hardly used: {used} times");
    }
}
