//! `commitTransaction` and `abortTransaction`.

use sheaf_bson::Value;
use sheaf_errors::{Code, Result, bail};

use crate::args::Args;
use crate::command::*;
use crate::dispatch::end_fields;
use crate::op::{Operation, TxnEnd};
use crate::reactor::LONG_BYTES;
use crate::reply::Reply;
use crate::sharding::transaction_id;

/// `{commitTransaction: 1}`.
pub struct CommitTransaction;

impl<'a> Command<'a, Operation<'a>> for CommitTransaction {
    const NAME: &'static str = "commitTransaction";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "commits a transaction",
        access: Access::None,
        transaction: Transaction::Allowed,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: true,
        admin_only: true,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::None,
        spread: Spread::Participants,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        // Routers decide on times; here nothing is prepared that waits for one.
        match args.value("commitTimestamp") {
            Value::Timestamp(_) => bail!(
                Code::INVALID_OPTIONS,
                "commitTransaction cannot provide commitTimestamp to unprepared transaction."
            ),
            given if given.is_nullish() => {}
            other => bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'commitTransaction.commitTimestamp' is the wrong type '{}', expected type 'timestamp'",
                other.type_name()
            ),
        }
        args.ignore(end_fields(Self::NAME));
        Ok(CommitTransaction)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        if let Some(position) = op.txn_found.get() {
            // Committed before: the answer got lost, or a stronger write concern is wanted now.
            op.node().metrics.txn.retried_commands.add(1);
            op.note_commit(position);
            return Ok(Reply::ok());
        }
        let Some(transaction) = op.transaction.borrow_mut().take() else {
            bail!(Code::NO_SUCH_TRANSACTION, "commitTransaction must be run within a transaction");
        };
        let stop = op.interrupter();
        let long = transaction.bytes() > LONG_BYTES;
        let commit = || match op.node().sharding() {
            None => transaction.commit(&|| stop.check()),
            Some(sharding) => {
                let session = op.lsid().zip(op.txn_number());
                let (lsid, number) = session.expect("a transaction has a session and a number");
                let id = transaction_id(lsid, number);
                sharding.commit_alone(&id, op.executed.get(), transaction, &|| stop.check())
            }
        };
        let position = if long { op.blocking(commit) } else { commit() }?;
        op.txn_ended.set(Some(TxnEnd::Committed(position)));
        op.note_commit(position);
        Ok(Reply::ok())
    }
}

/// `{abortTransaction: 1}`.
pub struct AbortTransaction;

impl<'a> Command<'a, Operation<'a>> for AbortTransaction {
    const NAME: &'static str = "abortTransaction";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "aborts a transaction",
        access: Access::None,
        transaction: Transaction::Allowed,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: true,
        admin_only: true,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::None,
        spread: Spread::Participants,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore(end_fields(Self::NAME));
        Ok(AbortTransaction)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let Some(transaction) = op.transaction.borrow_mut().take() else {
            bail!(Code::NO_SUCH_TRANSACTION, "abortTransaction must be run within a transaction");
        };
        transaction.abort();
        op.txn_ended.set(Some(TxnEnd::Aborted));
        Ok(Reply::ok())
    }
}
