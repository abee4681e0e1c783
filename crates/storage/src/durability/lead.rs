//! How far writers may be ahead of the disk.
//!
//! Who writes with `w: 1` does not wait for the disk, so what it writes comes together in the system's page cache. That must not become more than
//! the disk writes within a moment: the next write with `j: true`, a flush and the server's end wait for all of it, and the system itself holds a
//! writer up for seconds when it finds that too much is unwritten. Whoever has been let in appends what it has in hand; so there may be that much
//! more, from each. Members that follow are not held.

use std::time::Duration;

use super::Durability;

/// Writers may be ahead of the disk by what it writes in so long...
const AHEAD: Duration = Duration::from_millis(250);

/// ...but by so much at least, and by no more than this or two generations of memtables.
const LEAST: u64 = 16 << 20;
const MOST: u64 = 256 << 20;

/// As long as the disk's rate is not known.
const AT_FIRST: u64 = 64 << 20;

/// The sync thread is asked to sync when this part of it has come together.
const ASKED_AT: u64 = 4;

/// The sync thread begins within this.
const BEGINS: Duration = Duration::from_millis(1);

impl Durability {
    /// Whether writers are as far ahead of the disk as they may be. Long before that the sync thread is asked to sync.
    pub fn is_far_ahead(&self) -> bool {
        let Some(log) = self.log() else { return false };
        let ahead = log.unsynced_bytes();
        if ahead < LEAST / ASKED_AT {
            return false;
        }
        let most = MOST.min(self.base.options.log_bytes() * 2);
        let most = log.synced_in(AHEAD).unwrap_or(AT_FIRST).min(most).max(LEAST);
        if ahead >= most / ASKED_AT {
            self.ask_for_sync();
        }
        ahead >= most
    }

    /// Whether a sync was asked for that has not begun.
    #[cfg(test)]
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(std::sync::atomic::Ordering::Acquire)
    }

    /// Waits for the end of a sync, though not long.
    pub fn rest_until_synced(&self, patience: Duration) {
        let mut state = self.state.lock();
        if !state.stop {
            // One that was asked for begins at once.
            let patience = if state.syncing { patience } else { BEGINS.min(patience) };
            self.synced.wait_for(&mut state, patience);
        }
    }
}
