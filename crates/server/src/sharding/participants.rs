//! What the conductor has shards do to collections: close and open them, make and drop them, each as often as it is asked.
//!
//! A closed collection has a placement that owns nothing, with a version that no request has: whoever asks waits. Closing comes in two
//! steps. First the placement is written, then the collection's gate is closed once: writers that have not seen the placement are through
//! before that, and transactions that have not seen it fail behind it.
//!
//! Each command carries a step, a time that only grows; what comes late, from a conductor that was replaced or by a slow connection, is
//! refused by it.

use std::sync::Arc;

use sheaf_bson::{ArrayBuf, Binary, DocBuf, RawDoc, Timestamp, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::ddl::index_spec;
use sheaf_shard::placement::{KeyPattern, KeyRange, closed_placement};
use sheaf_storage::{
    Collection, CollectionChange, CreateCollection, Direction, Engine, Interrupt, Range, Told, Uuid,
};

use sheaf_timeseries::{TimeseriesOptions, bucket_options, split_buckets, view_options};

use super::key_index::ShardKey;
use super::marks::{PLACEMENTS, is_closed, uuid_value, with_leaving};
use super::rows;
use crate::commands::timeseries;
use crate::node::Node;

/// The commands' names.
pub mod name {
    /// Makes the collection if there is none, closes it, checks that it can have the shard key, and makes its index if it is empty.
    pub const CLOSE: &str = "_shardsvrCloseCollection";
    /// Makes the collection with its indexes if there is none, and gives it its placement.
    pub const PLACE: &str = "_shardsvrCreateCollectionParticipant";
    /// Opens a closed collection as one that is not sharded.
    pub const OPEN: &str = "_shardsvrOpenCollection";
    /// Checks that a collection can have a shard key.
    pub const CHECK: &str = "_shardsvrCheckShardKey";
    /// Tells what the shard has of a collection.
    pub const DESCRIBE: &str = "_shardsvrDescribeCollection";
    /// Gives a closed collection another name.
    pub const RENAME: &str = "_shardsvrRenameCollectionParticipant";
    /// Shows record keys and hashes of a collection that is copied.
    pub const HASHES: &str = "_shardsvrRangeHashes";
    /// Shows documents of a collection that is copied.
    pub const DOCUMENTS: &str = "_shardsvrRangeDocuments";
    /// Makes a collection what it is on another shard.
    pub const SYNC: &str = "_shardsvrSyncRange";
    /// Makes the collection of a range that is about to be received.
    pub const MAKE_ROOM: &str = "_shardsvrMakeRoomForRange";
    /// Finds a key at which a chunk can be cut.
    pub const MEDIAN: &str = "_shardsvrMedianKey";
    /// Tells the balancer what is here, and what is being written.
    pub const FIGURES: &str = "_shardsvrBalancerFigures";
    /// Shows keys of a collection, evenly spaced.
    pub const SAMPLE: &str = "_shardsvrSampleKeys";
    /// Tells what of a database is not sharded.
    pub const LIST_DATABASE: &str = "_shardsvrListDatabase";
    /// Closes a database that moves to another shard.
    pub const LEAVE_DATABASE: &str = "_shardsvrLeaveDatabase";
    /// Hides a database that comes from another shard.
    pub const ARRIVE_DATABASE: &str = "_shardsvrArriveDatabase";
    /// Opens a database that has come, or drops one that has left.
    pub const SETTLE_DATABASE: &str = "_shardsvrSettleDatabase";
    /// Makes a collection what it is on another shard.
    pub const TAKE_COLLECTION: &str = "_shardsvrTakeCollection";
    /// Shows the documents of a collection in its order.
    pub const RECORDS: &str = "_shardsvrRecords";
    /// Tells the retryable statements about a collection that are on record.
    pub const STATEMENTS: &str = "_shardsvrStatements";
    /// Takes another shard's records of retryable statements.
    pub const TAKE_STATEMENTS: &str = "_shardsvrTakeStatements";
    /// Makes the hidden collection of an operation that gives a collection another key or place.
    pub const PREPARE: &str = "_shardsvrReshardingPrepare";
    /// Takes documents into the hidden collection.
    pub const FETCH: &str = "_shardsvrReshardingFetch";
    /// Has a donor note what changes.
    pub const BEGIN_NOTES: &str = "_shardsvrReshardingBeginNotes";
    /// Tells what a donor has noted.
    pub const NOTED: &str = "_shardsvrReshardingNoted";
    /// Ends a donor's notes.
    pub const END_NOTES: &str = "_shardsvrReshardingEndNotes";
    /// Closes a collection, sharded or not.
    pub const SHUT: &str = "_shardsvrReshardingClose";
    /// Puts the hidden collection in the place of the old one.
    pub const SWAP: &str = "_shardsvrReshardingSwap";
    /// Drops the old collection on a shard that has nothing of the new one.
    pub const RETIRE: &str = "_shardsvrReshardingRetire";
    /// Drops the hidden collection.
    pub const GIVE_UP: &str = "_shardsvrReshardingGiveUp";
    /// Finds ends of chunks for a key that a collection does not have yet.
    pub const SAMPLE_FOR: &str = "_shardsvrReshardingSample";
    /// Closes a sharded collection.
    pub const BLOCK: &str = "_shardsvrParticipantBlock";
    /// Changes what the buckets of a time-series collection span.
    pub const SET_SPANS: &str = "_shardsvrSetTimeseriesSpans";
    /// Tells change streams what is done to a collection over several shards.
    pub const NOTIFY: &str = "_shardsvrNotifyShardingEvent";
    /// Drops a database, and the placements of its collections.
    pub const DROP_DATABASE: &str = "_shardsvrDropDatabaseParticipant";
    /// Drops the collection with this UUID, and its placement.
    pub const DROP: &str = "_shardsvrDropCollectionParticipant";
}

/// Where databases are that have ever moved: `{_id: "garden", state: "gone"}`.
pub(super) const HOMES: &str = "config.databaseHomes";

/// The newest step that was heard of for each namespace.
pub(super) const STEPS: &str = "config.ddlSteps";

/// What a command carries.
pub(super) struct Asked<'a> {
    pub engine: &'a Engine,
    body: RawDoc<'a>,
    pub namespace: &'a str,
    pub go_on: Interrupt<'a>,
}

