//! What replication asks of the log: its bounds, terms of entries, and entries to be sent.

use sheaf_errors::Result;

use super::Durability;
use crate::core::Core;
use crate::oplog::{LogEntry, log_error};
use crate::options::OpTime;

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

impl Core {
    /// What replication is to know of the log.
    pub fn log_tail(&self) -> Result<LogTail> {
        let last = self.published.last();
        let flushed = self.flushes.flushed();
        let stable = self.flushes.stable();
        let Some(log) = self.durability.log().filter(|_| last.index > 0) else {
            return Ok(LogTail::default());
        };
        let first = log.stats().first_index.max(1);
        let runs = self.durability.knowledge().runs(first, last.index);
        let mut tail = LogTail { last, committed: stable.index, ..LogTail::default() };
        if first > 1 {
            let term = runs.first().filter(|(start, _)| *start < first).map_or(flushed.term, |run| run.1);
            tail.start = (term, first - 1);
        }
        tail.runs = beginning(first, runs).into_iter().filter(|(start, _)| *start <= last.index).collect();
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

/// Runs of terms, of which the first is told to begin with the log's first entry. One that had ended by then is left out: where a term begins
/// with that entry, or where the one before the first election wrote nothing.
fn beginning(first: u64, mut runs: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let ended = runs.iter().skip(1).take_while(|(start, _)| *start <= first).count();
    runs.drain(..ended);
    if let Some(run) = runs.first_mut() {
        run.0 = run.0.max(first);
    }
    runs
}

impl Durability {
    /// Entries `low..high`, about `bytes_max` of them but one at least; fewer where the log ends, none where the first of
    /// them is gone.
    pub fn log_entries(&self, low: u64, high: u64, bytes_max: u64) -> Result<Vec<LogEntry>> {
        let Some(log) = self.log() else { return Ok(Vec::new()) };
        let mut entries: Vec<LogEntry> = Vec::new();
        let mut bytes = 0;
        let mut reader = match self.knowledge.reader_at(low) {
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
        self.knowledge.rest(reader);
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::beginning;

    #[test]
    fn a_term_that_has_ended_before_the_log_begins_is_not_told() {
        assert_eq!(beginning(1, vec![(1, 1), (7, 2)]), [(1, 1), (7, 2)]);
        assert_eq!(beginning(3, vec![(1, 1), (7, 2)]), [(3, 1), (7, 2)]);
        assert_eq!(beginning(7, vec![(1, 1), (7, 2)]), [(7, 2)]);
        // Before it was initiated it wrote what stays with it, and the first election was won at the second try.
        assert_eq!(beginning(1, vec![(0, 1), (1, 2), (4, 3)]), [(1, 2), (4, 3)]);
        assert!(beginning(1, Vec::new()).is_empty());
    }
}
