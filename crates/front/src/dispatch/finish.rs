//! After the handler: labels, counting, the slow log.

use sheaf_bson::RawDoc;
use sheaf_errors::{Code, Error};

use super::{fail, slow_log};
use crate::audit::noted;
use crate::outcome::{Ran, RequestOutcome};
use crate::reply::Reply;
use crate::request::Request;
use crate::role::Role;
use crate::session::TxnPart;

/// Turns what a role made of a request into what the connection sends.
pub fn finish(role: &dyn Role, request: &Request<'_>, ran: Ran, injected: fail::Additions) -> RequestOutcome {
    let mut outcome = match ran.result {
        Ok(reply) => RequestOutcome::of_reply(reply),
        Err(error) => {
            request.front.metrics.write_conflicts.add(u64::from(error.code() == Code::WRITE_CONFLICT));
            failed(request.part, error, None)
        }
    };
    outcome.parked = ran.parked;
    if outcome.parked.is_some() {
        return outcome;
    }
    outcome.exhaust = request.exhaust_reply.get() && outcome.ok;
    outcome.retryable = is_retried(request.part);
    if let Some(data) = injected.data.filter(|_| outcome.ok) {
        inject(&mut outcome, data.as_raw());
    }
    if outcome.write_concern_code.is_none() {
        outcome.wait = ran.wait;
    }
    outcome.operation_time = ran.operation_time;
    outcome.close |= request.close_after.get();
    noted::after(request, outcome.error.as_ref());
    slow_log::count(role, request, &outcome);
    outcome
}

fn is_retried(part: TxnPart) -> bool {
    part.ends() || part == TxnPart::RetryableWrite
}

/// An error reply with the labels that it deserves.
pub fn failed(part: TxnPart, error: Error, labels: Option<Vec<String>>) -> RequestOutcome {
    let Some(labels) = labels else {
        return RequestOutcome::of_error(&labelled(error, part));
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
    RequestOutcome { ok: false, error: Some(error), ..RequestOutcome::of_reply(reply) }
}

/// The error with the label by which drivers try again, if they may.
pub(super) fn labelled(error: Error, part: TxnPart) -> Error {
    let code = error.code();
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
    if part.in_transaction() && (transient || (!part.ends() && is_retryable(code))) {
        return error.with_label(TRANSIENT);
    }
    if is_retried(part) && is_retryable(code) {
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
fn inject(outcome: &mut RequestOutcome, data: RawDoc<'_>) {
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
