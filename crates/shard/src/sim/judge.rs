//! The judge: holds what clients were told and what they read against all versions of all documents by commit time.

use std::collections::BTreeMap;

use crate::LogRecord;
use crate::time::ClusterTime;
use crate::transaction::{Outcome, Record};
use crate::types::TransactionId;

use super::message::{Change, Op, Seen};
use super::store::{Key, Payload, Value};

type Check = Result<(), String>;

/// A write as its client knows it: what was there, and what it made of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    before: Value,
    after: Value,
}

/// What a client knows of a transaction when it asks for the commit.
#[derive(Clone, Debug, Default)]
pub(super) struct Story {
    read_at: Option<ClusterTime>,
    /// It must read at a time after this.
    after: ClusterTime,
    reads: Vec<Seen>,
    pub writes: BTreeMap<Key, Written>,
}

impl Story {
    pub fn new(after: ClusterTime) -> Self {
        Story { after, ..Story::default() }
    }

    /// Whether no statement was executed.
    pub fn is_new(&self) -> bool {
        self.read_at.is_none()
    }

    /// A statement has been executed.
    pub fn note(&mut self, read_at: ClusterTime, op: &Op, seen: &[Seen]) {
        self.read_at = Some(read_at);
        for seen in seen {
            match op.write.filter(|write| write.key == seen.key) {
                Some(write) => drop(
                    self.writes.insert(seen.key, Written { before: seen.value, after: write.of(seen.value) }),
                ),
                None => self.reads.push(*seen),
            }
        }
    }
}

/// What one shard's log has on a majority.
#[derive(Debug, Default)]
struct ShardLog {
    known: u64,
    prepared: BTreeMap<TransactionId, (ClusterTime, BTreeMap<Key, Value>)>,
}

pub(super) struct Judge {
    shards: Vec<ShardLog>,
    outcomes: BTreeMap<TransactionId, Outcome>,
    stories: BTreeMap<TransactionId, Story>,
    /// All versions that logs have on majorities.
    versions: BTreeMap<Key, BTreeMap<ClusterTime, Value>>,
    scans: Vec<(ClusterTime, Vec<Seen>)>,
    plain: BTreeMap<u64, Written>,
    /// Plain writes that were acknowledged.
    acknowledged: Vec<(Key, u64)>,
}

impl Judge {
    pub fn new(shards: usize) -> Self {
        Judge {
            shards: (0..shards).map(|_| ShardLog::default()).collect(),
            outcomes: BTreeMap::new(),
            stories: BTreeMap::new(),
            versions: BTreeMap::new(),
            scans: Vec::new(),
            plain: BTreeMap::new(),
            acknowledged: Vec::new(),
        }
    }

    /// Up to which index the judge knows this shard's log.
    pub fn known(&self, shard: usize) -> u64 {
        self.shards[shard].known
    }

    /// The next entry of a shard's log is on a majority.
    pub fn entry(&mut self, shard: usize, index: u64, time: ClusterTime, payload: Option<Payload>) -> Check {
        self.shards[shard].known = index;
        let Some(payload) = payload else { return Ok(()) };
        match payload.record {
            None => self.put(time, payload.writes),
            Some(LogRecord::Transaction(Record::Alone { id })) => {
                self.put(time, payload.writes)?;
                self.outcome(&id, Outcome::Committed(time))
            }
            Some(LogRecord::Transaction(Record::Prepare { id, .. })) => {
                self.shards[shard].prepared.insert(id, (time, payload.writes));
                Ok(())
            }
            Some(LogRecord::Transaction(Record::Commit { id, at })) => {
                let Some((prepared, writes)) = self.shards[shard].prepared.remove(&id) else {
                    return Err(format!("shard {shard} commits {id:?}, which it has not prepared"));
                };
                if at < prepared || at >= time {
                    return Err(format!(
                        "{id:?}: prepared {prepared}, committed as of {at} by an entry of {time}"
                    ));
                }
                self.put(at, writes)?;
                self.outcome(&id, Outcome::Committed(at))
            }
            Some(LogRecord::Transaction(Record::Abort { id })) => {
                self.shards[shard].prepared.remove(&id);
                self.outcome(&id, Outcome::Aborted)
            }
            Some(LogRecord::Transaction(Record::Settled { .. }) | LogRecord::Ceiling(_)) => Ok(()),
        }
    }

    fn put(&mut self, at: ClusterTime, writes: BTreeMap<Key, Value>) -> Check {
        for (key, value) in writes {
            if let Some(other) = self.versions.entry(key).or_default().insert(at, value) {
                return Err(format!("document {key} has {other:?} and {value:?} at {at}"));
            }
        }
        Ok(())
    }

    /// One outcome, one commit time.
    fn outcome(&mut self, id: &TransactionId, outcome: Outcome) -> Check {
        match self.outcomes.insert(id.clone(), outcome) {
            Some(other) if other != outcome => Err(format!("{id:?} is {other:?} and {outcome:?}")),
            _ => Ok(()),
        }
    }

