//! A transaction's own writes, over its snapshot.

use std::collections::BTreeMap;

use crate::changes::Sink;
use crate::db::Cf;

/// Full keys (with prefix) to values; `None` hides what the snapshot has.
pub(crate) type Written = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// What an entry takes besides key and value.
const ENTRY_BYTES: usize = 96;

#[derive(Clone, Default)]
pub(crate) struct Overlay {
    pub records: Written,
    pub indexes: Written,
    bytes: usize,
}

impl Overlay {
    pub fn of(&self, cf: Cf) -> &Written {
        if cf == Cf::Records { &self.records } else { &self.indexes }
    }

    /// Memory that it takes, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn set(&mut self, cf: Cf, key: &[u8], value: Option<Vec<u8>>) {
        let len = |value: &Option<Vec<u8>>| value.as_ref().map_or(0, Vec::len);
        let map = if cf == Cf::Records { &mut self.records } else { &mut self.indexes };
        self.bytes += len(&value);
        match map.insert(key.to_vec(), value) {
            Some(before) => self.bytes -= len(&before),
            None => self.bytes += key.len() + ENTRY_BYTES,
        }
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
