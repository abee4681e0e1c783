//! Waiting for durability where there may be no journal: then only a flush makes writes last, and that is another owner's.

use sheaf_errors::Result;

use super::Done;
use crate::core::Core;
use crate::options::Interrupt;

impl Core {
    /// Blocks until commits up to `index` are durable.
    pub fn wait_durable(&self, index: u64, interrupt: Interrupt<'_>) -> Result<()> {
        let durability = &self.durability;
        if durability.log.is_none() {
            return if durability.durable_index() >= index { Ok(()) } else { self.checkpoint() };
        }
        let mut outcome = Ok(());
        (self.base.options.block)(&mut || outcome = durability.wait_synced(index, interrupt));
        outcome
    }

    /// Calls `done` when commits up to `index` are durable: from the sync thread, or before this returns
    /// if nobody else waits. A lone waiter syncs by itself.
    pub fn on_durable(&self, index: u64, done: Done) {
        let durability = &self.durability;
        if durability.durable_index() >= index {
            return done(Ok(()));
        }
        if durability.log.is_none() || durability.is_failed() || !durability.begin_sync(true) {
            return self.on_durable_later(index, done);
        }
        let mut result = Ok(());
        // Even a disk that is quick as a rule may take seconds, in which the thread's other work must go on.
        (self.base.options.block)(&mut || result = durability.sync_log(true));
        done(result)
    }

    /// Like [`Core::on_durable`], but never syncs on the caller's thread.
    pub fn on_durable_later(&self, index: u64, done: Done) {
        let durability = &self.durability;
        if durability.durable_index() >= index {
            return done(Ok(()));
        }
        if let Err(error) = durability.check_writable() {
            return done(Err(error));
        }
        if durability.log.is_none() {
            return done(self.checkpoint());
        }
        durability.wait_later(index, done);
    }
}
