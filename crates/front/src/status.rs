//! What `serverStatus` shows of every server, whatever its role. A role lists its sections, these among them.

use sheaf_bson::{DocBuf, DocWriter, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use crate::cursors::{CursorCounts, LIFESPANS};
use crate::front::Front;
use crate::metrics::Count;

/// A document of figures being written.
pub type Doc<'w> = DocWriter<'w, Vec<u8>>;

/// A section's name, and what fills it.
pub type Section<R> = (&'static str, fn(&R, &mut Doc<'_>));

/// Writes who answers: `process` is `mongod` or `mongos`, `service` what it is in a cluster.
pub fn head(front: &Front, process: &str, service: &str, doc: &mut Doc<'_>) {
    let uptime = front.started.elapsed();
    doc.append("host", &front.host_and_port());
    doc.append("version", crate::version::COMPATIBLE);
    doc.append("process", process);
    let _ = doc.array("service").push(service);
    doc.append("pid", i64::from(std::process::id()));
    doc.append("uptime", uptime.as_secs_f64().floor());
    doc.append("uptimeMillis", uptime.as_millis() as i64);
    doc.append("uptimeEstimate", uptime.as_secs() as i64);
    doc.append("localTime", Value::DateTime(front.clock.now_millis()));
}

/// Writes those sections that the command asks for: all but those that it names with 0; with `none: 1` those that it names, and
/// with `all: 1` all. Of the metrics it may name single ones that it does without.
///
/// Errors: `InvalidOptions`.
pub fn sections<R>(
    command: RawDoc<'_>,
    list: impl Iterator<Item = Section<R>>,
    role: &R,
    doc: &mut Doc<'_>,
) -> Result<()> {
    let is_set = |name| command.get(name).is_some_and(|flag| flag.truthy());
    let (all, none) = (is_set("all"), is_set("none"));
    if all && none {
        bail!(Code::INVALID_OPTIONS, "Cannot provide both 'all' and 'none' options");
    }
    for (name, fill) in list {
        match command.get(name) {
            Some(Value::Document(without)) if name == "metrics" => {
                let section = DocBuf::build(|out| fill(role, out));
                write_without(section.as_raw(), without, &mut doc.document(name));
            }
            wanted if all || wanted.map_or(!none, |wanted| wanted.truthy()) => {
                fill(role, &mut doc.document(name));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Writes what is in a section, but for what is named with 0.
fn write_without(section: RawDoc<'_>, without: RawDoc<'_>, out: &mut Doc<'_>) {
    for field in section.iter() {
        match (without.get(field.key()), field.value()) {
            (Some(Value::Document(without)), Value::Document(inner)) => {
                write_without(inner, without, &mut out.document(field.key()));
            }
            (Some(wanted), _) if !wanted.truthy() => {}
            _ => _ = out.append_element(field),
        }
    }
}

/// Writes a count.
pub fn put(doc: &mut Doc<'_>, name: &str, count: &Count) {
    doc.append(name, count.get() as i64);
}

/// `asserts`.
pub fn asserts(front: &Front, doc: &mut Doc<'_>) {
    put(doc, "regular", &front.metrics.asserts_regular);
    doc.append("warning", 0).append("msg", 0);
    put(doc, "user", &front.metrics.asserts_user);
    doc.append("tripwire", 0).append("rollovers", 0);
}

/// `connections`.
pub fn connections(front: &Front, doc: &mut Doc<'_>) {
    let now = front.connection_count();
    let limit = front.options.max_connections.min(i32::MAX as usize);
    let active = front.clients().iter().filter(|client| client.current.lock().op_id != 0).count();
    doc.append("current", now as i32);
    doc.append("available", limit.saturating_sub(now) as i32);
    put(doc, "totalCreated", &front.metrics.connections_created);
    put(doc, "rejected", &front.metrics.connections_rejected);
    doc.append("queuedForEstablishment", front.establishment.waiting() as i64);
    let mut limit = doc.document("establishmentRateLimit");
    put(&mut limit, "rejected", &front.establishment.rejected);
    drop(limit);
    doc.append("active", active as i32);
    doc.append("threaded", now as i32);
}

/// `extra_info`.
pub fn extra_info(_: &Front, doc: &mut Doc<'_>) {
    doc.append("note", "fields vary by platform");
    doc.append("page_faults", crate::system::page_faults() as i64);
}

/// `mem`.
pub fn memory(_: &Front, doc: &mut Doc<'_>) {
    let (resident, size) = crate::system::process_memory();
    doc.append("bits", 64);
    doc.append("resident", (resident >> 20) as i32);
    doc.append("virtual", (size >> 20) as i32);
    doc.append("supported", true);
}

/// `network`.
pub fn network(front: &Front, doc: &mut Doc<'_>) {
    let metrics = &front.metrics;
    put(doc, "bytesIn", &metrics.bytes_in);
    put(doc, "bytesOut", &metrics.bytes_out);
    put(doc, "physicalBytesIn", &metrics.physical_bytes_in);
    put(doc, "physicalBytesOut", &metrics.physical_bytes_out);
    doc.append("numSlowDNSOperations", 0i64).append("numSlowSSLOperations", 0i64);
    put(doc, "numRequests", &metrics.requests);
}

/// `opLatencies`.
pub fn latencies(front: &Front, doc: &mut Doc<'_>) {
    let latencies = front.metrics.latencies.each_ref().map(|latency| *latency.lock());
    crate::metrics::write_latencies(doc, &latencies, false);
}

/// `opcounters`.
pub fn opcounters(front: &Front, doc: &mut Doc<'_>) {
    let counters = &front.metrics.opcounters;
    put(doc, "insert", &counters.insert);
    put(doc, "query", &counters.query);
    put(doc, "update", &counters.update);
    put(doc, "delete", &counters.delete);
    put(doc, "getmore", &counters.getmore);
    put(doc, "command", &counters.command);
}

/// `metrics.commands`: how often each command was called and has failed.
pub fn commands(front: &Front, doc: &mut Doc<'_>) {
    let mut called: Vec<_> = front.command_counts.iter().filter(|(_, count)| count.total.get() > 0).collect();
    called.sort_by_key(|(name, _)| **name);
    for (name, count) in called {
        let mut command = doc.document(name);
        for (_, part, count) in parts(front).into_iter().filter(|(of, ..)| of == name) {
            put(&mut command, part, count);
        }
        command.append("failed", count.failed.get().saturating_sub(count.rejected.get()) as i64);
        if matches!(*name, "aggregate" | "distinct" | "find") {
            put(&mut command, "rejected", &count.rejected);
        }
        put(&mut command, "total", &count.total);
    }
}

/// What is counted of single commands besides their calls.
fn parts(front: &Front) -> [(&'static str, &'static str, &Count); 5] {
    let parts = &front.metrics.parts;
    [
        ("aggregate", "allowDiskUseTrue", &parts.aggregates_with_disk),
        ("findAndModify", "arrayFilters", &parts.modify_array_filters),
        ("findAndModify", "pipeline", &parts.modify_pipelines),
        ("update", "arrayFilters", &parts.update_array_filters),
        ("update", "pipeline", &parts.update_pipelines),
    ]
}

/// `metrics.operation`, as far as every server has it.
pub fn operation(front: &Front, doc: &mut Doc<'_>) {
    put(doc, "killedDueToClientDisconnect", &front.metrics.clients_gone);
    put(doc, "killedDueToMaxTimeMSExpired", &front.metrics.max_time_expired);
}

/// `metrics.cursor`.
pub fn cursors(counts: CursorCounts, doc: &mut Doc<'_>) {
    doc.append("moreThanOneBatch", counts.more_than_one_batch as i64);
    doc.append("timedOut", counts.timed_out as i64);
    doc.append("totalOpened", counts.total_opened as i64);
    {
        let mut lifespan = doc.document("lifespan");
        for (name, count) in LIFESPANS.iter().zip(counts.lifespans) {
            lifespan.append(name, count as i64);
        }
    }
    doc.document("open")
        .append("noTimeout", counts.no_timeout as i64)
        .append("pinned", counts.pinned as i64)
        .append("total", counts.open as i64);
}
