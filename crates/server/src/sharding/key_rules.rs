//! What a shard key asks of its collection's indexes: unique ones begin with it, since each shard looks only for its own duplicates, and
//! the last one that supports it stays.

use std::sync::Arc;

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::ddl::index_spec;
use sheaf_shard::placement::KeyPattern;
use sheaf_storage::{Collection, Index};

use super::placements::Placed;
use crate::op::Operation;

impl Operation<'_> {
    /// What the shard has of a collection now, if that is sharded.
    ///
    /// Errors: `BadValue`, where the placement cannot be read.
    pub(crate) fn placed(&self, collection: &Collection) -> Result<Option<Arc<Placed>>> {
        let Some(shard) = self.shard() else { return Ok(None) };
        shard.placements().now(self.engine(), &self.catalog(), &collection.uuid)
    }
}

/// Checks the specification of a new index.
///
/// Errors: `CannotCreateIndex` for a unique one that does not begin with the shard key.
pub fn check_new_index(pattern: &KeyPattern, spec: RawDoc<'_>) -> Result<()> {
    let unique =
        ["unique", "prepareUnique"].iter().any(|flag| spec.get(flag).is_some_and(|flag| flag.truthy()));
    let key = spec.get("key").and_then(|key| key.as_doc()).unwrap_or(RawDoc::EMPTY);
    if unique && !is_unique_anywhere(pattern, key) {
        bail!(
            Code::CANNOT_CREATE_INDEX,
            "cannot create index with 'unique' or 'prepareUnique' option over {} with shard key pattern {}",
            sheaf_bson::document_text(key),
            sheaf_bson::document_text(pattern.document())
        );
    }
    Ok(())
}

/// Whether documents with the same key in such an index are on the same shard.
pub fn is_unique_anywhere(pattern: &KeyPattern, index: RawDoc<'_>) -> bool {
    let mut of_index = index.iter();
    // As in MongoDB: whoever makes `_id`s has them unique.
    index.iter().next().is_some_and(|first| first.key() == "_id")
        || pattern
            .document()
            .iter()
            .all(|field| of_index.next().is_some_and(|other| other.key() == field.key()))
}

/// Whether this index is the last one that supports the shard key, of those that are left when `gone` are dropped. Hashed keys need none.
pub fn is_last_for_key(
    pattern: &KeyPattern,
    collection: &Collection,
    index: &Index,
    gone: &[String],
) -> bool {
    if pattern.fields().iter().any(|field| field.hashed) || !supports(pattern, index) {
        return false;
    }
    let stays = |other: &Index| other.name != index.name && !gone.contains(&other.name);
    !collection
        .indexes
        .iter()
        .any(|other| stays(other) && !other.hidden && other.ready && supports(pattern, other))
}

/// Whether an index serves to find documents by their shard key.
pub fn supports(pattern: &KeyPattern, index: &Index) -> bool {
    let simple = |collation: Value<'_>| {
        collation.as_doc().and_then(|collation| collation.get("locale")?.as_str()) == Some("simple")
    };
    let mut of_index = index.key_pattern().iter();
    let begins = pattern.document().iter().all(|field| {
        let same = |other: sheaf_bson::Element<'_>| {
            other.key() == field.key() && sheaf_bson::compare(other.value(), field.value()).is_eq()
        };
        of_index.next().is_some_and(same)
    });
    begins
        && !index.sparse
        && index.partial.is_none()
        && index.spec.as_raw().get("collation").is_none_or(simple)
}

/// Whether the index serves to find documents by the shard key, or is the one on `_id`: `dropIndexes` with `"*"` leaves it.
pub fn stays(pattern: &KeyPattern, index: &Index) -> bool {
    let hashed = pattern.fields().iter().any(|field| field.hashed);
    index_spec::is_id_key(index.key_pattern()) || (!hashed && supports(pattern, index))
}
