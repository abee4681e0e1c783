//! What a mongod's cursors are made of.

use sheaf_bson::DocBuf;
use sheaf_errors::Result;
pub use sheaf_front::cursors::{Batch, Cursor, CursorInfo, MAX_BATCH_BYTES, OpenCursors};
use sheaf_storage::View;

use crate::op::Operation;
use crate::parked::Changes;

/// All open cursors of the node.
pub type Cursors = sheaf_front::cursors::Cursors<Open>;

/// An open cursor.
pub struct Open {
    /// What gives its documents.
    pub cursor: Box<dyn ServerCursor>,
    /// The state that all batches read, for `snapshot` outside a transaction.
    pub snapshot: Option<View>,
}

impl Cursor for Open {
    fn is_await_data(&self) -> bool {
        self.cursor.is_await_data()
    }
}

/// A cursor between two `getMore`s.
pub trait ServerCursor: Send {
    /// Appends documents to `batch` until it is full, the cursor is exhausted, or (tailable) nothing
    /// more is there now. Must leave no snapshot open when it returns, unless in a transaction.
    fn fill(&mut self, op: &Operation<'_>, batch: &mut Batch<'_>) -> Result<Filled>;

    /// For an awaitData cursor that has just given nothing: what it waits for. `asked`: somebody waits to hear how far it has come.
    fn waits(&self, _asked: bool) -> Option<Changes> {
        None
    }

    /// `postBatchResumeToken`: of a change stream, or of a find that asks for it.
    fn resume_token(&self) -> Option<DocBuf> {
        None
    }

    /// Nothing is committed at or below this time any more that majority reads do not show from now on.
    fn promise(&mut self, _time: u64) {}

    /// What the change stream has told by now goes out with an answer.
    fn note_answer(&mut self) {}

    /// Whether the last answer of a change stream has told all that is committed at or below this time.
    fn was_answered_up_to(&self, _time: u64) -> bool {
        false
    }

    /// Whether a change stream has told all that is committed at or below this time; an answer that says so may be still to come.
    fn is_known_up_to(&self, _time: u64) -> bool {
        false
    }

    /// Whether an empty batch leaves the cursor open.
    fn is_tailable(&self) -> bool {
        false
    }

    /// Whether `getMore` waits for data when there is none.
    fn is_await_data(&self) -> bool {
        false
    }

    /// `planSummary` for `currentOp` and the slow log.
    fn plan_summary(&self) -> String {
        String::new()
    }
}

/// What [`ServerCursor::fill`] left behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filled {
    /// There may be more.
    More,
    /// The cursor is at its end; it will be closed.
    Exhausted,
}
