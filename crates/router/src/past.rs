//! Reads at a time that cannot be shown any more.

use std::time::Duration;

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Error};
use sheaf_shard::placement::CLOSED;

/// For so long a request is tried again that reads at a time which nobody can choose anew: neither does a shard's state at that time change, nor what the
/// directory tells of it.
pub const PATIENCE_WITH_PAST: Duration = Duration::from_secs(1);

/// Whether a shard has refused a request since the collection was closed in the state that it was to read.
pub fn was_closed(error: &Error) -> bool {
    let wanted = || RawDoc::new(error.extra()?).get("vWanted");
    error.code() == Code::STALE_CONFIG && matches!(wanted(), Some(Value::Timestamp(CLOSED)))
}

/// The error for a time of which nobody can tell any more where the collection was.
pub fn laid_out_anew(error: &Error) -> Error {
    let text = format!("the collection was laid out anew since the time that is to be read: {error}");
    Error::new(Code::SNAPSHOT_UNAVAILABLE, text)
}