impl<'a> Asked<'a> {
    /// Takes the namespace's turn, and refuses what is late.
    pub fn with<T>(
        node: &'a Arc<Node>,
        body: RawDoc<'a>,
        go_on: Interrupt<'a>,
        work: impl FnOnce(&Asked<'a>) -> Result<T>,
    ) -> Result<T> {
        if node.sharding().is_none() {
            bail!(
                Code::NO_SHARDING_ENABLED,
                "Cannot accept sharding commands if not started with --shardsvr"
            );
        }
        let own = body.iter().next().and_then(|field| field.value().as_str());
        let (Some(namespace), Some(Value::Timestamp(step))) = (own, body.get("step")) else {
            bail!(Code::FAILED_TO_PARSE, "an internal command names no collection, or no step");
        };
        let asked = Asked { engine: node.engine(), body, namespace, go_on };
        let _turn = node.ddl_turns.take(namespace, go_on)?;
        asked.heed(step)?;
        work(&asked)
    }

    fn heed(&self, step: Timestamp) -> Result<()> {
        rows::ensure(self.engine, STEPS, self.go_on)?;
        rows::ensure(self.engine, PLACEMENTS, self.go_on)?;
        rows::change(self.engine, self.go_on, |change| {
            let known = change.get(STEPS, Value::String(self.namespace))?;
            match known.as_ref().and_then(|known| known.as_raw().get("step")) {
                Some(Value::Timestamp(newer)) if newer > step => bail!(
                    Code::CONFLICTING_OPERATION_IN_PROGRESS,
                    "a newer conductor has changed {} since: {} and {}",
                    self.namespace,
                    newer.0,
                    step.0
                ),
                _ => change.put(STEPS, doc! { "_id": self.namespace, "step": step }.as_raw()),
            }
        })
        .map(|_| ())
    }

    pub fn uuid(&self, name: &str) -> Result<Uuid> {
        match self.body.get(name) {
            Some(Value::Binary(Binary { subtype: 4, bytes })) if bytes.len() == 16 => {
                Ok(Uuid::from_slice(bytes).unwrap_or_default())
            }
            _ => bail!(Code::FAILED_TO_PARSE, "an internal command names no '{name}'"),
        }
    }

    pub fn document(&self, name: &str) -> RawDoc<'a> {
        self.body.get(name).and_then(|value| value.as_doc()).unwrap_or(RawDoc::EMPTY)
    }

