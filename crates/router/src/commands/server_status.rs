//! `serverStatus`: figures of the router itself.

use std::sync::atomic::Ordering;

use sheaf_bson::Value;
use sheaf_errors::Result;
use sheaf_front::args::Args;
use sheaf_front::reply::Reply;
use sheaf_front::status::{self, Doc, Section};

use crate::op::Operation;
use crate::router::Router;

const SECTIONS: &[Section<Router>] = &[
    ("asserts", |router, doc| status::asserts(router, doc)),
    ("connections", |router, doc| status::connections(router, doc)),
    ("extra_info", |router, doc| status::extra_info(router, doc)),
    ("logicalSessionRecordCache", sessions),
    ("mem", |router, doc| status::memory(router, doc)),
    ("metrics", metrics),
    ("network", |router, doc| status::network(router, doc)),
    ("opcounters", |router, doc| status::opcounters(router, doc)),
    ("security", |router, doc| {
        router.logins.write(|name| sheaf_front::sasl::takes(&router.parameters, name), doc);
        sheaf_front::tls::control::write_status(router, doc);
    }),
    ("sharding", sharding),
    ("shardingStatistics", sharding_statistics),
    ("transportSecurity", |router, doc| sheaf_front::tls::control::write_versions(router, doc)),
];

/// `{serverStatus: 1, all | none: 1, <section>: 0 | 1}`.
pub fn run<'a>(_: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let router: &Router = op.router;
    let mut written = Ok(());
    let reply = Reply::with_capacity(4096).with_fields(|doc| {
        status::head(router, "mongos", "router", doc);
        written = status::sections(op.body(), SECTIONS.iter().copied(), router, doc);
    });
    written.map(|()| reply)
}

fn sessions(router: &Router, doc: &mut Doc<'_>) {
    doc.append("activeSessionsCount", router.sessions.count() as i32);
}

fn metrics(router: &Router, doc: &mut Doc<'_>) {
    status::commands(router, &mut doc.document("commands"));
    status::cursors(router.cursors.counts(), &mut doc.document("cursor"));
    status::operation(router, &mut doc.document("operation"));
}

fn sharding(router: &Router, doc: &mut Doc<'_>) {
    doc.append("configsvrConnectionString", &router.directory.config().address().to_string());
    if let Some(time) = router.clock.now() {
        doc.document("lastSeenConfigServerOpTime").append("ts", Value::Timestamp(time)).append("t", -1i64);
    }
    doc.append("maxChunkSizeInBytes", 128i64 << 20);
}

fn sharding_statistics(router: &Router, doc: &mut Doc<'_>) {
    let known = router.directory.figures();
    let mut cache = doc.document("catalogCache");
    cache.append("numDatabaseEntries", known.databases as i64);
    cache.append("numCollectionEntries", known.collections as i64);
    cache.append("countStaleConfigErrors", router.stale_config.load(Ordering::Relaxed) as i64);
    cache.append("countIncrementalRefreshesStarted", known.read_in_part as i64);
    cache.append("countFullRefreshesStarted", known.read_in_full as i64);
    cache.append("countFailedRefreshes", known.failed as i64);
}
