//! Builds that another member has begun, or this one before it was started anew.
//!
//! Files come in at a build's own time, not at a place in the log: what RocksDB has of an index says nothing about whether
//! the log knows of it. So a build's files bring a *mark* with them, under a number that no index has, which names the
//! newest entry of whose effects they show anything. While the log has that entry, they are of use; when a rollback has
//! taken it back, they are not.
//!
//! ```text
//! [0 u32] [ident u32]  ->  term u64, index u64
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rocksdb::WriteBatch;
use sheaf_bson::RawDoc;
use sheaf_errors::{Code, Result, bail};
use uuid::Uuid;

use super::files::Files;
use super::folder::Folder;
use super::follow::is_small;
use super::sort::Sorter;
use crate::catalog::Collection;
use crate::core::Core;
use crate::db::{Cf, io_error};
use crate::index::{Index, KeySet, entry_key, entry_value, side_ident};
use crate::keys::{PREFIX, prefix_range, put_length};
use crate::options::OpTime;

/// Stands in the place of an index's number.
const MARKS: u32 = 0;

/// Entries written to memtables at once.
const BATCH_BYTES: usize = 1 << 20;

pub(crate) fn mark_key(ident: u32) -> [u8; 2 * PREFIX] {
    let mut key = [0; 2 * PREFIX];
    key[..PREFIX].copy_from_slice(&MARKS.to_be_bytes());
    key[PREFIX..].copy_from_slice(&ident.to_be_bytes());
    key
}

fn mark_value(at: OpTime) -> [u8; 16] {
    let mut value = [0; 16];
    value[..8].copy_from_slice(&at.term.to_le_bytes());
    value[8..].copy_from_slice(&at.index.to_le_bytes());
    value
}

impl Core {
    /// A file of marks, to come in together with the indexes' files.
    pub(super) fn write_marks(
        &self,
        indexes: &[Arc<Index>],
        at: OpTime,
        folder: &Path,
    ) -> Result<Vec<PathBuf>> {
        let mut files = Files::new(&self.base.db, folder, "marks");
        let mut idents: Vec<u32> = indexes.iter().map(|index| index.ident).collect();
        idents.sort_unstable();
        for ident in idents {
            files.put(&mark_key(ident), &mark_value(at))?;
        }
        files.finish()
    }

    /// Ends builds that the entry `at` says are finished: from the files that came in here, or from the documents.
    /// Everything before is written; nobody else writes.
    pub fn finish_builds(&self, collection: &Collection, names: &[&str], at: OpTime) -> Result<()> {
        let built = |index: &&Arc<Index>| !index.ready && names.contains(&index.name.as_str());
        let mut missing = Vec::new();
        for index in collection.maintained().filter(built) {
            let filled = self.definitions.builds().end_filled(index.ident);
            if !self.mark_holds(index.ident, at)? {
                missing.push(index.clone());
                continue;
            }
            if filled && index.unique {
                // Quicker than to ask the documents about every change.
                self.drain_all(index)?;
            }
            self.settle(collection, index)?;
        }
        if missing.is_empty() { Ok(()) } else { self.build_from_documents(collection, &missing, at) }
    }

    /// Whether files of the index have come in that show nothing but what the log has, up to the entry `at`.
    pub(super) fn mark_holds(&self, ident: u32, at: OpTime) -> Result<bool> {
        let Some(mark) = self.base.db.get(Cf::Indexes, &mark_key(ident))? else { return Ok(false) };
        let number = |from: usize| mark.get(from..from + 8)?.try_into().ok().map(u64::from_le_bytes);
        let (Some(term), Some(index)) = (number(0), number(8)) else { return Ok(false) };
        let known =
            if index == at.index { Some(at.term) } else { self.durability.knowledge().term_of(index) };
        Ok(index <= at.index && known == Some(term))
    }

    /// Whether files of an index of this number have come in, for whatever build.
    pub fn has_mark(&self, ident: u32) -> Result<bool> {
        Ok(self.base.db.get(Cf::Indexes, &mark_key(ident))?.is_some())
    }

    /// Before an index of this number is made by the entry `at`: whatever is there of an index of the same number that the
    /// log has not kept is removed.
    pub fn clear_strays(&self, ident: u32, at: OpTime, batch: &mut WriteBatch) -> Result<()> {
        let mark = self.base.db.get(Cf::Indexes, &mark_key(ident))?;
        if mark.as_ref().is_some_and(|mark| **mark == mark_value(at)) {
            return Ok(());
        }
        let cf = self.base.db.cf(Cf::Indexes);
        for ident in [ident, side_ident(ident)] {
            if self.has_entries(ident)? {
                let (from, to) = prefix_range(ident);
                batch.delete_range_cf(cf, from, to);
            }
        }
        // Not without need: RocksDB takes in no files where memtables have something, be it a deletion.
        if mark.is_some() {
            batch.delete_cf(cf, mark_key(ident));
        }
        Ok(())
    }

