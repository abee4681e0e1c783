//! What must be remembered of retryable writes and transactions: rows of a column family, written in
//! the same batch as the operations that they tell of.
//!
//! ```text
//! [lsid document] 'r'               -> {txnNum, committed?}
//! [lsid document] 's' [stmtId u32]  -> {txnNum, ns: a checksum of the namespace, result?}
//! [lsid document] 'p' [txnNum u64]  -> transactions over several shards: crate::commit::transaction_rows
//! ```
//!
//! They go when the session has ended: by an entry of the log, `{op: "n", o2: {endedSessions: [lsid, ...]}}`, so that every
//! member forgets them at the same place in the order of writes, and recovery does too.

use rocksdb::WriteBatch;
use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::Result;

use crate::commit::prepared::Prepared;
use crate::core::Core;
use crate::db::sink::{BatchSink, Sink};
use crate::db::{Cf, Db, io_error};
use crate::oplog::{self, Statement, TransactionKey};
use crate::options::{Interrupt, OpTime};

/// So many sessions are forgotten with one entry of the log.
const FORGOTTEN_PER_ENTRY: usize = 1000;

/// The field of an entry's `o2` that names sessions which have ended.
const ENDED: &str = "endedSessions";

/// What is on record about a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRecord {
    /// Number of its newest retryable write or transaction.
    pub txn_number: i64,
    /// Whether that was a transaction that committed.
    pub committed: bool,
}

impl SessionRecord {
    /// As it stands in its own row; what was prepared over several shards has another.
    fn decode(row: RawDoc<'_>) -> SessionRecord {
        SessionRecord {
            txn_number: row.get("txnNum").and_then(|v| v.as_exact_i64()).unwrap_or(-1),
            committed: row.get("committed").is_some_and(|v| v.truthy()),
        }
    }
}

fn record_key(lsid: RawDoc<'_>) -> Vec<u8> {
    let mut key = lsid.as_bytes().to_vec();
    key.push(b'r');
    key
}

fn statement_key(lsid: RawDoc<'_>, stmt: i32) -> Vec<u8> {
    let mut key = lsid.as_bytes().to_vec();
    key.push(b's');
    key.extend_from_slice(&stmt.to_be_bytes());
    key
}

/// Whether a key is that of a statement's row.
pub(crate) fn is_statement_key(key: &[u8]) -> bool {
    let lsid = oplog::documents(key).next().map_or(0, |lsid| lsid.len());
    lsid > 0 && key.get(lsid) == Some(&b's')
}

/// Records a statement, what it was about, and its result.
pub(crate) fn put_statement(statement: &Statement, namespace: &str, sink: &mut impl Sink) {
    let lsid = statement.lsid.as_raw();
    put_record(lsid, statement.txn_number, false, sink);
    let row = DocBuf::build(|doc| {
        doc.append("txnNum", statement.txn_number);
        if !namespace.is_empty() {
            doc.append("ns", checksum(namespace));
        }
        if let Some(result) = &statement.result {
            doc.append("result", result);
        }
    });
    sink.put(Cf::Sessions, &statement_key(lsid, statement.stmt_id), row.as_bytes());
}

/// What a row has of a namespace: enough to pass over nearly all others.
fn checksum(namespace: &str) -> i32 {
    crc32c::crc32c(namespace.as_bytes()) as i32
}

/// Records the newest number of a session.
pub(crate) fn put_record(lsid: RawDoc<'_>, txn_number: i64, committed: bool, sink: &mut impl Sink) {
    let row = DocBuf::build(|doc| {
        doc.append("txnNum", txn_number);
        if committed {
            doc.append("committed", true);
        }
    });
    sink.put(Cf::Sessions, &record_key(lsid), row.as_bytes());
}

impl Core {
    pub fn session_record(&self, lsid: RawDoc<'_>) -> Result<Option<SessionRecord>> {
        let Some(row) = self.base.db.get(Cf::Sessions, &record_key(lsid))? else { return Ok(None) };
        let SessionRecord { txn_number, committed } = SessionRecord::decode(RawDoc::new(&row));
        let committed = committed || self.commits.transactions().is_committed(lsid, txn_number);
        Ok(Some(SessionRecord { txn_number, committed }))
    }

    pub fn statement_result(&self, lsid: RawDoc<'_>, txn_number: i64, stmt: i32) -> Result<Option<DocBuf>> {
        let Some(row) = self.base.db.get(Cf::Sessions, &statement_key(lsid, stmt))? else { return Ok(None) };
        let row = RawDoc::new(&row);
        if row.get("txnNum").and_then(|v| v.as_exact_i64()) != Some(txn_number) {
            return Ok(None);
        }
        let result = row.get("result").and_then(|v| v.as_doc());
        Ok(Some(result.map_or_else(|| sheaf_bson::doc! { "n": 1 }, DocBuf::from)))
    }

