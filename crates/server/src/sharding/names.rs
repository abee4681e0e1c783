//! What storage and the machine call the same things.

use std::sync::Arc;

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Timestamp};
use sheaf_shard::{ClusterTime, LogRecord, Record, Row, ShardId, TransactionId};
use sheaf_storage::{TransactionKey, TransactionRecord, TransactionRow};

use crate::session::LogicalSessionId;

/// The machine's name of a session's transaction.
pub fn transaction_id(session: LogicalSessionId, number: i64) -> TransactionId {
    TransactionId::new(session.document().into_bytes(), number)
}

/// The machine's name of a transaction.
pub fn id_of(key: &TransactionKey) -> TransactionId {
    TransactionId::new(key.lsid.as_bytes(), key.txn_number)
}

/// Storage's name of a transaction.
pub fn key_of(id: &TransactionId) -> TransactionKey {
    TransactionKey { lsid: DocBuf::from(RawDoc::new(&id.lsid)), txn_number: id.number }
}

/// The shards as an array of their names.
pub fn array_of(participants: &[ShardId]) -> DocBuf {
    DocBuf::from_bytes(ArrayBuf::of(participants.iter().map(ShardId::as_str)).into_bytes())
}

fn shards_of(participants: &DocBuf) -> Arc<[ShardId]> {
    participants.as_raw().values().filter_map(|name| name.as_str()).map(ShardId::new).collect()
}

/// The machine's time.
pub fn time_of(time: Timestamp) -> ClusterTime {
    ClusterTime::from(time)
}

/// What the machine is told of a record of the log; `None`: it is about none of its transactions.
pub fn record_of(record: &TransactionRecord) -> Option<LogRecord> {
    Some(LogRecord::Transaction(match record {
        TransactionRecord::Ceiling(at) => return Some(LogRecord::Ceiling(time_of(*at))),
        TransactionRecord::SessionsEnded { .. } => return None,
        TransactionRecord::Prepare { key, participants } => {
            Record::Prepare { id: id_of(key), participants: shards_of(participants) }
        }
        TransactionRecord::Commit { key, at } => Record::Commit { id: id_of(key), at: time_of(*at) },
        TransactionRecord::Abort { key } => Record::Abort { id: id_of(key) },
        TransactionRecord::Settled { keys } => Record::Settled { ids: keys.iter().map(id_of).collect() },
        TransactionRecord::Alone { key } => Record::Alone { id: id_of(key) },
    }))
}

/// What the machine finds of a row at its start.
pub fn row_of(row: &TransactionRow) -> Row {
    match row {
        TransactionRow::Prepared { at, participants, .. } => {
            Row::Prepared { at: time_of(*at), participants: shards_of(participants) }
        }
        TransactionRow::Committed { at, participants, settled } => {
            Row::Committed { at: time_of(*at), participants: shards_of(participants), settled: *settled }
        }
        TransactionRow::Aborted => Row::Aborted,
    }
}
