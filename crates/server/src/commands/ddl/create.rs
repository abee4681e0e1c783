//! `create`.

use std::collections::HashSet;
use std::sync::Arc;

use sheaf_aggregate::{Namespace, Pipeline};
use sheaf_bson::{DocBuf, RawDoc, Timestamp, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::ddl::collection_options::{CollectionOptions, check_images_place, same_options};
use sheaf_exec::ddl::index_spec;
use sheaf_expr::{ParseCx, SystemVariables};
use sheaf_storage::{Catalog, Collection, CreateCollection, Write};
use sheaf_timeseries::{BUCKETS_PREFIX, TimeseriesOptions};

use super::{encrypted_fields, names, views};
use crate::args::{Args, Documents, Loose, refuse_twice};
use crate::audited::Creation;
use crate::command::*;
use crate::commands::crud::query;
use crate::commands::crud::rights::may_make_view;
use crate::commands::timeseries::CreateTimeseries;
use crate::op::Operation;
use crate::reply::Reply;

/// Most views that may stand on each other.
const VIEW_DEPTH_MAX: usize = 20;

/// `{create: "users", capped: true, size: 1048576, validator: {...}, viewOn: "people", ...}`
pub struct Create<'a> {
    collection: &'a str,
    options: CollectionOptions<'a>,
    id_index: Option<RawDoc<'a>>,
    auto_index_id: Option<bool>,
    timeseries: Option<TimeseriesOptions>,
    encrypted_fields: Option<RawDoc<'a>>,
}

impl<'a> Command<'a, Operation<'a>> for Create<'a> {
    const NAME: &'static str = "create";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "creates a collection or a view",
        access: Access::Write,
        transaction: Transaction::Allowed,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: true,
        admin_only: false,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::ByCommand(
            "createCollection on the collection (or insert, if it is no view); of a view what an aggregate needs that reads what it shows, if the user may read the view",
            |asked, rights| {
                let may = |action: Action| rights.may(asked.own(), &[action]);
                let creates = may(Action::CreateCollection) || (may(Action::Insert) && !asked.has("viewOn"));
                creates && may_make_view(asked, rights)
            },
        ),
        spread: Spread::PrimaryShard,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let collection = args.collection()?;
        let timeseries = args
            .optional::<RawDoc<'a>>("timeseries")?
            .map(|spec| TimeseriesOptions::parse(spec, "create.timeseries"))
            .transpose()?;
        let encrypted_fields: Option<RawDoc<'a>> = args.optional("encryptedFields")?;
        encrypted_fields.map(encrypted_fields::check).transpose()?;
        // Both have no effect here.
        args.optional::<i64>("flags")?;
        args.optional::<Loose>("recordIdsReplicated")?;
        let id_index = args.optional("idIndex")?;
        let auto_index_id = args.optional::<Loose>("autoIndexId")?.map(|flag| flag.0);
        let options = read_options(args)?;
        if encrypted_fields.is_some() {
            if timeseries.is_some() || options.view_on.is_some() {
                bail!(6346401, "'encryptedFields' cannot be used with views or time-series collections");
            }
            if options.capped {
                bail!(6367301, "Encrypted collections cannot be capped");
            }
        }
        Ok(Create { collection, options, id_index, auto_index_id, timeseries, encrypted_fields })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let namespace = op.namespace(self.collection);
        op.metrics().namespace.replace(Some(namespace.clone()));
        if let Some(timeseries) = self.timeseries {
            super::room::check_room(op, op.body.len())?;
            let Create { collection, options, id_index, auto_index_id, .. } = self;
            let refused = [(id_index.is_some(), "idIndex"), (auto_index_id.is_some(), "autoIndexId")];
            let creation =
                Creation::of(op, &namespace)?.filter(|_| op.catalog().collection(&namespace).is_none());
            let reply = CreateTimeseries { collection, timeseries, options, refused }.run(op)?;
            creation.into_iter().for_each(|creation| creation.done(op, &namespace, None));
            return Ok(reply);
        }
        if self.collection.starts_with(BUCKETS_PREFIX) {
            bail!(
                Code::ILLEGAL_OPERATION,
                "Cannot create a bucket collection without 'timeseries': {namespace}"
            );
        }
        names::check_new_name(&namespace)?;
        // Routers make temporary collections on shards.
        if self.options.temp && op.node().options.cluster_role.is_none() {
            bail!(Code::INVALID_OPTIONS, "the 'temp' field is an invalid option");
        }
        if self.options.view_on.is_some() && self.collection.starts_with("system.") {
            // One in the place of users would lock everybody out.
            bail!(
                Code::INVALID_NAMESPACE,
                "View name cannot start with 'system.', which is reserved for system namespaces"
            );
        }
        self.check_clustered(op)?;
        super::room::check_room(op, op.body.len())?;
        if self.auto_index_id == Some(false) && op.db() != "local" {
            bail!(50001, "autoIndexId:false is not allowed for collections in non-local databases");
        }
        self.check_validator_place(op.db())?;
        let images = self.options.pre_and_post_images;
        if images.and_then(|images| images.get("enabled")).is_some_and(|enabled| enabled.truthy()) {
            check_images_place(op.db())?;
        }
        let options = self.kept_options(op)?;
        let id_index = self.id_index(&options)?;
        if let Some(existing) = op.view()?.collection(&namespace) {
            return match matches_existing(existing, options.as_raw()) {
                true if op.in_transaction() => {
                    let what = if existing.is_view() { "A view" } else { "Collection" };
                    bail!(Code::NAMESPACE_EXISTS, "{what} already exists. NS: {namespace}")
                }
                true => Ok(Reply::ok()),
                false => Err(different(existing, options.as_raw())),
            };
        }
        if let Some(source) = self.options.view_on {
            let pipeline = self.options.pipeline.unwrap_or(RawDoc::EMPTY);
            check_view(op, op.view()?.catalog(), &namespace, source, pipeline, options.as_raw())?;
        }
        let spec =
            op.making(&namespace, CreateCollection { options, id_index, ..CreateCollection::default() })?;
        let creation = Creation::of(op, &namespace)?;
        match self.create(op, &namespace, spec) {
            // Another client made the same collection a moment ago.
            Err(error) if error.code() == Code::NAMESPACE_EXISTS && !op.in_transaction() => {
                let options = self.kept_options(op)?;
                let catalog = op.catalog();
                match catalog.collection(&namespace) {
                    Some(existing) if matches_existing(existing, options.as_raw()) => Ok(Reply::ok()),
                    _ => Err(error),
                }
            }
            Err(error) => Err(error),
            Ok(()) => {
                if let Some(creation) = creation {
                    let pipeline = self.options.pipeline.unwrap_or(RawDoc::EMPTY);
                    creation.done(op, &namespace, self.options.view_on.map(|source| (source, pipeline)));
                }
                Ok(Reply::ok())
            }
        }
    }
}

