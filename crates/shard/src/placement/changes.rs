//! What splits, merges and moves make of a table: the chunks that change, for `config.chunks` and [`RoutingTable::changed`].

use std::collections::BTreeMap;

use sheaf_bson::{Timestamp, Value};
use sheaf_errors::{Error, Result};

use crate::time::ClusterTime;
use crate::types::ShardId;

use super::{Chunk, Key, KeyPattern, Owned, RoutingTable, Version};

/// For so long back the owners of a chunk are told: longer than anybody keeps a state to be read.
const HISTORY_SECS: u64 = 600;

impl RoutingTable {
    /// The table of a new collection, cut at these keys, its ranges owned by the shards in turn as of `at`.
    ///
    /// Errors: `BadValue`, if the keys are not in order or there is no shard.
    pub fn create(
        pattern: KeyPattern,
        uuid: [u8; 16],
        cuts: &[Key],
        shards: &[ShardId],
        at: ClusterTime,
    ) -> Result<RoutingTable> {
        if shards.is_empty() {
            return Err(Error::bad_value("there is no shard to own the collection"));
        }
        let mut ends = vec![pattern.min()];
        ends.extend(cuts.iter().cloned());
        ends.push(pattern.max());
        if ends.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(Error::bad_value("the keys to cut at are not in order"));
        }
        let owners = shards.iter().cycle();
        let chunks = ends.windows(2).zip(owners).zip(0..).map(|((pair, shard), minor)| Chunk {
            min: pair[0].clone(),
            max: pair[1].clone(),
            lastmod: Timestamp::new(1, minor),
            history: vec![Owned { since: at, shard: shard.clone() }],
        });
        RoutingTable::new(pattern.clone(), uuid, chunks.collect())
    }

    /// Cuts the chunks at these keys. Where there is an end already, nothing is cut. The pieces keep the major version of their chunk: no
    /// shard's ownership has changed.
    pub fn split(&self, cuts: &[Key]) -> Vec<Chunk> {
        let mut minors = BTreeMap::new();
        let mut changed = Vec::new();
        for chunk in self.chunks() {
            let mut ends: Vec<&Key> =
                cuts.iter().filter(|key| chunk.min < **key && **key < chunk.max).collect();
            if ends.is_empty() {
                continue;
            }
            ends.sort_unstable();
            ends.dedup();
            ends.insert(0, &chunk.min);
            ends.push(&chunk.max);
            let major = chunk.lastmod.seconds();
            let minor = minors.entry(major).or_insert_with(|| self.minor(major));
            for pair in ends.windows(2) {
                *minor += 1;
                let (min, max) = (pair[0].clone(), pair[1].clone());
                let lastmod = Timestamp::new(major, *minor);
                changed.push(Chunk { min, max, lastmod, history: chunk.history.clone() });
            }
        }
        changed
    }

    /// Makes one chunk of all from `min` to `max`. It has the newest of their beginnings: before that, some had another owner.
    ///
    /// Errors: `BadValue`, if these are no ends of chunks, or the chunks are not one shard's.
    pub fn merge(&self, min: &Key, max: &Key) -> Result<Chunk> {
        let merged: Vec<&Chunk> =
            self.chunks().iter().filter(|chunk| *min <= chunk.min && chunk.max <= *max).collect();
        let (Some(first), Some(last)) = (merged.first(), merged.last()) else {
            return Err(Error::bad_value(format!("no chunk lies between {min} and {max}")));
        };
        if first.min != *min || last.max != *max {
            return Err(Error::bad_value(format!("{min} and {max} are not ends of chunks")));
        }
        if merged.iter().any(|chunk| chunk.shard() != first.shard()) {
            return Err(Error::bad_value(format!("the chunks between {min} and {max} are not one shard's")));
        }
        let newest = merged.iter().map(|chunk| &chunk.history[0]).max_by_key(|owned| owned.since);
        let major = merged.iter().map(|chunk| chunk.lastmod.seconds()).max().unwrap_or(0);
        let lastmod = Timestamp::new(major, self.minor(major) + 1);
        Ok(Chunk {
            min: min.clone(),
            max: max.clone(),
            lastmod,
            history: newest.cloned().into_iter().collect(),
        })
    }

    /// The highest minor version of this major one.
    fn minor(&self, major: u32) -> u32 {
        let of_major = self.chunks().iter().filter(|chunk| chunk.lastmod.seconds() == major);
        of_major.map(|chunk| chunk.lastmod.increment()).max().unwrap_or(0)
    }

    /// The chunk in which the keys from `min` to `max` lie.
    ///
    /// Errors: `BadValue`, if they are of more than one.
    pub fn only_chunk_of(&self, min: &Key, max: &Key) -> Result<&Chunk> {
        let chunk = self.chunk_of(min);
        if min >= max || *max > chunk.max {
            return Err(Error::bad_value(format!("the keys from {min} to {max} do not lie in one chunk")));
        }
        Ok(chunk)
    }

    /// Gives the keys from `min` to `max` to another shard as of `at`; the chunk that they lie in is cut there. One of the chunks that its
    /// owner keeps gets a new version too, so that requests which do not know of the move are stale there.
    ///
    /// Errors: `BadValue`, if they are of more than one chunk, or that shard's already.
    pub fn move_range(&self, min: &Key, max: &Key, to: &ShardId, at: ClusterTime) -> Result<Vec<Chunk>> {
        let chunk = self.only_chunk_of(min, max)?;
        if chunk.shard() == to {
            return Err(Error::bad_value(format!("the keys from {min} to {max} are on {to} already")));
        }
        let mut version = self.version().next_major();
        let mut history = chunk.history.clone();
        history.insert(0, Owned { since: at, shard: to.clone() });
        let begun = history.iter().position(|owned| owned.since.seconds() + HISTORY_SECS <= at.seconds());
        history.truncate(begun.map_or(usize::MAX, |oldest| oldest + 1));
        let moved = Chunk { min: min.clone(), max: max.clone(), lastmod: version.lastmod, history };
        let rests = [(chunk.min.clone(), min.clone()), (max.clone(), chunk.max.clone())];
        let mut kept: Vec<Chunk> = rests
            .into_iter()
            .filter(|(min, max)| min < max)
            .map(|(min, max)| Chunk { min, max, ..chunk.clone() })
            .collect();
        if kept.is_empty() {
            let other =
                self.chunks().iter().find(|other| other.shard() == chunk.shard() && other.min != chunk.min);
            kept.extend(other.cloned());
        }
        for chunk in &mut kept {
            version = version.next_minor();
            chunk.lastmod = version.lastmod;
        }
        kept.insert(0, moved);
        Ok(kept)
    }
}

impl KeyPattern {
    /// Keys that cut the hashes of a hashed field, if it is the first, into so many parts of the same size.
    pub fn hash_cuts(&self, parts: u32) -> Vec<Key> {
        if !self.fields()[0].hashed || parts == 0 {
            return Vec::new();
        }
        let size = (1_i128 << 64) / i128::from(parts);
        let cut = |part: u32| i128::from(i64::MIN) + size * i128::from(part);
        let key = |part: u32| {
            let rest = self.fields()[1..].iter().map(|_| Value::MinKey);
            let hash = i64::try_from(cut(part)).unwrap_or(i64::MAX);
            Key::of(self, std::iter::once(Value::Int64(hash)).chain(rest))
        };
        (1..parts).map(key).collect()
    }
}

impl Version {
    /// Whether something was ever owned as of this version.
    pub fn is_set(self) -> bool {
        self.lastmod != Timestamp(0)
    }
}
