//! `$collStats` and `$indexStats`.

use sheaf_aggregate::Namespace;
use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use super::Db;
use crate::ddl::stats::{append_number, write_storage_stats};

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
                latency
                    .document(kind)
                    .append("latency", 0i64)
                    .append("ops", 0i64)
                    .append("queryableEncryptionLatencyMicros", 0i64);
            }
        }
        if let Some(options) = spec.get("storageStats") {
            let scale =
                options.as_doc().and_then(|o| o.get("scale")).and_then(|v| v.as_exact_i64()).unwrap_or(1);
            let collection = collection.map(|collection| &**collection);
            write_storage_stats(&mut out.document("storageStats"), &db.engine, collection, scale);
        }
        if let (Some(_), Some(collection)) = (spec.get("count"), collection) {
            append_number(out, "count", collection.count());
        }
    })])
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
