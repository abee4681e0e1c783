//! Transactions of the router's own: what one statement of a client's writes on several shards happens on all of them, or not at all.
//!
//! They run in sessions of the router's own, of which a few are used again and again. For a retryable write their statements carry
//! the client's session, number and statement, so that the shards find and record them as the client's.

use std::time::{Duration, Instant};

use sheaf_bson::DocBuf;
use sheaf_errors::{Code, Error, Result};
use sheaf_front::concern::W;
use sheaf_front::session::LogicalSessionId;

use crate::op::Operation;
use crate::session::{Own, OwnSession, Stage, Transaction};
use crate::transaction;

/// Errors of write concerns, and the shards that they are of.
pub type ConcernErrors = Vec<(String, DocBuf)>;

/// So many are kept.
const KEPT: usize = 1024;

/// For so long a transaction is tried again that others are in the way of.
const PATIENCE: Duration = Duration::from_secs(20);

/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Runs `work` in a transaction of the router's own, or in the client's where there is one, and commits it. `work` runs again where the
/// transaction was aborted because others were in its way.
///
/// Gives the errors of write concerns that its commit has met, and the shards that they are of.
///
/// Errors: those of `work`, after which nothing has happened; those of the commit, of which some do not say whether it has.
pub fn within<T>(op: &Operation<'_>, work: impl FnMut() -> Result<T>) -> Result<(T, ConcernErrors)> {
    run(op, None, work)
}

/// As [`within`], but where the client does not wait for a majority each shard commits by itself. `committed` tells after an error which of
/// them have: what they have done stays, and is not to be done again.
pub fn within_each<T>(
    op: &Operation<'_>,
    committed: &mut Vec<String>,
    work: impl FnMut() -> Result<T>,
) -> Result<(T, ConcernErrors)> {
    let is_alone =
        op.request.write_concern().is_some_and(|concern| matches!(concern.w, Some(W::Nodes(0 | 1))));
    run(op, is_alone.then_some(committed), work)
}

fn run<T>(
    op: &Operation<'_>,
    mut alone: Option<&mut Vec<String>>,
    mut work: impl FnMut() -> Result<T>,
) -> Result<(T, ConcernErrors)> {
    if op.in_transaction() {
        return work().map(|value| (value, Vec::new()));
    }
    let began = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        match attempt(op, alone.as_deref_mut(), &mut work) {
            Err(error) if alone.as_ref().is_some_and(|committed| !committed.is_empty()) => return Err(error),
            Err(error) if is_transient(&error) && began.elapsed() < PATIENCE => {
                op.check_interrupt()?;
                op.blocking(|| std::thread::sleep(pause));
                pause = (pause * 2).min(PAUSE_MAX);
            }
            Err(error) => return Err(without_label(error)),
            done => return done,
        }
    }
}

/// Whether others were in the way, and the transaction can be run again.
pub fn is_transient(error: &Error) -> bool {
    error.labels().contains(&"TransientTransactionError")
        || matches!(error.code(), Code::WRITE_CONFLICT | Code::LOCK_TIMEOUT | Code::SNAPSHOT_UNAVAILABLE)
}

/// The client has no transaction that its driver could run again.
fn without_label(error: Error) -> Error {
    const TRANSACTIONS: [&str; 2] = ["TransientTransactionError", "UnknownTransactionCommitResult"];
    if !error.labels().iter().any(|label| TRANSACTIONS.contains(label)) {
        return error;
    }
    let mut bare = Error::new(error.code(), error.message());
    for label in error.labels().iter().filter(|label| !TRANSACTIONS.contains(label)) {
        bare = bare.with_label(label);
    }
    if let Some(extra) = error.extra() {
        bare = bare.with_extra(extra.to_vec());
    }
    bare
}

fn attempt<T>(
    op: &Operation<'_>,
    alone: Option<&mut Vec<String>>,
    work: &mut impl FnMut() -> Result<T>,
) -> Result<(T, ConcernErrors)> {
    let kept = op.router.own_sessions.lock().pop();
    let OwnSession { lsid, number } = kept.map_or_else(
        || OwnSession { lsid: LogicalSessionId::new(*uuid::Uuid::new_v4().as_bytes()), number: 0 },
        |kept| OwnSession { number: kept.number + 1, ..kept },
    );
    let transaction = Transaction {
        number,
        stage: Stage::Open,
        read_concern: None,
        read_at: None,
        open_time: None,
        participants: Vec::new(),
        failed: false,
    };
    let retry_of = op.request.lsid().zip(op.request.txn_number()).filter(|_| op.records_statements());
    op.own.replace(Some(Own {
        lsid,
        number,
        records: true,
        result: None,
        retry_of,
        attempt: op.attempt.get(),
    }));
    op.transaction.replace(Some(transaction));
    let done = work().and_then(|value| transaction::commit_own(op, alone).map(|concerns| (value, concerns)));
    if done.is_err() {
        transaction::abort_after_error(op);
    }
    op.transaction.replace(None);
    op.own.replace(None);
    let mut kept = op.router.own_sessions.lock();
    if kept.len() < KEPT {
        kept.push(OwnSession { lsid, number });
    }
    done
}
