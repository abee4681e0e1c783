//! The state machine of one session's transactions and retryable writes.

use std::time::Instant;

use sheaf_errors::{Code, Error, Result, bail};
use sheaf_front::session::Carried;
use sheaf_shard::Executed;
use sheaf_storage::{OpTime, Transaction};

use crate::concern::ReadConcern;

use super::attempts::Attempts;
use super::{LogicalSessionId, TxnPart};

/// What the newest `txnNumber` of a session stands for.
#[derive(Default)]
pub enum TxnState {
    /// Nothing yet.
    #[default]
    None,
    /// Retryable writes.
    Writes,
    /// An open transaction. Its storage part is `None` while an operation uses it.
    InProgress {
        /// The storage part.
        transaction: Option<Box<Transaction>>,
        /// When it began.
        started: Instant,
        /// When its last statement ended.
        used: Instant,
        /// Whether it is a router's own.
        routers_own: bool,
        /// `readConcern` of its first operation.
        read_concern: ReadConcern,
        /// What was executed in it, on a shard.
        executed: Executed,
    },
    /// It was handed over to be prepared: what has become of it stands in the log ([`ShardServer::fate`]).
    ///
    /// [`ShardServer::fate`]: crate::sharding::ShardServer::fate
    HandedOver,
    /// Committed at this position.
    Committed(OpTime),
    /// Aborted.
    Aborted,
}

impl TxnState {
    fn name(&self) -> &'static str {
        match self {
            TxnState::None | TxnState::Writes => "TxnState::None",
            TxnState::InProgress { .. } => "TxnState::InProgress",
            TxnState::HandedOver => "TxnState::Prepared",
            TxnState::Committed(_) => "TxnState::Committed",
            TxnState::Aborted => "TxnState::AbortedWithoutPrepare",
        }
    }
}

/// A session's newest `txnNumber` and what became of it.
pub struct SessionState {
    /// The newest number; -1 before the first.
    pub txn_number: i64,
    /// What it stands for.
    pub txn: TxnState,
    /// Whether storage was asked what it knows of the session from before a restart or under another primary.
    pub loaded: bool,
    /// The node's count of part changes for which this holds.
    pub role_changes: u64,
    /// Routers' attempts at statements of the newest number.
    pub attempts: Option<Box<Attempts>>,
}

impl Default for SessionState {
    fn default() -> Self {
        SessionState { txn_number: -1, txn: TxnState::None, loaded: false, role_changes: 0, attempts: None }
    }
}

impl Carried for SessionState {
    fn is_nothing(&self) -> bool {
        self.txn_number == -1 && matches!(self.txn, TxnState::None) && self.attempts.is_none()
    }
}

impl SessionState {
    /// Admits an operation of this part with this number, or says why not. Afterwards the state
    /// is that of `txn_number`; for [`TxnPart::Start`] the caller puts the new transaction in.
    ///
    /// Errors: `TransactionTooOld`, `NoSuchTransaction` (with its label), `TransactionCommitted`,
    /// `ConflictingOperationInProgress` and kin.
    pub fn admit(&mut self, id: LogicalSessionId, part: TxnPart, txn_number: i64) -> Result<()> {
        if txn_number < self.txn_number {
            return Err(self.too_old(id, part, txn_number));
        }
        match part {
            TxnPart::Plain => Ok(()),
            TxnPart::RetryableWrite => {
                if txn_number > self.txn_number {
                    self.advance(txn_number, TxnState::Writes);
                } else if !matches!(self.txn, TxnState::Writes | TxnState::None) {
                    bail!(
                        Code::INCOMPLETE_TRANSACTION_HISTORY,
                        "Cannot run a retryable write with txnNumber {txn_number}, which belongs to a multi-document transaction"
                    );
                } else {
                    self.txn = TxnState::Writes;
                }
                Ok(())
            }
            TxnPart::Start => {
                if txn_number == self.txn_number && !matches!(self.txn, TxnState::Aborted) {
                    bail!(
                        50911,
                        "Cannot start a transaction at given transaction number {txn_number} a transaction with the same number is in state {}",
                        self.txn.name()
                    );
                }
                self.advance(txn_number, TxnState::Aborted);
                Ok(())
            }
            TxnPart::Continue | TxnPart::Commit | TxnPart::Abort => self.admit_later(part, txn_number),
        }
    }

