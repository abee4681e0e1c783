//! The two parts of a time-series collection, as whoever makes one makes them.

use sheaf_bson::DocBuf;
use sheaf_errors::{Code, Error, Result};
use sheaf_storage::{CreateCollection, Interrupt, OpTime};
use sheaf_timeseries::{TimeseriesOptions, bucket_id_index, default_index};

use crate::commands::ddl::{names, views};
use crate::node::Node;

/// What a collection of buckets with these options begins with.
///
/// Errors: none that options can cause which were checked.
pub fn buckets(timeseries: &TimeseriesOptions, options: DocBuf) -> Result<CreateCollection> {
    let indexes = default_index(timeseries)?.into_iter().collect();
    Ok(CreateCollection {
        options,
        id_index: Some(bucket_id_index()),
        indexes,
        ..CreateCollection::default()
    })
}

/// The error for a name that something else has.
pub fn exists(namespace: &str) -> Error {
    Error::new(Code::NAMESPACE_EXISTS, format!("A timeseries collection already exists. NS: {namespace}"))
}

/// Makes the view on buckets that are there.
///
/// Errors: `NamespaceExists` if something else has the name.
pub fn make_view(node: &Node, namespace: &str, options: &DocBuf, interrupt: Interrupt<'_>) -> Result<OpTime> {
    let _turn = views::turn(node, interrupt)?;
    views::prepare(node.engine(), names::split(namespace).0, interrupt)?;
    let spec = CreateCollection { options: options.clone(), ..CreateCollection::default() };
    match node.engine().create_collection(namespace, &spec, interrupt) {
        Err(error) if error.code() == Code::NAMESPACE_EXISTS => {
            if !node.catalog().collection(namespace).is_some_and(|now| now.is_timeseries()) {
                return Err(exists(namespace));
            }
        }
        made => _ = made?,
    }
    views::follow(node.engine(), namespace, interrupt)
}
