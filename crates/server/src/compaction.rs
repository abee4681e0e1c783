//! Whether files are compacted in the background, and what is asked of it.

use parking_lot::Mutex;
use sheaf_errors::{Code, Result, bail};

/// What was asked of background compaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish {
    /// A collection is compacted if so much can be given back.
    pub target_bytes: i64,
    /// Whether it ends when every collection has been looked at.
    pub run_once: bool,
}

/// Background compaction, on or off.
#[derive(Default)]
pub struct AutoCompact(Mutex<Option<Wish>>);

impl AutoCompact {
    /// Switches it on. To wish the same twice is no fault.
    ///
    /// Errors: `AlreadyInitialized` while it is on with another wish.
    pub fn start(&self, wish: Wish) -> Result<()> {
        let mut now = self.0.lock();
        if now.is_some_and(|other| other != wish) {
            bail!(
                Code::ALREADY_INITIALIZED,
                "Cannot reconfigure background compaction while it's already running."
            );
        }
        *now = Some(wish);
        Ok(())
    }

    /// Switches it off: what is being compacted is compacted to its end.
    pub fn stop(&self) {
        *self.0.lock() = None;
    }

    /// What is wished now.
    pub fn wish(&self) -> Option<Wish> {
        *self.0.lock()
    }

    /// The pass of this wish has ended.
    pub fn passed(&self, wish: Wish) {
        let mut now = self.0.lock();
        if *now == Some(wish) && wish.run_once {
            *now = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wish_at_a_time() {
        let compaction = AutoCompact::default();
        let wish = Wish { target_bytes: 20 << 20, run_once: true };
        compaction.start(wish).unwrap();
        compaction.start(wish).unwrap();
        let other = Wish { run_once: false, ..wish };
        assert_eq!(compaction.start(other).unwrap_err().code(), Code::ALREADY_INITIALIZED);
        compaction.passed(wish);
        assert_eq!(compaction.wish(), None);
        compaction.start(other).unwrap();
        compaction.passed(other);
        assert_eq!(compaction.wish(), Some(other));
        compaction.stop();
        assert_eq!(compaction.wish(), None);
    }
}
