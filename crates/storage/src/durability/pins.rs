//! Entries of the log that somebody still needs: a member that copies from this one.

use std::sync::Arc;

use crate::order::{Mutex, rank};

/// Keeps the log's entries behind an index, as long as it lives.
pub struct LogPin {
    pins: Arc<LogPins>,
    index: u64,
}

impl Drop for LogPin {
    fn drop(&mut self) {
        let mut pins = self.pins.0.lock();
        let at = pins.iter().position(|index| *index == self.index);
        pins.swap_remove(at.expect("a pin is in the list until it is dropped"));
    }
}

/// Entries behind these indexes stay in the log.
#[derive(Default)]
pub(crate) struct LogPins(Mutex<{ rank::LEAF }, Vec<u64>>);

impl LogPins {
    /// Keeps the entries behind this index.
    pub fn pin(self: &Arc<Self>, index: u64) -> LogPin {
        self.0.lock().push(index);
        LogPin { pins: self.clone(), index }
    }

    /// Entries up to here may go.
    pub fn unneeded(&self) -> u64 {
        self.0.lock().iter().copied().min().unwrap_or(u64::MAX)
    }
}
