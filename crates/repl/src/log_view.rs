//! The core's view of the log: which term each entry has, and the newest entries themselves.
//!
//! raft-rs reads the log through this. Entries that were dropped from the cache are asked of the driver
//! ([`LogView::take_wanted`]); only entries that are to be sent are ever asked for.

use std::cell::RefCell;
use std::collections::VecDeque;

use raft::eraftpb::{ConfState, Entry as RaftEntry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use crate::types::{Entry, LogBounds, LogPosition, TermRun};

/// Entries that the driver shall read from its log.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub low: u64,
    pub high: u64,
    pub context: GetEntriesContext,
}

#[derive(Default)]
pub(crate) struct LogView {
    bounds: LogBounds,
    /// The newest entries, without gaps up to `bounds.last`.
    cache: VecDeque<RaftEntry>,
    /// What these take.
    cache_bytes: usize,
    /// What those of them take that are not in the driver's log yet.
    unwritten_bytes: usize,
    /// Entries up to here are in the driver's log, so that they may leave the cache.
    written: u64,
    pub hard_state: HardState,
    pub conf_state: ConfState,
    /// What a member that lost touch is offered: a copy of the data as of here.
    pub snapshot_at: LogPosition,
    wanted: RefCell<Vec<Wanted>>,
    fetched: VecDeque<RaftEntry>,
}

impl LogView {
    pub fn new(bounds: LogBounds) -> Self {
        let written = bounds.last;
        LogView { bounds, written, ..LogView::default() }
    }

    pub fn bounds(&self) -> &LogBounds {
        &self.bounds
    }

    pub fn last(&self) -> LogPosition {
        LogPosition::new(self.term_at(self.bounds.last).expect("the last entry has a term"), self.bounds.last)
    }

    /// The term of the entry at `index`, if the log has it (or it is the one before the first).
    pub fn term_at(&self, index: u64) -> Option<u64> {
        if index == self.bounds.start.index {
            return Some(self.bounds.start.term);
        }
        if index < self.bounds.start.index || index > self.bounds.last {
            return None;
        }
        let run = self.bounds.runs.partition_point(|run| run.first <= index);
        self.bounds.runs.get(run.checked_sub(1)?).map(|run| run.term)
    }

    /// Whether the log has exactly this entry, and so everything before it.
    pub fn has(&self, at: LogPosition) -> bool {
        self.term_at(at.index) == Some(at.term)
    }

    /// Appends entries, which may replace those from the first one's index on.
    pub fn append(&mut self, entries: &[RaftEntry]) {
        let Some(first) = entries.first() else { return };
        let (start, last) = (self.bounds.start, self.bounds.last);
        assert!(first.index > start.index, "entry {} would go before the log, {start:?}", first.index);
        assert!(first.index <= last + 1, "entry {} would leave a gap behind {last}", first.index);
        let term = self.term_at(first.index - 1);
        assert!(term <= Some(first.term), "entry {} of term {} follows {term:?}", first.index, first.term);
        self.truncate(first.index - 1);
        for entry in entries {
            if self.bounds.runs.last().is_none_or(|run| run.term != entry.term) {
                self.bounds.runs.push(TermRun { first: entry.index, term: entry.term });
            }
            self.bounds.last = entry.index;
            self.bounds.last_time = time_of(entry);
            self.cache_bytes += weight(entry);
            self.unwritten_bytes += weight(entry);
            self.cache.push_back(entry.clone());
        }
    }

