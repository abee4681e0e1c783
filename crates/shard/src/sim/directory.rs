//! Who owns what at the beginning, and what the directory and the shards say of it.

use std::sync::Arc;

use sheaf_bson::{Binary, DocBuf, Value, doc};

use crate::placement::{
    Belief, Chunk, CollectionPlacement, Key as ShardKey, KeyPattern, RoutingTable, ShardPlacement,
};
use crate::time::ClusterTime;
use crate::types::ShardId;

use super::plan::Plan;
use super::store::{Key, Store};

/// The one collection.
pub(super) const UUID: [u8; 16] = [7; 16];

/// The name of shard `number`.
pub(super) fn shard_id(number: usize) -> ShardId {
    ShardId::new(format!("shard{number}"))
}

/// The number of a shard of this name.
pub(super) fn shard_number(id: &ShardId) -> usize {
    let number = id.as_str().strip_prefix("shard").and_then(|number| number.parse().ok());
    number.expect("shards are named by their number")
}

/// A placement as it is stored, and taken apart.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub document: DocBuf,
    pub placement: ShardPlacement,
}

impl PartialEq for Placed {
    fn eq(&self, other: &Self) -> bool {
        self.placement == other.placement
    }
}

impl Placed {
    pub fn new(document: DocBuf) -> Placed {
        let parsed = CollectionPlacement::parse(document.as_raw()).expect("changes make placements");
        Placed { document, placement: parsed.placement }
    }
}

/// The directory's chunks.
#[derive(Clone, Debug)]
pub(super) struct Table(pub RoutingTable);

impl PartialEq for Table {
    fn eq(&self, other: &Self) -> bool {
        self.0.chunks() == other.0.chunks()
    }
}

impl Table {
    pub fn change(&mut self, chunks: &[Chunk]) {
        self.0 = self.0.changed(chunks.to_vec()).expect("who changes chunks has read the others");
    }
}

pub(super) fn pattern() -> KeyPattern {
    KeyPattern::parse(doc! {"k": 1}.as_raw()).expect("it is a shard key")
}

/// Where a document belongs.
pub(super) fn shard_key(key: Key) -> ShardKey {
    pattern().key(doc! {"k": key as i64}.as_raw()).expect("it has the shard key")
}

/// The name of a document, for donors.
pub(super) fn name_of(key: Key) -> Arc<[u8]> {
    Arc::from(key.to_be_bytes())
}

/// The document of this name.
pub(super) fn named(name: &[u8]) -> Key {
    Key::from_be_bytes(name.try_into().expect("names are numbers"))
}

impl Plan {
    /// Sets of members: the shards, and the config servers where ranges are moved and they are none.
    pub(super) fn sets(&self) -> usize {
        self.shards + usize::from(self.moves && !self.config_shard)
    }

    /// The set that is the config servers'.
    pub(super) fn config(&self) -> usize {
        if self.config_shard { 0 } else { self.shards }
    }

    fn first_table(&self) -> RoutingTable {
        let shards: Vec<ShardId> = (0..self.shards).map(shard_id).collect();
        let pieces = self.shards as u64 * 2;
        let mut cuts: Vec<u64> = (1..pieces).map(|piece| piece * self.keys / pieces).collect();
        cuts.retain(|cut| *cut > 0);
        cuts.dedup();
        let cuts: Vec<ShardKey> = cuts.into_iter().map(shard_key).collect();
        RoutingTable::create(pattern(), UUID, &cuts, &shards, ClusterTime::ZERO).expect("cuts are in order")
    }

    /// What a member of a set has before its log begins.
    pub(super) fn first_store(&self, set: usize) -> Store {
        let mut store = Store::default();
        if !self.moves {
            return store;
        }
        let table = self.first_table();
        if set < self.shards {
            let placed = first_placement(&table, &shard_id(set));
            store.placements.insert(ClusterTime::ZERO, Arc::new(Placed::new(placed)));
        }
        if set == self.config() {
            store.table = Some(Table(table));
        }
        store
    }
}

fn first_placement(table: &RoutingTable, shard: &ShardId) -> DocBuf {
    DocBuf::build(|out| {
        out.append("_id", Value::Binary(Binary { subtype: 4, bytes: &UUID }));
        out.append("ns", "bank.accounts").append("key", table.pattern().document());
        out.append("unique", false).append("lastmod", table.version_of(shard).lastmod);
        let mut owned = out.array("owned");
        let mut spans: Vec<(&ShardKey, &ShardKey)> = Vec::new();
        for chunk in table.chunks().iter().filter(|chunk| chunk.shard() == shard) {
            match spans.last_mut() {
                Some(last) if *last.1 == chunk.min => last.1 = &chunk.max,
                _ => spans.push((&chunk.min, &chunk.max)),
            }
        }
        for (min, max) in spans {
            let mut item = owned.document();
            item.append("min", min.document()).append("max", max.document());
        }
        drop(owned);
        drop(out.array("receiving"));
        drop(out.array("leaving"));
    })
}

impl Store {
    /// Whether the shard owned as of `at` what a router believes; if the time is to count.
    pub fn is_believed(&self, belief: Option<Belief>, at: ClusterTime) -> bool {
        let Some(belief) = belief else { return true };
        self.placement(at).placement.check_belief(belief, at).is_ok()
    }
}
