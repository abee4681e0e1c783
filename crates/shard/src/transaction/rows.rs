//! The rows that remember transactions: part of a shard's data, the same on all members after the same log.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::time::ClusterTime;
use crate::types::{ShardId, TransactionId};

use super::{Outcome, Record};

/// What is on record about a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Row {
    /// `[lsid]p[n]`: prepared, in doubt. The operations stand beside it.
    Prepared {
        /// The time of its entry.
        at: ClusterTime,
        /// All shards that write in it.
        participants: Arc<[ShardId]>,
    },
    /// `[lsid]o[n]`: committed.
    Committed {
        /// As of when.
        at: ClusterTime,
        /// All shards that write in it.
        participants: Arc<[ShardId]>,
        /// Whether all of them have it on majorities.
        settled: bool,
    },
    /// `[lsid]o[n]`: will never be prepared here.
    Aborted,
}

/// A row, and the entry of the log that made it what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    row: Row,
    index: u64,
}

/// All rows of a shard. What an entry changes depends on the rows and the entry only.
///
/// A row of an outcome goes when nobody needs it any more: it is settled (aborts always are: who asks about what it does not find
/// makes an abort again), and its session has a newer row. So the newest row of a session stays until the session ends: it
/// answers the client that asks again, and no transaction of its number or below can begin anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    kept: BTreeMap<TransactionId, Kept>,
}

impl Rows {
    /// The rows that a member finds at its start, its log being applied up to `index`.
    pub fn new(rows: impl IntoIterator<Item = (TransactionId, Row)>, index: u64) -> Self {
        Rows { kept: rows.into_iter().map(|(id, row)| (id, Kept { row, index })).collect() }
    }

    /// The row of a transaction.
    pub fn get(&self, id: &TransactionId) -> Option<&Row> {
        self.kept.get(id).map(|kept| &kept.row)
    }

    /// Index of the entry that made the transaction's row what it is.
    pub fn index_of(&self, id: &TransactionId) -> Option<u64> {
        self.kept.get(id).map(|kept| kept.index)
    }

    /// The highest number of this session that has a row, and the index of the entry that made it what it is.
    pub fn newest(&self, lsid: &Arc<[u8]>) -> Option<(i64, u64)> {
        let last = TransactionId { lsid: lsid.clone(), number: i64::MAX };
        let (id, kept) = self.kept.range(..=last).next_back()?;
        (id.lsid == *lsid).then_some((id.number, kept.index))
    }

    /// All rows in order.
    pub fn iter(&self) -> impl Iterator<Item = (&TransactionId, &Row)> {
        self.kept.iter().map(|(id, kept)| (id, &kept.row))
    }

    /// Applies the entry at `index`, stamped `time`. Returns the outcome that it gives a transaction that was prepared or open.
    pub fn apply(&mut self, index: u64, time: ClusterTime, record: &Record, me: &ShardId) -> Option<Outcome> {
        match record {
            Record::Prepare { id, participants } => {
                self.put(id, Row::Prepared { at: time, participants: participants.clone() }, index);
                None
            }
            Record::Alone { id } => {
                let participants = [me.clone()].into();
                self.put(id, Row::Committed { at: time, participants, settled: true }, index);
                Some(Outcome::Committed(time))
            }
            Record::Commit { id, at } => {
                let Some(Row::Prepared { participants, .. }) = self.get(id) else { return None };
                let participants = participants.clone();
                self.put(id, Row::Committed { at: *at, participants, settled: false }, index);
                Some(Outcome::Committed(*at))
            }
            Record::Abort { id } => {
                if let Some(Row::Committed { .. }) = self.get(id) {
                    return None;
                }
                self.put(id, Row::Aborted, index);
                Some(Outcome::Aborted)
            }
            Record::Settled { ids } => {
                for id in ids {
                    self.settle(id);
                }
                None
            }
        }
    }

