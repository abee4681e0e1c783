//! The end of a run, as everything that waits hears of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Says that the run is to end; shared by everything that waits.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks everything to end.
    pub fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// The flag itself, for signals.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }

    /// Whether to end.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
