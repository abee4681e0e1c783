//! The two parts of a time-series collection, as whoever makes one makes them.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_exec::ddl::collection_options::with_changes;
use sheaf_storage::{Collection, CollectionChange, CreateCollection, Interrupt, OpTime, Said, Write};
use sheaf_timeseries::{
    Bucket, TimeseriesOptions, bucket_id_index, default_index, fault, fault_beside_bounds, split_buckets,
    unpack_stage,
};

use super::{is_buckets, options_of};
use crate::commands::ddl::{names, views};
use crate::node::Node;

/// What a collection of buckets with these options begins with.
///
/// Errors: none that options can cause which were checked.
pub fn buckets(timeseries: &TimeseriesOptions, options: DocBuf) -> Result<CreateCollection> {
    let indexes = default_index(timeseries)?.into_iter().collect();
    Ok(CreateCollection {
        options,
        id_index: Some(bucket_id_index()),
        indexes,
        ..CreateCollection::default()
    })
}

/// The error for a name that something else has.
pub fn exists(namespace: &str) -> Error {
    Error::new(Code::NAMESPACE_EXISTS, format!("A timeseries collection already exists. NS: {namespace}"))
}

/// Whether a document may be one of these buckets: readers take its columns apart.
///
/// Errors: `BadValue`.
pub fn check_bucket(buckets: &Collection, document: RawDoc<'_>) -> Result<()> {
    match Bucket::read(document, &options_of(buckets)?) {
        Some(_) => Ok(()),
        None => bail!(Code::BAD_VALUE, "Not a bucket of {}: columns, bounds, times", buckets.namespace),
    }
}

/// Whether a document may be one of these buckets, and nothing is wrong with it: what a client brings is not what a log says that there was.
///
/// Errors: `BadValue`.
pub fn check_sound_bucket(buckets: &Collection, document: RawDoc<'_>) -> Result<()> {
    let has_collation = buckets.options.as_raw().element("collation").is_some();
    let fault = if has_collation { fault_beside_bounds } else { fault };
    match fault(document, &options_of(buckets)?) {
        None => Ok(()),
        Some(fault) => bail!(Code::BAD_VALUE, "Not a bucket of {}: {fault}", buckets.namespace),
    }
}

/// The buckets into which a client may put buckets as they are: those of a time-series collection that is there.
///
/// Errors: `InvalidNamespace`: who takes a collection of its own for buckets could write what is none.
pub fn buckets_to_fill(w: &mut dyn Write, namespace: &str) -> Result<Arc<Collection>> {
    match w.collection(namespace)? {
        Some(collection) if is_buckets(&collection) => Ok(collection),
        _ => bail!(Code::INVALID_NAMESPACE, "cannot write to {namespace}"),
    }
}

/// Makes buckets and the view on them, both or none.
///
/// Errors: `NamespaceExists` if something has one of the names.
pub fn make_both(
    node: &Node,
    (buckets, spec): (&str, &CreateCollection),
    (namespace, options): (&str, &DocBuf),
    interrupt: Interrupt<'_>,
) -> Result<OpTime> {
    let _turn = views::turn(node, interrupt)?;
    views::prepare(node.engine(), names::split(namespace).0, interrupt)?;
    let view = CreateCollection { options: options.clone(), ..CreateCollection::default() };
    node.engine().create_collections(&[(buckets, spec), (namespace, &view)], interrupt)?;
    views::follow(node.engine(), namespace, interrupt)
}

/// Makes the view on buckets that are there.
///
/// Errors: `NamespaceExists` if something else has the name.
pub fn make_view(node: &Node, namespace: &str, options: &DocBuf, interrupt: Interrupt<'_>) -> Result<OpTime> {
    let _turn = views::turn(node, interrupt)?;
    views::prepare(node.engine(), names::split(namespace).0, interrupt)?;
    let spec = CreateCollection { options: options.clone(), ..CreateCollection::default() };
    match node.engine().create_collection(namespace, &spec, interrupt) {
        Err(error) if error.code() == Code::NAMESPACE_EXISTS => {
            if !node.catalog().collection(namespace).is_some_and(|now| now.is_timeseries()) {
                return Err(exists(namespace));
            }
        }
        made => _ = made?,
    }
    views::follow(node.engine(), namespace, interrupt)
}

/// Gives buckets, and the view on them where this server has it, other options; `known`: those that they may have had before; `asked`: in
/// which words they were asked for; `check`: what must hold of the buckets.
///
/// Errors: `ConflictingOperationInProgress`, if they have others; those of `check`.
pub fn set_options(
    node: &Node,
    buckets: &str,
    (known, next): (&[TimeseriesOptions], &TimeseriesOptions),
    asked: RawDoc<'_>,
    check: &dyn Fn(&Collection) -> Result<()>,
    interrupt: Interrupt<'_>,
) -> Result<OpTime> {
    let _turn = views::turn(node, interrupt)?;
    let said = || Said { asked: doc! { "timeseries": asked }, index_before: None };
    let (timeseries, pipeline) = (next.to_doc(), unpack_stage(next));
    let options = |now: &Collection, changes: &[(&str, Value<'_>)]| {
        let has = TimeseriesOptions::of_catalog(now.options.as_raw());
        if !has.is_some_and(|has| has == *next || known.contains(&has)) {
            bail!(Code::CONFLICTING_OPERATION_IN_PROGRESS, "{} was changed meanwhile", now.namespace);
        }
        let options = Some(with_changes(now.options.as_raw(), changes));
        Ok(CollectionChange { options, said: Some(said()), ..CollectionChange::default() })
    };
    let timeseries = ("timeseries", Value::Document(timeseries.as_raw()));
    let of_buckets = |now: &Collection| {
        check(now)?;
        options(now, &[timeseries])
    };
    let position = node.engine().coll_mod(buckets, &of_buckets, interrupt)?;
    let Some((db, name)) = split_buckets(buckets) else { return Ok(position) };
    let view = format!("{db}.{name}");
    if !node.catalog().collection(&view).is_some_and(|view| view.is_timeseries()) {
        return Ok(position);
    }
    let pipeline = ("pipeline", Value::Array(pipeline.as_raw()));
    node.engine().coll_mod(&view, &|now: &Collection| options(now, &[pipeline, timeseries]), interrupt)?;
    views::follow(node.engine(), &view, interrupt)
}
