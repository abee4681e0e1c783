//! Applying entries of the log: what a member does with those that others have ordered, and what every start does with the
//! end of the log.
//!
//! It is the code that prepared the batches ([`Changes`], [`Command::apply`]) on the same state, so the result is the same:
//! documents, indexes, counters, sessions, catalog. As many entries as possible go into one RocksDB batch. Readers may be
//! around: a transaction becomes visible at once, the catalog changes between what was done before and after it.
//!
//! What another member has sent is read as a whole before it gets into the log ([`check`]).

mod behind;
mod check;
mod transactions;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ahash::AHashMap;
use rocksdb::WriteBatch;
use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_query::diff::apply_diff;
use smallvec::SmallVec;

use crate::catalog::{Catalog, Collection};
use crate::commit::chain::{self, Run};
use crate::commit::prepared::Counts;
use crate::commit::step::Step;
use crate::commit::transactions::RowChanges;
use crate::core::Core;
use crate::critical::must;
use crate::db::Cf;
use crate::db::sink::BatchSink;
use crate::db::values::Gone;
use crate::definitions::Garbage;
use crate::definitions::command::Command;
use crate::keys::prefixed;
use crate::locks::LockKey;
use crate::oplog::skipped::Unapplied;
use crate::oplog::{self, LogEntry, Operation, Statement};
use crate::options::OpTime;
use crate::read::overlay::Overlay;
use crate::sequencer::stays_here;
use crate::stats::AppliedOps;
use crate::write::Op;
use crate::write::changes::Changes;
use crate::write::sessions;
pub(crate) use behind::{Behind, Writing};
pub use check::check_entry;
pub(crate) use transactions::{Redone, hold_prepared, operations_of_row, redo};
use transactions::{is_prepare, record_of};

/// A batch is written when it has grown to this, if no transaction is in the middle.
const BATCH_BYTES: usize = 4 << 20;

/// Applies entries that are in the log and follow the newest one applied. They are visible when this returns, and
/// [`Core::last`] names the last of them. The pipeline must be held, unless nobody else is there yet.
///
/// After an error the state is somewhere between; only a restart brings it together with the log.
pub(crate) fn apply_entries(core: &Core, entries: &[LogEntry]) -> Result<AppliedOps> {
    apply(core, entries, None)
}

/// [`apply_entries`] at a start: what it has applied may be on its way to the memtables yet.
pub(crate) fn apply_entries_at_start(core: &Core, entries: &[LogEntry], behind: &Behind<'_>) -> Result<()> {
    apply(core, entries, Some(behind)).map(|_| ())
}

fn apply(core: &Core, entries: &[LogEntry], behind: Option<&Behind<'_>>) -> Result<AppliedOps> {
    let _shield = sheaf_meter::shield();
    // The beginning of a transaction whose other entries may be among these.
    let open = core.commits.take_chain();
    let all: SmallVec<[&LogEntry; 8]> = open.iter().chain(entries).collect();
    let mut applier = Applier::new(core, behind);
    if entries.iter().any(has_effect) {
        core.commits.note_others();
    }
    check_order(core.published.last(), entries);
    let mut left = &all[..];
    while !left.is_empty() {
        let count = match chain::run(left)? {
            Run::Single => applier.entries(&left[..1]).map(|()| 1)?,
            Run::Whole(count) => applier.entries(&left[..count]).map(|()| count)?,
            Run::Dead(count) => count,
            Run::Open => break,
        };
        left = &left[count..];
    }
    for entry in entries {
        core.durability.knowledge().note(entry.index, entry.term);
        applier.reached = position(entry);
    }
    applier.write()?;
    // Entries that change nothing lengthen the log as well: a flush lets go of it.
    let bytes: u64 = entries.iter().map(|entry| entry.payload.len() as u64).sum();
    core.flushes.note_written(bytes.saturating_sub(applier.put));
    core.commits.keep_chain(left.iter().copied().cloned().collect());
    Ok(applier.done)
}

/// Entries are applied one after another, without a gap; files that hold one in part get the rest of it.
fn check_order(last: OpTime, entries: &[LogEntry]) {
    if let Some(first) = entries.first() {
        must!(
            first.index == last.index + 1 || (first.index == last.index && first.time > last.time),
            "entry {} of time {} is to be applied after {last:?}",
            first.index,
            first.time
        );
    }
    for pair in entries.windows(2) {
        must!(
            pair[1].index == pair[0].index + 1 && pair[1].term >= pair[0].term && pair[1].time > pair[0].time,
            "entry {} of term {} and time {} follows entry {} of term {} and time {}",
            pair[1].index,
            pair[1].term,
            pair[1].time,
            pair[0].index,
            pair[0].term,
            pair[0].time
        );
    }
}