    /// Panics where the view contradicts itself. Takes the same time however many entries there are.
    pub fn check(&self) {
        let LogBounds { start, last, runs, .. } = &self.bounds;
        assert!(start.index <= *last, "the log begins behind {start:?} and ends at {last}");
        let rising = |pair: &[TermRun]| pair[0].first < pair[1].first && pair[0].term < pair[1].term;
        assert!(runs.windows(2).all(rising), "terms do not rise with the index: {runs:?}");
        let first = runs.first().map(|run| run.first);
        assert_eq!(
            first,
            (start.index < *last).then_some(start.index + 1),
            "the first entry has a term: {runs:?}"
        );
        assert!(runs.last().is_none_or(|run| run.first <= *last), "a term begins behind {last}: {runs:?}");
        if let (Some(front), Some(back)) = (self.cache.front(), self.cache.back()) {
            assert_eq!(back.index, *last, "the newest entries are kept");
            assert_eq!(self.cache.len() as u64, back.index + 1 - front.index, "a kept entry is missing");
            assert!(front.index > start.index, "an entry is kept that has left the log");
        } else {
            assert_eq!((self.cache_bytes, self.unwritten_bytes), (0, 0), "nothing is kept");
        }
        assert!(self.written <= *last, "{} is written, the log ends at {last}", self.written);
        assert!(self.unwritten_bytes <= self.cache_bytes, "what is not written is kept");
        assert!(self.fetched.is_empty(), "fetched entries are for one question only");
    }

    fn truncate(&mut self, keep: u64) {
        while self.cache.back().is_some_and(|entry| entry.index > keep) {
            let entry = self.cache.pop_back().expect("there is a last one");
            self.cache_bytes -= weight(&entry);
            if entry.index > self.written {
                self.unwritten_bytes -= weight(&entry);
            }
        }
        self.bounds.runs.retain(|run| run.first <= keep);
        self.bounds.last = self.bounds.last.min(keep);
        self.written = self.written.min(keep);
    }

    /// The driver's log has the entries up to `index`; those beyond `limit` bytes go.
    pub fn set_written(&mut self, index: u64, limit: usize) {
        let before = self.written;
        self.written = before.max(index.min(self.bounds.last));
        let first = self.cache.front().map_or(0, |entry| entry.index);
        let place = |after: u64| ((after + 1).saturating_sub(first) as usize).min(self.cache.len());
        let now_written = self.cache.range(place(before)..place(self.written));
        self.unwritten_bytes -= now_written.map(weight).sum::<usize>();
        self.shrink(limit);
    }

    /// What the kept entries take, and what those of them take that the driver's log has not yet.
    pub fn kept_bytes(&self) -> (usize, usize) {
        (self.cache_bytes, self.unwritten_bytes)
    }

    /// Entries that are in the driver's log go, as far as all of them take more than `limit` bytes.
    pub fn shrink(&mut self, limit: usize) {
        while self.cache_bytes > limit && self.cache.front().is_some_and(|e| e.index <= self.written) {
            let entry = self.cache.pop_front().expect("there is a first one");
            self.cache_bytes -= weight(&entry);
        }
    }

    /// The driver has removed the entries up to and including `index`.
    pub fn compact(&mut self, index: u64) {
        if index <= self.bounds.start.index {
            return;
        }
        assert!(index <= self.bounds.last, "{index} has left the log, which ends at {}", self.bounds.last);
        let term = self.term_at(index).expect("the index is within the log");
        let next = self.term_at(index + 1);
        self.bounds.start = LogPosition::new(term, index);
        self.bounds.runs.retain(|run| run.first > index);
        if let Some(term) = next
            && self.bounds.runs.first().is_none_or(|run| run.first != index + 1)
        {
            self.bounds.runs.insert(0, TermRun { first: index + 1, term });
        }
        while self.cache.front().is_some_and(|entry| entry.index <= index) {
            let entry = self.cache.pop_front().expect("there is a first one");
            self.cache_bytes -= weight(&entry);
        }
    }

    /// The log begins anew after a copy of the data as of `at`.
    pub fn reset(&mut self, at: LogPosition, time: u64) {
        assert!(
            at.index >= self.bounds.start.index,
            "the log begins at {at:?} after {:?}",
            self.bounds.start
        );
        self.bounds = LogBounds { start: at, last: at.index, runs: Vec::new(), last_time: time };
        self.cache.clear();
        (self.cache_bytes, self.unwritten_bytes) = (0, 0);
        self.written = at.index;
        self.snapshot_at = self.snapshot_at.max(at);
    }

