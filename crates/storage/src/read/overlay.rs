//! A transaction's own writes, over its snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::db::Cf;
use crate::db::sink::Sink;

/// Full keys (with prefix) to values; `None` hides what the snapshot has.
pub(crate) type Written = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// What an entry takes besides key and value.
const ENTRY_BYTES: usize = 96;

/// Cursors and statements under way keep what they saw: where one of them has it, a write goes on with a copy.
#[derive(Default)]
pub(crate) struct Overlay {
    records: Written,
    indexes: Written,
    bytes: usize,
    /// Bytes of all copies together.
    copies: Arc<AtomicUsize>,
}

impl Clone for Overlay {
    fn clone(&self) -> Self {
        self.copies.fetch_add(self.bytes, Ordering::Relaxed);
        let (records, indexes) = (self.records.clone(), self.indexes.clone());
        Overlay { records, indexes, bytes: self.bytes, copies: self.copies.clone() }
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        self.copies.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Overlay {
    pub fn of(&self, cf: Cf) -> &Written {
        if cf == Cf::Records { &self.records } else { &self.indexes }
    }

    /// Memory that it takes, about, with all its copies.
    pub fn bytes(&self) -> usize {
        self.copies.load(Ordering::Relaxed)
    }

    /// Takes out what was written to the records and to the indexes.
    pub fn take(&mut self) -> [(Cf, Written); 2] {
        [(Cf::Records, std::mem::take(&mut self.records)), (Cf::Indexes, std::mem::take(&mut self.indexes))]
    }

    fn set(&mut self, cf: Cf, key: &[u8], value: Option<Vec<u8>>) {
        let len = |value: &Option<Vec<u8>>| value.as_ref().map_or(0, Vec::len);
        let map = if cf == Cf::Records { &mut self.records } else { &mut self.indexes };
        let more = len(&value);
        let (more, less) = match map.insert(key.to_vec(), value) {
            Some(before) => (more, len(&before)),
            None => (more + key.len() + ENTRY_BYTES, 0),
        };
        self.bytes = self.bytes + more - less;
        self.copies.fetch_add(more, Ordering::Relaxed);
        self.copies.fetch_sub(less, Ordering::Relaxed);
    }
}

impl Sink for Overlay {
    fn put(&mut self, cf: Cf, key: &[u8], value: &[u8]) {
        self.set(cf, key, Some(value.to_vec()));
    }

    fn delete(&mut self, cf: Cf, key: &[u8]) {
        self.set(cf, key, None);
    }
}
