//! A build that others know of.

use std::sync::Arc;

use super::turn::Turn;
use crate::catalog::Collection;
use crate::core::Core;
use crate::index::Index;

/// A build that is known to others as long as this lives.
pub(super) struct Running {
    core: Arc<Core>,
    pub turn: Arc<Turn>,
}

impl Running {
    /// `filled` says that the index has what a snapshot showed already.
    pub fn new(core: &Arc<Core>, collection: &Arc<Collection>, indexes: &[Arc<Index>], filled: bool) -> Self {
        let turn = core.definitions.builds().begin(collection, indexes, filled);
        Running { core: core.clone(), turn }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.core.definitions.builds().forget(&self.turn);
    }
}
