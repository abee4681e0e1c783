//! After the handler: labels, counting, the slow log, what the reply has to wait for.

use std::time::Duration;

use sheaf_bson::{DocBuf, DocWriter, RawDoc, doc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_repl::write_concern::W;

use super::{Outcome, Prepared, Wait, fail};
use crate::command::Access;
use crate::concern::{Effective, ReadLevel};
use crate::metrics::Class;
use crate::op::OpContext;
use crate::reply::Reply;
use crate::session::Role;

/// Turns a handler's result into what the connection sends.
pub fn finish(
    op: &OpContext<'_>,
    prepared: &Prepared<'_>,
    result: Result<Reply>,
    injected: fail::Additions,
) -> Outcome {
    let mut outcome = match result {
        Ok(reply) => Outcome::of_reply(reply),
        Err(error) => {
            op.node.metrics.write_conflicts.add(u64::from(error.code() == Code::WRITE_CONFLICT));
            failed(prepared, error, None)
        }
    };
    outcome.parked = op.parked.take();
    if outcome.parked.is_some() {
        return outcome;
    }
    outcome.hold_until = op.hold_until.get();
    outcome.exhaust = op.exhaust_reply.get() && outcome.ok;
    outcome.retryable = is_retried(prepared.role);
    if let Some(data) = injected.data.filter(|_| outcome.ok) {
        inject(&mut outcome, data.as_raw());
    }
    if outcome.write_concern_code.is_none() {
        match wait(op, prepared, &outcome) {
            Ok(wait) => outcome.wait = wait,
            Err(error) => {
                outcome = failed(prepared, error, None);
                outcome.retryable = is_retried(prepared.role);
            }
        }
    }
    outcome.operation_time = operation_time(op);
    outcome.close |= op.close_after_write.get();
    count(op, prepared, &outcome);
    outcome
}

fn is_retried(role: Role) -> bool {
    matches!(role, Role::RetryableWrite | Role::Commit | Role::Abort)
}

/// What the reply has to wait for.
///
/// Errors: those of a write that shows that this member still leads.
fn wait(op: &OpContext<'_>, prepared: &Prepared<'_>, outcome: &Outcome) -> Result<Option<Wait>> {
    let ends = matches!(prepared.role, Role::Commit | Role::Abort);
    let writes = prepared.command.spec.access == Access::Write
        || ends
        || op.committed.get().is_some()
        // On a secondary the primary has run it, and waited.
        || (prepared.aggregation_writes && op.node.replica().is_none_or(|replica| replica.is_writable()));
    // Statements of a transaction wait when it commits.
    let writes = writes && (ends || !op.in_transaction);
    let Some(replica) = op.node.replica() else { return Ok(wait_alone(op, writes)) };
    let deadline = op.deadline();
    if op.read_concern().level == Some(ReadLevel::Linearizable) {
        if !outcome.ok {
            return Ok(None);
        }
        if !replica.is_writable() {
            bail!(Code::NOT_WRITABLE_PRIMARY, "cannot satisfy linearizable read concern on non-primary node");
        }
        let at = op.engine().last_applied();
        let concern = Effective { w: W::Majority, ..Effective::alone() };
        return Ok(Some(Wait { at, concern, deadline, vital: true }));
    }
    // What is in `local` has nobody else.
    if !writes || op.db == "local" {
        return Ok(None);
    }
    let default = op.node.defaults.current(op.node);
    let concern = Effective::of(op.write_concern.as_ref(), default.write());
    if concern.unacknowledged() || (concern.w == W::Nodes(1) && concern.journal != Some(true)) {
        return Ok(None);
    }
    let code = outcome.error.as_ref().map(Error::code);
    if code.is_some_and(is_not_primary) {
        return Ok(None);
    }
    if code == Some(Code::NO_SUCH_TRANSACTION) && op.write_concern.is_some() && replica.is_writable() {
        // That there is no such transaction is certain once a majority agrees that this member leads.
        let (stop, note) = (op.interrupter(), doc! { "msg": "NoSuchTransaction error" });
        op.note_commit(op.blocking(|| replica.write_noop(&note, &|| stop.check()))?);
    }
    Ok(Some(Wait { at: relied_on(op), concern, deadline, vital: false }))
}

/// What an operation that writes has written. Who has changed nothing may have seen what others have written, or what
/// this client has written with a lesser concern, and relies on it.
fn relied_on(op: &OpContext<'_>) -> sheaf_storage::OpTime {
    op.committed.get().unwrap_or_else(|| op.engine().last_applied())
}

/// A node without others waits for its disk.
fn wait_alone(op: &OpContext<'_>, writes: bool) -> Option<Wait> {
    let concern = Effective::of(op.write_concern.as_ref(), &Effective::alone());
    if !writes || !concern.wants_journal() || !op.node.options.journal {
        return None;
    }
    Some(Wait { at: relied_on(op), concern, deadline: None, vital: false })
}

/// The time of what the operation has written, or of what it may have read.
fn operation_time(op: &OpContext<'_>) -> Option<u64> {
    op.node.replica()?;
    if let Some(committed) = op.committed.get() {
        let mut last = op.client.last_op.lock();
        *last = committed.max(*last);
        return Some(last.time);
    }
    if let Some(at) = op.at_cluster_time() {
        return Some(at.0);
    }
    if op.reads_majority() && !op.in_transaction {
        return op.engine().majority_view().map(|view| view.time().0);
    }
    Some(op.engine().last_applied().time)
}

/// An error reply with the labels that it deserves.
pub fn failed(prepared: &Prepared<'_>, error: Error, labels: Option<Vec<String>>) -> Outcome {
    let Some(labels) = labels else {
        return Outcome::of_error(&labelled(error, prepared.role));
    };
    let mut reply = Reply::ok();
    if !labels.is_empty() {
        reply.fill(|doc| {
            let mut array = doc.array("errorLabels");
            labels.iter().for_each(|label| {
                array.push(label.as_str());
            });
        });
    }
    reply.fill(|doc| crate::reply::write_error(doc, &error));
    Outcome { ok: false, error: Some(error), ..Outcome::of_reply(reply) }
}

/// The error with the label by which drivers try again, if they may.
pub(super) fn labelled(error: Error, role: Role) -> Error {
    let code = error.code();
    let ends = matches!(role, Role::Commit | Role::Abort);
    let transient = matches!(
        code,
        Code::WRITE_CONFLICT
            | Code::LOCK_TIMEOUT
            | Code::PREPARED_TRANSACTION_IN_PROGRESS
            | Code::NO_SUCH_TRANSACTION
            | Code::SNAPSHOT_TOO_OLD
            | Code::SNAPSHOT_UNAVAILABLE
            | Code::STALE_CHUNK_HISTORY
    );
    if role.in_transaction() && (transient || (!ends && is_retryable(code))) {
        return error.with_label(TRANSIENT);
    }
    if is_retried(role) && is_retryable(code) {
        return error.with_label(RETRYABLE);
    }
    error
}

/// The label of errors after which the whole transaction may be run again.
const TRANSIENT: &str = "TransientTransactionError";

/// The label of errors after which the command may be sent again.
pub const RETRYABLE: &str = "RetryableWriteError";

/// An error reply without a label that a failed write concern has made untrue.
pub fn without_transient(error: &Error) -> Reply {
    let labels: Vec<_> = error.labels().iter().copied().filter(|label| *label != TRANSIENT).collect();
    let mut bare = Error::new(error.code(), error.message());
    for label in labels {
        bare = bare.with_label(label);
    }
    Reply::error(&bare)
}

/// The errors of a member that is not what the request needs.
pub fn is_not_primary(code: Code) -> bool {
    matches!(
        code,
        Code::NOT_WRITABLE_PRIMARY
            | Code::NOT_PRIMARY_NO_SECONDARY_OK
            | Code::NOT_PRIMARY_OR_SECONDARY
            | Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE
            | Code::PRIMARY_STEPPED_DOWN
    )
}

/// Whether the error tells of a change of what this member is, so that its reply has a `topologyVersion`: it is not
/// what the request needs, or it goes down.
pub fn is_state_change(code: Code, shutting_down: bool) -> bool {
    is_not_primary(code)
        || (shutting_down && matches!(code, Code::SHUTDOWN_IN_PROGRESS | Code::INTERRUPTED_AT_SHUTDOWN))
}

/// The codes after which a driver may send the same write again.
pub fn is_retryable(code: Code) -> bool {
    matches!(code.0, 6 | 7 | 89 | 91 | 134 | 189 | 262 | 9001 | 10107 | 11600 | 11602 | 13435 | 13436)
}

/// `writeConcernError` and labels of a `failCommand` that lets the command run.
fn inject(outcome: &mut Outcome, data: RawDoc<'_>) {
    if let Some(error) = data.get("writeConcernError").and_then(|v| v.as_doc()) {
        outcome.reply.append("writeConcernError", error);
        let code = error.get("code").and_then(|code| code.as_exact_i64()).unwrap_or(0);
        outcome.write_concern_code = Some(Code(code as i32));
    }
    outcome.labels = fail::labels(data).unwrap_or_else(|| match outcome.write_concern_code {
        Some(code) if outcome.retryable && is_retryable(code) => vec![RETRYABLE.to_owned()],
        _ => Vec::new(),
    });
}

fn count(op: &OpContext<'_>, prepared: &Prepared<'_>, outcome: &Outcome) {
    let spec = &prepared.command.spec;
    let took = op.started.elapsed();
    let class = match spec.access {
        Access::Read => Class::Read,
        Access::Write => Class::Write,
        Access::None => Class::Command,
    };
    let namespace = op.metrics.namespace.borrow();
    let node = op.node;
    // A collection that was just dropped must not come back among those that are counted.
    let counted = namespace.as_deref().filter(|_| prepared.command.name != "drop");
    node.metrics.finished(class, spec.counter, counted, took);
    node.metrics.docs_examined.add(op.metrics.docs_examined.get());
    node.metrics.keys_examined.add(op.metrics.keys_examined.get());
    node.metrics.docs_returned.add(op.metrics.returned.get().unwrap_or(0));
    node.metrics.docs_inserted.add(op.metrics.inserted.get().unwrap_or(0));
    node.metrics.docs_updated.add(op.metrics.modified.get().unwrap_or(0));
    node.metrics.docs_deleted.add(op.metrics.deleted.get().unwrap_or(0));
    let settings = node.profiling.active(op.db);
    let filter = settings.as_ref().and_then(|settings| settings.filter.as_ref());
    let entry = || crate::commands::diag::profile::entry(op, prepared.command, outcome, took);
    let slow = match filter {
        // A filter takes the place of `slowms` and `sampleRate`; what it can't judge does not pass.
        Some(filter) => filter.matches_doc(entry().as_raw()).unwrap_or(false),
        None => node.profiling.is_slow(took.as_millis() as i64) && prepared.command.name != "hello",
    };
    if slow || crate::log::verbosity() > 0 {
        node.metrics.slow_ops.add(u64::from(slow));
        log_slow(op, prepared, outcome, took, slow);
    }
    let level = settings.as_ref().map_or(0, |settings| settings.level);
    if level > 0 && (slow || (level == 2 && filter.is_none())) {
        crate::commands::diag::profile::record(op, &entry());
    }
}

/// Longest command that is logged whole.
const LOGGED_COMMAND_BYTES: usize = 8 * 1024;

fn log_slow(op: &OpContext<'_>, prepared: &Prepared<'_>, outcome: &Outcome, took: Duration, slow: bool) {
    let namespace = op.metrics.namespace.borrow();
    let everything = format!("{}.$cmd", op.db);
    let attributes = DocBuf::build(|attr| {
        attr.append("type", "command");
        attr.append("isFromUserConnection", true);
        attr.append("ns", namespace.as_deref().unwrap_or(&everything));
        if let Some(app) = op.client.app_name() {
            attr.append("appName", &app);
        }
        if op.body.len() <= LOGGED_COMMAND_BYTES {
            append_command(op, attr);
        } else {
            attr.append("command", &doc! { (prepared.command.name): "too large to log" });
        }
        figures(op, attr);
        attr.append("reslen", outcome.reply.body_len() as i32);
        attr.append("protocol", "op_msg");
        attr.append("durationMillis", took.as_millis() as i64);
    });
    let context = op.client.context();
    if slow {
        crate::log::info("COMMAND", 51803, &context, "Slow query", Some(attributes));
    } else {
        crate::log::debug("COMMAND", 51803, &context, "Slow query", Some(attributes));
    }
}

/// The command as the slow log and the profiler show it; a `getMore` together with the command that opened its
/// cursor.
pub fn append_command(op: &OpContext<'_>, doc: &mut DocWriter<'_, Vec<u8>>) {
    match &*op.metrics.cursor.borrow() {
        Some(cursor) => {
            doc.append("command", &cursor.get_more(op.body));
            if cursor.command.as_raw().len() <= LOGGED_COMMAND_BYTES {
                doc.append("originatingCommand", &cursor.command);
            }
        }
        None => {
            doc.append("command", op.body);
        }
    }
}

/// The figures that handlers noted, as the slow log and the profiler name them.
pub fn figures(op: &OpContext<'_>, doc: &mut DocWriter<'_, Vec<u8>>) {
    let metrics = &op.metrics;
    if let Some(plan) = metrics.plan_summary.borrow().as_deref() {
        doc.append("planSummary", plan);
    }
    if let Some(id) = metrics.cursor_id.get() {
        doc.append("cursorid", id);
    }
    if metrics.cursor_exhausted.get() {
        doc.append("cursorExhausted", true);
    }
    if metrics.docs_examined.get() > 0 || metrics.keys_examined.get() > 0 {
        doc.append("keysExamined", metrics.keys_examined.get() as i64);
        doc.append("docsExamined", metrics.docs_examined.get() as i64);
    }
    if metrics.has_sort_stage.get() {
        doc.append("hasSortStage", true);
    }
    let counts = [
        ("nreturned", &metrics.returned),
        ("ninserted", &metrics.inserted),
        ("nMatched", &metrics.matched),
        ("nModified", &metrics.modified),
        ("nUpserted", &metrics.upserted),
        ("ndeleted", &metrics.deleted),
    ];
    for (name, figure) in counts {
        if let Some(n) = figure.get() {
            doc.append(name, n as i64);
        }
    }
    if metrics.write_conflicts.get() > 0 {
        doc.append("writeConflicts", metrics.write_conflicts.get() as i64);
    }
}
