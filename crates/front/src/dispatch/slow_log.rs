//! What is kept of an operation that has ended: figures, the slow log, the profiler's entry.

pub mod entries;
pub mod statement;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sheaf_bson::{DocBuf, DocWriter, RawDoc, Value, doc};
use sheaf_errors::{Code, Error};
use sheaf_meter::{Meter, Process};

use crate::command::{Access, Counter};
use crate::front::Front;
use crate::metrics::Class;
use crate::outcome::RequestOutcome;
use crate::profile::ProfileSettings;
use crate::request::{OpMetrics, PlanNames, PlanSource, Request};
use crate::role::Role;

/// Counts an operation that has ended, and writes it down where it was slow or is profiled.
pub fn count(role: &dyn Role, op: &Request<'_>, outcome: &RequestOutcome) {
    let spec = &op.command.spec;
    let took = op.started.elapsed();
    let class = match spec.access {
        Access::Read | Access::ReadOrWrite(_) => Class::Read,
        Access::Write => Class::Write,
        Access::None => Class::Command,
    };
    let namespace = op.metrics.namespace.borrow();
    let front = op.front;
    // A collection that was just dropped must not come back among those that are counted.
    let counted = namespace.as_deref().filter(|_| op.command.name != "drop");
    front.metrics.finished(class, spec.counter, counted, took);
    let metrics = &op.metrics;
    front.metrics.docs_examined.add(metrics.docs_examined.get());
    front.metrics.keys_examined.add(metrics.keys_examined.get());
    front.metrics.docs_returned.add(metrics.returned.get().unwrap_or(0));
    front.metrics.docs_inserted.add(metrics.inserted.get().unwrap_or(0));
    // MongoDB counts those that an update has found, changed or not.
    front.metrics.docs_updated.add(metrics.matched.get().unwrap_or(0));
    front.metrics.docs_deleted.add(metrics.deleted.get().unwrap_or(0));
    front.metrics.sorts.add(metrics.sorts.get());
    match outcome.error.as_ref().map(|error| error.code()) {
        Some(Code::MAX_TIME_MS_EXPIRED) => front.metrics.max_time_expired.add(1),
        Some(Code::CLIENT_DISCONNECT) => front.metrics.clients_gone.add(1),
        _ => {}
    }
    front.metrics.write_conflicts.add(metrics.write_conflicts.get());
    let (named, had) = (op.generic.read_concern, op.read_concern());
    front.metrics.read_concerns.count(op.command.name, op.in_transaction(), named, had);
    role.measure(op, outcome, took);
    let settings = front.profiling.active(op.db);
    let entry = || profile_entry(role, op, outcome, took);
    let told = judge(front, settings.as_ref(), took, op.command.name != "hello", &entry);
    if told.slow || crate::log::components::level("COMMAND") > 0 {
        front.metrics.slow_ops.add(u64::from(told.slow));
        log_slow(role, op, outcome, took, told.slow);
    }
    if metrics.by_statement.get() {
        for (db, entries) in metrics.entries.take().into_lists() {
            role.profile(op, &db, &entries);
        }
    } else if told.profiled {
        role.profile(op, op.db, &[entry()]);
    }
}

/// Where an operation is to be told.
struct Told {
    slow: bool,
    profiled: bool,
}

/// Whether an operation is told, by the settings of its database. `known` says that it may be slow: some are meant to wait.
fn judge(
    front: &Front,
    settings: Option<&ProfileSettings>,
    took: Duration,
    known: bool,
    entry: &dyn Fn() -> DocBuf,
) -> Told {
    let filter = settings.and_then(|settings| settings.filter.as_ref());
    let slow = match filter {
        // A filter takes the place of `slowms` and `sampleRate`; what it can't judge does not pass.
        Some(filter) => filter.matches_doc(entry().as_raw()).unwrap_or(false),
        None => known && front.profiling.is_slow(took.as_millis() as i64),
    };
    let level = settings.map_or(0, |settings| settings.level);
    Told { slow, profiled: level > 0 && (slow || (level == 2 && filter.is_none())) }
}

