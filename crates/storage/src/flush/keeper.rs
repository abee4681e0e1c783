//! The thread that flushes by memory and by age, and clears away what nobody needs any more.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sheaf_errors::Result;

use crate::core::Core;

/// Dropped data that waits for a flush gets one after this time.
const GARBAGE_PATIENCE: Duration = Duration::from_secs(5);

/// And after this one where room on the disk is scarce.
const TIGHT_PATIENCE: Duration = Duration::from_secs(1);

/// A flush that has failed is tried again after the shorter of these times, then less and less often.
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// With full memory the commit point may be behind for so long, or until half as much has come again, before a flush goes
/// ahead of it.
const AHEAD_PATIENCE: Duration = Duration::from_secs(1);

/// With so many files at level 0 a flush waits for compactions: so often it is looked for them, and so long at the most.
const LEVEL0_MOST: u64 = 24;
const LEVEL0_LOOK: Duration = Duration::from_millis(5);
const LEVEL0_PATIENCE: Duration = Duration::from_secs(10);

impl Core {
    /// Has the folder opened anew, where RocksDB has stopped for want of room (or the like) and there is room again.
    fn restart_if_stopped(&self) {
        if let Some(reopen) = &self.base.options.reopen
            && self.base.db.events().may_go_on()
            && !self.durability.is_failed()
            && self.check_room().is_ok()
        {
            reopen(&self.base.db.events().last_error());
        }
    }

    /// The keeper's work, until background work is to end.
    pub fn run_keeper(&self) {
        let flushes = &self.flushes;
        let mut last_flush = Instant::now();
        // What an earlier run has left is to go soon: a server that crashes again and again must not gather it.
        let mut patience = Duration::ZERO;
        let mut failures = self.base.db.events().failed_flushes();
        let mut retry = RETRY_MIN;
        let mut full_since = None;
        loop {
            if !flushes.signals().wait() {
                return;
            }
            self.restart_if_stopped();
            flushes.look_for_room();
            let tight = flushes.disk.is_tight();
            let removed = self.definitions.garbage().collect(&self.base.db, flushes.flushed().index);
            if let Err(error) = self.catch_up_with_commits() {
                tracing::warn!(%error, "a stable copy cannot be removed");
            }
            if let Err(error) = self.make_room_on_disk(tight, &removed) {
                tracing::debug!(%error, "making room on the disk failed; trying again");
            }
            flushes.disk.rounds.fetch_add(1, Ordering::AcqRel);
            let unflushed = flushes.unflushed();
            let delay = self.base.tuning.sync_delay();
            let old = !delay.is_zero() && last_flush.elapsed() >= delay;
            let patient = if tight { patience.min(TIGHT_PATIENCE) } else { patience };
            let garbage = last_flush.elapsed() >= patient && !self.definitions.garbage().is_empty();
            patience = GARBAGE_PATIENCE;
            // One that has failed, whoever asked for it, is done again.
            let failed = self.base.db.events().failed_flushes() != failures || flushes.error.lock().is_some();
            if failed || flushes.is_due() || ((old || garbage) && unflushed > 0) {
                failures = self.base.db.events().failed_flushes();
                let error = self.flush_for_room(&mut full_since).err();
                if let Some(error) = &error {
                    let first = flushes.error.lock().is_none();
                    if first {
                        tracing::error!(%error, "flushing memtables failed; trying again");
                    }
                    // Once, and then less and less often: each time leaves a memtable behind.
                    retry = if first { RETRY_MIN } else { (retry * 2).min(RETRY_MAX) };
                    flushes.signals().pause(retry);
                }
                *flushes.error.lock() = error;
                last_flush = Instant::now();
            } else if old {
                last_flush = Instant::now();
            }
        }
    }

    /// Flushes what is committed; where memory is full and the commit point has been behind for a while, also what is not.
    fn flush_for_room(&self, full_since: &mut Option<Instant>) -> Result<()> {
        let limit = self.flushes.memtable_bytes();
        let used = || self.flushes.unflushed();
        self.wait_for_level0();
        if self.try_checkpoint()? || !self.base.is_ordered() || used() < limit {
            *full_since = None;
            return Ok(());
        }
        let since = *full_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= AHEAD_PATIENCE || used() >= limit / 2 * 3 {
            self.flush_ahead()?;
            *full_since = None;
        }
        Ok(())
    }

    /// Waits for compactions where there are many files at level 0, for a while: they may fail. Writers go on until memory is full, and wait
    /// for that where they can be ended.
    fn wait_for_level0(&self) {
        let (began, db) = (Instant::now(), &self.base.db);
        while db.level0_files() >= LEVEL0_MOST
            && began.elapsed() < LEVEL0_PATIENCE
            && self.flushes.signals().works()
            && !db.events().is_stopped()
        {
            std::thread::sleep(LEVEL0_LOOK);
        }
    }
}
