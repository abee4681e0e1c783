//! The balancer's rounds, of which one at a time is under way.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use sheaf_errors::Result;
use sheaf_storage::Interrupt;

/// How often who waits for the end of a round asks whether to go on.
const ASK: Duration = Duration::from_millis(20);

/// What is known of rounds.
#[derive(Default)]
pub(super) struct Balancer {
    /// Held by a round.
    round: Mutex<()>,
    is_in_round: AtomicBool,
    rounds: AtomicI64,
    /// Collections for which nothing was to be done when their shards had so many bytes.
    pub settled: Mutex<HashMap<[u8; 16], u64>>,
    /// Why collections could not be balanced the last time, by their names.
    pub failed: Mutex<BTreeMap<String, String>>,
    /// Why the settings could not be read, once it was told.
    pub refused: Mutex<Option<String>>,
}

impl Balancer {
    /// Whether a round is under way, and how many there were.
    pub fn status(&self) -> (bool, i64) {
        (self.is_in_round.load(Ordering::Acquire), self.rounds.load(Ordering::Acquire))
    }

    /// Waits until no round is under way.
    ///
    /// Errors: those of `go_on`.
    pub fn await_round(&self, go_on: Interrupt<'_>) -> Result<()> {
        while self.round.try_lock_for(ASK).is_none() {
            go_on()?;
        }
        Ok(())
    }

    /// Begins a round; it ends with what is given.
    pub fn begin(&self) -> Round<'_> {
        let held = self.round.lock();
        self.is_in_round.store(true, Ordering::Release);
        Round { of: self, _held: held }
    }
}

/// A round under way.
pub(super) struct Round<'b> {
    of: &'b Balancer,
    _held: MutexGuard<'b, ()>,
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        self.of.is_in_round.store(false, Ordering::Release);
        self.of.rounds.fetch_add(1, Ordering::AcqRel);
    }
}
