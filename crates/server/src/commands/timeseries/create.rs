//! Making and dropping time-series collections.

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_exec::ddl::collection_options::CollectionOptions;
use sheaf_storage::{Catalog, Collection, CreateCollection, Told};
use sheaf_timeseries::{
    BUCKETS_PREFIX, TimeseriesOptions, buckets_namespace, index_for_buckets, unpack_stage,
};

use super::buckets_of;
use crate::commands::ddl::{names, views};
use crate::op::Operation;
use crate::reply::Reply;

/// A `create` with `timeseries`.
pub struct CreateTimeseries<'a> {
    /// The name.
    pub collection: &'a str,
    /// `timeseries`
    pub timeseries: TimeseriesOptions,
    /// The other options.
    pub options: CollectionOptions<'a>,
    /// Whether `idIndex` was given.
    pub has_id_index: bool,
}

impl CreateTimeseries<'_> {
    /// Makes the collection.
    ///
    /// Errors: `InvalidOptions`, `NamespaceExists`, those of `create`.
    pub fn run(mut self, op: &Operation<'_>) -> Result<Reply> {
        self.check_options()?;
        self.timeseries.check_fields()?;
        let timeseries = self.timeseries.clone().resolve()?;
        let expire = expire_after(self.options.expire_after_seconds.take(), op.now_millis())?;
        if op.in_transaction() {
            bail!(
                Code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
                "Cannot create a time-series collection in a multi-document transaction."
            );
        }
        let (only_buckets, name) = match self.collection.strip_prefix(BUCKETS_PREFIX) {
            Some(name) => (true, name),
            None => (false, self.collection),
        };
        let view_options = self.view_options(&timeseries, name)?;
        let namespace = op.namespace(name);
        names::check_new_name(&namespace)?;
        let buckets = buckets_namespace(op.db(), name);
        if buckets.len() > 255 {
            bail!(
                Code::INVALID_NAMESPACE,
                "Fully qualified namespace is too long. Namespace: {buckets} Max: 255"
            );
        }
        let bucket_options = self.bucket_options(&timeseries, expire)?;
        if !only_buckets && let Some(existing) = op.catalog().collection(&namespace) {
            return match is_same(&op.catalog(), existing, view_options.as_raw(), bucket_options.as_raw()) {
                true => Ok(Reply::ok()),
                false => Err(exists(&namespace)),
            };
        }
        make_buckets(op, &buckets, &timeseries, bucket_options)?;
        if !only_buckets {
            make_view(op, &namespace, view_options)?;
        }
        Ok(Reply::ok())
    }

    fn check_options(&self) -> Result<()> {
        let options = &self.options;
        let given = [
            (options.view_on.is_some(), "viewOn"),
            (options.pipeline.is_some(), "pipeline"),
            (options.capped, "capped"),
            (options.size.is_some(), "size"),
            (options.max.is_some(), "max"),
            (options.validator.is_some(), "validator"),
            (options.validation_level.is_some(), "validationLevel"),
            (options.validation_action.is_some(), "validationAction"),
            (options.clustered_index.is_some_and(|value| value.truthy()), "clusteredIndex"),
            (options.pre_and_post_images.is_some(), "changeStreamPreAndPostImages"),
            (self.has_id_index, "idIndex"),
        ];
        match given.iter().find(|(given, _)| *given) {
            Some((_, name)) => {
                bail!(Code::INVALID_OPTIONS, "'timeseries' is not allowed with '{name}'")
            }
            None => Ok(()),
        }
    }

    fn view_options(&self, timeseries: &TimeseriesOptions, name: &str) -> Result<DocBuf> {
        let on = format!("{BUCKETS_PREFIX}{name}");
        let pipeline = unpack_stage(timeseries);
        let plain = CollectionOptions {
            collation: self.options.collation,
            view_on: Some(&on),
            pipeline: Some(pipeline.as_raw()),
            ..CollectionOptions::default()
        };
        Ok(plain.normalize()?.with("timeseries", &timeseries.to_doc()))
    }

    fn bucket_options(&self, timeseries: &TimeseriesOptions, expire: Option<i64>) -> Result<DocBuf> {
        let mut options = self.options.normalize()?.with("clusteredIndex", true);
        if let Some(seconds) = expire {
            options.append("expireAfterSeconds", seconds);
        }
        Ok(options.with("timeseries", &timeseries.to_doc()))
    }
}

