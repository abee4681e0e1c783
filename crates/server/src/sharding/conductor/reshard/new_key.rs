//! `reshardCollection`: a sharded collection gets another shard key, or is spread anew by the same one.

use std::collections::BTreeSet;

use sheaf_bson::{DocBuf, RawDoc, Value, compare_docs, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::ddl::index_spec;
use sheaf_shard::ShardId;
use sheaf_shard::placement::{KeyPattern, RoutingTable};
use sheaf_storage::{Interrupt, Uuid};

use super::begin::{Source, Wanted, refuse_own};
use super::layout::{Distribution, Layout, Zone};
use crate::args::{Args, Documents, Loose};
use crate::sharding::conductor::ddl::text;
use crate::sharding::conductor::measured::Named;
use crate::sharding::conductor::ranges::namespace_of;
use crate::sharding::conductor::shard_collection::shown;
use crate::sharding::conductor::zones::check_end_of_zone;
use crate::sharding::conductor::{Conductor, ShardCollection, db_of};
use crate::sharding::key_index::{begins_with, spec_for};
use crate::sharding::turns::Turn;

/// The command's arguments.
struct Asked<'a> {
    /// As it was named.
    of: String,
    named: Named,
    pattern: KeyPattern,
    chunks: Option<i64>,
    zones: Option<Documents<'a>>,
    distribution: Option<Documents<'a>>,
    collation: Option<RawDoc<'a>>,
    force: bool,
    id: Option<Uuid>,
}

impl<'a> Asked<'a> {
    /// What change streams are told of chunks and collation.
    fn told(&self) -> DocBuf {
        DocBuf::build(|out| {
            if let Some(chunks) = self.chunks {
                out.append("numInitialChunks", chunks);
            }
            if let Some(collation) = self.collation {
                out.append("collation", collation);
            }
        })
    }

    fn parse(args: &mut Args<'a>, conductor: &Conductor, go_on: Interrupt<'_>) -> Result<Asked<'a>> {
        let namespace = namespace_of(args)?;
        let key: RawDoc<'_> = args.required("key")?;
        let unique = args.optional::<Loose>("unique")?.is_some_and(|unique| unique.0);
        let collation: Option<RawDoc<'_>> = args.optional("collation")?;
        let chunks: Option<i64> = args.optional("numInitialChunks")?;
        let zones = args.documents("zones")?;
        let distribution = args.documents("shardDistribution")?;
        let force = args.optional::<Loose>("forceRedistribution")?.is_some_and(|force| force.0);
        let id: Option<Uuid> = args.optional("reshardingUUID")?;
        args.ignore(&["implicitlyCreateIndex", "enforceUniquenessCheck", "performVerification"]);
        args.finish()?;
        if unique {
            bail!(Code::BAD_VALUE, "The unique field must be false");
        }
        if let Some(collation) = collation
            && compare_docs(collation, doc! { "locale": "simple" }.as_raw()).is_ne()
        {
            bail!(
                Code::BAD_VALUE,
                "The collation for reshardCollection must be {{locale: 'simple'}}, but found: {}",
                sheaf_bson::document_text(collation)
            );
        }
        if let Some(chunks) = chunks
            && !(1..=1_000_000).contains(&chunks)
        {
            bail!(
                Code::BAD_VALUE,
                "BSON field 'reshardCollection.numInitialChunks' value must be >= 1 and <= 1000000, actual value '{chunks}'"
            );
        }
        KeyPattern::parse(key)?;
        refuse_own(&namespace)?;
        conductor.prepare(go_on)?;
        let named = conductor.named(&namespace)?;
        let pattern = KeyPattern::parse(named.key(key)?.as_raw())?;
        Ok(Asked { of: namespace, named, pattern, chunks, zones, distribution, collation, force, id })
    }
}

