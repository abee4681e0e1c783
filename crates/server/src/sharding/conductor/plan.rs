//! The first chunks of a collection.

use sheaf_bson::Timestamp;
use sheaf_errors::{Code, Result, bail};
use sheaf_shard::placement::{Chunk, Key, KeyPattern, Owned, RoutingTable};
use sheaf_shard::{ClusterTime, ShardId};

use super::shards::Known;

/// A range of shard keys that belongs on a zone's shards.
pub(super) struct ZoneRange {
    /// The lowest key.
    pub min: Key,
    /// Before what it ends.
    pub max: Key,
    /// The zone's name.
    pub zone: String,
}

/// What the first chunks depend on.
pub(super) struct Beginning<'b> {
    /// The shard key.
    pub pattern: &'b KeyPattern,
    /// The collection.
    pub uuid: [u8; 16],
    /// Whether it has no documents; what has stays where it is.
    pub empty: bool,
    /// The shards of the cluster.
    pub shards: &'b [Known],
    /// The database's.
    pub primary: &'b str,
    /// The zones of the collection, in order.
    pub zones: &'b [ZoneRange],
    /// As of when.
    pub at: ClusterTime,
}

impl Beginning<'_> {
    /// The table of a new collection: a range for each zone and, in turn, for each shard between them; without zones a range of hashes
    /// for each shard, or all keys on the primary shard.
    ///
    /// Errors: `CannotImplicitlyCreateCollection` and the like never; `ShardNotFound`, if a zone that has a range has no shard.
    pub fn table(&self) -> Result<RoutingTable> {
        let all: Vec<&Known> = self.shards.iter().filter(|shard| !shard.draining).collect();
        let primary = ShardId::new(self.primary);
        if !self.empty || all.is_empty() {
            return RoutingTable::create(self.pattern.clone(), self.uuid, &[], &[primary], self.at);
        }
        if !self.zones.is_empty() {
            return self.by_zones(&all);
        }
        // The primary shard has the first range, whatever its name.
        let mut shards: Vec<ShardId> = vec![primary];
        shards.extend(
            all.iter().filter(|shard| shard.name != self.primary).map(|shard| ShardId::new(&*shard.name)),
        );
        let cuts = self.pattern.hash_cuts(shards.len() as u32);
        let owners = if cuts.is_empty() { &shards[..1] } else { &shards[..] };
        RoutingTable::create(self.pattern.clone(), self.uuid, &cuts, owners, self.at)
    }

    fn by_zones(&self, all: &[&Known]) -> Result<RoutingTable> {
        let mut chunks = Vec::new();
        let mut turn = 0;
        let mut add = |min: &Key, max: &Key, shards: &[&Known]| {
            let shard = ShardId::new(&*shards[turn % shards.len()].name);
            turn += 1;
            let lastmod = Timestamp::new(1, chunks.len() as u32);
            let history = vec![Owned { since: self.at, shard }];
            chunks.push(Chunk { min: min.clone(), max: max.clone(), lastmod, history });
        };
        let mut end = self.pattern.min();
        for range in self.zones {
            if end < range.min {
                add(&end, &range.min, all);
            }
            let of: Vec<&Known> =
                all.iter().copied().filter(|shard| shard.zones.contains(&range.zone)).collect();
            if of.is_empty() {
                bail!(
                    Code::SHARD_NOT_FOUND,
                    "no shards found that belong to zone {}: it has a range of the collection's keys",
                    range.zone
                );
            }
            add(&range.min, &range.max, &of);
            end = range.max.clone();
        }
        if end < self.pattern.max() {
            add(&end, &self.pattern.max(), all);
        }
        RoutingTable::new(self.pattern.clone(), self.uuid, chunks)
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::doc;

    use super::*;

    fn shards() -> Vec<Known> {
        let known = |name: &str, zones: &[&str]| Known {
            name: name.to_owned(),
            draining: false,
            zones: zones.iter().map(|zone| (*zone).to_owned()).collect(),
        };
        vec![known("s0", &[]), known("s1", &["wet"]), known("s2", &["wet"])]
    }

    fn table(pattern: &KeyPattern, empty: bool, zones: &[ZoneRange]) -> Vec<(String, String)> {
        let beginning = Beginning {
            pattern,
            uuid: [7; 16],
            empty,
            shards: &shards(),
            primary: "s1",
            zones,
            at: ClusterTime::from(Timestamp(9)),
        };
        let table = beginning.table().unwrap();
        table.chunks().iter().map(|chunk| (chunk.min.to_string(), chunk.shard().to_string())).collect()
    }

    #[test]
    fn where_a_collection_begins() {
        let plain = KeyPattern::parse(doc! { "a": 1 }.as_raw()).unwrap();
        assert_eq!(table(&plain, true, &[]), [("{ a: MinKey }".to_owned(), "s1".to_owned())]);
        let hashed = KeyPattern::parse(doc! { "a": "hashed" }.as_raw()).unwrap();
        let owners: Vec<String> = table(&hashed, true, &[]).into_iter().map(|(_, shard)| shard).collect();
        assert_eq!(owners, ["s1", "s0", "s2"]);
        assert_eq!(table(&hashed, false, &[]).len(), 1, "what has documents stays in one piece");
    }

    #[test]
    fn zones_have_their_ranges() {
        let pattern = KeyPattern::parse(doc! { "a": 1 }.as_raw()).unwrap();
        let key = |n: i32| pattern.key(doc! { "a": n }.as_raw()).unwrap();
        let zone = |min, max| ZoneRange { min: key(min), max: key(max), zone: "wet".to_owned() };
        let found = table(&pattern, true, &[zone(0, 10), zone(10, 20)]);
        let owners: Vec<&str> = found.iter().map(|(_, shard)| shard.as_str()).collect();
        assert_eq!(owners, ["s0", "s2", "s1", "s0"]);
        assert_eq!(found[2].0, "{ a: 10 }");
    }
}
