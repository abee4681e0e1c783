//! The log, and what of it is on stable storage: the sync thread, those who wait for it, and whether anything can be
//! promised at all.
//!
//! One sync serves everybody who asked before it began; appends go on while it runs. A lone waiter
//! syncs by itself, which saves it two thread switches. Who asks during a sync is served by the next one, for all of them.

mod ages;
mod knowledge;
mod lead;
mod log_tail;
mod pins;
mod waits;

use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sheaf_errors::{Code, Error, Result};
use sheaf_log::Log;
use smallvec::SmallVec;

use crate::base::Base;
use crate::critical::must;
use crate::hooks::HookPoint;
use crate::options::{Interrupt, OpTime};
use crate::order::{Condvar, Mutex, rank};
use ages::{Ages, Old};
pub(crate) use knowledge::LogKnowledge;
pub use log_tail::LogTail;
pub use pins::LogPin;
use pins::LogPins;

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

/// The owner of the log and of its syncs. Its locks have the ranks [`rank::AWAITING_SYNC`] (units that are not known to be durable) and,
/// within it, [`rank::DURABILITY`] (who waits for syncs); the rest are leaves. It calls no other owner.
pub(crate) struct Durability {
    base: Arc<Base>,
    /// `None` without a journal.
    log: Option<Arc<Log>>,
    state: Mutex<{ rank::DURABILITY }, State>,
    /// Wakes the sync thread.
    work: Condvar,
    /// Wakes blocking waiters after each sync.
    synced: Condvar,
    unsynced: AtomicBool,
    /// Another member waits for the next sync.
    wanted: AtomicBool,
    /// Where there is no log: the index up to which RocksDB's files hold everything.
    in_files: AtomicU64,
    /// Units that were applied and are not known to be durable: their numbers, and where the log ended with them.
    awaiting_sync: Mutex<{ rank::AWAITING_SYNC }, VecDeque<(u64, u64)>>,
    /// Terms of entries, and readers that rest.
    knowledge: LogKnowledge,
    pins: Arc<LogPins>,
    /// `None` until the log's end is known.
    ages: Mutex<{ rank::LEAF }, Option<Ages>>,
    /// How often the log's beginning was removed, and how many microseconds that took.
    truncations: (AtomicU64, AtomicU64),
    /// Nothing is promised any more: no write is taken.
    failed: AtomicBool,
    failure: Mutex<{ rank::LEAF }, Option<String>>,
}

impl Durability {
    /// Of a log that is open; RocksDB's files hold everything up to `in_files`.
    pub fn new(
        base: Arc<Base>,
        log: Option<Arc<Log>>,
        knowledge: LogKnowledge,
        in_files: OpTime,
    ) -> Durability {
        Durability {
            base,
            log,
            state: Mutex::default(),
            work: Condvar::new(),
            synced: Condvar::new(),
            unsynced: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            in_files: AtomicU64::new(in_files.index),
            awaiting_sync: Mutex::default(),
            knowledge,
            pins: Arc::default(),
            ages: Mutex::default(),
            truncations: Default::default(),
            failed: AtomicBool::new(false),
            failure: Mutex::default(),
        }
    }

    /// The log; `None` without a journal.
    pub fn log(&self) -> Option<&Log> {
        self.log.as_deref()
    }

    /// Lets go of a log that an earlier run has left, after it was applied. Whether there was one.
    pub fn close_log(&mut self) -> bool {
        must!(!self.base.options.journal, "a journal is not given up");
        self.log.take().is_some()
    }

    /// What is known of entries without reading them.
    pub fn knowledge(&self) -> &LogKnowledge {
        &self.knowledge
    }

    /// Keeps the log's entries behind this index, while the pin lives.
    pub fn pin_log(&self, index: u64) -> LogPin {
        self.pins.pin(index)
    }

    /// The log ends here as the engine begins to work.
    pub fn begin(&self, last: OpTime) {
        let before = self.ages.lock().replace(Ages::begin(Instant::now(), last.index, last.time));
        must!(before.is_none(), "the engine begins to work once");
    }

    /// Something was appended that the background sync should see.
    pub fn appended(&self) {
        if !self.unsynced.load(Ordering::Relaxed) {
            self.unsynced.store(true, Ordering::Release);
        }
    }

    /// RocksDB's files hold everything up to this index.
    pub fn flushed(&self, index: u64) {
        let before = self.in_files.fetch_max(index, Ordering::AcqRel);
        must!(before <= index, "a flush up to {index} ended after one up to {before}");
    }

