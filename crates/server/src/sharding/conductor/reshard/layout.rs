//! The first chunks of a collection that gets another key: about as much on each shard, and zones where they belong.

use std::collections::BTreeSet;

use sheaf_bson::{DocBuf, RawDoc, Timestamp, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_shard::placement::{Chunk, Key, KeyPattern, Owned, RoutingTable};
use sheaf_shard::{ClusterTime, ShardId};
use sheaf_storage::Interrupt;

use super::begin::Source;
use crate::args::Documents;
use crate::sharding::conductor::Conductor;
use crate::sharding::conductor::ddl::text;
use crate::sharding::conductor::shards::Known;
use crate::sharding::participants::name;

/// A range of a zone.
pub(super) struct Zone {
    pub min: Key,
    pub max: Key,
    pub zone: String,
}

impl Zone {
    /// The document of `config.tags`.
    pub fn tag(&self, namespace: &str) -> DocBuf {
        doc! {
            "_id": Value::ObjectId(sheaf_front::front::new_object_id()), "ns": namespace, "min": self.min.document(),
            "max": self.max.document(), "tag": &self.zone
        }
    }
}

/// `shardDistribution`: the shards, with or without the range of each.
pub(super) struct Distribution {
    parts: Vec<(String, Option<(Key, Key)>)>,
}

impl Distribution {
    /// Errors: `BadValue`, where ranges are not all of the keys, or only some shards have any.
    pub fn parse(pattern: &KeyPattern, list: Documents<'_>) -> Result<Distribution> {
        let mut parts = Vec::new();
        for part in list.iter() {
            let shard = text(part, "shard").to_owned();
            let end = |name: &str| part.get(name).and_then(|end| end.as_doc());
            let ends = match (end("min"), end("max")) {
                (None, None) => None,
                (Some(min), Some(max)) => Some((pattern.key(min)?, pattern.key(max)?)),
                _ => bail!(Code::BAD_VALUE, "a range of shardDistribution has to have a min and a max"),
            };
            parts.push((shard, ends));
        }
        if parts.is_empty() {
            bail!(Code::BAD_VALUE, "shardDistribution must name a shard");
        }
        let with_range = parts.iter().filter(|(_, ends)| ends.is_some()).count();
        if with_range == 0 {
            let shards: BTreeSet<&str> = parts.iter().map(|(shard, _)| shard.as_str()).collect();
            if shards.len() < parts.len() {
                bail!(Code::BAD_VALUE, "shardDistribution names a shard twice");
            }
            return Ok(Distribution { parts });
        }
        if with_range < parts.len() {
            bail!(Code::BAD_VALUE, "ShardDistribution should have all or none of the ranges explicit");
        }
        parts.sort_by(|(_, a), (_, b)| a.as_ref().map(|ends| &ends.0).cmp(&b.as_ref().map(|ends| &ends.0)));
        let mut at = pattern.min();
        for (min, max) in parts.iter().filter_map(|(_, ends)| ends.as_ref()) {
            if *min != at || max <= min {
                bail!(
                    Code::BAD_VALUE,
                    "ShardKeyRanges are not continuous: a range begins at {min}, not at {at}"
                );
            }
            at = max.clone();
        }
        if at != pattern.max() {
            bail!(Code::BAD_VALUE, "ShardKeyRanges do not end at the highest key, but at {at}");
        }
        Ok(Distribution { parts })
    }

    pub fn shards(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|(shard, _)| shard.as_str())
    }
}

/// What the chunks depend on.
pub(super) struct Layout<'l> {
    pub pattern: &'l KeyPattern,
    pub uuid: [u8; 16],
    pub shards: &'l [Known],
    pub primary: &'l str,
    pub zones: &'l [Zone],
    /// How many chunks are wished for.
    pub chunks: Option<usize>,
    pub distribution: Option<&'l Distribution>,
    pub at: ClusterTime,
}

