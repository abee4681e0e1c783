//! What replication asks of the log: its bounds, and entries to be sent.

use sheaf_errors::{Code, Error, Result};

use crate::core::Core;
use crate::options::OpTime;
use crate::sequencer::LogEntry;

/// What is known of the log without its operations.
#[derive(Clone, Debug, Default)]
pub struct LogTail {
    /// Term and index before the first entry that is left.
    pub start: (u64, u64),
    /// The last entry.
    pub last: OpTime,
    /// Index up to which everything is in RocksDB's files.
    pub flushed: u64,
    /// Terms of the entries after `start` in runs: first index, term.
    pub runs: Vec<(u64, u64)>,
    /// Index and cluster time of the last flushed entry and of all after it.
    pub times: Vec<(u64, u64)>,
}

impl Core {
    pub fn log_tail(&self) -> Result<LogTail> {
        let last = *self.last.lock();
        let flushed = *self.flushed.lock();
        let mut tail = LogTail { last, flushed: flushed.index, ..LogTail::default() };
        let Some(log) = &self.log else { return Ok(tail) };
        let first = log.stats().first_index.max(1);
        tail.start = (flushed.term, first - 1);
        if first > 1 && first - 1 == flushed.index {
            tail.start = (flushed.term, flushed.index);
        }
        if flushed.index > 0 {
            tail.times.push((flushed.index, flushed.time));
        }
        let mut reader = log.read_from(first).map_err(log_error)?;
        while let Some(entry) = reader.next().map_err(log_error)? {
            if tail.runs.last().is_none_or(|(_, term)| *term != entry.at.term) {
                tail.runs.push((entry.at.index, entry.at.term));
            }
            if entry.at.index > flushed.index {
                tail.times.push((entry.at.index, entry.at.time));
            }
        }
        Ok(tail)
    }

    /// Entries `low..high`, about `bytes_max` of them but one at least; fewer where the log ends, none where it was cut.
    pub fn log_entries(&self, low: u64, high: u64, bytes_max: u64) -> Result<Vec<LogEntry>> {
        let Some(log) = &self.log else { return Ok(Vec::new()) };
        let mut entries = Vec::new();
        let mut bytes = 0;
        let mut reader = log.read_from(low).map_err(log_error)?;
        while reader.index() < high && (entries.is_empty() || bytes < bytes_max) {
            let Some(entry) = reader.next().map_err(log_error)? else { break };
            bytes += entry.payload.len() as u64;
            let payload = entry.payload.into();
            entries.push(LogEntry {
                term: entry.at.term,
                index: entry.at.index,
                time: entry.at.time,
                payload,
            });
        }
        Ok(entries)
    }
}

fn log_error(error: sheaf_log::Error) -> Error {
    Error::new(Code::CHECKSUM_MISMATCH, error.to_string())
}
