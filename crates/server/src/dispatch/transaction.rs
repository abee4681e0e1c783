//! Running an operation inside its session: admission, the transaction taken out of the session
//! and put back, and what an error does to it.

use std::sync::Arc;
use std::time::Instant;

use sheaf_errors::Result;

use crate::op::{OpContext, TxnEnd};
use crate::reply::Reply;
use crate::session::{Role, Session, SessionState, TxnState};

/// Runs `work` with the session's transaction (or retryable-write number) in force.
pub fn run_in_session<'a>(
    op: &mut OpContext<'a>,
    session: &Arc<Session>,
    role: Role,
    txn_number: i64,
    work: impl FnOnce(&OpContext<'a>) -> Result<Reply>,
) -> Result<Reply> {
    // Operations of one session come one after another; waiting must not hold up other connections.
    let mut state = match session.state.try_lock() {
        Some(state) => state,
        None => op.blocking(|| session.state.lock()),
    };
    load(&mut state, op, session)?;
    let had_open = state.is_open();
    let before = state.txn_number;
    state.admit(session.id, role, txn_number)?;
    if had_open && txn_number > before {
        // A newer number ends the open transaction.
        aborted(op, session, before);
    }
    if role == Role::RetryableWrite {
        return work(op);
    }
    enter(op, session, &mut state, role)?;
    let result = work(op);
    leave(op, session, &mut state, txn_number, result)
}

/// Learns what storage knows of the session from before a restart.
fn load(state: &mut SessionState, op: &OpContext<'_>, session: &Session) -> Result<()> {
    if state.loaded {
        return Ok(());
    }
    if let Some(record) = op.engine().session_record(session.id.document().as_raw())? {
        state.txn_number = record.txn_number;
        // What was recorded before a restart has been recovered, so it stands at or before the newest.
        state.txn =
            if record.committed { TxnState::Committed(op.engine().last_applied()) } else { TxnState::Writes };
    }
    state.loaded = true;
    Ok(())
}

/// Gives the operation the transaction.
fn enter(op: &mut OpContext<'_>, session: &Session, state: &mut SessionState, role: Role) -> Result<()> {
    if role == Role::Start {
        session.doomed.store(false, std::sync::atomic::Ordering::Relaxed);
        let transaction = op.engine().begin(Some((session.id.document(), state.txn_number)))?;
        op.node.metrics.txn.started.add(1);
        op.node.metrics.txn.open.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        state.txn = TxnState::InProgress {
            transaction: Some(Box::new(transaction)),
            started: Instant::now(),
            read_concern: op.read_concern,
        };
    }
    match &mut state.txn {
        TxnState::InProgress { transaction, read_concern, .. } => {
            op.read_concern = *read_concern;
            *op.transaction.borrow_mut() = transaction.take().map(|boxed| *boxed);
        }
        TxnState::Committed(position) => op.txn_found.set(Some(*position)),
        _ => {}
    }
    Ok(())
}

/// Puts the transaction back, or notes its end.
fn leave(
    op: &OpContext<'_>,
    session: &Session,
    state: &mut SessionState,
    txn_number: i64,
    result: Result<Reply>,
) -> Result<Reply> {
    let rest = op.transaction.borrow_mut().take();
    let TxnState::InProgress { transaction, .. } = &mut state.txn else { return result };
    match (&result, op.txn_ended.get()) {
        (_, Some(TxnEnd::Committed(position))) => {
            state.txn = TxnState::Committed(position);
            op.node.metrics.txn.committed.add(1);
            op.node.metrics.txn.open.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
            kill_cursors(op, session, txn_number);
        }
        (Ok(reply), None) if !has_write_errors(reply) && rest.is_some() => {
            *transaction = rest.map(Box::new);
        }
        // An error, or a statement that failed, ends the transaction; dropping its storage part
        // undoes it.
        _ => {
            drop(rest);
            state.txn = TxnState::Aborted;
            aborted(op, session, txn_number);
        }
    }
    result
}

fn aborted(op: &OpContext<'_>, session: &Session, txn_number: i64) {
    op.node.metrics.txn.aborted.add(1);
    op.node.metrics.txn.open.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    kill_cursors(op, session, txn_number);
}

fn kill_cursors(op: &OpContext<'_>, session: &Session, txn_number: i64) {
    op.node
        .cursors
        .kill_where(|cursor| cursor.lsid == Some(session.id) && cursor.txn_number == Some(txn_number));
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
    sheaf_bson::RawDoc::new(&bytes).element("writeErrors").is_some()
}
