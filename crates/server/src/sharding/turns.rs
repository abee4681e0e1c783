//! Turns by name: of all who want to change what has a name, one does at a time.

use std::collections::HashSet;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use sheaf_errors::Result;
use sheaf_storage::Interrupt;

/// How often who waits asks whether to go on.
const ASK: Duration = Duration::from_millis(20);

/// The names whose turn somebody has.
#[derive(Default)]
pub struct Turns {
    taken: Mutex<HashSet<String>>,
    freed: Condvar,
}

/// A turn; dropped, the next one has it.
pub struct Turn<'t> {
    turns: &'t Turns,
    name: String,
}

impl Turns {
    /// Waits for the turn of a name.
    ///
    /// Errors: those of `go_on`.
    pub fn take(&self, name: &str, go_on: Interrupt<'_>) -> Result<Turn<'_>> {
        let mut taken = self.taken.lock();
        while taken.contains(name) {
            self.freed.wait_for(&mut taken, ASK);
            parking_lot::MutexGuard::unlocked(&mut taken, go_on)?;
        }
        taken.insert(name.to_owned());
        Ok(Turn { turns: self, name: name.to_owned() })
    }

    /// The turn of a name that nobody has.
    pub fn try_take(&self, name: &str) -> Option<Turn<'_>> {
        self.taken.lock().insert(name.to_owned()).then(|| Turn { turns: self, name: name.to_owned() })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.taken.lock().remove(&self.name);
        self.turns.freed.notify_all();
    }
}
