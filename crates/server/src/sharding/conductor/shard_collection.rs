//! `shardCollection`.
//!
//! | phase | what is done in it |
//! | --- | --- |
//! | `closing` | the primary shard makes the collection if there is none, closes it, checks it, makes the index |
//! | `placing` | the other owners make it and know what they own; then the primary shard does, which opens it |
//! | `entering` | the directory has the collection and its chunks |
//! | `opening` | instead, where it was refused: the primary shard opens it as it was |

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value, compare_docs, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_shard::ShardId;
use sheaf_shard::placement::{KeyPattern, RoutingTable};
use sheaf_storage::Interrupt;
use sheaf_timeseries::{ENTRY_FIELD, TimeseriesOptions, split_buckets};

use super::chunks::{CHUNKS, COLLECTIONS, table_of};
use super::ddl::{DDL, Phase, name_of, reason, text, with};
use super::plan::{Beginning, ZoneRange};
use super::zones::check_end_of_zone;
use super::{Conductor, collection_entry, db_of, uuid_of, uuid_value};
use crate::args::{Args, Loose, check_collection_name, check_db_name};
use crate::sharding::participants::name;

/// `{shardCollection: "garden.plants", key: {name: 1}, unique: true, ...}`.
pub struct ShardCollection {
    pub(super) namespace: String,
    pub(super) pattern: KeyPattern,
    pub(super) unique: bool,
    /// Whether the simple collation was asked for.
    pub(super) simple: bool,
    pub(super) presplit: bool,
    /// What it measures, if it is a time-series collection.
    pub(super) timeseries: Option<TimeseriesOptions>,
}

impl ShardCollection {
    /// Its arguments.
    ///
    /// Errors: as in MongoDB 8.2.
    pub fn parse(args: &mut Args<'_>) -> Result<Self> {
        let Value::String(namespace) = args.own_value() else {
            bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'shardCollection.shardCollection' is the wrong type '{}', expected type 'string'",
                args.own_value().type_name()
            );
        };
        let (db, collection) = namespace.split_once('.').unwrap_or((namespace, ""));
        let is_name = check_db_name(db).is_ok() && check_collection_name(collection).is_ok();
        if !is_name || collection.is_empty() {
            bail!(Code::INVALID_NAMESPACE, "Invalid namespace specified '{namespace}'");
        }
        // What is the server's own is refused by other errors.
        if !collection.starts_with("system.") {
            crate::commands::ddl::names::check_new_name(namespace)?;
        }
        let timeseries: Option<RawDoc<'_>> = args.optional("timeseries")?;
        let timeseries = timeseries
            .map(|spec| TimeseriesOptions::parse(spec, "shardCollection.timeseries"))
            .transpose()?;
        let key: RawDoc<'_> = args.required("key")?;
        let unique = args.optional::<Loose>("unique")?.is_some_and(|unique| unique.0);
        let collation: Option<RawDoc<'_>> = args.optional("collation")?;
        if let Some(chunks) = args.optional::<i64>("numInitialChunks")?
            && !(0..=1_000_000).contains(&chunks)
        {
            bail!(Code::INVALID_OPTIONS, "numInitialChunks cannot be more than 1000000 or less than 0");
        }
        let presplit = args.optional::<Loose>("presplitHashedZones")?.is_some_and(|presplit| presplit.0);
        args.ignore(&["enforceUniquenessCheck", "implicitlyCreateIndex", "getLastErrorDefaults"]);
        let pattern = KeyPattern::parse(key)?;
        let is_hashed = pattern.fields().iter().any(|field| field.hashed);
        if unique && is_hashed {
            bail!(
                Code::INVALID_OPTIONS,
                "Hashed shard keys cannot be declared unique. It's possible to ensure uniqueness on the hashed field by declaring an \
                 additional (non-hashed) unique index on the field."
            );
        }
        if let Some(collation) = collation
            && compare_docs(collation, doc! { "locale": "simple" }.as_raw()).is_ne()
        {
            bail!(
                Code::BAD_VALUE,
                "The collation for shardCollection must be {{locale: 'simple'}}, but found: {}",
                sheaf_bson::document_text(collation)
            );
        }
        if presplit && !is_hashed {
            bail!(
                Code::INVALID_OPTIONS,
                "presplitHashedZones is only supported when the shard key pattern is hashed"
            );
        }
        Ok(ShardCollection {
            namespace: namespace.to_owned(),
            pattern,
            unique,
            simple: collation.is_some(),
            presplit,
            timeseries,
        })
    }
}

