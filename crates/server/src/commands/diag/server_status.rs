//! `serverStatus`: the figures that monitoring reads.

use std::sync::atomic::Ordering;

use sheaf_aggregate::STAGES;
use sheaf_errors::Result;
use sheaf_front::status::{self, Doc, Section, put};
use sheaf_storage::{Collection, Index, IndexKind};

use super::replication;
use crate::args::Args;
use crate::command::*;
use crate::node::Node;
use crate::op::Operation;
use crate::reply::Reply;

/// `{serverStatus: 1, all | none: 1, <section>: 0 | 1}`.
pub struct ServerStatus<'a> {
    body: sheaf_bson::RawDoc<'a>,
}

impl ServerStatus<'_> {
    /// All that it shows unless it is told otherwise.
    pub fn whole() -> ServerStatus<'static> {
        ServerStatus { body: sheaf_bson::RawDoc::EMPTY }
    }
}

/// Sections in MongoDB's (alphabetical) order; ours stand among them.
const SECTIONS: &[Section<Node>] = &[
    ("asserts", |node, doc| status::asserts(node, doc)),
    ("catalogStats", catalog_stats),
    ("connections", |node, doc| status::connections(node, doc)),
    ("defaultRWConcern", default_concern),
    ("electionMetrics", replication::elections),
    ("extra_info", |node, doc| status::extra_info(node, doc)),
    ("featureCompatibilityVersion", feature_version),
    ("flowControl", replication::flow_control),
    ("globalLock", global_lock),
    ("indexStats", index_stats),
    ("logicalSessionRecordCache", session_cache),
    ("mem", |node, doc| status::memory(node, doc)),
    ("metrics", metrics),
    ("network", |node, doc| status::network(node, doc)),
    ("opLatencies", |node, doc| status::latencies(node, doc)),
    ("opcounters", |node, doc| status::opcounters(node, doc)),
    ("opcountersRepl", replication::opcounters),
    ("oplogTruncation", replication::oplog_truncation),
    ("queues", queues),
    ("readConcernCounters", |node, doc| node.metrics.read_concerns.write(doc)),
    ("repl", replication::set),
    ("security", |node, doc| {
        node.logins.write(|name| sheaf_front::sasl::takes(&node.parameters, name), doc);
        sheaf_front::tls::control::write_status(node, doc);
    }),
    ("shardingStatistics", sharding_statistics),
    ("sheaf", engine),
    ("storageEngine", storage_engine),
    ("transactions", transactions),
    ("transportSecurity", |node, doc| sheaf_front::tls::control::write_versions(node, doc)),
    ("wiredTiger", wired_tiger),
];

/// Sections of a member of a replica set.
const ONLY_IN_SETS: [&str; 4] = ["electionMetrics", "flowControl", "oplogTruncation", "repl"];

impl<'a> Command<'a, Operation<'a>> for ServerStatus<'a> {
    const NAME: &'static str = "serverStatus";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "figures about the whole server",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::ServerStatus])]),
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(ServerStatus { body: args.body() })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let node: &Node = op.node();
        let mut reply = Reply::with_capacity(8192);
        let mut written = Ok(());
        reply.fill(|doc| {
            status::head(node, "mongod", "shard", doc);
            let in_set = node.replica().is_some();
            let in_cluster = node.sharding().is_some();
            let list = SECTIONS.iter().filter(|(name, _)| in_set || !ONLY_IN_SETS.contains(name));
            let list = list.filter(|(name, _)| in_cluster || *name != "shardingStatistics");
            written = status::sections(self.body, list.copied(), node, doc);
        });
        written.map(|()| reply)
    }
}

fn sharding_statistics(node: &Node, doc: &mut Doc<'_>) {
    if let Some(sharding) = node.sharding() {
        sharding.statistics.write(doc);
    }
}