/// `expireAfterSeconds` of measurements.
///
/// Errors: `TypeMismatch`, `InvalidOptions`.
pub fn expire_after(value: Option<Value<'_>>, now_millis: i64) -> Result<Option<i64>> {
    let Some(value) = value.filter(|value| !value.is_nullish()) else { return Ok(None) };
    let Some(seconds) = sheaf_timeseries::seconds(value) else {
        bail!(
            Code::TYPE_MISMATCH,
            "BSON field 'create.expireAfterSeconds' is the wrong type '{}', expected types '[long, int, decimal, double]'",
            value.type_name()
        );
    };
    if seconds < 0 {
        bail!(Code::INVALID_OPTIONS, "TTL index 'expireAfterSeconds' option cannot be less than 0");
    }
    if seconds > now_millis / 1000 {
        bail!(
            Code::INVALID_OPTIONS,
            "TTL index 'expireAfterSeconds' option must be within an acceptable range, try a lower number"
        );
    }
    Ok(Some(seconds))
}

fn is_same(catalog: &Catalog, existing: &Collection, view: RawDoc<'_>, buckets: RawDoc<'_>) -> bool {
    let same = |a: RawDoc<'_>, b: RawDoc<'_>, key| {
        sheaf_bson::compare(a.get_or_missing(key), b.get_or_missing(key)).is_eq()
    };
    existing.is_timeseries()
        && same(existing.options.as_raw(), view, "timeseries")
        && same(existing.options.as_raw(), view, "collation")
        && buckets_of(catalog, existing)
            .is_some_and(|now| same(now.options.as_raw(), buckets, "expireAfterSeconds"))
}

fn exists(namespace: &str) -> Error {
    Error::new(Code::NAMESPACE_EXISTS, format!("A timeseries collection already exists. NS: {namespace}"))
}

fn make_buckets(
    op: &Operation<'_>,
    namespace: &str,
    timeseries: &TimeseriesOptions,
    options: DocBuf,
) -> Result<()> {
    let id_index =
        Some(doc! { "v": 2, "key": { "_id": 1 }, "name": "_id_", "unique": true, "clustered": true });
    let indexes = default_index(timeseries)?.into_iter().collect();
    let before = options.clone();
    let spec = CreateCollection { options, id_index, indexes, ..CreateCollection::default() };
    let stop = op.interrupter();
    match op.engine().create_collection(namespace, &op.making(namespace, spec)?, &|| stop.check()) {
        Ok(position) => op.note_commit(position),
        Err(error) if error.code() == Code::NAMESPACE_EXISTS => {
            let catalog = op.catalog();
            let now = catalog.collection(namespace).map(|now| now.options.as_raw());
            if !now.is_some_and(|now| sheaf_bson::compare_docs(now, before.as_raw()).is_eq()) {
                return Err(exists(namespace));
            }
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// The index on meta value and time that a collection with a meta field begins with.
fn default_index(timeseries: &TimeseriesOptions) -> Result<Option<DocBuf>> {
    let Some(meta) = &timeseries.meta_field else { return Ok(None) };
    let mut key = DocBuf::new();
    key.append(meta, 1);
    if *meta != timeseries.time_field {
        key.append(&timeseries.time_field, 1);
    }
    let name = format!("{meta}_1_{}_1", timeseries.time_field);
    let key = index_for_buckets(key.as_raw(), timeseries)?;
    Ok(Some(doc! { "v": 2, "key": &key, "name": &name }))
}

fn make_view(op: &Operation<'_>, namespace: &str, options: DocBuf) -> Result<()> {
    let stop = op.interrupter();
    let interrupt = || stop.check();
    let _turn = views::turn(op.node(), &interrupt)?;
    views::prepare(op.engine(), op.db(), &interrupt)?;
    let spec = CreateCollection { options, ..CreateCollection::default() };
    match op.engine().create_collection(namespace, &spec, &interrupt) {
        Err(error) if error.code() == Code::NAMESPACE_EXISTS => {
            if !op.catalog().collection(namespace).is_some_and(|now| now.is_timeseries()) {
                return Err(exists(namespace));
            }
        }
        made => _ = made?,
    }
    op.note_commit(views::follow(op.engine(), namespace, &interrupt)?);
    Ok(())
}

/// Drops the buckets of a time-series collection whose view is gone.
///
/// Errors: those of `drop`.
pub fn drop_buckets(op: &Operation<'_>, namespace: &str) -> Result<()> {
    let (db, name) = names::split(namespace);
    let buckets = buckets_namespace(db, name);
    let stop = op.interrupter();
    match op.engine().drop_collection_if(&buckets, &|_: &Collection| Ok(()), Told::Here, &|| stop.check()) {
        Ok(position) => op.note_commit(position),
        Err(error) if error.code() == Code::NAMESPACE_NOT_FOUND => {}
        Err(error) => return Err(error),
    }
    Ok(())
}
