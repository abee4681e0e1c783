//! When commits are on stable storage: the sync thread, and those who wait for it.
//!
//! One sync serves everybody who asked before it began; appends go on while it runs. A lone waiter
//! syncs by itself, which saves it two thread switches. Who asks during a sync is served by the next one, for all of them.

use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sheaf_errors::{Code, Error, Result};
use smallvec::SmallVec;

use crate::core::Core;
use crate::hooks::HookPoint;
use crate::options::Interrupt;
use crate::order::{Condvar, Mutex, rank};

type Done = Box<dyn FnOnce(Result<()>) + Send>;

struct Waiter {
    index: u64,
    done: Done,
}

impl PartialEq for Waiter {
    fn eq(&self, other: &Self) -> bool {
        self.index == other.index
    }
}
impl Eq for Waiter {}
impl PartialOrd for Waiter {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Waiter {
    /// Lowest index first out of the heap.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.index.cmp(&self.index)
    }
}

#[derive(Default)]
struct State {
    waiters: BinaryHeap<Waiter>,
    /// Somebody syncs now; who comes meanwhile is taken care of by the sync thread.
    syncing: bool,
    stop: bool,
}

#[derive(Default)]
pub(crate) struct Durability {
    state: Mutex<{ rank::DURABILITY }, State>,
    /// Wakes the sync thread.
    work: Condvar,
    /// Wakes blocking waiters after each sync.
    synced: Condvar,
    unsynced: AtomicBool,
    /// Another member waits for the next sync.
    wanted: AtomicBool,
}

impl Durability {
    /// Something was appended that the background sync should see.
    pub fn appended(&self) {
        if !self.unsynced.load(Ordering::Relaxed) {
            self.unsynced.store(true, Ordering::Release);
        }
    }

    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.work.notify_all();
    }
}

impl Core {
    /// Index up to which commits survive a power failure.
    pub fn durable_index(&self) -> u64 {
        match &self.log {
            // What is flushed was in the log before, and synced there.
            Some(log) => log.durable_index(),
            None => self.flushed.lock().index,
        }
    }

    /// Lets the caller sync, unless somebody is at it or others wait.
    fn begin_sync(&self, only_alone: bool) -> bool {
        let mut state = self.durability.state.lock();
        if state.syncing || (only_alone && !state.waiters.is_empty()) {
            return false;
        }
        state.syncing = true;
        true
    }

