//! Start-up: the log's entries behind the last flush are applied again.
//!
//! It is the same code that applied them first ([`Changes`], [`Command::apply`]), on the same state, so
//! the result is the same: documents, indexes, counters, sessions, catalog.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rocksdb::WriteBatch;
use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_query::diff::apply_diff;

use crate::build::side_ident;
use crate::catalog::{Collection, id_key, whole};
use crate::changes::{BatchSink, Changes};
use crate::command::{Command, build_command};
use crate::core::{Core, Garbage, LOCAL_IDENTS};
use crate::db::{Cf, io_error};
use crate::keys::{capped_key, catalog_key, prefixed};
use crate::oplog;
use crate::options::OpTime;
use crate::sessions;
use crate::write::{Op, Statement};

/// Inserts are gathered until here; anything that reads sees them written first.
const BATCH_BYTES: usize = 4 << 20;
/// A longer start keeps what it has done, so that another crash soon after it does not cost all of it again.
const FLUSH_AFTER: Duration = Duration::from_secs(1);

struct Replay<'c> {
    core: &'c Core,
    changes: Changes,
    batch: WriteBatch,
}

impl Core {
    /// Brings RocksDB from its last flush to the end of the log.
    pub fn recover(&self) -> Result<()> {
        let started = Instant::now();
        let mut last_flush = started;
        let flushed = *self.flushed.lock();
        let mut entries = 0u64;
        if let Some(log) = &self.log {
            let mut reader = log.read_from(flushed.index + 1).map_err(log_error)?;
            let mut replay = Replay { core: self, changes: Changes::default(), batch: WriteBatch::default() };
            while let Some(entry) = reader.next().map_err(log_error)? {
                for doc in oplog::documents(&entry.payload) {
                    replay.operation(doc, None)?;
                }
                *self.last.lock() =
                    OpTime { term: entry.at.term, index: entry.at.index, time: entry.at.time };
                entries += 1;
                self.unflushed.fetch_add(entry.payload.len() as u64, Ordering::Relaxed);
                let full = self.unflushed.load(Ordering::Relaxed) >= self.options.memtable_bytes() * 2;
                if full || last_flush.elapsed() >= FLUSH_AFTER {
                    replay.write()?;
                    self.checkpoint()?;
                    last_flush = Instant::now();
                }
            }
            replay.write()?;
        }
        self.drop_unfinished_builds()?;
        self.resume_garbage()?;
        self.remove_unknown_indexes()?;
        if entries > 0 {
            tracing::info!(entries, millis = started.elapsed().as_millis() as u64, "applied the log's tail");
        }
        Ok(())
    }

    /// Applies one entry's operations.
    pub fn replay_entry(&self, payload: &[u8]) -> Result<()> {
        let mut replay = Replay { core: self, changes: Changes::default(), batch: WriteBatch::default() };
        for doc in oplog::documents(payload) {
            replay.operation(doc, None)?;
        }
        replay.write()
    }

    /// Builds that had not committed leave nothing behind.
    fn drop_unfinished_builds(&self) -> Result<()> {
        let catalog = self.catalog.load_full();
        // What is in the log of a set, a later primary has to end.
        let ours = |c: &&Arc<Collection>| !self.is_replica() || crate::sequencer::stays_here(&c.namespace);
        for collection in catalog.all().filter(ours) {
            let unfinished: Vec<_> = collection.maintained().filter(|index| !index.ready).cloned().collect();
            if unfinished.is_empty() {
                continue;
            }
            let names: Vec<&str> = unfinished.iter().map(|index| index.name.as_str()).collect();
            tracing::info!(collection = collection.namespace, ?names, "dropped unfinished index builds");
            self.run_commands(&[build_command("abortIndexBuild", collection, &unfinished)])?;
        }
        Ok(())
    }

