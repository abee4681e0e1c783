//! Where changes of keys go.

use rocksdb::WriteBatch;

use crate::db::{Cf, Db};

/// Where changes go: a write batch, or a transaction's own writes.
pub(crate) trait Sink {
    fn put(&mut self, cf: Cf, key: &[u8], value: &[u8]);
    fn delete(&mut self, cf: Cf, key: &[u8]);
}

/// A batch that knows its column families.
pub(crate) struct BatchSink<'b> {
    pub db: &'b Db,
    pub batch: &'b mut WriteBatch,
}

impl Sink for BatchSink<'_> {
    fn put(&mut self, cf: Cf, key: &[u8], value: &[u8]) {
        self.batch.put_cf(self.db.cf(cf), key, value);
    }
    fn delete(&mut self, cf: Cf, key: &[u8]) {
        self.batch.delete_cf(self.db.cf(cf), key);
    }
}
