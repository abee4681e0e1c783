//! The directory's view of a collection.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use sheaf_bson::{Timestamp, uuid_text};
use sheaf_errors::{Code, Error, Result};

use crate::time::ClusterTime;
use crate::types::ShardId;

use super::{Belief, Key, KeyPattern, KeyRange, Ranges};

/// The version of a collection's ranges, all of them or a shard's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The collection's UUID: it changes when the collection is dropped or resharded.
    pub uuid: [u8; 16],
    /// Major and minor number of the last change. Zero: nothing was ever owned.
    pub lastmod: Timestamp,
}

impl Version {
    /// The version of a shard that never owned anything of the collection.
    pub fn none(uuid: [u8; 16]) -> Self {
        Version { uuid, lastmod: Timestamp(0) }
    }

    /// Whether a shard owns the same as of both: splits and merges change the minor number only. Where nothing is owned (major 0), the
    /// minor number tells why.
    pub fn is_same_ownership(self, other: Version) -> bool {
        let majors = (self.lastmod.seconds(), other.lastmod.seconds());
        let is_same = majors.0 == majors.1 && (majors.0 != 0 || self.lastmod == other.lastmod);
        self.uuid == other.uuid && is_same
    }

    /// The version after a move: documents change their owner.
    #[must_use]
    pub fn next_major(self) -> Self {
        Version { lastmod: Timestamp::new(self.lastmod.seconds() + 1, 0), ..self }
    }

    /// The version after a split or merge: no document does.
    #[must_use]
    pub fn next_minor(self) -> Self {
        Version { lastmod: Timestamp::new(self.lastmod.seconds(), self.lastmod.increment() + 1), ..self }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}|{}||{}", self.lastmod.seconds(), self.lastmod.increment(), uuid_text(self.uuid))
    }
}

/// Since when a shard has owned a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// `validAfter`: as of this time, until that of the entry before it.
    pub since: ClusterTime,
    /// Who.
    pub shard: ShardId,
}

/// A range as `config.chunks` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The lowest key.
    pub min: Key,
    /// Before what it ends.
    pub max: Key,
    /// When it was last changed.
    pub lastmod: Timestamp,
    /// Its owners, the newest first; the first is the owner now.
    pub history: Vec<Owned>,
}

impl Chunk {
    /// The owner.
    pub fn shard(&self) -> &ShardId {
        &self.history[0].shard
    }

    /// The owner at a time; none where the history does not reach back so far.
    pub fn shard_at(&self, at: ClusterTime) -> Option<&ShardId> {
        self.history.iter().find(|owned| owned.since <= at).map(|owned| &owned.shard)
    }
}

/// Which shard owns what of a sharded collection, now and before.
#[derive(Clone, Debug)]
pub struct RoutingTable {
    pattern: KeyPattern,
    uuid: [u8; 16],
    /// By `min`, without gaps.
    chunks: Vec<Chunk>,
    versions: BTreeMap<ShardId, Timestamp>,
    lastmod: Timestamp,
    changed_at: ClusterTime,
}

impl RoutingTable {
    /// The table of these chunks.
    ///
    /// Errors: `ConflictingOperationInProgress`, if they leave gaps or overlap: they were read while they changed.
    pub fn new(pattern: KeyPattern, uuid: [u8; 16], mut chunks: Vec<Chunk>) -> Result<Self> {
        chunks.sort_by(|a, b| a.min.cmp(&b.min));
        let mut end = pattern.min();
        for chunk in &chunks {
            if chunk.min != end || chunk.max <= chunk.min || chunk.history.is_empty() {
                return Err(torn(format!("a chunk from {} on, where one from {end} on belongs", chunk.min)));
            }
            end = chunk.max.clone();
        }
        if end != pattern.max() {
            return Err(torn(format!("no chunk from {end} on")));
        }
        let changed_at = chunks.iter().map(|chunk| chunk.history[0].since).max().unwrap_or_default();
        let (versions, lastmod) = (BTreeMap::new(), Timestamp(0));
        let mut table = RoutingTable { pattern, uuid, chunks, versions, lastmod, changed_at };
        for chunk in &table.chunks {
            let of = table.versions.entry(chunk.shard().clone()).or_insert(chunk.lastmod);
            *of = (*of).max(chunk.lastmod);
            table.lastmod = table.lastmod.max(chunk.lastmod);
        }
        Ok(table)
    }

    /// The table after these chunks have changed since: they take the place of all that they overlap.
    ///
    /// Errors: as [`RoutingTable::new`].
    pub fn changed(&self, chunks: Vec<Chunk>) -> Result<Self> {
        let ranges: Vec<KeyRange> = chunks.iter().map(|chunk| self.range(chunk)).collect();
        let stays = |chunk: &&Chunk| {
            let own = self.range(chunk);
            !ranges.iter().any(|range| range.overlaps(&own))
        };
        let kept = self.chunks.iter().filter(stays).cloned();
        RoutingTable::new(self.pattern.clone(), self.uuid, kept.chain(chunks).collect())
    }

