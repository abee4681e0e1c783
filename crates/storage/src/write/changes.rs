//! What one document's insert, update or delete means in keys: the same code for plain writes,
//! transactions and recovery, so that applying the log gives what the write gave.

use sheaf_bson::RawDoc;
use sheaf_errors::{Code, Result, bail};
use smallvec::SmallVec;

use crate::catalog::Collection;
use crate::db::Cf;
use crate::db::sink::Sink;
use crate::flush::Flushes;
use crate::index::{Index, IndexKind, KeySet, ends_operation};
use crate::index::{entry_key, entry_value};
use crate::keys::{entry_parts, prefixed};
use crate::locks::{LockKey, LockTable};
use crate::read::cursor::{Cut, Direction};
use crate::read::view::View;
use crate::write::Op;

/// A table file has two keys of this length for every 16 MB of them, or more: not worth counting.
pub(crate) const REFUSED_KEY_BYTES: usize = 16 << 10;

/// What it costs to look up a key, as the meter counts.
const LOOKUP: u32 = 20;

/// Lock spaces.
const RECORD: u8 = 0;
const UNIQUE: u8 = 1;
const CAPPED: u8 = 2;

/// Keys of one document before and after, per index, and the locks that writing them takes. Kept and
/// filled again for the next document.
#[derive(Default)]
pub(crate) struct Changes {
    old: Vec<KeySet>,
    new: Vec<KeySet>,
    /// `[collection][record key]`.
    pub record: Vec<u8>,
    key: Vec<u8>,
    value: Vec<u8>,
    /// First the record's lock, then those of unique keys that come or go. A lock may be there twice, where two keys have
    /// one hash.
    pub locks: SmallVec<[LockKey; 8]>,
    /// What all that was handed on has come to.
    pub written: WrittenKeys,
}

/// How many keys of indexes have come and gone, those of `_id` included, which stand for the records themselves.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct WrittenKeys {
    /// Have come.
    pub inserted: u64,
    /// Have gone.
    pub deleted: u64,
}

/// A key that a document is about to take and that no other may have.
pub(crate) struct UniqueKey<'c> {
    pub index: &'c Index,
    /// With the index's prefix.
    pub entry: &'c [u8],
    pub key: &'c [u8],
}

fn has_entries(index: &Index) -> bool {
    index.kind != IndexKind::Id
}

