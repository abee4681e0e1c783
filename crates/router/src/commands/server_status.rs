//! `serverStatus`: figures of the router itself.

use sheaf_bson::{DocWriter, Value};
use sheaf_errors::Result;
use sheaf_front::args::Args;
use sheaf_front::metrics::Count;
use sheaf_front::reply::Reply;
use sheaf_front::system;

use crate::op::Operation;
use crate::router::Router;

type Doc<'d> = DocWriter<'d, Vec<u8>>;

/// A section's name, and what fills it.
type Section = (&'static str, fn(&Router, &mut Doc<'_>));

const SECTIONS: &[Section] = &[
    ("asserts", asserts),
    ("connections", connections),
    ("extra_info", extra_info),
    ("logicalSessionRecordCache", sessions),
    ("mem", memory),
    ("metrics", metrics),
    ("network", network),
    ("opcounters", opcounters),
    ("sharding", sharding),
];

/// `{serverStatus: 1, <section>: 0}`.
pub fn run<'a>(_: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let router = op.router;
    let uptime = router.started.elapsed();
    Ok(Reply::with_capacity(4096).with_fields(|doc| {
        doc.append("host", &router.host_and_port());
        doc.append("version", sheaf_front::version::COMPATIBLE);
        doc.append("process", "mongos");
        let _ = doc.array("service").push("router");
        doc.append("pid", i64::from(std::process::id()));
        doc.append("uptime", uptime.as_secs_f64().floor());
        doc.append("uptimeMillis", uptime.as_millis() as i64);
        doc.append("uptimeEstimate", uptime.as_secs() as i64);
        doc.append("localTime", Value::DateTime(op.now_millis()));
        let all_off = op.body().get("all").is_some_and(|all| !all.truthy());
        for (name, fill) in SECTIONS {
            if op.body().get(name).map_or(!all_off, |wanted| wanted.truthy()) {
                fill(router, &mut doc.document(name));
            }
        }
    }))
}

fn put(doc: &mut Doc<'_>, name: &str, count: &Count) {
    doc.append(name, count.get() as i64);
}

fn asserts(router: &Router, doc: &mut Doc<'_>) {
    put(doc, "regular", &router.metrics.asserts_regular);
    doc.append("warning", 0).append("msg", 0);
    put(doc, "user", &router.metrics.asserts_user);
    doc.append("tripwire", 0).append("rollovers", 0);
}

fn connections(router: &Router, doc: &mut Doc<'_>) {
    let now = router.connection_count();
    let most = router.front().options.max_connections.min(i32::MAX as usize);
    let active = router.clients().iter().filter(|client| client.current.lock().op_id != 0).count();
    doc.append("current", now as i32);
    doc.append("available", most.saturating_sub(now) as i32);
    doc.append("totalCreated", router.metrics.connections_created.get() as i64);
    put(doc, "rejected", &router.metrics.connections_rejected);
    doc.append("active", active as i32);
}

fn extra_info(_: &Router, doc: &mut Doc<'_>) {
    doc.append("note", "fields vary by platform");
    doc.append("page_faults", system::page_faults() as i64);
}

fn sessions(router: &Router, doc: &mut Doc<'_>) {
    doc.append("activeSessionsCount", router.sessions.count() as i32);
}

fn memory(_: &Router, doc: &mut Doc<'_>) {
    let (resident, size) = system::process_memory();
    doc.append("bits", 64);
    doc.append("resident", (resident >> 20) as i32);
    doc.append("virtual", (size >> 20) as i32);
    doc.append("supported", true);
}

fn metrics(router: &Router, doc: &mut Doc<'_>) {
    {
        let mut commands = doc.document("commands");
        let mut used: Vec<_> =
            router.command_counts.iter().filter(|(_, count)| count.total.get() > 0).collect();
        used.sort_by_key(|(name, _)| **name);
        for (name, count) in used {
            let mut command = commands.document(name);
            put(&mut command, "failed", &count.failed);
            put(&mut command, "total", &count.total);
        }
    }
    let counts = router.cursors.counts();
    let mut cursor = doc.document("cursor");
    cursor.append("timedOut", counts.timed_out as i64);
    cursor.append("totalOpened", counts.total_opened as i64);
    let mut open = cursor.document("open");
    open.append("noTimeout", counts.no_timeout as i64);
    open.append("pinned", counts.pinned as i64);
    open.append("total", counts.open as i64);
}

fn network(router: &Router, doc: &mut Doc<'_>) {
    put(doc, "bytesIn", &router.metrics.bytes_in);
    put(doc, "bytesOut", &router.metrics.bytes_out);
    put(doc, "physicalBytesIn", &router.metrics.physical_bytes_in);
    put(doc, "physicalBytesOut", &router.metrics.physical_bytes_out);
    put(doc, "numRequests", &router.metrics.requests);
}

fn opcounters(router: &Router, doc: &mut Doc<'_>) {
    let counters = &router.metrics.opcounters;
    put(doc, "insert", &counters.insert);
    put(doc, "query", &counters.query);
    put(doc, "update", &counters.update);
    put(doc, "delete", &counters.delete);
    put(doc, "getmore", &counters.getmore);
    put(doc, "command", &counters.command);
}

fn sharding(router: &Router, doc: &mut Doc<'_>) {
    doc.append("configsvrConnectionString", &router.directory.config().address().to_string());
    if let Some(time) = router.clock.now() {
        doc.document("lastSeenConfigServerOpTime").append("ts", Value::Timestamp(time)).append("t", -1i64);
    }
    doc.append("maxChunkSizeInBytes", 128i64 << 20);
}