    /// The shard key.
    pub fn pattern(&self) -> &KeyPattern {
        &self.pattern
    }

    /// The chunks by `min`.
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// The version of the whole collection: that of the last change.
    pub fn version(&self) -> Version {
        Version { uuid: self.uuid, lastmod: self.lastmod }
    }

    /// The version that requests to this shard carry.
    pub fn version_of(&self, shard: &ShardId) -> Version {
        let lastmod = self.versions.get(shard).copied().unwrap_or(Timestamp(0));
        Version { uuid: self.uuid, lastmod }
    }

    /// The shards that own something.
    pub fn shards(&self) -> impl Iterator<Item = &ShardId> {
        self.versions.keys()
    }

    /// The chunk that a key belongs to.
    pub fn chunk_of(&self, key: &Key) -> &Chunk {
        self.chunk_at(key.order())
    }

    /// The chunk that the key with these order bytes belongs to.
    pub fn chunk_at(&self, order: &[u8]) -> &Chunk {
        let behind = self.chunks.partition_point(|chunk| chunk.min.order() <= order);
        &self.chunks[behind.saturating_sub(1)]
    }

    /// Who owns a key now.
    pub fn owner(&self, key: &Key) -> &ShardId {
        self.chunk_of(key).shard()
    }

    /// The shards that own keys in these ranges; all of them as of `at`, if one is given.
    ///
    /// Errors: `StaleChunkHistory`, if the history does not reach back so far.
    pub fn owners(&self, ranges: &Ranges, at: Option<ClusterTime>) -> Result<BTreeSet<&ShardId>> {
        let mut owners = BTreeSet::new();
        for range in ranges.as_slice() {
            let first =
                self.chunks.partition_point(|chunk| chunk.min.order() <= range.low()).saturating_sub(1);
            let touched = self.chunks[first..].iter();
            for chunk in touched.take_while(|chunk| range.high().is_none_or(|high| chunk.min.order() < high))
            {
                let owner = match at {
                    None => Some(chunk.shard()),
                    Some(at) => chunk.shard_at(at),
                };
                owners.insert(owner.ok_or_else(|| no_history(chunk))?);
            }
        }
        Ok(owners)
    }

    /// What a shard owns, neighbouring chunks as one range: what it knows of the collection itself.
    pub fn ranges_of(&self, shard: &ShardId) -> Ranges {
        Ranges::new(self.chunks.iter().filter(|chunk| chunk.shard() == shard).map(|chunk| self.range(chunk)))
    }

    /// What a shard owned as of `at`.
    ///
    /// Errors: `StaleChunkHistory`, if the history does not reach back so far.
    pub fn ranges_at(&self, shard: &ShardId, at: ClusterTime) -> Result<Ranges> {
        let mut ranges = Vec::new();
        for chunk in &self.chunks {
            if chunk.shard_at(at).ok_or_else(|| no_history(chunk))? == shard {
                ranges.push(self.range(chunk));
            }
        }
        Ok(Ranges::new(ranges))
    }

    /// When a range last got another owner, by the history.
    pub fn changed_at(&self) -> ClusterTime {
        self.changed_at
    }

    /// What a request to this shard says of it: one that reads as of `at`, or now.
    ///
    /// The version tells more than the history, whose times are a little below those as of which moves have committed: who reads between the
    /// two is refused by the shard, which did not own the range yet.
    ///
    /// Errors: `StaleChunkHistory`, if the history does not reach back so far.
    pub fn belief(&self, shard: &ShardId, at: Option<ClusterTime>) -> Result<Belief> {
        match at.filter(|at| *at < self.changed_at) {
            None => Ok(Belief::Version(self.version_of(shard))),
            Some(at) => {
                let fingerprint = self.ranges_at(shard, at)?.fingerprint();
                Ok(Belief::Owned { uuid: self.uuid, fingerprint })
            }
        }
    }

    /// A chunk's keys.
    pub fn range(&self, chunk: &Chunk) -> KeyRange {
        KeyRange::new(&chunk.min, &chunk.max, chunk.max == self.pattern.max())
    }
}

fn torn(what: String) -> Error {
    let text = format!("the collection's chunks do not fit together: {what}");
    Error::new(Code::CONFLICTING_OPERATION_IN_PROGRESS, text)
}

fn no_history(chunk: &Chunk) -> Error {
    let text = format!("it is not known any more who owned the chunk from {} on at that time", chunk.min);
    Error::new(Code::STALE_CHUNK_HISTORY, text)
}
