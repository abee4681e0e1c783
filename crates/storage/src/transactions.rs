//! Decisions on transactions over several shards, as the primary writes them.
//!
//! [`Transaction::prepare`](crate::Transaction::prepare) has put the operations into the log and into a row, and what they change stays
//! locked. A commit writes what readers have met as in doubt; where that was not prepared here since the start, it applies the operations
//! with the code that applies entries of others. An abort gives the locks back. What is decided, and when, others say: here is only what
//! each record does, and that none contradicts what the log says already.

use rocksdb::WriteBatch;
use sheaf_bson::Timestamp;
use sheaf_errors::{Code, Result, bail};

use crate::apply::{Redone, operations_of_row, redo};
use crate::commit::prepared::Prepared;
use crate::commit::step::Step;
use crate::commit::transaction_rows::{Row, TransactionRow};
use crate::commit::transactions::{Made, TransactionListener};
use crate::core::Core;
use crate::db::sink::BatchSink;
use crate::engine::Engine;
use crate::oplog::{self, TransactionKey, TransactionRecord};
use crate::options::{Interrupt, OpTime};
use crate::read::undecided::InDoubt;

/// Bytes of operations from which on applying them is work that the thread's other duties must not wait for.
const LONG_BYTES: usize = 32 << 10;

impl Engine {
    /// Commits a prepared transaction, at a time that all its participants agree on; the entry is stamped above it. Its operations are
    /// visible together when this returns, and what it had locked is free. Of a transaction that is committed already,
    /// the newest position.
    ///
    /// Errors: `NoSuchTransaction` if it is not prepared here; `NotWritablePrimary`, and
    /// `InterruptedDueToReplStateChange`, after which it may be committed or not.
    pub fn commit_prepared(
        &self,
        key: &TransactionKey,
        at: Timestamp,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        self.core().commit_prepared(key, at, interrupt)
    }

    /// Writes that a transaction has no effect and never will have, whether or not this shard has heard of it; what it had locked
    /// is free. One that is open here is not ended by it, but can no longer be prepared.
    ///
    /// Errors: `TransactionCommitted`.
    pub fn write_abort(&self, key: &TransactionKey, interrupt: Interrupt<'_>) -> Result<OpTime> {
        self.core().write_abort(key, interrupt)
    }

    /// Writes that all participants have these commits: their rows need not be kept for others. What is no commit of this shard is
    /// passed over.
    pub fn write_settled(&self, keys: &[TransactionKey], interrupt: Interrupt<'_>) -> Result<OpTime> {
        let mut payload = Vec::new();
        oplog::write_settled(&mut payload, keys);
        self.core().write_record(TransactionRecord::Settled { keys: keys.to_vec() }, payload, interrupt)
    }

    /// Writes that the past below this time is final; a new primary stamps above it.
    pub fn write_ceiling(&self, at: Timestamp, interrupt: Interrupt<'_>) -> Result<OpTime> {
        let mut payload = Vec::new();
        oplog::write_ceiling(&mut payload, at);
        self.core().write_record(TransactionRecord::Ceiling(at), payload, interrupt)
    }

    /// All that is on record of transactions over shards.
    pub fn transaction_rows(&self) -> Vec<(TransactionKey, TransactionRow)> {
        self.core().commits.transactions().all()
    }

    /// The newest transactions of sessions that were committed here alone: no row tells of them.
    pub fn lone_commits(&self) -> Result<Vec<TransactionKey>> {
        self.core().lone_commits()
    }

    /// What is on record of one transaction.
    pub fn transaction_row(&self, key: &TransactionKey) -> Option<TransactionRow> {
        self.core().commits.transactions().row(key).map(|row| row.row)
    }

    /// The highest ceiling that has been applied.
    pub fn ceiling(&self) -> Timestamp {
        self.core().commits.transactions().ceiling()
    }

    /// Sets who is told of records, on every member, in the order of the log and when what they have changed is visible. The
    /// pipeline is held meanwhile: whoever listens neither writes nor waits. What was there before is in
    /// [`Engine::transaction_rows`].
    pub fn on_transaction_record(&self, listener: TransactionListener) {
        self.core().commits.transactions().listen(listener);
    }

    /// Position of the newest commit, when whoever listens has been told of all records up to there. Waits for the pipeline.
    pub fn last_told(&self) -> OpTime {
        let _still = self.core().still();
        self.last_applied()
    }

