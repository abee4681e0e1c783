//! Collections of a sharded cluster, placed so that every shard has its part before a run.
//!
//! Where the server shards collections, a collection is sharded, cut and moved by hand, with the balancer off. Where it does not,
//! the collection becomes several of the same name, in databases that live on different shards: what is measured of
//! transactions over shards is the same. Without routers it is one collection.

use serde::Deserialize;
use sheaf_bson::{DocBuf, Value, doc};

use crate::client::{Client, Collection};
use crate::context::Context;
use crate::error::{Error, Result};

/// How keys are spread over the shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// The keys 0, 1, 2, ... below this one, each shard a range of them.
    Range(i64),
    /// By a hash.
    Hash,
}

/// A collection, or those that stand for it.
#[derive(Clone, Debug)]
pub(super) struct Places {
    each: Vec<Collection>,
    by: By,
    shards: usize,
}

/// CommandNotFound, CommandNotSupported, NotImplemented: the server does not do that.
const CANNOT: [i32; 3] = [59, 115, 238];

pub(super) fn cannot(error: &Error) -> bool {
    error.code().is_some_and(|code| CANNOT.contains(&code))
}

impl From<Collection> for Places {
    fn from(collection: Collection) -> Places {
        Places::one(collection, By::Hash)
    }
}

impl Places {
    /// One collection, wherever it is.
    pub fn one(collection: Collection, by: By) -> Places {
        Places { each: vec![collection], by, shards: 1 }
    }

    /// One for each shard.
    #[cfg(test)]
    pub fn several(each: Vec<Collection>, by: By) -> Places {
        Places { shards: each.len(), each, by }
    }

    /// Makes the collection anew, empty, spread by this field of its documents.
    pub fn place(
        context: &Context,
        client: &mut Client,
        collection: &Collection,
        field: &str,
        by: By,
    ) -> Result<Places> {
        if !context.mongodb()?.routed {
            client.drop_collection(collection)?;
            context.admin(client, &collection.db, &doc! { "create": collection.name.as_str() })?;
            return Ok(Places::one(collection.clone(), by));
        }
        let shards = shard_names(client)?;
        client.drop_collection(collection)?;
        let cluster = Cluster { context, shards: &shards };
        match cluster.shard(client, collection, field, by) {
            Ok(()) => Ok(Places { each: vec![collection.clone()], by, shards: shards.len() }),
            Err(error) if cannot(&error) => {
                context.warn(format!(
                    "the server cannot place ranges of a collection ({error}): {} is one for each shard, in databases \
                     that live there",
                    collection.name
                ));
                client.drop_collection(collection)?;
                cluster.by_databases(client, collection, by)
            }
            Err(error) => Err(error),
        }
    }

    /// The shard, counted from 0, on which a key was placed; by a hash it is known only of databases.
    pub fn shard_of(&self, key: i64) -> usize {
        let shards = self.shards as i64;
        let shard = match self.by {
            By::Range(keys) => key * shards / keys.max(1),
            By::Hash => key.rem_euclid(shards),
        };
        shard.clamp(0, shards - 1) as usize
    }

    /// The keys of a shard, of which they were placed in ranges.
    pub fn keys_of(&self, shard: usize) -> std::ops::Range<i64> {
        let By::Range(keys) = self.by else { return 0..0 };
        // The least key of which `shard_of` says so.
        let first = |shard: usize| (keys * shard as i64 + self.shards as i64 - 1) / self.shards as i64;
        first(shard)..first(shard + 1)
    }

    /// Shards that have a part.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// Where documents with this key are.
    pub fn of(&self, key: i64) -> &Collection {
        let at = if self.each.len() == 1 { 0 } else { self.shard_of(key) };
        &self.each[at]
    }

    /// Every collection that stands for it.
    pub fn each(&self) -> &[Collection] {
        &self.each
    }

    /// The databases that they are in.
    pub fn databases(&self) -> Vec<String> {
        self.each.iter().map(|collection| collection.db.clone()).collect()
    }
}

/// The shards' names, in order.
pub(super) fn shard_names(client: &mut Client) -> Result<Vec<String>> {
    let reply = client.command("admin", &doc! { "listShards": 1 })?;
    let shards = reply.get("shards").and_then(|shards| shards.as_array());
    let shards = shards.ok_or_else(|| Error::failed("listShards told no shards"))?;
    let name = |shard: Value<'_>| Some(shard.as_doc()?.get("_id")?.as_str()?.to_owned());
    let mut names: Vec<String> = shards.values().filter_map(name).collect();
    names.sort_unstable();
    if names.is_empty() { Err(Error::usage("the cluster has no shards")) } else { Ok(names) }
}

/// How a collection is sharded by its `_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ShardKey {
    /// By ranges of it, which the server places.
    Ranged,
    /// By a hash of it: spread over all shards from the beginning.
    Hashed,
}

impl ShardKey {
    /// Makes an empty collection a sharded one and leaves its placement to the server. Whether it is sharded now: not without
    /// routers, without a key, or where the server cannot.
    pub fn spread(
        key: Option<ShardKey>,
        context: &Context,
        client: &mut Client,
        collection: &Collection,
    ) -> Result<bool> {
        let Some(key) = key.filter(|_| context.mongodb().is_ok_and(|to| to.routed)) else { return Ok(false) };
        let by = if key == ShardKey::Hashed { By::Hash } else { By::Range(0) };
        match declare(context, client, collection, "_id", by) {
            Ok(()) => Ok(true),
            Err(error) if cannot(&error) => {
                let name = format!("{}.{}", collection.db, collection.name);
                context
                    .warn(format!("the server cannot shard collections ({error}): {name} lies on one shard"));
                // It may have taken the key all the same.
                client.drop_collection(collection)?;
                context.admin(client, &collection.db, &doc! { "create": collection.name.as_str() })?;
                Ok(false)
            }
            Err(error) => Err(error.context("shardCollection")),
        }
    }
}

