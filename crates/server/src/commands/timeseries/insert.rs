//! Inserts of measurements.

use std::cell::Cell;

use sheaf_bson::RawDoc;
use sheaf_errors::Result;
use sheaf_exec::write::timeseries::Filling;
use sheaf_exec::write::{WriteCx, check_document};
use sheaf_storage::{Collection, Write};
use sheaf_timeseries::Measurement;

use super::{Timeseries, refuse_transaction};
use crate::commands::crud::writes::{StatementOutcomes, WriteFields};
use crate::op::Operation;

fn filling<'f>(op: &'f Operation<'_>, cx: &'f WriteCx<'_>, timeseries: &'f Timeseries) -> Filling<'f> {
    Filling {
        buckets: &timeseries.buckets,
        options: &timeseries.options,
        open: &op.node().open_buckets,
        new_object_id: cx.new_object_id,
        interrupt: cx.interrupt,
    }
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
    let timeseries = Timeseries::to_write(w, view)?;
    let filling = filling(op, cx, &timeseries);
    // Each statement of a retryable command is on record by itself.
    let one_by_one = op.records_statements();
    let mut together = Vec::new();
    let outcome = StatementOutcomes::each(
        op,
        fields,
        documents,
        w,
        |w, _, document| {
            check_document(document)?;
            let measurement = Measurement::of(document, &timeseries.options)?;
            if one_by_one {
                filling.insert(w, &[measurement])?;
            } else {
                together.push(measurement);
            }
            inserted.set(inserted.get() + 1);
            Ok(None)
        },
        |_, _| inserted.set(inserted.get() + 1),
    )?;
    filling.insert(w, &together)?;
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
) -> Result<()> {
    refuse_transaction(op, "insert into", view)?;
    let timeseries = Timeseries::to_write(w, view)?;
    check_document(document)?;
    filling(op, cx, &timeseries).insert(w, &[Measurement::of(document, &timeseries.options)?])
}