impl Layout<'_> {
    /// Whether the data decide where chunks end.
    pub fn needs_sample(&self) -> bool {
        !self.has_ranges() && self.chunks != Some(1)
    }

    fn has_ranges(&self) -> bool {
        self.distribution.is_some_and(|of| of.parts.iter().any(|(_, ends)| ends.is_some()))
    }

    /// The table, by a sample of the keys in which each stands for as many documents.
    ///
    /// Errors: 4952606, where there are not enough keys for as many chunks as are asked for; `ShardNotFound`.
    pub fn table(&self, sample: Vec<Key>) -> Result<RoutingTable> {
        let mut chunks = Vec::new();
        let mut add = |min: &Key, max: &Key, shard: &str| {
            let lastmod = Timestamp::new(1, chunks.len() as u32);
            let history = vec![Owned { since: self.at, shard: ShardId::new(shard) }];
            chunks.push(Chunk { min: min.clone(), max: max.clone(), lastmod, history });
        };
        let shards = self.recipients()?;
        if self.has_ranges() {
            for (shard, ends) in self.distribution.iter().flat_map(|of| &of.parts) {
                if let Some((min, max)) = ends {
                    add(min, max, shard);
                }
            }
            return RoutingTable::new(self.pattern.clone(), self.uuid, chunks);
        }
        let mut ends: BTreeSet<Key> = self.cuts(sample, self.chunks.unwrap_or(shards.len()))?;
        let by_data = ends.len() + 1;
        if self.chunks.is_some_and(|wished| by_data < wished) {
            bail!(
                4952606,
                "The shard key provided does not have enough cardinality to make the required amount of chunks of {}, it \
                 can only make {by_data} chunks",
                self.chunks.unwrap_or_default()
            );
        }
        for zone in self.zones {
            ends.extend([zone.min.clone(), zone.max.clone()]);
        }
        ends.extend([self.pattern.min(), self.pattern.max()]);
        let ends: Vec<Key> = ends.into_iter().collect();
        for (turn, pair) in ends.windows(2).enumerate() {
            let zone = self.zones.iter().find(|zone| zone.min <= pair[0] && pair[1] <= zone.max);
            let fit: Vec<&&Known> = match zone {
                Some(zone) => shards.iter().filter(|shard| shard.zones.contains(&zone.zone)).collect(),
                None => shards.iter().collect(),
            };
            let Some(shard) = fit.get(turn % fit.len().max(1)) else {
                bail!(4952607, "no shard that is to have the collection belongs to a zone of its ranges");
            };
            add(&pair[0], &pair[1], &shard.name);
        }
        RoutingTable::new(self.pattern.clone(), self.uuid, chunks)
    }

    /// The shards that are to have something, the primary shard first.
    fn recipients(&self) -> Result<Vec<&Known>> {
        let named: Option<BTreeSet<&str>> = self.distribution.map(|of| of.shards().collect());
        let is_meant = |shard: &&Known| match &named {
            Some(named) => named.contains(shard.name.as_str()),
            None => !shard.draining,
        };
        let mut shards: Vec<&Known> = self.shards.iter().filter(is_meant).collect();
        shards.sort_by_key(|shard| shard.name != self.primary);
        if shards.is_empty() {
            bail!(Code::SHARD_NOT_FOUND, "There is no shard that is not draining");
        }
        Ok(shards)
    }

    /// The ends of so many pieces with about as many documents each; fewer, where there are not so many keys.
    fn cuts(&self, mut sample: Vec<Key>, pieces: usize) -> Result<BTreeSet<Key>> {
        sample.sort_unstable();
        let mut cuts = BTreeSet::new();
        let Some(lowest) = sample.first().cloned() else { return Ok(cuts) };
        let mut distinct: Vec<&Key> = sample.iter().collect();
        distinct.dedup();
        if distinct.len() < pieces {
            // Each key has a chunk of its own, the first one's begins at the lowest end.
            return Ok(distinct.into_iter().skip(1).cloned().collect());
        }
        for piece in 1..pieces {
            let from = sample.len() * piece / pieces;
            // The same key is in one piece; the next one that is free will do.
            let cut = sample[from..].iter().find(|key| **key > lowest && !cuts.contains(*key));
            cuts.extend(cut.cloned());
        }
        let mut rest = distinct.into_iter().skip(1).filter(|key| **key > lowest);
        while cuts.len() + 1 < pieces {
            let Some(key) = rest.next() else { break };
            cuts.insert(key.clone());
        }
        Ok(cuts)
    }
}

impl Conductor {
    /// Keys that the collection's documents will have, each standing for about as many.
    pub(super) fn sample(
        &self,
        source: &Source,
        pattern: &KeyPattern,
        go_on: Interrupt<'_>,
    ) -> Result<Vec<Key>> {
        let mut found = Vec::new();
        for donor in source.donors() {
            let donor = donor.as_raw();
            let command = doc! {
                (name::SAMPLE_FOR): &source.namespace, "uuid": super::uuid_value(&source.uuid),
                "keys": donor.get("keys").unwrap_or(Value::Missing), "newKey": pattern.document()
            };
            let told = self.tell(text(donor, "shard"), &command, go_on)?;
            let every = told.as_raw().get("every").and_then(|every| every.as_exact_i64()).unwrap_or(1);
            let list = told.as_raw().get("sample").and_then(|list| list.as_array()).unwrap_or(RawDoc::EMPTY);
            let keys: Result<Vec<Key>> =
                list.values().filter_map(|key| key.as_doc()).map(|key| pattern.key(key)).collect();
            found.push((every.max(1) as usize, keys?));
        }
        // Every key stands for as many as those of the shard with the thinnest sample.
        let every = found.iter().map(|(every, _)| *every).max().unwrap_or(1);
        let thinned =
            found.into_iter().flat_map(|(own, keys)| keys.into_iter().step_by((every / own).max(1)));
        Ok(thinned.collect())
    }
}