fn read_options<'a>(args: &mut Args<'a>) -> Result<CollectionOptions<'a>> {
    for name in ["changeStreamPreAndPostImages", "clusteredIndex"] {
        if let Value::Document(part) = args.value(name) {
            refuse_twice(part, &format!("create.{name}"))?;
        }
    }
    Ok(CollectionOptions {
        capped: args.optional::<Loose>("capped")?.is_some_and(|flag| flag.0),
        size: args.optional("size")?,
        max: args.optional("max")?,
        temp: args.optional::<Loose>("temp")?.is_some_and(|flag| flag.0),
        pre_and_post_images: args.optional("changeStreamPreAndPostImages")?,
        storage_engine: args.optional("storageEngine")?,
        index_option_defaults: args.optional("indexOptionDefaults")?,
        validator: args.optional("validator")?,
        validation_level: args.optional("validationLevel")?,
        validation_action: args.optional("validationAction")?,
        collation: args.optional("collation")?,
        view_on: args.optional("viewOn")?,
        pipeline: match args.documents("pipeline")? {
            Some(Documents::Array(stages)) => Some(stages),
            _ => None,
        },
        clustered_index: args.optional("clusteredIndex")?,
        expire_after_seconds: expire_after_seconds(args)?,
    })
}

/// `expireAfterSeconds`: a number, of whatever type, to be looked at where it is known for what.
fn expire_after_seconds<'a>(args: &mut Args<'a>) -> Result<Option<Value<'a>>> {
    let value = args.value("expireAfterSeconds");
    if value.is_nullish() {
        return Ok(None);
    }
    if !value.is_number() {
        bail!(
            Code::TYPE_MISMATCH,
            "BSON field 'create.expireAfterSeconds' is the wrong type '{}', expected types '[long, int, decimal, double]'",
            value.type_name()
        );
    }
    Ok(Some(value))
}