    /// Index files that came in last longer than the log's unsynced end, in which the index may have been created.
    fn remove_unknown_indexes(&self) -> Result<()> {
        let next = self.next_ident.load(Ordering::Acquire);
        let known =
            self.garbage.lock().iter().flat_map(|garbage| garbage.prefixes.clone()).collect::<Vec<_>>();
        let mut iter = self.db.raw().raw_iterator_cf(self.db.cf(Cf::Indexes));
        let next_local = self.next_local_ident.load(Ordering::Acquire);
        let beside = side_ident(0);
        // In each space the numbers behind the last one given away.
        for (first, end) in [
            (next, LOCAL_IDENTS),
            (next_local, beside),
            (beside + if self.is_replica() { next } else { 0 }, beside + LOCAL_IDENTS),
            (beside + next_local, u32::MAX),
        ] {
            iter.seek(first.to_be_bytes());
            while let Some(ident) = iter.key().and_then(|key| key.first_chunk::<4>()).copied() {
                let ident = u32::from_be_bytes(ident);
                if ident >= end {
                    break;
                }
                if !known.contains(&(Cf::Indexes, ident)) {
                    self.remove_prefixes(&[(Cf::Indexes, ident)])?;
                }
                iter.seek((ident + 1).to_be_bytes());
            }
        }
        iter.status().map_err(io_error)
    }

    /// Takes up what was dropped before the crash and perhaps not removed.
    fn resume_garbage(&self) -> Result<()> {
        let mut prefixes = Vec::new();
        let mut iter = self.db.raw().raw_iterator_cf(self.db.cf(Cf::Catalog));
        iter.seek([catalog_key::GARBAGE]);
        while let Some(key) = iter.key().filter(|key| key[0] == catalog_key::GARBAGE) {
            if let [_, cf, a, b, c, d] = *key {
                let cf = if cf == Cf::Records as u8 { Cf::Records } else { Cf::Indexes };
                prefixes.push((cf, u32::from_be_bytes([a, b, c, d])));
            }
            iter.next();
        }
        iter.status().map_err(io_error)?;
        let index = self.last.lock().index;
        let mut garbage = self.garbage.lock();
        garbage.clear();
        if !prefixes.is_empty() {
            garbage.push(Garbage { holder: None, prefixes, index });
        }
        Ok(())
    }
}

fn log_error(error: sheaf_log::Error) -> Error {
    Error::new(Code::CHECKSUM_MISMATCH, error.to_string())
}

