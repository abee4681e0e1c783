//! Deletes of measurements, by any query.

use sheaf_aggregate::{Namespace, Pipeline};
use sheaf_bson::{ArrayBuf, DocBuf};
use sheaf_errors::Result;
use sheaf_exec::database::head_query;
use sheaf_exec::plan::Query;
use sheaf_exec::write::WriteCx;
use sheaf_exec::write::timeseries::delete_measurements;
use sheaf_query::matcher::Matcher;
use sheaf_storage::{Collection, Write};
use sheaf_timeseries::unpack_stage;

use super::{Selected, Timeseries, refuse_transaction};
use crate::commands::crud::query::parse_filter;
use crate::op::Operation;

/// Deletes the measurements that match, or the first of them; gives their number, and the last one of them.
///
/// Errors: those of deletes.
pub fn delete(
    op: &Operation<'_>,
    w: &mut dyn Write,
    cx: &WriteCx<'_>,
    view: &Collection,
    selected: &Selected<'_>,
    multi: bool,
) -> Result<(u64, Option<DocBuf>)> {
    refuse_transaction(op, "delete from", view)?;
    let timeseries = Timeseries::to_write(op, w, view)?;
    let Deletion { query, matcher } = Deletion::of(op, view, &timeseries, selected)?;
    delete_measurements(w, cx, &timeseries.buckets, &timeseries.options, &query, &matcher, multi)
}

/// What a delete looks for.
pub(super) struct Deletion {
    /// The buckets that may have such measurements.
    pub(super) query: Query,
    /// The measurements.
    pub(super) matcher: Matcher,
}

impl Deletion {
    /// What measurements that are selected mean for their buckets.
    ///
    /// Errors: those of filters and hints.
    pub(super) fn of(
        op: &Operation<'_>,
        view: &Collection,
        timeseries: &Timeseries,
        selected: &Selected<'_>,
    ) -> Result<Deletion> {
        let matcher = parse_filter(Some(selected.filter), &mut selected.parse_cx(op, view)?)?;
        // Those from which reading them would begin.
        let stages = ArrayBuf::build(|out| {
            for stage in unpack_stage(&timeseries.options).as_raw().iter() {
                out.push_element(stage);
            }
            out.document().append("$match", selected.filter);
        });
        let namespace = Namespace::new(timeseries.buckets.db(), timeseries.buckets.name());
        let pipeline = Pipeline::parse(stages.as_raw(), &namespace, &mut selected.parse_cx(op, view)?)?;
        let head = head_query(&pipeline).0;
        let hint = selected.hint(&timeseries.options)?;
        let query = Query { matcher: head.matcher, collator: head.collator, hint, ..Query::default() };
        Ok(Deletion { query, matcher })
    }
}