    /// The statements on record of a session's newest number that were about this namespace, in order, if the number is not a
    /// transaction's. There may be some about others among them.
    pub fn session_statements(&self, lsid: RawDoc<'_>, namespace: &str) -> Result<Vec<Statement>> {
        let found = self.statements_about(lsid, &[namespace])?;
        Ok(found.into_iter().map(|(_, statement)| statement).collect())
    }

    /// The same of several namespaces, each with the place of its namespace among these. A statement of which is not known what it was
    /// about counts for the first one.
    pub fn statements_about(&self, lsid: RawDoc<'_>, namespaces: &[&str]) -> Result<Vec<(usize, Statement)>> {
        let wanted: Vec<i32> = namespaces.iter().map(|namespace| checksum(namespace)).collect();
        let about = |row: RawDoc<'_>| match row.get("ns") {
            Some(of) => wanted.iter().position(|wanted| of.as_exact_i64() == Some((*wanted).into())),
            None => (!wanted.is_empty()).then_some(0),
        };
        let mut found = Vec::new();
        let Some(SessionRecord { txn_number, committed: false }) = self.session_record(lsid)? else {
            return Ok(found);
        };
        let mut options = rocksdb::ReadOptions::default();
        options.set_iterate_upper_bound(end_of(lsid));
        let mut iter = self.base.db.raw().raw_iterator_cf_opt(self.base.db.cf(Cf::Sessions), options);
        iter.seek(statement_key(lsid, 0));
        while let (Some(key), Some(row)) = (iter.key(), iter.value()) {
            let (at, row) = (lsid.len() + 1, RawDoc::new(row));
            if is_statement_key(key)
                && let Some(stmt_id) = key.get(at..).and_then(|rest| rest.first_chunk::<4>())
                && row.get("txnNum").and_then(|number| number.as_exact_i64()) == Some(txn_number)
                && let Some(place) = about(row)
            {
                let result = row.get("result").and_then(|result| result.as_doc()).map(DocBuf::from);
                let stmt_id = i32::from_be_bytes(*stmt_id);
                found.push((place, Statement { lsid: lsid.into(), txn_number, stmt_id, result }));
            }
            iter.next();
        }
        iter.status().map_err(io_error)?;
        Ok(found)
    }

    /// Puts statements about a namespace on record that another shard has executed: entries of the log without an operation. What is known of a session
    /// by a higher number stays.
    ///
    /// Nobody may run a retryable write or transaction of these sessions meanwhile.
    pub fn put_statements(
        &self,
        namespace: &str,
        statements: &[Statement],
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        let _pass = self.commits.pass(interrupt)?;
        let mut prepared = Prepared { since: Some(self.commits.others()), ..Prepared::default() };
        let mut sink = BatchSink { db: &self.base.db, batch: &mut prepared.batch };
        for statement in statements {
            let known = self.session_record(statement.lsid.as_raw())?;
            if known.is_some_and(|known| {
                known.txn_number > statement.txn_number
                    || (known.txn_number == statement.txn_number && known.committed)
            }) {
                continue;
            }
            put_statement(statement, namespace, &mut sink);
            oplog::write(&mut prepared.payload, "n", namespace, None, Some(statement), |doc| {
                doc.append("o", &sheaf_bson::doc! { "msg": "a statement of another shard" });
                doc.append("fromMigrate", true);
            });
        }
        if prepared.payload.is_empty() {
            return Ok(self.published.last());
        }
        self.commit(prepared)
    }

    /// Sessions that something is on record of (their raw `lsid` documents), in order, behind `after`; at most `most`.
    pub fn recorded_sessions(&self, after: Option<RawDoc<'_>>, most: usize) -> Result<Vec<DocBuf>> {
        let mut found: Vec<DocBuf> = Vec::new();
        let mut iter = self.base.db.raw().raw_iterator_cf(self.base.db.cf(Cf::Sessions));
        match after {
            Some(after) => iter.seek(end_of(after)),
            None => iter.seek_to_first(),
        }
        while found.len() < most
            && let Some(lsid) = iter.key().and_then(|key| oplog::documents(key).next())
        {
            found.push(lsid.into());
            // Its statements are passed over: there may be many.
            iter.seek(end_of(found[found.len() - 1].as_raw()));
        }
        iter.status().map_err(io_error)?;
        Ok(found)
    }

    /// The newest transactions of sessions that have committed without a row of their own: nobody but this server took part.
    pub fn lone_commits(&self) -> Result<Vec<TransactionKey>> {
        let mut found = Vec::new();
        let mut iter = self.base.db.raw().raw_iterator_cf(self.base.db.cf(Cf::Sessions));
        iter.seek_to_first();
        while let Some(lsid) = iter.key().and_then(|key| oplog::documents(key).next()) {
            let lsid = DocBuf::from(lsid);
            let record = record_key(lsid.as_raw());
            iter.seek(&record);
            if let Some(value) = iter.value().filter(|_| iter.key() == Some(&record[..])) {
                let SessionRecord { txn_number, committed } = SessionRecord::decode(RawDoc::new(value));
                found.extend(committed.then(|| TransactionKey { lsid: lsid.clone(), txn_number }));
            }
            iter.seek(end_of(lsid.as_raw()));
        }
        iter.status().map_err(io_error)?;
        Ok(found)
    }

    /// Removes what is on record of these sessions, everywhere in the set and for recovery too: the log says so. Sessions
    /// without a record cost nothing. False: writes are locked (`fsyncLock`), and not all is done.
    ///
    /// Nobody may run a retryable write or transaction of these sessions meanwhile.
    pub fn forget_sessions(&self, lsids: &[DocBuf]) -> Result<bool> {
        for some in lsids.chunks(FORGOTTEN_PER_ENTRY) {
            let Some(_pass) = self.commits.try_pass() else { return Ok(false) };
            let since = Some(self.commits.others());
            let mut prepared = Prepared { since, ..Prepared::default() };
            let mut recorded = Vec::new();
            let transactions = self.commits.transactions();
            // Records of transactions over shards come from others than the session's client.
            let turns: Vec<_> = some.iter().map(|lsid| transactions.try_turn(lsid.as_raw())).collect();
            for (lsid, turn) in some.iter().zip(&turns) {
                // What other shards may still ask for is left for later.
                if turn.is_none() || transactions.is_pending(lsid.as_raw()) {
                    continue;
                }
                if remove_rows(&self.base.db, lsid.as_raw(), &mut prepared.batch)? {
                    recorded.push(lsid);
                }
            }
            if recorded.is_empty() {
                continue;
            }
            // To those who read the oplog as MongoDB's it is an entry without effect.
            oplog::write(&mut prepared.payload, "n", "", None, None, |doc| {
                doc.append("o", &sheaf_bson::doc! { "msg": "sessions have ended" });
                let mut o2 = doc.document("o2");
                let mut list = o2.array(ENDED);
                for lsid in &recorded {
                    list.push(lsid.as_raw());
                }
            });
            let at = self.commit(prepared)?;
            transactions.forget(recorded.into_iter().cloned().collect(), at);
        }
        Ok(true)
    }
}

