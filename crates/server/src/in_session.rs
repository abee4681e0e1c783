//! Running an operation inside its session: admission, the transaction taken out of the session
//! and put back, and what an error does to it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use sheaf_bson::{DocBuf, DocWriter, RawDoc, Timestamp};
use sheaf_errors::{Code, Result, bail};
use sheaf_shard::Executed;

use crate::op::{Operation, TxnEnd};
use crate::read;
use crate::reply::Reply;
use crate::session::{self, Session, SessionState, TxnPart, TxnState};
use crate::sharding::{Fate, transaction_id};

/// Runs `work` with the session's transaction (or retryable-write number) in force.
pub fn run<'a>(
    op: &mut Operation<'a>,
    session: &Arc<Session>,
    txn_number: i64,
    work: impl FnOnce(&Operation<'a>) -> Result<Reply>,
) -> Result<Reply> {
    let part = op.part;
    let mut state = state_of(op, session)?;
    op.node.refresh_session(session, &mut state);
    load(&mut state, op, session)?;
    learn_fate(&mut state, op, session);
    let open_since = state.open_since();
    let before = state.txn_number;
    if part == TxnPart::Start && !op.node.is_in_cluster() {
        check_start(op, before, txn_number)?;
    }
    state.admit(session.id, part, txn_number)?;
    if let Some(started) = open_since.filter(|_| txn_number > before) {
        // A newer number ends the open transaction.
        op.node.transaction_gone(session.id, before, started.elapsed());
    }
    if part == TxnPart::RetryableWrite {
        if let Some(attempt) = op.generic.attempt {
            session::admit_attempt(op, &mut state, attempt)?;
        }
        return work(op);
    }
    if let Err(error) = enter(op, session, &mut state, part) {
        if let Some(started) = state.open_since() {
            state.txn = TxnState::Aborted;
            op.node.transaction_gone(session.id, txn_number, started.elapsed());
        }
        return Err(error);
    }
    op.node.metrics.txn.active.fetch_add(1, Ordering::Relaxed);
    let result = work(op);
    op.node.metrics.txn.active.fetch_sub(1, Ordering::Relaxed);
    let result = leave(op, session, &mut state, txn_number, result);
    // Whoever looked for open transactions when this node ceased to be primary could not look into this one.
    op.node.refresh_session(session, &mut state);
    result
}

/// What a transaction begins with that no router has sent.
///
/// Errors: `ConflictingOperationInProgress` for a number that the session has had, `InvalidOptions` for what only routers say.
fn check_start(op: &Operation<'_>, newest: i64, txn_number: i64) -> Result<()> {
    if op.generic.txn_retry_counter.is_some() {
        bail!(Code::INVALID_OPTIONS, "txnRetryCounter is only supported in sharded clusters");
    }
    if newest == txn_number {
        bail!(
            Code::CONFLICTING_OPERATION_IN_PROGRESS,
            "Only servers in a sharded cluster can start a new transaction at the active transaction number"
        );
    }
    Ok(())
}

/// How long a wait goes on before it asks whether to go on.
pub const WAIT_STEP: Duration = Duration::from_millis(20);

/// The session's state, which operations have one after another. Who waits for the one before holds up no other connections.
///
/// Errors: it was killed, or is out of time.
pub fn state_of<'s>(op: &Operation<'_>, session: &'s Session) -> Result<MutexGuard<'s, SessionState>> {
    match session.state.try_lock() {
        Some(state) => Ok(state),
        None => op.blocking(|| wait_for(op, session)),
    }
}

fn wait_for<'s>(op: &Operation<'_>, session: &'s Session) -> Result<MutexGuard<'s, SessionState>> {
    loop {
        if let Some(state) = session.state.try_lock_for(WAIT_STEP) {
            return Ok(state);
        }
        op.check_interrupt()?;
    }
}

/// Learns what storage knows of the session from before a restart.
fn load(state: &mut SessionState, op: &Operation<'_>, session: &Session) -> Result<()> {
    if state.loaded {
        return Ok(());
    }
    if let Some(record) = op.engine().session_record(session.id.document().as_raw())? {
        state.txn_number = record.txn_number;
        // What was recorded before a restart has been recovered, so it stands at or before the newest.
        state.txn = if record.committed { TxnState::Committed(op.last_applied()) } else { TxnState::Writes };
    }
    state.loaded = true;
    Ok(())
}

/// Learns what has become of a transaction that was handed over.
fn learn_fate(state: &mut SessionState, op: &Operation<'_>, session: &Session) {
    let (TxnState::HandedOver, Some(sharding)) = (&state.txn, op.node.sharding()) else { return };
    match sharding.fate(&transaction_id(session.id, state.txn_number)) {
        Fate::InDoubt => {}
        Fate::Committed => state.txn = TxnState::Committed(op.last_applied()),
        Fate::Aborted => state.txn = TxnState::Aborted,
    }
}

