//! Small questions about indexes that several parts ask.

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_collation::SharedCollator;
use sheaf_storage::{Collection, Index, IndexKind};

/// Per field of the index, whether it keeps hashes.
pub fn hashed_fields(index: &Index) -> Vec<bool> {
    if index.kind != IndexKind::Hashed {
        return vec![false; index.fields.len().max(1)];
    }
    key_pattern(index).iter().map(|e| e.value().as_str() == Some("hashed")).collect()
}

/// The index's key pattern, as in its specification.
pub fn key_pattern(index: &Index) -> RawDoc<'_> {
    index.spec.as_raw().get("key").and_then(|v| v.as_doc()).unwrap_or(RawDoc::EMPTY)
}

/// Whether the records themselves are in the order of `_id`, so that the `_id` index has no entries of its own.
pub fn clustered_by_id(collection: &Collection) -> bool {
    collection.capped.is_none()
}

/// Whether the index is that of a collection which was made as a clustered one.
pub fn is_clustered(index: &Index) -> bool {
    index.spec.as_raw().element("clustered").is_some()
}

/// Whether the index is the collection's own order.
pub fn is_record_order(collection: &Collection, index: &Index) -> bool {
    index.kind == IndexKind::Id && clustered_by_id(collection)
}

/// Whether the index's keys have strings as a query compares them that has this collator. Of another index bounds of
/// strings, and the order of strings, mean something else: it serves other values only.
pub fn compares_strings_alike(index: &Index, collator: Option<&SharedCollator>) -> bool {
    index.collator.as_ref() == collator
}

/// The text of a key pattern in plan summaries: `{ a: 1, b: -1 }`.
pub fn pattern_text(pattern: RawDoc<'_>) -> String {
    sheaf_bson::value_text(Value::Document(pattern))
}

/// A key pattern with each direction brought to 1 or -1, for comparing hints with indexes.
pub fn plain_pattern(pattern: RawDoc<'_>) -> DocBuf {
    DocBuf::build(|out| {
        for element in pattern.iter() {
            match element.value().as_f64() {
                Some(n) => out.append(element.key(), if n < 0.0 { -1 } else { 1 }),
                None => out.append_element(element),
            };
        }
    })
}
