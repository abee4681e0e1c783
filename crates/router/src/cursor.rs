//! Cursors of a router: one that is open on a shard, rows of several shards, or their change streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sheaf_bson::DocBuf;
use sheaf_front::cursors::Cursor;
use sheaf_rows::{BoxOperator, Limits};

use crate::gather::{Link, OnMember};
use crate::streams::StreamCursor;

/// A cursor of a router.
pub enum RouterCursor {
    /// A shard's: its batches are passed on as they are.
    Passed {
        /// Where it is.
        on: OnMember,
        /// Whether `getMore` waits for documents at its end.
        awaits: bool,
    },
    /// Rows that come together here.
    Merged(Box<Merged>),
    /// A change stream of all shards.
    Stream(Box<StreamCursor>),
}

impl Cursor for RouterCursor {
    fn is_await_data(&self) -> bool {
        matches!(self, RouterCursor::Passed { awaits: true, .. } | RouterCursor::Stream(_))
    }
}

/// Rows that come together here.
pub struct Merged {
    pub(crate) run: BoxOperator,
    pub(crate) link: Arc<Link>,
    pub(crate) limits: Limits,
    /// A document that did not fit the last batch.
    pub(crate) waiting: Option<DocBuf>,
    /// Whether shards were left out, where they may be.
    left_out: Option<Arc<AtomicBool>>,
}

impl Merged {
    /// The rows of this operator, whose leaves use the link.
    pub fn new(run: BoxOperator, link: Arc<Link>, limits: Limits) -> Self {
        Merged { run, link, limits, waiting: None, left_out: None }
    }

    /// The same; the flag tells whether shards were left out that could not be reached.
    pub fn that_may_be_partial(self, left_out: Arc<AtomicBool>) -> Self {
        Merged { left_out: Some(left_out), ..self }
    }

    /// Whether shards may be left out that cannot be reached.
    pub fn may_be_partial(&self) -> bool {
        self.left_out.is_some()
    }

    /// Whether rows of shards are missing that could not be reached.
    pub fn is_partial(&self) -> bool {
        self.left_out.as_ref().is_some_and(|left_out| left_out.load(Ordering::Relaxed))
    }
}