impl Create<'_> {
    /// The options as the catalog keeps them.
    fn kept_options(&self, op: &Operation<'_>) -> Result<DocBuf> {
        let options = self.options.normalize()?;
        let Some(config) = self.encrypted_fields else { return Ok(options) };
        if op.node().options.set_name.is_none() {
            bail!(6346402, "Encrypted collections are not supported on standalone");
        }
        Ok(options.with("encryptedFields", &encrypted_fields::completed(config, self.collection)))
    }

    /// Checks what a clustered collection cannot be beside that. A capped one is for tests of MongoDB itself: there is none
    /// here.
    ///
    /// Errors: 6049200, 6049204, 6127800, 6049201.
    fn check_clustered(&self, op: &Operation<'_>) -> Result<()> {
        let options = &self.options;
        if !options.clustered_index.is_some_and(|value| value.truthy()) {
            return Ok(());
        }
        for (given, code, name) in [(options.size, 6049200, "size"), (options.max, 6049204, "max")] {
            if given.is_some() {
                let text = format!(
                    "'{name}' field for capped collections is not allowed on clustered collections. Did you mean \
                     'capped: true' with 'expireAfterSeconds'?"
                );
                return Err(sheaf_errors::Error::location(code, text));
            }
        }
        if options.capped && op.front.test_commands() && options.expire_after_seconds.is_none() {
            bail!(6049201, "A capped clustered collection requires the 'expireAfterSeconds' field");
        }
        if options.capped {
            bail!(6127800, "Clustered capped collections are not available");
        }
        Ok(())
    }

    fn check_validator_place(&self, db: &str) -> Result<()> {
        if self.options.validator.is_some_and(|v| !v.is_empty()) && matches!(db, "admin" | "config" | "local")
        {
            bail!(
                Code::INVALID_OPTIONS,
                "Document validators are not allowed on collection {db}.{} in the {db} internal database",
                self.collection
            );
        }
        Ok(())
    }

    /// The specification of the `_id` index, if it is not the usual one.
    fn id_index(&self, options: &DocBuf) -> Result<Option<DocBuf>> {
        let Some(wished) = self.id_index else { return self.options.id_index() };
        if self.options.clustered_index.is_some() {
            bail!(Code::INVALID_OPTIONS, "The 'clusteredIndex' option is not supported with 'idIndex'");
        }
        if self.options.view_on.is_some() {
            bail!(Code::INVALID_OPTIONS, "'idIndex' is not allowed with 'viewOn': {:?}", self.collection);
        }
        let collation = options.as_raw().get("collation").and_then(|v| v.as_doc());
        if self.auto_index_id.is_some() {
            bail!(
                Code::INVALID_OPTIONS,
                "'idIndex' is not allowed with 'autoIndexId': {}",
                sheaf_bson::value_text(Value::Document(wished))
            );
        }
        // An index of the first version is older than collations, and takes none over.
        let is_first = wished.get("v").is_some_and(|version| version.as_exact_i64() == Some(1));
        let spec = index_spec::prepare(wished, collation.filter(|_| !is_first))?;
        index_spec::check_id_spec(wished)?;
        let own = spec.as_raw().get_or_missing("collation");
        if sheaf_bson::compare(own, options.as_raw().get_or_missing("collation")).is_ne() {
            bail!(Code::BAD_VALUE, "'idIndex' must have the same collation as the collection.");
        }
        Ok(Some(spec))
    }
}

impl Create<'_> {
    fn create(&self, op: &Operation<'_>, namespace: &str, spec: CreateCollection) -> Result<()> {
        if let Some(mut transaction) = op.transaction() {
            if self.options.view_on.is_some() {
                bail!(
                    Code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
                    "Cannot create a view in a multi-document transaction. ns: {namespace}"
                );
            }
            return transaction.create_collection(namespace, spec);
        }
        let stop = op.interrupter();
        let interrupt = || stop.check();
        if let Some(source) = self.options.view_on {
            let _turn = views::turn(op.node(), &interrupt)?;
            // Two views that are made at once must not lead to each other.
            let pipeline = self.options.pipeline.unwrap_or(RawDoc::EMPTY);
            check_view(op, &op.catalog(), namespace, source, pipeline, spec.options.as_raw())?;
            views::prepare(op.engine(), op.db(), &interrupt)?;
            op.engine().create_collection(namespace, &spec, &interrupt)?;
            op.note_commit(views::follow(op.engine(), namespace, &interrupt)?);
            return Ok(());
        }
        op.note_commit(op.engine().create_collection(namespace, &spec, &interrupt)?);
        Ok(())
    }
}

fn matches_existing(existing: &Collection, options: RawDoc<'_>) -> bool {
    same_options(existing.options.as_raw(), options)
}

/// The error that something else has this name.
fn different(existing: &Collection, options: RawDoc<'_>) -> sheaf_errors::Error {
    let namespace = &existing.namespace;
    let wants_view = options.element("viewOn").is_some();
    let message = match (existing.is_view(), wants_view) {
        (true, false) => {
            format!("namespace {namespace} already exists, but is a view rather than a collection")
        }
        (false, true) => {
            format!("namespace {namespace} already exists, but is a collection rather than a view")
        }
        (true, true) => {
            let shown = sheaf_bson::value_text(Value::Document(existing.options.as_raw()));
            format!("namespace {namespace} already exists, but with different options: {shown}")
        }
        (false, false) => {
            let mut shown = format!("{{ uuid: UUID(\"{}\")", existing.uuid);
            for field in existing.options.as_raw().iter() {
                let value = sheaf_bson::value_text(field.value());
                shown.push_str(&format!(", {}: {value}", field.key()));
            }
            format!("namespace {namespace} already exists, but with different options: {shown} }}")
        }
    };
    sheaf_errors::Error::new(Code::NAMESPACE_EXISTS, message)
}

