//! What the simulated members store: every document with all its versions by commit time, and what is prepared.

use std::collections::BTreeMap;

use crate::LogRecord;
use crate::time::ClusterTime;
use crate::transaction::Record;
use crate::types::TransactionId;

/// A document's name.
pub(super) type Key = u64;

/// A document: a balance, and which write made it so (0: nobody's).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Value {
    pub balance: i64,
    pub writer: u64,
}

/// An entry's content.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Payload {
    pub record: Option<LogRecord>,
    /// Documents as they become; for a prepare, with the commit.
    pub writes: BTreeMap<Key, Value>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Store {
    pub versions: BTreeMap<Key, BTreeMap<ClusterTime, Value>>,
    pub prepared: BTreeMap<TransactionId, BTreeMap<Key, Value>>,
}

impl Store {
    pub fn apply(&mut self, time: ClusterTime, payload: &Payload) {
        match &payload.record {
            None | Some(LogRecord::Transaction(Record::Alone { .. })) => self.put(time, &payload.writes),
            Some(LogRecord::Transaction(Record::Prepare { id, .. })) => {
                self.prepared.insert(id.clone(), payload.writes.clone());
            }
            Some(LogRecord::Transaction(Record::Commit { id, at })) => {
                if let Some(writes) = self.prepared.remove(id) {
                    self.put(*at, &writes);
                }
            }
            Some(LogRecord::Transaction(Record::Abort { id })) => {
                self.prepared.remove(id);
            }
            Some(LogRecord::Transaction(Record::Settled { .. }) | LogRecord::Ceiling(_)) => {}
        }
    }

    fn put(&mut self, at: ClusterTime, writes: &BTreeMap<Key, Value>) {
        for (key, value) in writes {
            self.versions.entry(*key).or_default().insert(at, *value);
        }
    }

    /// The document as of `at`.
    pub fn read(&self, key: Key, at: ClusterTime) -> Value {
        let versions = self.versions.get(&key);
        versions.and_then(|of| of.range(..=at).next_back()).map(|(_, value)| *value).unwrap_or_default()
    }

    /// When the document was last written.
    pub fn changed(&self, key: Key) -> ClusterTime {
        let versions = self.versions.get(&key);
        versions.and_then(|of| of.last_key_value()).map_or(ClusterTime::ZERO, |(at, _)| *at)
    }

    /// Who has prepared a write to one of these documents.
    pub fn holders<'a>(&'a self, keys: &'a [Key]) -> impl Iterator<Item = &'a TransactionId> {
        let holds = |writes: &BTreeMap<Key, Value>| keys.iter().any(|key| writes.contains_key(key));
        self.prepared.iter().filter(move |(_, writes)| holds(writes)).map(|(id, _)| id)
    }
}
