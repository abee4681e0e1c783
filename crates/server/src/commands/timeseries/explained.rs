//! What explain tells of writes to measurements: the plans on their buckets.

use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::Result;
use sheaf_exec::explain::{Rows, Top};
use sheaf_exec::plan::Query;
use sheaf_exec::write::UpdateStatement;
use sheaf_exec::write::timeseries::{count_all, count_matching};
use sheaf_storage::{Collection, View};
use sheaf_timeseries::filter_on_meta;

use super::delete::Deletion;
use super::update::on_buckets;
use super::{Selected, Timeseries, UpdateParts, buckets_name, no_buckets, options_of};
use crate::commands::crud::query::parse_filter;
use crate::op::Operation;

/// The time-series collection that an explained write is about, as it is in this state; `collection` is its view, or its buckets.
///
/// Errors: as [`Timeseries::to_write`].
pub fn to_explain(op: &Operation<'_>, view: &View, collection: &Collection) -> Result<Timeseries> {
    let Some(buckets) = view.collection(&buckets_name(collection)).filter(|buckets| !buckets.is_view())
    else {
        return Err(no_buckets(&collection.namespace));
    };
    if collection.is_view() {
        op.check_plain(buckets)?;
    }
    Ok(Timeseries { options: options_of(collection)?, buckets: buckets.clone() })
}

/// A delete of measurements.
pub struct MeasuredDelete<'t> {
    timeseries: &'t Timeseries,
    deletion: Deletion,
    multi: bool,
    now_millis: i64,
    buckets: DocBuf,
    /// `None`: buckets go as a whole.
    residual: Option<DocBuf>,
}

impl<'t> MeasuredDelete<'t> {
    /// The plan of a delete.
    ///
    /// Errors: those of filters and hints.
    pub fn of(
        op: &Operation<'_>,
        collection: &Collection,
        timeseries: &'t Timeseries,
        selected: &Selected<'_>,
        multi: bool,
    ) -> Result<Self> {
        let deletion = Deletion::of(op, collection, timeseries, selected)?;
        let meta = timeseries.options.meta_field.as_deref();
        // What buckets tell of their meta value holds for all their measurements.
        let told = |clause: RawDoc<'_>| meta.is_some_and(|meta| filter_on_meta(clause, meta).is_some());
        let rest = DocBuf::build(|out| {
            for field in selected.filter.iter() {
                if !told(DocBuf::new().with(field.key(), field.value()).as_raw()) {
                    out.append_element(field);
                }
            }
        });
        let whole = multi && rest.as_raw().is_empty();
        let residual = parse_filter(Some(rest.as_raw()), &mut selected.parse_cx(op, collection)?)?.to_doc();
        Ok(MeasuredDelete {
            timeseries,
            buckets: deletion.query.matcher().to_doc(),
            deletion,
            multi,
            now_millis: op.now_millis(),
            residual: (!whole).then_some(residual),
        })
    }

    /// Which buckets it looks for.
    pub fn query(&self) -> &Query {
        &self.deletion.query
    }

    /// Its operator.
    pub fn top(&self) -> Top<'_> {
        match &self.residual {
            None => Top::Delete { multi: true },
            Some(residual) => Top::DeleteMeasurements {
                multi: self.multi,
                buckets: self.buckets.as_raw(),
                residual: residual.as_raw(),
            },
        }
    }

    /// What it would do to a bucket.
    ///
    /// Errors: those of the filter.
    pub fn would_delete(&self, bucket: RawDoc<'_>) -> Result<Rows> {
        let gone = count_matching(bucket, &self.timeseries.options, &self.deletion.matcher, self.now_millis)?;
        Ok(match (&self.residual, self.multi) {
            (None, _) => Rows { taken: gone, changed: gone },
            (Some(_), true) => Rows { taken: 1, changed: gone },
            (Some(_), false) => Rows { taken: 1, changed: gone.min(1) },
        })
    }
}

/// An update of measurements, which is one of their meta values.
pub struct MeasuredUpdate<'t> {
    timeseries: &'t Timeseries,
    /// The update of the buckets.
    pub statement: UpdateStatement,
}

impl<'t> MeasuredUpdate<'t> {
    /// The plan of an update.
    ///
    /// Errors: `InvalidOptions` for what time-series collections do not have; those of filters and updates.
    pub fn of(
        op: &Operation<'_>,
        collection: &Collection,
        timeseries: &'t Timeseries,
        parts: &UpdateParts<'_>,
    ) -> Result<Self> {
        let statement = on_buckets(op, collection, timeseries, parts)?;
        Ok(MeasuredUpdate { timeseries, statement })
    }

    /// What it would do to a bucket, if it would change that or not: to all its measurements.
    ///
    /// Errors: those of buckets that are none.
    pub fn would_update(&self, bucket: RawDoc<'_>, changes: bool) -> Result<Rows> {
        let taken = count_all(bucket, &self.timeseries.options)?;
        Ok(Rows { taken, changed: if changes { taken } else { 0 } })
    }
}