    pub fn text(&self, name: &str) -> &'a str {
        self.body.get(name).and_then(|value| value.as_str()).unwrap_or_default()
    }

    /// Whose event a change is: the primary shard's commands name none, those of all others are copies.
    fn told(&self) -> Told {
        if self.flag("copy") { Told::Elsewhere } else { Told::Here }
    }

    pub fn flag(&self, name: &str) -> bool {
        self.body.get(name).is_some_and(|value| value.truthy())
    }

    pub fn collection(&self) -> Option<Arc<Collection>> {
        self.engine.catalog().collection(self.namespace).cloned()
    }

    /// The collection, made with this UUID if there is none.
    fn ensure(&self, uuid: Uuid, spec: CreateCollection) -> Result<Arc<Collection>> {
        loop {
            if let Some(collection) = self.collection() {
                return Ok(collection);
            }
            let spec = CreateCollection { uuid: Some(uuid), ..spec.clone() };
            match self.engine.create_collection(self.namespace, &spec, self.go_on) {
                Err(error) if error.code() != Code::NAMESPACE_EXISTS => return Err(error),
                _ => {}
            }
        }
    }

    /// The collection of buckets, made with this UUID and the view on it if there is none.
    fn ensure_buckets(
        &self,
        node: &Node,
        uuid: Uuid,
        timeseries: &TimeseriesOptions,
    ) -> Result<Arc<Collection>> {
        let Some((db, name)) = split_buckets(self.namespace) else {
            bail!(Code::INVALID_OPTIONS, "{} is not a collection of buckets", self.namespace);
        };
        let view = format!("{db}.{name}");
        let known = self.engine.catalog().collection(&view).is_some_and(|known| !known.is_timeseries());
        if known {
            bail!(Code::INVALID_OPTIONS, "{view} is not a time-series collection");
        }
        let options = bucket_options(RawDoc::EMPTY, None, timeseries);
        let collection = self.ensure(uuid, timeseries::buckets(timeseries, options)?)?;
        if self.engine.catalog().collection(&view).is_none() {
            let options =
                view_options(name, collection.options.as_raw().get_or_missing("collation"), timeseries);
            timeseries::make_view(node, &view, &options, self.go_on)?;
        }
        Ok(collection)
    }

    /// Writers that have not seen that the collection is closed are through, and transactions fail. Gives the collection, in which nothing
    /// changes any more; `None`: it was dropped or renamed meanwhile, and by another name it is as open as it was.
    pub fn pass_writers(&self, uuid: &Uuid) -> Result<Option<Arc<Collection>>> {
        let passed = self.engine.coll_mod(self.namespace, &only_closed, self.go_on);
        let there = self.collection().filter(|now| now.uuid == *uuid);
        if there.is_none() {
            self.remove_closed(uuid)?;
        }
        match passed {
            Err(error) if there.is_some() || error.code() != Code::NAMESPACE_NOT_FOUND => Err(error),
            _ => Ok(there),
        }
    }

    /// A closed collection is open, as one that is not sharded.
    fn remove_closed(&self, uuid: &Uuid) -> Result<()> {
        let id = uuid_value(uuid.as_bytes());
        rows::change(self.engine, self.go_on, |change| match change.get(PLACEMENTS, id)?.filter(is_closed) {
            Some(_) => change.remove(PLACEMENTS, id).map(|_| ()),
            None => Ok(()),
        })
        .map(|_| ())
    }
}