    /// The session has ended: what is settled of it goes. A driver ends a session on all members at the same entry.
    pub fn end_session(&mut self, lsid: &Arc<[u8]>) {
        self.kept.retain(|id, kept| id.lsid != *lsid || !is_over(&kept.row));
    }

    fn put(&mut self, id: &TransactionId, row: Row, index: u64) {
        self.kept.insert(id.clone(), Kept { row, index });
        let Some((newest, _)) = self.newest(&id.lsid) else { return };
        let first = TransactionId { lsid: id.lsid.clone(), number: i64::MIN };
        let newest = TransactionId { lsid: id.lsid.clone(), number: newest };
        let over = self.kept.range(first..newest).filter(|(_, kept)| is_over(&kept.row));
        let over: Vec<TransactionId> = over.map(|(id, _)| id.clone()).collect();
        for id in over {
            self.kept.remove(&id);
        }
    }

    fn settle(&mut self, id: &TransactionId) {
        let Some(Kept { row: Row::Committed { settled, .. }, .. }) = self.kept.get_mut(id) else { return };
        *settled = true;
        if self.newest(&id.lsid).is_some_and(|(newest, _)| newest > id.number) {
            self.kept.remove(id);
        }
    }
}

/// Whether no shard can need the row any more.
fn is_over(row: &Row) -> bool {
    matches!(row, Row::Aborted | Row::Committed { settled: true, .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: i64) -> TransactionId {
        TransactionId::new(&b"s"[..], number)
    }

    fn rows(records: &[Record]) -> Rows {
        let mut rows = Rows::default();
        for (at, record) in (1..).zip(records) {
            rows.apply(at, ClusterTime::from_bits(at), record, &ShardId::new("a"));
        }
        rows
    }

    fn prepare(number: i64) -> Record {
        Record::Prepare { id: id(number), participants: [ShardId::new("a"), ShardId::new("b")].into() }
    }

    fn commit(number: i64) -> Record {
        Record::Commit { id: id(number), at: ClusterTime::from_bits(50) }
    }

    fn numbers(rows: &Rows) -> Vec<i64> {
        rows.iter().map(|(id, _)| id.number).collect()
    }

    #[test]
    fn a_commit_stays_until_it_is_settled_and_followed() {
        let mut log = vec![prepare(1), commit(1), prepare(2)];
        assert_eq!(numbers(&rows(&log)), [1, 2]);
        log.push(Record::Settled { ids: vec![id(1)] });
        assert_eq!(numbers(&rows(&log)), [2]);
    }

    #[test]
    fn the_newest_of_a_session_stays_when_it_is_settled() {
        let rows = rows(&[prepare(1), commit(1), Record::Settled { ids: vec![id(1)] }]);
        let Some(Row::Committed { settled: true, at, .. }) = rows.get(&id(1)) else { panic!("{rows:?}") };
        assert_eq!(at.bits(), 50);
    }

    #[test]
    fn a_newer_row_removes_what_is_over() {
        assert_eq!(
            numbers(&rows(&[Record::Abort { id: id(1) }, Record::Alone { id: id(2) }, prepare(3)])),
            [3]
        );
        // Prepared ones are in doubt, however old.
        assert_eq!(numbers(&rows(&[prepare(1), Record::Alone { id: id(2) }])), [1, 2]);
        // What comes late and is over already leaves nothing.
        assert_eq!(numbers(&rows(&[Record::Alone { id: id(2) }, Record::Abort { id: id(1) }])), [2]);
    }

    #[test]
    fn an_abort_changes_no_commit() {
        let rows = rows(&[prepare(1), commit(1), Record::Abort { id: id(1) }]);
        assert!(matches!(rows.get(&id(1)), Some(Row::Committed { .. })));
    }

    #[test]
    fn a_session_that_ends_leaves_what_is_in_doubt() {
        let mut rows = rows(&[prepare(1), commit(1), prepare(2), Record::Alone { id: id(3) }]);
        rows.end_session(&id(1).lsid);
        assert_eq!(numbers(&rows), [1, 2]);
    }
}
