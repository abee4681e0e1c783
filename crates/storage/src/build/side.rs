//! Draining what writers have left beside an index ([`crate::index::side::Side`]) while it was built: it goes over into the index.

use sheaf_bson::RawDoc;
use sheaf_errors::Result;

use super::Build;
use crate::catalog::Collection;
use crate::core::Core;
use crate::db::{Cf, io_error};
use crate::index::side::{Change, FIRST, side_ident};
use crate::index::{Index, KeyCache, ends_operation, entry_key, entry_value};
use crate::keys::{PREFIX, prefix_range, prefixed};
use crate::options::Interrupt;

/// What it costs to decide about a change, and to drain one, as the meter counts.
const DECIDE: u32 = 100;
const DRAIN: u32 = 20;

/// Changes drained at once.
const BATCH_BYTES: usize = 1 << 20;

/// Entries of a unique index that the batch under way changes: the database does not show them yet.
type Unwritten = ahash::AHashMap<Vec<u8>, Option<Vec<u8>>>;

impl Core {
    /// Drains a closed generation into the index.
    pub(super) fn drain(
        &self,
        build: &Build,
        index: &Index,
        generation: u8,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let mut from = prefix_range(side_ident(index.ident)).0.to_vec();
        from.push(generation);
        let mut to = from.clone();
        to[PREFIX] = generation + 1;
        self.drain_range(index, &from, &to, &|batch| {
            self.wait_for_memory(false)?;
            interrupt()?;
            build.turn().write(|| self.write_unlogged(batch))
        })
    }

    /// Drains all of it, as far as it can be without asking the documents. No writer may be at work.
    pub(super) fn drain_all(&self, index: &Index) -> Result<()> {
        let (from, to) = prefix_range(side_ident(index.ident));
        self.drain_range(index, &from, &to, &|batch| self.write_unlogged(batch))
    }

    fn drain_range(
        &self,
        index: &Index,
        from: &[u8],
        to: &[u8],
        write: &dyn Fn(rocksdb::WriteBatch) -> Result<()>,
    ) -> Result<()> {
        let cf = self.base.db.cf(Cf::Indexes);
        let mut iter = self.iterate(from, to);
        let mut batch = rocksdb::WriteBatch::default();
        let mut unwritten = Unwritten::new();
        let (mut entry, mut value) = (Vec::new(), Vec::new());
        while let Some((side_key, side_value)) = iter.item() {
            sheaf_meter::tick(DRAIN)?;
            let change = Change::read(side_key, side_value);
            entry_key(index, change.key, change.record_key, &mut entry);
            let other = index.unique && self.belongs_to_another(&entry, change.record_key, &unwritten)?;
            match change.type_bits {
                // Both stay as they are until the end; a deletion that is not the entry's owner's means nothing.
                Some(_) if other => {
                    iter.next();
                    continue;
                }
                None if other => {}
                Some(type_bits) => {
                    entry_value(index, change.record_key, type_bits, &mut value);
                    batch.put_cf(cf, &entry, &value);
                    note(index, &mut unwritten, &entry, Some(&value));
                }
                None => {
                    batch.delete_cf(cf, &entry);
                    note(index, &mut unwritten, &entry, None);
                }
            }
            batch.delete_cf(cf, side_key);
            iter.next();
            if batch.size_in_bytes() >= BATCH_BYTES {
                unwritten.clear();
                write(std::mem::take(&mut batch))?;
            }
        }
        iter.status().map_err(io_error)?;
        write(batch)
    }

    fn belongs_to_another(&self, entry: &[u8], record_key: &[u8], unwritten: &Unwritten) -> Result<bool> {
        let owned = |value: &[u8]| crate::keys::entry_parts(true, entry, value).record_key == record_key;
        Ok(match unwritten.get(entry) {
            Some(value) => value.as_ref().is_some_and(|value| !owned(value)),
            None => self.base.db.get(Cf::Indexes, entry)?.is_some_and(|value| !owned(&value)),
        })
    }

    /// Ends a build: whatever is left beside the index goes into it. No writer may be at work, and the open generation
    /// must have been drained.
    ///
    /// Errors: `DuplicateKey` if documents share a key of a unique index.
    pub(super) fn settle(&self, collection: &Collection, index: &Index) -> Result<()> {
        if !index.unique {
            self.drain_all(index)?;
        } else {
            let (from, to) = prefix_range(side_ident(index.ident));
            let mut iter = self.iterate(&from, &to);
            let mut known = KeyCache::default();
            while let Some((key, value)) = iter.item() {
                self.decide(collection, index, &Change::read(key, value), &mut known)?;
                iter.next();
            }
            iter.status().map_err(io_error)?;
        }
        let (from, to) = prefix_range(side_ident(index.ident));
        let mut batch = rocksdb::WriteBatch::default();
        batch.delete_range_cf(self.base.db.cf(Cf::Indexes), from, to);
        batch.delete_cf(self.base.db.cf(Cf::Indexes), super::replay::mark_key(index.ident));
        self.write_unlogged(batch)
    }

