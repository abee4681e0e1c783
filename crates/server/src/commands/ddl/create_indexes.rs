//! `createIndexes`.

use std::cell::{Cell, RefCell};

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::ddl::collection_options::with_changes;
use sheaf_exec::ddl::index_spec::{self, Relation};
use sheaf_storage::{Collection, CreateCollection, Uuid, Write};
use sheaf_timeseries::{TimeseriesOptions, index_for_buckets, split_buckets};

use super::names;
use crate::args::{Args, Documents, Loose, safe_i64};
use crate::audited::{self, Creation};
use crate::command::*;
use crate::commands::timeseries::{measured_buckets, no_buckets, on_buckets, options_of, says_measured};
use crate::op::Operation;
use crate::reply::Reply;
use crate::sharding::key_rules;

/// Most indexes of a collection.
const INDEXES_MAX: usize = 64;

/// `{createIndexes: "users", indexes: [{key: {email: 1}, name: "email_1", unique: true}]}`
pub struct CreateIndexes<'a> {
    collection: &'a str,
    indexes: Documents<'a>,
    /// Whether fields that no index has are left out, instead of being refused.
    ignore_unknown: bool,
    commit_quorum: Value<'a>,
    uuid: Option<Uuid>,
}

impl<'a> Command<'a, Operation<'a>> for CreateIndexes<'a> {
    const NAME: &'static str = "createIndexes";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "builds indexes",
        access: Access::Write,
        transaction: Transaction::Allowed,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: true,
        admin_only: false,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Collection, &[Action::CreateIndex])]),
        spread: Spread::Owners,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let collection = args.collection()?;
        let indexes = args.required_documents("indexes")?;
        let ignore_unknown = args.optional::<Loose>("ignoreUnknownIndexOptions")?.is_some_and(|flag| flag.0);
        args.optional::<bool>("isTimeseriesNamespace")?;
        // The version of the indexes, beside that of each: it says nothing.
        args.optional::<i64>("v")?;
        let uuid = args.optional("collectionUUID")?;
        let commit_quorum = args.value("commitQuorum");
        check_quorum(commit_quorum)?;
        Ok(CreateIndexes { collection, indexes, ignore_unknown, commit_quorum, uuid })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let namespace = op.namespace(self.collection);
        op.metrics().namespace.replace(Some(namespace.clone()));
        if self.indexes.count() == 0 {
            bail!(Code::BAD_VALUE, "Must specify at least one index to create");
        }
        if !self.commit_quorum.is_missing() && op.node().options.set_name.is_none() {
            bail!(Code::BAD_VALUE, "Standalones can't specify commitQuorum");
        }
        super::room::check_room(op, self.indexes.iter().map(|spec| spec.len()).sum())?;
        if op.api().strict {
            self.indexes.iter().try_for_each(check_stable)?;
        }
        let first = self.prepare_all(None, measured(op, &namespace)?.as_ref())?;
        self.check_place(op, &namespace)?;
        names::check_uuid(op.view()?.catalog(), &namespace, self.uuid)?;
        let mut created = false;
        // The collection may be dropped between its creation and the build.
        for _ in 0..10 {
            let view = op.view()?;
            let Some(collection) = view.collection(&namespace) else {
                if says_measured(op) && split_buckets(&namespace).is_some() {
                    return Err(no_buckets(&namespace));
                }
                names::check_new_name(&namespace)?;
                if self.indexes.iter().any(|spec| spec.element("clustered").is_some()) {
                    bail!(
                        6100900,
                        "Cannot implicitly create a new collection with createIndex 'clustered' option"
                    );
                }
                check_all(&namespace, 1, &first)?;
                create(op, &namespace)?;
                created = true;
                continue;
            };
            if let Some(buckets) = measured_buckets(op, view.catalog(), collection) {
                let options = options_of(collection)?;
                return self.build(op, buckets, created, Some(&options));
            }
            if collection.is_view() {
                bail!(Code::COMMAND_NOT_SUPPORTED_ON_VIEW, "Cannot create indexes on a view: {namespace}");
            }
            match self.build(op, collection, created, None) {
                Err(error) if error.code() == Code::NAMESPACE_NOT_FOUND && !op.in_transaction() => {}
                built => return built,
            }
        }
        bail!(Code::WRITE_CONFLICT, "Collection {namespace} kept changing while an index was built on it")
    }
}

/// Most members that a set can have, of which a quorum is a part.
const MEMBERS_MAX: i64 = 50;