/// What the operation failed with, if it did, as the slow log and the profiler tell it.
fn failure(error: Option<&Error>, doc: &mut DocWriter<'_, Vec<u8>>, shown: &dyn Fn(&str) -> &str) {
    let Some(error) = error else { return };
    doc.append("ok", 0);
    doc.append("errMsg", shown(error.message()));
    doc.append("errName", &*error.code().name());
    doc.append("errCode", error.code().0);
}

/// Longest command that is logged whole.
const LOGGED_COMMAND_BYTES: usize = 8 * 1024;

fn log_slow(role: &dyn Role, op: &Request<'_>, outcome: &RequestOutcome, took: Duration, slow: bool) {
    let namespace = op.metrics.namespace.borrow();
    let namespace = namespace.as_deref().filter(|_| !op.metrics.by_statement.get());
    let failed = op.metrics.failed.borrow();
    let everything = op.namespace("$cmd");
    let attributes = DocBuf::build(|attr| {
        attr.append("type", "command");
        attr.append("isFromUserConnection", true);
        attr.append("ns", namespace.unwrap_or(&everything));
        if let Some(app) = op.client.app_name() {
            attr.append("appName", &app);
        }
        if op.body.len() <= LOGGED_COMMAND_BYTES {
            append_command(op, attr, &crate::log::shown);
        } else {
            attr.append("command", &doc! { (op.command.name): "too large to log" });
        }
        shape(role, op, attr);
        if !op.metrics.by_statement.get() {
            append_summary(&op.metrics, attr);
            append_planning_time(&op.metrics, attr);
            figures(&op.metrics, attr);
            returned(&op.metrics, attr);
            append_names(role, op, attr);
        }
        failure(outcome.error.as_ref().or(failed.as_ref()), attr, &crate::log::shown_text);
        attr.append("reslen", outcome.reply.body_len() as i32);
        attr.append("protocol", "op_msg");
        attr.append("workingMillis", working(took).as_millis() as i64);
        attr.append("durationMillis", took.as_millis() as i64);
    });
    let context = op.client.context();
    if slow {
        crate::log::info("COMMAND", crate::log::ids::SLOW_QUERY, &context, "Slow query", Some(attributes));
    } else {
        crate::log::debug("COMMAND", crate::log::ids::SLOW_QUERY, &context, "Slow query", Some(attributes));
    }
}

/// How much is shown of a client's document.
type Shown = dyn for<'d> Fn(RawDoc<'d>) -> Cow<'d, [u8]>;

/// The command as the slow log and the profiler show it; a `getMore` together with the command that opened its
/// cursor.
fn append_command(op: &Request<'_>, doc: &mut DocWriter<'_, Vec<u8>>, shown: &Shown) {
    match &*op.metrics.cursor.borrow() {
        Some(cursor) => {
            doc.append("command", RawDoc::new(&shown(cursor.get_more(op.body).as_raw())));
            if cursor.command.as_raw().len() <= LOGGED_COMMAND_BYTES {
                doc.append("originatingCommand", RawDoc::new(&shown(cursor.command.as_raw())));
            }
        }
        None => {
            let command = crate::redact::shown(op.command.name, op.body);
            doc.append("command", RawDoc::new(&shown(RawDoc::new(&command))));
        }
    }
}

/// How often the work on a shape may look whether it has to stop: fifty milliseconds of it.
const SHAPE_LOOKS: u32 = 4000;

/// The hash of the query's shape; of a `getMore`, of the query that opened its cursor. The operation has ended, and may have because its
/// time was over: so this has a time of its own, and a query of which it takes longer is told without it.
fn shape(role: &dyn Role, op: &Request<'_>, doc: &mut DocWriter<'_, Vec<u8>>) {
    let _entered = sheaf_meter::enter(bounded(op.client.meter.process(), SHAPE_LOOKS));
    let hash = match &*op.metrics.cursor.borrow() {
        Some(cursor) => role.shape_hash(op.db, cursor.command.as_raw()),
        None => role.shape_hash(op.db, op.body),
    };
    if let Some(hash) = hash {
        doc.append("queryShapeHash", hash.as_str());
    }
}

