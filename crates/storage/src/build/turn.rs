//! Who may write to an index that is being built.
//!
//! The build does, until the log says that it is over: the primary's own commit says so, or an entry that a member which
//! follows applies. From then on a build that is still at work must not touch the index any more, which others read, or
//! whose number is gone. So every write of a build to the index's place is made with its [`Turn`].
//!
//! Whoever applies entries waits, the pipeline held, for a build's files; so a build
//! never waits for the pipeline (for room in memtables neither) before its files are in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use sheaf_errors::{Code, Error, Result};
use uuid::Uuid;

use crate::catalog::{Catalog, Collection};
use crate::critical::must;
use crate::index::Index;
use crate::order::{Condvar, Mutex, rank};

/// How far a build is, as far as others must know.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The index's place is empty: the build reads and sorts.
    Filling,
    /// The index has what the snapshot showed.
    Filled,
    Ended,
}

/// See the module.
pub(crate) struct Turn {
    collection: Arc<Collection>,
    pub id: Uuid,
    idents: Vec<u32>,
    phase: Mutex<{ rank::TURN }, Phase>,
    changed: Condvar,
    /// [`Phase::Ended`], for those who may hold the phase's lock.
    over: AtomicBool,
}

impl Turn {
    /// Whether it has ended, or is about to: known without a lock.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Does what writes to the index's place. A disk that is slow is waited for with the lock held: that is its purpose.
    ///
    /// Errors: `IndexBuildAborted` if the build is over.
    pub fn write<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let phase = self.phase.lock();
        if *phase == Phase::Ended { Err(self.aborted()) } else { work() }
    }

    /// Like [`Turn::write`]; what is done makes the index hold what the snapshot showed.
    pub fn fill(&self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut phase = self.phase.lock();
        if *phase == Phase::Ended {
            return Err(self.aborted());
        }
        work()?;
        *phase = Phase::Filled;
        self.changed.notify_all();
        Ok(())
    }

    #[cfg(test)]
    pub fn is_filled(&self) -> bool {
        *self.phase.lock() == Phase::Filled
    }

    pub fn has_ended(&self) -> bool {
        *self.phase.lock() == Phase::Ended
    }

    /// Nothing is written with this turn when this returns, nor later.
    pub fn end(&self) {
        self.over.store(true, Ordering::Release);
        *self.phase.lock() = Phase::Ended;
        self.changed.notify_all();
    }

    /// [`Turn::end`], when the files are in or will not come. Returns whether they are in.
    fn end_filled(&self) -> bool {
        let mut phase = self.phase.lock();
        while *phase == Phase::Filling {
            self.changed.wait(&mut phase);
        }
        let filled = *phase == Phase::Filled;
        self.over.store(true, Ordering::Release);
        *phase = Phase::Ended;
        self.changed.notify_all();
        filled
    }

    /// Waits for a change, but not long.
    pub fn wait(&self, patience: Duration) {
        let mut phase = self.phase.lock();
        if *phase != Phase::Ended {
            self.changed.wait_for(&mut phase, patience);
        }
    }

    /// The error of a build that the log has ended.
    pub fn aborted(&self) -> Error {
        let (id, namespace) = (&self.id, &self.collection.namespace);
        let text = format!("Index build aborted: {id}: an index or collection {namespace} was dropped");
        Error::new(Code::INDEX_BUILD_ABORTED, text)
    }

    fn builds(&self, ident: u32) -> bool {
        self.idents.contains(&ident)
    }

    /// Whether the catalog still has the indexes, unfinished.
    fn is_wanted(&self, catalog: &Catalog) -> bool {
        let Some(now) = catalog.by_uuid(&self.collection.uuid) else { return false };
        let wanted = |ident: &u32| now.maintained().any(|index| index.ident == *ident && !index.ready);
        self.idents.iter().all(wanted)
    }
}

/// The builds at work here.
#[derive(Default)]
pub(crate) struct Builds {
    /// How many of those that commands run have a place.
    at_work: AtomicUsize,
    turns: Mutex<{ rank::LEAF }, Vec<Arc<Turn>>>,
    /// Threads of builds that no command runs.
    threads: Mutex<{ rank::LEAF }, Vec<JoinHandle<()>>>,
}

impl Builds {
    /// Notes a build that begins. `filled` says that the index has what a snapshot showed already.
    pub fn begin(&self, collection: &Arc<Collection>, indexes: &[Arc<Index>], filled: bool) -> Arc<Turn> {
        must!(!indexes.is_empty(), "an index build of {} builds nothing", collection.namespace);
        let turn = Arc::new(Turn {
            collection: collection.clone(),
            id: Uuid::new_v4(),
            idents: indexes.iter().map(|index| index.ident).collect(),
            phase: Mutex::new(if filled { Phase::Filled } else { Phase::Filling }),
            changed: Condvar::new(),
            over: AtomicBool::new(false),
        });
        self.turns.lock().push(turn.clone());
        turn
    }

    /// Ends a build, and forgets it.
    pub fn forget(&self, ended: &Arc<Turn>) {
        ended.end();
        self.turns.lock().retain(|turn| !Arc::ptr_eq(turn, ended));
    }

    /// Whether somebody here builds the index.
    pub fn has(&self, ident: u32) -> bool {
        self.turns.lock().iter().any(|turn| turn.builds(ident))
    }

    pub fn count(&self) -> usize {
        self.turns.lock().len()
    }

    /// How many of those that commands run have a place: see [`super::admission`].
    pub(super) fn at_work(&self) -> &AtomicUsize {
        &self.at_work
    }

    /// Notes a thread, for [`Builds::join`].
    pub fn add_thread(&self, thread: JoinHandle<()>) {
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
    }

    /// Waits for the threads to end; they have been told.
    pub fn join(&self) {
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // A thread that panicked has said so already.
            let _ = thread.join();
        }
    }

    fn of(&self, wanted: impl Fn(&Turn) -> bool) -> Vec<Arc<Turn>> {
        self.turns.lock().iter().filter(|turn| wanted(turn)).cloned().collect()
    }

    /// Ends the build of an index that the log says is finished. Returns whether it has filled the index.
    pub fn end_filled(&self, ident: u32) -> bool {
        // All must end, so no short cut.
        let ended = self.of(|turn| turn.builds(ident)).into_iter().map(|turn| turn.end_filled());
        ended.fold(false, |any, filled| any | filled)
    }

    /// Ends builds whose indexes the catalog does not have any more, or has as finished ones.
    pub fn end_unwanted(&self, catalog: &Catalog) {
        self.of(|turn| !turn.is_wanted(catalog)).iter().for_each(|turn| turn.end());
    }

    /// A phase of the build of an index, for tests.
    #[cfg(test)]
    pub fn is_filled(&self, ident: u32) -> bool {
        self.of(|turn| turn.builds(ident)).iter().any(|turn| turn.is_filled())
    }
}
