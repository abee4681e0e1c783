//! `$collStats` and `$indexStats`.

use std::sync::Arc;

use sheaf_aggregate::Namespace;
use sheaf_bson::{Binary, DocBuf, RawDoc, Value};
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
    db.engine.wait_for_decisions();
    let shown = db.collection(namespace);
    let buckets = shown.as_ref().and_then(|shown| buckets_of(db, shown));
    let found = buckets.or(shown);
    let is_buckets =
        |found: &Arc<Collection>| !found.is_view() && found.options.as_raw().element("timeseries").is_some();
    let timeseries = found.as_ref().is_some_and(is_buckets);
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
                write_bucket_stats(&mut stats, buckets, &db.hooks.open_buckets);
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

/// What a view that adds nothing stands on; what another adds would stand before the stage.
///
/// Errors: 40602.
fn behind_view(collection: &Collection, namespace: &Namespace, stage: &str) -> Result<Option<Namespace>> {
    let Some((under, stages)) = &collection.view else { return Ok(None) };
    if !stages.as_raw().is_empty() {
        bail!(40602, "{stage} is only valid as the first stage in a pipeline");
    }
    Ok(Some(Namespace::new(namespace.database.clone(), under.clone())))
}

/// One document for each plan that is remembered.
pub fn plan_cache_stats(db: &Db, namespace: &Namespace) -> Result<Vec<DocBuf>> {
    let Some(collection) = db.collection(namespace) else {
        bail!(50933, "collection '{namespace}' does not exist");
    };
    if let Some(under) = behind_view(&collection, namespace, "$planCacheStats")? {
        return plan_cache_stats(db, &under);
    }
    let view = db.view();
    let shown = view.plans().shown(collection.uuid, view.catalog().version());
    let one = |plan: DocBuf| {
        DocBuf::build(|out| {
            out.append_all(plan.as_raw());
            out.append("estimatedSizeBytes", plan.as_bytes().len() as i64);
            out.append("host", db.hooks.host.as_str());
            if let Some(shard) = &db.hooks.shard {
                out.append("shard", shard.as_str());
            }
        })
    };
    Ok(shown.into_iter().map(one).collect())
}

/// One document for each collection and view of the database; of every one, on `admin`.
pub fn cluster_catalog(db: &Db, namespace: &Namespace, spec: RawDoc<'_>) -> Vec<DocBuf> {
    let view = db.view();
    let catalog = view.catalog();
    let names: Vec<&str> = match namespace.database.as_str() {
        "admin" => catalog.databases().collect(),
        own => vec![own],
    };
    let shards = spec.get("shards").is_some_and(|flag| flag.truthy());
    let one = |collection: &Arc<Collection>| {
        let (database, _) = collection.namespace.split_once('.').unwrap_or((&collection.namespace, ""));
        DocBuf::build(|out| {
            out.append("ns", collection.namespace.as_str());
            out.append("db", database);
            let timeseries = collection.is_timeseries();
            let kind = if collection.is_view() { "view" } else { "collection" };
            out.append("type", if timeseries { "timeseries" } else { kind });
            if timeseries {
                let buckets = format!("{database}.system.buckets.{}", collection.name());
                let options =
                    catalog.collection(&buckets).map_or(&collection.options, |found| &found.options);
                let mut shown = out.document("options");
                let own = |name: &str| matches!(name, "clusteredIndex" | "validator" | "viewOn" | "pipeline");
                for option in options.as_raw().iter().filter(|option| !own(option.key())) {
                    shown.append_element(option);
                }
            } else {
                out.append("options", &collection.options);
            }
            {
                let mut info = out.document("info");
                info.append("readOnly", collection.is_view() && !timeseries);
                if !collection.is_view() {
                    let bytes = collection.uuid.as_bytes();
                    info.append("uuid", Value::Binary(Binary { subtype: 4, bytes }));
                }
            }
            let id = collection.indexes.first();
            if let Some(id) = id.filter(|index| index.spec.as_raw().element("clustered").is_none()) {
                out.append("idIndex", &id.spec);
            }
            out.append("sharded", false);
            if shards {
                let mut list = out.array("shards");
                db.hooks.shard.iter().for_each(|shard| _ = list.push(shard.as_str()));
            }
        })
    };
    names.into_iter().flat_map(|name| catalog.collections(name)).map(one).collect()
}

/// One document for each index.
pub fn index_stats(db: &Db, namespace: &Namespace) -> Result<Vec<DocBuf>> {
    let Some(shown) = db.collection(namespace) else { return Ok(Vec::new()) };
    let (collection, timeseries) = match buckets_of(db, &shown) {
        Some(buckets) => (buckets, TimeseriesOptions::of_catalog(shown.options.as_raw())),
        None => (shown, None),
    };
    if let Some(under) = behind_view(&collection, namespace, "$indexStats")? {
        return index_stats(db, &under);
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
    Ok(collection.counted_indexes().filter_map(one).collect())
}
