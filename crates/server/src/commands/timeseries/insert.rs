//! Inserts of measurements.

use std::cell::Cell;
use std::sync::Arc;

use sheaf_bson::RawDoc;
use sheaf_errors::Result;
use sheaf_exec::write::timeseries::Filling;
use sheaf_exec::write::{WriteCx, check_document};
use sheaf_storage::{Collection, Write};
use sheaf_timeseries::{Measurement, bucket_of};

use super::indexes::{check_no_arrays, indexed_measurements};
use super::{Timeseries, refuse_transaction};
use crate::commands::crud::writes::{StatementOutcomes, WriteFields};
use crate::op::Operation;
use crate::sharding::Placed;

fn filling<'f>(op: &'f Operation<'_>, cx: &'f WriteCx<'_>, timeseries: &'f Timeseries) -> Filling<'f> {
    Filling {
        buckets: &timeseries.buckets,
        options: &timeseries.options,
        open: &op.node().open_buckets,
        new_object_id: cx.new_object_id,
        interrupt: cx.interrupt,
    }
}

/// Looks at a document that is to be inserted. Where a bucket that begins with it would be another shard's, that is told before anything is
/// written: in which bucket it comes to lie is found out later.
///
/// Errors: those of documents that are no measurements; `StaleConfig`.
fn look_at<'d>(
    op: &Operation<'_>,
    timeseries: &Timeseries,
    placed: Option<&Arc<Placed>>,
    indexed: &[&str],
    document: RawDoc<'d>,
) -> Result<Measurement<'d>> {
    check_document(document)?;
    let measurement = Measurement::of(document, &timeseries.options)?;
    check_no_arrays(document, indexed)?;
    if let Some(placed) = placed
        && !placed.owns(bucket_of(&measurement, &timeseries.options).as_raw(), &mut Vec::new())?
    {
        return Err(op.not_owned(&timeseries.buckets.namespace, placed));
    }
    Ok(measurement)
}

/// Inserts the documents of a command, those of one source together; `inserted` counts them.
///
/// Errors: those that end the command.
pub fn insert_all<'d>(
    op: &Operation<'_>,
    w: &mut dyn Write,
    cx: &WriteCx<'_>,
    view: &Collection,
    fields: &WriteFields,
    documents: impl Iterator<Item = RawDoc<'d>>,
    inserted: &Cell<u64>,
) -> Result<StatementOutcomes> {
    refuse_transaction(op, "insert into", view)?;
    let timeseries = Timeseries::to_write(op, w, view)?;
    let filling = filling(op, cx, &timeseries);
    let placed = op.placed(&timeseries.buckets)?;
    let indexed = indexed_measurements(&timeseries.buckets, &timeseries.options);
    let (mut together, mut places) = (Vec::new(), Vec::new());
    let outcome = StatementOutcomes::each(
        op,
        fields,
        documents,
        w,
        |_, at, document| {
            together.push(look_at(op, &timeseries, placed.as_ref(), &indexed, document)?);
            places.push(at);
            inserted.set(inserted.get() + 1);
            Ok(None)
        },
        |_, _| inserted.set(inserted.get() + 1),
    )?;
    let statement = |at: usize| op.statement(fields.statements.at(places[at]), None);
    filling.insert(w, &together, &statement)?;
    Ok(outcome)
}

/// Inserts one measurement.
///
/// Errors: those of inserts.
pub fn insert_one(
    op: &Operation<'_>,
    w: &mut dyn Write,
    cx: &WriteCx<'_>,
    view: &Collection,
    document: RawDoc<'_>,
    stmt_id: i32,
) -> Result<()> {
    refuse_transaction(op, "insert into", view)?;
    let timeseries = Timeseries::to_write(op, w, view)?;
    let placed = op.placed(&timeseries.buckets)?;
    let indexed = indexed_measurements(&timeseries.buckets, &timeseries.options);
    let measurement = look_at(op, &timeseries, placed.as_ref(), &indexed, document)?;
    filling(op, cx, &timeseries).insert(w, &[measurement], &|_| op.statement(stmt_id, None))
}
