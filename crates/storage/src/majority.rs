//! States that a majority of the set has: what `readConcern: "majority"` and snapshot reads see.
//!
//! A member shows an entry to local readers before the set has committed it. So after every unit that it carries out it
//! keeps a snapshot, with the catalog that belongs to it; when the commit point has come that far, the snapshot is the
//! state that majority readers get. The pipeline is held while a snapshot is taken, so it is exactly at its entry.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::catalog::Catalog;
use crate::core::Core;
use crate::db::SnapshotCell;
use crate::order::{Mutex, rank};
use crate::view::{SnapshotState, View};

/// More states that wait for the commit point than this are thinned out.
const WAITING_MAX: usize = 512;

/// Committed states kept for readers who name a time.
const PAST_MAX: usize = 64;

/// How long after its last use a state that a reader has named, or was given the time of, can be named again
/// (MongoDB's `minSnapshotHistoryWindowInSeconds`).
const PAST_AGE: Duration = Duration::from_secs(300);

/// One state.
#[derive(Clone)]
struct Kept {
    index: u64,
    time: u64,
    /// Time of the state right before it, if that is known: times between belong to this one.
    after: Option<u64>,
    snapshot: Arc<SnapshotCell>,
    catalog: Arc<Catalog>,
}

impl Kept {
    fn holds(&self, time: u64) -> bool {
        self.time == time || (time < self.time && self.after.is_some_and(|after| after < time))
    }

    fn view(&self, core: &Arc<Core>) -> View {
        View::of(SnapshotState::of(core, self.snapshot.clone(), self.time), self.catalog.clone())
    }
}

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

impl Core {
    /// Keeps the newest state until the set has committed it. The pipeline is held.
    pub fn note_majority_candidate(&self) {
        let last = *self.last.lock();
        let mut states = self.majority.0.lock();
        let before = states.waiting.back().or(states.current.as_ref());
        if before.is_some_and(|before| before.index >= last.index) {
            return;
        }
        let after = before.filter(|before| before.index + 1 == last.index).map(|before| before.time);
        let snapshot = Arc::new(SnapshotCell::take(&self.db));
        let catalog = self.catalog.load_full();
        states.waiting.push_back(Kept { index: last.index, time: last.time, after, snapshot, catalog });
        if states.waiting.len() > WAITING_MAX {
            let newest = states.waiting.len() - 1;
            let mut at = 0;
            states.waiting.retain(|_| {
                at += 1;
                at % 2 == 0 || at > newest
            });
        }
    }

    /// The commit point has come to this index.
    pub fn majority_committed(&self, index: u64) {
        let mut states = self.majority.0.lock();
        let mut gone = Vec::new();
        while states.waiting.front().is_some_and(|kept| kept.index <= index) {
            let kept = states.waiting.pop_front();
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
        if let Some(oplog) = &self.oplog {
            oplog.collection.state.wake();
        }
    }

    /// The newest state that the set has committed; `None` before anything was committed since the start.
    pub fn majority_view(self: &Arc<Self>) -> Option<View> {
        self.majority.0.lock().current.as_ref().map(|kept| kept.view(self))
    }

    /// The same, whose time can be named for some minutes.
    pub fn snapshot_view(self: &Arc<Self>) -> Option<View> {
        let mut states = self.majority.0.lock();
        states.forget_old();
        let current = states.current.clone()?;
        if !states.past.iter().any(|(kept, _, named)| *named && kept.index == current.index) {
            states.past.push_back((current.clone(), Instant::now(), true));
        }
        Some(current.view(self))
    }

    /// The committed state at a cluster time, if it is still kept.
    pub fn view_at(self: &Arc<Self>, time: u64) -> Option<View> {
        let mut states = self.majority.0.lock();
        states.forget_old();
        if let Some((kept, used, named)) = states.past.iter_mut().find(|(kept, ..)| kept.holds(time)) {
            (*used, *named) = (Instant::now(), true);
            return Some(kept.view(self));
        }
        let current = states.current.clone().filter(|kept| kept.holds(time))?;
        states.past.push_back((current.clone(), Instant::now(), true));
        Some(current.view(self))
    }
}