    /// A member applies a commit: it is certain, though the entry may not be on a majority yet.
    pub fn committed(&mut self, id: &TransactionId, at: ClusterTime) -> Check {
        self.outcome(id, Outcome::Committed(at))
    }

    pub fn asked_to_commit(&mut self, id: &TransactionId, story: Story) {
        self.stories.insert(id.clone(), story);
    }

    /// A client was told an outcome. What only read commits as of its own time, nowhere.
    pub fn told(&mut self, id: &TransactionId, outcome: Outcome) -> Check {
        self.outcome(id, outcome)
    }

    /// A plain write was proposed.
    pub fn plain(&mut self, change: Change, before: Value) {
        self.plain.insert(change.writer, Written { before, after: change.of(before) });
    }

    /// A plain write was acknowledged.
    pub fn written(&mut self, change: Change, _before: Value) {
        self.acknowledged.push((change.key, change.writer));
    }

    /// A scan was answered.
    pub fn scanned(&mut self, at: ClusterTime, after: ClusterTime, seen: &[Seen]) -> Check {
        self.scans.push((at, seen.to_vec()));
        if at < after {
            return Err(format!("a scan at {at} by one who has committed at {after}"));
        }
        let sum: i64 = seen.iter().map(|seen| seen.value.balance).sum();
        if sum == 0 { Ok(()) } else { Err(format!("a scan at {at} finds a sum of {sum}")) }
    }

    /// The cluster is at rest: everything is known.
    pub fn finish(&self) -> Check {
        for (at, seen) in &self.scans {
            self.check_reads("a scan", *at, seen)?;
        }
        let mut expected: BTreeMap<u64, (Key, Option<ClusterTime>, Written)> = BTreeMap::new();
        for (id, story) in &self.stories {
            self.check_story(id, story, &mut expected)?;
        }
        for (key, versions) in &self.versions {
            self.check_history(*key, versions, &mut expected)?;
        }
        if let Some((_, (key, at, lost))) = expected.iter().next() {
            return Err(format!("document {key} has not got {:?} at {at:?}", lost.after));
        }
        for (key, writer) in &self.acknowledged {
            if !self.versions.get(key).is_some_and(|of| of.values().any(|value| value.writer == *writer)) {
                return Err(format!("document {key} has lost plain write {writer}, which was acknowledged"));
            }
        }
        Ok(())
    }

    fn at(&self, key: Key, at: ClusterTime) -> Value {
        let versions = self.versions.get(&key);
        versions.and_then(|of| of.range(..=at).next_back()).map(|(_, value)| *value).unwrap_or_default()
    }

    fn check_reads(&self, who: &str, at: ClusterTime, seen: &[Seen]) -> Check {
        for seen in seen {
            let (key, value, truth) = (seen.key, seen.value, self.at(seen.key, at));
            if value != truth {
                return Err(format!(
                    "{who} at {at} has seen {value:?} in document {key}, where {truth:?} was"
                ));
            }
        }
        Ok(())
    }

    /// What has committed has read at its time, all of it, and its writes are to be found.
    fn check_story(
        &self,
        id: &TransactionId,
        story: &Story,
        expected: &mut BTreeMap<u64, (Key, Option<ClusterTime>, Written)>,
    ) -> Check {
        let outcome = self.outcomes.get(id).copied();
        let (Some(Outcome::Committed(at)), Some(read_at)) = (outcome, story.read_at) else { return Ok(()) };
        if read_at < story.after {
            return Err(format!("{id:?} reads at {read_at}, after its client's commit at {}", story.after));
        }
        self.check_reads(&format!("{id:?}"), read_at, &story.reads)?;
        for (key, written) in &story.writes {
            expected.insert(written.after.writer, (*key, Some(at), *written));
        }
        Ok(())
    }

    /// Every version was written once, by a write that saw the one before it.
    fn check_history(
        &self,
        key: Key,
        versions: &BTreeMap<ClusterTime, Value>,
        expected: &mut BTreeMap<u64, (Key, Option<ClusterTime>, Written)>,
    ) -> Check {
        let mut before = Value::default();
        for (at, value) in versions {
            let of_transaction = expected.remove(&value.writer);
            let plain = || self.plain.get(&value.writer).map(|written| (key, None, *written));
            let Some((to, committed, written)) = of_transaction.or_else(plain) else {
                return Err(format!("document {key} has {value:?} at {at}, which nobody has committed"));
            };
            if to != key || committed.is_some_and(|committed| committed != *at) || written.after != *value {
                return Err(format!(
                    "document {key} has {value:?} at {at}, written as {written:?} at {committed:?}"
                ));
            }
            if written.before != before {
                let saw = written.before;
                return Err(format!("document {key} was {before:?} before {at}, and its writer saw {saw:?}"));
            }
            before = *value;
        }
        Ok(())
    }

    /// What is prepared on a majority, and not decided.
    pub fn in_doubt(&self) -> Option<String> {
        let (shard, id) = self
            .shards
            .iter()
            .enumerate()
            .find_map(|(shard, log)| log.prepared.keys().next().map(|id| (shard, id)))?;
        Some(format!("{id:?} is in doubt on shard {shard}"))
    }
}
