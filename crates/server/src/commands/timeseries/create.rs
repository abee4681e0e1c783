//! Making and dropping time-series collections.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::ddl::collection_options::CollectionOptions;
use sheaf_storage::{Collection, Told};
use sheaf_timeseries::{BUCKETS_PREFIX, TimeseriesOptions, bucket_options, buckets_namespace, view_options};

use super::buckets_of;
use super::parts::{buckets, exists, make_both, make_view};
use crate::commands::ddl::names;
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
    /// What else was given, or not, that cannot stand beside it.
    pub refused: [(bool, &'static str); 2],
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
        let namespace = op.namespace(name);
        names::check_new_name(&namespace)?;
        let on = buckets_namespace(op.db(), name);
        if on.len() > 255 {
            bail!(Code::INVALID_NAMESPACE, "Fully qualified namespace is too long. Namespace: {on} Max: 255");
        }
        let plain = self.options.normalize()?;
        let view_options = view_options(name, plain.as_raw().get_or_missing("collation"), &timeseries);
        let bucket_options = bucket_options(plain.as_raw(), expire, &timeseries);
        let stop = op.interrupter();
        loop {
            let catalog = op.catalog();
            if !only_buckets && let Some(existing) = catalog.collection(&namespace) {
                let now = buckets_of(&catalog, existing);
                if !is_same(existing, now, view_options.as_raw(), bucket_options.as_raw()) {
                    return Err(exists(&namespace));
                }
                if now.is_some() {
                    return Ok(Reply::ok());
                }
            }
            if only_buckets || [&on, &namespace].iter().any(|part| catalog.collection(part).is_some()) {
                make_buckets(op, &on, &timeseries, bucket_options)?;
                if !only_buckets {
                    op.note_commit(make_view(op.node(), &namespace, &view_options, &|| stop.check())?);
                }
                return Ok(Reply::ok());
            }
            let buckets = op.making(&on, buckets(&timeseries, bucket_options.clone())?)?;
            match make_both(op.node(), (&on, &buckets), (&namespace, &view_options), &|| stop.check()) {
                // Somebody else has made something in the same moment: the same one, or another.
                Err(error) if error.code() == Code::NAMESPACE_EXISTS => {}
                made => {
                    op.note_commit(made?);
                    return Ok(Reply::ok());
                }
            }
        }
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
        ];
        match given.iter().chain(&self.refused).find(|(given, _)| *given) {
            Some((_, name)) => {
                bail!(Code::INVALID_OPTIONS, "'timeseries' is not allowed with '{name}'")
            }
            None => Ok(()),
        }
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

/// Whether the collection that is there is what is wished; it may lack its buckets after a crash.
fn is_same(
    existing: &Collection,
    now: Option<&Arc<Collection>>,
    view: RawDoc<'_>,
    buckets: RawDoc<'_>,
) -> bool {
    let same = |a: RawDoc<'_>, b: RawDoc<'_>, key| {
        sheaf_bson::compare(a.get_or_missing(key), b.get_or_missing(key)).is_eq()
    };
    existing.is_timeseries()
        && same(existing.options.as_raw(), view, "timeseries")
        && same(existing.options.as_raw(), view, "collation")
        && now.is_none_or(|now| same(now.options.as_raw(), buckets, "expireAfterSeconds"))
}

/// Makes buckets, unless there are such.
fn make_buckets(
    op: &Operation<'_>,
    namespace: &str,
    timeseries: &TimeseriesOptions,
    options: DocBuf,
) -> Result<()> {
    let before = options.clone();
    let spec = buckets(timeseries, options)?;
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

/// Drops the buckets of a time-series collection whose view is gone.
///
/// Errors: those of `drop`.
pub fn drop_buckets(op: &Operation<'_>, namespace: &str) -> Result<()> {
    let (db, name) = names::split(namespace);
    let buckets = buckets_namespace(db, name);
    let stop = op.interrupter();
    match op.engine().drop_collection_if(
        &buckets,
        &|now: &Collection| op.check_plain(now),
        Told::Here,
        &|| stop.check(),
    ) {
        Ok(position) => op.note_commit(position),
        Err(error) if error.code() == Code::NAMESPACE_NOT_FOUND => {}
        Err(error) => return Err(error),
    }
    Ok(())
}
