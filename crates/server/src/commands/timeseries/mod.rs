//! Time-series collections: a view of measurements on a collection of buckets. What commands on the view do to the buckets.
//!
//! Where the buckets are sharded only the database's primary shard has the view. Routers name the buckets then, and say by
//! `isTimeseriesNamespace` that the command is about measurements all the same.

mod create;
mod delete;
mod explained;
mod indexes;
mod insert;
mod list;
mod parts;
mod spans;
mod update;

use std::sync::Arc;

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_exec::database::hint_on_buckets;
use sheaf_exec::plan::query::Hint;
use sheaf_expr::ParseCx;
use sheaf_storage::{Catalog, Collection, Write};
use sheaf_timeseries::{TimeseriesOptions, buckets_namespace, split_buckets};

use crate::commands::crud::query::collated_cx;
use crate::op::Operation;

pub use create::{CreateTimeseries, drop_buckets, expire_after};
pub use delete::delete;
pub use explained::{MeasuredDelete, MeasuredUpdate, to_explain};
pub use indexes::on_buckets;
pub use insert::{insert_all, insert_one};
pub use list::listed_options;
pub use parts::{buckets, buckets_to_fill, check_bucket, check_sound_bucket, make_view, set_options};
pub use spans::{PLACE, change_spans, check_spans};
pub use update::{UpdateParts, update};

/// A time-series collection that is written to.
pub struct Timeseries {
    /// Its options.
    pub options: TimeseriesOptions,
    /// Its buckets.
    pub buckets: Arc<Collection>,
}

impl Timeseries {
    /// The collection behind a view of measurements, or this one where it is that already.
    ///
    /// Errors: `NamespaceNotFound` without its buckets; `StaleConfig`, if a router takes them for a collection that is not sharded.
    pub fn to_write(op: &Operation<'_>, w: &mut dyn Write, collection: &Collection) -> Result<Self> {
        let namespace = buckets_name(collection);
        let options = options_of(collection)?;
        match w.collection(&namespace)? {
            Some(buckets) if !buckets.is_view() => {
                if collection.is_view() {
                    op.check_plain(&buckets)?;
                }
                Ok(Timeseries { options, buckets })
            }
            _ => Err(no_buckets(&collection.namespace)),
        }
    }
}

/// Which measurements a statement is about, and how it compares strings.
pub struct Selected<'a> {
    /// Their filter.
    pub filter: RawDoc<'a>,
    /// `let`
    pub variables: Option<RawDoc<'a>>,
    /// `collation`; without one the collection's own holds.
    pub collation: Option<RawDoc<'a>>,
    /// `hint`, as it is on measurements.
    pub hint: Value<'a>,
}

impl Selected<'_> {
    /// What the statement is parsed in.
    fn parse_cx(&self, op: &Operation<'_>, collection: &Collection) -> Result<ParseCx> {
        collated_cx(op, &collection.namespace, self.collation, self.variables)
    }

    /// The hint on buckets.
    fn hint(&self, options: &TimeseriesOptions) -> Result<Hint> {
        Ok(hint_on_buckets(Hint::parse(self.hint)?, options))
    }
}

/// The error for a time-series collection that lacks its buckets.
pub fn no_buckets(namespace: &str) -> Error {
    Error::new(Code::NAMESPACE_NOT_FOUND, format!("{namespace} has no buckets"))
}

/// The namespace of the buckets of a view, or of this collection of buckets.
pub fn buckets_name(collection: &Collection) -> String {
    match split_buckets(&collection.namespace) {
        Some(_) => collection.namespace.clone(),
        None => buckets_namespace(collection.db(), collection.name()),
    }
}

/// Whether the command says that it is about measurements where it names their buckets.
pub fn says_measured(op: &Operation<'_>) -> bool {
    let says = |body: RawDoc<'_>| body.get("isTimeseriesNamespace").is_some_and(|flag| flag.truthy());
    match op.command.name {
        "explain" => op.body().get("explain").and_then(|explained| explained.as_doc()).is_some_and(says),
        _ => says(op.body()),
    }
}

/// Whether a collection is one of buckets.
pub fn is_buckets(collection: &Collection) -> bool {
    !collection.is_view()
        && split_buckets(&collection.namespace).is_some()
        && collection.options.as_raw().element("timeseries").is_some()
}

/// Whether a command about this collection is about measurements.
pub fn is_measured(op: &Operation<'_>, collection: &Collection) -> bool {
    collection.is_timeseries() || (is_buckets(collection) && says_measured(op))
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

/// The buckets of the measurements that a command about this collection is about.
pub fn measured_buckets<'c>(
    op: &Operation<'_>,
    catalog: &'c Catalog,
    collection: &Collection,
) -> Option<&'c Arc<Collection>> {
    match is_buckets(collection) && says_measured(op) {
        true => catalog.collection(&collection.namespace),
        false => buckets_of(catalog, collection),
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
