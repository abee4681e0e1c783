//! What a collection that gets another key or place is called meanwhile, and how what is whose is told.

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_storage::Uuid;

/// The hidden name of a collection that gets another key or place, and that under which an old one goes.
pub fn hidden_names(db: &str, new: &[u8; 16], old: &[u8; 16]) -> (String, String) {
    let name = |uuid: &[u8; 16]| format!("{db}.system.resharding.{}", Uuid::from_bytes(*uuid));
    (name(new), name(old))
}

/// The keys of a shard as commands have them: `{key, ranges}`.
pub fn keys_document(key: RawDoc<'_>, ranges: &[(RawDoc<'_>, RawDoc<'_>)]) -> DocBuf {
    DocBuf::build(|out| {
        out.append("key", key);
        let mut list = out.array("ranges");
        for (min, max) in ranges {
            list.document().append("min", *min).append("max", *max);
        }
    })
}

/// Whether two lists of indexes are the same, in any order.
pub fn same_indexes(a: Value<'_>, b: Value<'_>) -> bool {
    let sorted = |list: Value<'_>| {
        let list = list.as_array().unwrap_or(RawDoc::EMPTY);
        let mut specs: Vec<Vec<u8>> =
            list.values().filter_map(|spec| spec.as_doc()).map(|spec| spec.as_bytes().to_vec()).collect();
        specs.sort();
        specs
    };
    sorted(a) == sorted(b)
}