/// Errors: `FailedToParse`.
fn check_quorum(quorum: Value<'_>) -> Result<()> {
    match quorum {
        Value::Missing => Ok(()),
        Value::String("") => bail!(Code::FAILED_TO_PARSE, "commitQuorum can't be an empty string"),
        Value::String(_) => Ok(()),
        number if number.is_number() => match safe_i64(number) {
            Some(0..=MEMBERS_MAX) => Ok(()),
            _ => bail!(
                Code::FAILED_TO_PARSE,
                "commitQuorum has to be a non-negative number and not greater than {MEMBERS_MAX}"
            ),
        },
        _ => bail!(Code::FAILED_TO_PARSE, "commitQuorum has to be a number or a string"),
    }
}

fn create(op: &Operation<'_>, namespace: &str) -> Result<()> {
    let spec = op.making(namespace, CreateCollection::default())?;
    let creation = Creation::of(op, namespace)?;
    if let Some(mut transaction) = op.transaction() {
        transaction.create_collection(namespace, spec)?;
        drop(transaction);
        creation.into_iter().for_each(|creation| creation.done(op, namespace, None));
        return Ok(());
    }
    let stop = op.interrupter();
    match op.engine().create_collection(namespace, &spec, &|| stop.check()) {
        Ok(position) => {
            op.note_commit(position);
            creation.into_iter().for_each(|creation| creation.done(op, namespace, None));
        }
        Err(error) if error.code() == Code::NAMESPACE_EXISTS => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// How many indexes are ready, as MongoDB counts them.
fn count_ready(collection: &Collection) -> usize {
    collection.counted_indexes().filter(|index| index.ready).count()
}

/// The options of a time series whose measurements are to have the indexes.
fn measured(op: &Operation<'_>, namespace: &str) -> Result<Option<TimeseriesOptions>> {
    let view = op.view()?;
    let Some(collection) = view.collection(namespace) else { return Ok(None) };
    measured_buckets(op, view.catalog(), collection).map(|_| options_of(collection)).transpose()
}

/// Checks and completes a specification of an index of measurements. One on their `_id` is checked as what it is to be
/// on buckets: it is not the index on _id, and has a name of its own.
fn prepare_measured(
    spec: RawDoc<'_>,
    collation: Option<RawDoc<'_>>,
    options: &TimeseriesOptions,
) -> Result<DocBuf> {
    let key = spec.get_or_missing("key");
    match key.as_doc() {
        Some(fields) if fields.iter().map(|field| field.key()).eq(["_id"]) => {
            let on_buckets = index_for_buckets(fields, options)?;
            let checked = with_changes(spec, &[("key", Value::Document(on_buckets.as_raw()))]);
            let prepared = index_spec::prepare(checked.as_raw(), collation)?;
            Ok(with_changes(prepared.as_raw(), &[("key", key)]))
        }
        _ => index_spec::prepare(spec, collation),
    }
}

impl CreateIndexes<'_> {
    /// Refuses collections that get no indexes of clients, and what those of the server may not have.
    ///
    /// Errors: `InvalidNamespace`, `IllegalOperation`, 8293400, `BadValue`.
    fn check_place(&self, op: &Operation<'_>, namespace: &str) -> Result<()> {
        match namespace {
            "config.transactions" => {
                bail!(Code::ILLEGAL_OPERATION, "not allowed to create index on {namespace}")
            }
            "config.system.preimages" => bail!(8293400, "not allowed to create index on {namespace}"),
            _ => {}
        }
        let is_system = self.collection.starts_with("system.") && split_buckets(namespace).is_none();
        if is_system && self.indexes.iter().any(|spec| spec.element("hidden").is_some()) {
            bail!(Code::BAD_VALUE, "Can't hide index on system collection");
        }
        let (db, collection) = names::split(namespace);
        match (db, collection) {
            // Where it is no set's, its indexes are refused as such.
            ("local", "oplog.rs") if op.node().options.set_name.is_none() => Ok(()),
            _ => names::check_written_name(db, collection),
        }
    }

    /// The specifications checked and completed; `timeseries` of measurements, whose `_id` is a field as others are.
    fn prepare_all(
        &self,
        collation: Option<RawDoc<'_>>,
        timeseries: Option<&TimeseriesOptions>,
    ) -> Result<Vec<DocBuf>> {
        let prepare = |spec: RawDoc<'_>| {
            sheaf_meter::tick_for(spec.len())?;
            let known = self.ignore_unknown.then(|| index_spec::without_unknown(spec));
            let spec = known.as_ref().map_or(spec, DocBuf::as_raw);
            match timeseries {
                Some(options) => prepare_measured(spec, collation, options),
                None => index_spec::prepare(spec, collation),
            }
        };
        self.indexes.iter().map(prepare).collect()
    }

    /// Builds what is missing; `timeseries` of buckets whose measurements are to have the indexes.
    fn build(
        &self,
        op: &Operation<'_>,
        collection: &Collection,
        created: bool,
        timeseries: Option<&TimeseriesOptions>,
    ) -> Result<Reply> {
        let new = self.wanted(op, collection, timeseries)?;
        // Indexes that are ready before, and that are made.
        let counts = Cell::new((count_ready(collection), new.len()));
        if new.is_empty() {
            op.note_newest_commit();
        } else if let Some(mut transaction) = op.transaction() {
            let raw: Vec<RawDoc<'_>> = new.iter().map(DocBuf::as_raw).collect();
            audited::room_for_indexes(op, raw.iter().copied())?;
            transaction.create_indexes(&collection.namespace, &raw)?;
            drop(transaction);
            audited::indexes_built(op, &collection.namespace, &new, Code::OK);
        } else {
            // As the collection is when the build begins: another DDL may have come between.
            let building = RefCell::new(Vec::new());
            let wanted = |now: &Collection| {
                names::check_uuid(&op.catalog(), &now.namespace, self.uuid)?;
                names::refuse_view(now)?;
                op.check_changed(now)?;
                let new = self.wanted(op, now, timeseries)?;
                counts.set((count_ready(now), new.len()));
                if op.front.audit.is_some() {
                    audited::room_for_indexes(op, new.iter().map(DocBuf::as_raw))?;
                    building.replace(new.clone());
                }
                Ok(new)
            };
            let stop = op.interrupter();
            let namespace = &collection.namespace;
            let built = op.engine().create_indexes_for(namespace, &wanted, &|| stop.check());
            let result = built.as_ref().err().map_or(Code::OK, sheaf_errors::Error::code);
            audited::indexes_built(op, namespace, &building.take(), result);
            op.note_commit(built?);
        }
        let (before, made) = counts.get();
        let reply = Reply::ok()
            .with("numIndexesBefore", before as i32)
            .with("numIndexesAfter", (before + made) as i32);
        let reply = match created || made > 0 {
            true => reply.with("createdCollectionAutomatically", created),
            false => reply,
        };
        Ok(match made {
            0 => reply.with("note", "all indexes already exist"),
            _ if made < self.indexes.count() => reply.with("note", "index already exists"),
            _ => reply,
        })
    }

    /// The specifications that no index of the collection fulfils yet.
    fn wanted(
        &self,
        op: &Operation<'_>,
        collection: &Collection,
        timeseries: Option<&TimeseriesOptions>,
    ) -> Result<Vec<DocBuf>> {
        let collation = collection.options.as_raw().get("collation").and_then(|v| v.as_doc());
        let mut specs = self.prepare_all(collation, timeseries)?;
        if let Some(options) = timeseries {
            specs = specs
                .iter()
                .map(|spec| on_buckets(spec.as_raw(), options, collection))
                .collect::<Result<_>>()?;
        }
        if timeseries.is_none() {
            let options = collection.options.as_raw();
            self.indexes.iter().try_for_each(|spec| check_clustered(options, spec))?;
        }
        let new = without_existing(collection, specs)?;
        if !new.is_empty() {
            check_all(&collection.namespace, collection.indexes.len(), &new)?;
            if let Some(placed) = op.placed(collection)?.filter(|placed| !placed.unsplittable) {
                new.iter().try_for_each(|spec| key_rules::check_new_index(&placed.pattern, spec.as_raw()))?;
            }
        }
        Ok(new)
    }
}

