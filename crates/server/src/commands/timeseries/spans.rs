//! `collMod` of what buckets span.

use sheaf_bson::RawDoc;
use sheaf_errors::Result;
use sheaf_storage::Collection;
use sheaf_timeseries::TimeseriesOptions;

use super::parts::set_options;
use super::{buckets_name, options_of};
use crate::op::Operation;

/// How `collMod` names the field.
pub const PLACE: &str = "collMod.timeseries";

/// Checks the argument's names and types.
///
/// Errors: 40415, `TypeMismatch`, `BadValue`.
pub fn check_spans(spec: RawDoc<'_>) -> Result<()> {
    TimeseriesOptions::check_change(spec, PLACE)
}

/// Gives a collection's buckets longer spans: of a view and its buckets, or of the buckets where there is no view on this shard.
///
/// Errors: `InvalidOptions` for shorter ones.
pub fn change_spans(op: &Operation<'_>, collection: &Collection, spec: RawDoc<'_>) -> Result<()> {
    let before = options_of(collection)?;
    let stop = op.interrupter();
    let next = before.changed(spec, PLACE)?;
    let interrupt = || stop.check();
    let buckets = buckets_name(collection);
    let check = |now: &Collection| op.check_changed(now);
    op.note_commit(set_options(op.node(), &buckets, (&[before], &next), spec, &check, &interrupt)?);
    Ok(())
}
