//! Where a capped collection begins.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sheaf_errors::Result;

use crate::catalog::Collection;
use crate::db::{Cf, Db, IterCell};
use crate::keys::{PREFIX, capped_key, full_key, prefix_range};

/// A walk over the oldest committed records that the unit does not delete already.
pub(super) struct Oldest {
    /// Of the collection.
    pub ident: u32,
    /// Stands on the record to be deleted next, if there is one.
    pub cell: IterCell,
    /// [`Collection::version`] from before it began: what it shows is what is there for as long as this has not changed.
    pub version: u64,
}

impl Oldest {
    /// At the oldest committed record behind `trimmed`, the one that the unit deletes already (with its prefix; of any collection).
    /// The collection's lock is held: no other unit deletes from this end.
    pub fn after(db: &Arc<Db>, collection: &Collection, trimmed: Option<&[u8]>) -> Result<Oldest> {
        let version = collection.version();
        let (lower, upper) = prefix_range(collection.ident);
        let mut options = rocksdb::ReadOptions::default();
        options.set_iterate_upper_bound(upper.to_vec());
        // Nobody reads again what goes.
        options.fill_cache(false);
        let mut cell = IterCell::open(db, Cf::Records, options, db.values().pin());
        match trimmed {
            Some(key) if key.starts_with(&lower) => {
                if cell.step(|iter| iter.seek(key))? && cell.key() == Some(key) {
                    cell.step(|iter| iter.next())?;
                }
            }
            _ => {
                let first = capped_key(collection.state.first_key.load(Ordering::Acquire));
                let found = cell.step(|iter| iter.seek(full_key(collection.ident, &first)))?;
                let rid = cell.key().filter(|_| found).and_then(|key| key[PREFIX..].first_chunk());
                if let Some(rid) = rid {
                    collection.state.first_key.fetch_max(u64::from_be_bytes(*rid), Ordering::AcqRel);
                }
            }
        }
        Ok(Oldest { ident: collection.ident, cell, version })
    }
}
