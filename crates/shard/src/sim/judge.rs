//! The judge: holds what clients were told and what they read against all versions of all documents by commit time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::LogRecord;
use crate::time::ClusterTime;
use crate::transaction::{Outcome, Record};
use crate::types::TransactionId;

use super::directory::{Placed, Table, shard_id};
use super::message::{Change, Op, Seen};
use super::plan::Plan;
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
    prepared: BTreeMap<TransactionId, (ClusterTime, Payload)>,
    /// What the shard owned, by commit time.
    placements: BTreeMap<ClusterTime, Arc<Placed>>,
}

pub(super) struct Judge {
    shards: Vec<ShardLog>,
    outcomes: BTreeMap<TransactionId, Outcome>,
    stories: BTreeMap<TransactionId, Story>,
    /// All versions that logs have on majorities.
    versions: BTreeMap<Key, BTreeMap<ClusterTime, Value>>,
    /// How many documents a scan is to find, or what never was: where scans go through what shards have.
    all_keys: Option<u64>,
    scans: Vec<(ClusterTime, Vec<Seen>)>,
    /// The directory, by commit time.
    tables: BTreeMap<ClusterTime, Table>,
    /// Executions of plain writes: more than one, if the log of a primary that was replaced had the others.
    plain: BTreeMap<u64, Vec<Written>>,
    /// Plain writes that were acknowledged.
    acknowledged: Vec<(Key, u64)>,
}

impl Judge {
    pub fn new(plan: &Plan) -> Self {
        let log = |set| ShardLog { placements: plan.first_store(set).placements, ..ShardLog::default() };
        let table = plan.moves.then(|| plan.first_store(plan.config()).table).flatten();
        Judge {
            shards: (0..plan.sets()).map(log).collect(),
            tables: table.map(|table| (ClusterTime::ZERO, table)).into_iter().collect(),
            outcomes: BTreeMap::new(),
            stories: BTreeMap::new(),
            versions: BTreeMap::new(),
            all_keys: plan.moves.then_some(plan.keys),
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
        match payload.record.clone() {
            None => self.put(shard, time, payload),
            Some(LogRecord::Transaction(Record::Alone { id })) => {
                self.put(shard, time, payload)?;
                self.outcome(&id, Outcome::Committed(time))
            }
            Some(LogRecord::Transaction(Record::Prepare { id, .. })) => {
                self.shards[shard].prepared.insert(id, (time, payload));
                Ok(())
            }
            Some(LogRecord::Transaction(Record::Commit { id, at })) => {
                let Some((prepared, payload)) = self.shards[shard].prepared.remove(&id) else {
                    return Err(format!("shard {shard} commits {id:?}, which it has not prepared"));
                };
                if at < prepared || at >= time {
                    return Err(format!(
                        "{id:?}: prepared {prepared}, committed as of {at} by an entry of {time}"
                    ));
                }
                self.put(shard, at, payload)?;
                self.outcome(&id, Outcome::Committed(at))
            }
            Some(LogRecord::Transaction(Record::Abort { id })) => {
                self.shards[shard].prepared.remove(&id);
                self.outcome(&id, Outcome::Aborted)
            }
            Some(LogRecord::Transaction(Record::Settled { .. }) | LogRecord::Ceiling(_)) => Ok(()),
        }
    }

    fn put(&mut self, shard: usize, at: ClusterTime, payload: Payload) -> Check {
        if let Some(placed) = payload.placement {
            self.shards[shard].placements.insert(at, placed);
        }
        if !payload.chunks.is_empty()
            && let Some((_, table)) = self.tables.last_key_value()
        {
            let mut table = table.clone();
            table.change(&payload.chunks);
            self.tables.insert(at, table);
        }
        for (key, value) in payload.writes {
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
        let written = Written { before, after: change.of(before) };
        self.plain.entry(change.writer).or_default().push(written);
    }

    /// A plain write was acknowledged.
    pub fn written(&mut self, change: Change, _before: Value) {
        self.acknowledged.push((change.key, change.writer));
    }

    /// A scan was answered.
    pub fn scanned(&mut self, at: ClusterTime, after: ClusterTime, seen: &[Seen]) -> Check {
        let mut all = seen.to_vec();
        if let Some(keys) = self.all_keys {
            let there: BTreeSet<Key> = seen.iter().map(|seen| seen.key).collect();
            if there.len() < seen.len() {
                return Err(format!("a scan at {at} has seen a document twice: {seen:?}"));
            }
            let missing = (0..keys).filter(|key| !there.contains(key));
            all.extend(missing.map(|key| Seen { key, value: Value::default() }));
        }
        self.scans.push((at, all));
        if at < after {
            return Err(format!("a scan at {at} by one who has committed at {after}"));
        }
        let sum: i64 = seen.iter().map(|seen| seen.value.balance).sum();
        if sum == 0 { Ok(()) } else { Err(format!("a scan at {at} finds a sum of {sum}")) }
    }

    /// The cluster is at rest: everything is known.
    pub fn finish(&self) -> Check {
        self.check_owners()?;
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

    /// At every time each key has one owner, and the directory agrees.
    fn check_owners(&self) -> Check {
        let times = self.shards.iter().flat_map(|log| log.placements.keys()).chain(self.tables.keys());
        for at in times.copied().collect::<BTreeSet<ClusterTime>>() {
            let Some((_, table)) = self.tables.range(..=at).next_back() else { return Ok(()) };
            for (number, log) in self.shards.iter().enumerate() {
                let Some((_, placed)) = log.placements.range(..=at).next_back() else { continue };
                let (shard, placement) = (shard_id(number), &placed.placement);
                let told = table.0.ranges_of(&shard);
                if told != placement.owned {
                    let owned = &placement.owned;
                    return Err(format!("{shard} owns {owned:?} at {at}, and the directory says {told:?}"));
                }
                let version = table.0.version_of(&shard);
                if !told.is_empty() && !version.is_same_ownership(placement.version) {
                    return Err(format!("{shard} has {placement:?} at {at}, and the directory {version}"));
                }
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
        let mut plain_writers = BTreeSet::new();
        for (at, value) in versions {
            let of_transaction = expected.remove(&value.writer);
            let plain = || {
                let executions = self.plain.get(&value.writer)?;
                let fits =
                    executions.iter().find(|written| written.before == before && written.after == *value);
                Some((key, None, *fits.or(executions.first())?))
            };
            if of_transaction.is_none() && !plain_writers.insert(value.writer) {
                return Err(format!("document {key} has {value:?} again at {at}: it was executed twice"));
            }
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