/// Behind the last row of a session.
fn end_of(lsid: RawDoc<'_>) -> Vec<u8> {
    let mut end = lsid.as_bytes().to_vec();
    end.push(b't');
    end
}

/// Deletes a session's rows as they are in the database; false if it has none. They are deleted one by one: ranges, many
/// of them, would slow down every reader.
fn remove_rows(db: &Db, lsid: RawDoc<'_>, batch: &mut WriteBatch) -> Result<bool> {
    let mut options = rocksdb::ReadOptions::default();
    options.set_iterate_upper_bound(end_of(lsid));
    let mut iter = db.raw().raw_iterator_cf_opt(db.cf(Cf::Sessions), options);
    iter.seek(lsid.as_bytes());
    let mut any = false;
    while let Some(key) = iter.key() {
        batch.delete_cf(db.cf(Cf::Sessions), key);
        any = true;
        iter.next();
    }
    iter.status().map_err(io_error)?;
    Ok(any)
}

/// What an entry `{op: "n"}` with this `o2` does: [`Core::forget_sessions`] has written it. Nothing that changes these
/// sessions may be in `batch`.
pub(crate) fn apply_ended(db: &Db, o2: RawDoc<'_>, batch: &mut WriteBatch) -> Result<()> {
    ended(o2).try_for_each(|lsid| remove_rows(db, lsid, batch).map(|_| ()))
}

/// The sessions that an entry with this `o2` ends.
pub(crate) fn ended(o2: RawDoc<'_>) -> impl Iterator<Item = RawDoc<'_>> {
    let ended = o2.get(ENDED).and_then(|v| v.as_array()).unwrap_or(RawDoc::EMPTY);
    ended.values().filter_map(|v| v.as_doc())
}

/// Whether an entry with this `o2` ends sessions.
pub(crate) fn ends_sessions(o2: RawDoc<'_>) -> bool {
    o2.element(ENDED).is_some()
}
