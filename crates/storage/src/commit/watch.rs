//! Who is told what has changed in some collections, as soon as it is visible: the donor of a range that is moved.
//!
//! Whatever is written passes [`Commits::write`](super::Commits::write) as a batch, whoever has ordered it and whatever it was before:
//! a unit, a transaction, the decision on a prepared one, entries of another member. What a batch changes is read from its
//! keys. While nobody watches, that costs one look at a flag.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rocksdb::{WriteBatch, WriteBatchIteratorCf};
use uuid::Uuid;

use crate::db::{Cf, Db};
use crate::oplog;
use crate::order::{Mutex, rank};
use crate::write::sessions::is_statement_key;

/// Something that is visible now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touched {
    /// A record of this collection was written or deleted.
    Record {
        /// The collection.
        collection: Uuid,
        /// The record's key.
        key: Arc<[u8]>,
    },
    /// A retryable statement of this session (its `lsid`) was put on record.
    Session(Arc<[u8]>),
}

/// Told of each commit after it is visible, and before whoever has made it leaves its collections. It waits for nothing.
pub type Watcher = Arc<dyn Fn(Vec<Touched>) + Send + Sync>;

#[derive(Default)]
pub(crate) struct Watch {
    any: AtomicBool,
    watched: Mutex<{ rank::LEAF }, Watched>,
}

#[derive(Default)]
struct Watched {
    /// By the prefix of their records.
    collections: Vec<(u32, Uuid)>,
    watcher: Option<Watcher>,
    /// RocksDB's numbers of the column families with records and with sessions.
    families: [u32; 2],
}

impl Watch {
    /// Watches these collections and no others. Nobody may be writing a batch.
    pub fn set(&self, db: &Db, collections: Vec<(u32, Uuid)>, watcher: Option<Watcher>) {
        let mut watched = self.watched.lock();
        self.any.store(!collections.is_empty() && watcher.is_some(), Ordering::Release);
        *watched =
            Watched { collections, watcher, families: [Cf::Records, Cf::Sessions].map(|cf| db.number(cf)) };
    }

    /// What a batch is about to change, and who is to be told.
    pub fn touched(&self, batch: &WriteBatch) -> Option<(Vec<Touched>, Watcher)> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let watched = self.watched.lock();
        let mut reader = Reader { of: &watched, found: Vec::new() };
        batch.iterate_cf(&mut reader);
        let found = reader.found;
        let watcher = watched.watcher.clone().filter(|_| !found.is_empty())?;
        Some((found, watcher))
    }
}

struct Reader<'w> {
    of: &'w Watched,
    found: Vec<Touched>,
}

impl Reader<'_> {
    fn read(&mut self, family: u32, key: &[u8], put: bool) {
        let [records, sessions] = self.of.families;
        if family == records {
            let Some((ident, record)) = key.split_first_chunk::<4>() else { return };
            let ident = u32::from_be_bytes(*ident);
            if let Some((_, collection)) = self.of.collections.iter().find(|(known, _)| *known == ident) {
                self.found.push(Touched::Record { collection: *collection, key: record.into() });
            }
        } else if family == sessions && put && is_statement_key(key) {
            let Some(lsid) = oplog::documents(key).next() else { return };
            self.found.push(Touched::Session(lsid.as_bytes().into()));
        }
    }
}

impl WriteBatchIteratorCf for Reader<'_> {
    fn put_cf(&mut self, family: u32, key: &[u8], _: &[u8]) {
        self.read(family, key, true);
    }

    fn delete_cf(&mut self, family: u32, key: &[u8]) {
        self.read(family, key, false);
    }

    fn merge_cf(&mut self, family: u32, key: &[u8], _: &[u8]) {
        self.read(family, key, true);
    }
}