impl Conductor {
    /// `{reshardCollection: "garden.plants", key: {name: 1}, ...}`.
    ///
    /// Errors: `BadValue`, `NamespaceNotSharded`, `InvalidOptions`, 4952606, 4952607; why it could not be.
    pub fn reshard_collection(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let asked = Asked::parse(args, self, go_on)?;
        let namespace = asked.named.namespace.as_str();
        let is_same = |begun: RawDoc<'_>| {
            let key = begun.get("key").and_then(|key| key.as_doc());
            key.is_some_and(|key| compare_docs(key, asked.pattern.document()).is_eq())
        };
        if let Some(joined) = self.join((namespace, "reshardCollection"), is_same, go_on)? {
            return Ok(joined);
        }
        let turn = self.turn(db_of(namespace), go_on)?;
        if self.named(&asked.of)? != asked.named {
            bail!(Code::CONFLICTING_OPERATION_IN_PROGRESS, "{} has become another collection", asked.of);
        }
        let primary = self.primary_shard(db_of(namespace))?;
        let Some(entry) = self.entry(namespace)?.filter(|entry| !entry.unsplittable()) else {
            bail!(Code::NAMESPACE_NOT_SHARDED, "Collection {namespace} is not sharded");
        };
        let same = compare_docs(entry.pattern.document(), asked.pattern.document()).is_eq();
        if same && (!asked.force || self.is_resharded(&entry.document, asked.id)) {
            return Ok(doc! {});
        }
        let zones = self.new_zones(&asked, same)?;
        let source = self.source(namespace, go_on)?;
        check_unique_indexes(&source, &asked.pattern)?;
        let indexes = missing_index(&source, &asked.pattern)?;
        let distribution =
            asked.distribution.map(|list| Distribution::parse(&asked.pattern, list)).transpose()?;
        for shard in distribution.iter().flat_map(Distribution::shards) {
            self.check_recipient(shard)?;
        }
        let uuid = *Uuid::new_v4().as_bytes();
        let layout = Layout {
            pattern: &asked.pattern,
            uuid,
            shards: &self.shards()?,
            primary: &primary,
            zones: &zones,
            chunks: asked.chunks.map(|chunks| chunks as usize),
            distribution: distribution.as_ref(),
            at: self.now().into(),
        };
        let sample =
            if layout.needs_sample() { self.sample(&source, &asked.pattern, go_on)? } else { Vec::new() };
        let table = layout.table(sample)?;
        let tags = zones.iter().map(|zone| zone.tag(namespace)).collect();
        let id = asked.id.unwrap_or_else(Uuid::new_v4);
        let wanted = Wanted {
            command: "reshardCollection",
            id: *id.as_bytes(),
            table,
            // As MongoDB's, whatever it was: the command can only ask for a key that is not.
            unique: false,
            unsplittable: false,
            indexes,
            zones: tags,
            told: asked.told(),
        };
        self.reshard(&turn, &source, &wanted, go_on)
    }

    /// `shardCollection` of a collection that has a place of its own: it stays there, as one chunk.
    ///
    /// Errors: `InvalidOptions`, where it has no index for the key.
    pub(in crate::sharding::conductor) fn shard_in_its_place(
        &self,
        turn: &Turn<'_>,
        asked: &ShardCollection,
        go_on: Interrupt<'_>,
    ) -> Result<DocBuf> {
        let (namespace, pattern) = (asked.namespace.as_str(), &asked.pattern);
        let source = self.source(namespace, go_on)?;
        check_unique_indexes(&source, pattern)?;
        let indexes = missing_index(&source, pattern)?;
        let is_empty = source.described.as_raw().get("empty").is_some_and(|empty| empty.truthy());
        if !indexes.is_empty() && !is_empty {
            bail!(
                Code::INVALID_OPTIONS,
                "Please create an index that starts with the proposed shard key before sharding the collection. "
            );
        }
        let is_same = |spec: &RawDoc<'_>| {
            let key = spec.get("key").and_then(|key| key.as_doc()).unwrap_or(RawDoc::EMPTY);
            let unique =
                spec.get("unique").is_some_and(|unique| unique.truthy()) || index_spec::is_id_key(key);
            unique && compare_docs(key, pattern.document()).is_eq()
        };
        if asked.unique && !source.indexes().iter().any(is_same) {
            bail!(
                Code::INVALID_OPTIONS,
                "can't shard collection {namespace}, {} index not unique, and unique index explicitly specified",
                sheaf_bson::document_text(pattern.document())
            );
        }
        let uuid = *Uuid::new_v4().as_bytes();
        let owner = source.table.as_ref().map(|table| table.chunks()[0].shard().clone());
        let owner = owner.unwrap_or_else(|| ShardId::new(&*source.primary));
        let table = RoutingTable::create(pattern.clone(), uuid, &[], &[owner], self.now().into())?;
        let zones = self.zones_of(namespace, pattern)?;
        let zones =
            zones.into_iter().map(|of| Zone { min: of.min, max: of.max, zone: of.zone }.tag(namespace));
        let wanted = Wanted {
            command: "shardCollection",
            id: *Uuid::new_v4().as_bytes(),
            table,
            unique: asked.unique,
            unsplittable: false,
            indexes,
            zones: zones.collect(),
            told: DocBuf::new(),
        };
        self.reshard(turn, &source, &wanted, go_on)?;
        Ok(doc! { "collectionsharded": &shown(namespace) })
    }

    /// Whether a redistribution of this name has happened: it is asked again.
    fn is_resharded(&self, entry: &DocBuf, id: Option<Uuid>) -> bool {
        let known = super::uuid_of(entry.as_raw(), "reshardingUUID");
        id.is_some_and(|id| known == Some(*id.as_bytes()))
    }

    /// The zones' ranges by the new key.
    fn new_zones(&self, asked: &Asked<'_>, same: bool) -> Result<Vec<Zone>> {
        let Some(list) = &asked.zones else {
            let known = self.zones_of(&asked.named.namespace, &asked.pattern);
            if same {
                let zone = |range: super::super::plan::ZoneRange| Zone {
                    min: range.min,
                    max: range.max,
                    zone: range.zone,
                };
                return Ok(known?.into_iter().map(zone).collect());
            }
            if !self.find("config.tags", |tag| text(tag, "ns") == asked.named.namespace)?.is_empty() {
                bail!(Code::BAD_VALUE, "Must specify value for zones field");
            }
            return Ok(Vec::new());
        };
        let shards = self.shards()?;
        let of_shards: BTreeSet<&str> =
            shards.iter().flat_map(|shard| &shard.zones).map(String::as_str).collect();
        let mut zones = Vec::new();
        for range in list.iter() {
            let end = |name: &str| {
                let end = range.get(name).and_then(|end| end.as_doc()).unwrap_or(RawDoc::EMPTY);
                asked.pattern.key_of_prefix(end)
            };
            let (min, max) = (end("min")?, end("max")?);
            for end in [&min, &max] {
                check_end_of_zone(asked.named.measured.as_ref(), end.document())?;
            }
            let zone = match range.get("zone") {
                Some(Value::String(zone)) => zone.to_owned(),
                // No zone: the range is anybody's.
                _ => continue,
            };
            if min >= max {
                bail!(Code::BAD_VALUE, "the range of zone {zone} ends before it begins");
            }
            if !of_shards.contains(zone.as_str()) {
                bail!(4952607, "Zone {zone} is not assigned to any shard");
            }
            zones.push(Zone { min, max, zone });
        }
        zones.sort_by(|a, b| a.min.cmp(&b.min));
        if let Some(pair) = zones.windows(2).find(|pair| pair[0].max > pair[1].min) {
            bail!(Code::BAD_VALUE, "Zone ranges must not overlap: {} and {}", pair[0].zone, pair[1].zone);
        }
        Ok(zones)
    }
}