impl Replay<'_> {
    fn write(&mut self) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.core.db.write(std::mem::take(&mut self.batch))
    }

    /// Applies one oplog document, or an element of `applyOps` (whose statement is the whole's).
    fn operation(&mut self, doc: RawDoc<'_>, outer: Option<&Statement>) -> Result<()> {
        let statement = read_statement(doc);
        let statement = statement.as_ref().or(outer);
        match doc.get("op").and_then(|v| v.as_str()) {
            Some("i" | "u" | "d") => self.document(doc, statement),
            Some("c") => {
                let o = doc.get("o").and_then(|v| v.as_doc()).unwrap_or(RawDoc::EMPTY);
                if let Some(operations) = o.get("applyOps").and_then(|v| v.as_array()) {
                    for operation in operations.values().filter_map(|v| v.as_doc()) {
                        self.operation(operation, None)?;
                    }
                    if let Some(statement) = statement {
                        let mut sink = BatchSink { db: &self.core.db, batch: &mut self.batch };
                        sessions::put_record(statement.lsid.as_raw(), statement.txn_number, true, &mut sink);
                    }
                    return Ok(());
                }
                self.write()?;
                let command = Command::from_oplog(doc).ok_or_else(|| {
                    Error::new(Code::INTERNAL_ERROR, format!("the log has an unreadable command: {doc:?}"))
                })?;
                self.note_idents(o);
                self.core.replay_command(&command)
            }
            Some("n") => Ok(()),
            other => bail!(Code::INTERNAL_ERROR, "the log has an unknown operation {other:?}"),
        }
    }

    /// Numbers that the log gave away are not given again.
    fn note_idents(&self, o: RawDoc<'_>) {
        let Some(own) = o.get("sheaf").and_then(|v| v.as_doc()) else { return };
        let indexes = own.get("indexes").and_then(|v| v.as_array()).unwrap_or(RawDoc::EMPTY);
        let idents = indexes.values().filter_map(|v| v.as_doc()?.get("ident").and_then(whole));
        for ident in idents.chain(own.get("ident").and_then(whole)) {
            self.core.next_ident.fetch_max(ident as u32 + 1, Ordering::AcqRel);
        }
    }

    fn document(&mut self, doc: RawDoc<'_>, statement: Option<&Statement>) -> Result<()> {
        let catalog = self.core.catalog.load_full();
        let collection = oplog::value_uuid(doc.get("ui")).and_then(|uuid| catalog.by_uuid(&uuid));
        let Some(collection) = collection else {
            bail!(
                Code::INTERNAL_ERROR,
                "the log writes to a collection that does not exist: {:?}",
                doc.get("ns")
            );
        };
        let o = doc.get("o").and_then(|v| v.as_doc()).unwrap_or(RawDoc::EMPTY);
        let insert = doc.get("op").and_then(|v| v.as_str()) == Some("i");
        let update = doc.get("op").and_then(|v| v.as_str()) == Some("u");
        let rid = doc.get("rid").and_then(whole).map(|rid| rid as u64);
        let id_doc = if update { doc.get("o2").and_then(|v| v.as_doc()).unwrap_or(RawDoc::EMPTY) } else { o };
        let record_key = match rid {
            Some(rid) => capped_key(rid).to_vec(),
            None => id_key(id_doc)?,
        };
        if insert {
            if let Some(rid) = rid {
                collection.state.next_key.fetch_max(rid + 1, Ordering::AcqRel);
            }
            return self.apply(collection, &record_key, Op::Insert(o), statement);
        }
        // What is changed may have been written just now.
        self.write()?;
        let mut full = Vec::new();
        prefixed(collection.ident, &record_key, &mut full);
        let Some(old) = self.core.db.get(Cf::Records, &full)?.map(|old| old.to_vec()) else {
            bail!(
                Code::INTERNAL_ERROR,
                "the log changes a document of {} that does not exist",
                collection.namespace
            );
        };
        let old = RawDoc::new(&old);
        if !update {
            return self.apply(collection, &record_key, Op::Delete(old), statement);
        }
        let new = match o.get("diff").and_then(|v| v.as_doc()).filter(|_| o.get("$v").is_some()) {
            Some(diff) => apply_diff(old, diff),
            None => DocBuf::from(o),
        };
        self.apply(collection, &record_key, Op::Update { old, new: new.as_raw(), diff: None }, statement)
    }

    fn apply(
        &mut self,
        collection: &Arc<Collection>,
        record_key: &[u8],
        op: Op<'_>,
        statement: Option<&Statement>,
    ) -> Result<()> {
        self.changes.compute(collection, record_key, op.before(), op.after(), &self.core.locks)?;
        let mut sink = BatchSink { db: &self.core.db, batch: &mut self.batch };
        if let Some(statement) = statement {
            sessions::put_statement(statement, &mut sink);
        }
        self.changes.emit(collection, record_key, op.after(), &mut sink);
        let (docs, bytes) = op.counts();
        collection.state.published(docs, bytes);
        if self.batch.size_in_bytes() > BATCH_BYTES {
            self.write()?;
        }
        Ok(())
    }
}

fn read_statement(doc: RawDoc<'_>) -> Option<Statement> {
    Some(Statement {
        lsid: doc.get("lsid")?.as_doc()?.into(),
        txn_number: doc.get("txnNumber").and_then(whole)?,
        stmt_id: doc.get("stmtId").and_then(whole).unwrap_or(-1) as i32,
        result: doc.get("retryResult").and_then(|v| v.as_doc()).map(DocBuf::from),
    })
}