/// Changes nothing, for which the collection is closed once.
pub(super) fn only_closed(_: &Collection) -> Result<CollectionChange> {
    Ok(CollectionChange { told: Told::Elsewhere, ..CollectionChange::default() })
}

/// [`name::CLOSE`]. Gives what the conductor has to know of the collection.
///
/// Errors: `InvalidOptions` and others, if it cannot have the shard key; it is closed then, unless that was plain before.
pub fn close(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    Asked::with(node, body, go_on, |asked| {
        let pattern = KeyPattern::parse(asked.document("key"))?;
        let key = ShardKey { pattern: &pattern, unique: asked.flag("unique"), simple: asked.flag("simple") };
        let collection = match TimeseriesOptions::of_catalog(body) {
            Some(timeseries) => asked.ensure_buckets(node, asked.uuid("newUuid")?, &timeseries)?,
            None => asked.ensure(asked.uuid("newUuid")?, CreateCollection::default())?,
        };
        key.check(&collection)?;
        let uuid = *collection.uuid.as_bytes();
        rows::change(asked.engine, go_on, |change| {
            if let Some(known) = change.get(PLACEMENTS, uuid_value(&uuid))?
                && !is_closed(&known)
            {
                bail!(Code::ALREADY_INITIALIZED, "{} is sharded already", asked.namespace);
            }
            let closed = closed_placement(asked.namespace, uuid, &pattern, key.unique);
            change.put(PLACEMENTS, closed.as_raw())
        })?;
        let Some(collection) = asked.pass_writers(&collection.uuid)? else {
            bail!(Code::CONFLICTING_OPERATION_IN_PROGRESS, "{} was dropped meanwhile", asked.namespace);
        };
        if !key.check(&collection)? {
            let spec = key.spec(&collection)?;
            asked.engine.create_indexes(asked.namespace, &[spec.as_raw()], go_on)?;
        }
        let collection = asked.collection().unwrap_or(collection);
        Ok(description(&collection))
    })
}

/// What the other owners of a collection need to make the same.
pub(super) fn description(collection: &Collection) -> DocBuf {
    let specs = ArrayBuf::build(|list| {
        collection.indexes.iter().for_each(|index| _ = list.push(index.spec.as_raw()));
    });
    doc! {
        "uuid": uuid_value(collection.uuid.as_bytes()), "options": collection.options.as_raw(),
        "indexes": Value::Array(specs.as_raw()), "empty": collection.count() == 0
    }
}

/// [`name::PLACE`].
///
/// Errors: `InvalidUUID`, if the shard has documents of another collection of this name.
pub fn place(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    Asked::with(node, body, go_on, |asked| {
        let uuid = asked.uuid("uuid")?;
        // Where it is there, it is opened and nothing else.
        if !asked.flag("there") {
            asked.make(uuid)?;
        } else if asked.collection().is_none_or(|there| there.uuid != uuid) {
            return Ok(doc! {});
        }
        rows::change(asked.engine, go_on, |change| {
            let known = change.get(PLACEMENTS, uuid_value(uuid.as_bytes()))?;
            // What has gone on from here stays as it is.
            match known {
                Some(known) if !is_closed(&known) => Ok(()),
                Some(known) => {
                    let placement = DocBuf::from(asked.document("placement"));
                    change.put(PLACEMENTS, with_leaving(&placement, &known)?.as_raw())
                }
                None => change.put(PLACEMENTS, asked.document("placement")),
            }
        })?;
        Ok(doc! {})
    })
}

