//! Time-series collections: a view of measurements on a collection of buckets. What commands on the view do to the buckets.

mod create;
mod delete;
mod indexes;
mod insert;
mod list;
mod spans;
mod update;

use std::sync::Arc;

use sheaf_errors::{Code, Result, bail};
use sheaf_storage::{Catalog, Collection, Write};
use sheaf_timeseries::{TimeseriesOptions, buckets_namespace};

use crate::op::Operation;

pub use create::{CreateTimeseries, drop_buckets, expire_after, make_view};
pub use delete::delete;
pub use indexes::on_buckets;
pub use insert::{insert_all, insert_one};
pub use list::listed_options;
pub use spans::{change_spans, check_spans};
pub use update::{UpdateParts, update};

/// A time-series collection that is written to.
pub struct Timeseries {
    /// Its options.
    pub options: TimeseriesOptions,
    /// Its buckets.
    pub buckets: Arc<Collection>,
}

impl Timeseries {
    /// The collection behind a view of measurements.
    ///
    /// Errors: `NamespaceNotFound` without its buckets.
    pub fn to_write(w: &mut dyn Write, view: &Collection) -> Result<Self> {
        let namespace = buckets_namespace(view.db(), view.name());
        let options = options_of(view)?;
        match w.collection(&namespace)? {
            Some(buckets) if !buckets.is_view() => Ok(Timeseries { options, buckets }),
            _ => bail!(Code::NAMESPACE_NOT_FOUND, "{} has no buckets", view.namespace),
        }
    }
}

/// The options of a view of measurements.
///
/// Errors: `InvalidOptions` if it is none.
pub fn options_of(view: &Collection) -> Result<TimeseriesOptions> {
    match TimeseriesOptions::of_catalog(view.options.as_raw()) {
        Some(options) => Ok(options),
        None => bail!(Code::INVALID_OPTIONS, "{} is not a time-series collection", view.namespace),
    }
}

/// The buckets of a time-series collection.
pub fn buckets_of<'c>(catalog: &'c Catalog, view: &Collection) -> Option<&'c Arc<Collection>> {
    catalog
        .collection(&buckets_namespace(view.db(), view.name()))
        .filter(|buckets| view.is_timeseries() && !buckets.is_view())
}

/// Errors: `OperationNotSupportedInTransaction`.
fn refuse_transaction(op: &Operation<'_>, what: &str, view: &Collection) -> Result<()> {
    if op.in_transaction() {
        bail!(
            Code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
            "Cannot {what} a time-series collection in a multi-document transaction: {}",
            view.namespace
        );
    }
    Ok(())
}
