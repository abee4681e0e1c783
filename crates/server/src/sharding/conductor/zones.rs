//! Zones: which shards belong to one, and which ranges of a collection's keys belong on it.

use sheaf_bson::{DocBuf, RawDoc, Value, compare_docs, doc, document_text};
use sheaf_errors::{Code, Result, bail};
use sheaf_shard::placement::KeyPattern;
use sheaf_storage::Interrupt;
use sheaf_timeseries::TimeseriesOptions;

use super::Conductor;
use super::chunks::{COLLECTIONS, Entry};
use super::ddl::text;
use super::ranges::namespace_of;
use crate::args::Args;
use crate::sharding::rows::Change;

const SHARDS: &str = "config.shards";
const TAGS: &str = "config.tags";

impl Conductor {
    /// `{addShardToZone: "s0", zone: "wet"}`.
    ///
    /// Errors: `ShardNotFound`.
    pub fn add_shard_to_zone(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let (shard, zone) = shard_and_zone(args)?;
        self.change_zones(&shard, go_on, |_, zones| {
            if !zones.contains(&zone) {
                zones.push(zone.clone());
            }
            Ok(())
        })
    }

    /// `{removeShardFromZone: "s0", zone: "wet"}`.
    ///
    /// Errors: `ShardNotFound`; `ZoneStillInUse`, if it is the last one of a zone that has ranges.
    pub fn remove_shard_from_zone(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let (shard, zone) = shard_and_zone(args)?;
        self.change_zones(&shard, go_on, |change, zones| {
            if !zones.contains(&zone) {
                return Ok(());
            }
            let others = change.find(SHARDS, |other| text(other, "_id") != shard && zones_of(other).contains(&zone))?;
            if others.is_empty() && !change.find(TAGS, |tag| text(tag, "tag") == zone)?.is_empty() {
                bail!(
                    Code::ZONE_STILL_IN_USE,
                    "The last shard of zone {zone} cannot be removed while there are ranges that are assigned to it"
                );
            }
            zones.retain(|own| *own != zone);
            Ok(())
        })
    }

    fn change_zones(
        &self,
        shard: &str,
        go_on: Interrupt<'_>,
        work: impl Fn(&mut Change, &mut Vec<String>) -> Result<()>,
    ) -> Result<DocBuf> {
        self.prepare(go_on)?;
        self.change(go_on, |change| {
            let Some(known) = change.get(SHARDS, Value::String(shard))? else {
                bail!(Code::SHARD_NOT_FOUND, "shard {shard} does not exist");
            };
            let mut zones = zones_of(known.as_raw());
            work(change, &mut zones)?;
            let changed = DocBuf::build(|out| {
                for field in known.as_raw().iter().filter(|field| field.key() != "tags") {
                    out.append_element(field);
                }
                let mut tags = out.array("tags");
                zones.iter().for_each(|zone| _ = tags.push(zone.as_str()));
            });
            change.put(SHARDS, changed.as_raw())
        })?;
        Ok(doc! {})
    }

    /// `{updateZoneKeyRange: "garden.plants", min: {name: "a"}, max: {name: "m"}, zone: "wet"}`; without a range's zone it is taken away.
    ///
    /// Errors: `ZoneNotFound`, `RangeOverlapConflict`, `ShardKeyNotFound`.
    pub fn update_zone_key_range(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let namespace = namespace_of(args)?;
        let (min, max): (RawDoc<'_>, RawDoc<'_>) = (args.required("min")?, args.required("max")?);
        let zone = match args.value("zone") {
            Value::Null => None,
            Value::String(zone) => Some(zone),
            Value::Missing => bail!(Code::NO_SUCH_KEY, "Missing expected field \"zone\""),
            other => bail!(
                Code::TYPE_MISMATCH,
                "\"zone\" had the wrong type. Expected string or null, found {}",
                other.type_name()
            ),
        };
        args.finish()?;
        if min.is_empty() || max.is_empty() || !same_fields(min, max) {
            bail!(Code::FAILED_TO_PARSE, "min and max of a range must have the same fields, at least one");
        }
        self.prepare(go_on)?;
        self.change(go_on, |change| {
            let entry = change.get(COLLECTIONS, Value::String(&namespace))?.map(Entry::parse).transpose()?;
            let ends = match &entry {
                Some(entry) => {
                    let ends = Ends::whole(&entry.pattern, min, max)?;
                    let measured = TimeseriesOptions::of_entry(entry.document.as_raw())?;
                    for end in [&ends.min, &ends.max] {
                        check_end_of_zone(measured.as_ref(), end.as_raw())?;
                    }
                    ends
                }
                None => Ends { min: DocBuf::from(min), max: DocBuf::from(max) },
            };
            if compare_docs(ends.min.as_raw(), ends.max.as_raw()).is_ge() {
                let (min, max) = (document_text(ends.min.as_raw()), document_text(ends.max.as_raw()));
                bail!(Code::FAILED_TO_PARSE, "min: {min} should be less than max: {max}");
            }
            self.change_range(change, &namespace, &ends, zone)
        })?;
        Ok(doc! {})
    }

