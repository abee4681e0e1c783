//! Commands that wait for commits without holding a thread: an awaitData cursor's `getMore`.
//!
//! A handler that has nothing to answer yet leaves a [`Parked`] with its operation. The connection waits for it
//! and runs the same request once more; the cursor remembers how long its client is willing to wait.

use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use sheaf_storage::Collection;

use crate::cursors::CursorInfo;

/// What a `getMore` waits for.
pub struct Parked {
    /// Then it answers with what there is.
    pub until: Instant,
    /// The collection whose next commit may bring something.
    pub waits: Waits,
    /// The cursor, which somebody may kill meanwhile.
    pub cursor: Arc<CursorInfo>,
}

/// A collection as a cursor has seen it.
#[derive(Clone)]
pub struct Waits {
    /// The collection; the log itself for what may come from anywhere.
    pub collection: Arc<Collection>,
    /// Its version when it was read.
    pub seen: u64,
}

impl Waits {
    /// For the next change of a collection; called before it is read.
    pub fn on(collection: &Arc<Collection>) -> Self {
        Waits { collection: collection.clone(), seen: collection.version() }
    }

    /// Whether something has changed; if not, `waker` is told of the next change.
    pub fn is_over(&self, waker: &Waker) -> bool {
        self.collection.on_change(self.seen, waker.clone())
    }
}
