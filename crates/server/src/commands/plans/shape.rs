//! A query's shape as the commands about plans name it. Their arguments are looked at by hand, and only where there is a
//! collection: what they do not know they pass over.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_collation::Collation;
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::plan::filters;
use sheaf_query::projection::{Mode, Projection};
use sheaf_query::sort::FindSort;
use sheaf_storage::Collection;

use crate::commands::crud::query::{parse_cx, parse_filter};
use crate::op::Operation;

/// A query as it was named, and what tells its shape.
pub struct Shape {
    /// The hash of its shape.
    pub hash: u64,
    /// `{query, sort, projection, collation}`; the last only if there is one.
    pub shown: DocBuf,
}

/// Reads `query`, `sort`, `projection` and `collation`.
///
/// Errors: `BadValue` for a part that is no object, or that stands without a query; those of parsing the parts. `None` without any.
pub fn named(op: &Operation<'_>, body: RawDoc<'_>) -> Result<Option<Shape>> {
    if body.get("query").is_none() {
        if ["sort", "projection", "collation"].iter().any(|name| body.get(name).is_some()) {
            bail!(Code::BAD_VALUE, "sort, projection, or collation provided without query");
        }
        return Ok(None);
    }
    required(op, body).map(Some)
}

/// The same where a query must be named.
///
/// Errors: like [`named`].
pub fn required(op: &Operation<'_>, body: RawDoc<'_>) -> Result<Shape> {
    let query = match body.get("query") {
        None => bail!(Code::BAD_VALUE, "required field query missing"),
        Some(Value::Document(query) | Value::Array(query)) => query,
        Some(_) => bail!(Code::BAD_VALUE, "required field query must be an object"),
    };
    let part = |name: &str| match body.get(name) {
        None => Ok(RawDoc::EMPTY),
        Some(Value::Document(part) | Value::Array(part)) => Ok(part),
        Some(_) => bail!(Code::BAD_VALUE, "optional field {name} must be an object"),
    };
    let (sort, projection, collation) = (part("sort")?, part("projection")?, part("collation")?);
    if !collation.is_empty() {
        Collation::parse(collation)?;
    }
    let mut cx = parse_cx(op, None)?;
    let matcher = parse_filter(Some(query), &mut cx)?;
    FindSort::parse(sort)?;
    if !projection.is_empty() {
        Projection::parse(projection, Mode::Find, &mut cx)?;
    }
    let shown = DocBuf::build(|out| {
        out.append("query", query).append("sort", sort).append("projection", projection);
        if !collation.is_empty() {
            out.append("collation", collation);
        }
    });
    Ok(Shape { hash: filters::shape(matcher, sort, projection, collation), shown })
}

/// The collection that a command names; `None` if there is none.
///
/// Errors: `CommandNotSupportedOnView`.
pub fn collection(op: &Operation<'_>, name: &str) -> Result<Option<Arc<Collection>>> {
    let namespace = op.namespace(name);
    op.metrics().namespace.replace(Some(namespace.clone()));
    let catalog = op.catalog();
    let found = catalog.collection(&namespace).cloned();
    if found.as_ref().is_some_and(|found| found.is_view()) {
        bail!(Code::COMMAND_NOT_SUPPORTED_ON_VIEW, "Namespace {namespace} is a view, not a collection");
    }
    Ok(found)
}
