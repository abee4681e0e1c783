//! Which shards a request needs: from a filter to [ranges](sheaf_server::shard_key::ranges) of the shard key, and from these to their
//! owners.

use std::collections::BTreeSet;

use sheaf_aggregate::{Namespace, Pipeline};
use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Timestamp};
use sheaf_cluster::{Directory, GoOn, Sharded};
use sheaf_errors::Result;
use sheaf_expr::ParseCx;
use sheaf_server::shard_key::ranges::ranges_of_filter;
pub use sheaf_server::shard_key::ranges::{compares_bytes, ranges_for};
use sheaf_shard::placement::{KeyRange, Ranges};
use sheaf_shard::{ClusterTime, ShardId};
use sheaf_timeseries::unpack_stage;

use crate::addressed::{Addressed, ShardVersion, on_the_way};
use crate::target::Target;

/// The keys that documents may have which match a filter. A filter that cannot be parsed here says nothing: a shard says what is wrong.
///
/// `collation` is the request's own; without one, the collection's counts.
pub fn ranges_for_filter(sharded: &Sharded, filter: RawDoc<'_>, collation: Option<RawDoc<'_>>) -> Ranges {
    let alike = compares_bytes(sharded.default_collation.as_ref(), collation);
    ranges_of_filter(sharded.pattern(), filter, alike)
}

/// The same of buckets, for a filter of the measurements in them.
pub fn ranges_for_measurements(
    sharded: &Sharded,
    filter: RawDoc<'_>,
    collation: Option<RawDoc<'_>>,
) -> Ranges {
    let Some(timeseries) = &sharded.timeseries else { return Ranges::new([KeyRange::all()]) };
    let alike = compares_bytes(sharded.default_collation.as_ref(), collation);
    let (db, buckets) = sharded.ns.split_once('.').unwrap_or_default();
    let match_stage = DocBuf::new().with("$match", filter);
    let stages = ArrayBuf::build(|out| {
        unpack_stage(timeseries).as_raw().values().for_each(|stage| _ = out.push(stage));
        out.push(match_stage.as_raw());
    });
    // What buckets must be like is what reading them would begin with.
    match Pipeline::parse(stages.as_raw(), &Namespace::new(db, buckets), &mut ParseCx::new()) {
        Ok(pipeline) => {
            ranges_for(sharded.pattern(), pipeline.head().matcher.map(|matcher| &**matcher), alike)
        }
        Err(_) => Ranges::new([KeyRange::all()]),
    }
}

/// The shards that own keys in these ranges; where there are none, one that can say what there is to say of nothing.
pub fn owners<'s>(sharded: &'s Sharded, ranges: &Ranges) -> BTreeSet<&'s ShardId> {
    let mut owners = sharded.table.owners(ranges, None).unwrap_or_default();
    if owners.is_empty() {
        owners.extend(sharded.table.shards().next());
    }
    owners
}

/// The shards that own keys in these ranges, or owned them at the time as of which is read, as a request addresses them.
///
/// Errors: `StaleChunkHistory`, if nobody knows any more who owned what then; `ShardNotFound`; those of asking the config servers.
pub fn addressed_at(
    directory: &Directory,
    sharded: &Sharded,
    ranges: &Ranges,
    at: Option<Timestamp>,
    go_on: GoOn<'_>,
) -> Result<Vec<Addressed>> {
    let table = &sharded.table;
    let earlier = at.filter(|at| ClusterTime::from(*at) < table.changed_at());
    let mut owners = match earlier {
        Some(at) => table.owners(ranges, Some(at.into()))?,
        None => owners(sharded, ranges),
    };
    if owners.is_empty() {
        owners.extend(table.shards().next());
    }
    let addressed = |shard: &ShardId| {
        let shard_there = directory.shard(shard.as_str(), go_on);
        let target = match earlier {
            None => shard_there.map_err(on_the_way),
            // A newer view does not tell where that is which a shard has taken along.
            Some(_) => shard_there,
        };
        let target = target.map(Target::Shard)?;
        Ok(Addressed { target, version: Some(ShardVersion::in_table(table, shard, earlier)?) })
    };
    owners.into_iter().map(addressed).collect()
}

#[cfg(test)]
mod tests;
