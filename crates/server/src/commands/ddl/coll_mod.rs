//! `collMod`.

use std::cell::Cell;

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::ddl::collection_options as options;
use sheaf_storage::{Collection, CollectionChange, Uuid};
use sheaf_timeseries::index_for_buckets;

use super::create::check_view;
use super::{names, views};
use index::IndexMod;
use said::SaidOfIndex;

use crate::args::{Args, Array, Loose, refuse_twice};
use crate::command::*;
use crate::commands::crud::rights::may_make_view;
use crate::commands::timeseries::{
    buckets_name, change_spans, check_spans, expire_after, is_measured, options_of,
};
use crate::default_concerns::SETTINGS;
use crate::op::Operation;
use crate::reply::Reply;

mod index;
mod said;

/// `{collMod: "users", index: {...}, validator: {...}, viewOn: "people", pipeline: [...], ...}`
#[derive(Default)]
pub struct CollMod<'a> {
    collection: &'a str,
    index: Option<IndexMod<'a>>,
    validator: Option<RawDoc<'a>>,
    validation_level: Option<&'a str>,
    validation_action: Option<&'a str>,
    view_on: Option<&'a str>,
    pipeline: Option<RawDoc<'a>>,
    capped_size: Option<i64>,
    capped_max: Option<i64>,
    images: Option<bool>,
    expire_after_seconds: Option<Value<'a>>,
    dry_run: bool,
    uuid: Option<Uuid>,
    timeseries: Option<RawDoc<'a>>,
}

impl<'a> Command<'a, Operation<'a>> for CollMod<'a> {
    const NAME: &'static str = "collMod";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "changes options of a collection, index or view",
        access: Access::Write,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: true,
        admin_only: false,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::ByCommand(
            "collMod on the collection; of a view what an aggregate needs that reads what it shows, if the user may read the view",
            |asked, rights| rights.may(asked.own(), &[Action::CollMod]) && may_make_view(asked, rights),
        ),
        spread: Spread::PrimaryShard,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let collection = args.collection()?;
        let index = args.optional::<RawDoc<'a>>("index")?.map(IndexMod::parse).transpose()?;
        let timeseries = args.optional::<RawDoc<'a>>("timeseries")?;
        if let Some(spec) = timeseries {
            // Types and names are checked whatever the collection is.
            check_spans(spec)?;
        }
        let command = CollMod {
            collection,
            index,
            validator: args.optional("validator")?,
            validation_level: args.optional("validationLevel")?,
            validation_action: args.optional("validationAction")?,
            view_on: args.optional("viewOn")?,
            pipeline: args.optional::<Array<'a>>("pipeline")?.map(|array| array.0),
            capped_size: args.optional("cappedSize")?,
            capped_max: args.optional("cappedMax")?,
            images: args
                .optional::<RawDoc<'a>>("changeStreamPreAndPostImages")?
                .map(|images| {
                    refuse_twice(images, "collMod.changeStreamPreAndPostImages")?;
                    options::check_images(images, "collMod")
                })
                .transpose()?,
            expire_after_seconds: args.optional("expireAfterSeconds")?,
            dry_run: args.optional::<Loose>("dryRun")?.is_some_and(|flag| flag.0),
            uuid: args.optional("collectionUUID")?,
            timeseries,
        };
        if let Some(value) = command.expire_after_seconds.filter(|value| !value.is_nullish()) {
            options::check_ttl_type(value, "collMod.expireAfterSeconds")?;
        }
        options::check_level(command.validation_level, Self::NAME)?;
        options::check_action(command.validation_action, Self::NAME)?;
        args.optional::<bool>("isTimeseriesNamespace")?;
        Ok(command)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let namespace = op.namespace(self.collection);
        op.metrics().namespace.replace(Some(namespace.clone()));
        if op.api().strict
            && let Some(index) = &self.index
        {
            index.check_stable()?;
        }
        self.check_settings(&namespace)?;
        let catalog = op.catalog();
        let found = catalog.collection(&namespace);
        if self.dry_run {
            self.check_dry_run(found.is_some_and(|found| is_measured(op, found) || !found.is_view()))?;
        }
        names::check_uuid(&catalog, &namespace, self.uuid)?;
        super::room::check_room(op, op.body.len())?;
        let Some(collection) = found else {
            bail!(Code::NAMESPACE_NOT_FOUND, "ns does not exist: {namespace}");
        };
        let measured = is_measured(op, collection);
        if let Some(wish) = self.index.as_ref().filter(|_| measured || !collection.is_view()) {
            wish.check()?;
        }
        if measured {
            return self.change_timeseries(op, collection);
        }
        if self.timeseries.is_some() {
            bail!(Code::INVALID_OPTIONS, "option only supported on a time-series collection: timeseries");
        }
        if collection.is_view() {
            self.change_view(op, collection)?;
            return Ok(Reply::ok());
        }
        if self.view_on.is_some() || self.pipeline.is_some() {
            let name = if self.view_on.is_some() { "viewOn" } else { "pipeline" };
            bail!(Code::INVALID_OPTIONS, "option only supported on a view: {name}");
        }
        self.new_options(collection)?;
        let change = match &self.index {
            Some(wish) => {
                wish.check_shard_key(op, collection)?;
                let change = wish.change(collection)?;
                if change.prepares_unique() && self.modifications() > 1 {
                    bail!(
                        Code::INVALID_OPTIONS,
                        "prepareUnique cannot be combined with any other modification."
                    );
                }
                Some((wish.find(collection)?, change))
            }
            None => None,
        };
        let mut reply = Reply::ok();
        if let Some((_, change)) = &change {
            change.report(&mut reply);
        }
        if !self.dry_run {
            let built = change.as_ref().filter(|(_, change)| change.builds());
            let built = built.map(|(index, change)| (reply, change.said(&index.name)));
            return self.apply(op, &namespace, built);
        }
        if self.modifications() > 1 {
            bail!(
                Code::INVALID_OPTIONS,
                "unique: true cannot be combined with any other modification in dry run mode."
            );
        }
        if let Some((index, _)) = change {
            index::check_unique(op, collection, index)?;
        }
        Ok(Reply::ok())
    }
}

