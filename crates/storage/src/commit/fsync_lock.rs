//! `fsyncLock`: everything is flushed, and no commit comes until it is unlocked as often as it was locked.
//!
//! Who asks for a lock may wait long for writers; who asks for the count, or unlocks, waits for nobody.

use std::sync::Arc;
use std::time::Duration;

use sheaf_errors::{Code, Result, bail};

use crate::locks::{Closed, Gate, Pass};
use crate::options::{Block, Interrupt};
use crate::order::{Mutex, rank};

/// The gate that all commits pass, and who keeps it closed.
#[derive(Default)]
pub(crate) struct FsyncLock {
    gate: Arc<Gate>,
    /// One at a time closes the gate.
    closing: Mutex<{ rank::WRITE_LOCKS }, ()>,
    held: Mutex<{ rank::LEAF }, Held>,
}

#[derive(Default)]
struct Held {
    closed: Option<Closed>,
    count: u64,
}

impl FsyncLock {
    /// A pass through the gate.
    pub fn pass(&self, block: &Block, interrupt: Interrupt<'_>) -> Result<Pass> {
        self.gate.pass(block, interrupt)
    }

    /// [`FsyncLock::pass`], if nobody has to be waited for.
    pub fn try_pass(&self) -> Option<Pass> {
        self.gate.try_pass()
    }

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

    /// Closes the gate, and has everything flushed that has passed it; or locks once more what is locked. Gives how often it is
    /// locked then.
    pub fn lock(
        &self,
        block: &Block,
        interrupt: Interrupt<'_>,
        flush: impl Fn() -> Result<()>,
    ) -> Result<u64> {
        loop {
            interrupt()?;
            if let Some(count) = self.again() {
                return Ok(count);
            }
            let Some(_closing) = self.closing.try_lock_for(Duration::from_millis(20)) else {
                continue;
            };
            if let Some(count) = self.again() {
                return Ok(count);
            }
            let closed = self.gate.close(block, interrupt)?;
            flush()?;
            // Who has gone meanwhile would never unlock.
            interrupt()?;
            *self.held.lock() = Held { closed: Some(closed), count: 1 };
            return Ok(1);
        }
    }

    /// Undoes one [`FsyncLock::lock`]; gives how often it is locked still.
    pub fn unlock(&self) -> Result<u64> {
        let (left, opened) = {
            let mut held = self.held.lock();
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
