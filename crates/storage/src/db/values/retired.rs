//! Files that go: which, and when.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use sheaf_errors::Result;

use super::Values;
use super::rows::FileRow;
use crate::critical::must;

/// A part of a file.
#[derive(Clone, Copy)]
pub(crate) struct Part(pub u64, pub u64);

impl Part {
    /// Whether this part of the whole is more than these bytes.
    pub fn is_more(self, bytes: u64, whole: u64) -> bool {
        bytes.saturating_mul(self.1) < whole.saturating_mul(self.0)
    }
}

/// Of whom nothing is wanted any more in the newest state.
pub(super) struct Retired {
    pub number: u32,
    /// Who reads older states has a share of one of these.
    readers: Vec<Weak<()>>,
    /// The newest state is flushed.
    flushed: bool,
}

impl Values {
    /// The file of which least is wanted, and less than this `part`, as far as is known, or one in doubt, whose segment the log does not have any
    /// more: it begins behind it.
    pub fn little_wanted(&self, log_begins: u64, part: Part) -> Option<u32> {
        let is_gone = |row: &FileRow| row.segment < log_begins;
        self.measure(is_gone);
        let mut state = self.state.lock();
        let now = Instant::now();
        if state.current.and_then(|current| state.files.get(&current)).is_some_and(is_gone) {
            state.current = None;
        }
        let little = |row: &FileRow| {
            let is_due = row.not_before.is_none_or(|then| then <= now);
            let bytes = row.bytes.unwrap_or(row.end);
            is_gone(row) && is_due && (row.in_doubt || part.is_more(row.wanted(), bytes))
        };
        let current = state.current;
        let others = state.files.iter().filter(|(number, row)| Some(**number) != current && little(row));
        others.min_by_key(|(_, row)| row.wanted()).map(|(number, _)| *number)
    }

    /// Asks for the sizes of files that do not grow any more.
    fn measure(&self, done: impl Fn(&FileRow) -> bool) {
        let unknown: Vec<u32> = {
            let state = self.state.lock();
            let unknown = state.files.iter().filter(|(_, row)| row.bytes.is_none() && done(row));
            unknown.map(|(number, _)| *number).collect()
        };
        for number in unknown {
            let bytes = std::fs::metadata(self.path(number)).map_or(0, |about| about.len());
            if let Some(row) = self.state.lock().files.get_mut(&number) {
                row.bytes = Some(bytes.max(row.end));
            }
        }
    }

    /// Up to where something may refer to a file, how large it is, and how much has been noted as wanted no more.
    pub fn about(&self, number: u32) -> (u64, u64, u64) {
        let state = self.state.lock();
        state.files.get(&number).map_or((0, 0, 0), |row| (row.end, row.bytes.unwrap_or(row.end), row.noted))
    }

    /// A file cannot be collected: others are, before it is tried again.
    pub fn pass_over(&self, number: u32, pause: Duration) {
        if let Some(row) = self.state.lock().files.get_mut(&number) {
            row.not_before = Some(Instant::now() + pause);
        }
    }

    /// Nothing in the newest state refers to the file: its row goes with the batch.
    pub fn retire(&self, number: u32) {
        let mut state = self.state.lock();
        must!(state.current != Some(number), "file {number} of values is written to and given up");
        state.files.remove(&number);
        let before = self.generation.swap(Default::default());
        state.generations.retain(|generation| generation.strong_count() > 0);
        state.generations.push(Arc::downgrade(&before));
        let readers = state.generations.clone();
        state.retired.push(Retired { number, readers, flushed: false });
    }

    /// What was retired before is flushed.
    pub fn note_flushed(&self) {
        self.state.lock().retired.iter_mut().for_each(|retired| retired.flushed = true);
    }

    /// Removes the files that nobody can read any more.
    pub fn remove_retired(&self) -> Result<()> {
        let mut ready = Vec::new();
        self.state.lock().retired.retain(|retired| {
            let read = retired.readers.iter().any(|reader| reader.strong_count() > 0);
            let goes = retired.flushed && !read;
            if goes {
                ready.push(retired.number);
            }
            !goes
        });
        for number in ready {
            crate::folder::remove(&self.path(number))?;
            self.read.close(|open| open == u64::from(number));
        }
        Ok(())
    }

    /// Whether files that were given up are there yet.
    pub fn has_retired(&self) -> bool {
        !self.state.lock().retired.is_empty()
    }

    /// Whether files wait for a flush.
    pub fn waits_for_flush(&self) -> bool {
        self.state.lock().retired.iter().any(|retired| !retired.flushed)
    }

    /// What is wanted of a file was looked for, when so much had been noted: bytes by collection.
    pub fn note_wanted(&self, number: u32, wanted: impl IntoIterator<Item = (u32, u64)>, noted: u64) {
        if let Some(row) = self.state.lock().files.get_mut(&number) {
            row.set_wanted(wanted, noted);
        }
    }

    /// So many bytes were copied out of a file.
    pub fn note_copied(&self, bytes: u64) {
        self.copied.fetch_add(bytes, Ordering::Relaxed);
    }
}