impl Conductor {
    /// Makes a collection sharded. Gives the fields of the reply.
    ///
    /// Errors: `AlreadyInitialized`, if it is with another key; `InvalidOptions`; those of its shards.
    pub fn shard_collection(&self, asked: &ShardCollection, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let namespace = asked.namespace.as_str();
        let db = db_of(namespace);
        if matches!(db, "admin" | "config" | "local") {
            bail!(Code::ILLEGAL_OPERATION, "Can't shard collections in the {db} database: {namespace}");
        }
        if split_buckets(namespace).is_some() {
            bail!(5731501, "Sharding a buckets collection is not allowed");
        }
        if namespace[db.len() + 1..].starts_with("system.") {
            bail!(Code::ILLEGAL_OPERATION, "can't shard system namespaces: {namespace}");
        }
        let turn = self.turn(db, go_on)?;
        self.ensure_database(&turn, db, None, go_on)?;
        let of_buckets = match self.entry(namespace)? {
            Some(_) => None,
            None => self.of_buckets(asked, go_on)?,
        };
        let asked = of_buckets.as_ref().unwrap_or(asked);
        let namespace = asked.namespace.as_str();
        if let Some(entry) = self.entry(namespace)? {
            if entry.unsplittable() {
                return self.shard_in_its_place(&turn, asked, go_on);
            }
            let same = compare_docs(entry.pattern.document(), asked.pattern.document()).is_eq()
                && entry.unique() == asked.unique;
            if same {
                return Ok(doc! { "collectionsharded": &shown(namespace) });
            }
            bail!(Code::ALREADY_INITIALIZED, "sharding already enabled for collection {namespace}");
        }
        let zones = self.zones_of(namespace, &asked.pattern)?;
        for end in zones.iter().flat_map(|zone| [&zone.min, &zone.max]) {
            check_end_of_zone(asked.timeseries.as_ref(), end.document())?;
        }
        if asked.presplit && zones.is_empty() {
            bail!(
                Code::INVALID_OPTIONS,
                "Cannot presplit hashed zones: the collection {namespace} has no zones with ranges"
            );
        }
        let primary = self.primary_shard(db)?;
        let begin = doc! {
            "_id": namespace, "op": "shardCollection", "phase": "closing", "primary": &primary,
            "key": asked.pattern.document(), "unique": asked.unique, "simple": asked.simple, "presplit": asked.presplit
        };
        let begin = match &asked.timeseries {
            Some(timeseries) => begin.with("timeseries", &timeseries.to_doc()),
            None => begin,
        };
        self.perform(&turn, begin, go_on)
    }

    /// The zones' ranges of a collection, in order.
    pub(super) fn zones_of(&self, namespace: &str, pattern: &KeyPattern) -> Result<Vec<ZoneRange>> {
        let found = self.find("config.tags", |tag| text(tag, "ns") == namespace)?;
        let mut zones = Vec::with_capacity(found.len());
        for tag in &found {
            let tag = tag.as_raw();
            let end = |name: &str| {
                let end = tag.get(name).and_then(|end| end.as_doc()).unwrap_or(RawDoc::EMPTY);
                pattern.key(end).map_err(|error| error.context("the collection's zones do not fit its key"))
            };
            zones.push(ZoneRange { min: end("min")?, max: end("max")?, zone: text(tag, "tag").to_owned() });
        }
        zones.sort_by(|a, b| a.min.cmp(&b.min));
        Ok(zones)
    }
}

