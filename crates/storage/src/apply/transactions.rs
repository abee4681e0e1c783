//! What entries about transactions over shards do.

use rocksdb::WriteBatch;
use sheaf_bson::RawDoc;
use sheaf_errors::{Code, Error, Result, bail};

use super::{Applier, Now};
use crate::commit::prepared::Counts;
use crate::commit::step::{Holding, Step};
use crate::commit::transaction_rows::{operations_of, row_key};
use crate::core::Core;
use crate::db::Cf;
use crate::db::sink::BatchSink;
use crate::locks::LockKey;
use crate::oplog::{self, LogEntry, Operation, TransactionKey, TransactionRecord};
use crate::options::OpTime;
use crate::read::overlay::Overlay;
use crate::write::guard::placed_by_operations;
use crate::write::sessions;

/// Whether an entry of a chain is the last one of a prepare.
pub(super) fn is_prepare(entry: &LogEntry) -> bool {
    oplog::documents(&entry.payload).next().is_some_and(|doc| Operation::read(doc).is_prepare())
}

/// What an operation says about transactions over shards.
pub(super) fn record_of(fields: &Operation<'_>) -> Result<Option<TransactionRecord>> {
    fields.record().map_err(|why| Error::new(Code::INTERNAL_ERROR, why.to_owned()))
}

/// What the operations of a prepared transaction change.
pub(crate) struct Redone {
    pub batch: WriteBatch,
    pub counts: Counts,
    pub locks: Vec<LockKey>,
}

/// Computes what the operations of a prepared transaction change: what it holds keeps that from changing, or it is computed
/// with the pipeline held.
pub(crate) fn redo(core: &Core, operations: &[u8]) -> Result<Redone> {
    let mut applier = Applier::new(core, None);
    applier.operations(operations)?;
    let Applier { batch, counts, locks, .. } = applier;
    Ok(Redone { batch, counts, locks })
}

/// Takes what a prepared transaction holds, from whoever has it: the locks of what its operations change, passes through
/// gates, and holds on them. The pipeline is held, or nobody else is there yet.
fn seize(core: &Core, operations: &[u8]) -> Result<Holding> {
    let mut applier = Applier::new(core, None);
    applier.writes = Some(Overlay::default());
    applier.operations(operations)?;
    let Applier { mut locks, writes, .. } = applier;
    let table = core.commits.locks().clone();
    let owner = table.owner();
    locks.retain(|lock| table.seize(*lock, owner));
    let catalog = core.published.catalog();
    let collections = oplog::collections_of(operations);
    let passes = collections.iter().filter_map(|uuid| catalog.by_uuid(uuid));
    let passes = passes.map(|collection| (collection.clone(), collection.state.gate.force())).collect();
    let held = placed_by_operations(&catalog, operations);
    let holds = held.iter().map(|collection| collection.state.gate.force_hold()).collect();
    Ok(Holding { table, owner, locks, passes, holds, writes: writes.unwrap_or_default(), counts: None })
}

/// Takes what all hold that are prepared in the files: a start.
pub(crate) fn hold_prepared(core: &Core) -> Result<()> {
    let transactions = core.commits.transactions();
    for key in transactions.prepared() {
        let value = row_of(core, &key)?;
        let held = seize(core, operations_of(&value))?;
        transactions.hold(&key, held);
    }
    Ok(())
}

/// A row as it is in the database.
fn row_of(core: &Core, key: &TransactionKey) -> Result<Vec<u8>> {
    match core.base.db.get(Cf::Sessions, &row_key(key))? {
        Some(value) => Ok(value.to_vec()),
        None => bail!(Code::INTERNAL_ERROR, "there is no row of transaction {key:?}"),
    }
}

/// The operations of a transaction that is prepared.
pub(crate) fn operations_of_row(core: &Core, key: &TransactionKey) -> Result<Vec<u8>> {
    let mut value = row_of(core, key)?;
    let operations = operations_of(&value).len();
    value.drain(..value.len() - operations);
    Ok(value)
}