fn global_lock(node: &Node, doc: &mut Doc<'_>) {
    let readers = node.metrics.active_reads.load(Ordering::Relaxed) as i32;
    let writers = node.metrics.active_writes.load(Ordering::Relaxed) as i32;
    doc.append("totalTime", node.started.elapsed().as_micros() as i64);
    // Reads take no locks here, so whoever waits for one writes.
    let waiting = node.lock_waiters.load(Ordering::Relaxed) as i32;
    doc.document("currentQueue").append("total", waiting).append("readers", 0).append("writers", waiting);
    doc.document("activeClients")
        .append("total", readers + writers)
        .append("readers", readers)
        .append("writers", writers);
}

fn session_cache(node: &Node, doc: &mut Doc<'_>) {
    doc.append("activeSessionsCount", node.sessions.count() as i32);
}

/// How many collections of each kind there are.
fn catalog_stats(node: &Node, doc: &mut Doc<'_>) {
    let catalog = node.catalog();
    let internal = |c: &Collection| matches!(c.db(), "admin" | "config" | "local");
    let count = |test: &dyn Fn(&Collection) -> bool| catalog.all().filter(|c| test(c)).count() as i32;
    let own = |c: &Collection| !internal(c) && !c.is_view();
    doc.append("collections", count(&own));
    doc.append("capped", count(&|c| own(c) && c.capped.is_some()));
    doc.append("clustered", count(&|c| own(c) && c.options.as_raw().get("clusteredIndex").is_some()));
    doc.append("timeseries", count(&|c| !internal(c) && c.is_timeseries()));
    doc.append("views", count(&|c| !internal(c) && c.is_view() && !c.is_timeseries()));
    doc.append("internalCollections", count(&|c| internal(c) && !c.is_view()));
    doc.append("internalViews", count(&|c| internal(c) && c.is_view()));
    doc.append("systemProfile", count(&|c| c.name() == "system.profile"));
}

fn default_concern(node: &Node, doc: &mut Doc<'_>) {
    node.default_concerns().append(doc);
}

fn feature_version(_: &Node, doc: &mut Doc<'_>) {
    let mut parts = crate::version::FEATURE_VERSION.split('.').map(|part| part.parse::<i32>().unwrap_or(0));
    doc.append("major", parts.next().unwrap_or(0)).append("minor", parts.next().unwrap_or(0));
    doc.append("transitioning", 0);
}

/// How many indexes of each kind there are, and how often those have been used.
fn index_stats(node: &Node, doc: &mut Doc<'_>) {
    let catalog = node.catalog();
    let indexes: Vec<_> = catalog.all().flat_map(|collection| &collection.indexes).collect();
    doc.append("count", indexes.len() as i64);
    let mut features = doc.document("features");
    type Test = fn(&Index) -> bool;
    let kinds: [(&str, Test); 12] = [
        ("2d", |index| matches!(index.indexing(), Some(sheaf_geo::Indexing::Grid(_)))),
        ("2dsphere", |index| matches!(index.indexing(), Some(sheaf_geo::Indexing::Sphere { .. }))),
        ("collation", |index| index.spec.as_raw().get("collation").is_some()),
        ("compound", |index| index.fields.len() > 1),
        ("hashed", |index| index.kind == IndexKind::Hashed),
        ("id", |index| index.name == "_id_"),
        ("normal", |index| index.kind == IndexKind::Btree),
        ("partial", |index| index.partial.is_some()),
        ("sparse", |index| index.sparse),
        ("ttl", |index| index.expire_after_seconds.is_some()),
        ("unique", |index| index.unique && index.name != "_id_"),
        ("wildcard", |index| index.kind == IndexKind::Wildcard),
    ];
    for (name, test) in kinds {
        let (mut count, mut accesses) = (0i64, 0i64);
        for index in indexes.iter().filter(|index| test(index)) {
            count += 1;
            accesses += index.accesses.ops() as i64;
        }
        features.document(name).append("count", count).append("accesses", accesses);
    }
}