impl Changes {
    /// Computes everything for a document going from `old` to `new` (either may be missing).
    pub fn compute(
        &mut self,
        collection: &Collection,
        record_key: &[u8],
        old: Option<RawDoc<'_>>,
        new: Option<RawDoc<'_>>,
        locks: &LockTable,
    ) -> Result<()> {
        prefixed(collection.ident, record_key, &mut self.record);
        self.locks.clear();
        self.locks.push(locks.key(RECORD, &self.record));
        let count = collection.indexes.len() + collection.replacements.len();
        self.old.resize_with(count.max(self.old.len()), KeySet::default);
        self.new.resize_with(count.max(self.new.len()), KeySet::default);
        for (at, index) in collection.maintained().enumerate() {
            self.old[at].clear();
            self.new[at].clear();
            if !has_entries(index) {
                continue;
            }
            if let Some(old) = old {
                // What is stored was indexed, unless the index would not have it now (being built).
                if let Err(error) = index.generate(old, &mut self.old[at]) {
                    if index.ready {
                        return Err(error);
                    }
                    ends_operation(error)?;
                    self.old[at].clear();
                }
            }
            if let Some(new) = new {
                index.generate(new, &mut self.new[at])?;
                index.multikey.add(&self.new[at].arrays);
            }
            if index.guards_keys() {
                // A key that the document keeps is nobody else's to take, before and after: only what changes hands is locked.
                self.old[at].each_difference(&self.new[at], |key| {
                    sheaf_meter::tick(1)?;
                    prefixed(index.ident, key, &mut self.key);
                    self.locks.push(locks.key(UNIQUE, &self.key));
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// Refuses keys so long that a few of them fill what table files' own keys may take of memory, if these take that already.
    /// What goes away is never refused.
    ///
    /// Errors: `ExceededMemoryLimit`.
    pub fn check_long_keys(&self, flushes: &Flushes, collection: &Collection, op: Op<'_>) -> Result<()> {
        let used = flushes.file_key_bytes();
        if used < flushes.file_key_bytes_max() || self.longest_new_key(collection, op) <= REFUSED_KEY_BYTES {
            return Ok(());
        }
        bail!(
            Code::EXCEEDED_MEMORY_LIMIT,
            "Long index keys take {used} bytes of memory already, so that no more keys of over {REFUSED_KEY_BYTES} \
             bytes can be added to {}",
            collection.namespace
        );
    }

    /// The length of the longest key that was not there before.
    fn longest_new_key(&self, collection: &Collection, op: Op<'_>) -> usize {
        let record = if matches!(op, Op::Insert(_)) { self.record.len() } else { 0 };
        let sets = self.old.iter().zip(&self.new).take(collection.maintained().count());
        sets.flat_map(|(old, new)| new.iter().map(|(key, _)| key).filter(|key| !old.contains(key)))
            .map(<[u8]>::len)
            .fold(record, usize::max)
    }

    /// Asks `taken` for each key that the new document takes, the old one had not, and no other document may have.
    ///
    /// Errors: `DuplicateKey`.
    pub fn check_unique(
        &mut self,
        collection: &Collection,
        mut taken: impl FnMut(&UniqueKey<'_>) -> Result<bool>,
    ) -> Result<()> {
        for (at, index) in collection.maintained().enumerate() {
            if !index.guards_keys() {
                continue;
            }
            for (key, type_bits) in self.new[at].iter() {
                if !self.old[at].contains(key) {
                    sheaf_meter::tick(LOOKUP)?;
                    prefixed(index.ident, key, &mut self.key);
                    if taken(&UniqueKey { index, entry: &self.key, key })? {
                        return Err(index.duplicate(&collection.namespace, key, type_bits));
                    }
                }
            }
        }
        Ok(())
    }

    /// Bytes that its buffers take.
    pub fn capacity(&self) -> usize {
        self.old.iter().chain(&self.new).map(KeySet::capacity).sum::<usize>() + self.record.capacity()
    }

    /// Hands the record's and all indexes' changes to `sink`. `stored` is what the record is from now on: the new document, or what refers to it.
    pub fn emit(
        &mut self,
        collection: &Collection,
        record_key: &[u8],
        stored: Option<&[u8]>,
        sink: &mut impl Sink,
    ) {
        match stored {
            Some(stored) => sink.put(Cf::Records, &self.record, stored),
            None => sink.delete(Cf::Records, &self.record),
        }
        for (at, index) in collection.maintained().enumerate() {
            if !index.ready {
                self.emit_beside(at, index, record_key, sink);
            } else if has_entries(index) {
                self.emit_index(at, index, record_key, sink);
            }
        }
    }

    /// Counts the key of the `_id` index, which has no entries of its own.
    pub fn count_id(&mut self, collection: &Collection, op: Op<'_>) {
        if collection.indexes.first().is_none_or(|index| has_entries(index)) {
            return;
        }
        match op {
            Op::Insert(_) => self.written.inserted += 1,
            Op::Delete(_) => self.written.deleted += 1,
            Op::Update { .. } => {}
        }
    }

    fn emit_index(&mut self, at: usize, index: &Index, record_key: &[u8], sink: &mut impl Sink) {
        for (key, _) in self.old[at].iter() {
            if !self.new[at].contains(key) {
                entry_key(index, key, record_key, &mut self.key);
                sink.delete(Cf::Indexes, &self.key);
                self.written.deleted += 1;
            }
        }
        for (key, type_bits) in self.new[at].iter() {
            if !self.old[at].contains_exactly(key, type_bits) {
                entry_key(index, key, record_key, &mut self.key);
                entry_value(index, record_key, type_bits, &mut self.value);
                sink.put(Cf::Indexes, &self.key, &self.value);
                self.written.inserted += 1;
            }
        }
    }

    /// The changes of an index that is being built go beside it.
    fn emit_beside(&mut self, at: usize, index: &Index, record_key: &[u8], sink: &mut impl Sink) {
        let (old, new) = (&self.old[at], &self.new[at]);
        for (key, _) in old.iter().filter(|(key, _)| !new.contains(key)) {
            let out = (&mut self.key, &mut self.value);
            index.side.change(index.ident, key, record_key, None, out);
            sink.put(Cf::Indexes, &self.key, &self.value);
        }
        for (key, type_bits) in new.iter().filter(|(key, bits)| !old.contains_exactly(key, bits)) {
            let out = (&mut self.key, &mut self.value);
            index.side.change(index.ident, key, record_key, Some(type_bits), out);
            sink.put(Cf::Indexes, &self.key, &self.value);
        }
    }
}

impl UniqueKey<'_> {
    /// Whether another document has the key, by a view.
    pub fn taken(&self, view: &View, record_key: &[u8]) -> Result<bool> {
        if self.index.unique {
            let Some(found) = view.get_full(Cf::Indexes, self.entry)? else { return Ok(false) };
            return Ok(entry_parts(true, self.entry, &found).record_key != record_key);
        }
        let mut cursor = view.index(self.index, Direction::Forward)?;
        let mut found = cursor.seek(Cut::Before(self.key))?;
        while found && cursor.key() == self.key {
            if cursor.record_key() != record_key {
                return Ok(true);
            }
            found = cursor.next()?;
        }
        Ok(false)
    }
}

/// The lock of one record.
pub(crate) fn record_lock(locks: &LockTable, collection: &Collection, record_key: &[u8]) -> LockKey {
    let mut key = Vec::with_capacity(record_key.len() + 4);
    prefixed(collection.ident, record_key, &mut key);
    record_lock_at(locks, &key)
}

/// The lock of the record with this key, prefix included.
pub(crate) fn record_lock_at(locks: &LockTable, full_key: &[u8]) -> LockKey {
    locks.key(RECORD, full_key)
}

/// The lock that inserts into a capped collection take: they go in one after another.
pub(crate) fn capped_lock(locks: &LockTable, collection: &Collection) -> LockKey {
    locks.key(CAPPED, &collection.ident.to_be_bytes())
}