    pub(super) fn has_entries(&self, ident: u32) -> Result<bool> {
        let (from, to) = prefix_range(ident);
        let mut options = rocksdb::ReadOptions::default();
        options.set_iterate_upper_bound(to.to_vec());
        let mut iter = self.base.db.raw().raw_iterator_cf_opt(self.base.db.cf(Cf::Indexes), options);
        iter.seek(from);
        iter.status().map_err(io_error)?;
        Ok(iter.valid())
    }

    fn build_from_documents(
        &self,
        collection: &Collection,
        indexes: &[Arc<Index>],
        at: OpTime,
    ) -> Result<()> {
        let cf = self.base.db.cf(Cf::Indexes);
        let mut batch = WriteBatch::default();
        let mut clean = true;
        for index in indexes {
            for ident in [index.ident, side_ident(index.ident)] {
                if self.has_entries(ident)? {
                    // RocksDB takes in no files where memtables have something, be it a deletion.
                    clean &= ident != index.ident;
                    let (from, to) = prefix_range(ident);
                    batch.delete_range_cf(cf, from, to);
                }
            }
        }
        self.write_unlogged(batch)?;
        if clean && !is_small(collection) && self.build_by_files(collection, indexes, at)? {
            return Ok(());
        }
        self.build_in_memtables(collection, indexes)
    }

    /// False if RocksDB did not take the files in.
    fn build_by_files(&self, collection: &Collection, indexes: &[Arc<Index>], at: OpTime) -> Result<bool> {
        let folder = Folder::create(&self.base.options.path, &Uuid::new_v4())?;
        let mut sorter = Sorter::new(&folder.0, self.base.options.sort_bytes());
        let mut value = Vec::new();
        self.each_entry(collection, indexes, |index, record_key, key, type_bits| {
            value.clear();
            put_length(record_key.len(), &mut value);
            value.extend_from_slice(type_bits);
            sorter.push(index.ident, &[key, record_key], &value)
        })?;
        let (mut files, duplicates) = self.write_files(indexes, sorter, &folder.0, &|| Ok(()))?;
        if !duplicates.is_empty() {
            let namespace = &collection.namespace;
            bail!(
                Code::INTERNAL_ERROR,
                "the log ends a build of a unique index of {namespace}, which is not unique here"
            );
        }
        files.extend(self.write_marks(indexes, at, &folder.0)?);
        if let Err(error) = self.take_in(files) {
            tracing::debug!(%error, "files of an index were not taken in");
            return Ok(false);
        }
        Ok(true)
    }

    fn build_in_memtables(&self, collection: &Collection, indexes: &[Arc<Index>]) -> Result<()> {
        let cf = self.base.db.cf(Cf::Indexes);
        let mut batch = WriteBatch::default();
        let (mut entry, mut value) = (Vec::new(), Vec::new());
        self.each_entry(collection, indexes, |index, record_key, key, type_bits| {
            entry_key(index, key, record_key, &mut entry);
            entry_value(index, record_key, type_bits, &mut value);
            batch.put_cf(cf, &entry, &value);
            if batch.size_in_bytes() < BATCH_BYTES {
                return Ok(());
            }
            self.write_unlogged(std::mem::take(&mut batch))
        })?;
        self.write_unlogged(batch)
    }

    /// Hands over the entries of all documents as they are now: index, record key, key, type bits.
    fn each_entry(
        &self,
        collection: &Collection,
        indexes: &[Arc<Index>],
        mut each: impl FnMut(&Index, &[u8], &[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        let (from, to) = prefix_range(collection.ident);
        let mut options = rocksdb::ReadOptions::default();
        options.set_iterate_upper_bound(to.to_vec());
        options.fill_cache(false);
        let mut iter = self.base.db.raw().raw_iterator_cf_opt(self.base.db.cf(Cf::Records), options);
        iter.seek(from);
        let mut keys = KeySet::default();
        while let Some((full, doc)) = iter.item() {
            let doc = self.base.db.values().resolve(doc)?;
            for index in indexes {
                index.generate(RawDoc::new(&doc), &mut keys)?;
                index.multikey.add(&keys.arrays);
                for (key, type_bits) in keys.iter() {
                    each(index, &full[PREFIX..], key, type_bits)?;
                }
            }
            iter.next();
        }
        iter.status().map_err(io_error)
    }
}
