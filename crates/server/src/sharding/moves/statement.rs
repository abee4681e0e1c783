//! The shard's statement in the transaction that changes the owner of a range: its placement is changed, in an open transaction that
//! this member keeps until it is asked to prepare it.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_shard::moves::MoveStatement;
use sheaf_shard::{Executed, Request, TransactionId};
use sheaf_storage::{Interrupt, Transaction, Write};

use super::Moves;
use crate::sharding::Fate;
use crate::sharding::marks::{PLACEMENTS, uuid_value};
use crate::sharding::rows::Change;

/// An open transaction of a move.
pub(super) struct Held {
    transaction: Box<Transaction>,
    executed: Executed,
}

/// The fields with which a statement names its transaction.
pub fn named(command: RawDoc<'_>, id: &TransactionId) -> DocBuf {
    DocBuf::from(command).with("transaction", transaction_document(id).as_raw())
}

fn transaction_document(id: &TransactionId) -> DocBuf {
    doc! { "lsid": RawDoc::new(&id.lsid), "txnNumber": id.number }
}

impl Moves {
    /// Executes the statement of this name; its transaction is open then.
    ///
    /// Errors: `ConflictingOperationInProgress`, where this member is not ready for it; those of parsing and writing.
    pub fn statement(
        self: &Arc<Self>,
        command: &str,
        body: RawDoc<'_>,
        go_on: Interrupt<'_>,
    ) -> Result<DocBuf> {
        let statement = MoveStatement::parse(command, body)?;
        let of = body.get("transaction").and_then(|of| of.as_doc()).unwrap_or(RawDoc::EMPTY);
        let (Some(lsid), Some(number)) = (
            of.get("lsid").and_then(|lsid| lsid.as_doc()),
            of.get("txnNumber").and_then(|n| n.as_exact_i64()),
        ) else {
            bail!(Code::FAILED_TO_PARSE, "'{command}' names no transaction");
        };
        let id = TransactionId::new(lsid.as_bytes(), number);
        let executed = self.run(&statement, &id, &mut |_| Ok(()), go_on)?;
        Ok(DocBuf::build(|out| executed.append(out)))
    }

    /// Executes a statement, and changes documents besides in the same transaction, which is open then.
    ///
    /// Errors: as [`Moves::statement`]; those of `also`.
    pub(in crate::sharding) fn run(
        self: &Arc<Self>,
        statement: &MoveStatement,
        id: &TransactionId,
        also: &mut dyn FnMut(&mut Change) -> Result<()>,
        go_on: Interrupt<'_>,
    ) -> Result<Executed> {
        self.take_office()?;
        let (ready, deferred) = self.tell(|state| match statement {
            MoveStatement::Leave { the_move, closing, .. } => {
                state.donors.statement(the_move.id, *closing, id)
            }
            MoveStatement::Own { the_move, closing, .. } => {
                state.recipients.statement(the_move.id, *closing, id)
            }
            MoveStatement::Directory { .. } => unreachable!("it is no shard's"),
        });
        self.perform(deferred);
        ready?;
        self.execute(statement, id, also, go_on).inspect_err(|_| {
            self.sharding.abandon(id);
            self.note_end(id, false);
        })
    }

    fn execute(
        self: &Arc<Self>,
        statement: &MoveStatement,
        id: &TransactionId,
        also: &mut dyn FnMut(&mut Change) -> Result<()>,
        go_on: Interrupt<'_>,
    ) -> Result<Executed> {
        go_on()?;
        let (the_move, change) = match statement {
            MoveStatement::Leave { the_move, .. } | MoveStatement::Own { the_move, .. } => {
                (the_move, statement.change(self.front.clock.now_millis()))
            }
            MoveStatement::Directory { .. } => unreachable!("it is no shard's"),
        };
        let mut transaction = self.engine.begin(Some((DocBuf::from(RawDoc::new(&id.lsid)), id.number)))?;
        let executed = self.sharding.execute(id, None)?;
        let Some(home) = transaction.collection(PLACEMENTS)? else {
            bail!(Code::NAMESPACE_NOT_FOUND, "the shard has no placements");
        };
        let key = home.record_key(uuid_value(&the_move.uuid))?;
        let old = transaction.read_for_update(&home, &key)?;
        let old = old.as_deref().map(RawDoc::new);
        let new = change.map(|change| change.apply(old)).transpose()?.flatten();
        let (Some(old), Some(new)) = (old, new) else {
            bail!(Code::CONFLICTING_OPERATION_IN_PROGRESS, "the shard has nothing of {}", the_move.ns);
        };
        transaction.update(&home, &key, old, new.as_raw(), None)?;
        let mut transaction = Change::of(transaction);
        also(&mut transaction)?;
        let transaction = Box::new(transaction.into_transaction());
        self.held.lock().insert(id.clone(), Held { transaction, executed });
        if !self.sharding.is_open(id, executed) {
            // Somebody has called it off meanwhile, and has not found it here.
            self.discard(id, executed.opening);
            bail!(Code::NO_SUCH_TRANSACTION, "the transaction of a move was given up");
        }
        Ok(executed)
    }

    /// The open transaction of this name, for good: it is about to be prepared.
    pub fn hand_over(&self, id: &TransactionId) -> Option<Box<Transaction>> {
        self.held.lock().remove(id).map(|held| held.transaction)
    }

    /// An open transaction is over.
    pub fn discard(&self, id: &TransactionId, opening: u64) {
        let mut held = self.held.lock();
        if held.get(id).is_some_and(|held| held.executed.opening == opening) {
            let gone = held.remove(id);
            // It lets go of the collection's gate.
            drop(held);
            drop(gone);
            self.note_end(id, false);
        }
    }

    /// Ends a transaction that nobody goes on with, unless it is prepared.
    pub(super) fn abandon(self: &Arc<Self>, id: &TransactionId) {
        if self.held.lock().contains_key(id) {
            let abandoned =
                self.sharding.answer_to(Request::Abandon { id: id.clone() }, None, &|| self.until_end());
            if let Err(error) = abandoned {
                tracing::debug!(%error, "a move's transaction could not be abandoned");
            }
            return;
        }
        match self.sharding.fate(id) {
            Fate::InDoubt => {}
            Fate::Committed => self.note_end(id, true),
            Fate::Aborted => self.note_end(id, false),
        }
    }
}
