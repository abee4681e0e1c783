//! Keys of earlier versions made those of this one, before anything else reads them.
//!
//! Up to version 1 a NUL in a string was `00 FF` in its key, so that the key of an empty string began that of a string
//! that begins with NUL: an equality found both, and a descending unique index had them in the wrong order. Which keys the data
//! files have stands among them, and so goes with each copy of them. Little is ever to be done: what has no such string keeps
//! its bytes.

use rocksdb::WriteBatch;
use sheaf_bson::RawDoc;
use sheaf_errors::Result;

use crate::catalog::Collection;
use crate::db::{Cf, Db, io_error};
use crate::definitions::stored::load_catalog;
use crate::index::{Index, IndexKind, KeySet, entry_key, entry_value, side_ident};
use crate::keys::{PREFIX, catalog_key, id_key, prefix_range, prefixed};

/// The version of keys that this version writes.
const KEYS: u8 = 2;
/// So much is collected before it is written, and written before it is flushed.
const BATCH_BYTES: usize = 4 << 20;
const FLUSH_BYTES: usize = 64 << 20;

/// Brings the keys of an open database up to date. A crash in the middle of it leaves what the next start mends.
pub(crate) fn rekey(db: &Db) -> Result<()> {
    if db.get(Cf::Catalog, catalog_key::KEYS)?.is_some_and(|found| *found == [KEYS]) {
        return Ok(());
    }
    let mut out = Writes { db, batch: WriteBatch::default(), unflushed: 0, keys: 0 };
    for collection in load_catalog(db)?.all().filter(|collection| !collection.is_view()) {
        if collection.capped.is_none() {
            move_records(collection, &mut out)?;
        }
        for index in collection.maintained().filter(|index| index.kind != IndexKind::Id) {
            if !index.ready {
                forget_unready(index, &mut out)?;
            } else if !has_all_entries(db, collection, index)? {
                rebuild(collection, index, &mut out)?;
            }
        }
    }
    out.batch.put_cf(db.cf(Cf::Catalog), catalog_key::KEYS, [KEYS]);
    out.write()?;
    if out.keys > 0 {
        tracing::info!(keys = out.keys, "made the keys of strings with low bytes those of this version");
        out.flush()?;
    }
    Ok(())
}

/// What is to be written, and how much of it there is.
struct Writes<'d> {
    db: &'d Db,
    batch: WriteBatch,
    unflushed: usize,
    keys: u64,
}

impl Writes<'_> {
    fn put(&mut self, cf: Cf, key: &[u8], value: &[u8]) -> Result<()> {
        self.batch.put_cf(self.db.cf(cf), key, value);
        self.keys += 1;
        if self.batch.size_in_bytes() >= BATCH_BYTES {
            self.write()?;
        }
        if self.unflushed >= FLUSH_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn remove_prefix(&mut self, ident: u32) {
        let (from, to) = prefix_range(ident);
        self.batch.delete_range_cf(self.db.cf(Cf::Indexes), from, to);
    }

    fn write(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        self.unflushed += batch.size_in_bytes();
        self.db.write(batch)
    }

    fn flush(&mut self) -> Result<()> {
        self.unflushed = 0;
        self.db.flush_and_wait()
    }
}

/// Calls `each` with record key and document of each record under a number, until it says false. What is no document (`validate` tells of it)
/// has no keys.
fn each_record(db: &Db, ident: u32, mut each: impl FnMut(&[u8], RawDoc<'_>) -> Result<bool>) -> Result<()> {
    let (from, to) = prefix_range(ident);
    let mut options = rocksdb::ReadOptions::default();
    options.set_iterate_upper_bound(to.to_vec());
    let mut iter = db.raw().raw_iterator_cf_opt(db.cf(Cf::Records), options);
    iter.seek(from);
    while let Some((key, value)) = iter.item() {
        let value = &db.values().resolve(value)?;
        let whole =
            sheaf_bson::validate(value, sheaf_bson::MAX_DEPTH * 2).is_ok_and(|len| len == value.len());
        if whole && !each(&key[PREFIX..], RawDoc::new(value))? {
            return Ok(());
        }
        iter.next();
    }
    iter.status().map_err(io_error)
}

/// A record's new key may be the old one of another. So all of them go to a place beside the collection first, and come back when none
/// has an old key any more.
fn move_records(collection: &Collection, out: &mut Writes<'_>) -> Result<()> {
    let beside = side_ident(collection.ident);
    for (from, to) in [(collection.ident, beside), (beside, collection.ident)] {
        let mut full = Vec::new();
        each_record(out.db, from, |key, doc| {
            let right = id_key(doc)?;
            if from == beside || key != right {
                prefixed(from, key, &mut full);
                out.batch.delete_cf(out.db.cf(Cf::Records), &full);
                prefixed(to, &right, &mut full);
                out.put(Cf::Records, &full, doc.as_bytes())?;
            }
            Ok(true)
        })?;
        out.write()?;
    }
    Ok(())
}

/// A build that was under way begins again from the documents.
fn forget_unready(index: &Index, out: &mut Writes<'_>) -> Result<()> {
    out.remove_prefix(index.ident);
    out.remove_prefix(side_ident(index.ident));
    out.batch.delete_cf(out.db.cf(Cf::Indexes), crate::build::mark_key(index.ident));
    out.write()
}

fn has_all_entries(db: &Db, collection: &Collection, index: &Index) -> Result<bool> {
    let (mut keys, mut key, mut value, mut all) = (KeySet::default(), Vec::new(), Vec::new(), true);
    each_record(db, collection.ident, |record_key, doc| {
        index.generate(doc, &mut keys)?;
        for (at, type_bits) in keys.iter() {
            entry_key(index, at, record_key, &mut key);
            entry_value(index, record_key, type_bits, &mut value);
            all &= db.get(Cf::Indexes, &key)?.is_some_and(|found| *found == *value);
        }
        Ok(all)
    })?;
    Ok(all)
}

fn rebuild(collection: &Collection, index: &Index, out: &mut Writes<'_>) -> Result<()> {
    out.remove_prefix(index.ident);
    let (mut keys, mut key, mut value) = (KeySet::default(), Vec::new(), Vec::new());
    each_record(out.db, collection.ident, |record_key, doc| {
        index.generate(doc, &mut keys)?;
        for (at, type_bits) in keys.iter() {
            entry_key(index, at, record_key, &mut key);
            entry_value(index, record_key, type_bits, &mut value);
            out.put(Cf::Indexes, &key, &value)?;
        }
        Ok(true)
    })?;
    out.write()
}