/// There are no tickets to run out of; what is inside is shown where tools look for it.
fn queues(node: &Node, doc: &mut Doc<'_>) {
    let mut execution = doc.document("execution");
    let (reads, writes) = (&node.metrics.active_reads, &node.metrics.active_writes);
    for (name, gauge) in [("write", writes), ("read", reads)] {
        execution.document(name).append("out", gauge.load(Ordering::Relaxed) as i32);
    }
}

fn storage_engine(_: &Node, doc: &mut Doc<'_>) {
    doc.append("name", "wiredTiger");
    doc.append("supportsCommittedReads", true);
    doc.append("oldestRequiredTimestampForCrashRecovery", sheaf_bson::Timestamp(0));
    doc.append("supportsPendingDrops", true);
    doc.append("supportsSnapshotReadConcern", true);
    doc.append("readOnly", false);
    doc.append("persistent", true);
    doc.append("backupCursorOpen", false);
}

fn transactions(node: &Node, doc: &mut Doc<'_>) {
    let txn = &node.metrics.txn;
    let open = txn.open.load(Ordering::Relaxed) as i64;
    put(doc, "retriedCommandsCount", &txn.retried_commands);
    put(doc, "retriedStatementsCount", &txn.retried_statements);
    let active = (txn.active.load(Ordering::Relaxed) as i64).min(open);
    doc.append("currentActive", active);
    doc.append("currentInactive", open - active);
    doc.append("currentOpen", open);
    put(doc, "totalAborted", &txn.aborted);
    put(doc, "totalCommitted", &txn.committed);
    put(doc, "totalStarted", &txn.started);
    let prepared = node.sharding().map(|sharding| sharding.figures()).unwrap_or_default();
    doc.append("totalPrepared", prepared.total as i64);
    doc.append("totalPreparedThenCommitted", prepared.committed as i64);
    doc.append("totalPreparedThenAborted", prepared.aborted as i64);
    doc.append("currentPrepared", prepared.current as i64);
}

fn metrics(node: &Node, doc: &mut Doc<'_>) {
    let metrics = &node.metrics;
    {
        let mut stages = doc.document("aggStageCounters");
        for (stage, count) in STAGES.iter().zip(&node.stage_counts) {
            put(&mut stages, stage.name, count);
        }
    }
    status::commands(node, &mut doc.document("commands"));
    status::cursors(node.cursors.counts(), &mut doc.document("cursor"));
    {
        let mut document = doc.document("document");
        put(&mut document, "deleted", &metrics.docs_deleted);
        put(&mut document, "inserted", &metrics.docs_inserted);
        put(&mut document, "returned", &metrics.docs_returned);
        put(&mut document, "updated", &metrics.docs_updated);
    }
    {
        let mut operation = doc.document("operation");
        status::operation(node, &mut operation);
        operation.append("scanAndOrder", metrics.sorts.get() as i64);
        operation.append("writeConflicts", metrics.write_conflicts.get() as i64);
    }
    let plans = node.engine().plan_figures();
    {
        let mut query = doc.document("query");
        {
            let mut cache = query.document("planCache");
            cache.append("totalQueryShapes", plans.shapes as i64);
            cache.append("totalSizeEstimateBytes", plans.bytes as i64);
            let (hits, misses) = (plans.hits as i64, plans.misses as i64);
            cache.document("classic").append("hits", hits).append("misses", misses);
        }
        let mut sort = query.document("sort");
        put(&mut sort, "spillToDisk", &metrics.sorted.spills);
        put(&mut sort, "totalBytesSorted", &metrics.sorted.bytes);
        put(&mut sort, "totalKeysSorted", &metrics.sorted.rows);
    }
    {
        let mut executor = doc.document("queryExecutor");
        executor
            .document("collectionScans")
            .append("nonTailable", plans.scans_not_tailable as i64)
            .append("total", plans.scans as i64);
        put(&mut executor, "scanned", &metrics.keys_examined);
        put(&mut executor, "scannedObjects", &metrics.docs_examined);
    }
    if let Some(replica) = node.replica() {
        replication::metrics(node, replica, &mut doc.document("repl"));
    }
    let mut ttl = doc.document("ttl");
    put(&mut ttl, "deletedDocuments", &metrics.ttl_deleted);
    put(&mut ttl, "passes", &metrics.ttl_passes);
}