impl Asked<'_> {
    /// Makes the collection with the options and indexes that the command names, if it is not there.
    pub fn make(&self, uuid: Uuid) -> Result<()> {
        let (asked, go_on) = (self, self.go_on);
        if let Some(other) = asked.collection().filter(|other| other.uuid != uuid) {
            let check = |now: &Collection| {
                if now.uuid == other.uuid && now.count() == 0 && !now.is_view() {
                    return Ok(());
                }
                bail!(
                    Code::INVALID_UUID,
                    "this shard has another collection {} with documents",
                    asked.namespace
                )
            };
            asked.engine.drop_collection_if(asked.namespace, &check, Told::Elsewhere, go_on)?;
        }
        let specs = asked.body.get("indexes").and_then(|specs| specs.as_array()).unwrap_or(RawDoc::EMPTY);
        let specs: Vec<RawDoc<'_>> = specs.values().filter_map(|spec| spec.as_doc()).collect();
        let is_id = |spec: &RawDoc<'_>| {
            index_spec::is_id_key(spec.get("key").and_then(|key| key.as_doc()).unwrap_or(RawDoc::EMPTY))
        };
        let others: Vec<RawDoc<'_>> = specs.iter().copied().filter(|spec| !is_id(spec)).collect();
        let spec = CreateCollection {
            options: DocBuf::from(asked.document("options")),
            id_index: specs.iter().find(|spec| is_id(spec)).map(|spec| DocBuf::from(*spec)),
            indexes: others.iter().map(|spec| DocBuf::from(*spec)).collect(),
            told: Told::Elsewhere,
            ..CreateCollection::default()
        };
        asked.ensure(uuid, spec)?;
        // Of a collection that was there already some may be missing.
        if !others.is_empty() {
            asked.engine.create_indexes(asked.namespace, &others, go_on)?;
        }
        Ok(())
    }
}

/// [`name::OPEN`]: of the collection with the UUID that the command names, or of the one that has the name.
pub fn open(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    Asked::with(node, body, go_on, |asked| {
        let named = body.get("uuid").map(|_| asked.uuid("uuid")).transpose()?;
        if let Some(uuid) = named.or_else(|| asked.collection().map(|collection| collection.uuid)) {
            asked.remove_closed(&uuid)?;
        }
        Ok(doc! {})
    })
}

/// [`name::DROP`].
pub fn drop(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    Asked::with(node, body, go_on, |asked| {
        let uuid = asked.uuid("uuid")?;
        let check = |now: &Collection| match now.uuid == uuid {
            true => Ok(()),
            false => bail!(Code::NAMESPACE_NOT_FOUND, "{} is another collection now", asked.namespace),
        };
        match asked.engine.drop_collection_if(asked.namespace, &check, asked.told(), go_on) {
            Err(error) if error.code() != Code::NAMESPACE_NOT_FOUND => return Err(error),
            _ => {}
        }
        rows::change(asked.engine, go_on, |change| change.remove(PLACEMENTS, uuid_value(uuid.as_bytes())))?;
        Ok(doc! {})
    })
}

/// [`name::NOTIFY`].
pub fn notify(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    Asked::with(node, body, go_on, |asked| {
        asked.engine.write_event(asked.namespace, asked.uuid("uuid")?, asked.document("event"), go_on)?;
        Ok(doc! {})
    })
}

/// [`name::BLOCK`]: of a collection that the shard has, and that is sharded.
pub fn block(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    Asked::with(node, body, go_on, |asked| {
        let uuid = asked.uuid("uuid")?;
        let pattern = KeyPattern::parse(asked.document("key"))?;
        let closed = closed_placement(asked.namespace, *uuid.as_bytes(), &pattern, asked.flag("unique"));
        rows::change(asked.engine, go_on, |change| {
            match change.get(PLACEMENTS, uuid_value(uuid.as_bytes()))? {
                // What is to be removed still is.
                Some(known) => change.put(PLACEMENTS, with_leaving(&closed, &known)?.as_raw()),
                // It is gone, or was never here.
                None => Ok(()),
            }
        })?;
        Ok(doc! {})
    })
}

