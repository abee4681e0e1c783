//! States that a majority of the set has: what `readConcern: "majority"` and snapshot reads see.
//!
//! A member shows an entry to local readers before the set has committed it. So after every unit that it applies it
//! keeps a snapshot, with the catalog that belongs to it; when the commit point has come that far, the snapshot is the
//! state that majority readers get. The pipeline is held while a snapshot is taken, so it is exactly at its entry.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sheaf_bson::Value;

use crate::catalog::Catalog;
use crate::critical::must;
use crate::db::SnapshotCell;
use crate::oplog::{self, LogEntry};
use crate::order::{Mutex, rank};
use crate::read::published::Published;
use crate::read::view::{SnapshotState, View};

/// More states that wait for the commit point than this are thinned out.
const WAITING_MAX: usize = 512;

/// So many are left when flushes go ahead of the commit point.
const WAITING_AHEAD: usize = 16;

/// Committed states kept for readers who name a time.
const PAST_MAX: usize = 64;

/// The same, where all of the last moments are kept.
const HISTORY_MAX: usize = 16 << 10;

/// When the operations of a unit were: nobody has their states one by one.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    /// Index of its first entry.
    index: u64,
    /// Time of the first operation of that.
    begins: u64,
    /// Time of the first operation of its last entry.
    last_begins: u64,
}

impl Span {
    pub fn of(entries: &[LogEntry]) -> Option<Span> {
        let begins = |entry: &LogEntry| {
            let first = oplog::documents(&entry.payload).next().and_then(|doc| doc.get("ts"));
            if let Some(Value::Timestamp(ts)) = first { ts.0 } else { entry.time }
        };
        let (first, last) = (entries.first()?, entries.last()?);
        Some(Span { index: first.index, begins: begins(first), last_begins: begins(last) })
    }
}

/// One state.
#[derive(Clone)]
struct Kept {
    index: u64,
    time: u64,
    /// Time of the first operation of its entry. Those that were committed in one group are seen all or none.
    begins: u64,
    /// Time of the first operation after it, if that is known: times between belong to this state.
    until: Arc<AtomicU64>,
    /// [`Recent::sequence`](crate::commit::recent::Recent::sequence): what came later is not in it.
    start: u64,
    snapshot: Arc<SnapshotCell>,
    catalog: Arc<Catalog>,
}

impl Kept {
    fn holds(&self, time: u64) -> bool {
        (self.begins <= time && time <= self.time)
            || (self.time < time && time < self.until.load(Ordering::Acquire))
    }

    fn found(&self, published: &Arc<Published>) -> Found {
        let at = SnapshotState::of(published, self.snapshot.clone(), self.time);
        Found { view: View::of(at, self.catalog.clone()), index: self.index, start: self.start }
    }
}

/// The states that the set has committed, and those that wait for it.
#[derive(Default)]
pub(crate) struct Majority(Mutex<{ rank::MAJORITY }, States>);

/// A state that was found.
#[derive(Clone)]
pub(crate) struct Found {
    pub view: View,
    /// Index of its last entry.
    pub index: u64,
    /// [`Recent::sequence`](crate::commit::recent::Recent::sequence) there.
    pub start: u64,
}

#[derive(Default)]
struct States {
    /// Not yet committed, oldest first.
    waiting: VecDeque<Kept>,
    /// The newest one that is.
    current: Option<Kept>,
    /// Earlier ones, with the time at which they ceased to be the newest.
    past: VecDeque<(Kept, Instant)>,
    /// What is kept for those who have named the time, or were told it, and until when.
    named: BTreeMap<u64, (Found, Instant)>,
    /// For how long all are kept.
    window: Duration,
}