impl CollMod<'_> {
    /// A dry run is of an index that is to become unique, and of nothing else.
    fn check_dry_run(&self, is_collection: bool) -> Result<()> {
        let Some(index) = &self.index else {
            bail!(Code::INVALID_OPTIONS, "dry run mode requires an valid index modification.");
        };
        if !index.wants_unique() {
            bail!(Code::INVALID_OPTIONS, "dry run mode requires an index modification with unique: true.");
        }
        if !is_collection {
            bail!(Code::INVALID_OPTIONS, "option not supported on a view: index");
        }
        Ok(())
    }

    /// What may stand in `config.settings` is the server's to say.
    fn check_settings(&self, namespace: &str) -> Result<()> {
        let changes =
            self.validator.is_some() || self.validation_level.is_some() || self.validation_action.is_some();
        if changes && namespace == SETTINGS {
            bail!(Code::INVALID_OPTIONS, "Document validators not allowed on system collection {SETTINGS}");
        }
        Ok(())
    }

    /// How many things are to change; the limits of capped collections do not count.
    fn modifications(&self) -> usize {
        let others = [
            self.validator.is_some(),
            self.validation_level.is_some(),
            self.validation_action.is_some(),
            self.view_on.is_some(),
            self.pipeline.is_some(),
            self.images.is_some(),
            self.expire_after_seconds.is_some(),
            self.timeseries.is_some(),
        ];
        self.index.as_ref().map_or(0, IndexMod::modifications)
            + others.into_iter().filter(|given| *given).count()
    }

    /// Changes the collection as it is when no writer is in it. `built` is the reply, and what the log says of the index, where that has to be
    /// built anew first, which does all that is wished of it.
    fn apply(
        &self,
        op: &Operation<'_>,
        namespace: &str,
        built: Option<(Reply, Option<SaidOfIndex>)>,
    ) -> Result<Reply> {
        let check = |now: &Collection| {
            names::check_uuid(&op.catalog(), namespace, self.uuid)?;
            names::refuse_view(now)?;
            op.check_changed(now)
        };
        let builds = built.is_some();
        if let Some(wish) = self.index.as_ref().filter(|_| builds) {
            index::build(op, namespace, wish, &check)?;
        }
        let (reply, index) = built.unzip();
        let (reply, index) = (Cell::new(reply), Cell::new(index.flatten()));
        let change = |now: &Collection| {
            check(now)?;
            let options = self.new_options(now)?;
            let mut change = CollectionChange { options, ..CollectionChange::default() };
            if let Some(wish) = self.index.as_ref().filter(|_| !builds) {
                wish.check_shard_key(op, now)?;
                let index_change = wish.change(now)?;
                if index_change.builds() {
                    bail!(
                        Code::CONFLICTING_OPERATION_IN_PROGRESS,
                        "an index of {namespace} was changed while it was to be changed"
                    );
                }
                let mut about = Reply::ok();
                index_change.report(&mut about);
                reply.set(Some(about));
                let name = &wish.find(now)?.name;
                index.set(index_change.said(name));
                change.index_specs.push((name.clone(), index_change.spec));
            }
            change.said = Some(said::of(self, index.take()));
            Ok(change)
        };
        let stop = op.interrupter();
        // A command that changes nothing is in the log, too: change streams show it.
        op.note_commit(op.engine().coll_mod(namespace, &change, &|| stop.check())?);
        Ok(reply.take().unwrap_or_else(Reply::ok))
    }

    fn changes_validation(&self) -> bool {
        self.validator.is_some() || self.validation_level.is_some() || self.validation_action.is_some()
    }

    /// The collection's options after the change; `None` if they stay.
    fn new_options(&self, collection: &Collection) -> Result<Option<DocBuf>> {
        let before = collection.options.as_raw();
        let mut changes: Vec<(&str, Value<'_>)> = Vec::new();
        if let Some(validator) = self.validator {
            let internal = matches!(collection.db(), "admin" | "config" | "local");
            if internal && !validator.is_empty() {
                bail!(
                    Code::INVALID_OPTIONS,
                    "Document validators are not allowed on collection {} in the {} internal database",
                    collection.namespace,
                    collection.db()
                );
            }
            let gone = validator.is_empty();
            changes.push(("validator", if gone { Value::Missing } else { validator.into() }));
        }
        let kept = |name: &str| before.get(name).and_then(|word| word.as_str());
        let validator = self.validator.or_else(|| before.get("validator").and_then(|old| old.as_doc()));
        if let Some(validator) = validator.filter(|_| self.changes_validation()) {
            options::check_validator(
                validator,
                self.validation_level.or_else(|| kept("validationLevel")),
                self.validation_action.or_else(|| kept("validationAction")),
            )?;
        }
        let has_validator = self.validator.map_or(before.element("validator").is_some(), |v| !v.is_empty());
        for (name, given, default) in [
            ("validationLevel", self.validation_level, "strict"),
            ("validationAction", self.validation_action, "error"),
        ] {
            let default = Some(default).filter(|_| has_validator && before.element(name).is_none());
            if let Some(word) = given.or(default) {
                changes.push((name, word.into()));
            }
        }
        if let Some(on) = self.images {
            options::check_images_place(names::split(&collection.namespace).0)?;
            let images = sheaf_bson::doc! { "enabled": true };
            let next = options::with_changes(before, &changes);
            let change = if on { Value::Document(images.as_raw()) } else { Value::Missing };
            let next = options::with_changes(next.as_raw(), &[("changeStreamPreAndPostImages", change)]);
            return self.with_sizes(collection, next.as_raw()).map(Some);
        }
        let sized =
            self.capped_size.is_some() || self.capped_max.is_some() || self.expire_after_seconds.is_some();
        if changes.is_empty() && !sized {
            return Ok(None);
        }
        let next = options::with_changes(before, &changes);
        self.with_sizes(collection, next.as_raw()).map(Some)
    }

    /// Bounds of a capped collection, and the lifetime of documents in a clustered one.
    fn with_sizes(&self, collection: &Collection, before: RawDoc<'_>) -> Result<DocBuf> {
        let mut changes: Vec<(&str, Value<'_>)> = Vec::new();
        if (self.capped_size.is_some() || self.capped_max.is_some()) && collection.capped.is_none() {
            bail!(Code::INVALID_OPTIONS, "Collection must be capped.");
        }
        if let Some(size) = self.capped_size {
            // None is as little as there can be.
            if size != 0 {
                options::check_capped_size(size)?;
            }
            changes.push(("size", options::small(size)));
        }
        if let Some(max) = self.capped_max {
            options::check_capped_max(max)?;
            changes.push(("max", if max > 0 { options::small(max) } else { Value::Missing }));
        }
        if let Some(seconds) = self.expire_after_seconds {
            if before.element("clusteredIndex").is_none() {
                bail!(
                    Code::INVALID_OPTIONS,
                    "'expireAfterSeconds' option is only supported on collections clustered by _id"
                );
            }
            let seconds = options::collection_ttl(seconds)?;
            changes.push(("expireAfterSeconds", seconds.map_or(Value::Missing, Value::Int64)));
        }
        Ok(options::with_changes(before, &changes))
    }

    /// Changes a time-series collection: its buckets, and the view with them.
    fn change_timeseries(&self, op: &Operation<'_>, view: &Collection) -> Result<Reply> {
        let given = [
            (self.validator.is_some(), "validator"),
            (self.validation_level.is_some(), "validationLevel"),
            (self.validation_action.is_some(), "validationAction"),
            (self.view_on.is_some(), "viewOn"),
            (self.pipeline.is_some(), "pipeline"),
            (self.capped_size.is_some(), "cappedSize"),
            (self.capped_max.is_some(), "cappedMax"),
            (self.images.is_some(), "changeStreamPreAndPostImages"),
        ];
        if let Some((_, name)) = given.iter().find(|(given, _)| *given) {
            bail!(Code::INVALID_OPTIONS, "option not supported on a time-series collection: {name}");
        }
        if self.expire_after_seconds.is_some_and(|value| value.is_number()) {
            expire_after(self.expire_after_seconds, op.now_millis())?;
        }
        let before = options_of(view)?;
        let key = match self.index.as_ref().and_then(IndexMod::key_pattern) {
            Some(key) => Some(index_for_buckets(key, &before)?),
            None => None,
        };
        let index = self.index.as_ref().map(|wish| wish.with_key(key.as_ref().map(DocBuf::as_raw)));
        let on_buckets = CollMod {
            index,
            expire_after_seconds: self.expire_after_seconds,
            dry_run: self.dry_run,
            ..CollMod::default()
        };
        if self.dry_run {
            let catalog = op.catalog();
            if let Some((wish, buckets)) =
                on_buckets.index.as_ref().zip(catalog.collection(&buckets_name(view)))
            {
                wish.change(buckets)?;
            }
            return Ok(Reply::ok());
        }
        let Some(spec) = self.timeseries else { return on_buckets.apply(op, &buckets_name(view), None) };
        // What changes nothing else is one change in the log.
        let reply = match on_buckets.modifications() {
            0 => Reply::ok(),
            _ => on_buckets.apply(op, &buckets_name(view), None)?,
        };
        change_spans(op, view, spec)?;
        Ok(reply)
    }

    fn change_view(&self, op: &Operation<'_>, view: &Collection) -> Result<()> {
        let given = [
            (self.index.is_some(), "index"),
            (self.validator.is_some(), "validator"),
            (self.validation_level.is_some(), "validationLevel"),
            (self.validation_action.is_some(), "validationAction"),
            (self.capped_size.is_some(), "cappedSize"),
            (self.capped_max.is_some(), "cappedMax"),
            (self.images.is_some(), "changeStreamPreAndPostImages"),
            (self.expire_after_seconds.is_some(), "expireAfterSeconds"),
        ];
        if let Some((_, name)) = given.iter().find(|(given, _)| *given) {
            bail!(Code::INVALID_OPTIONS, "option not supported on a view: {name}");
        }
        if self.view_on.is_none() && self.pipeline.is_none() {
            return Ok(());
        }
        if op.front.access.enabled && self.view_on.is_some() != self.pipeline.is_some() {
            // What its reader may read is asked of both together.
            bail!(
                Code::INVALID_OPTIONS,
                "Must specify both 'viewOn' and 'pipeline' when modifying a view and auth is enabled"
            );
        }
        if self.view_on.is_some_and(str::is_empty) {
            bail!(Code::BAD_VALUE, "'viewOn' option cannot be an empty string");
        }
        if self.view_on.is_some_and(|source| source.starts_with('$')) {
            bail!(
                Code::INVALID_NAMESPACE,
                "invalid name for 'viewOn': {:?}",
                self.view_on.unwrap_or_default()
            );
        }
        let stop = op.interrupter();
        let interrupt = || stop.check();
        let _turn = views::turn(op.node(), &interrupt)?;
        let change = |now: &Collection| {
            let Some((source, pipeline)) = &now.view else {
                bail!(Code::NAMESPACE_NOT_FOUND, "ns does not exist: {}", now.namespace);
            };
            let source = self.view_on.unwrap_or(source);
            let pipeline = self.pipeline.unwrap_or(pipeline.as_raw());
            op.check_open(now)?;
            check_view(op, &op.catalog(), &now.namespace, source, pipeline, now.options.as_raw())?;
            let changes = [("viewOn", Value::String(source)), ("pipeline", Value::Array(pipeline))];
            let next = options::with_changes(now.options.as_raw(), &changes);
            Ok(CollectionChange { options: Some(next), ..CollectionChange::default() })
        };
        op.engine().coll_mod(&view.namespace, &change, &interrupt)?;
        op.note_commit(views::follow(op.engine(), &view.namespace, &interrupt)?);
        Ok(())
    }
}
