//! What entries of the log say about transactions over several shards.
//!
//! ```text
//! prepare  {lsid, txnNumber, op: "c", o: {applyOps: [...], prepare: true, participants: [...]}}
//! commit   {lsid, txnNumber, op: "c", o: {commitTransaction: 1, commitTimestamp, prepared: <time of the prepare>, sheaf: {collections: [UUID]}}}
//! abort    {lsid, txnNumber, op: "c", o: {abortTransaction: 1}}
//! settled  {op: "n", o2: {settledTransactions: [{lsid, txnNumber}, ...]}}
//! ceiling  {op: "n", o2: {ceiling: <time>}}
//! ```
//!
//! The last two stand in `o2`, because a client's own note (`appendOplogNote`) is in `o`.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use sheaf_bson::{DocBuf, RawDoc, Timestamp, Value};
use uuid::Uuid;

use super::{Operation, Statement, uuid_value, write, write_transaction};

/// The fields of an `o2` that only this module writes.
const SETTLED: &str = "settledTransactions";
const CEILING: &str = "ceiling";

/// Which transaction: the session's id, as entries of the log have it, and its number.
#[derive(Clone, Debug)]
pub struct TransactionKey {
    /// The session.
    pub lsid: DocBuf,
    /// The transaction's number in it.
    pub txn_number: i64,
}

impl TransactionKey {
    fn parts(&self) -> (&[u8], i64) {
        (self.lsid.as_bytes(), self.txn_number)
    }
}

impl PartialEq for TransactionKey {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for TransactionKey {}

impl PartialOrd for TransactionKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for TransactionKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts().cmp(&other.parts())
    }
}

impl Hash for TransactionKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

/// What a shard's log says about transactions.
#[derive(Clone, Debug, PartialEq)]
pub enum TransactionRecord {
    /// Operations that happen only with the commit.
    Prepare {
        /// The transaction.
        key: TransactionKey,
        /// An array of the names of all shards that wrote in it.
        participants: DocBuf,
    },
    /// The operations of a prepared transaction happen.
    Commit {
        /// The transaction.
        key: TransactionKey,
        /// The time at which it is committed, on every shard; the entry's own time is later.
        at: Timestamp,
    },
    /// The transaction, which may never have been heard of here, has no effect, nor will it ever have.
    Abort {
        /// The transaction.
        key: TransactionKey,
    },
    /// All participants have these commits: nobody will ask for them any more.
    Settled {
        /// The transactions.
        keys: Vec<TransactionKey>,
    },
    /// The past below this time is final: a new primary stamps above it.
    Ceiling(Timestamp),
    /// A transaction of a session that committed with one entry, on this shard only.
    Alone {
        /// The transaction.
        key: TransactionKey,
    },
    /// Sessions have ended: there are no records of their transactions any more.
    SessionsEnded {
        /// Their raw `lsid` documents.
        lsids: Vec<DocBuf>,
    },
}

fn key_of(lsid: Option<RawDoc<'_>>, txn_number: Option<i64>) -> Option<TransactionKey> {
    Some(TransactionKey { lsid: lsid?.into(), txn_number: txn_number? })
}

impl Operation<'_> {
    /// Whether it is a list of operations that happen only with a later commit.
    pub fn is_prepare(&self) -> bool {
        self.op == Some("c")
            && self.o.iter().next().is_some_and(|first| first.key() == "applyOps")
            && self.o.get("prepare").is_some_and(|prepare| prepare.truthy())
    }

    /// Which transaction it belongs to.
    pub fn transaction(&self) -> Option<TransactionKey> {
        key_of(self.lsid, self.txn_number)
    }

    /// What it says about transactions over shards; `None` if that is nothing. Transactions that commit with one entry are
    /// not told.
    ///
    /// Errors: what is wrong with it.
    pub fn record(&self) -> Result<Option<TransactionRecord>, &'static str> {
        const INCOMPLETE: &str = "an incomplete record of a transaction";
        let first = match self.op {
            Some("c") => self.o.iter().next(),
            Some("n") => self.o2.iter().next(),
            _ => None,
        };
        let Some(first) = first else { return Ok(None) };
        let record = match (self.op, first.key()) {
            (Some("c"), "applyOps") if self.is_prepare() => {
                let participants = self.o.get("participants").and_then(|v| v.as_array()).ok_or(INCOMPLETE)?;
                TransactionRecord::Prepare {
                    key: self.transaction().ok_or(INCOMPLETE)?,
                    participants: participants.into(),
                }
            }
            (Some("c"), "commitTransaction") => {
                let at = match self.o.get("commitTimestamp") {
                    Some(Value::Timestamp(at)) => at,
                    _ => return Err(INCOMPLETE),
                };
                TransactionRecord::Commit { key: self.transaction().ok_or(INCOMPLETE)?, at }
            }
            (Some("c"), "abortTransaction") => {
                TransactionRecord::Abort { key: self.transaction().ok_or(INCOMPLETE)? }
            }
            (Some("n"), SETTLED) => {
                let list = first.value().as_array().ok_or(INCOMPLETE)?;
                let key = |value: Value<'_>| {
                    let doc = value.as_doc()?;
                    let lsid = doc.get("lsid").and_then(|v| v.as_doc());
                    key_of(lsid, doc.get("txnNumber").and_then(|v| v.as_exact_i64()))
                };
                let keys: Option<Vec<_>> = list.values().map(key).collect();
                TransactionRecord::Settled { keys: keys.ok_or(INCOMPLETE)? }
            }
            (Some("n"), CEILING) => match first.value() {
                Value::Timestamp(at) => TransactionRecord::Ceiling(at),
                _ => return Err(INCOMPLETE),
            },
            _ => return Ok(None),
        };
        Ok(Some(record))
    }

    /// The time of the prepare whose operations a commit has happen, and the collections that these change; `None` of any other
    /// operation.
    pub fn committed(&self) -> Option<(Timestamp, Vec<Uuid>)> {
        let first = self.o.iter().next()?;
        if self.op != Some("c") || first.key() != "commitTransaction" {
            return None;
        }
        let Some(Value::Timestamp(prepared)) = self.o.get("prepared") else { return None };
        let own = self.o.get("sheaf").and_then(|v| v.as_doc()).unwrap_or(RawDoc::EMPTY);
        let list = own.get("collections").and_then(|v| v.as_array()).unwrap_or(RawDoc::EMPTY);
        Some((prepared, list.values().filter_map(|value| super::value_uuid(Some(value))).collect()))
    }
}

