//! A transaction's own writes, over its snapshot.

use std::collections::BTreeMap;

use crate::changes::Sink;
use crate::db::Cf;

/// Full keys (with prefix) to values; `None` hides what the snapshot has.
pub(crate) type Written = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

#[derive(Clone, Default)]
pub(crate) struct Overlay {
    pub records: Written,
    pub indexes: Written,
}

impl Overlay {
    pub fn of(&self, cf: Cf) -> &Written {
        if cf == Cf::Records { &self.records } else { &self.indexes }
    }
}

impl Sink for Overlay {
    fn put(&mut self, cf: Cf, key: &[u8], value: &[u8]) {
        let map = if cf == Cf::Records { &mut self.records } else { &mut self.indexes };
        map.insert(key.to_vec(), Some(value.to_vec()));
    }

    fn delete(&mut self, cf: Cf, key: &[u8]) {
        let map = if cf == Cf::Records { &mut self.records } else { &mut self.indexes };
        map.insert(key.to_vec(), None);
    }
}
