//! What is on record of the files of values.

use std::time::Instant;

use rocksdb::{ColumnFamily, WriteBatch};
use sheaf_errors::{Code, Result, bail};
use smallvec::SmallVec;

use crate::critical::impossible;
use crate::keys::catalog_key;

/// So many collections are told apart; documents of others are counted with the first.
const COLLECTIONS_MAX: usize = 64;

/// A file of values, as its row has it:
///
/// ```text
/// V number:u32 (big-endian) -> segment:u64 end:u64 (ident:u32 wanted:u64)*        (little-endian)
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FileRow {
    /// Index of the first entry of the segment that it is.
    pub segment: u64,
    /// Up to here, from its beginning, something may refer to it. What is not readable before that is damaged.
    pub end: u64,
    /// By collection, how many bytes of documents are thought to be wanted. Only what was looked for is sure.
    wanted: SmallVec<[(u32, u64); 1]>,
    /// Bytes that have been noted as wanted no more since the database was opened.
    pub noted: u64,
    /// Size of the file, once the log is done with it.
    pub bytes: Option<u64>,
    /// Less may be wanted than is thought.
    pub in_doubt: bool,
    /// It could not be collected, and is not tried again before.
    pub not_before: Option<Instant>,
    /// Differs from what is on record.
    pub changed: bool,
}

impl FileRow {
    pub fn new(segment: u64) -> FileRow {
        FileRow { segment, ..FileRow::default() }
    }

    /// Of all collections.
    pub fn wanted(&self) -> u64 {
        self.wanted.iter().map(|(_, bytes)| bytes).sum()
    }

    pub fn wanted_of(&self, ident: u32) -> u64 {
        self.wanted.iter().find(|(of, _)| *of == ident).map_or(0, |(_, bytes)| *bytes)
    }

    /// Where the count of a collection is: that of many is one.
    fn place_of(&self, ident: u32) -> Option<usize> {
        let own = self.wanted.iter().position(|(of, _)| *of == ident);
        own.or_else(|| (self.wanted.len() >= COLLECTIONS_MAX).then_some(0))
    }

    /// A document of so many bytes is there.
    pub fn add(&mut self, ident: u32, bytes: u64) {
        self.changed = true;
        match self.place_of(ident) {
            Some(at) => self.wanted[at].1 += bytes,
            None => self.wanted.push((ident, bytes)),
        }
    }

    /// So many bytes of it are not wanted any more.
    pub fn unwanted(&mut self, ident: u32, bytes: u64) {
        if let Some(at) = self.place_of(ident) {
            self.changed = true;
            let less = bytes.min(self.wanted[at].1);
            self.noted += less;
            self.wanted[at].1 -= less;
        }
    }

    /// What was looked for is what was wanted, when so much had been noted: what has been since is taken off, perhaps a second time.
    pub fn set_wanted(&mut self, wanted: impl IntoIterator<Item = (u32, u64)>, noted: u64) {
        self.in_doubt = false;
        self.wanted.clear();
        wanted.into_iter().for_each(|(ident, bytes)| self.add(ident, bytes));
        let mut since = self.noted - noted;
        for (_, bytes) in &mut self.wanted {
            let less = since.min(*bytes);
            (*bytes, since) = (*bytes - less, since - less);
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = [self.segment.to_le_bytes(), self.end.to_le_bytes()].concat();
        for (ident, wanted) in &self.wanted {
            bytes.extend_from_slice(&ident.to_le_bytes());
            bytes.extend_from_slice(&wanted.to_le_bytes());
        }
        bytes
    }

    fn read(bytes: &[u8]) -> Option<FileRow> {
        let (segment, rest) = bytes.split_first_chunk::<8>()?;
        let (end, mut rest) = rest.split_first_chunk::<8>()?;
        let mut row = FileRow {
            segment: u64::from_le_bytes(*segment),
            end: u64::from_le_bytes(*end),
            ..FileRow::default()
        };
        while let Some((ident, after)) = rest.split_first_chunk::<4>() {
            let (wanted, after) = after.split_first_chunk::<8>()?;
            row.wanted.push((u32::from_le_bytes(*ident), u64::from_le_bytes(*wanted)));
            rest = after;
        }
        rest.is_empty().then_some(row)
    }

    /// Puts it on record.
    pub fn put(&mut self, number: u32, catalog: &ColumnFamily, batch: &mut WriteBatch) {
        self.changed = false;
        batch.put_cf(catalog, catalog_key::of(catalog_key::VALUES, number), self.bytes());
    }
}

/// The number and the row of a file, if these are a key and a value of the catalog's family that have such.
pub(super) fn read(key: &[u8], value: &[u8]) -> Result<Option<(u32, FileRow)>> {
    let [catalog_key::VALUES, number @ ..] = key else { return Ok(None) };
    match (number.try_into().map(u32::from_be_bytes), FileRow::read(value)) {
        (Ok(number), Some(row)) => Ok(Some((number, row))),
        _ => bail!(Code::INTERNAL_ERROR, "what is on record of a file of values cannot be read: {key:?}"),
    }
}

/// The column families of a database, and their numbers in batches.
pub(crate) struct Families<'d> {
    pub all: [(u32, &'d ColumnFamily); 4],
    /// The number of records.
    pub records: u32,
    pub catalog: &'d ColumnFamily,
}

impl<'d> Families<'d> {
    pub fn of(&self, number: u32) -> &'d ColumnFamily {
        let found = self.all.iter().find(|(known, _)| *known == number);
        found.map_or_else(|| impossible!("a batch has a change in family {number}"), |(_, family)| family)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_is_counted_by_collection() {
        let mut row = FileRow::new(7);
        row.add(1, 10);
        row.add(2, 5);
        row.add(1, 10);
        row.unwanted(1, 8);
        assert_eq!((row.wanted_of(1), row.wanted_of(2), row.wanted()), (12, 5, 17));
        row.unwanted(2, u64::MAX);
        row.unwanted(3, 1);
        assert_eq!((row.wanted_of(2), row.wanted()), (0, 12));
        row.end = 99;
        row.changed = false;
        assert_eq!(FileRow::read(&row.bytes()), Some(FileRow { noted: 0, ..row.clone() }));
        assert_eq!(FileRow::read(&row.bytes()[..27]), None);
        let noted = row.noted;
        row.unwanted(1, 2);
        row.set_wanted([(4, 3)], noted);
        assert_eq!((row.wanted_of(1), row.wanted()), (0, 1));
        (10..200).for_each(|ident| row.add(ident, 1));
        assert_eq!((row.wanted.len(), row.wanted()), (COLLECTIONS_MAX, 191));
        row.unwanted(199, 1);
        assert_eq!(row.wanted(), 190);
    }
}
