//! States that a majority of the set has: what `readConcern: "majority"` and snapshot reads see.
//!
//! A member shows an entry to local readers before the set has committed it. So after every unit that it applies it
//! keeps a snapshot, with the catalog that belongs to it; when the commit point has come that far, the snapshot is the
//! state that majority readers get. The pipeline is held while a snapshot is taken, so it is exactly at its entry.

use std::collections::VecDeque;
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

/// How long after its last use a state that a reader has named, or was given the time of, can be named again
/// (MongoDB's `minSnapshotHistoryWindowInSeconds`).
const PAST_AGE: Duration = Duration::from_secs(300);

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
    snapshot: Arc<SnapshotCell>,
    catalog: Arc<Catalog>,
}

impl Kept {
    fn holds(&self, time: u64) -> bool {
        (self.begins <= time && time <= self.time)
            || (self.time < time && time < self.until.load(Ordering::Acquire))
    }

    fn view(&self, published: &Arc<Published>) -> View {
        View::of(SnapshotState::of(published, self.snapshot.clone(), self.time), self.catalog.clone())
    }
}

/// The states that the set has committed, and those that wait for it.
#[derive(Default)]
pub(crate) struct Majority(Mutex<{ rank::MAJORITY }, States>);

#[derive(Default)]
struct States {
    /// Not yet committed, oldest first.
    waiting: VecDeque<Kept>,
    /// The newest one that is.
    current: Option<Kept>,
    /// Earlier ones, with the time of their last use; a reader was told the time of those that are `named`.
    past: VecDeque<(Kept, Instant, bool)>,
}

impl States {
    fn forget_old(&mut self) {
        self.past.retain(|(_, used, named)| !*named || used.elapsed() < PAST_AGE);
        let mut surplus = self.past.iter().filter(|(.., named)| !named).count().saturating_sub(PAST_MAX);
        self.past.retain(|(.., named)| {
            let goes = !*named && surplus > 0;
            surplus -= usize::from(goes);
            !goes
        });
    }
}

impl Majority {
    /// Keeps the newest state, to which a unit has led, until the set has committed it. The pipeline is held.
    pub fn note_candidate(&self, published: &Published, unit: Option<Span>) {
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
        states.waiting.push_back(Kept { index, time, begins, until, snapshot, catalog });
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

    /// The commit point has come to this index.
    pub fn committed(&self, index: u64) {
        let mut states = self.0.lock();
        let mut gone = Vec::new();
        while states.waiting.front().is_some_and(|kept| kept.index <= index) {
            let kept = states.waiting.pop_front();
            let (new, old) =
                (kept.as_ref().map(|kept| kept.index), states.current.as_ref().map(|old| old.index));
            must!(new > old, "the set's state goes back from {old:?} to {new:?}");
            if let Some(old) = std::mem::replace(&mut states.current, kept) {
                states.past.push_back((old, Instant::now(), false));
                if states.past.len() > PAST_MAX {
                    gone.extend(
                        states
                            .past
                            .iter()
                            .position(|(.., named)| !named)
                            .and_then(|at| states.past.remove(at)),
                    );
                }
            }
        }
        drop(states);
        // Snapshots are given back without the lock.
        drop(gone);
    }

    /// The newest state that the set has committed; `None` before anything was committed since the start.
    pub fn view(&self, published: &Arc<Published>) -> Option<View> {
        self.0.lock().current.as_ref().map(|kept| kept.view(published))
    }

    /// The same, whose time can be named for some minutes.
    pub fn snapshot_view(&self, published: &Arc<Published>) -> Option<View> {
        let mut states = self.0.lock();
        states.forget_old();
        let current = states.current.clone()?;
        if !states.past.iter().any(|(kept, _, named)| *named && kept.index == current.index) {
            states.past.push_back((current.clone(), Instant::now(), true));
        }
        Some(current.view(published))
    }

    /// The committed state at a cluster time, if it is still kept.
    pub fn view_at(&self, published: &Arc<Published>, time: u64) -> Option<View> {
        let mut states = self.0.lock();
        states.forget_old();
        if let Some((kept, used, named)) = states.past.iter_mut().find(|(kept, ..)| kept.holds(time)) {
            (*used, *named) = (Instant::now(), true);
            return Some(kept.view(published));
        }
        let current = states.current.clone().filter(|kept| kept.holds(time))?;
        states.past.push_back((current.clone(), Instant::now(), true));
        Some(current.view(published))
    }
}
