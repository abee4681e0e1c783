//! Flushes that RocksDB begins by itself: each waits until what it writes may be in files.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::core::Core;

/// How often the gate looks again whether a flush may go on.
const GATE_PAUSE: Duration = Duration::from_millis(2);

impl Core {
    /// Has every flush wait, whatever has caused it, until what it writes may be in files.
    pub fn guard_flushes(self: &Arc<Self>) {
        let me = Arc::downgrade(self);
        let events = Arc::downgrade(self.base.db.events());
        self.base.db.events().set_gate(Box::new(move || {
            let Some(core) = me.upgrade() else {
                // It is being dropped, which ends all flushes first.
                while events.upgrade().is_some_and(|events| !events.is_void()) {
                    std::thread::sleep(GATE_PAUSE);
                }
                return;
            };
            core.wait_before_flush();
            // Whoever closes RocksDB waits for this thread.
            if let Some(last) = Arc::into_inner(core) {
                std::thread::spawn(move || drop(last));
            }
        }));
    }

    /// On RocksDB's thread. Files must hold nothing that the log may lose, nor, in a set, anything that may have to be taken
    /// back. Checkpoints have seen to both before they order a flush; this is for all others. Nothing else opens the gate, the
    /// end of the process neither: what waits here then is let go when it has no effect any more ([`Db::end_background`]).
    fn wait_before_flush(&self) {
        // While a checkpoint has the log synced, for this flush, it need not be done twice.
        while self.flushes.is_ordering() && !self.base.db.events().is_void() {
            std::thread::sleep(GATE_PAUSE);
        }
        // A batch is in memtables, and perhaps in what is to be written, before it is published.
        let at = self.published.last().index.max(self.commits.position().at.index);
        let ordered = || self.flushes.ordered_seals.load(Ordering::Acquire) == self.base.db.events().sealed();
        let allowed = || self.flushes.allowed.load(Ordering::Acquire) >= at || ordered();
        if allowed() {
            return;
        }
        tracing::debug!(index = at, "RocksDB flushes by itself");
        self.base.db.events().hold(|| {
            while !allowed() && !self.may_flush(at) && !self.base.db.events().is_void() {
                std::thread::sleep(GATE_PAUSE);
            }
        });
    }

    /// Whether the log and the set have everything up to this entry for good.
    fn may_flush(&self, at: u64) -> bool {
        let durable = match self.durability.log() {
            Some(log) => log.durable_index() >= at || log.sync().is_ok_and(|index| index >= at),
            None => true,
        };
        let durable = durable && self.base.db.values().sync_names().is_ok();
        let committed = || {
            self.base.sequencer().is_none_or(|sequencer| sequencer.commit_index() >= at)
                || self.flushes.may_flush_ahead(at)
        };
        durable && committed()
    }
}