    /// Lets the documents decide whose entry a unique key's is.
    fn decide(
        &self,
        collection: &Collection,
        index: &Index,
        change: &Change<'_>,
        known: &mut KeyCache,
    ) -> Result<()> {
        sheaf_meter::tick(DECIDE)?;
        let cf = self.base.db.cf(Cf::Indexes);
        let (mut entry, mut value) = (Vec::new(), Vec::new());
        entry_key(index, change.key, change.record_key, &mut entry);
        let found = self.base.db.get(Cf::Indexes, &entry)?.map(|value| value.to_vec());
        let owner = found.as_ref().map(|value| crate::keys::entry_parts(true, &entry, value).record_key);
        let mut batch = rocksdb::WriteBatch::default();
        match self.type_bits_of(collection, index, change.record_key, change.key, known)? {
            Some(type_bits) => {
                if let Some(owner) = owner.filter(|owner| *owner != change.record_key)
                    && self.type_bits_of(collection, index, owner, change.key, known)?.is_some()
                {
                    return Err(index.duplicate(&collection.namespace, change.key, &type_bits));
                }
                entry_value(index, change.record_key, &type_bits, &mut value);
                batch.put_cf(cf, &entry, &value);
            }
            None if owner == Some(change.record_key) => batch.delete_cf(cf, &entry),
            None => return Ok(()),
        }
        self.write_unlogged(batch)
    }

    /// The type bits with which a document has this key now, if it has it. Documents stay as they are while `known` is used.
    fn type_bits_of(
        &self,
        collection: &Collection,
        index: &Index,
        record_key: &[u8],
        key: &[u8],
        known: &mut KeyCache,
    ) -> Result<Option<Vec<u8>>> {
        let keys = known.keys_of(record_key, |keys| {
            let mut full = Vec::new();
            prefixed(collection.ident, record_key, &mut full);
            let Some(doc) = self.base.db.get(Cf::Records, &full)? else { return Ok(false) };
            match index.generate(RawDoc::new(&doc), keys) {
                Ok(()) => Ok(true),
                // It can have no entry then.
                Err(error) => ends_operation(error).map(|()| false),
            }
        })?;
        Ok(keys.and_then(|keys| keys.type_bits(key)).map(<[u8]>::to_vec))
    }

    /// Removes what is there of a build before the one that begins now.
    pub(super) fn clear_side(&self, index: &Index) -> Result<()> {
        let ident = side_ident(index.ident);
        if !self.has_entries(ident)? {
            return Ok(());
        }
        // Where the new build's duplicates will come in, memtables must have nothing, be it a deletion.
        let (from, to) = prefix_range(ident);
        let first = [&from[..], &[FIRST]].concat();
        let mut batch = rocksdb::WriteBatch::default();
        batch.delete_range_cf(self.base.db.cf(Cf::Indexes), &first[..], &to[..]);
        self.write_unlogged(batch)
    }

    /// An iterator over index entries, at the first of them.
    fn iterate(&self, from: &[u8], to: &[u8]) -> rocksdb::DBRawIterator<'_> {
        let mut options = rocksdb::ReadOptions::default();
        options.set_iterate_upper_bound(to.to_vec());
        let mut iter = self.base.db.raw().raw_iterator_cf_opt(self.base.db.cf(Cf::Indexes), options);
        iter.seek(from);
        iter
    }

    /// Writes what is no commit: entries that the end of the build, or recovery, would make again. It does not wait for
    /// room in memtables, since a member that follows others does this with the pipeline held.
    pub(super) fn write_unlogged(&self, batch: rocksdb::WriteBatch) -> Result<()> {
        let bytes = batch.size_in_bytes() as u64;
        self.base.db.write(batch)?;
        self.flushes.note_written(bytes);
        Ok(())
    }
}

fn note(index: &Index, unwritten: &mut Unwritten, entry: &[u8], value: Option<&Vec<u8>>) {
    if index.unique {
        unwritten.insert(entry.to_vec(), value.cloned());
    }
}
