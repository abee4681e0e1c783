//! Statements of updates and deletes: the slow log and the profiler tell each as an operation of its own, with its filter, its plan and its
//! figures, as in MongoDB. What their command was does not say that: drivers send statements beside it.

use std::borrow::Cow;
use std::time::Duration;

use sheaf_bson::{DocBuf, DocWriter, RawDoc, Value, doc};
use sheaf_errors::Error;

use super::{
    Shown, append_planning_time, append_summary, failure, figures, is_planned, judge, names_and_framework,
    plan_of, tail,
};
use crate::request::{OpMetrics, Request};

/// A statement that has ended.
pub struct Statement<'s> {
    /// What it is part of.
    pub kind: StatementKind,
    /// The statement as its client has sent it.
    pub sent: RawDoc<'s>,
    /// The documents of a group of inserts, the first of which was sent so.
    pub documents: &'s [RawDoc<'s>],
    /// What it writes to.
    pub namespace: &'s str,
    /// How long it took.
    pub took: Duration,
    /// What it failed with.
    pub error: Option<&'s Error>,
}

/// The commands of which each statement is told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum StatementKind {
    /// `update`
    Update,
    /// `delete`
    Delete,
    /// An operation of a `bulkWrite`.
    Bulk,
}

impl StatementKind {
    fn name(self) -> &'static str {
        match self {
            StatementKind::Update => "update",
            StatementKind::Delete => "remove",
            StatementKind::Bulk => "bulkWrite",
        }
    }
}

/// So much is shown of a statement in the log, and in the profiler.
const LOGGED_BYTES: usize = 8 * 1024;
const PROFILED_BYTES: usize = 50 * 1024;

/// Tells of a statement, if it was slow or is profiled.
pub fn tell(op: &Request<'_>, statement: &Statement<'_>, measured: impl FnOnce() -> OpMetrics) {
    op.metrics.by_statement.set(true);
    let front = op.front;
    let db = statement.namespace.split_once('.').map_or(op.db, |(db, _)| db);
    let settings = front.profiling.active(db);
    let logs_all = crate::log::components::level("WRITE") > 0;
    if settings.is_none() && !logs_all && !front.profiling.takes_long(statement.took.as_millis() as i64) {
        return;
    }
    let metrics = measured();
    let entry = || profile_entry(op, statement, &metrics);
    let told = judge(front, settings.as_ref(), statement.took, true, &entry);
    if told.slow || logs_all {
        log(op, statement, &metrics, told.slow);
    }
    if told.profiled {
        op.metrics.entries.borrow_mut().add(db, entry());
    }
}

fn log(op: &Request<'_>, statement: &Statement<'_>, metrics: &OpMetrics, slow: bool) {
    let attributes = DocBuf::build(|attr| {
        attr.append("type", statement.kind.name());
        attr.append("isFromUserConnection", true);
        attr.append("ns", statement.namespace);
        if let Some(app) = op.client.app_name() {
            attr.append("appName", &app);
        }
        command(op, statement, attr, &crate::log::shown, LOGGED_BYTES);
        append_summary(metrics, attr);
        append_planning_time(metrics, attr);
        figures(metrics, attr);
        names(metrics, attr);
        failure(statement.error, attr, &crate::log::shown_text);
        attr.append("durationMillis", statement.took.as_millis() as i64);
    });
    let (id, context) = (crate::log::ids::SLOW_QUERY, op.client.context());
    let write = if slow { crate::log::info } else { crate::log::debug };
    write("WRITE", id, &context, "Slow query", Some(attributes));
}

fn profile_entry(op: &Request<'_>, statement: &Statement<'_>, metrics: &OpMetrics) -> DocBuf {
    DocBuf::build(|doc| {
        doc.append("op", statement.kind.name());
        doc.append("ns", statement.namespace);
        command(op, statement, doc, &|command| Cow::Borrowed(command.as_bytes()), PROFILED_BYTES);
        figures(metrics, doc);
        doc.append("numYield", 0);
        names(metrics, doc);
        let _ = doc.document("locks");
        failure(statement.error, doc, &|text| text);
        doc.append("millis", statement.took.as_millis() as i32);
        plan_of(metrics, doc);
        tail(op, doc);
    })
}

fn names(metrics: &OpMetrics, doc: &mut DocWriter<'_, Vec<u8>>) {
    let summary = metrics.plan_summary.borrow();
    if summary.is_some() {
        let planned = metrics.planned.borrow();
        let names = planned.as_ref().and_then(|planned| planned.names.as_ref());
        names_and_framework(names.filter(|_| is_planned(summary.as_deref())), doc);
    }
}

/// Writes the statement, or the beginning of its text if it is long.
fn command(
    op: &Request<'_>,
    statement: &Statement<'_>,
    doc: &mut DocWriter<'_, Vec<u8>>,
    shown: &Shown,
    limit: usize,
) {
    let whole = DocBuf::build(|out| {
        whole(statement, out);
        if !op.comment().is_missing() {
            out.append("comment", op.comment());
        }
    });
    let known = crate::redact::shown("update", whole.as_raw());
    let known = shown(RawDoc::new(&known));
    if known.len() <= limit {
        doc.append("command", RawDoc::new(&known));
        return;
    }
    let text = sheaf_bson::document_text(RawDoc::new(&known));
    let end = (0..=limit.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    doc.append("command", &doc! { "$truncated": &text[..end] });
}

/// The fields of an update in MongoDB's order.
const OF_UPDATE: [&str; 10] =
    ["q", "u", "c", "arrayFilters", "hint", "multi", "upsert", "upsertSupplied", "collation", "sort"];

/// The statement as MongoDB writes one that it has parsed: whether it is `multi` and an `upsert` it says in any case.
fn whole(statement: &Statement<'_>, out: &mut DocWriter<'_, Vec<u8>>) {
    let sent = statement.sent;
    match statement.kind {
        StatementKind::Update => {
            for name in OF_UPDATE {
                match sent.element(name) {
                    Some(field) => _ = out.append_element(field),
                    None if matches!(name, "multi" | "upsert") => _ = out.append(name, false),
                    None => {}
                }
            }
        }
        StatementKind::Bulk if statement.documents.is_empty() => _ = out.append_all(sent),
        StatementKind::Bulk => {
            out.append("insert", sent.get_or_missing("insert"));
            let mut list = out.array("documents");
            let mut left = PROFILED_BYTES;
            // One more than there is room for shows that it is cut.
            for document in statement.documents {
                list.push(*document);
                left = left.saturating_sub(document.len());
                if left == 0 {
                    break;
                }
            }
        }
        StatementKind::Delete => {
            out.append("q", sent.get_or_missing("q"));
            let one = sent.get("limit").and_then(|limit: Value<'_>| limit.as_f64()) == Some(1.0);
            out.append("limit", i32::from(one));
            for name in ["hint", "collation"] {
                if let Some(field) = sent.element(name) {
                    out.append_element(field);
                }
            }
        }
    }
}