/// A meter that lets so many looks pass.
fn bounded(process: &Arc<Process>, looks: u32) -> Arc<Meter> {
    let left = AtomicU32::new(looks);
    let source = move || {
        let looked = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        looked.map(drop).map_err(|_| Error::new(Code::MAX_TIME_MS_EXPIRED, "it takes too long"))
    };
    Meter::new(process, Arc::new(source))
}

/// The names of the query in the plan cache. Like the [`shape`] they are found out when the operation has ended.
fn append_names(role: &dyn Role, op: &Request<'_>, doc: &mut DocWriter<'_, Vec<u8>>) {
    let summary = op.metrics.plan_summary.borrow();
    if is_planned(summary.as_deref()) {
        let _entered = sheaf_meter::enter(bounded(op.client.meter.process(), SHAPE_LOOKS));
        let names = match &*op.metrics.cursor.borrow() {
            Some(cursor) => role.plan_names(op, cursor.command.as_raw()),
            None => role.plan_names(op, op.body),
        };
        names_and_framework(names.as_ref(), doc);
    } else if summary.is_some() {
        names_and_framework(None, doc);
    }
}

/// Whether a plan is one of those that the plan cache could know: what goes by `_id` alone is never planned.
fn is_planned(summary: Option<&str>) -> bool {
    summary
        .is_some_and(|summary| !summary.is_empty() && !summary.starts_with("EXPRESS") && summary != "IDHACK")
}

fn names_and_framework(names: Option<&PlanNames>, doc: &mut DocWriter<'_, Vec<u8>>) {
    if let Some(names) = names {
        doc.append("planCacheShapeHash", &names.shape).append("queryHash", &names.shape);
        doc.append("planCacheKey", &names.key);
    }
    doc.append("queryFramework", "classic");
}

fn append_summary(metrics: &OpMetrics, doc: &mut DocWriter<'_, Vec<u8>>) {
    if let Some(plan) = metrics.plan_summary.borrow().as_deref() {
        doc.append("planSummary", plan);
    }
}

fn append_planning_time(metrics: &OpMetrics, doc: &mut DocWriter<'_, Vec<u8>>) {
    let micros = metrics.planned.borrow().as_ref().and_then(|planned| planned.micros);
    if let Some(micros) = micros.filter(|micros| *micros > 0) {
        doc.append("planningTimeMicros", micros as i64);
    }
}

/// The time that an operation took without what it waited: for locks, and for its turn among long ones.
fn working(took: Duration) -> Duration {
    took.saturating_sub(sheaf_meter::waited())
}

/// The figures that handlers noted, as the slow log and the profiler name them.
fn figures(metrics: &OpMetrics, doc: &mut DocWriter<'_, Vec<u8>>) {
    if let Some(id) = metrics.cursor_id.get() {
        doc.append("cursorid", id);
    }
    let has_plan = metrics.plan_summary.borrow().is_some();
    if has_plan || metrics.docs_examined.get() > 0 || metrics.keys_examined.get() > 0 {
        doc.append("keysExamined", metrics.keys_examined.get() as i64);
        doc.append("docsExamined", metrics.docs_examined.get() as i64);
    }
    if metrics.sorts.get() > 0 {
        doc.append("hasSortStage", true);
    }
    match metrics.plan_source.get() {
        PlanSource::Only => {}
        PlanSource::Trial => _ = doc.append("fromMultiPlanner", true),
        PlanSource::Cache => _ = doc.append("fromPlanCache", true),
    }
    let counts = [
        ("nMatched", &metrics.matched),
        ("nModified", &metrics.modified),
        ("ninserted", &metrics.inserted),
        ("ndeleted", &metrics.deleted),
        ("nUpserted", &metrics.upserted),
    ];
    for (name, figure) in counts {
        if let Some(n) = figure.get() {
            doc.append(name, n as i64);
        }
    }
    if metrics.cursor_exhausted.get() {
        doc.append("cursorExhausted", true);
    }
    let counts = [
        ("keysInserted", metrics.keys_inserted.get()),
        ("keysDeleted", metrics.keys_deleted.get()),
        ("writeConflicts", metrics.write_conflicts.get()),
    ];
    for (name, n) in counts.into_iter().filter(|(_, n)| *n > 0) {
        doc.append(name, n as i64);
    }
}

