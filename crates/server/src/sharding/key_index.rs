//! Which indexes are of use for a shard key.

use sheaf_bson::{RawDoc, Value};
use sheaf_storage::{Index, IndexKind};

/// Whether an index begins with these fields, in this order and way.
pub(super) fn begins_with(index: RawDoc<'_>, key: RawDoc<'_>) -> bool {
    let mut of_index = index.iter();
    key.iter().all(|field| {
        of_index.next().is_some_and(|other| {
            other.key() == field.key() && sheaf_bson::compare(other.value(), field.value()).is_eq()
        })
    })
}

/// Whether an index has the entries of all documents in the order of this shard key.
pub(super) fn is_index_of(index: &Index, key: RawDoc<'_>) -> bool {
    // The entries of `_id` are the records themselves.
    index.kind != IndexKind::Id && begins_with(index.key_pattern(), key) && unfit(index).is_none()
}

/// Why an index that begins with a shard key is none for it.
pub(super) fn unfit(index: &Index) -> Option<String> {
    let why = if !index.ready {
        "is being built"
    } else if index.multikey() {
        "is multikey"
    } else if index.sparse {
        "is sparse"
    } else if index.partial.is_some() {
        "is partial"
    } else if index.hidden {
        "is hidden"
    } else if index.spec.as_raw().get("collation").is_some_and(|collation| !is_simple(collation)) {
        "has a collation"
    } else {
        return None;
    };
    Some(why.to_owned())
}

fn is_simple(collation: Value<'_>) -> bool {
    collation.as_doc().and_then(|collation| collation.get("locale")?.as_str()) == Some("simple")
}