impl States {
    /// The state at a time. Nothing that is not applied is at or below that if it is `final`, which says that the state after the
    /// newest entry is the one.
    fn at(&self, time: u64, is_final: bool, with_waiting: bool) -> Option<&Kept> {
        let waiting = || self.waiting.iter().rev().filter(|_| with_waiting);
        let past = || self.past.iter().rev().map(|(kept, _)| kept);
        let found = waiting().chain(&self.current).chain(past()).find(|kept| kept.begins <= time)?;
        let newest =
            self.waiting.back().or(self.current.as_ref()).is_some_and(|kept| kept.index == found.index);
        (found.holds(time) || (is_final && newest)).then_some(found)
    }

    /// Takes out what was named, and was to be kept until now.
    fn forget_named(&mut self, now: Instant) -> Vec<(Found, Instant)> {
        let old = self.named.iter().filter(|(_, (_, until))| *until <= now);
        let old: Vec<u64> = old.map(|(time, _)| *time).collect();
        old.iter().filter_map(|time| self.named.remove(time)).collect()
    }

    /// Takes out what is too old, and gives the index of the oldest state that is left.
    fn forget_old(&mut self, gone: &mut Vec<Kept>) -> u64 {
        while let Some((_, since)) = self.past.front()
            && self.past.len() > PAST_MAX
            && (self.past.len() > HISTORY_MAX || since.elapsed() >= self.window)
        {
            gone.extend(self.past.pop_front().map(|(kept, _)| kept));
        }
        let past = self.past.front().map(|(kept, _)| kept);
        past.or(self.current.as_ref()).or(self.waiting.front()).map_or(0, |kept| kept.index)
    }
}

impl Majority {
    /// Keeps the newest state, to which a unit has led, until the set has committed it. The pipeline is held.
    /// Of what came since `start` nothing is in it.
    pub fn note_candidate(&self, published: &Published, unit: Option<Span>, start: u64) {
        let last = published.last();
        let mut states = self.0.lock();
        let before = states.waiting.back().or(states.current.as_ref());
        if before.is_some_and(|before| before.index >= last.index) {
            return;
        }
        if let (Some(before), Some(unit)) = (before, unit)
            && before.index + 1 == unit.index
        {
            before.until.store(unit.begins, Ordering::Release);
        }
        if let Some(before) = before {
            must!(before.time <= last.time, "a state at {last:?} follows one of time {}", before.time);
        }
        let begins = unit.map_or(last.time, |unit| unit.last_begins);
        must!(begins <= last.time, "a state of time {} begins at {begins}", last.time);
        let snapshot = Arc::new(SnapshotCell::take(&published.db));
        let catalog = published.catalog();
        let (index, time, until) = (last.index, last.time, Arc::default());
        states.waiting.push_back(Kept { index, time, begins, until, start, snapshot, catalog });
        if states.waiting.len() > WAITING_MAX {
            let newest = states.waiting.len() - 1;
            let mut at = 0;
            states.waiting.retain(|_| {
                at += 1;
                at % 2 == 0 || at > newest
            });
        }
    }

    /// Keeps few of the states that wait. As long as a snapshot lives compaction keeps what it sees, and the commit point may
    /// stand still for hours.
    pub fn thin_candidates(&self) {
        let mut states = self.0.lock();
        let surplus = states.waiting.len().saturating_sub(1);
        let each = surplus.div_ceil(WAITING_AHEAD).max(1);
        let (mut at, mut kept, mut gone) = (0, VecDeque::new(), Vec::new());
        for state in std::mem::take(&mut states.waiting) {
            at += 1;
            if at % each == 0 || at > surplus { kept.push_back(state) } else { gone.push(state) }
        }
        states.waiting = kept;
        drop(states);
        // Snapshots are given back without the lock.
        drop(gone);
    }

    /// For how long all states are kept.
    pub fn set_window(&self, window: Duration) {
        self.0.lock().window = window;
    }

