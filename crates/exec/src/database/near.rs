//! What `$geoNear` asks of its collection.

use std::sync::Arc;

use sheaf_aggregate::{Namespace, Pipeline};
use sheaf_errors::{Code, Result, bail};
use sheaf_geo::Indexing;
use sheaf_rows::Cx;
use sheaf_storage::{Collection, Index};
use sheaf_timeseries::meta_path;

use crate::plan::Query;

/// Refuses a pipeline that begins with `$geoNear` where there is no collection.
///
/// Errors: `NamespaceNotFound`.
pub(crate) fn check_collection(pipeline: &Pipeline, namespace: &Namespace) -> Result<()> {
    if pipeline.geo_near().is_some() {
        bail!(
            Code::NAMESPACE_NOT_FOUND,
            "$geoNear requires a geo index to run, but {namespace} does not exist"
        );
    }
    Ok(())
}

/// The query of a pipeline that begins with `$geoNear`. The stage itself is left to do: it writes the distances.
///
/// Errors: `IndexNotFound` if it is not clear which index is meant; `NoQueryExecutionPlans` if none is; those of the stage's
/// arguments.
pub(crate) fn query(pipeline: &Pipeline, collection: &Collection, cx: &Cx<'_>) -> Result<Option<Query>> {
    check_measured(pipeline, collection)?;
    let Some(stage) = pipeline.geo_near() else { return Ok(None) };
    let matcher = match stage.key() {
        Some(key) => stage.filter(key, cx)?,
        None => stage.filter(key(collection)?, cx)?,
    };
    Ok(Some(Query { collator: pipeline.collator().cloned(), ..Query::filtered(matcher) }))
}

/// Refuses a `$geoNear` by the meta value of measurements that no index of their buckets has, as without it the order would be
/// found by reading all of them.
///
/// Errors: `NoQueryExecutionPlans`.
fn check_measured(pipeline: &Pipeline, collection: &Collection) -> Result<()> {
    let Some((near, meta)) = pipeline.measured_near() else { return Ok(()) };
    let Some(path) = near.key().and_then(|key| meta_path(key, meta)) else { return Ok(()) };
    let has = |index: &Arc<Index>| {
        let mut fields = index.fields.iter().enumerate();
        index.ready && !index.hidden && fields.any(|(at, field)| index.is_geo_field(at) && field.0 == path)
    };
    if !collection.indexes.iter().any(has) {
        bail!(
            Code::NO_QUERY_EXECUTION_PLANS,
            "error processing query: ns={} planner returned error :: caused by :: unable to find index for $geoNear query",
            collection.namespace
        );
    }
    Ok(())
}

/// The path of the only geometric index.
fn key(collection: &Collection) -> Result<&str> {
    let of_kind = |test: fn(&Indexing) -> bool| {
        let ready = collection.indexes.iter().filter(|index| index.ready && !index.hidden);
        ready.filter(move |index| index.indexing().is_some_and(test)).collect::<Vec<&Arc<Index>>>()
    };
    let flat = of_kind(|indexing| matches!(indexing, Indexing::Grid(_)));
    let sphere = of_kind(|indexing| matches!(indexing, Indexing::Sphere { .. }));
    let namespace = &collection.namespace;
    for (kind, found) in [("2d", &flat), ("2dsphere", &sphere)] {
        if found.len() > 1 {
            bail!(
                Code::INDEX_NOT_FOUND,
                "There is more than one {kind} index on {namespace}; unsure which to use for $geoNear"
            );
        }
    }
    let index = match (flat.first(), sphere.first()) {
        (Some(_), Some(_)) => bail!(
            Code::INDEX_NOT_FOUND,
            "There is both a 2d index and a 2dsphere index on {namespace}; unsure which to use for $geoNear"
        ),
        (Some(only), None) | (None, Some(only)) => only,
        (None, None) => {
            bail!(Code::INDEX_NOT_FOUND, "$geoNear requires a 2d or 2dsphere index, but none were found")
        }
    };
    let field = (0..index.fields.len()).find(|at| index.is_geo_field(*at)).unwrap_or(0);
    Ok(&index.fields[field].0)
}
