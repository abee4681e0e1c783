//! What is known of the log's entries without reading them: terms, and where readers stopped.
//!
//! Which term an entry is of must be known without reading the log, which may weigh gigabytes. Terms change with elections
//! only, so they are kept as runs; a flush writes them along with its position, and what is applied after it adds to them.

use sheaf_bson::RawDoc;
use sheaf_log::Reader;

use crate::order::Mutex;
use crate::order::rank::LEAF;

/// Readers kept, each where it stopped: members are sent one piece of the log after another.
const READERS_MAX: usize = 8;

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

    /// A reader that rests before this entry.
    pub fn reader_at(&self, index: u64) -> Option<Reader> {
        let mut readers = self.readers.lock();
        let at = readers.iter().position(|reader| reader.index() == index)?;
        Some(readers.remove(at))
    }

    /// Keeps a reader where it stopped.
    pub fn rest(&self, reader: Reader) {
        let mut readers = self.readers.lock();
        if readers.len() >= READERS_MAX {
            readers.remove(0);
        }
        readers.push(reader);
    }
}
