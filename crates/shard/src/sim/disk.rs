//! A simulated disk: what the operating system has, and what would survive the machine's crash. The log is kept whole.

use std::sync::Arc;

use sheaf_repl::config::ReplSetConfig;
use sheaf_repl::rng::Rng;
use sheaf_repl::{Entry, HardState, LogBounds, LogPosition, Persist, TermRun};

/// One state of a disk.
#[derive(Clone, Debug, Default)]
pub(super) struct Image {
    pub hard_state: HardState,
    pub config: Option<(Arc<ReplSetConfig>, Option<u64>)>,
    pub entries: Vec<Entry>,
}

impl Image {
    pub fn last(&self) -> LogPosition {
        self.entries.last().map_or(LogPosition::default(), |entry| entry.at)
    }

    pub fn entry(&self, index: u64) -> Option<&Entry> {
        self.entries.get(index.checked_sub(1)? as usize)
    }

    pub fn bounds(&self) -> LogBounds {
        let mut runs: Vec<TermRun> = Vec::new();
        for entry in &self.entries {
            if runs.last().is_none_or(|run| run.term != entry.at.term) {
                runs.push(TermRun { first: entry.at.index, term: entry.at.term });
            }
        }
        let last_time = self.entries.last().map_or(0, |entry| entry.time);
        LogBounds { start: LogPosition::default(), last: self.last().index, runs, last_time }
    }

    fn perform(&mut self, op: &Op) {
        match op {
            Op::Truncate(keep) => self.entries.truncate(*keep as usize),
            Op::Append(entry) => self.entries.push(entry.clone()),
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
    synced: Image,
    unsynced: Vec<Op>,
}

impl Disk {
    /// Keeps a unit's term, vote and configuration, synced before the log is touched.
    pub fn keep(&mut self, persist: &Persist) {
        let known = self.image.hard_state;
        let state = persist.hard_state.map_or(known, |wanted| persist.to_keep(wanted, &known));
        let changed = (state.term, state.vote) != (known.term, known.vote);
        for image in [&mut self.image, &mut self.synced] {
            if changed || persist.config.is_some() {
                image.hard_state = state;
            }
            if let Some(config) = &persist.config {
                image.config = Some(config.clone());
            }
        }
    }

    /// Writes the rest of a unit.
    pub fn write(&mut self, persist: &Persist) {
        let cut = persist.rollback.map(|rollback| Op::Truncate(rollback.keep.index));
        for op in cut.into_iter().chain(persist.entries.iter().cloned().map(Op::Append)) {
            self.image.perform(&op);
            self.unsynced.push(op);
        }
    }

    /// How much is not synced; a sync that starts now covers that much.
    pub fn unsynced(&self) -> usize {
        self.unsynced.len()
    }

    /// Makes the first `count` operations durable.
    pub fn sync(&mut self, count: usize) {
        let count = count.min(self.unsynced.len());
        for op in self.unsynced.drain(..count) {
            self.synced.perform(&op);
        }
    }

    /// The process is gone; the operating system keeps what was written, and start-up syncs it.
    pub fn crash_process(&mut self) {
        self.sync(usize::MAX);
    }

    /// The machine is gone: of what was not synced, some first part has reached the disk.
    pub fn crash_machine(&mut self, rng: &mut Rng) {
        let kept = rng.below(self.unsynced.len() as u64 + 1) as usize;
        self.sync(kept);
        self.unsynced.clear();
        self.image = self.synced.clone();
    }
}
