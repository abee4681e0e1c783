//! From the payload of a commit to its place in the log.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use rocksdb::{ColumnFamily, WriteBatch, WriteBatchIteratorCf};
use sheaf_bson::RawDoc;
use sheaf_errors::Result;
use sheaf_log::Log;

use super::reference::Reference;
use super::rows::{self, Families, FileRow};
use super::{State, Values, number_of};
use crate::critical::must;
use crate::folder::file_error;

/// Documents from this size on are left in the log; RocksDB has smaller ones in its tables.
pub(crate) const LEAST_BYTES: usize = 8 << 10;

/// So much of a document is compressed to see whether that makes it smaller...
const SAMPLE_BYTES: usize = 1 << 10;

/// ...by so many percent. Then RocksDB has it, compressed.
const WORTH_PERCENT: usize = 25;

/// Where a unit's payload is in the log.
#[derive(Clone, Copy)]
pub(crate) struct Spot {
    /// Index of the segment's first entry.
    pub segment: u64,
    /// In its file.
    pub offset: u64,
    /// Where the unit's entry ends.
    pub end: u64,
}

impl Values {
    /// Whether a document that the log has whole is to be left there.
    pub fn takes(&self, doc: RawDoc<'_>) -> bool {
        doc.len() >= LEAST_BYTES && self.is_on() && !shrinks(doc.as_bytes())
    }

