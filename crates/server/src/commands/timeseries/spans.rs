//! `collMod` of what buckets span.

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::ddl::collection_options::with_changes;
use sheaf_storage::{Collection, CollectionChange};
use sheaf_timeseries::{TimeseriesOptions, split_buckets, unpack_stage};

use super::{buckets_name, options_of};
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

/// Gives a collection's buckets longer spans: of a view and its buckets, or of the buckets where there is no view on this shard.
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
    let on = buckets_name(view);
    let position = op.engine().coll_mod(&on, &buckets, &interrupt)?;
    let shown_as = split_buckets(&on).map(|(db, name)| format!("{db}.{name}")).unwrap_or_default();
    if !op.catalog().collection(&shown_as).is_some_and(|shown| shown.is_timeseries()) {
        op.note_commit(position);
        return Ok(());
    }
    let shown = |now: &Collection| {
        let changes = [
            ("pipeline", Value::Array(pipeline.as_raw())),
            ("timeseries", Value::Document(timeseries.as_raw())),
        ];
        let options = Some(with_changes(now.options.as_raw(), &changes));
        Ok(CollectionChange { options, ..CollectionChange::default() })
    };
    op.engine().coll_mod(&shown_as, &shown, &interrupt)?;
    op.note_commit(views::follow(op.engine(), &shown_as, &interrupt)?);
    Ok(())
}
