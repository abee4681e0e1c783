//! What must be remembered of retryable writes and transactions: rows of a column family, written in
//! the same batch as the operations that they tell of.
//!
//! ```text
//! [lsid document] 'r'               -> {txnNum, committed?}
//! [lsid document] 's' [stmtId u32]  -> {txnNum, result?}
//! ```

use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::Result;

use crate::catalog::whole;
use crate::changes::Sink;
use crate::core::Core;
use crate::db::Cf;
use crate::write::Statement;

/// What is on record about a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRecord {
    /// Number of its newest retryable write or transaction.
    pub txn_number: i64,
    /// Whether that was a transaction that committed.
    pub committed: bool,
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

/// Records a statement and its result.
pub(crate) fn put_statement(statement: &Statement, sink: &mut impl Sink) {
    let lsid = statement.lsid.as_raw();
    put_record(lsid, statement.txn_number, false, sink);
    let row = DocBuf::build(|doc| {
        doc.append("txnNum", statement.txn_number);
        if let Some(result) = &statement.result {
            doc.append("result", result);
        }
    });
    sink.put(Cf::Sessions, &statement_key(lsid, statement.stmt_id), row.as_bytes());
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
        let Some(row) = self.db.get(Cf::Sessions, &record_key(lsid))? else { return Ok(None) };
        let row = RawDoc::new(&row);
        Ok(Some(SessionRecord {
            txn_number: row.get("txnNum").and_then(whole).unwrap_or(-1),
            committed: row.get("committed").is_some_and(|v| v.truthy()),
        }))
    }

    pub fn statement_result(&self, lsid: RawDoc<'_>, txn_number: i64, stmt: i32) -> Result<Option<DocBuf>> {
        let Some(row) = self.db.get(Cf::Sessions, &statement_key(lsid, stmt))? else { return Ok(None) };
        let row = RawDoc::new(&row);
        if row.get("txnNum").and_then(whole) != Some(txn_number) {
            return Ok(None);
        }
        let result = row.get("result").and_then(|v| v.as_doc());
        Ok(Some(result.map_or_else(|| sheaf_bson::doc! { "n": 1 }, DocBuf::from)))
    }

    /// Forgets a session that has ended long ago.
    pub fn forget_session(&self, lsid: RawDoc<'_>) -> Result<()> {
        let mut batch = rocksdb::WriteBatch::default();
        let mut end = lsid.as_bytes().to_vec();
        end.push(b't');
        batch.delete_range_cf(self.db.cf(Cf::Sessions), lsid.as_bytes(), &end);
        self.db.write(batch)
    }
}