impl<'a> Applier<'a> {
    /// Puts the operations of a prepared transaction into the batch.
    fn operations(&mut self, operations: &[u8]) -> Result<()> {
        for operation in oplog::documents(operations) {
            let fields = Operation::read(operation);
            match fields.op {
                Some("i" | "u" | "d") => self.document(&fields, |doc| Now::Made(doc.into()))?,
                other => bail!(Code::INTERNAL_ERROR, "a prepared transaction has the operation {other:?}"),
            }
        }
        Ok(())
    }

    /// A prepare: this operation, or the last of these entries.
    pub(super) fn prepare(&mut self, fields: &Operation<'a>, entries: &[&'a LogEntry]) -> Result<()> {
        let Some(record) = record_of(fields)? else {
            bail!(Code::INTERNAL_ERROR, "a prepare that is none: {:?}", fields.doc)
        };
        let mut step = Step::of(record);
        step.entries = entries.len().max(1) as u64;
        if entries.is_empty() {
            put_operations(fields.doc, &mut step.operations);
        }
        for doc in entries.iter().flat_map(|entry| oplog::documents(&entry.payload)) {
            put_operations(doc, &mut step.operations);
        }
        if let Some(key) = fields.transaction() {
            let mut sink = BatchSink { db: &self.core.base.db, batch: &mut self.batch };
            sessions::put_record(key.lsid.as_raw(), key.txn_number, false, &mut sink);
        }
        step.collections = oplog::collections_of(&step.operations);
        self.step(step, fields.time)
    }

    /// A commit, an abort, or what is said of several.
    pub(super) fn decision(&mut self, fields: &Operation<'a>, record: TransactionRecord) -> Result<()> {
        let step = Step::of(record);
        if let TransactionRecord::Commit { key, .. } = &step.record {
            if self.steps.iter().any(|(other, ..)| other.shares_session(&step)) {
                self.write()?;
            }
            let value = row_of(self.core, key)?;
            self.in_transaction = true;
            self.operations(operations_of(&value))?;
            self.in_transaction = false;
        }
        self.step(step, fields.time)
    }

    /// A transaction that committed with one entry.
    pub(super) fn alone(&mut self, fields: &Operation<'a>) {
        if self.core.commits.transactions().is_listened_to()
            && let Some(key) = fields.transaction()
        {
            let at = OpTime { time: fields.time, ..self.entry };
            self.steps.push((Step::of(TransactionRecord::Alone { key }), Vec::new(), at));
        }
    }

    /// Has what a step makes of rows in the batch.
    fn step(&mut self, step: Step, time: u64) -> Result<()> {
        // Rows follow from the rows before them.
        if !self.ended.is_empty() || self.steps.iter().any(|(other, ..)| other.shares_session(&step)) {
            self.write()?;
        }
        let at = OpTime { time, ..self.entry };
        let transactions = self.core.commits.transactions();
        let changes = transactions.changes(&step, at)?;
        transactions.put(&self.core.base.db, &step, &changes, &mut self.batch);
        self.done_to = self.done_to.max(time);
        self.steps.push((step, changes, at));
        self.write_if_large()
    }

    /// The batch is visible.
    pub(super) fn show_steps(&mut self) -> Result<()> {
        let transactions = self.core.commits.transactions();
        for (step, changes, at) in std::mem::take(&mut self.steps) {
            let prepare = matches!(step.record, TransactionRecord::Prepare { .. });
            let held = prepare.then(|| seize(self.core, &step.operations)).transpose()?;
            self.core.end_step(step, changes, held, at);
        }
        transactions.forget(std::mem::take(&mut self.ended), self.reached);
        Ok(())
    }
}

fn put_operations(doc: RawDoc<'_>, out: &mut Vec<u8>) {
    for operation in Operation::read(doc).operations().into_iter().flatten() {
        out.extend_from_slice(operation.doc.as_bytes());
    }
}
