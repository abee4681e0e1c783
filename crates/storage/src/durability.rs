//! When commits are on stable storage: the sync thread, and those who wait for it.
//!
//! One sync serves everybody who asked before it began; appends go on while it runs. A lone waiter
//! syncs by itself, which saves it two thread switches.

use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use sheaf_errors::{Code, Error, Result};

use crate::core::Core;
use crate::hooks::HookPoint;
use crate::options::Interrupt;

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
    wanted: u64,
    stop: bool,
}

#[derive(Default)]
pub(crate) struct Durability {
    state: Mutex<State>,
    /// Wakes the sync thread.
    work: Condvar,
    /// Wakes blocking waiters after each sync.
    synced: Condvar,
    /// Held by whoever syncs.
    syncing: Mutex<()>,
    unsynced: AtomicBool,
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
        let flushed = self.flushed.lock().index;
        self.log.as_ref().map_or(flushed, |log| log.durable_index().max(flushed))
    }

    /// Syncs now, unless somebody is at it; returns whether it did.
    fn try_sync(&self) -> Option<Result<()>> {
        let _syncing = self.durability.syncing.try_lock()?;
        Some(self.sync_log())
    }

    /// One sync, and everybody told whom it serves.
    fn sync_log(&self) -> Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        self.durability.unsynced.store(false, Ordering::Release);
        let hooked = self.hooks.call(HookPoint::Sync).map_err(|error| error.to_string());
        let synced = hooked.and_then(|()| log.sync().map_err(|error| error.to_string()));
        let result = synced.map_err(|error| {
            self.fail(&error);
            Error::new(Code::LOG_WRITE_FAILED, error)
        });
        self.tell(result.as_ref().err());
        result.map(|_| ())
    }

    /// Tells waiters that the log is durable further, or never will be.
    pub fn tell(&self, error: Option<&Error>) {
        let durable = self.durable_index();
        let mut ready = Vec::new();
        {
            let mut state = self.durability.state.lock();
            while state.waiters.peek().is_some_and(|w| error.is_some() || w.index <= durable) {
                ready.extend(state.waiters.pop());
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
            match self.try_sync() {
                Some(result) => result?,
                None => {
                    let mut state = self.durability.state.lock();
                    if self.durable_index() < index {
                        self.durability.synced.wait_for(&mut state, Duration::from_millis(20));
                    }
                }
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
        if self.log.is_some()
            && !self.is_failed()
            && self.durability.state.lock().waiters.is_empty()
            && let Some(syncing) = self.durability.syncing.try_lock()
        {
            let mut result = Ok(());
            (self.options.block)(&mut || result = self.sync_log());
            drop(syncing);
            return done(result);
        }
        self.on_durable_later(index, done);
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
        state.wanted = state.wanted.max(index);
        state.waiters.push(Waiter { index, done });
        drop(state);
        self.durability.work.notify_one();
    }

    /// The sync thread: at once for those who wait, every commit interval for the rest.
    pub fn run_syncs(&self) {
        loop {
            let mut state = self.durability.state.lock();
            if state.stop {
                return;
            }
            if state.wanted <= self.durable_index() || self.is_failed() {
                self.durability.work.wait_for(&mut state, self.options.journal_commit_interval);
            }
            let asked = state.wanted > self.durable_index();
            if state.stop {
                return;
            }
            drop(state);
            if asked || self.durability.unsynced.load(Ordering::Acquire) {
                let _syncing = self.durability.syncing.lock();
                if self.is_failed() {
                    let error = self.check_writable().err();
                    self.tell(error.as_ref());
                } else if let Err(error) = self.sync_log() {
                    tracing::error!(%error, "the log cannot be synced; writes are refused from now on");
                }
            }
        }
    }
}
