//! What ends the waits of work that no client has asked for.

use sheaf_errors::{Code, Result, bail};

use crate::node::Node;

impl Node {
    /// For work that has to be done, however long it waits.
    ///
    /// Errors: `InterruptedAtShutdown` once the process ends.
    pub fn until_end(&self) -> Result<()> {
        if self.is_shutting_down() { Err(crate::node::shutting_down_error()) } else { Ok(()) }
    }

    /// For work that comes again: behind an `fsyncLock` it does not wait, and nothing waits behind it.
    ///
    /// Errors: `LockTimeout` while writes are locked; `InterruptedAtShutdown`.
    pub fn unless_locked(&self) -> Result<()> {
        self.until_end()?;
        if self.engine().write_lock_count() > 0 {
            bail!(Code::LOCK_TIMEOUT, "writes are locked by fsyncLock");
        }
        Ok(())
    }
}
