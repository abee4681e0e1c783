//! `$collStats` and `$indexStats`.

use sheaf_aggregate::Namespace;
use sheaf_bson::{DocBuf, DocWriter, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_storage::Collection;

use super::Db;

/// The document of `$collStats`.
pub fn coll_stats(db: &Db, namespace: &Namespace, spec: RawDoc<'_>) -> Result<Vec<DocBuf>> {
    let collection = db.collection(namespace);
    let wants_data = spec.get("storageStats").is_some() || spec.get("count").is_some();
    if wants_data && collection.is_some_and(|collection| collection.is_view()) {
        bail!(Code::COMMAND_NOT_SUPPORTED_ON_VIEW, "Namespace {namespace} is a view, not a collection");
    }
    if spec.get("count").is_some() && collection.is_none() {
        bail!(
            Code::NAMESPACE_NOT_FOUND,
            "Unable to retrieve count in $collStats stage :: caused by :: Collection [{namespace}] not found."
        );
    }
    Ok(vec![DocBuf::build(|out| {
        out.append("ns", namespace.to_string().as_str());
        out.append("host", db.hooks.host.as_str());
        out.append("localTime", Value::DateTime(db.now_millis));
        if spec.get("latencyStats").is_some() {
            let mut latency = out.document("latencyStats");
            for kind in ["reads", "writes", "commands", "transactions"] {
                latency.document(kind).append("latency", 0i64).append("ops", 0i64).append("queryableEncryptionLatencyMicros", 0i64);
            }
        }
        if let Some(options) = spec.get("storageStats") {
            let scale = options.as_doc().and_then(|o| o.get("scale")).and_then(|v| v.as_exact_i64()).unwrap_or(1);
            storage_stats(db, collection.map(|c| &**c), scale.max(1), &mut out.document("storageStats"));
        }
        if let (Some(_), Some(collection)) = (spec.get("count"), collection) {
            append_number(out, "count", collection.count() as i64);
        }
    })])
}

/// A number as small as it fits, as mongod's statistics have it.
fn append_number(out: &mut DocWriter<'_, Vec<u8>>, name: &str, number: i64) {
    match i32::try_from(number) {
        Ok(small) => out.append(name, small),
        Err(_) => out.append(name, number),
    };
}

fn storage_stats(db: &Db, collection: Option<&Collection>, scale: i64, out: &mut DocWriter<'_, Vec<u8>>) {
    let Some(collection) = collection else {
        for name in ["size", "count", "numOrphanDocs", "storageSize", "totalSize", "nindexes", "totalIndexSize"] {
            out.append(name, 0);
        }
        drop(out.document("indexDetails"));
        drop(out.document("indexSizes"));
        append_number(out, "scaleFactor", scale);
        return;
    };
    let (count, bytes) = (collection.count() as i64, collection.data_bytes() as i64);
    append_number(out, "size", bytes / scale);
    append_number(out, "count", count);
    if count > 0 {
        append_number(out, "avgObjSize", bytes / count);
    }
    out.append("numOrphanDocs", 0);
    let storage = db.engine.storage_bytes(collection) as i64;
    append_number(out, "storageSize", storage / scale);
    append_number(out, "freeStorageSize", 0);
    out.append("capped", collection.capped.is_some());
    if let Some(capped) = collection.capped {
        append_number(out, "max", capped.max.unwrap_or(0));
        append_number(out, "maxSize", capped.size / scale);
    }
    append_number(out, "nindexes", collection.indexes.len() as i64);
    drop(out.document("indexDetails"));
    drop(out.array("indexBuilds"));
    let sizes: Vec<(&str, i64)> =
        collection.indexes.iter().map(|index| (&*index.name, db.engine.index_bytes(index) as i64)).collect();
    let total: i64 = sizes.iter().map(|(_, size)| size).sum();
    append_number(out, "totalIndexSize", total / scale);
    append_number(out, "totalSize", (total + storage) / scale);
    let mut by_name = out.document("indexSizes");
    for (name, size) in sizes {
        append_number(&mut by_name, name, size / scale);
    }
    drop(by_name);
    append_number(out, "scaleFactor", scale);
}

/// One document for each index.
pub fn index_stats(db: &Db, namespace: &Namespace) -> Result<Vec<DocBuf>> {
    let Some(collection) = db.collection(namespace) else { return Ok(Vec::new()) };
    if collection.is_view() {
        bail!(Code::COMMAND_NOT_SUPPORTED_ON_VIEW, "Namespace {namespace} is a view, not a collection");
    }
    let one = |index: &std::sync::Arc<sheaf_storage::Index>| {
        DocBuf::build(|out| {
            out.append("name", &index.name);
            out.append("key", crate::index::key_pattern(index));
            out.append("host", db.hooks.host.as_str());
            out.document("accesses").append("ops", 0i64).append("since", Value::DateTime(db.now_millis));
            if !index.ready {
                out.append("building", true);
            }
            out.append("spec", &index.spec);
        })
    };
    Ok(collection.indexes.iter().map(one).collect())
}