/// Gives the operation the transaction.
fn enter(op: &mut Operation<'_>, session: &Session, state: &mut SessionState, part: TxnPart) -> Result<()> {
    if let Some(of) = &op.generic.retry_of {
        session::admit_attempt_in_transaction(op, of, session, state.txn_number)?;
    }
    if part == TxnPart::Start {
        let transaction = read::begin(op, (session.id.document(), state.txn_number))?;
        let executed = match op.node.sharding() {
            Some(sharding) => sharding.execute(&transaction_id(session.id, state.txn_number), None)?,
            None => Executed::default(),
        };
        op.node.metrics.txn.started.add(1);
        op.node.metrics.txn.open.fetch_add(1, Ordering::Relaxed);
        state.txn = TxnState::InProgress {
            transaction: Some(Box::new(transaction)),
            started: Instant::now(),
            used: Instant::now(),
            routers_own: op.generic.routers_own,
            read_concern: op.read_concern.get(),
            executed,
        };
        op.node.sessions.opened(session.id);
    }
    match &mut state.txn {
        TxnState::InProgress { transaction, read_concern, executed, .. } => {
            if let Some(sharding) = op.node.sharding().filter(|_| part == TxnPart::Continue) {
                *executed =
                    sharding.execute(&transaction_id(session.id, state.txn_number), Some(*executed))?;
            }
            op.executed.set(*executed);
            op.read_concern.set(*read_concern);
            *op.transaction.borrow_mut() = transaction.take().map(|boxed| *boxed);
        }
        TxnState::Committed(position) => op.txn_found.set(Some(*position)),
        _ => {}
    }
    Ok(())
}

/// Puts the transaction back, or notes its end.
fn leave(
    op: &Operation<'_>,
    session: &Session,
    state: &mut SessionState,
    txn_number: i64,
    result: Result<Reply>,
) -> Result<Reply> {
    let rest = op.transaction.borrow_mut().take();
    let TxnState::InProgress { transaction, started, used, executed, .. } = &mut state.txn else {
        return result;
    };
    *used = Instant::now();
    let lived = started.elapsed();
    let is_open = |executed| {
        let id = || transaction_id(session.id, txn_number);
        op.node.sharding().is_none_or(|sharding| sharding.is_open(&id(), executed))
    };
    match (&result, op.txn_ended.get()) {
        (_, Some(TxnEnd::Committed(position))) => {
            state.txn = TxnState::Committed(position);
            op.node.metrics.txn.committed.add(1);
            op.node.metrics.transaction_ended(lived);
            op.node.cursors.kill_where(|cursor| {
                cursor.lsid == Some(session.id) && cursor.txn_number == Some(txn_number)
            });
        }
        (Ok(reply), None)
            if !(op.has_failed.get() || has_write_errors(reply))
                && rest.is_some()
                && is_open(*executed)
                && !is_given_up(op) =>
        {
            let read_at = rest.as_ref().map(|rest| Timestamp(rest.snapshot_time()));
            let executed = *executed;
            *transaction = rest.map(Box::new);
            return result.map(|mut reply| {
                reply.fill(|out| tell(op, executed, read_at, out));
                reply
            });
        }
        // Nothing was changed, and the router goes on in the transaction.
        (Err(error), None) if is_routers(error.code()) && rest.is_some() && is_open(*executed) => {
            let read_at = rest.as_ref().map(|rest| Timestamp(rest.snapshot_time()));
            let executed = *executed;
            *transaction = rest.map(Box::new);
            return result.map_err(|error| {
                let mut extra = DocBuf::from(error.extra().map_or(RawDoc::EMPTY, RawDoc::new));
                extra.edit(|out| tell(op, executed, read_at, out));
                error.with_extra(extra.into_bytes())
            });
        }
        // An error, or a statement that failed, ends the transaction; dropping its storage part
        // undoes it.
        _ => {
            drop(rest);
            state.txn = TxnState::Aborted;
            op.node.transaction_gone(session.id, txn_number, lived);
        }
    }
    result
}

/// Whether a router that has asked for a statement has given it up, and with it the transaction: it closes the connection then. A statement that
/// has lain in the socket while this process stood still would begin a transaction that nobody knows of.
fn is_given_up(op: &Operation<'_>) -> bool {
    let routed = op.part == TxnPart::Start || op.generic.shard_version.is_some();
    op.node.sharding().is_some() && routed && op.client.stop.has_gone()
}

/// Whether an error is a router's to deal with, which sends other statements for this one.
fn is_routers(code: Code) -> bool {
    matches!(code, Code::WOULD_CHANGE_OWNING_SHARD | Code::COMMAND_ON_SHARDED_VIEW_NOT_SUPPORTED_ON_MONGOD)
}

/// Adds what a router is told with the answer to a statement: what the transaction has executed here, and as of when it reads.
fn tell(
    op: &Operation<'_>,
    executed: Executed,
    read_at: Option<Timestamp>,
    out: &mut DocWriter<'_, Vec<u8>>,
) {
    if op.node.sharding().is_some() {
        executed.append(out);
    }
    let begins = op.part == TxnPart::Start && op.node.is_in_cluster();
    if let Some(read_at) = read_at.filter(|_| begins) {
        out.append("readAt", read_at);
    }
}

/// A write command that answers `ok: 1` with `writeErrors` has failed as far as its transaction
/// is concerned.
fn has_write_errors(reply: &Reply) -> bool {
    let mut bytes = (reply.elements().len() as i32 + 5).to_le_bytes().to_vec();
    // Only small replies can be those of write commands that failed at once; look no further.
    if reply.elements().len() > 64 << 10 {
        return false;
    }
    bytes.extend_from_slice(reply.elements());
    bytes.push(0);
    let errors = sheaf_bson::RawDoc::new(&bytes).get("writeErrors").and_then(|errors| errors.as_array());
    // Whose document is to be another shard's has changed nothing, and the router goes on in the transaction.
    let is_failure = |entry: sheaf_bson::RawDoc<'_>| {
        let code = entry.get("code").and_then(|code| code.as_exact_i64());
        code != Some(i64::from(Code::WOULD_CHANGE_OWNING_SHARD.0))
    };
    errors.is_some_and(|errors| errors.values().filter_map(|entry| entry.as_doc()).any(is_failure))
}