/// The specifications that no index fulfils yet.
///
/// Errors: `IndexOptionsConflict`, `IndexKeySpecsConflict`.
fn without_existing(collection: &Collection, specs: Vec<DocBuf>) -> Result<Vec<DocBuf>> {
    let mut new = Vec::new();
    for spec in specs {
        let key = spec.as_raw().get("key").and_then(|v| v.as_doc()).unwrap_or(RawDoc::EMPTY);
        // The index on _id is there since the collection was made.
        if index_spec::is_id_key(key) {
            check_id_collation(collection, spec.as_raw())?;
            continue;
        }
        let mut exists = false;
        for index in &collection.indexes {
            sheaf_meter::tick_for(spec.as_bytes().len())?;
            exists |=
                index_spec::relate(spec.as_raw(), index.spec.as_raw())? == Relation::Same && index.ready;
        }
        if !exists {
            new.push(spec);
        }
    }
    Ok(new)
}

/// Options of indexes that API version 1 promises nothing about.
const UNSTABLE: &[&str] =
    &["background", "bucketSize", "dropDups", "originalSpec", "prepareUnique", "sparse", "storageEngine"];

/// Text indexes, and some options, are no part of API version 1.
///
/// Errors: `APIStrictError`.
fn check_stable(spec: RawDoc<'_>) -> Result<()> {
    let key = spec.get("key").and_then(|key| key.as_doc()).unwrap_or(RawDoc::EMPTY);
    if key.values().any(|kind| kind.as_str() == Some("text")) {
        bail!(Code::API_STRICT_ERROR, "text indexes cannot be created with apiStrict: true");
    }
    if let Some(field) = spec.iter().find(|field| UNSTABLE.contains(&field.key())) {
        bail!(
            Code::API_STRICT_ERROR,
            "BSON field 'createIndexes.indexes.{}' is not allowed with apiStrict:true.",
            field.key()
        );
    }
    Ok(())
}