/// [`name::SET_SPANS`]: of buckets that the shard has.
pub fn set_spans(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    Asked::with(node, body, go_on, |asked| {
        let uuid = asked.uuid("uuid")?;
        let (Some(before), Some(next)) =
            (TimeseriesOptions::of_catalog(asked.document("before")), TimeseriesOptions::of_catalog(body))
        else {
            bail!(Code::FAILED_TO_PARSE, "an internal command names no spans");
        };
        if asked.collection().is_some_and(|buckets| buckets.uuid == uuid) {
            let spans = next.to_doc();
            timeseries::set_options(
                node,
                asked.namespace,
                (&[before], &next),
                spans.as_raw(),
                &|_| Ok(()),
                go_on,
            )?;
        }
        Ok(doc! {})
    })
}

/// [`name::DROP_DATABASE`].
pub fn drop_database(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    Asked::with(node, body, go_on, |asked| {
        let db = asked.namespace;
        if let Some(sharding) = node.sharding() {
            sharding.note_drop(db);
        }
        // The event is told where the sharded collections were all there was, too.
        if asked.engine.catalog().has_database(db) || asked.told() == Told::Here {
            asked.engine.drop_database(db, &|_| Ok(()), asked.told(), go_on)?;
            node.metrics.forget_database(db);
        }
        let is_of = |placement: RawDoc<'_>| {
            let ns = placement.get("ns").and_then(|ns| ns.as_str()).unwrap_or_default();
            ns.split_once('.').is_some_and(|(of, _)| of == db)
        };
        let left = rows::find(&asked.engine.view()?, PLACEMENTS, is_of)?;
        rows::ensure(asked.engine, HOMES, go_on)?;
        rows::change(asked.engine, go_on, |change| {
            for placement in &left {
                change.remove(PLACEMENTS, placement.as_raw().get_or_missing("_id"))?;
            }
            change.remove(HOMES, Value::String(db)).map(|_| ())
        })?;
        Ok(doc! {})
    })
}

/// Keys that are kept to find the median among; of more, every second one goes.
const SAMPLE_MAX: usize = 20_000;

/// [`name::MEDIAN`]: of the keys in a range, one that has about as many below as above it; none where there are not two.
pub fn median(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    let document = |name: &str| body.get(name).and_then(|value| value.as_doc()).unwrap_or(RawDoc::EMPTY);
    let namespace = body.iter().next().and_then(|field| field.value().as_str()).unwrap_or_default();
    let view = node.engine().view()?;
    let Some(collection) = view.collection(namespace) else { return Ok(doc! {}) };
    let placement = rows::get(&view, PLACEMENTS, uuid_value(collection.uuid.as_bytes()))?;
    let key = placement.as_ref().and_then(|placement| placement.as_raw().get("key")?.as_doc());
    let Some(key) = key else { bail!(Code::NAMESPACE_NOT_SHARDED, "{namespace} is not sharded") };
    let pattern = KeyPattern::parse(key)?;
    let (min, max) = (pattern.key(document("min"))?, pattern.key(document("max"))?);
    let range = KeyRange::new(&min, &max, max == pattern.max());
    let (mut sample, mut every, mut seen) = (Vec::new(), 1usize, 0usize);
    let mut cursor = view.records(collection, Range::ALL, Direction::Forward)?;
    while cursor.next()? {
        let Ok(key) = pattern.key_of(cursor.doc()) else { continue };
        if !range.contains(&key) {
            continue;
        }
        seen += 1;
        if seen.is_multiple_of(every) {
            sample.push(key);
        }
        if sample.len() >= SAMPLE_MAX {
            go_on()?;
            let mut at = 0;
            sample.retain(|_| {
                at += 1;
                at % 2 == 0
            });
            every *= 2;
        }
    }
    sample.sort_unstable();
    // A chunk that begins with its only key cannot be cut.
    let middle = sample.iter().skip(sample.len() / 2).chain(&sample).find(|key| **key > sample[0]);
    Ok(middle.map_or_else(|| doc! {}, |key| doc! { "median": key.document() }))
}

