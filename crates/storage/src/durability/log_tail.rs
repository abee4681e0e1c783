//! What replication asks of the log: its bounds, terms of entries, and entries to be sent.
//!
//! Which term an entry is of must be known without reading the log, which may weigh gigabytes. Terms change with elections
//! only, so they are kept as runs; a flush writes them along with its position, and what is applied after it adds to them.

use sheaf_bson::RawDoc;
use sheaf_errors::Result;
use sheaf_log::Reader;

use super::Durability;
use crate::core::Core;
use crate::critical::must;
use crate::options::OpTime;
use crate::order::Mutex;
use crate::order::rank::LEAF;
use crate::recovery::log_error;
use crate::sequencer::LogEntry;

/// Readers kept, each where it stopped: members are sent one piece of the log after another.
const READERS_MAX: usize = 8;

/// What is known of the log without its operations.
#[derive(Clone, Debug, Default)]
pub struct LogTail {
    /// Term and index before the first entry that is left.
    pub start: (u64, u64),
    /// The last entry.
    pub last: OpTime,
    /// Index up to which everything is committed, because it was flushed as such.
    pub committed: u64,
    /// Terms of the entries after `start` in runs: first index, term.
    pub runs: Vec<(u64, u64)>,
    /// Index and cluster time of entries from `committed` on, in order: of that one, of the one that begins the last term, and of
    /// what is not flushed. Where these are many, of some of them.
    pub times: Vec<(u64, u64)>,
}

/// About so many times of entries are told.
const TIMES_MAX: usize = 1 << 16;

/// Terms of entries, and where reading stopped.
#[derive(Default)]
pub(crate) struct LogKnowledge {
    /// First index and term of each run, oldest first.
    runs: Mutex<LEAF, Vec<(u64, u64)>>,
    readers: Mutex<LEAF, Vec<Reader>>,
}

impl LogKnowledge {
    /// From what the last flush wrote.
    pub fn read(applied: RawDoc<'_>) -> LogKnowledge {
        let numbers = applied.get("terms").and_then(|v| v.as_array()).unwrap_or(RawDoc::EMPTY);
        let numbers: Vec<u64> = numbers.values().filter_map(|v| v.as_exact_i64()).map(|n| n as u64).collect();
        let mut runs: Vec<(u64, u64)> = numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        let number = |name: &str| applied.get(name).and_then(|v| v.as_exact_i64()).unwrap_or(0) as u64;
        if runs.is_empty() && number("index") > 0 {
            // Written by a version in which a log had one term only.
            runs.push((1, number("term")));
        }
        LogKnowledge { runs: Mutex::new(runs), readers: Mutex::default() }
    }

    /// An entry of this term is in the log.
    pub fn note(&self, index: u64, term: u64) {
        let mut runs = self.runs.lock();
        if runs.last().is_none_or(|(_, last)| *last != term) {
            runs.push((index, term));
        }
    }

    /// The term of an entry that is in the log or was flushed, if it is known.
    pub fn term_of(&self, index: u64) -> Option<u64> {
        let runs = self.runs.lock();
        runs.iter().rfind(|(start, _)| *start <= index).map(|(_, term)| *term)
    }

    /// The runs that concern entries from `first` on, up to `last`, and the entry before. Earlier ones are forgotten.
    pub fn runs(&self, first: u64, last: u64) -> Vec<(u64, u64)> {
        let mut runs = self.runs.lock();
        let needed = runs.iter().rposition(|(start, _)| *start < first).unwrap_or(0);
        runs.drain(..needed);
        runs.iter().filter(|(start, _)| *start <= last).copied().collect()
    }
}

impl Core {
    /// A commit is the newest one from now on.
    pub fn advance(&self, at: OpTime) {
        let last = self.published.last();
        // Alone, a transaction of several entries is one commit.
        let next = at.index == last.index + 1 || at.index == last.index;
        must!(
            next || !self.base.is_replica(),
            "{at:?} is applied after {last:?}: an entry between them is not"
        );
        if at.term != last.term || last.index == 0 {
            self.durability.knowledge().note(at.index, at.term);
        }
        self.published.advance(at);
    }

    pub fn log_tail(&self) -> Result<LogTail> {
        let last = self.published.last();
        let flushed = self.flushes.flushed();
        let stable = self.flushes.stable();
        let Some(log) = self.durability.log().filter(|_| last.index > 0) else {
            return Ok(LogTail::default());
        };
        let first = log.stats().first_index.max(1);
        let mut runs = self.durability.knowledge().runs(first, last.index);
        let mut tail = LogTail { last, committed: stable.index, ..LogTail::default() };
        if first > 1 {
            let term = runs.first().filter(|(start, _)| *start < first).map_or(flushed.term, |run| run.1);
            tail.start = (term, first - 1);
        }
        if let Some(run) = runs.first_mut() {
            run.0 = run.0.max(first);
        }
        tail.runs = runs.into_iter().filter(|(start, _)| *start <= last.index).collect();
        let mut known = vec![stable];
        if let Some((begin, _)) =
            tail.runs.last().filter(|(begin, _)| *begin > stable.index && *begin < flushed.index)
            && let Some(entry) = log.read_from(*begin).map_err(log_error)?.next().map_err(log_error)?
        {
            known.push(OpTime { term: entry.at.term, index: entry.at.index, time: entry.at.time });
        }
        known.push(flushed);
        known.dedup();
        tail.times.extend(known.iter().filter(|at| at.index > 0).map(|at| (at.index, at.time)));
        let mut reader = log.read_from(flushed.index + 1).map_err(log_error)?;
        while let Some(entry) = reader.next().map_err(log_error)? {
            if tail.times.len() >= TIMES_MAX {
                let (runs, mut at) = (&tail.runs, 0);
                tail.times.retain(|(index, _)| {
                    at += 1;
                    at % 2 == 1 || runs.iter().any(|(begin, _)| begin == index)
                });
            }
            tail.times.push((entry.at.index, entry.at.time));
        }
        Ok(tail)
    }
}

impl Durability {
    /// Entries `low..high`, about `bytes_max` of them but one at least; fewer where the log ends, none where the first of
    /// them is gone.
    pub fn log_entries(&self, low: u64, high: u64, bytes_max: u64) -> Result<Vec<LogEntry>> {
        let Some(log) = self.log() else { return Ok(Vec::new()) };
        let mut entries: Vec<LogEntry> = Vec::new();
        let mut bytes = 0;
        let mut reader = match self.reader_at(low) {
            Some(reader) => reader,
            None => match log.read_from(low) {
                Err(sheaf_log::Error::Gone { .. }) => return Ok(entries),
                reader => reader.map_err(log_error)?,
            },
        };
        while reader.index() < high && (entries.is_empty() || bytes < bytes_max) {
            let entry = match reader.next() {
                Ok(Some(entry)) => entry,
                Ok(None) => break,
                // Removed while it was read.
                Err(_) if low < log.stats().first_index => return Ok(Vec::new()),
                Err(error) => return Err(log_error(error)),
            };
            bytes += entry.payload.len() as u64;
            entries.push(entry.into());
        }
        let mut readers = self.knowledge.readers.lock();
        if readers.len() >= READERS_MAX {
            readers.remove(0);
        }
        readers.push(reader);
        Ok(entries)
    }

    fn reader_at(&self, index: u64) -> Option<Reader> {
        let mut readers = self.knowledge.readers.lock();
        let at = readers.iter().position(|reader| reader.index() == index)?;
        Some(readers.remove(at))
    }
}
