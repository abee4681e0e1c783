//! The catalog as it is stored: documents, counters and what is known of indexes' arrays.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rocksdb::IteratorMode;
use sheaf_bson::RawDoc;
use sheaf_errors::{Code, Result, bail};

use crate::catalog::{Catalog, Collection};
use crate::db::{Cf, Db, io_error};
use crate::keys::{catalog_key, prefix_range};

/// Reads the catalog back.
pub(crate) fn load_catalog(db: &Db) -> Result<Catalog> {
    let mut catalog = Catalog::default();
    let mut idents = ahash::AHashSet::new();
    for item in db.raw().iterator_cf(db.cf(Cf::Catalog), IteratorMode::Start) {
        let (key, value) = item.map_err(io_error)?;
        if key.first() != Some(&catalog_key::COLLECTION) || key.len() != 5 {
            continue;
        }
        let ident = u32::from_be_bytes([key[1], key[2], key[3], key[4]]);
        let counters = db.get(Cf::Catalog, &catalog_key::of(catalog_key::COUNTERS, ident))?;
        let counters = counters.map(|bytes| read_counters(&bytes)).transpose()?;
        let masks = |ident: u32| match db.get(Cf::Catalog, &catalog_key::of(catalog_key::MULTIKEY, ident))? {
            Some(masks) => read_masks(&masks).map(Some),
            None => Ok(None),
        };
        let collection = Collection::from_doc(RawDoc::new(&value), counters.unwrap_or((0, 0)), masks)?;
        if collection.ident != ident {
            bail!(
                Code::INTERNAL_ERROR,
                "{} stands under number {ident} and has {}",
                collection.namespace,
                collection.ident
            );
        }
        for ident in std::iter::once(ident).chain(collection.maintained().map(|index| index.ident)) {
            if !idents.insert(ident) {
                bail!(
                    Code::INTERNAL_ERROR,
                    "number {ident} in {} has another owner as well",
                    collection.namespace
                );
            }
        }
        if collection.capped.is_some() {
            collection.state.next_key.store(last_rid(db, ident)? + 1, Ordering::Release);
        }
        catalog.put(Arc::new(collection));
    }
    Ok(catalog)
}

/// Documents and bytes of a collection, as a checkpoint has written them.
fn read_counters(bytes: &[u8]) -> Result<(i64, i64)> {
    let number = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(i64::from_le_bytes);
    match (number(0), number(8)) {
        (Some(docs), Some(size)) if bytes.len() == 16 => Ok((docs, size)),
        _ => bail!(Code::INTERNAL_ERROR, "a collection's counters have {} bytes", bytes.len()),
    }
}

/// Which fields of an index have arrays, as a checkpoint has written it. What cannot be read is not taken for none: queries
/// would miss documents.
fn read_masks(bytes: &[u8]) -> Result<Vec<u64>> {
    if !bytes.len().is_multiple_of(8) {
        bail!(Code::INTERNAL_ERROR, "what is known of an index's arrays has {} bytes", bytes.len());
    }
    Ok(bytes
        .chunks_exact(8)
        .map(|mask| mask.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte)))
        .collect())
}

/// The number of a capped collection's newest record.
fn last_rid(db: &Db, ident: u32) -> Result<u64> {
    let (lower, upper) = prefix_range(ident);
    let mut iter = db.raw().raw_iterator_cf(db.cf(Cf::Records));
    iter.seek_for_prev(upper);
    iter.status().map_err(io_error)?;
    let rid = iter.key().filter(|key| key.starts_with(&lower)).and_then(|key| key[4..].first_chunk::<8>());
    Ok(rid.map_or(0, |bytes| u64::from_be_bytes(*bytes)))
}
