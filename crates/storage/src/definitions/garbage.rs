//! Data of what was dropped: it is removed when no view can see it any more, and when the drop is in RocksDB's files.

use std::sync::Arc;

use rocksdb::WriteBatch;
use sheaf_errors::Result;

use crate::catalog::Collection;
use crate::db::{Cf, Db, io_error};
use crate::keys::{catalog_key, prefix_range};
use crate::order::{Mutex, rank};

/// Data of a dropped collection or index; removed when no view can see it any more.
pub(crate) struct Garbage {
    /// Keeps count of those who can still read it.
    pub holder: Option<Arc<Collection>>,
    pub prefixes: Vec<(Cf, u32)>,
    /// The commit that dropped it. Until that is flushed, a recovery begins before it and needs the data.
    pub index: u64,
}

/// The key in the catalog that remembers that a prefix is to be removed.
pub(crate) fn garbage_key(cf: Cf, ident: u32) -> Vec<u8> {
    let mut key = vec![catalog_key::GARBAGE, cf as u8];
    key.extend_from_slice(&ident.to_be_bytes());
    key
}

/// All that waits. Its lock has the rank [`rank::GARBAGE`].
#[derive(Default)]
pub(crate) struct GarbageList(Mutex<{ rank::GARBAGE }, Vec<Garbage>>);

impl GarbageList {
    /// Has this data removed when it may be.
    pub fn discard(&self, more: impl IntoIterator<Item = Garbage>) {
        self.0.lock().extend(more);
    }

    /// Puts this in the place of all that waits: what a start has found.
    pub fn replace(&self, all: Option<Garbage>) {
        let mut garbage = self.0.lock();
        garbage.clear();
        garbage.extend(all);
    }

    /// Whether no data of dropped collections and indexes waits for its removal.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// What waits.
    pub fn prefixes(&self) -> Vec<(Cf, u32)> {
        self.0.lock().iter().flat_map(|garbage| garbage.prefixes.clone()).collect()
    }

    /// Removes the data of dropped collections and indexes that nobody can read any more, where the files hold everything up
    /// to `flushed`. What was removed.
    pub fn collect(&self, db: &Db, flushed: u64) -> Vec<(Cf, u32)> {
        let ready: Vec<Garbage> = {
            let mut garbage = self.0.lock();
            let unused = |g: &Garbage| g.holder.as_ref().is_none_or(|holder| Arc::strong_count(holder) == 1);
            let (ready, wait) =
                garbage.drain(..).partition(|garbage| garbage.index <= flushed && unused(garbage));
            *garbage = wait;
            ready
        };
        for garbage in &ready {
            if let Err(error) = remove_prefixes(db, &garbage.prefixes) {
                tracing::warn!(%error, "data of a dropped collection stays until the next start");
            }
        }
        ready.into_iter().flat_map(|garbage| garbage.prefixes).collect()
    }
}

/// Deletes everything under these numbers. Needs no log: start-up does it again if it was lost.
pub(crate) fn remove_prefixes(db: &Db, prefixes: &[(Cf, u32)]) -> Result<()> {
    let mut batch = WriteBatch::default();
    for (cf, ident) in prefixes {
        if *cf == Cf::Records {
            db.values().note_dropped(*ident);
        }
        let (from, to) = prefix_range(*ident);
        db.raw().delete_file_in_range_cf(db.cf(*cf), from, to).map_err(io_error)?;
        batch.delete_range_cf(db.cf(*cf), from, to);
        batch.delete_cf(db.cf(Cf::Catalog), garbage_key(*cf, *ident));
    }
    db.write(batch)
}
