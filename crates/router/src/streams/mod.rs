//! Change streams over shards: a cursor on each of them, merged by resume token. Why so is told in
//! `docs/design/0028-change-streams-over-shards.md`.
//!
//! - [`Inputs`]: the shards' cursors, and up to where each has told everything;
//! - [`StreamSource`]: what comes of them, as the rows of a pipeline;
//! - [`Opening`]: what is asked of each shard, also of one that is added later;
//! - `members`: who is a shard, and when;
//! - [`StreamCursor`]: what a client's cursor keeps of it.

mod input;
mod inputs;
mod members;
mod opening;
mod source;
mod wait;

use std::sync::Arc;

use parking_lot::Mutex;
use sheaf_bson::DocBuf;
use sheaf_exec::change_stream::SharedPosition;
use sheaf_rows::{BoxOperator, Limits};

use crate::gather::Link;

pub use input::Input;
pub use inputs::Inputs;
pub use opening::{Known, Opening, looks_up};
pub use source::StreamSource;
pub use wait::answers;

/// A change stream between two batches.
pub struct StreamCursor {
    /// Gives the events.
    pub run: BoxOperator,
    /// Where these come from.
    pub inputs: Arc<Mutex<Inputs>>,
    /// Behind what was given; it may be ahead of what was sent.
    pub position: SharedPosition,
    /// The way to the shards.
    pub link: Arc<Link>,
    /// What its stages may use.
    pub limits: Limits,
    /// A document that did not fit the last batch.
    pub waiting: Option<DocBuf>,
    /// Behind what was sent.
    pub token: DocBuf,
}
