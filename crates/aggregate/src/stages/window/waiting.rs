//! Documents that wait until what follows them is known, first in, first out; on disk where they outgrow their memory.

use std::collections::VecDeque;

use sheaf_bson::RawDoc;
use sheaf_errors::Result;
use sheaf_query::sort::{Run, Runs};
use sheaf_rows::temporary_runs;

/// A document and its metadata, as one piece of bytes.
#[derive(Default)]
pub(crate) struct Waiting(Vec<u8>);

impl Waiting {
    pub(crate) fn new(document: RawDoc<'_>, metadata: Option<RawDoc<'_>>) -> Waiting {
        let mut waiting = Waiting::default();
        waiting.put(document, metadata);
        waiting
    }

    /// Takes the place of what it was.
    pub(super) fn put(&mut self, document: RawDoc<'_>, metadata: Option<RawDoc<'_>>) {
        let metadata = metadata.map_or(&[][..], |metadata| metadata.as_bytes());
        let bytes = &mut self.0;
        bytes.clear();
        bytes.reserve_exact(4 + metadata.len() + document.len());
        bytes.extend_from_slice(&(metadata.len() as u32).to_le_bytes());
        bytes.extend_from_slice(metadata);
        bytes.extend_from_slice(document.as_bytes());
    }

    fn parts(&self) -> (&[u8], &[u8]) {
        let (length, rest) = self.0.split_first_chunk::<4>().expect("the length stands first");
        rest.split_at(u32::from_le_bytes(*length) as usize)
    }

    pub(crate) fn document(&self) -> RawDoc<'_> {
        RawDoc::new(self.parts().1)
    }

    pub(crate) fn metadata(&self) -> Option<RawDoc<'_>> {
        let metadata = self.parts().0;
        (!metadata.is_empty()).then(|| RawDoc::new(metadata))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.0.capacity() + size_of::<Self>()
    }
}

/// Those that wait.
#[derive(Default)]
pub(super) struct Queue {
    /// On disk, before those in memory; each has one run.
    spilled: VecDeque<Box<dyn Runs + Send>>,
    /// The run that is read now, before all.
    reading: Option<Run>,
    documents: VecDeque<Waiting>,
    bytes: usize,
}

impl Queue {
    pub(super) fn push(&mut self, document: Waiting) {
        self.bytes += document.memory_bytes();
        self.documents.push_back(document);
    }

    /// The first of them.
    pub(super) fn pop(&mut self) -> Result<Option<Waiting>> {
        loop {
            let mut read = Vec::new();
            if let Some(run) = &mut self.reading
                && run.read(&mut read)?
            {
                return Ok(Some(Waiting(read)));
            }
            self.reading = match self.spilled.pop_front() {
                Some(mut runs) => runs.open()?.pop(),
                None => break,
            };
        }
        let first = self.documents.pop_front();
        self.bytes -= first.as_ref().map_or(0, Waiting::memory_bytes);
        Ok(first)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes
    }

    /// Moves all that is in memory to disk; says how many documents and bytes that were.
    pub(super) fn spill(&mut self) -> Result<(u64, u64)> {
        let mut runs = temporary_runs();
        runs.write(&mut self.documents.iter().map(|document| (&[][..], &document.0[..])))?;
        let done = (self.documents.len() as u64, self.documents.iter().map(|one| one.0.len() as u64).sum());
        self.spilled.push_back(runs);
        self.documents = VecDeque::new();
        self.bytes = 0;
        Ok(done)
    }
}