    /// One sync after [`Core::begin_sync`], and everybody told whom it serves. `waited` says that somebody waits for it.
    fn sync_log(&self, waited: bool) -> Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        self.durability.unsynced.store(false, Ordering::Release);
        self.durability.wanted.store(false, Ordering::Release);
        let hooked = self.hooks.call(HookPoint::Sync).map_err(|error| error.to_string());
        let synced = hooked.and_then(|()| log.sync().map_err(|error| error.to_string()));
        let result = synced.map(|_| ()).map_err(|error| {
            self.fail(&error);
            Error::new(Code::LOG_WRITE_FAILED, error)
        });
        if waited && result.is_ok() {
            log.make_room();
        }
        self.tell(result.as_ref().err(), true);
        self.report_durable();
        result
    }

    /// Has the sync thread sync soon what is in the log now: others wait for this member.
    pub fn ask_for_sync(&self) {
        if !self.durability.wanted.swap(true, Ordering::AcqRel) {
            let _state = self.durability.state.lock();
            self.durability.work.notify_one();
        }
    }

    /// Syncs what is in the log now, on this thread if nobody is at it.
    pub fn sync_for_others(&self) {
        if self.is_failed() || self.log.is_none() || !self.begin_sync(false) {
            return self.ask_for_sync();
        }
        // A failure is remembered, and told to those who wait.
        let _ = self.sync_log(true);
    }

    /// Tells waiters that the log is durable further, or never will be; `synced` ends [`Core::begin_sync`].
    pub fn tell(&self, error: Option<&Error>, synced: bool) {
        let durable = self.durable_index();
        let mut ready: SmallVec<[Waiter; 8]> = SmallVec::new();
        {
            let mut state = self.durability.state.lock();
            if synced {
                state.syncing = false;
            }
            while state.waiters.peek().is_some_and(|w| error.is_some() || w.index <= durable) {
                ready.extend(state.waiters.pop());
            }
            if !state.waiters.is_empty() || self.durability.wanted.load(Ordering::Acquire) {
                self.durability.work.notify_one();
            }
            self.durability.synced.notify_all();
        }
        for waiter in ready {
            (waiter.done)(match error {
                Some(error) if waiter.index > durable => Err(error.clone()),
                _ => Ok(()),
            });
        }
    }

    /// Blocks until commits up to `index` are durable.
    pub fn wait_durable(&self, index: u64, interrupt: Interrupt<'_>) -> Result<()> {
        if self.log.is_none() {
            // Without a journal only a flush makes writes last.
            return if self.durable_index() >= index { Ok(()) } else { self.checkpoint() };
        }
        let mut outcome = Ok(());
        (self.options.block)(&mut || outcome = self.wait_durable_here(index, interrupt));
        outcome
    }

    fn wait_durable_here(&self, index: u64, interrupt: Interrupt<'_>) -> Result<()> {
        while self.durable_index() < index {
            self.check_writable()?;
            interrupt()?;
            if self.begin_sync(false) {
                self.sync_log(true)?;
                continue;
            }
            let mut state = self.durability.state.lock();
            if state.syncing && self.durable_index() < index {
                self.durability.synced.wait_for(&mut state, Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// Calls `done` when commits up to `index` are durable: from the sync thread, or before this returns
    /// if nobody else waits. A lone waiter syncs by itself.
    pub fn on_durable(&self, index: u64, done: Done) {
        if self.durable_index() >= index {
            return done(Ok(()));
        }
        if self.log.is_none() || self.is_failed() || !self.begin_sync(true) {
            return self.on_durable_later(index, done);
        }
        let mut result = Ok(());
        // Even a disk that is quick as a rule may take seconds, in which the thread's other work must go on.
        (self.options.block)(&mut || result = self.sync_log(true));
        done(result)
    }

    /// Like [`Core::on_durable`], but never syncs on the caller's thread.
    pub fn on_durable_later(&self, index: u64, done: Done) {
        if self.durable_index() >= index {
            return done(Ok(()));
        }
        if let Err(error) = self.check_writable() {
            return done(Err(error));
        }
        if self.log.is_none() {
            return done(self.checkpoint());
        }
        let mut state = self.durability.state.lock();
        state.waiters.push(Waiter { index, done });
        // Whoever syncs now wakes the thread when that is over.
        if !state.syncing {
            self.durability.work.notify_one();
        }
    }

    /// The sync thread: at once for those who wait, every commit interval for the rest.
    pub fn run_syncs(&self) {
        let mut last = Instant::now();
        loop {
            let interval = self.tuning.journal_commit_interval();
            let waited = {
                let mut state = self.durability.state.lock();
                if state.stop {
                    return;
                }
                let wanted = || self.durability.wanted.load(Ordering::Acquire);
                if state.syncing || (state.waiters.is_empty() && !wanted()) {
                    self.durability.work.wait_for(&mut state, interval.saturating_sub(last.elapsed()));
                }
                if state.stop {
                    return;
                }
                let waited = !state.waiters.is_empty() || wanted();
                let due = last.elapsed() >= interval;
                if due {
                    last = Instant::now();
                }
                if state.syncing || !(waited || (due && self.durability.unsynced.load(Ordering::Acquire))) {
                    continue;
                }
                state.syncing = true;
                waited
            };
            if self.is_failed() {
                let error = self.check_writable().err();
                self.tell(error.as_ref(), true);
            } else if let Err(error) = self.sync_log(waited) {
                tracing::error!(%error, "the log cannot be synced; writes are refused from now on");
            }
        }
    }
}