fn position(entry: &LogEntry) -> OpTime {
    OpTime { term: entry.term, index: entry.index, time: entry.time }
}

/// Whether something may be changed when this entry is applied: not by one that begins a transaction.
fn has_effect(entry: &LogEntry) -> bool {
    !entry.payload.is_empty() && !oplog::link(&entry.payload).is_some_and(|link| link.partial)
}

/// What the batch makes of a record that it writes: the database does not show it yet.
enum Now<'e> {
    /// These bytes of an entry.
    Given(RawDoc<'e>),
    Made(DocBuf),
    Gone,
}

struct Applier<'a> {
    core: &'a Core,
    /// Who writes its batches, if not it itself.
    behind: Option<&'a Behind<'a>>,
    /// The operation at work needs nothing of what is on its way there.
    may_lag: bool,
    /// What the next operation sees.
    catalog: Arc<Catalog>,
    catalog_changed: bool,
    changes: Changes,
    batch: WriteBatch,
    /// By full key.
    written: AHashMap<Vec<u8>, Now<'a>>,
    counts: Counts,
    locks: Vec<LockKey>,
    /// What nothing refers to when the batch is written.
    gone: Gone,
    /// What is put into the batch of records and indexes, for who wants it as well.
    writes: Option<Overlay>,
    /// What the batch says of transactions over shards.
    steps: Vec<(Step, RowChanges, OpTime)>,
    /// Sessions that end with the batch.
    ended: Vec<DocBuf>,
    garbage: Vec<Garbage>,
    /// The last entry that was looked at; of transactions over several it may be the beginning.
    reached: OpTime,
    /// Up to where the log is in the batch, or applied. Files may hold an entry in part: then its time is before the entry's.
    applied: OpTime,
    /// Time of the last operation of the one at work that is in the batch, or applied.
    done_to: u64,
    /// The one at work.
    entry: OpTime,
    /// Whether more documents of a large transaction follow.
    in_transaction: bool,
    /// RocksDB has not taken a batch.
    cannot_write: bool,
    /// Bytes of batches written: with large keys they are several times those of the entries.
    put: u64,
    done: AppliedOps,
    key: Vec<u8>,
    full: Vec<u8>,
}

