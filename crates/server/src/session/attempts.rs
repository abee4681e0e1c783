//! Attempts of routers at one retryable statement, of which more than one shard may have the document.
//!
//! A router asks all these shards whether they have executed the statement before it looks for its document. Each of them remembers the latest
//! attempt by which it was asked: from then on it executes the statement for that one only. So of two attempts the one that has asked later
//! everywhere knows that the other one, which has not written by then, never will.
//!
//! None of this is on disk. A shard that has forgotten who has asked (another primary, a restart, a session that was idle for long) executes
//! the statement for nobody until it is asked again.

use std::time::{Duration, Instant};

use sheaf_bson::DocBuf;
use sheaf_errors::{Code, Error, Result};
use sheaf_front::generic::{Attempt, RetryOf, append_attempt};

use super::{LogicalSessionId, Session, SessionState, TxnPart, TxnState};
use crate::in_session::{WAIT_STEP, state_of};
use crate::op::Operation;
use crate::sharding::{Fate, transaction_id};

/// For so long a shard that is asked waits for a transaction of an earlier attempt that is prepared.
const PATIENCE: Duration = Duration::from_secs(10);

/// Who has asked for a statement of a session's newest number.
#[derive(Default)]
pub struct Attempts {
    /// The latest attempt.
    newest: u128,
    /// The transaction of a router's own in which an attempt has executed a statement, if it may still be open.
    transaction: Option<(LogicalSessionId, i64)>,
}

impl SessionState {
    /// Notes that this attempt asks; gives the transaction of an earlier one that may be open.
    ///
    /// Errors: a later one has asked.
    fn asks(&mut self, attempt: u128) -> Result<Option<(LogicalSessionId, i64)>> {
        let known = self.attempts.get_or_insert_default();
        if attempt < known.newest {
            return Err(overtaken(known.newest));
        }
        known.newest = attempt;
        Ok(known.transaction)
    }

    /// Whether this attempt may execute the statement.
    ///
    /// Errors: it was not the last to ask.
    fn may_execute(&self, attempt: u128) -> Result<()> {
        match self.attempts.as_deref().map_or(0, |known| known.newest) {
            newest if newest == attempt => Ok(()),
            newest => Err(overtaken(newest)),
        }
    }

    fn executes_in(&mut self, transaction: Option<(LogicalSessionId, i64)>) {
        self.attempts.get_or_insert_default().transaction = transaction;
    }
}

/// The error of an attempt that must not execute the statement; a router tells by `retryAttempt` that it may ask again by a higher number.
fn overtaken(newest: u128) -> Error {
    let told = DocBuf::build(|out| append_attempt(newest, out, "retryAttempt"));
    Error::new(Code::CONFLICTING_OPERATION_IN_PROGRESS, "another attempt at the statement has come meanwhile")
        .with_extra(told.into_bytes())
}

/// A retryable write of a router is about to be executed, or asked for, in its session.
///
/// Errors: another attempt at it has come between; those of waiting for an earlier one.
pub fn admit(op: &Operation<'_>, state: &mut SessionState, attempt: Attempt) -> Result<()> {
    if !attempt.asks {
        return state.may_execute(attempt.number);
    }
    if let Some((lsid, number)) = state.asks(attempt.number)? {
        end(op, lsid, number, attempt.number)?;
        state.executes_in(None);
    }
    Ok(())
}

/// A router's own transaction, this one, is about to execute a client's retryable write.
///
/// Errors: another attempt at it has come between, or is just coming.
pub fn admit_in_transaction(
    op: &Operation<'_>,
    of: &RetryOf<'_>,
    own: &Session,
    own_number: i64,
) -> Result<()> {
    let Some(attempt) = of.attempt.filter(|_| matches!(op.part, TxnPart::Start | TxnPart::Continue)) else {
        return Ok(());
    };
    let clients = op.node.sessions.get(of.lsid).ok_or_else(|| overtaken(0))?;
    // Who has it may be waiting for this very transaction.
    let mut state = clients.state.try_lock().ok_or_else(|| overtaken(0))?;
    op.node.refresh_session(&clients, &mut state);
    if state.txn_number != of.txn_number {
        return Err(overtaken(0));
    }
    state.may_execute(attempt)?;
    state.executes_in(Some((own.id, own_number)));
    Ok(())
}

/// Ends an open transaction of an earlier attempt; waits for what becomes of one that is prepared.
fn end(op: &Operation<'_>, lsid: LogicalSessionId, number: i64, attempt: u128) -> Result<()> {
    if let Some(session) = op.node.sessions.get(lsid) {
        let mut state = state_of(op, &session)?;
        op.node.refresh_session(&session, &mut state);
        if let Some(started) = state.open_since().filter(|_| state.txn_number == number) {
            state.txn = TxnState::Aborted;
            op.node.transaction_gone(lsid, number, started.elapsed());
        }
    }
    let Some(sharding) = op.node.sharding() else { return Ok(()) };
    let (id, since) = (transaction_id(lsid, number), Instant::now());
    while matches!(sharding.fate(&id), Fate::InDoubt) {
        op.check_interrupt()?;
        if since.elapsed() > PATIENCE {
            return Err(overtaken(attempt));
        }
        op.blocking(|| std::thread::sleep(WAIT_STEP));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: LogicalSessionId = LogicalSessionId::new([7; 16]);

    #[test]
    fn the_last_to_ask_executes() {
        let mut state = SessionState::default();
        state.admit(ID, TxnPart::RetryableWrite, 3).unwrap();
        assert!(state.may_execute(5).is_err(), "nobody has asked");
        assert_eq!(state.asks(5).unwrap(), None);
        assert!(state.may_execute(5).is_ok());
        assert!(state.asks(4).is_err(), "an earlier attempt is too late");
        assert!(state.asks(5).is_ok(), "the same one asks for each of its statements");
        assert_eq!(state.asks(6).unwrap(), None);
        let told = state.may_execute(5).unwrap_err();
        let newest = sheaf_bson::RawDoc::new(told.extra().unwrap()).get_or_missing("retryAttempt");
        assert_eq!(sheaf_front::generic::attempt_number(newest).unwrap(), 6);
        assert!(state.may_execute(6).is_ok());
    }

    #[test]
    fn another_number_and_another_office_begin_anew() {
        let mut state = SessionState::default();
        state.admit(ID, TxnPart::RetryableWrite, 3).unwrap();
        state.asks(5).unwrap();
        state.executes_in(Some((ID, 1)));
        assert_eq!(state.asks(6).unwrap(), Some((ID, 1)), "its transaction may be open");
        state.admit(ID, TxnPart::RetryableWrite, 3).unwrap();
        assert!(state.may_execute(6).is_ok());
        state.admit(ID, TxnPart::RetryableWrite, 4).unwrap();
        assert!(state.may_execute(6).is_err());
        assert_eq!(state.asks(1).unwrap(), None);
    }
}