/// Errors: `InvalidOptions`, where a unique index does not begin with the new key: nobody would look for duplicates on other shards.
fn check_unique_indexes(source: &Source, pattern: &KeyPattern) -> Result<()> {
    for spec in source.indexes() {
        let key = spec.get("key").and_then(|key| key.as_doc()).unwrap_or(RawDoc::EMPTY);
        let is_unique =
            ["unique", "prepareUnique"].iter().any(|flag| spec.get(flag).is_some_and(|flag| flag.truthy()));
        if is_unique && !index_spec::is_id_key(key) && !begins_with(key, pattern.document()) {
            bail!(
                Code::INVALID_OPTIONS,
                "can't shard collection '{}' with unique index on {} and proposed shard key {}. \
                 Uniqueness can't be maintained unless shard key is a prefix",
                source.namespace,
                sheaf_bson::document_text(key),
                sheaf_bson::document_text(pattern.document())
            );
        }
    }
    Ok(())
}

/// The index for the new key, where none serves.
fn missing_index(source: &Source, pattern: &KeyPattern) -> Result<Vec<DocBuf>> {
    let serves = |spec: RawDoc<'_>| {
        let key = spec.get("key").and_then(|key| key.as_doc()).unwrap_or(RawDoc::EMPTY);
        let is_plain = ["sparse", "partialFilterExpression", "hidden"]
            .iter()
            .all(|name| spec.get(name).is_none_or(|value| !value.truthy()));
        let collation =
            spec.get("collation").and_then(|collation| collation.as_doc()?.get("locale")?.as_str());
        begins_with(key, pattern.document()) && is_plain && collation.is_none_or(|locale| locale == "simple")
    };
    if source.indexes().into_iter().any(serves) {
        return Ok(Vec::new());
    }
    Ok(vec![spec_for(pattern.document(), source.options(), false)?])
}
