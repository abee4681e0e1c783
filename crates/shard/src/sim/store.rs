//! What the simulated members store: every document with all its versions by commit time, what the shard owns and what the directory says
//! likewise, and what is prepared.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::LogRecord;
use crate::moves::{Move, MoveId};
use crate::placement::Chunk;
use crate::time::ClusterTime;
use crate::transaction::Record;
use crate::types::TransactionId;

use super::directory::{Placed, Table, shard_key};

/// A document's name.
pub(super) type Key = u64;

/// A document: a balance, and which write made it so (0: nobody's).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Value {
    pub balance: i64,
    pub writer: u64,
}

/// What is on record of a session's retryable statements: those of its newest number, and what each has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Statements {
    pub number: i64,
    pub executed: BTreeMap<u32, Value>,
}

/// An entry's content.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Payload {
    pub record: Option<LogRecord>,
    /// Documents as they become; for a prepare all that follows is with the commit.
    pub writes: BTreeMap<Key, Value>,
    /// `fromMigrate`: copies that have come, and what is removed.
    pub moved: BTreeMap<Key, Option<Value>>,
    /// Retryable statements that are executed, or have come with a range.
    pub statements: BTreeMap<Arc<[u8]>, Statements>,
    pub placement: Option<Arc<Placed>>,
    /// The directory's chunks that change.
    pub chunks: Vec<Chunk>,
    /// Documents of `config.migrations`: inserted or deleted.
    pub migration: Option<(MoveId, Option<Arc<Move>>)>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Store {
    pub versions: BTreeMap<Key, BTreeMap<ClusterTime, Option<Value>>>,
    pub prepared: BTreeMap<TransactionId, Payload>,
    pub statements: BTreeMap<Arc<[u8]>, Statements>,
    /// What the shard owns, by commit time; empty where documents have fixed places.
    pub placements: BTreeMap<ClusterTime, Arc<Placed>>,
    /// The directory, on config servers.
    pub table: Option<Table>,
    pub migrations: BTreeMap<MoveId, Arc<Move>>,
}

impl Store {
    /// What the entry makes of the documents, if it does now.
    pub fn apply(&mut self, time: ClusterTime, payload: &Payload) -> Option<Payload> {
        match &payload.record {
            None | Some(LogRecord::Transaction(Record::Alone { .. })) => {
                self.put(time, payload);
                Some(payload.clone())
            }
            Some(LogRecord::Transaction(Record::Prepare { id, .. })) => {
                self.prepared.insert(id.clone(), payload.clone());
                None
            }
            Some(LogRecord::Transaction(Record::Commit { id, at })) => {
                let prepared = self.prepared.remove(id)?;
                self.put(*at, &prepared);
                Some(prepared)
            }
            Some(LogRecord::Transaction(Record::Abort { id })) => {
                self.prepared.remove(id);
                None
            }
            Some(LogRecord::Transaction(Record::Settled { .. }) | LogRecord::Ceiling(_)) => None,
        }
    }

    fn put(&mut self, at: ClusterTime, payload: &Payload) {
        let written = payload.writes.iter().map(|(key, value)| (*key, Some(*value)));
        for (key, value) in written.chain(payload.moved.iter().map(|(key, value)| (*key, *value))) {
            self.versions.entry(key).or_default().insert(at, value);
        }
        for (lsid, statements) in &payload.statements {
            self.statements.entry(lsid.clone()).or_default().unite(statements);
        }
        if let Some(placed) = &payload.placement {
            self.placements.insert(at, placed.clone());
        }
        if let (Some(table), false) = (&mut self.table, payload.chunks.is_empty()) {
            table.change(&payload.chunks);
        }
        match &payload.migration {
            Some((id, Some(the_move))) => drop(self.migrations.insert(*id, the_move.clone())),
            Some((id, None)) => drop(self.migrations.remove(id)),
            None => {}
        }
    }

    /// The document as of `at`.
    pub fn read(&self, key: Key, at: ClusterTime) -> Value {
        self.there(key, at).unwrap_or_default()
    }

    /// The document as of `at`, if there is one.
    fn there(&self, key: Key, at: ClusterTime) -> Option<Value> {
        self.versions.get(&key).and_then(|of| of.range(..=at).next_back()).and_then(|(_, value)| *value)
    }

    /// The newest version of a document, if there is one.
    pub fn newest(&self, key: Key) -> Option<Value> {
        self.there(key, ClusterTime::from_bits(u64::MAX))
    }

    /// All documents as of `at` that are not marked as arriving or left.
    pub fn visible(&self, at: ClusterTime) -> Vec<(Key, Value)> {
        let placed = self.placement(at);
        let is_hidden = |key: Key| {
            let placement = &placed.placement;
            placement.filters() && {
                let key = shard_key(key);
                placement.receiving.contains(&key) || placement.leaving.contains(&key)
            }
        };
        let all = self.versions.keys().filter_map(|key| Some((*key, self.there(*key, at)?)));
        all.filter(|(key, _)| !is_hidden(*key)).collect()
    }

    /// When the document was last written.
    pub fn changed(&self, key: Key) -> ClusterTime {
        let versions = self.versions.get(&key);
        versions.and_then(|of| of.last_key_value()).map_or(ClusterTime::ZERO, |(at, _)| *at)
    }

    /// Who has prepared a write to one of these documents, or to the placement.
    pub fn holders<'a>(&'a self, keys: &'a [Key]) -> impl Iterator<Item = &'a TransactionId> {
        let holds = |payload: &Payload| {
            payload.placement.is_some() || keys.iter().any(|key| payload.writes.contains_key(key))
        };
        self.prepared.iter().filter(move |(_, payload)| holds(payload)).map(|(id, _)| id)
    }

    /// What the shard owned as of `at`.
    pub fn placement(&self, at: ClusterTime) -> &Arc<Placed> {
        self.placements.range(..=at).next_back().map(|(_, placed)| placed).expect("it begins with one")
    }

    /// What the shard owns.
    pub fn newest_placement(&self) -> Option<&Arc<Placed>> {
        self.placements.last_key_value().map(|(_, placed)| placed)
    }
}

impl Statements {
    /// The higher number wins; statements of one number are united.
    fn unite(&mut self, other: &Statements) {
        if other.number > self.number {
            *self = other.clone();
        } else if other.number == self.number {
            self.executed.extend(&other.executed);
        }
    }
}
