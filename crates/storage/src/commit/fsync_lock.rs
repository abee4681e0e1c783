//! `fsyncLock`: everything is flushed, and no commit comes until it is unlocked as often as it was locked.
//!
//! Who asks for a lock may wait long for writers; who asks for the count, or unlocks, waits for nobody.

use std::time::Duration;

use sheaf_errors::{Code, Result, bail};

use crate::core::Core;
use crate::locks::Closed;
use crate::options::Interrupt;
use crate::order::{Mutex, rank};

/// The locks of a folder.
#[derive(Default)]
pub(crate) struct WriteLocks {
    /// One at a time closes the gate.
    closing: Mutex<{ rank::WRITE_LOCKS }, ()>,
    held: Mutex<{ rank::LEAF }, Held>,
}

#[derive(Default)]
struct Held {
    closed: Option<Closed>,
    count: u64,
}

impl WriteLocks {
    /// How often writes are locked.
    pub fn count(&self) -> u64 {
        self.held.lock().count
    }

    /// Locks once more what is locked.
    fn again(&self) -> Option<u64> {
        let mut held = self.held.lock();
        held.closed.as_ref()?;
        held.count += 1;
        Some(held.count)
    }
}

impl Core {
    /// See [`crate::Engine::lock_writes`].
    pub fn lock_writes(&self, interrupt: Interrupt<'_>) -> Result<u64> {
        loop {
            interrupt()?;
            if let Some(count) = self.commits.write_locks.again() {
                return Ok(count);
            }
            let Some(_closing) = self.commits.write_locks.closing.try_lock_for(Duration::from_millis(20))
            else {
                continue;
            };
            if let Some(count) = self.commits.write_locks.again() {
                return Ok(count);
            }
            let closed = self.commits.gate.close(&self.base.options.block, interrupt)?;
            self.checkpoint()?;
            // Who has gone meanwhile would never unlock.
            interrupt()?;
            *self.commits.write_locks.held.lock() = Held { closed: Some(closed), count: 1 };
            return Ok(1);
        }
    }

    /// See [`crate::Engine::unlock_writes`].
    pub fn unlock_writes(&self) -> Result<u64> {
        let (left, opened) = {
            let mut held = self.commits.write_locks.held.lock();
            if held.count == 0 {
                bail!(Code::ILLEGAL_OPERATION, "fsyncUnlock called when not locked");
            }
            held.count -= 1;
            (held.count, if held.count == 0 { held.closed.take() } else { None })
        };
        drop(opened);
        Ok(left)
    }
}