/// [`name::RENAME`]: the collection and its placement, which is closed, have the new name.
///
/// Errors: those of `renameCollection`.
pub fn rename(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    Asked::with(node, body, go_on, |asked| {
        let (from, to) = (asked.namespace, body.get("to").and_then(|to| to.as_str()).unwrap_or_default());
        let uuid = asked.body.get("uuid").map(|_| asked.uuid("uuid")).transpose()?;
        let catalog = asked.engine.catalog();
        // Another shard than the primary one may have left the cluster meanwhile, and have come back without the collection.
        let has_none = || uuid.is_some_and(|uuid| catalog.by_uuid(&uuid).is_none());
        if asked.flag("copy") && has_none() {
            return Ok(doc! {});
        }
        let is_done = catalog.collection(to).is_some_and(|there| Some(there.uuid) == uuid);
        if !is_done {
            let Some(source) = catalog.collection(from) else {
                bail!(Code::NAMESPACE_NOT_FOUND, "Source collection {from} does not exist");
            };
            if source.is_view() {
                bail!(Code::COMMAND_NOT_SUPPORTED_ON_VIEW, "cannot rename view: {from}");
            }
            crate::commands::ddl::names::check_new_name(to)?;
            let check = |source: &Collection, _: Option<&Collection>| match uuid {
                Some(uuid) if uuid != source.uuid => bail!(Code::NAMESPACE_NOT_FOUND, "{from} was replaced"),
                _ => Ok(()),
            };
            let (drop_target, told) = (asked.flag("dropTarget"), asked.told());
            asked.engine.rename_collection(from, to, drop_target, &check, told, go_on)?;
            node.metrics.forget(from);
        }
        if let Some(uuid) = uuid {
            rows::change(asked.engine, go_on, |change| {
                let Some(placement) = change.get(PLACEMENTS, uuid_value(uuid.as_bytes()))? else {
                    return Ok(());
                };
                let renamed = DocBuf::build(|out| {
                    for field in placement.as_raw().iter() {
                        match field.key() {
                            "ns" => _ = out.append("ns", to),
                            _ => _ = out.append_element(field),
                        }
                    }
                });
                change.put(PLACEMENTS, renamed.as_raw())
            })?;
        }
        Ok(doc! {})
    })
}

/// [`name::CHECK`].
///
/// Errors: `InvalidOptions`, if there is no index that begins with the key.
pub fn check(node: &Arc<Node>, body: RawDoc<'_>, _: Interrupt<'_>) -> Result<DocBuf> {
    let namespace = body.iter().next().and_then(|field| field.value().as_str()).unwrap_or_default();
    let key = body.get("key").and_then(|key| key.as_doc()).unwrap_or(RawDoc::EMPTY);
    let unique = body.get("unique").is_some_and(|unique| unique.truthy());
    let catalog = node.engine().catalog();
    let Some(collection) = catalog.collection(namespace) else {
        bail!(Code::NAMESPACE_NOT_FOUND, "ns does not exist: {namespace}");
    };
    let key = ShardKey { pattern: &KeyPattern::parse(key)?, unique, simple: true };
    if !key.check(collection)? {
        bail!(
            Code::INVALID_OPTIONS,
            "Please create an index that starts with the proposed shard key before refining the shard key"
        );
    }
    Ok(doc! {})
}

/// [`name::DESCRIBE`]: the collection of this name, if there is one, and its placement; of a view, that it is one, and its measurements'
/// options.
pub fn describe(node: &Arc<Node>, body: RawDoc<'_>, _: Interrupt<'_>) -> Result<DocBuf> {
    let namespace = body.iter().next().and_then(|field| field.value().as_str()).unwrap_or_default();
    let view = node.engine().view()?;
    let Some(collection) = view.collection(namespace) else { return Ok(doc! {}) };
    if collection.is_view() {
        let timeseries = collection.options.as_raw().get_or_missing("timeseries");
        return Ok(doc! { "isView": true, "timeseries": timeseries });
    }
    let mut told = description(collection);
    if let Some(placement) = rows::get(&view, PLACEMENTS, uuid_value(collection.uuid.as_bytes()))? {
        told.append("placement", placement.as_raw());
    }
    Ok(told)
}