/// The figures of the engine, in its own words.
fn engine(node: &Node, doc: &mut Doc<'_>) {
    let stats = node.engine().stats();
    doc.append("version", crate::version::OWN);
    doc.document("cache")
        .append("capacityBytes", stats.cache_capacity as i64)
        .append("usedBytes", stats.cache_used as i64)
        .append("memtableBytes", stats.memtable_bytes as i64);
    doc.document("memory")
        .append("limitBytes", node.memory.limit() as i64)
        .append("usedBytes", node.memory.used() as i64)
        .append("operationLimitBytes", node.memory.operation_limit() as i64)
        .append("incomingBytes", node.incoming.used() as i64)
        .append("outgoingBytes", node.outgoing.used() as i64)
        .append("sessionBytes", node.sessions.bytes() as i64)
        .append("replicationBytes", node.replica().map_or(0, |replica| replica.memory.used()) as i64)
        .append("processBytes", crate::system::anonymous_memory() as i64)
        .append("pressure", node.memory.pressure() as i32);
    let (computing, waiting) = node.memory.turn_figures();
    doc.document("longOperations").append("computing", computing as i64).append("waiting", waiting as i64);
    doc.document("log")
        .append("bytes", stats.log_bytes as i64)
        .append("firstIndex", stats.log_first_index as i64)
        .append("lastIndex", stats.log_last_index as i64)
        .append("durableIndex", node.engine().durable_index() as i64)
        .append("appends", stats.log_appends as i64)
        .append("appendedBytes", stats.log_append_bytes as i64)
        .append("syncs", stats.log_syncs as i64)
        .append("syncMicros", stats.log_sync_micros as i64);
    doc.document("pipeline")
        .append("commits", stats.commits as i64)
        .append("flushes", stats.flushes as i64)
        .append("lockWaits", stats.lock_waits as i64)
        .append("conflicts", stats.conflicts as i64)
        .append("openTransactions", stats.open_transactions as i64);
    doc.append("dataFileBytes", stats.sst_bytes as i64);
}

/// The same figures under the names that tools (mongostat, Compass, exporters) read.
fn wired_tiger(node: &Node, doc: &mut Doc<'_>) {
    let stats = node.engine().stats();
    let dirty = stats.memtable_bytes as i64;
    doc.document("cache")
        .append("maximum bytes configured", node.options.cache_bytes as i64)
        .append("bytes currently in the cache", stats.cache_used as i64 + dirty)
        .append("tracked dirty bytes in the cache", dirty);
    doc.document("log")
        .append("total log buffer size", stats.log_bytes as i64)
        .append("log bytes written", stats.log_append_bytes as i64)
        .append("log write operations", stats.log_appends as i64)
        .append("log sync operations", stats.log_syncs as i64)
        .append("log sync time duration (usecs)", stats.log_sync_micros as i64);
    doc.document("transaction")
        .append("transactions committed", stats.commits as i64)
        .append("transaction checkpoints", stats.flushes as i64);
    // There are no tickets to run out of; mongostat reads who is inside from these fields.
    let mut tickets = doc.document("concurrentTransactions");
    let (reads, writes) = (&node.metrics.active_reads, &node.metrics.active_writes);
    for (name, gauge) in [("write", writes), ("read", reads)] {
        tickets.document(name).append("out", gauge.load(Ordering::Relaxed) as i32);
    }
}
