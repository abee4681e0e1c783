//! How a request compares strings where what several shards give is put together.

use sheaf_bson::RawDoc;
use sheaf_cluster::Sharded;
use sheaf_collation::{Collator, SharedCollator};
use sheaf_errors::Result;

/// By the request's own collation; without one, by that of the sharded collection.
///
/// Errors: those of the collation.
pub fn collator_of(body: RawDoc<'_>, sharded: Option<&Sharded>) -> Result<Option<SharedCollator>> {
    let own = body.get("collation").and_then(|collation| collation.as_doc()).filter(|own| !own.is_empty());
    let default = || sharded.and_then(|sharded| sharded.default_collation.as_ref()).map(|spec| spec.as_raw());
    match own.or_else(default) {
        Some(spec) => Collator::parse(spec),
        None => Ok(None),
    }
}