/// Checks a view's definition: its source's name, its pipeline, that views it stands on have its collation (the one in
/// `options`), and that views do not go in circles.
///
/// Errors: `InvalidNamespace`, `OptionNotSupportedOnView`, `GraphContainsCycle`, `ViewDepthLimitExceeded`, those of
/// pipelines.
pub fn check_view(
    op: &Operation<'_>,
    catalog: &Catalog,
    namespace: &str,
    source: &str,
    pipeline: RawDoc<'_>,
    options: RawDoc<'_>,
) -> Result<()> {
    let db = names::split(namespace).0;
    names::check_full_name(&format!("{db}.{source}"), "'viewOn'")?;
    let first = pipeline.values().next().and_then(|stage| stage.as_doc()?.iter().next());
    if first.is_some_and(|stage| stage.key() == "$changeStream") && op.node().replica().is_none() {
        bail!(40573, "The $changeStream stage is only supported on replica sets");
    }
    // Whether `$$CLUSTER_TIME` is known counts when the view is read.
    let mut cx = query::update_cx(op, None)?;
    let parsed = Pipeline::parse_view(pipeline, &Namespace::new(db, source), &mut cx)?;
    let mut foreign = vec![Namespace::new(db, source)];
    parsed.foreign_namespaces(&mut foreign);
    let start = names::split(namespace).1;
    for next in &foreign {
        check_collation(catalog, namespace, &next.to_string(), options)?;
    }
    for next in foreign {
        walk_views(catalog, db, &mut vec![start.to_owned()], &next.collection, &mut HashSet::new())?;
    }
    Ok(())
}

/// Checks that a view that another one stands on has the same collation: one query can have one only.
fn check_collation(catalog: &Catalog, view: &str, other: &str, options: RawDoc<'_>) -> Result<()> {
    let Some(found) = catalog.collection(other).filter(|found| found.is_view()) else { return Ok(()) };
    let (own, its) =
        (options.get_or_missing("collation"), found.options.as_raw().get_or_missing("collation"));
    if sheaf_bson::compare(own, its).is_ne() {
        bail!(Code::OPTION_NOT_SUPPORTED_ON_VIEW, "View {view} has conflicting collation with view {other}");
    }
    Ok(())
}

/// Follows the views that `at` stands on; all of them are in one database. `path` is the way from the view that is defined to `at`.
fn walk_views(
    catalog: &Catalog,
    db: &str,
    path: &mut Vec<String>,
    at: &str,
    seen: &mut HashSet<String>,
) -> Result<()> {
    if at == path[0] {
        let names = path.iter().map(String::as_str).chain([at]);
        let circle = names.map(|name| format!("{db}.{name}")).collect::<Vec<_>>().join(" => ");
        bail!(Code::GRAPH_CONTAINS_CYCLE, "View cycle detected: {circle}");
    }
    if path.len() > VIEW_DEPTH_MAX {
        bail!(
            Code::VIEW_DEPTH_LIMIT_EXCEEDED,
            "View depth limit exceeded; maximum depth is {VIEW_DEPTH_MAX}"
        );
    }
    let Some((source, pipeline)) = catalog.collection(&format!("{db}.{at}")).and_then(|c| c.view.clone())
    else {
        return Ok(());
    };
    if !seen.insert(at.to_owned()) {
        return Ok(());
    }
    let mut foreign = Vec::new();
    // Only what it stands on is asked for, so any time will do.
    let mut cx = ParseCx::new().with_system(any_system());
    let parsed = Pipeline::parse_view(pipeline.as_raw(), &Namespace::new(db, source.as_str()), &mut cx);
    if let Ok(parsed) = parsed {
        parsed.foreign_namespaces(&mut foreign);
    }
    path.push(at.to_owned());
    walk_views(catalog, db, path, &source, seen)?;
    foreign.iter().try_for_each(|next| walk_views(catalog, db, path, &next.collection, seen))?;
    path.pop();
    Ok(())
}

/// The server's own variables, where any values will do.
fn any_system() -> SystemVariables {
    let user_roles = Some(Arc::new(DocBuf::new()));
    SystemVariables { cluster_clock: Some(Arc::new(Timestamp(1))), user_roles, stored: None }
}