    fn admit_later(&mut self, part: TxnPart, txn_number: i64) -> Result<()> {
        if txn_number > self.txn_number || matches!(self.txn, TxnState::None | TxnState::Writes) {
            return Err(no_such(
                format!(
                    "Given transaction number {txn_number} does not match any in-progress transactions. The active transaction number is {}",
                    self.txn_number
                ),
                part,
            ));
        }
        match (&self.txn, part) {
            (TxnState::Aborted, _) => Err(no_such(
                format!("Transaction with {{ txnNumber: {txn_number} }} has been aborted."),
                part,
            )),
            (TxnState::HandedOver, _) => bail!(
                Code::PREPARED_TRANSACTION_IN_PROGRESS,
                "Transaction with {{ txnNumber: {txn_number} }} is prepared: its shards are deciding."
            ),
            (TxnState::Committed(_), TxnPart::Commit) => Ok(()),
            (TxnState::Committed(_), _) => bail!(
                Code::TRANSACTION_COMMITTED,
                "Transaction with {{ txnNumber: {txn_number} }} has been committed."
            ),
            _ => Ok(()),
        }
    }

    /// Moves on to a newer number. A transaction that was open is dropped, which aborts it.
    fn advance(&mut self, txn_number: i64, txn: TxnState) {
        self.txn_number = txn_number;
        self.txn = txn;
        self.attempts = None;
    }

    /// Whether a transaction is open.
    pub fn is_open(&self) -> bool {
        self.open_since().is_some()
    }

    /// When the open transaction began; `None` if none is open.
    pub fn open_since(&self) -> Option<Instant> {
        match self.txn {
            TxnState::InProgress { started, .. } => Some(started),
            _ => None,
        }
    }

    fn too_old(&self, id: LogicalSessionId, part: TxnPart, txn_number: i64) -> Error {
        let newest = self.txn_number;
        let what = if matches!(self.txn, TxnState::Writes | TxnState::None) {
            "retryable write"
        } else {
            "transaction"
        };
        let text = match part {
            TxnPart::RetryableWrite => format!(
                "Retryable write with txnNumber {txn_number} is prohibited on session {id} because a newer {what} with txnNumber {newest} has already started on this session."
            ),
            _ => format!(
                "Cannot start transaction with {{ txnNumber: {txn_number} }} on session {id} because a newer {what} with txnNumber {newest} has already started on this session."
            ),
        };
        Error::new(Code::TRANSACTION_TOO_OLD, text)
    }
}

fn no_such(text: String, part: TxnPart) -> Error {
    let error = Error::new(Code::NO_SUCH_TRANSACTION, text);
    // Where a write concern then fails, the label of a commit is taken back: the transaction may be there elsewhere.
    match part {
        TxnPart::Abort => error,
        _ => error.with_label("TransientTransactionError"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: LogicalSessionId = LogicalSessionId::new([7; 16]);

    fn code(state: &mut SessionState, part: TxnPart, number: i64) -> i32 {
        state.admit(ID, part, number).map_or_else(|error| error.code().0, |()| 0)
    }

    #[test]
    fn numbers_only_grow() {
        let mut state = SessionState::default();
        assert_eq!(code(&mut state, TxnPart::RetryableWrite, 3), 0);
        assert_eq!(code(&mut state, TxnPart::RetryableWrite, 3), 0);
        assert_eq!(code(&mut state, TxnPart::RetryableWrite, 2), 225);
        assert_eq!(code(&mut state, TxnPart::Start, 3), 50911);
        assert_eq!(code(&mut state, TxnPart::Start, 4), 0);
        assert_eq!(code(&mut state, TxnPart::RetryableWrite, 4), 217);
    }

    #[test]
    fn after_the_end() {
        let mut state = SessionState::default();
        assert_eq!(code(&mut state, TxnPart::Continue, 1), 251);
        assert_eq!(code(&mut state, TxnPart::Start, 1), 0);
        state.txn = TxnState::Committed(OpTime::default());
        assert_eq!(code(&mut state, TxnPart::Commit, 1), 0);
        assert_eq!(code(&mut state, TxnPart::Abort, 1), 256);
        assert_eq!(code(&mut state, TxnPart::Continue, 1), 256);
        state.txn = TxnState::Aborted;
        for part in [TxnPart::Commit, TxnPart::Abort, TxnPart::Continue] {
            assert_eq!(code(&mut state, part, 1), 251);
        }
        let error = state.admit(ID, TxnPart::Continue, 1).unwrap_err();
        assert_eq!(error.labels(), ["TransientTransactionError"]);
    }
}
