//! Who is sent a request, and what the router believes of its collection there.

use std::sync::Arc;

use sheaf_bson::{Binary, DocWriter, Timestamp, Value};
use sheaf_cluster::{Sharded, for_client};
use sheaf_errors::{Code, Error, Result};
use sheaf_shard::placement::{Belief, RoutingTable, Version};
use sheaf_shard::{ClusterTime, ShardId};

use crate::target::Target;

/// Where a collection's documents are.
#[derive(Clone)]
pub enum Placed {
    /// All on one: the collection is not sharded.
    Whole(Addressed),
    /// Where its ranges are.
    Spread(Arc<Sharded>),
}

/// Somebody who is sent a request, and by which view of the collection.
#[derive(Clone)]
pub struct Addressed {
    /// Who.
    pub target: Target,
    /// What the router believes of the request's collection there; `None` where that does not matter.
    pub version: Option<ShardVersion>,
}

/// What a router believes of a collection on a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardVersion {
    /// The collection is not sharded.
    Plain,
    /// The shard owns ranges as of this version.
    Of(Version),
    /// The shard owned ranges with this fingerprint at the time as of which is read, by a table of this version.
    At { version: Version, fingerprint: u64 },
}

impl ShardVersion {
    /// What a table says of a shard, as of a time if one is given.
    ///
    /// Errors: `StaleChunkHistory`, if the collection's history does not reach back so far.
    pub fn in_table(table: &RoutingTable, shard: &ShardId, at: Option<Timestamp>) -> Result<ShardVersion> {
        Ok(match table.belief(shard, at.map(ClusterTime::from))? {
            Belief::Version(version) => ShardVersion::Of(version),
            Belief::Owned { fingerprint, .. } => ShardVersion::At { version: table.version(), fingerprint },
        })
    }
}

impl From<Target> for Addressed {
    fn from(target: Target) -> Self {
        Addressed { target, version: None }
    }
}

impl Addressed {
    /// Why it has not answered.
    pub fn unanswered(&self, error: Error) -> Error {
        if self.version.is_some() { on_the_way(error) } else { for_client(error) }
    }

    /// Adds `shardVersion` to a request.
    pub fn append_versions(&self, out: &mut DocWriter<'_, Vec<u8>>) {
        let Some(version) = self.version else { return };
        let mut told = out.document("shardVersion");
        match version {
            ShardVersion::Plain => _ = told.append("v", Value::Timestamp(Timestamp(0))),
            ShardVersion::Of(version) | ShardVersion::At { version, .. } => {
                told.append("uuid", Value::Binary(Binary { subtype: 4, bytes: &version.uuid }));
                told.append("v", Value::Timestamp(version.lastmod));
            }
        }
        if let ShardVersion::At { fingerprint, .. } = version {
            told.append("owned", fingerprint.cast_signed());
        }
    }
}

/// Why a shard has not answered that was asked by what the router believes. Where it is none any more, the router's view is out of date.
pub fn on_the_way(error: Error) -> Error {
    match error.code() {
        Code::SHARD_NOT_FOUND => Error::new(Code::STALE_DB_VERSION, error.message()),
        _ => for_client(error),
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::{DocBuf, doc};
    use sheaf_cluster::{ReplicaSet, SetAddress};

    use super::*;

    #[test]
    fn requests_carry_what_the_router_believes() {
        let set = ReplicaSet::new(&"s/127.0.0.1:1".parse::<SetAddress>().unwrap(), &Default::default());
        let carried = |version| {
            let to = Addressed { target: Target::Config(set.clone()), version };
            DocBuf::build(|out| to.append_versions(out))
        };
        assert!(carried(None).as_raw().is_empty());
        let zero = Value::Timestamp(Timestamp(0));
        assert_eq!(carried(Some(ShardVersion::Plain)), doc! { "shardVersion": { "v": zero } });
        let version = Version { uuid: [7; 16], lastmod: Timestamp::new(3, 4) };
        assert_eq!(
            carried(Some(ShardVersion::Of(version))),
            doc! { "shardVersion": {
                "uuid": Value::Binary(Binary { subtype: 4, bytes: &[7; 16] }),
                "v": Value::Timestamp(Timestamp::new(3, 4))
            } }
        );
        let told = carried(Some(ShardVersion::At { version, fingerprint: u64::MAX }));
        let told = told.as_raw().get("shardVersion").and_then(|told| told.as_doc()).expect("it is told");
        assert_eq!(told.get("owned").and_then(|owned| owned.as_exact_i64()), Some(-1));
    }
}