/// One phase of it.
pub(super) fn phase(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<Phase> {
    match text(at, "phase") {
        "closing" => match close(conductor, at, go_on) {
            Err(error) => Conductor::back(error, at, "opening", go_on),
            done => done,
        },
        // Nothing of it is to be seen before the primary shard, the last one, is open.
        "placing" => match place(conductor, at, go_on) {
            Err(error) => Conductor::back(error, at, "opening", go_on),
            done => done,
        },
        "entering" => enter(conductor, at, go_on),
        _ => open(conductor, at, go_on),
    }
}

fn close(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<Phase> {
    let (namespace, primary) = (name_of(at), text(at, "primary"));
    let (pattern, step) = (pattern_of(at)?, conductor.step()?);
    // A new one each time: what was made before is there by its name, or was dropped and never comes back.
    let new = sheaf_storage::Uuid::new_v4();
    let command = doc! {
        (name::CLOSE): namespace, "step": step, "key": pattern.document(),
        "unique": at.get_or_missing("unique"), "simple": at.get_or_missing("simple"),
        "newUuid": uuid_value(new.as_bytes()), "timeseries": at.get_or_missing("timeseries")
    };
    let closed = conductor.tell(primary, &command, go_on)?;
    let closed = closed.as_raw();
    let Some(uuid) = uuid_of(closed, "uuid") else {
        bail!(Code::INTERNAL_ERROR, "shard {primary} names no UUID of {namespace}");
    };
    let since = conductor.now();
    let table = Beginning {
        pattern: &pattern,
        uuid,
        empty: closed.get("empty").is_some_and(|empty| empty.truthy()),
        shards: &conductor.shards()?,
        primary,
        zones: &conductor.zones_of(namespace, &pattern)?,
        at: since.into(),
    }
    .table()?;
    let chunks = ArrayBuf::build(|list| {
        for chunk in table.chunks() {
            let document = chunk.document(sheaf_front::front::new_object_id(), uuid);
            list.push(document.as_raw());
        }
    });
    let reached = with(
        at,
        &[
            ("phase", "placing".into()),
            ("uuid", uuid_value(&uuid)),
            ("options", closed.get_or_missing("options")),
            ("indexes", closed.get_or_missing("indexes")),
            ("since", since.into()),
            ("chunks", Value::Array(chunks.as_raw())),
        ],
    );
    Ok(Phase::Reached(reached))
}

fn place(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<Phase> {
    let (namespace, primary) = (name_of(at), ShardId::new(text(at, "primary")));
    let (table, unique) = (planned(at)?, at.get("unique").is_some_and(|unique| unique.truthy()));
    // The primary shard is the last: as soon as it is open, requests go on.
    let others = table.shards().filter(|shard| **shard != primary);
    for shard in others.chain([&primary]) {
        if *shard == primary {
            notify(conductor, at, go_on)?;
        }
        let (placement, step) = (table.placement(namespace, unique, shard), conductor.step()?);
        let command = doc! {
            (name::PLACE): namespace, "step": step, "uuid": at.get_or_missing("uuid"),
            "options": at.get_or_missing("options"), "indexes": at.get_or_missing("indexes"),
            "placement": placement.as_raw()
        };
        conductor.tell(shard.as_str(), &command, go_on)?;
    }
    Ok(Phase::Reached(with(at, &[("phase", "entering".into())])))
}

/// The event comes before all that is done to the collection now.
fn notify(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<()> {
    let event = doc! {
        "shardCollection": name_of(at), "shardKey": at.get_or_missing("key"), "unique": at.get_or_missing("unique"),
        "numInitialChunks": chunks_of(at).count() as i64, "presplitHashedZones": at.get_or_missing("presplit")
    };
    conductor.notify(text(at, "primary"), at, &event, go_on)
}

fn enter(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<Phase> {
    let namespace = name_of(at);
    let (Some(uuid), Some(Value::Timestamp(since))) = (uuid_of(at, "uuid"), at.get("since")) else {
        bail!(Code::INTERNAL_ERROR, "config.ddl has no plan for {namespace}");
    };
    let pattern = pattern_of(at)?;
    let unique = at.get("unique").is_some_and(|unique| unique.truthy());
    let options = at.get("options").and_then(|options| options.as_doc());
    let collation = options.and_then(|options| options.get("collation")?.as_doc());
    let lived = conductor.front.clock.now_millis();
    let mut entry = collection_entry(namespace, &uuid, pattern.document(), unique, collation, (since, lived));
    if let Some(timeseries) = options.and_then(|options| options.get("timeseries")) {
        entry.append(ENTRY_FIELD, timeseries);
    }
    conductor.change(go_on, |change| {
        change.put(COLLECTIONS, entry.as_raw())?;
        let mut count = 0;
        for chunk in chunks_of(at) {
            change.put(CHUNKS, chunk)?;
            count += 1;
        }
        let details = doc! {
            "shardKey": pattern.document(), "uuid": uuid_value(&uuid), "primary": text(at, "primary"), "numChunks": count
        };
        conductor.note(change, "shardCollection.end", namespace, details.as_raw())?;
        change.remove(DDL, Value::String(namespace)).map(|_| ())
    })?;
    Ok(Phase::Over(doc! { "collectionsharded": &shown(namespace) }))
}

/// The name by which users know a collection.
pub(in crate::sharding::conductor) fn shown(namespace: &str) -> String {
    match split_buckets(namespace) {
        Some((db, name)) => format!("{db}.{name}"),
        None => namespace.to_owned(),
    }
}

fn open(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<Phase> {
    let (namespace, primary) = (name_of(at), text(at, "primary"));
    // The primary shard first: it may take requests while another has no room to forget its part.
    let step = conductor.step()?;
    let command = doc! { (name::OPEN): namespace, "step": step };
    conductor.tell(primary, &command, go_on)?;
    if at.get("chunks").is_some() {
        for shard in planned(at)?.shards().filter(|shard| shard.as_str() != primary) {
            let step = conductor.step()?;
            let command = doc! {
                (name::DROP): namespace, "step": step, "uuid": at.get_or_missing("uuid"), "copy": true
            };
            conductor.tell(shard.as_str(), &command, go_on)?;
        }
    }
    conductor.change(go_on, |change| change.remove(DDL, Value::String(namespace)).map(|_| ()))?;
    Ok(Phase::Refused(reason(at)))
}

fn pattern_of(at: RawDoc<'_>) -> Result<KeyPattern> {
    KeyPattern::parse(at.get("key").and_then(|key| key.as_doc()).unwrap_or(RawDoc::EMPTY))
}

fn chunks_of(at: RawDoc<'_>) -> impl Iterator<Item = RawDoc<'_>> {
    let chunks = at.get("chunks").and_then(|chunks| chunks.as_array());
    chunks.into_iter().flat_map(|chunks| chunks.values()).filter_map(|chunk| chunk.as_doc())
}

/// The table that was planned.
fn planned(at: RawDoc<'_>) -> Result<RoutingTable> {
    let uuid = uuid_of(at, "uuid").unwrap_or_default();
    table_of(&pattern_of(at)?, uuid, chunks_of(at))
}
