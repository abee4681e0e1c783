//! Which shards a request needs: from a filter to ranges of the shard key, by the bounds that plans are made of.
//!
//! No document has an array in its shard key, so that several conditions on a field are met by one value. Shard keys compare strings
//! by their bytes: where a query does otherwise, what may be a string says nothing.

use std::collections::BTreeSet;

use sheaf_aggregate::{Namespace, Pipeline};
use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Timestamp, Value, hashed_index_value};
use sheaf_cluster::{Directory, GoOn, Sharded};
use sheaf_errors::Result;
use sheaf_exec::bounds::Intervals;
use sheaf_exec::bounds::predicate::{FieldTraits, negated_bounds, test_bounds};
use sheaf_exec::plan::analyze::may_hold_strings;
use sheaf_expr::ParseCx;
use sheaf_query::matcher::{MatchExpr, Matcher, Test};
use sheaf_shard::placement::{Interval, Key, KeyPattern, KeyRange, Ranges};
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

/// The same by any shard key.
///
/// `alike`: whether strings compare by their bytes.
pub fn ranges_of_filter(pattern: &KeyPattern, filter: RawDoc<'_>, alike: bool) -> Ranges {
    if let Some(key) = key_in_filter(pattern, filter, alike) {
        return Ranges::new([KeyRange::point(&key)]);
    }
    match Matcher::parse(filter, &mut ParseCx::new()) {
        Ok(matcher) => ranges_for(pattern, Some(&matcher), alike),
        Err(_) => Ranges::new([KeyRange::all()]),
    }
}

/// The same for a filter that has been parsed; all keys without one.
///
/// `alike`: whether strings compare by their bytes.
pub fn ranges_for(pattern: &KeyPattern, filter: Option<&Matcher>, alike: bool) -> Ranges {
    let ranges = filter.and_then(|filter| Bounded { pattern, alike }.ranges_of(filter.root()));
    ranges.unwrap_or_else(|| Ranges::new([KeyRange::all()]))
}

/// Whether strings of a query compare as those of the shard key. `default`: the collection's collation, unless that is the simple one.
pub fn compares_bytes(default: Option<&DocBuf>, collation: Option<RawDoc<'_>>) -> bool {
    match collation {
        Some(own) if !own.is_empty() => {
            own.get("locale").and_then(|locale| locale.as_str()) == Some("simple")
        }
        _ => default.is_none(),
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

/// The one key that documents can have which match: each field of the shard key is given a value, and nothing has to be parsed.
///
/// `alike`: whether strings compare by their bytes.
fn key_in_filter(pattern: &KeyPattern, filter: RawDoc<'_>, alike: bool) -> Option<Key> {
    let is_plain = |value: Value<'_>| match value {
        Value::Document(_)
        | Value::Array(_)
        | Value::Regex(_)
        | Value::Null
        | Value::Undefined
        | Value::Missing
        | Value::MinKey
        | Value::MaxKey => false,
        Value::String(_) | Value::Symbol(_) => alike,
        Value::Double(number) => !number.is_nan(),
        _ => true,
    };
    let mut found = DocBuf::new();
    for field in pattern.fields() {
        let mut given = filter.iter().filter(|given| given.key() == field.path.dotted());
        let (Some(value), None) = (given.next().map(|given| given.value()), given.next()) else {
            return None;
        };
        if !is_plain(value) {
            return None;
        }
        let value = if field.hashed { Value::Int64(hashed_index_value(value)) } else { value };
        found.edit(|out| {
            out.append(field.path.dotted(), value);
        });
    }
    pattern.key(found.as_raw()).ok()
}

/// What bounds are made for.
struct Bounded<'s> {
    pattern: &'s KeyPattern,
    alike: bool,
}

impl Bounded<'_> {
    /// The keys of matches; `None` if the condition says nothing of them.
    fn ranges_of(&self, expr: &MatchExpr) -> Option<Ranges> {
        match expr {
            MatchExpr::AlwaysFalse => Some(Ranges::default()),
            MatchExpr::Or(branches) => self.union(branches),
            MatchExpr::And(parts) => {
                let own = self.of_leaves(parts);
                // Only one of what stands beside each other is used; a document must match all of it.
                own.or_else(|| {
                    parts.iter().find_map(|part| match part {
                        MatchExpr::Or(branches) => self.union(branches),
                        _ => None,
                    })
                })
            }
            single => self.of_leaves(std::slice::from_ref(single)),
        }
    }

    fn union(&self, branches: &[MatchExpr]) -> Option<Ranges> {
        let ranges: Option<Vec<Ranges>> = branches.iter().map(|branch| self.ranges_of(branch)).collect();
        Some(Ranges::new(ranges?.iter().flat_map(|ranges| ranges.as_slice().iter().cloned())))
    }

    /// From the conditions on single fields that all have to be met.
    fn of_leaves(&self, parts: &[MatchExpr]) -> Option<Ranges> {
        let mut narrows = false;
        let mut bounds = Vec::new();
        for field in self.pattern.fields() {
            let traits = FieldTraits { hashed: field.hashed, ..FieldTraits::default() };
            let mut intervals = Intervals::all();
            for part in parts {
                if let Some(found) = self.of_part(part, field.path.dotted(), traits) {
                    intervals = intervals.intersect(&found);
                }
            }
            narrows |= !intervals.is_all();
            bounds.push(intervals.iter().map(interval).collect::<Vec<_>>());
        }
        narrows.then(|| self.pattern.ranges_of(&bounds))
    }

    fn of_part(&self, part: &MatchExpr, path: &str, traits: FieldTraits<'_>) -> Option<Intervals> {
        let intervals = match part {
            MatchExpr::Leaf(leaf) if leaf.path.dotted() == path => self.of_test(&leaf.test, traits)?,
            MatchExpr::Not(negated) => match &**negated {
                MatchExpr::Leaf(leaf) if leaf.path.dotted() == path => negated_bounds(&leaf.test, traits)?.0,
                _ => return None,
            },
            _ => return None,
        };
        (self.alike || !may_hold_strings(&intervals)).then_some(intervals)
    }

    fn of_test(&self, test: &Test, traits: FieldTraits<'_>) -> Option<Intervals> {
        let (intervals, _) = test_bounds(test, traits)?;
        // Null matches undefined as well, whose hash is another.
        let is_null = |of: &sheaf_exec::bounds::Interval| of.low.as_value().is_nullish();
        if traits.hashed && intervals.iter().any(is_null) {
            return None;
        }
        Some(intervals)
    }
}

fn interval(of: &sheaf_exec::bounds::Interval) -> Interval {
    Interval { low: of.low.clone(), high: of.high.clone(), low_in: of.low_in, high_in: of.high_in }
}

#[cfg(test)]
mod tests;
