//! The TTL monitor: deletes documents whose time is over.
//!
//! It uses the `delete` command like any client, so that a document is deleted by one path only,
//! with everything that belongs to it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_bson::{Binary, DocBuf, ObjectId, RawDoc, Value, doc};
use sheaf_storage::{Collection, Index};
use sheaf_timeseries::TimeseriesOptions;

use crate::client::Client;
use crate::dispatch;
use crate::message::{Message, Place};
use crate::mongod::Mongod;
use crate::node::Node;

/// How often it looks whether a pass is due; `ttlMonitorSleepSecs` may change at any time.
const TICK: Duration = Duration::from_millis(500);

/// Runs until shutdown.
pub async fn run(node: Arc<Node>) {
    // The monitor is a client without a connection: it has no number among them.
    let client = Arc::new(Client::new(0, None, &node.memory));
    client.access.lock().is_server = true;
    let mut last = Instant::now();
    loop {
        tokio::select! {
            () = tokio::time::sleep(TICK) => {}
            () = node.until_shutdown() => return,
        }
        let period = Duration::from_secs(node.parameters.int("ttlMonitorSleepSecs").max(1) as u64);
        if last.elapsed() < period || !node.parameters.bool("ttlMonitorEnabled") {
            continue;
        }
        last = Instant::now();
        // Other members of a set hear from the primary what is gone.
        if node.is_writable() {
            tokio::task::block_in_place(|| pass(&node, &client));
        }
    }
}

/// One pass over all collections.
pub fn pass(node: &Arc<Node>, client: &Arc<Client>) {
    let catalog = node.catalog();
    let now = node.clock.now_millis();
    let databases: Vec<String> = catalog.databases().map(str::to_owned).collect();
    for db in &databases {
        for known in catalog.collections(db) {
            for at in 0.. {
                // As it is now: a pass can take long, and an index that has been dropped since, or given more time, must
                // not cost a document more.
                let now_catalog = node.catalog();
                let Some(collection) = now_catalog.by_uuid(&known.uuid) else { break };
                let Some(filter) = filters(collection, now).into_iter().nth(at) else { break };
                if node.is_shutting_down() {
                    return;
                }
                delete(node, client, collection, filter.as_raw());
            }
        }
    }
    node.metrics.ttl_passes.add(1);
}

/// What is to be deleted from a collection, one filter for each TTL index and for a clustered
/// collection's own `expireAfterSeconds`.
fn filters(collection: &Collection, now: i64) -> Vec<DocBuf> {
    if collection.is_view() {
        return Vec::new();
    }
    let mut filters: Vec<DocBuf> =
        collection.indexes.iter().filter_map(|index| expired(index, now)).collect();
    let own = collection.options.as_raw().get("expireAfterSeconds").and_then(|v| v.as_f64());
    if let Some(timeseries) = TimeseriesOptions::of_catalog(collection.options.as_raw()) {
        filters = expired_buckets(collection, &timeseries, own, now);
    } else if let Some(cutoff) = own.and_then(|seconds| cutoff(now, seconds)) {
        filters.push(doc! { "_id": { "$lt": Value::DateTime(cutoff) } });
    }
    filters
}

/// Buckets go when all of their measurements are too old. An index says so by its specification as users see it.
fn expired_buckets(
    collection: &Collection,
    timeseries: &TimeseriesOptions,
    own: Option<f64>,
    now: i64,
) -> Vec<DocBuf> {
    let latest = format!("control.max.{}", timeseries.time_field);
    let old = |seconds: f64| {
        let cutoff = cutoff(now, seconds)?;
        let mut begin = [0; 12];
        let oldest = (cutoff - timeseries.span_millis()).div_euclid(1000).clamp(0, i64::from(u32::MAX));
        begin[..4].copy_from_slice(&(oldest as u32).to_be_bytes());
        Some(doc! {
            "_id": { "$lt": Value::ObjectId(ObjectId(begin)) },
            (latest.as_str()): { "$lt": Value::DateTime(cutoff) },
        })
    };
    let mut filters: Vec<DocBuf> = own.and_then(old).into_iter().collect();
    for index in collection.indexes.iter().filter(|index| index.ready) {
        let (Some(seconds), Some(partial)) = (index.expire_after_seconds, &index.partial) else { continue };
        filters.extend(old(seconds).map(|old| {
            doc! { "$and": [Value::Document(old.as_raw()), Value::Document(partial.as_raw())] }
        }));
    }
    filters
}

fn expired(index: &Index, now: i64) -> Option<DocBuf> {
    let [(field, _)] = index.fields.as_slice() else { return None };
    if !index.ready {
        return None;
    }
    let cutoff = cutoff(now, index.expire_after_seconds?)?;
    // Only dates are below a date, and one element of an array is enough: MongoDB's rules for TTL.
    let old = doc! { (field.as_str()): { "$lt": Value::DateTime(cutoff) } };
    Some(match &index.partial {
        Some(partial) => doc! { "$and": [Value::Document(old.as_raw()), Value::Document(partial.as_raw())] },
        None => old,
    })
}

fn cutoff(now: i64, seconds: f64) -> Option<i64> {
    (seconds >= 0.0 && seconds <= f64::from(i32::MAX)).then(|| now - (seconds * 1000.0) as i64)
}

fn delete(node: &Arc<Node>, client: &Arc<Client>, collection: &Collection, filter: RawDoc<'_>) {
    let command = doc! {
        "delete": collection.name(),
        "deletes": [{ "q": filter, "limit": 0 }],
        "collectionUUID": Value::Binary(Binary { subtype: 4, bytes: collection.uuid.as_bytes() }),
        "$db": collection.db(),
    };
    let message = Message {
        place: Place::Thread,
        body: command.as_raw(),
        sequences: &[],
        flags: sheaf_wire::Flags::default(),
        query_db: None,
    };
    let outcome = dispatch::run(&Mongod(node.clone()), client, &message);
    let mut bytes = (outcome.reply.elements().len() as i32 + 5).to_le_bytes().to_vec();
    bytes.extend_from_slice(outcome.reply.elements());
    bytes.push(0);
    let reply = RawDoc::new(&bytes);
    if outcome.ok {
        let deleted = reply.get("n").and_then(|n| n.as_exact_i64()).unwrap_or(0);
        node.metrics.ttl_deleted.add(deleted as u64);
    } else {
        // The collection may have been dropped meanwhile; the next pass sees what there is then.
        let attributes = doc! { "namespace": &collection.namespace, "error": reply };
        crate::log::warning(
            "INDEX",
            crate::log::ids::TTL_INTERRUPTED,
            "TTLMonitor",
            "TTLMonitor was interrupted",
            Some(attributes),
        );
    }
}