/// Checks a specification, as it was given, beside the index that a clustered collection has by itself: its options tell.
///
/// Errors: 6243700, 6100906, 6100908, 6100909.
fn check_clustered(options: RawDoc<'_>, spec: RawDoc<'_>) -> Result<()> {
    let own = options.get("clusteredIndex").and_then(|own| own.as_doc());
    let key = spec.get("key").and_then(|key| key.as_doc()).unwrap_or(RawDoc::EMPTY);
    let same_key = own.is_some() && index_spec::is_id_key(key);
    if spec.element("clustered").is_some() && !same_key {
        bail!(
            6243700,
            "Cannot create index with option 'clustered' that does not match an existing clustered index"
        );
    }
    let Some(own) = own else { return Ok(()) };
    if !same_key {
        if sheaf_bson::compare(spec.get_or_missing("name"), own.get_or_missing("name")).is_eq() {
            bail!(
                6100906,
                "Cannot create an index where the name matches the clusteredIndex but the key does not - \
                 indexSpec: {}, clusteredIndex: {}",
                sheaf_bson::value_text(Value::Document(spec)),
                sheaf_bson::value_text(Value::Document(own))
            );
        }
        return Ok(());
    }
    let differs = |option: &str| {
        format!(
            "Cannot create an index with the same key pattern as the collection's clusteredIndex but a \
             different '{option}' field"
        )
    };
    if spec.get("v").is_some_and(|version| version.as_exact_i64() != Some(2)) {
        return Err(sheaf_errors::Error::location(6100908, differs("v")));
    }
    if spec.get("unique").is_some_and(|unique| unique.as_bool() != Some(true)) {
        return Err(sheaf_errors::Error::location(6100909, differs("unique")));
    }
    Ok(())
}

fn check_id_collation(collection: &Collection, spec: RawDoc<'_>) -> Result<()> {
    let own = collection.options.as_raw().get_or_missing("collation");
    if sheaf_bson::compare(spec.get_or_missing("collation"), own).is_ne() {
        bail!(Code::BAD_VALUE, "The _id index must have the same collation as the collection.");
    }
    Ok(())
}

/// Checks specifications of new indexes. More than there may be are not compared with each other, which would take
/// long.
fn check_all(namespace: &str, existing: usize, new: &[DocBuf]) -> Result<()> {
    if new.len() > INDEXES_MAX {
        check_count(namespace, existing, new)?;
    }
    check_among_themselves(new)?;
    check_count(namespace, existing, new)
}

/// Errors: `IndexAlreadyExists` for a specification that stands twice, conflicts as with existing indexes.
fn check_among_themselves(specs: &[DocBuf]) -> Result<()> {
    for (at, spec) in specs.iter().enumerate() {
        for other in &specs[..at] {
            if index_spec::relate(spec.as_raw(), other.as_raw())? == Relation::Same {
                let name = spec.as_raw().get("name").and_then(|v| v.as_str()).unwrap_or_default();
                bail!(Code::INDEX_ALREADY_EXISTS, "Identical index already exists: {name}");
            }
        }
    }
    Ok(())
}

fn check_count(namespace: &str, existing: usize, new: &[DocBuf]) -> Result<()> {
    if existing + new.len() > INDEXES_MAX {
        let key = new.last().map_or(Value::Null, |spec| spec.as_raw().get_or_missing("key"));
        bail!(
            Code::CANNOT_CREATE_INDEX,
            "add index fails, too many indexes for {namespace} key:{}",
            sheaf_bson::value_text(key)
        );
    }
    Ok(())
}