    /// The commit point has come to this index. Gives the index of the oldest state that is kept.
    pub fn committed(&self, index: u64) -> u64 {
        let mut states = self.0.lock();
        let mut gone = Vec::new();
        while states.waiting.front().is_some_and(|kept| kept.index <= index) {
            let kept = states.waiting.pop_front();
            let (new, old) =
                (kept.as_ref().map(|kept| kept.index), states.current.as_ref().map(|old| old.index));
            must!(new > old, "the set's state goes back from {old:?} to {new:?}");
            if let Some(old) = std::mem::replace(&mut states.current, kept) {
                states.past.push_back((old, Instant::now()));
            }
        }
        let oldest = states.forget_old(&mut gone);
        drop(states);
        // Snapshots are given back without the lock.
        drop(gone);
        oldest
    }

    /// Gives up earlier states that have not been the newest for so long, whoever may ask for them. The newest one is seen by a snapshot of now, if there
    /// is nothing newer: where nobody writes it would keep what was removed since for ever. The pipeline is held. Returns whether no state is left whose
    /// snapshot is from before the entry `since`.
    pub fn forget_past(&self, published: &Published, age: Duration, since: u64) -> bool {
        let now = Instant::now();
        let mut states = self.0.lock();
        let old = states.past.partition_point(|(_, ceased)| now.saturating_duration_since(*ceased) >= age);
        let gone: Vec<_> = states.past.drain(..old).collect();
        let unnamed = states.forget_named(now);
        let mut seen = None;
        if let Some(current) = states.current.as_mut().filter(|kept| kept.index == published.last().index) {
            let fresh = Arc::new(SnapshotCell::take(&published.db));
            seen = Some(std::mem::replace(&mut current.snapshot, fresh));
        }
        let is_new = |kept: &Kept| kept.index >= since;
        let current_is_new = seen.is_some() || states.current.as_ref().is_none_or(is_new);
        let all_new = current_is_new && states.past.is_empty() && states.waiting.iter().all(is_new);
        drop(states);
        // Snapshots are given back without the lock.
        drop((gone, unnamed, seen));
        all_new
    }

    /// Index of the newest state.
    pub fn newest_index(&self) -> u64 {
        let states = self.0.lock();
        states.waiting.back().or(states.current.as_ref()).map_or(0, |kept| kept.index)
    }

    /// Index of the newest state that the set has committed.
    pub fn committed_index(&self) -> u64 {
        self.0.lock().current.as_ref().map_or(0, |kept| kept.index)
    }

    /// Cluster time of the newest state that the set has committed.
    pub fn newest_time(&self) -> Option<u64> {
        self.0.lock().current.as_ref().map(|kept| kept.time)
    }

    /// The newest state that the set has committed; `None` before anything was committed since the start.
    pub fn newest(&self, published: &Arc<Published>) -> Option<Found> {
        self.0.lock().current.as_ref().map(|kept| kept.found(published))
    }

    /// The state at a cluster time, if it is kept. `with_waiting`: also what the set has not committed. `is_final`: no entry that
    /// is not applied has this time or one below it.
    pub fn at(
        &self,
        published: &Arc<Published>,
        time: u64,
        is_final: bool,
        with_waiting: bool,
    ) -> Option<Found> {
        self.0.lock().at(time, is_final, with_waiting).map(|kept| kept.found(published))
    }

    /// A state that was named.
    pub fn named(&self, time: u64) -> Option<Found> {
        let states = self.0.lock();
        let (found, until) = states.named.get(&time)?;
        (*until > Instant::now()).then(|| found.clone())
    }

    /// Keeps the state at a time for so long at least. Gives the one that was there before, if there was one.
    pub fn name(&self, time: u64, found: Found, age: Duration) -> Found {
        let now = Instant::now();
        let mut states = self.0.lock();
        let gone = states.forget_named(now);
        let (found, until) = states.named.entry(time).or_insert((found, now));
        *until = (*until).max(now + age);
        let kept = found.clone();
        drop(states);
        // Snapshots are given back without the lock.
        drop(gone);
        kept
    }
}
