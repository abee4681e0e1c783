//! A member of a set that can lead and follow.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use sheaf_errors::{Code, Result, bail};

use super::support::*;
use crate::{Engine, LogEntry, LogUnit, OpTime, Options, Seal, Sequencer};

/// Orders commits while its member leads; others' entries come in between.
#[derive(Default)]
pub struct Office {
    leads: AtomicBool,
    units: Mutex<VecDeque<LogUnit>>,
    last: Mutex<OpTime>,
    seq: AtomicU64,
    commit: AtomicU64,
}

impl Office {
    fn add(&self, entries: Vec<LogEntry>) -> u64 {
        if let Some(last) = entries.last() {
            *self.last.lock() = OpTime { term: last.term, index: last.index, time: last.time };
        }
        let seq = self.seq.fetch_add(1, Ordering::AcqRel) + 1;
        self.units.lock().push_back(LogUnit { seq, entries });
        seq
    }
}

impl Sequencer for Office {
    fn takes_writes(&self) -> bool {
        self.leads.load(Ordering::Acquire)
    }

    fn propose(&self, seal: Seal<'_>) -> Result<u64> {
        if !self.takes_writes() {
            bail!(Code::NOT_WRITABLE_PRIMARY, "not primary");
        }
        let last = *self.last.lock();
        let (time, payload) = seal(last.term, last.time);
        Ok(self.add(vec![LogEntry { term: last.term, index: last.index + 1, time, payload }]))
    }

    fn take(&self) -> Result<Option<LogUnit>> {
        Ok(self.units.lock().pop_front())
    }

    fn acknowledge(&self, _seq: u64) {}

    fn put_back(&self, unit: LogUnit) {
        self.units.lock().push_front(unit);
    }

    fn durable(&self, _seq: u64) {}

    fn commit_index(&self) -> u64 {
        self.commit.load(Ordering::Acquire)
    }

    fn compacted(&self, _index: u64) {}
}

pub struct Member {
    pub engine: Engine,
    office: Arc<Office>,
}

impl Member {
    pub fn open(path: &Path) -> Member {
        Member::open_with(options(path))
    }

    pub fn open_with(options: Options) -> Member {
        let engine = Engine::open(Options { replica: true, ..options }).unwrap();
        let office = Arc::new(Office::default());
        *office.last.lock() = engine.last_applied();
        engine.set_sequencer(office.clone(), false);
        Member { engine, office }
    }

    /// Leads, in a term of its own.
    pub fn lead(&self) {
        self.office.last.lock().term += 1;
        self.office.leads.store(true, Ordering::Release);
    }

    /// Leads in a term that no entry of the log is of, nor was before a rollback.
    pub fn lead_in(&self, term: u64) {
        self.office.last.lock().term = term;
        self.office.leads.store(true, Ordering::Release);
    }

    /// A majority of the set has everything up to here.
    pub fn commit(&self, index: u64) {
        self.office.commit.store(index, Ordering::Release);
        self.engine.committed(index);
    }

    pub fn step_down(&self) {
        self.office.leads.store(false, Ordering::Release);
    }

    /// Loses the lead when called, and gets it back in another term if `again`: for hooks.
    pub fn change_of_lead(&self, again: bool) -> impl Fn() + Send + Sync + 'static {
        let office = self.office.clone();
        move || {
            office.last.lock().term += u64::from(again);
            office.leads.store(again, Ordering::Release);
        }
    }

    /// Applies these entries as one unit.
    pub fn take(&self, entries: Vec<LogEntry>) {
        self.office.add(entries);
        assert!(self.engine.apply_units().unwrap());
    }

    /// Applies what another's log has, up to this entry.
    pub fn follow(&self, other: &Engine, last: u64) {
        loop {
            let next = self.engine.last_applied().index + 1;
            let entries = other.log_entries(next, last + 1, 1 << 20).unwrap();
            if entries.is_empty() {
                return;
            }
            self.take(entries);
        }
    }

    /// Applies all that another's log has.
    pub fn catch_up(&self, other: &Engine) {
        self.follow(other, other.last_applied().index);
    }

    /// Flushes everything, as if a majority had it.
    pub fn flush(&self) {
        assert!(self.try_flush());
    }

    /// [`Member::flush`]; false if that cannot be now.
    pub fn try_flush(&self) -> bool {
        self.office.commit.store(u64::MAX, Ordering::Release);
        let flushed = self.engine.core().try_checkpoint().unwrap();
        self.office.commit.store(0, Ordering::Release);
        flushed
    }
}
