//! Updates of measurements: only of their meta values, all that match at once.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_exec::plan::Query;
use sheaf_exec::write::timeseries::count_all;
use sheaf_exec::write::{UpdateResult, UpdateStatement, WriteCx, run_update};
use sheaf_query::update::Update as Modification;
use sheaf_storage::{Collection, Write};
use sheaf_timeseries::{filter_on_meta, meta_path};

use super::{Selected, Timeseries, refuse_transaction};
use crate::commands::crud::query::parse_filter;
use crate::op::Operation;

/// A statement that updates.
pub struct UpdateParts<'a> {
    /// Which measurements.
    pub selected: Selected<'a>,
    /// What becomes of them.
    pub update: Value<'a>,
    /// All of them.
    pub multi: bool,
    /// Insert if there are none.
    pub upsert: bool,
    /// `arrayFilters`
    pub array_filters: &'a [RawDoc<'a>],
}

fn refused(reason: &str) -> Error {
    Error::new(Code::INVALID_OPTIONS, format!("Cannot perform {reason}"))
}

/// Runs an update on the buckets.
///
/// Errors: `InvalidOptions` for what time-series collections do not have; those of updates.
pub fn update(
    op: &Operation<'_>,
    w: &mut dyn Write,
    cx: &WriteCx<'_>,
    view: &Collection,
    parts: &UpdateParts<'_>,
) -> Result<UpdateResult> {
    refuse_transaction(op, "update", view)?;
    let timeseries = Timeseries::to_write(op, w, view)?;
    let statement = on_buckets(op, view, &timeseries, parts)?;
    // What is counted are measurements, as in MongoDB, which changes their buckets, too.
    let stands_for = |bucket: RawDoc<'_>| count_all(bucket, &timeseries.options);
    let cx = WriteCx { stands_for: Some(&stands_for), ..*cx };
    run_update(w, &cx, &timeseries.buckets, &statement, false)
}

/// What an update of measurements is to their buckets.
///
/// Errors: `InvalidOptions` for what time-series collections do not have; those of filters and updates.
pub(super) fn on_buckets(
    op: &Operation<'_>,
    view: &Collection,
    timeseries: &Timeseries,
    parts: &UpdateParts<'_>,
) -> Result<UpdateStatement> {
    if !parts.multi {
        return Err(refused("a non-multi update on a time-series collection"));
    }
    if parts.upsert {
        return Err(refused("an upsert on a time-series collection"));
    }
    let Some(meta) = timeseries.options.meta_field.as_deref() else {
        return Err(refused("an update on a time-series collection that does not have a metaField"));
    };
    let Some(filter) = filter_on_meta(parts.selected.filter, meta) else {
        return Err(refused(&format!(
            "an update on a time-series collection when querying on a field that is not the metaField '{meta}'"
        )));
    };
    let change = on_meta(parts.update, meta)?;
    let mut parse = parts.selected.parse_cx(op, view)?;
    let matcher = parse_filter(Some(filter.as_raw()), &mut parse)?;
    let update = Modification::parse(change.as_raw().into(), parts.array_filters, &mut parse)?;
    let hint = parts.selected.hint(&timeseries.options)?;
    let collator = parse.collator().cloned();
    let query = Query { matcher: Some(Arc::new(matcher)), hint, collator, ..Query::default() };
    Ok(UpdateStatement { query, update, multi: true, upsert: false })
}

/// The update of the meta value in buckets.
fn on_meta(update: Value<'_>, meta: &str) -> Result<DocBuf> {
    let Value::Document(operators) = update else {
        return Err(refused("an update on a time-series collection using a pipeline update"));
    };
    let mut out = DocBuf::new();
    for operator in operators.iter() {
        if !operator.key().starts_with('$') {
            return Err(refused("a replacement document update on a time-series collection"));
        }
        let Value::Document(fields) = operator.value() else {
            // What is wrong with it, the update itself says.
            out.append(operator.key(), operator.value());
            continue;
        };
        if operator.key() == "$rename" {
            bail!(
                Code::INVALID_OPTIONS,
                "Cannot perform an update on a time-series collection which renames the metaField '{meta}'"
            );
        }
        let mut changed = DocBuf::new();
        for field in fields.iter() {
            let Some(path) = meta_path(field.key(), Some(meta)) else {
                return Err(refused(&format!(
                    "an update on a time-series collection which updates a field that is not the metaField '{meta}'"
                )));
            };
            changed.append(&path, field.value());
        }
        out.append(operator.key(), &changed);
    }
    Ok(out)
}