    /// What raft-rs asked for and the cache no longer had.
    pub fn take_wanted(&mut self) -> Vec<Wanted> {
        std::mem::take(self.wanted.get_mut())
    }

    /// Entries read by the driver, for the next question of raft-rs only.
    pub fn set_fetched(&mut self, entries: Vec<Entry>) {
        self.fetched = entries.iter().map(to_raft).collect();
    }
}

/// What a kept entry takes: itself, its payload and its time.
fn weight(entry: &RaftEntry) -> usize {
    size_of::<RaftEntry>() + size_of::<u64>() + entry.data.len()
}

fn slice(entries: &VecDeque<RaftEntry>, low: u64, high: u64, max_bytes: Option<u64>) -> Vec<RaftEntry> {
    let Some(first) = entries.front() else { return Vec::new() };
    assert!(first.index <= low, "entries from {low} on are asked of those from {} on", first.index);
    let mut bytes = 0;
    let mut out = Vec::new();
    for entry in entries.range((low - first.index) as usize..) {
        bytes += entry.data.len() as u64 + 40;
        if entry.index >= high || (!out.is_empty() && max_bytes.is_some_and(|max| bytes > max)) {
            break;
        }
        out.push(entry.clone());
    }
    out
}

impl Storage for LogView {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), self.conf_state.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<RaftEntry>> {
        let max_size = max_size.into();
        if low <= self.bounds.start.index {
            return Err(StorageError::Compacted.into());
        }
        if self.cache.front().is_some_and(|entry| entry.index <= low) {
            return Ok(slice(&self.cache, low, high, max_size));
        }
        if !context.can_async() {
            // Asked in order to apply them, or to look for configuration entries: payloads are applied
            // when they are appended and no entry changes the configuration, so a blank will do.
            let blank = |index| {
                let term = self.term_at(index).expect("raft-rs reads entries of its log");
                RaftEntry { index, term, ..RaftEntry::default() }
            };
            return Ok((low..high).map(blank).collect());
        }
        let got = self.fetched.front().is_some_and(|entry| entry.index <= low)
            && self.fetched.back().is_some_and(|entry| entry.index >= low);
        if got {
            return Ok(slice(&self.fetched, low, high, max_size));
        }
        self.wanted.borrow_mut().push(Wanted { low, high, context });
        Err(StorageError::LogTemporarilyUnavailable.into())
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        match self.term_at(index) {
            Some(term) => Ok(term),
            None if index < self.bounds.start.index => Err(StorageError::Compacted.into()),
            None => Err(StorageError::Unavailable.into()),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.bounds.start.index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.bounds.last)
    }

    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        let unavailable = self.snapshot_at.index == 0
            || self.snapshot_at.index < request_index
            || self.snapshot_at.index < self.bounds.start.index;
        if unavailable {
            return Err(StorageError::SnapshotTemporarilyUnavailable.into());
        }
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        metadata.index = self.snapshot_at.index;
        metadata.term = self.snapshot_at.term;
        metadata.set_conf_state(self.conf_state.clone());
        Ok(snapshot)
    }
}

/// The cluster time of an entry, which travels in raft-rs's `context`.
pub(crate) fn time_of(entry: &RaftEntry) -> u64 {
    entry.context.as_ref().try_into().map(u64::from_le_bytes).unwrap_or(0)
}

pub(crate) fn to_raft(entry: &Entry) -> RaftEntry {
    RaftEntry {
        term: entry.at.term,
        index: entry.at.index,
        data: entry.payload.clone(),
        context: entry.time.to_le_bytes().to_vec().into(),
        ..RaftEntry::default()
    }
}

pub(crate) fn from_raft(entry: &RaftEntry) -> Entry {
    Entry { at: LogPosition::new(entry.term, entry.index), time: time_of(entry), payload: entry.data.clone() }
}
