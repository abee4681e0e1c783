//! Rows of transactions over several shards, as they stand on disk among those of the session.
//!
//! ```text
//! [lsid document] 'p' [txnNum u64]  -> {state, at, participants, ...} and, while it is prepared, its operations
//! ```

use sheaf_bson::{DocBuf, RawDoc, Timestamp, Value};
use uuid::Uuid;

use crate::oplog::{self, TransactionKey};

/// What is on record of a transaction.
#[derive(Clone, Debug, PartialEq)]
pub enum TransactionRow {
    /// Its operations wait for the decision; what they change is locked.
    Prepared {
        /// Index of its last entry in the log.
        index: u64,
        /// Time of that.
        at: Timestamp,
        /// An array of the names of all shards that wrote in it.
        participants: DocBuf,
    },
    /// It is committed.
    Committed {
        /// The time at which it is, on all shards.
        at: Timestamp,
        /// As in the prepare.
        participants: DocBuf,
        /// Whether all participants have the commit.
        settled: bool,
    },
    /// It has no effect.
    Aborted,
}

/// A row, without the operations.
#[derive(Clone)]
pub(crate) struct Row {
    pub row: TransactionRow,
    /// Index of the prepare's first entry.
    pub first: u64,
    /// Time of the prepare.
    pub prepared: Timestamp,
    /// What a prepared transaction changes.
    pub collections: Vec<Uuid>,
}

impl Row {
    pub fn aborted() -> Row {
        Row { row: TransactionRow::Aborted, first: 0, prepared: Timestamp(0), collections: Vec::new() }
    }

    pub fn is_prepared(&self) -> bool {
        matches!(self.row, TransactionRow::Prepared { .. })
    }

    /// Whether others may still have to be told of it: it is prepared, or its commit is not settled.
    pub fn is_pending(&self) -> bool {
        self.is_prepared() || matches!(self.row, TransactionRow::Committed { settled: false, .. })
    }

    /// As it stands on disk, before the operations.
    pub fn encode(&self) -> Vec<u8> {
        let doc = DocBuf::build(|doc| {
            let (state, at, participants) = match &self.row {
                TransactionRow::Prepared { index, at, participants } => {
                    doc.append("index", *index as i64);
                    ("prepared", *at, participants)
                }
                TransactionRow::Committed { at, participants, settled } => {
                    doc.append("settled", *settled);
                    ("committed", *at, participants)
                }
                TransactionRow::Aborted => {
                    doc.append("state", "aborted");
                    return;
                }
            };
            doc.append("state", state).append("at", at).append("first", self.first as i64);
            doc.append("prepared", self.prepared);
            doc.append("participants", Value::Array(participants.as_raw()));
            let mut list = doc.array("collections");
            for uuid in &self.collections {
                list.push(oplog::uuid_value(uuid));
            }
        });
        doc.into_bytes()
    }

    /// Reads what [`Row::encode`] has written; `None` for anything else.
    pub fn decode(value: &[u8]) -> Option<Row> {
        let doc = oplog::documents(value).next()?;
        let time = |name: &str| match doc.get(name) {
            Some(Value::Timestamp(at)) => Some(at),
            _ => None,
        };
        let number = |name: &str| doc.get(name).and_then(|v| v.as_exact_i64()).map(|n| n as u64);
        let participants = || doc.get("participants").and_then(|v| v.as_array()).map(DocBuf::from);
        let row = match doc.get("state").and_then(|v| v.as_str())? {
            "aborted" => return Some(Row::aborted()),
            "prepared" => TransactionRow::Prepared {
                index: number("index")?,
                at: time("at")?,
                participants: participants()?,
            },
            "committed" => TransactionRow::Committed {
                at: time("at")?,
                participants: participants()?,
                settled: doc.get("settled").is_some_and(|v| v.truthy()),
            },
            _ => return None,
        };
        let list = doc.get("collections").and_then(|v| v.as_array()).unwrap_or(RawDoc::EMPTY);
        let collections = list.values().filter_map(|value| oplog::value_uuid(Some(value))).collect();
        let (first, prepared) = (number("first")?, time("prepared")?);
        Some(Row { row, first, prepared, collections })
    }
}

/// The operations of a prepared transaction, as they stand in its row.
pub(crate) fn operations_of(value: &[u8]) -> &[u8] {
    let header = oplog::documents(value).next().map_or(0, |doc| doc.len());
    &value[header..]
}

/// The key of a transaction's row.
pub(crate) fn row_key(key: &TransactionKey) -> Vec<u8> {
    let mut full = key.lsid.as_bytes().to_vec();
    full.push(b'p');
    full.extend_from_slice(&(key.txn_number as u64).to_be_bytes());
    full
}