    fn change_range(
        &self,
        change: &mut Change,
        namespace: &str,
        ends: &Ends,
        zone: Option<&str>,
    ) -> Result<()> {
        let known = change.find(TAGS, |tag| text(tag, "ns") == namespace)?;
        let same = known.iter().find(|tag| ends.is_of(tag.as_raw()));
        let Some(zone) = zone else {
            if let Some(same) = same {
                change.remove(TAGS, same.as_raw().get_or_missing("_id"))?;
            }
            return Ok(());
        };
        if change.find(SHARDS, |shard| zones_of(shard).iter().any(|own| own == zone))?.is_empty() {
            bail!(Code::ZONE_NOT_FOUND, "zone {zone} does not exist");
        }
        if let Some(other) = known.iter().find(|tag| ends.overlaps(tag.as_raw()) && !ends.is_of(tag.as_raw()))
        {
            bail!(
                Code::RANGE_OVERLAP_CONFLICT,
                "Zone range: [{}, {}) is overlapping with existing: {}",
                document_text(ends.min.as_raw()),
                document_text(ends.max.as_raw()),
                document_text(other.as_raw())
            );
        }
        let new = Value::ObjectId(sheaf_front::front::new_object_id());
        let id = same.map_or(new, |same| same.as_raw().get_or_missing("_id"));
        let tag = doc! { "_id": id, "ns": namespace, "min": &ends.min, "max": &ends.max, "tag": zone };
        change.put(TAGS, tag.as_raw())
    }
}

/// Checks an end of a zone's range of buckets: a bucket reaches beyond the time at which it begins, so that no zone can end at one.
///
/// Errors: `InvalidOptions`.
pub(super) fn check_end_of_zone(measured: Option<&TimeseriesOptions>, end: RawDoc<'_>) -> Result<()> {
    let Some(options) = measured else { return Ok(()) };
    let time = end.get(&format!("control.min.{}", options.time_field));
    // Where all keys end no time is meant.
    let is_last = end.iter().all(|field| matches!(field.value(), Value::MaxKey));
    if time.is_some_and(|time| !matches!(time, Value::MinKey)) && !is_last {
        bail!(
            Code::INVALID_OPTIONS,
            "time field cannot be specified in the zone range for time-series collections"
        );
    }
    Ok(())
}

/// The ends of a range, with all fields of the shard key where there is one.
struct Ends {
    min: DocBuf,
    max: DocBuf,
}

impl Ends {
    fn whole(pattern: &KeyPattern, min: RawDoc<'_>, max: RawDoc<'_>) -> Result<Ends> {
        let whole = |end: RawDoc<'_>| match pattern.key_of_prefix(end) {
            Ok(key) => Ok(DocBuf::from(key.document())),
            Err(_) => bail!(
                Code::SHARD_KEY_NOT_FOUND,
                "{} is not a prefix of the shard key {}",
                document_text(end),
                document_text(pattern.document())
            ),
        };
        // The end of all keys is one in all fields.
        let is_last = max.iter().all(|field| matches!(field.value(), Value::MaxKey));
        let max = if is_last { DocBuf::from(pattern.max().document()) } else { whole(max)? };
        Ok(Ends { min: whole(min)?, max })
    }

    fn is_of(&self, tag: RawDoc<'_>) -> bool {
        let (min, max) = ends_of(tag);
        compare_docs(self.min.as_raw(), min).is_eq() && compare_docs(self.max.as_raw(), max).is_eq()
    }

    fn overlaps(&self, tag: RawDoc<'_>) -> bool {
        let (min, max) = ends_of(tag);
        compare_docs(self.min.as_raw(), max).is_lt() && compare_docs(min, self.max.as_raw()).is_lt()
    }
}

fn ends_of(tag: RawDoc<'_>) -> (RawDoc<'_>, RawDoc<'_>) {
    let end = |name: &str| tag.get(name).and_then(|end| end.as_doc()).unwrap_or(RawDoc::EMPTY);
    (end("min"), end("max"))
}

fn same_fields(min: RawDoc<'_>, max: RawDoc<'_>) -> bool {
    min.iter().map(|field| field.key().to_owned()).eq(max.iter().map(|field| field.key().to_owned()))
}

fn zones_of(shard: RawDoc<'_>) -> Vec<String> {
    let zones = shard.get("tags").and_then(|tags| tags.as_array());
    zones
        .into_iter()
        .flat_map(|zones| zones.values())
        .filter_map(|zone| zone.as_str().map(str::to_owned))
        .collect()
}

fn shard_and_zone(args: &mut Args<'_>) -> Result<(String, String)> {
    let command = args.command();
    let Value::String(shard) = args.own_value() else {
        bail!(
            Code::TYPE_MISMATCH,
            "BSON field '{command}.{command}' is the wrong type '{}', expected type 'string'",
            args.own_value().type_name()
        );
    };
    let zone: &str = args.required("zone")?;
    args.finish()?;
    if zone.is_empty() {
        bail!(Code::BAD_VALUE, "the name of a zone is empty");
    }
    Ok((shard.to_owned(), zone.to_owned()))
}