    /// Ends the sync thread.
    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.work.notify_all();
    }

    // ---- whether writes are taken ----

    /// Whether writes are refused for good.
    pub fn is_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Refuses all writes from now on.
    pub fn fail(&self, why: &str) {
        if self.refuse_writes(why) {
            tracing::error!(why, "storage refuses writes from now on");
        }
    }

    /// [`Durability::fail`] as a matter of course. Returns whether writes were taken before.
    pub fn refuse_writes(&self, why: &str) -> bool {
        let first = !self.failed.swap(true, Ordering::AcqRel);
        if first {
            *self.failure.lock() = Some(why.to_owned());
        }
        first
    }

    /// Errors: `LogWriteFailed` if writes are refused for good, with the reason.
    pub fn check_writable(&self) -> Result<()> {
        if !self.is_failed() {
            return Ok(());
        }
        let why = self.failure.lock().clone().unwrap_or_default();
        Err(Error::new(Code::LOG_WRITE_FAILED, format!("storage accepts no writes: {why}")))
    }

    /// Maps an error of the log's, remembering when it is for good.
    pub fn log_error(&self, error: sheaf_log::Error) -> Error {
        if error.is_disk_full() {
            return Error::new(Code::OUT_OF_DISK_SPACE, format!("No space left on device: {error}"));
        }
        if self.log().is_some_and(Log::has_failed) {
            self.fail(&error.to_string());
        }
        Error::new(Code::LOG_WRITE_FAILED, error.to_string())
    }

    // ---- syncs ----

    /// Index up to which commits survive a power failure.
    pub fn durable_index(&self) -> u64 {
        match self.log() {
            // What is flushed was in the log before, and synced there.
            Some(log) => log.durable_index(),
            None => self.in_files.load(Ordering::Acquire),
        }
    }

    /// Lets the caller sync, unless somebody is at it or others wait.
    fn begin_sync(&self, only_alone: bool) -> bool {
        let mut state = self.state.lock();
        if state.syncing || (only_alone && !state.waiters.is_empty()) {
            return false;
        }
        state.syncing = true;
        true
    }

    /// One sync after [`Durability::begin_sync`], and everybody told whom it serves. `waited` says that somebody waits for it.
    fn sync_log(&self, waited: bool) -> Result<()> {
        let log = self.log().expect("who syncs has a log");
        self.unsynced.store(false, Ordering::Release);
        self.wanted.store(false, Ordering::Release);
        let hooked = self.base.hooks.call(HookPoint::Sync).map_err(|error| error.to_string());
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
        if !self.wanted.swap(true, Ordering::AcqRel) {
            let _state = self.state.lock();
            self.work.notify_one();
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

    /// RocksDB's files should not get ahead of the log: change streams would miss entries.
    pub fn sync_for_checkpoint(&self) -> Result<()> {
        let Some(log) = self.log() else { return Ok(()) };
        log.sync().map_err(|error| {
            if log.has_failed() {
                self.fail(&error.to_string());
            }
            Error::new(Code::LOG_WRITE_FAILED, error.to_string())
        })?;
        self.tell(None, false);
        self.report_durable();
        Ok(())
    }

    /// Tells waiters that the log is durable further, or never will be; `synced` ends [`Durability::begin_sync`].
    pub fn tell(&self, error: Option<&Error>, synced: bool) {
        let durable = self.durable_index();
        let mut ready: SmallVec<[Waiter; 8]> = SmallVec::new();
        {
            let mut state = self.state.lock();
            if synced {
                must!(state.syncing, "a sync has ended that nobody has begun");
                state.syncing = false;
            }
            while state.waiters.peek().is_some_and(|w| error.is_some() || w.index <= durable) {
                ready.extend(state.waiters.pop());
            }
            if !state.waiters.is_empty() || self.wanted.load(Ordering::Acquire) {
                self.work.notify_one();
            }
            self.synced.notify_all();
        }
        for waiter in ready {
            (waiter.done)(match error {
                Some(error) if waiter.index > durable => Err(error.clone()),
                _ => Ok(()),
            });
        }
    }

    /// Blocks until the log has commits up to `index` on stable storage.
    fn wait_synced(&self, index: u64, interrupt: Interrupt<'_>) -> Result<()> {
        while self.durable_index() < index {
            self.check_writable()?;
            interrupt()?;
            if self.begin_sync(false) {
                self.sync_log(true)?;
                continue;
            }
            let mut state = self.state.lock();
            if state.syncing && self.durable_index() < index {
                self.synced.wait_for(&mut state, Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// Has `done` called by the sync thread.
    fn wait_later(&self, index: u64, done: Done) {
        let mut state = self.state.lock();
        state.waiters.push(Waiter { index, done });
        // Whoever syncs now wakes the thread when that is over.
        if !state.syncing {
            self.work.notify_one();
        }
    }

    /// The sync thread: at once for those who wait, every commit interval for the rest.
    pub fn run_syncs(&self) {
        let mut last = Instant::now();
        loop {
            let interval = self.base.tuning.journal_commit_interval();
            let waited = {
                let mut state = self.state.lock();
                if state.stop {
                    return;
                }
                let wanted = || self.wanted.load(Ordering::Acquire);
                if state.syncing || (state.waiters.is_empty() && !wanted()) {
                    self.work.wait_for(&mut state, interval.saturating_sub(last.elapsed()));
                }
                if state.stop {
                    return;
                }
                let waited = !state.waiters.is_empty() || wanted();
                let due = last.elapsed() >= interval;
                if due {
                    last = Instant::now();
                }
                if state.syncing || !(waited || (due && self.unsynced.load(Ordering::Acquire))) {
                    continue;
                }
                state.syncing = true;
                waited
            };
            if self.is_failed() {
                // Who wants a sync now will not have one.
                self.wanted.store(false, Ordering::Release);
                let error = self.check_writable().err();
                self.tell(error.as_ref(), true);
            } else if let Err(error) = self.sync_log(waited) {
                tracing::error!(%error, "the log cannot be synced; writes are refused from now on");
            }
        }
    }

    // ---- units of a set ----

    /// A unit is in the log, which ended at `index` with it, and visible.
    pub fn await_sync(&self, seq: u64, index: u64) {
        let mut units = self.awaiting_sync.lock();
        if let Some((before, end)) = units.back() {
            must!(
                *before < seq && *end <= index,
                "unit {seq}, up to entry {index}, was applied after unit {before}, up to entry {end}"
            );
        }
        units.push_back((seq, index));
        drop(units);
        // A sync may have come between the append and this.
        self.report_durable();
    }

    /// Tells of the units that the log has on stable storage. Called after every sync and after every unit, so that whichever
    /// of the two is later sees the other.
    fn report_durable(&self) {
        let Some(sequencer) = self.base.sequencer() else { return };
        let mut newest = None;
        {
            let mut units = self.awaiting_sync.lock();
            let durable = self.durable_index();
            while units.front().is_some_and(|(_, index)| *index <= durable) {
                newest = units.pop_front();
            }
        }
        if let Some((seq, _)) = newest {
            sequencer.durable(seq);
        }
    }

    // ---- the log's beginning ----

    /// Removes the log's beginning as far as nobody needs it: not behind `stable`, nor what is too young at `last`.
    pub fn retain_log(&self, stable: u64, last: u64) -> Result<()> {
        let Some(log) = self.log() else { return Ok(()) };
        must!(stable <= last, "the files hold entry {stable}, and the newest is {last}");
        let unneeded = stable.min(self.old_enough(log, last)).min(self.pins.unneeded());
        let began = Instant::now();
        if log.retain(unneeded).map_err(|e| Error::new(Code::INTERNAL_ERROR, e.to_string()))? > 0 {
            self.truncations.0.fetch_add(1, Ordering::Relaxed);
            self.truncations.1.fetch_add(began.elapsed().as_micros() as u64, Ordering::Relaxed);
        }
        if let Some(sequencer) = self.base.sequencer() {
            sequencer.compacted(log.stats().first_index.saturating_sub(1).min(stable));
        }
        Ok(())
    }

    /// How often the log's beginning was removed, and how many microseconds that took.
    pub fn truncations(&self) -> (u64, u64) {
        (self.truncations.0.load(Ordering::Relaxed), self.truncations.1.load(Ordering::Relaxed))
    }

    /// Index up to which entries are old enough to be removed.
    fn old_enough(&self, log: &Log, last: u64) -> u64 {
        let retention = self.base.tuning.oplog_retention();
        if retention.is_zero() {
            return u64::MAX;
        }
        let old = match &mut *self.ages.lock() {
            Some(ages) => ages.old(Instant::now(), last, retention),
            None => Old::Index(0),
        };
        match old {
            Old::Index(index) => index,
            // A log that cannot be read keeps what it has.
            Old::Time(time) => log.read_from_time(time).map_or(0, |reader| reader.index().saturating_sub(1)),
        }
    }
}
