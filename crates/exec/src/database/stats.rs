//! `$collStats` and `$indexStats`.

use std::sync::Arc;

use sheaf_aggregate::Namespace;
use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_rows::Cx;
use sheaf_storage::Collection;
use sheaf_timeseries::{TimeseriesOptions, buckets_namespace, listed_index};

use super::Db;
use crate::ddl::stats::{append_number, write_bucket_stats, write_storage_stats};
use crate::find;
use crate::plan::Query;
use crate::run::Reads;

/// The document of `$collStats`.
pub fn coll_stats(db: &Db, namespace: &Namespace, spec: RawDoc<'_>, cx: &mut Cx<'_>) -> Result<Vec<DocBuf>> {
    let now_millis = cx.limits.now_millis;
    let shown = db.collection(namespace);
    let buckets = shown.as_ref().and_then(|shown| buckets_of(db, shown));
    let timeseries = buckets.is_some();
    let found = buckets.or(shown);
    let collection = found.as_ref();
    let wants_data = ["storageStats", "count", "queryExecStats"].iter().any(|name| spec.get(name).is_some());
    if wants_data && collection.is_some_and(|collection| collection.is_view()) {
        bail!(Code::COMMAND_NOT_SUPPORTED_ON_VIEW, "Namespace {namespace} is a view, not a collection");
    }
    for (field, what) in [("count", "count"), ("queryExecStats", "queryExecStats")] {
        if spec.get(field).is_some() && collection.is_none() {
            bail!(
                Code::NAMESPACE_NOT_FOUND,
                "Unable to retrieve {what} in $collStats stage :: caused by :: Collection [{namespace}] not found."
            );
        }
    }
    let count = match collection.filter(|_| spec.get("count").is_some()) {
        Some(collection) => Some(db.count(collection, cx)?),
        None => None,
    };
    let scale = storage_scale(spec)?;
    let orphans = match collection.filter(|_| spec.get("storageStats").is_some()) {
        Some(collection) => orphans(collection, &db.reads, cx)?,
        None => 0,
    };
    Ok(vec![DocBuf::build(|out| {
        out.append("ns", namespace.to_string().as_str());
        if let Some(shard) = &db.hooks.shard {
            out.append("shard", shard.as_str());
        }
        out.append("host", db.hooks.host.as_str());
        out.append("localTime", Value::DateTime(now_millis));
        if let Some(options) = spec.get("latencyStats") {
            let histograms = options.as_doc().and_then(|o| o.get("histograms")).is_some_and(|v| v.truthy());
            out.append("latencyStats", &(db.hooks.latency_stats)(&namespace.to_string(), histograms));
        }
        if spec.get("storageStats").is_some() {
            let collection = collection.map(|collection| &**collection);
            let mut stats = out.document("storageStats");
            if let Some(buckets) = collection.filter(|_| timeseries) {
                write_bucket_stats(&mut stats, buckets);
            }
            write_storage_stats(&mut stats, &db.engine, collection, orphans, scale);
        }
        if let Some(count) = count {
            append_number(out, "count", count);
        }
        if let (Some(_), Some(collection)) = (spec.get("queryExecStats"), collection) {
            let (total, non_tailable) = collection.scans();
            let mut stats = out.document("queryExecStats");
            let mut scans = stats.document("collectionScans");
            scans.append("total", total as i64).append("nonTailable", non_tailable as i64);
        }
    })])
}

/// The buckets of a time-series collection.
fn buckets_of(db: &Db, shown: &Collection) -> Option<Arc<Collection>> {
    if !shown.is_timeseries() {
        return None;
    }
    db.view().collection(&buckets_namespace(shown.db(), shown.name())).filter(|c| !c.is_view()).cloned()
}

/// How many documents of a collection belong to other shards. Where nothing has been moved lately, nothing is read for it.
///
/// Errors: those of reading.
pub fn orphans(collection: &Arc<Collection>, reads: &Reads, cx: &mut Cx<'_>) -> Result<u64> {
    if !reads.mixed(collection)? {
        return Ok(0);
    }
    let query = Query { counting: true, only_paths: Some(Vec::new()), ..Query::default() };
    let owned = find::open(&query, collection, reads, cx)?.count(cx)?;
    Ok(collection.count().saturating_sub(owned))
}

/// `storageStats: {scale: n}`
fn storage_scale(spec: RawDoc<'_>) -> Result<i64> {
    let scale = spec.get("storageStats").and_then(|v| v.as_doc()).and_then(|options| options.get("scale"));
    match scale {
        None | Some(Value::Null | Value::Undefined) => Ok(1),
        Some(value) => match value.as_f64().map(|n| n as i64) {
            Some(scale) if scale >= 1 => Ok(scale),
            Some(scale) => {
                bail!(Code::BAD_VALUE, "BSON field 'scale' value must be >= 1, actual value '{scale}'")
            }
            None => bail!(
                Code::TYPE_MISMATCH,
                "BSON field '$collStats.storageStats.scale' is the wrong type '{}', expected types '[long, int, decimal, double]'",
                value.type_name()
            ),
        },
    }
}

/// One document for each index.
pub fn index_stats(db: &Db, namespace: &Namespace) -> Result<Vec<DocBuf>> {
    let Some(shown) = db.collection(namespace) else { return Ok(Vec::new()) };
    let (collection, timeseries) = match buckets_of(db, &shown) {
        Some(buckets) => (buckets, TimeseriesOptions::of_catalog(shown.options.as_raw())),
        None => (shown, None),
    };
    if collection.is_view() {
        bail!(Code::COMMAND_NOT_SUPPORTED_ON_VIEW, "Namespace {namespace} is a view, not a collection");
    }
    let one = |index: &Arc<sheaf_storage::Index>| {
        // Of a time-series collection as its users have named it; the order of buckets is none of its indexes.
        let spec = match &timeseries {
            Some(options) => listed_index(index.spec.as_raw(), options)?,
            None => index.spec.clone(),
        };
        Some(DocBuf::build(|out| {
            out.append("name", &index.name);
            out.append("key", spec.as_raw().get_or_missing("key"));
            out.append("host", db.hooks.host.as_str());
            let since = Value::DateTime(index.accesses.since_millis());
            out.document("accesses").append("ops", index.accesses.ops() as i64).append("since", since);
            if !index.ready {
                out.append("building", true);
            }
            if let Some(shard) = &db.hooks.shard {
                out.append("shard", shard.as_str());
            }
            out.append("spec", &spec);
        }))
    };
    Ok(collection.indexes.iter().filter_map(one).collect())
}
