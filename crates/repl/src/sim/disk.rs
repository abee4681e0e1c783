//! A simulated disk: what the operating system has, and what would survive the machine's crash.

use std::sync::Arc;

use crate::config::ReplSetConfig;
use crate::effect::Persist;
use crate::rng::Rng;
use crate::types::{Entry, HardState, LogBounds, LogPosition, TermRun};

use super::model::{Model, link};

/// One state of a disk.
#[derive(Clone, Debug, Default)]
pub(super) struct Image {
    pub hard_state: HardState,
    pub config: Option<(Arc<ReplSetConfig>, Option<u64>)>,
    /// The position before the first entry, and the hash of the log up to there.
    pub start: LogPosition,
    pub start_chain: u64,
    pub entries: Vec<Entry>,
    /// Hash of the log up to each entry.
    pub chains: Vec<u64>,
}

impl Image {
    pub fn last(&self) -> LogPosition {
        self.entries.last().map_or(self.start, |entry| entry.at)
    }

    pub fn entry(&self, index: u64) -> Option<&Entry> {
        self.entries.get(index.checked_sub(self.start.index + 1)? as usize)
    }

    /// Hash of the log up to `index`.
    pub fn chain(&self, index: u64) -> Option<u64> {
        if index == self.start.index {
            return Some(self.start_chain);
        }
        self.chains.get(index.checked_sub(self.start.index + 1)? as usize).copied()
    }

    pub fn truncate(&mut self, keep: u64) {
        let count = keep.saturating_sub(self.start.index) as usize;
        self.entries.truncate(count);
        self.chains.truncate(count);
    }

    fn push(&mut self, entry: &Entry) {
        let before = self.chains.last().copied().unwrap_or(self.start_chain);
        self.chains.push(link(before, entry));
        self.entries.push(entry.clone());
    }

    pub fn compact(&mut self, index: u64) {
        if index <= self.start.index || index > self.last().index {
            return;
        }
        let count = (index - self.start.index) as usize;
        self.start = self.entries[count - 1].at;
        self.start_chain = self.chains[count - 1];
        self.entries.drain(..count);
        self.chains.drain(..count);
    }

    pub fn bounds(&self, last_time: u64) -> LogBounds {
        let mut runs: Vec<TermRun> = Vec::new();
        for entry in &self.entries {
            if runs.last().is_none_or(|run| run.term != entry.at.term) {
                runs.push(TermRun { first: entry.at.index, term: entry.at.term });
            }
        }
        LogBounds { start: self.start, last: self.last().index, runs, last_time }
    }

    fn perform(&mut self, op: &Op) {
        match op {
            Op::Truncate(keep) => self.truncate(*keep),
            Op::Append(entry) => self.push(entry),
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Truncate(u64),
    Append(Entry),
}

/// A disk with its cache.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    /// What the operating system has: survives the process.
    pub image: Image,
    /// What a sync has made sure of: survives the machine.
    pub synced: Image,
    unsynced: Vec<Op>,
    /// The last flush of the applied state, always durable, never beyond the commit point.
    pub flushed: Model,
    /// A copy of another member's data that is not in use yet.
    pub incoming: Option<Model>,
}

impl Disk {
    /// Keeps a unit's term, vote and configuration, as one small file that is synced before the log is touched. A commit
    /// point alone is not worth a sync, and may be forgotten. `too_much` plants a bug.
    pub fn keep(&mut self, persist: &Persist, too_much: bool) {
        let known = self.image.hard_state;
        let mut changed = false;
        let mut state = known;
        if let Some(wanted) = persist.hard_state {
            state = if too_much { wanted } else { persist.to_keep(wanted, &known) };
            changed = (state.term, state.vote) != (known.term, known.vote);
        }
        let cuts = persist.rollback.is_some() || persist.install.is_some();
        for image in [&mut self.image, &mut self.synced] {
            if changed || persist.config.is_some() || (too_much && cuts) {
                image.hard_state = state;
            }
            if let Some(config) = &persist.config {
                image.config = Some(config.clone());
            }
        }
    }

    /// Writes the rest of a unit. Returns the entries that a rollback has taken from the log.
    pub fn write(&mut self, persist: &Persist) -> Vec<Entry> {
        let mut ops = Vec::new();
        let mut lost = Vec::new();
        if let Some(at) = persist.install {
            self.install(at);
        }
        if let Some(rollback) = persist.rollback {
            let from = (rollback.keep.index - self.image.start.index) as usize;
            lost = self.image.entries[from..].to_vec();
            ops.push(Op::Truncate(rollback.keep.index));
        }
        ops.extend(persist.entries.iter().cloned().map(Op::Append));
        for op in &ops {
            self.image.perform(op);
        }
        self.unsynced.extend(ops);
        lost
    }

    /// Data and log become the copy's, all at once.
    fn install(&mut self, at: LogPosition) {
        let model = self.incoming.take().filter(|model| model.at == at).expect("the copy is there");
        self.image.start = at;
        self.image.start_chain = model.chain;
        self.image.entries.clear();
        self.image.chains.clear();
        self.synced = self.image.clone();
        self.unsynced.clear();
        self.flushed = model;
    }

    /// How much is not synced; a sync that starts now covers that much.
    pub fn unsynced(&self) -> usize {
        self.unsynced.len()
    }

    /// Makes the first `count` operations durable. Returns the entries among them.
    pub fn sync(&mut self, count: usize) -> Vec<Entry> {
        let count = count.min(self.unsynced.len());
        let mut entries = Vec::new();
        for op in self.unsynced.drain(..count) {
            self.synced.perform(&op);
            if let Op::Append(entry) = op {
                entries.push(entry);
            }
        }
        entries
    }

    /// The process is gone; the operating system keeps what was written, and start-up syncs it.
    pub fn crash_process(&mut self) -> Vec<Entry> {
        self.incoming = None;
        self.sync(usize::MAX)
    }

    /// The machine is gone: of what was not synced, some first part has reached the disk. An entry torn in
    /// the middle is found by its checksum and cut off, so that it counts as not written.
    pub fn crash_machine(&mut self, rng: &mut Rng) -> Vec<Entry> {
        let kept = rng.below(self.unsynced.len() as u64 + 1) as usize;
        let entries = self.sync(kept);
        self.unsynced.clear();
        self.image = self.synced.clone();
        self.incoming = None;
        entries
    }

    /// The state as of `index`, which the log must reach: the last flush with the log applied to it.
    pub fn model_at(&self, index: u64) -> Model {
        let mut model = self.flushed.clone();
        assert!(model.at.index <= index, "flushed beyond what stays");
        for next in model.at.index + 1..=index {
            model.apply(self.image.entry(next).expect("the log reaches back to the last flush"));
        }
        model
    }

    /// The state as of `index`, which `now` is beyond: by re-applying the log from the last flush, as a
    /// rollback does.
    pub fn model_before(&self, index: u64, now: &Model) -> Model {
        assert!(now.at.index >= index, "nothing to take back");
        self.model_at(index)
    }

    /// Flushes the state as of `index`.
    pub fn flush(&mut self, index: u64) {
        if index > self.flushed.at.index {
            self.flushed = self.model_at(index);
        }
    }

    /// Removes entries up to `index` from the log.
    pub fn compact(&mut self, index: u64) {
        self.image.compact(index);
        self.synced.compact(index);
    }
}
