//! `collMod` of what buckets span.

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::ddl::collection_options::with_changes;
use sheaf_storage::{Collection, CollectionChange};
use sheaf_timeseries::{TimeseriesOptions, buckets_namespace, unpack_stage};

use super::options_of;
use crate::commands::ddl::views;
use crate::op::Operation;

/// How `collMod` names the field.
const PLACE: &str = "collMod.timeseries";

/// Checks the argument's names and types.
///
/// Errors: 40415, `TypeMismatch`, `BadValue`.
pub fn check_spans(spec: RawDoc<'_>) -> Result<()> {
    TimeseriesOptions::check_change(spec, PLACE)
}

/// Gives a collection's buckets longer spans.
///
/// Errors: `InvalidOptions` for shorter ones.
pub fn change_spans(op: &Operation<'_>, view: &Collection, spec: RawDoc<'_>) -> Result<()> {
    let stop = op.interrupter();
    let interrupt = || stop.check();
    let _turn = views::turn(op.node(), &interrupt)?;
    let next = options_of(view)?.changed(spec, PLACE)?;
    let (timeseries, pipeline) = (next.to_doc(), unpack_stage(&next));
    let check = |now: &Collection| {
        if options_of(now)? != options_of(view)? {
            bail!(Code::CONFLICTING_OPERATION_IN_PROGRESS, "{} was changed meanwhile", view.namespace);
        }
        Ok(())
    };
    let buckets = |now: &Collection| {
        check(now)?;
        let changes = [("timeseries", Value::Document(timeseries.as_raw()))];
        let options = Some(with_changes(now.options.as_raw(), &changes));
        Ok(CollectionChange { options, ..CollectionChange::default() })
    };
    op.engine().coll_mod(&buckets_namespace(view.db(), view.name()), &buckets, &interrupt)?;
    let shown = |now: &Collection| {
        let changes = [
            ("pipeline", Value::Array(pipeline.as_raw())),
            ("timeseries", Value::Document(timeseries.as_raw())),
        ];
        let options = Some(with_changes(now.options.as_raw(), &changes));
        Ok(CollectionChange { options, ..CollectionChange::default() })
    };
    op.engine().coll_mod(&view.namespace, &shown, &interrupt)?;
    op.note_commit(views::follow(op.engine(), &view.namespace, &interrupt)?);
    Ok(())
}