fn returned(metrics: &OpMetrics, doc: &mut DocWriter<'_, Vec<u8>>) {
    if let Some(n) = metrics.returned.get() {
        doc.append("nreturned", n as i64);
    }
}

/// What an entry of the profiler ends with as far as it is about a plan.
fn plan_of(metrics: &OpMetrics, doc: &mut DocWriter<'_, Vec<u8>>) {
    append_summary(metrics, doc);
    append_planning_time(metrics, doc);
    if let Some(stages) = metrics.planned.borrow().as_ref().and_then(|planned| planned.stages.as_ref()) {
        doc.append("execStats", stages);
    }
}

/// A finished operation as `system.profile` shows it.
fn profile_entry(role: &dyn Role, op: &Request<'_>, outcome: &RequestOutcome, took: Duration) -> DocBuf {
    let namespace = op.metrics.namespace.borrow();
    let namespace = namespace.as_deref().filter(|_| !op.metrics.by_statement.get());
    let failed = op.metrics.failed.borrow();
    let kind = match op.command.spec.counter {
        _ if op.metrics.by_statement.get() => "command",
        Counter::Query => "query",
        Counter::Insert => "insert",
        Counter::Update => "update",
        Counter::Delete => "remove",
        Counter::GetMore => "getmore",
        _ => "command",
    };
    let everything = op.namespace("$cmd");
    DocBuf::build(|doc| {
        doc.append("op", kind);
        doc.append("ns", namespace.unwrap_or(&everything));
        append_command(op, doc, &|command| Cow::Borrowed(command.as_bytes()));
        let whole = !op.metrics.by_statement.get();
        if whole {
            figures(&op.metrics, doc);
        }
        doc.append("numYield", 0);
        if whole {
            returned(&op.metrics, doc);
            append_names(role, op, doc);
        }
        shape(role, op, doc);
        let _ = doc.document("locks");
        failure(outcome.error.as_ref().or(failed.as_ref()), doc, &|text| text);
        doc.append("responseLength", outcome.reply.body_len() as i32);
        doc.append("protocol", "op_msg");
        doc.append("millis", took.as_millis() as i32);
        if whole {
            plan_of(&op.metrics, doc);
        }
        tail(op, doc);
    })
}

/// When it was, and whose it was.
fn tail(op: &Request<'_>, doc: &mut DocWriter<'_, Vec<u8>>) {
    doc.append("ts", Value::DateTime(op.now_millis()));
    doc.append("client", op.client().remote.map(|a| a.ip().to_string()).unwrap_or_default().as_str());
    if let Some(name) = op.client().app_name() {
        doc.append("appName", &name);
    }
    let access = op.client().access.lock();
    {
        let mut users = doc.array("allUsers");
        if let Some(user) = access.user() {
            user.write(&mut users.document());
        }
    }
    doc.append("user", &access.user().map(ToString::to_string).unwrap_or_default());
    drop(access);
    doc.append("_id", crate::front::new_object_id());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_an_operation_that_has_ended_takes_a_bounded_time() {
        let _entered = sheaf_meter::enter(bounded(&Process::new(u64::MAX, u64::MAX), 3));
        let passed = (0..10_000).take_while(|_| sheaf_meter::tick(16).is_ok()).count();
        assert!((20..200).contains(&passed), "{passed}");
        assert!(sheaf_meter::check().is_err(), "and does not go on later");
    }
}
