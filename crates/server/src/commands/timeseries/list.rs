//! Time-series collections as `listCollections` shows them.

use sheaf_bson::DocBuf;
use sheaf_storage::{Catalog, Collection};

use super::buckets_of;

/// The options that users see: those of the buckets, without what is the server's.
pub fn listed_options(catalog: &Catalog, view: &Collection) -> DocBuf {
    let own = view.options.as_raw();
    let options = buckets_of(catalog, view).map_or(own, |buckets| buckets.options.as_raw());
    DocBuf::build(|out| {
        for field in options.iter() {
            if !matches!(field.key(), "clusteredIndex" | "validator" | "viewOn" | "pipeline") {
                out.append_element(field);
            }
        }
    })
}