    /// The transactions that were prepared here and not decided at this time. `None`: it is too old to be told.
    pub fn undecided_at(&self, time: Timestamp) -> Option<Vec<InDoubt>> {
        self.core().commits.transactions().undecided_at(time)
    }

    /// A transaction that was prepared here at or before this time (`None`: ever), and is not decided.
    pub fn prepared_before(&self, at: Option<Timestamp>) -> Option<TransactionKey> {
        self.core().commits.transactions().prepared_before(at)
    }
}

impl Core {
    fn commit_prepared(
        &self,
        key: &TransactionKey,
        at: Timestamp,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        let transactions = self.commits.transactions();
        let _turn = transactions.turn(key.lsid.as_raw(), &self.base.options.block, interrupt)?;
        let _pass = self.commits.pass(interrupt)?;
        let since = Some(self.commits.others());
        let number = key.txn_number;
        let row = match transactions.row(key) {
            Some(row) if row.is_prepared() => row,
            Some(row) => match row.row {
                TransactionRow::Committed { at: before, .. } if before == at => {
                    return Ok(self.published.last());
                }
                TransactionRow::Committed { at: before, .. } => bail!(
                    Code::TRANSACTION_COMMITTED,
                    "Transaction {number} has been committed at {before:?}, not at {at:?}."
                ),
                _ => bail!(Code::NO_SUCH_TRANSACTION, "Transaction {number} has been aborted."),
            },
            None => bail!(Code::NO_SUCH_TRANSACTION, "Transaction {number} is not prepared here."),
        };
        if at < row.prepared {
            bail!(
                Code::INVALID_OPTIONS,
                "'commitTimestamp' {at:?} must be greater than or equal to the 'prepareTimestamp' {:?}",
                row.prepared
            );
        }
        let made = transactions.made(key);
        let operations = if made.is_some() { Vec::new() } else { operations_of_row(self, key)? };
        let bytes = made.as_ref().map_or(operations.len(), |made| made.of.bytes());
        let work = || match &made {
            Some(made) => Ok(self.batch_of(made)),
            None => redo(self, &operations),
        };
        let commit = || self.commit_as(key, at, &row, work()?, since);
        if bytes <= LONG_BYTES {
            return commit();
        }
        let mut done = None;
        (self.base.options.block)(&mut || done = Some(commit()));
        done.expect("it was run")
    }

    /// What readers have met as in doubt is what is committed. Nobody could change any of it meanwhile, so it is what the operations
    /// come to.
    fn batch_of(&self, made: &Made) -> Redone {
        let mut batch = WriteBatch::default();
        made.of.put(&mut BatchSink { db: &self.base.db, batch: &mut batch });
        Redone { batch, counts: made.counts.clone(), locks: made.locks.to_vec() }
    }

    fn commit_as(
        &self,
        key: &TransactionKey,
        at: Timestamp,
        row: &Row,
        done: Redone,
        since: Option<u64>,
    ) -> Result<OpTime> {
        let Redone { batch, counts, locks } = done;
        let mut payload = self.commits.take_buffer();
        oplog::write_commit(&mut payload, key, at, row.prepared, &row.collections);
        let step = Step::of(TransactionRecord::Commit { key: key.clone(), at });
        self.commit(Prepared {
            payload,
            batch,
            counts,
            locks: locks.into(),
            since,
            above: at.0,
            step: Some(Box::new(step)),
            ..Prepared::default()
        })
    }

    fn write_abort(&self, key: &TransactionKey, interrupt: Interrupt<'_>) -> Result<OpTime> {
        let transactions = self.commits.transactions();
        let _turn = transactions.turn(key.lsid.as_raw(), &self.base.options.block, interrupt)?;
        let _pass = self.commits.pass(interrupt)?;
        let since = Some(self.commits.others());
        if let Some(TransactionRow::Committed { .. }) = transactions.row(key).map(|row| row.row) {
            bail!(Code::TRANSACTION_COMMITTED, "Transaction {} has been committed.", key.txn_number);
        }
        let mut payload = Vec::new();
        oplog::write_abort(&mut payload, key);
        let step = Some(Box::new(Step::of(TransactionRecord::Abort { key: key.clone() })));
        self.commit(Prepared { payload, since, step, ..Prepared::default() })
    }

    /// Writes a record that changes the rows as it finds them when it is applied.
    fn write_record(
        &self,
        record: TransactionRecord,
        payload: Vec<u8>,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        let _pass = self.commits.pass(interrupt)?;
        let step = Some(Box::new(Step::of(record)));
        self.commit(Prepared { payload, step, ..Prepared::default() })
    }
}