/// The collections that these operations are about, which stand one after another.
pub(crate) fn collections_of(operations: &[u8]) -> Vec<Uuid> {
    let uuid = |operation| super::value_uuid(Operation::read(operation).uuid);
    let mut collections: Vec<Uuid> = super::documents(operations).filter_map(uuid).collect();
    collections.sort_unstable();
    collections.dedup();
    collections
}

fn statement(key: &TransactionKey) -> Statement {
    Statement { lsid: key.lsid.clone(), txn_number: key.txn_number, stmt_id: -1, result: None }
}

/// Writes the commit, at `at`, of what was prepared at `prepared` and changes these collections.
pub(crate) fn write_commit(
    payload: &mut Vec<u8>,
    key: &TransactionKey,
    at: Timestamp,
    prepared: Timestamp,
    collections: &[Uuid],
) {
    write_transaction(payload, Some(&statement(key)), false, |doc| {
        let mut o = doc.document("o");
        o.append("commitTransaction", 1).append("commitTimestamp", at).append("prepared", prepared);
        let mut own = o.document("sheaf");
        let mut list = own.array("collections");
        for uuid in collections {
            list.push(uuid_value(uuid));
        }
    });
}

/// Writes an abort.
pub(crate) fn write_abort(payload: &mut Vec<u8>, key: &TransactionKey) {
    write_transaction(payload, Some(&statement(key)), false, |doc| {
        doc.document("o").append("abortTransaction", 1);
    });
}

/// Writes that these commits are settled.
pub(crate) fn write_settled(payload: &mut Vec<u8>, keys: &[TransactionKey]) {
    note(payload, "transactions over shards are settled", |doc| {
        let mut list = doc.array(SETTLED);
        for key in keys {
            list.document().append("lsid", &key.lsid).append("txnNumber", key.txn_number);
        }
    });
}

/// Writes a ceiling.
pub(crate) fn write_ceiling(payload: &mut Vec<u8>, at: Timestamp) {
    note(payload, "the past is final", |doc| {
        doc.append(CEILING, at);
    });
}

/// To those who read the oplog as MongoDB's it is an entry without effect.
fn note(payload: &mut Vec<u8>, message: &str, fill: impl FnOnce(&mut sheaf_bson::DocWriter<'_, Vec<u8>>)) {
    write(payload, "n", "", None, None, |doc| {
        doc.append("o", &sheaf_bson::doc! { "msg": message });
        fill(&mut doc.document("o2"));
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_bson::doc;

    fn read(payload: &[u8]) -> Option<TransactionRecord> {
        let doc = crate::oplog::documents(payload).next().unwrap();
        Operation::read(doc).record().unwrap()
    }

    #[test]
    fn records_read_back() {
        let key = TransactionKey { lsid: doc! { "id": "s" }, txn_number: 7 };
        let mut payload = Vec::new();
        write_commit(&mut payload, &key, Timestamp(9), Timestamp(5), &[Uuid::from_u128(3)]);
        assert_eq!(read(&payload), Some(TransactionRecord::Commit { key: key.clone(), at: Timestamp(9) }));
        let operation = crate::oplog::documents(&payload).next().map(Operation::read).unwrap();
        assert_eq!(operation.committed(), Some((Timestamp(5), vec![Uuid::from_u128(3)])));
        payload.clear();
        write_abort(&mut payload, &key);
        assert_eq!(read(&payload), Some(TransactionRecord::Abort { key: key.clone() }));
        payload.clear();
        write_settled(&mut payload, &[key.clone(), key.clone()]);
        assert_eq!(read(&payload), Some(TransactionRecord::Settled { keys: vec![key.clone(), key] }));
        payload.clear();
        write_ceiling(&mut payload, Timestamp(77));
        assert_eq!(read(&payload), Some(TransactionRecord::Ceiling(Timestamp(77))));
        // What a client notes is nothing of this.
        payload.clear();
        write(&mut payload, "n", "", None, None, |doc| {
            doc.append("o", &doc! { "ceiling": Timestamp(99) });
        });
        assert_eq!(read(&payload), None);
    }
}