impl<'a> Applier<'a> {
    fn new(core: &'a Core, behind: Option<&'a Behind<'a>>) -> Applier<'a> {
        Applier {
            core,
            behind,
            may_lag: false,
            catalog: core.published.catalog(),
            catalog_changed: false,
            changes: Changes::default(),
            batch: WriteBatch::default(),
            written: AHashMap::new(),
            counts: Counts::default(),
            locks: Vec::new(),
            gone: Gone::default(),
            writes: None,
            steps: Vec::new(),
            ended: Vec::new(),
            garbage: Vec::new(),
            reached: core.published.last(),
            applied: core.commits.position().at,
            done_to: 0,
            entry: OpTime::default(),
            in_transaction: false,
            cannot_write: false,
            put: 0,
            done: AppliedOps::default(),
            key: Vec::new(),
            full: Vec::new(),
        }
    }

    /// Applies one entry, or those of one transaction.
    fn entries(&mut self, entries: &[&'a LogEntry]) -> Result<()> {
        let prepare = entries.len() > 1 && entries.last().is_some_and(|entry| is_prepare(entry));
        let left_out = self.left_out(entries);
        let mut left_out = left_out.iter();
        for entry in entries {
            self.entry = position(entry);
            self.done_to = 0;
            must!(
                (entry.index, entry.time) > (self.applied.index, self.applied.time),
                "entry {} is applied after {}: what is applied never goes back",
                entry.index,
                self.applied.index
            );
            for doc in oplog::documents(&entry.payload) {
                let fields = Operation::read(doc);
                let leave_out = left_out.next().is_some_and(|out| *out);
                // Files may hold an entry in part; the operations in them are not done twice.
                if entry.index == self.applied.index && fields.time <= self.applied.time {
                    continue;
                }
                if prepare && !leave_out {
                    // The last one has the list of all.
                    if std::ptr::eq(*entry, entries[entries.len() - 1]) {
                        self.prepare(&fields, entries).map_err(|error| self.explain(doc, error))?;
                    }
                } else if !leave_out {
                    self.operation(&fields).map_err(|error| self.explain(doc, error))?;
                } else if let Some(repair) = &self.core.base.options.repair {
                    repair.skipped(Unapplied::of(entry.term, entry.index, doc));
                }
            }
        }
        if self.in_transaction {
            bail!(Code::INTERNAL_ERROR, "entry {} of the log ends within a transaction", self.entry.index);
        }
        (self.applied, self.reached, self.done_to) = (self.entry, self.entry, 0);
        Ok(())
    }

    /// Which operations of these entries, one after another, a repair leaves out.
    fn left_out(&self, entries: &[&'a LogEntry]) -> Vec<bool> {
        let Some(repair) = &self.core.base.options.repair else { return Vec::new() };
        let mut out: Vec<bool> = Vec::new();
        for entry in entries {
            let operations: Vec<RawDoc<'_>> = oplog::documents(&entry.payload).collect();
            out.extend(repair.left_out(entry.term, entry.index, &operations));
        }
        // A transaction over several entries goes as a whole.
        if entries.len() > 1 && out.contains(&true) {
            out.fill(true);
        }
        out
    }

    /// Says which operation an error is about, unless it is the disk's.
    fn explain(&self, operation: RawDoc<'_>, error: Error) -> Error {
        if self.cannot_write {
            return error;
        }
        let why = Some(error.message().to_owned());
        let unapplied = Unapplied { why, ..Unapplied::of(self.entry.term, self.entry.index, operation) };
        let (id, what) = (unapplied.id, unapplied.summary());
        let text = format!("entry {id} of the log ({what}) cannot be applied: {}", error.message());
        let options = &self.core.base.options;
        let starting = self.core.me().is_none();
        let way_out = format!("; `sheaf repair --dbpath {}` shows it", options.path.display());
        let text = if starting { text + &way_out } else { text };
        if let Some(repair) = &options.repair {
            repair.failed(unapplied);
        }
        Error::new(error.code(), text)
    }

    /// Writes the batch and shows it, and the catalog that belongs to it.
    fn write(&mut self) -> Result<()> {
        let core = self.core;
        if !self.steps.is_empty() {
            // What a prepared transaction holds is read from the database in a moment.
            self.catch_up()?;
        }
        let mut applying = (!self.steps.is_empty()).then(|| core.commits.transactions().applying());
        if !self.batch.is_empty() {
            // Nothing of the entry at work, or the last operation of it.
            let at =
                if self.done_to > 0 { OpTime { time: self.done_to, ..self.entry } } else { self.applied };
            let mut batch = std::mem::take(&mut self.batch);
            let (bytes, written) = match self.behind.filter(|_| self.may_lag) {
                Some(behind) => {
                    let bytes = core.commits.seal(&mut batch, &self.locks, Some(at));
                    (bytes, behind.write(batch))
                }
                None => core.commits.write(batch, &self.locks, Some(at), 0),
            };
            if written.is_err() {
                self.cannot_write = true;
                // Nothing has become visible.
                applying.take();
                core.wait_for_restart();
            }
            written?;
            core.base.db.values().note_gone(&std::mem::take(&mut self.gone));
            self.put += bytes;
            core.flushes.note_written(bytes);
        }
        if std::mem::take(&mut self.catalog_changed) {
            core.published.show_catalog(self.catalog.clone());
        }
        let counts = std::mem::take(&mut self.counts);
        counts.stamp(self.entry.time);
        core.published.advance(self.reached);
        core.flushes.note_gone(counts.publish());
        self.written.clear();
        self.show_steps()?;
        drop(applying);
        if !self.garbage.is_empty() {
            core.definitions.garbage().discard(self.garbage.drain(..));
        }
        self.locks.clear();
        Ok(())
    }

    fn write_if_large(&mut self) -> Result<()> {
        if self.batch.size_in_bytes() > BATCH_BYTES && !self.in_transaction { self.write() } else { Ok(()) }
    }

    /// Waits until what is applied can be read.
    fn catch_up(&mut self) -> Result<()> {
        self.may_lag = false;
        let caught_up = self.behind.map_or(Ok(()), Behind::catch_up);
        self.cannot_write |= caught_up.is_err();
        caught_up
    }

    fn operation(&mut self, fields: &Operation<'a>) -> Result<()> {
        if fields.op != Some("i") {
            self.catch_up()?;
        } else if !self.in_transaction {
            self.may_lag = true;
        }
        match fields.op {
            Some("i" | "u" | "d") => {
                self.document(fields, Now::Given)?;
                self.done_to = self.done_to.max(fields.time);
                self.write_if_large()
            }
            Some("c") => match fields.operations() {
                Some(_) if fields.is_prepare() => self.prepare(fields, &[]),
                Some(operations) => self.apply_ops(fields, operations),
                None => match record_of(fields)? {
                    Some(record) => self.decision(fields, record),
                    None => self.command(fields),
                },
            },
            Some("n") => {
                self.done.noop += 1;
                if let Some(record) = record_of(fields)? {
                    return self.decision(fields, record);
                }
                if let Some(statement) = fields.statement().filter(|statement| statement.stmt_id >= 0) {
                    let mut sink = BatchSink { db: &self.core.base.db, batch: &mut self.batch };
                    sessions::put_statement(&statement, fields.namespace, &mut sink);
                    self.done_to = self.done_to.max(fields.time);
                    return self.write_if_large();
                }
                if sessions::ends_sessions(fields.o2) {
                    // What is to go may be in the batch.
                    self.write()?;
                    sessions::apply_ended(&self.core.base.db, fields.o2, &mut self.batch)?;
                    self.ended.extend(sessions::ended(fields.o2).map(DocBuf::from));
                    self.done_to = self.done_to.max(fields.time);
                }
                Ok(())
            }
            other => bail!(Code::INTERNAL_ERROR, "the log has an unknown operation {other:?}"),
        }
    }

    /// A transaction, or a part of a large one.
    fn apply_ops(
        &mut self,
        fields: &Operation<'a>,
        operations: impl Iterator<Item = Operation<'a>>,
    ) -> Result<()> {
        self.in_transaction = true;
        for inner in operations {
            match inner.op {
                Some("c") => self.command(&inner)?,
                _ => self.operation(&inner)?,
            }
        }
        if let (Some(lsid), Some(number)) = (fields.lsid, fields.txn_number) {
            let mut sink = BatchSink { db: &self.core.base.db, batch: &mut self.batch };
            sessions::put_record(lsid, number, true, &mut sink);
        }
        self.done_to = self.done_to.max(fields.time);
        self.in_transaction = fields.o.get("partialTxn").is_some_and(|v| v.truthy());
        if !self.in_transaction {
            self.alone(fields);
        }
        if self.catalog_changed && !self.in_transaction {
            return self.write();
        }
        self.write_if_large()
    }

    /// What other members do with their own collections is no concern of this one's.
    fn is_foreign(&self, namespace: &str) -> bool {
        self.core.base.is_replica() && stays_here(namespace)
    }

    fn command(&mut self, fields: &Operation<'a>) -> Result<()> {
        let command = Command::from_oplog(fields.doc).ok_or_else(|| {
            Error::new(Code::INTERNAL_ERROR, format!("the log has an unreadable command: {:?}", fields.doc))
        })?;
        if self.is_foreign(command.target()) {
            return Ok(());
        }
        self.done.command += 1;
        // Only collections are created within a transaction; nobody sees them before its end.
        if !self.in_transaction {
            self.write()?;
        }
        for ident in command.idents() {
            self.core.definitions.note_ident(ident);
        }
        if command.is_build_commit() {
            let collection = command.collection(&self.catalog)?;
            self.core.finish_builds(&collection, &command.names(), self.entry)?;
        }
        must!(
            self.in_transaction || self.batch.is_empty(),
            "a command of entry {} is to change the catalog before what stands before it is written",
            self.entry.index
        );
        let applied = command.apply(Arc::unwrap_or_clone(std::mem::take(&mut self.catalog)))?;
        for ident in command.new_indexes() {
            self.core.clear_strays(ident, self.entry, &mut self.batch)?;
        }
        applied.put(&self.core.base.db, &mut self.batch);
        self.done_to = self.done_to.max(fields.time);
        self.catalog = Arc::new(applied.catalog);
        self.catalog_changed = true;
        // Those who wait for a change of these collections hear of it.
        let changed = command.uuid.as_ref().and_then(|uuid| self.catalog.by_uuid(uuid));
        for collection in applied.gone.iter().chain(changed) {
            self.counts.add(&collection.state, (0, 0));
        }
        let index = self.entry.index;
        self.garbage.extend(applied.garbage.into_iter().map(|garbage| Garbage { index, ..garbage }));
        if self.in_transaction {
            return Ok(());
        }
        self.write()?;
        self.core.definitions.builds().end_unwanted(&self.catalog);
        if let Some(collection) = command.uuid.filter(|_| command.is_build_start()) {
            self.core.follow_build(&collection, &command.new_indexes(), self.entry);
        }
        Ok(())
    }

    /// `kept` makes of a part of the operation what is kept until the batch is written.
    fn document<'b>(&mut self, fields: &Operation<'b>, kept: impl Fn(RawDoc<'b>) -> Now<'a>) -> Result<()> {
        let collection = oplog::value_uuid(fields.uuid).and_then(|uuid| self.catalog.by_uuid(&uuid)).cloned();
        if self.is_foreign(fields.namespace) {
            return Ok(());
        }
        let Some(collection) = collection else {
            let namespace = fields.namespace;
            bail!(Code::INTERNAL_ERROR, "the log writes to a collection that does not exist: {namespace}");
        };
        let statement = fields.statement();
        let mut key = std::mem::take(&mut self.key);
        key.clear();
        fields.put_record_key(&mut key)?;
        prefixed(collection.ident, &key, &mut self.full);
        let done = match fields.op {
            Some("i") => {
                if let Some(rid) = fields.rid {
                    collection.state.next_key.fetch_max(rid + 1, Ordering::AcqRel);
                }
                self.done.insert += 1;
                self.record(&collection, &key, Op::Insert(fields.o), statement.as_ref(), kept(fields.o))
            }
            Some("u") => {
                self.done.update += 1;
                self.change(&collection, &key, Some((fields.o, kept(fields.o))), statement.as_ref())
            }
            _ => {
                self.done.delete += 1;
                self.change(&collection, &key, None, statement.as_ref())
            }
        };
        self.key = key;
        done
    }

    /// An update by the `o` of its operation, or a delete, of the record `self.full`.
    fn change(
        &mut self,
        collection: &Arc<Collection>,
        key: &[u8],
        o: Option<(RawDoc<'_>, Now<'a>)>,
        statement: Option<&Statement>,
    ) -> Result<()> {
        let core = self.core;
        let written = self.written.remove(&self.full);
        let stored;
        let old = match &written {
            Some(Now::Given(doc)) => Some(*doc),
            Some(Now::Made(doc)) => Some(doc.as_raw()),
            Some(Now::Gone) => None,
            None => {
                stored = core.base.db.get(Cf::Records, &self.full)?;
                stored.as_ref().map(|bytes| RawDoc::new(bytes))
            }
        };
        let Some(old) = old else {
            let namespace = &collection.namespace;
            bail!(Code::INTERNAL_ERROR, "the log changes a document of {namespace} that does not exist");
        };
        let Some((o, kept)) = o else {
            return self.record(collection, key, Op::Delete(old), statement, Now::Gone);
        };
        match o.get("diff").and_then(|v| v.as_doc()).filter(|_| o.get("$v").is_some()) {
            None => self.record(collection, key, Op::Update { old, new: o, diff: None }, statement, kept),
            Some(diff) => {
                let new = apply_diff(old, diff);
                let made = Now::Made(new.clone());
                self.record(
                    collection,
                    key,
                    Op::Update { old, new: new.as_raw(), diff: None },
                    statement,
                    made,
                )
            }
        }
    }

    /// Puts the operation on the record `self.full` into the batch.
    fn record(
        &mut self,
        collection: &Arc<Collection>,
        key: &[u8],
        op: Op<'_>,
        statement: Option<&Statement>,
        now: Now<'a>,
    ) -> Result<()> {
        self.changes.compute(collection, key, op.before(), op.after(), self.core.commits.locks())?;
        let mut sink = BatchSink { db: &self.core.base.db, batch: &mut self.batch };
        if let Some(statement) = statement {
            sessions::put_statement(statement, &collection.namespace, &mut sink);
        }
        let stored = op.after().map(|doc| doc.as_bytes());
        self.changes.emit(collection, key, stored, &mut sink);
        if let Some(writes) = &mut self.writes {
            self.changes.emit(collection, key, stored, writes);
        }
        self.core.base.db.put_gone(&self.changes.record, op.before(), &mut self.gone);
        self.locks.extend_from_slice(&self.changes.locks);
        self.counts.add(&collection.state, op.counts());
        self.written.insert(self.full.clone(), now);
        Ok(())
    }
}