    /// Whether large documents are left in the log.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Takes in what is on record of files, when RocksDB has just been opened: what its catalog has from [`VALUES`](crate::keys::catalog_key::VALUES) on.
    pub fn load<I>(&self, items: I) -> Result<()>
    where
        I: IntoIterator<Item = Result<(Box<[u8]>, Box<[u8]>)>>,
    {
        let mut state = self.state.lock();
        for item in items {
            let (key, value) = item?;
            let Some((number, row)) = rows::read(&key, &value)? else { break };
            state.last = state.last.max(number);
            state.files.insert(number, row);
        }
        if !state.files.is_empty() {
            self.any.store(true, Ordering::Release);
            self.pins.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// The log has been applied. Files that are not on record go: what referred to them was not flushed, and has been applied again. `on`:
    /// whether large documents are left in the log from now on.
    pub fn begin(&self, on: bool) -> Result<()> {
        let failed = |e| file_error("listing", &self.folder, &e);
        let mut state = self.state.lock();
        for item in fs::read_dir(&self.folder).map_err(failed)? {
            let path = item.map_err(failed)?.path();
            if number_of(&path).is_some_and(|number| !state.files.contains_key(&number)) {
                crate::folder::remove(&path)?;
            }
        }
        state.files.retain(|number, row| {
            let lost = !self.path(*number).is_file();
            if lost && row.wanted() > 0 {
                tracing::error!(
                    file = %self.path(*number).display(),
                    "a file of values is missing: documents that are in it cannot be read"
                );
            }
            !lost
        });
        self.pins.store(on || !state.files.is_empty(), Ordering::Release);
        self.on.store(on, Ordering::Release);
        Ok(())
    }

    /// The batch of a commit whose payload is in the log: with references to that in the place of those to the payload.
    pub fn place(
        &self,
        families: &Families<'_>,
        log: &Log,
        (before, payload): (&WriteBatch, &[u8]),
        spot: Spot,
    ) -> WriteBatch {
        let mut state = self.state.lock();
        let file = self.file_of(log, spot.segment, &mut state);
        let room = before.size_in_bytes() + if file.is_some() { 0 } else { payload.len() };
        let mut placing = Placing {
            families,
            payload,
            offset: spot.offset,
            file: file.and_then(|number| state.files.get_mut(&number).map(|row| (number, row))),
            batch: WriteBatch::with_capacity_bytes(room),
            left: 0,
        };
        before.iterate_cf(&mut placing);
        let Placing { mut batch, file, left, .. } = placing;
        must!(
            batch.len() == before.len(),
            "of {} changes of a commit {} were found",
            before.len(),
            batch.len()
        );
        if let Some((number, row)) = file {
            row.end = spot.end;
            row.put(number, families.catalog, &mut batch);
            self.left.fetch_add(left, Ordering::Relaxed);
        }
        batch
    }

    /// The file that is the log's newest segment as well. `None`: it cannot be made.
    fn file_of(&self, log: &Log, segment: u64, state: &mut State) -> Option<u32> {
        let is_it = |number: &u32| state.files.get(number).is_some_and(|row| row.segment == segment);
        if let Some(current) = state.current.filter(is_it) {
            return Some(current);
        }
        let path = log.segment_path(segment);
        // After a start the segment may go on that had values before. In a copy of the whole folder these are two files.
        let newest = state.files.iter().next_back().map(|(number, _)| *number).filter(is_it);
        if let Some(newest) = newest.filter(|number| are_one(&path, &self.path(*number))) {
            state.current = Some(newest);
            return Some(newest);
        }
        let number = state.last.checked_add(1)?;
        if let Err(error) = fs::hard_link(&path, self.path(number)) {
            let never = matches!(
                error.kind(),
                ErrorKind::CrossesDevices | ErrorKind::PermissionDenied | ErrorKind::Unsupported
            );
            if never {
                tracing::info!(%error, "large documents are not left in the log: its files cannot have second names");
                self.on.store(false, Ordering::Release);
            } else if !std::mem::replace(&mut state.told, true) {
                tracing::warn!(%error, "a segment of the log cannot be given a second name; its documents are copied");
            }
            return None;
        }
        self.any.store(true, Ordering::Release);
        self.given.fetch_add(1, Ordering::AcqRel);
        state.told = false;
        state.last = number;
        state.current = Some(number);
        state.files.insert(number, FileRow::new(segment));
        Some(number)
    }

    /// Memtables were flushed without what is thought to be wanted, which is to be looked for.
    pub fn doubt(&self) {
        self.state.lock().files.values_mut().for_each(|row| row.in_doubt = true);
    }

    /// Puts on record what has changed, for a flush.
    pub fn put_changed(&self, catalog: &ColumnFamily, batch: &mut WriteBatch) {
        for (number, row) in self.state.lock().files.iter_mut().filter(|(_, row)| row.changed) {
            row.put(*number, catalog, batch);
        }
    }
}

/// Makes the batch.
struct Placing<'p> {
    families: &'p Families<'p>,
    payload: &'p [u8],
    /// Where that is in the file.
    offset: u64,
    file: Option<(u32, &'p mut FileRow)>,
    batch: WriteBatch,
    left: u64,
}

impl WriteBatchIteratorCf for Placing<'_> {
    fn put_cf(&mut self, family: u32, key: &[u8], value: &[u8]) {
        let cf = self.families.of(family);
        let reference = Reference::read(value).filter(|_| family == self.families.records);
        let Some(mut reference) = reference else { return self.batch.put_cf(cf, key, value) };
        must!(reference.file == 0, "a commit refers to file {}", reference.file);
        match &mut self.file {
            Some((number, row)) => {
                let ident = key.first_chunk().map_or(0, |ident| u32::from_be_bytes(*ident));
                row.add(ident, u64::from(reference.length));
                self.left += u64::from(reference.length);
                reference.file = *number;
                reference.offset += self.offset as u32;
                self.batch.put_cf(cf, key, reference.bytes());
            }
            None => {
                let from = reference.offset as usize;
                let doc = &self.payload[from..from + reference.length as usize];
                self.batch.put_cf(cf, key, doc);
            }
        }
    }

    fn delete_cf(&mut self, family: u32, key: &[u8]) {
        self.batch.delete_cf(self.families.of(family), key);
    }

    fn merge_cf(&mut self, family: u32, key: &[u8], value: &[u8]) {
        self.batch.merge_cf(self.families.of(family), key, value);
    }
}

/// Whether compression is worth it.
fn shrinks(bytes: &[u8]) -> bool {
    let from = (bytes.len() - SAMPLE_BYTES.min(bytes.len())) / 2;
    let sample = &bytes[from..][..SAMPLE_BYTES.min(bytes.len())];
    let mut out = [0; SAMPLE_BYTES + SAMPLE_BYTES / 4];
    let compressed = snap::raw::Encoder::new().compress(sample, &mut out);
    compressed.is_ok_and(|len| len * 100 < sample.len() * (100 - WORTH_PERCENT))
}

/// Whether both are names of one file.
fn are_one(one: &Path, other: &Path) -> bool {
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng, rngs::StdRng};

    use super::*;

    #[test]
    fn what_compression_makes_smaller_is_told_from_the_rest() {
        let mut bytes = vec![0; 16 << 10];
        StdRng::seed_from_u64(1).fill_bytes(&mut bytes);
        assert!(!shrinks(&bytes));
        assert!(!shrinks(&bytes[..LEAST_BYTES]) && !shrinks(&bytes[..100]));
        assert!(shrinks(&b"a document of words, and of more words ".repeat(400)));
    }
}