/// Tells the server of the shard key.
fn declare(
    context: &Context,
    client: &mut Client,
    collection: &Collection,
    field: &str,
    by: By,
) -> Result<()> {
    let namespace = format!("{}.{}", collection.db, collection.name);
    context.admin(client, "admin", &doc! { "enableSharding": collection.db.as_str() })?;
    let how = if by == By::Hash { Value::String("hashed") } else { Value::Int32(1) };
    let mut key = DocBuf::new();
    key.append(field, how);
    let command = doc! { "shardCollection": namespace.as_str(), "key": key.as_raw() };
    context.admin(client, "admin", &command)?;
    // A server that takes the key must also take documents.
    let mut insert = client.insert(collection);
    insert.push(|probe| {
        probe.append("_id", PROBE);
        if field != "_id" {
            probe.append(field, PROBE);
        }
    });
    insert.send()?;
    let mut delete = client.delete(collection);
    delete.push(|statement| {
        statement.document("q").append(field, PROBE);
        statement.append("limit", 1);
    });
    delete.send().map(drop)
}

/// A key that no workload has.
const PROBE: i64 = -1;

/// Cuts a collection that is sharded by ranges of its `_id` at these values, and gives the pieces to the shards in turn, with
/// the balancer off: what a person does before a large import.
pub(super) fn pre_split(
    context: &Context,
    client: &mut Client,
    collection: &Collection,
    cuts: &[i64],
) -> Result<()> {
    let shards = shard_names(client)?;
    Cluster { context, shards: &shards }.cut_and_move(client, collection, "_id", cuts)
}

/// The cluster that is worked on.
struct Cluster<'a> {
    context: &'a Context,
    shards: &'a [String],
}

impl Cluster<'_> {
    fn shard(&self, client: &mut Client, collection: &Collection, field: &str, by: By) -> Result<()> {
        declare(self.context, client, collection, field, by)?;
        let By::Range(keys) = by else { return Ok(()) };
        let places = Places { each: Vec::new(), by, shards: self.shards.len() };
        let cuts: Vec<i64> = (1..self.shards.len()).map(|shard| places.keys_of(shard).start).collect();
        debug_assert!(cuts.iter().all(|cut| *cut < keys));
        self.cut_and_move(client, collection, field, &cuts)
    }

    fn cut_and_move(
        &self,
        client: &mut Client,
        collection: &Collection,
        field: &str,
        cuts: &[i64],
    ) -> Result<()> {
        let namespace = format!("{}.{}", collection.db, collection.name);
        self.context.admin(client, "admin", &doc! { "balancerStop": 1 })?;
        for cut in cuts {
            let command =
                doc! { "split": namespace.as_str(), "middle": bound(field, Value::Int64(*cut)).as_raw() };
            self.context.admin(client, "admin", &command)?;
        }
        for piece in 0..=cuts.len() {
            let from = if piece == 0 { Value::MinKey } else { Value::Int64(cuts[piece - 1]) };
            let to = cuts.get(piece).map_or(Value::MaxKey, |cut| Value::Int64(*cut));
            let (min, max) = (bound(field, from), bound(field, to));
            let bounds = sheaf_bson::ArrayBuf::of([min.as_raw(), max.as_raw()]);
            let command = doc! {
                "moveChunk": namespace.as_str(),
                "bounds": (Value::Array(bounds.as_raw())),
                "to": self.shards[piece % self.shards.len()].as_str(),
                "_waitForDelete": true
            };
            self.context.admin(client, "admin", &command)?;
        }
        Ok(())
    }

    fn by_databases(&self, client: &mut Client, collection: &Collection, by: By) -> Result<Places> {
        let mut each = Vec::new();
        for (number, shard) in self.shards.iter().enumerate() {
            let own = Collection { db: format!("{}{number}", collection.db), ..collection.clone() };
            let enable = doc! { "enableSharding": own.db.as_str(), "primaryShard": shard.as_str() };
            self.context.admin(client, "admin", &enable)?;
            client.drop_collection(&own)?;
            self.context.admin(client, &own.db, &doc! { "create": own.name.as_str() })?;
            each.push(own);
        }
        Ok(Places { each, by, shards: self.shards.len() })
    }
}

fn bound(field: &str, value: Value<'_>) -> DocBuf {
    let mut bound = DocBuf::new();
    bound.append(field, value);
    bound
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_one_place() {
        for shards in 1..=5 {
            for keys in [5, 7, 100, 1001] {
                let each: Vec<Collection> =
                    (0..shards).map(|n| Collection::new(&format!("lab{n}"), "accounts")).collect();
                let places = Places::several(each, By::Range(keys));
                let mut next = 0;
                for shard in 0..shards {
                    let own = places.keys_of(shard);
                    assert_eq!(own.start, next, "{keys} keys on {shards} shards");
                    assert!(own.clone().all(|key| places.shard_of(key) == shard), "{keys} {shards} {own:?}");
                    next = own.end;
                }
                assert_eq!(next, keys);
                assert_eq!(places.of(keys - 1).db, format!("lab{}", shards - 1));
            }
        }
        let one = Places::one(Collection::new("lab", "accounts"), By::Hash);
        assert_eq!((one.shard_of(-7), one.of(12).db.as_str(), one.shards()), (0, "lab", 1));
    }
}
