//! What can be set while the engine runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::options::Options;

/// Settings that background threads look at each time they wake.
pub(crate) struct Tuning {
    journal_commit_micros: AtomicU64,
    sync_delay_micros: AtomicU64,
    retention_millis: AtomicU64,
}

impl Tuning {
    /// As the engine was opened.
    pub fn of(options: &Options) -> Tuning {
        let micros = |time: Duration| AtomicU64::new(time.as_micros() as u64);
        Tuning {
            journal_commit_micros: micros(options.journal_commit_interval),
            sync_delay_micros: micros(options.sync_delay),
            retention_millis: AtomicU64::new(millis(options.oplog_retention)),
        }
    }

    /// How often the log is synced when nobody asks.
    pub fn journal_commit_interval(&self) -> Duration {
        Duration::from_micros(self.journal_commit_micros.load(Ordering::Relaxed))
    }

    /// How often memtables are flushed; zero: only when they are full.
    pub fn sync_delay(&self) -> Duration {
        Duration::from_micros(self.sync_delay_micros.load(Ordering::Relaxed))
    }

    /// Sets how often the log is synced.
    pub fn set_journal_commit_interval(&self, interval: Duration) {
        self.journal_commit_micros.store(interval.as_micros() as u64, Ordering::Relaxed);
    }

    /// Sets how often memtables are flushed.
    pub fn set_sync_delay(&self, delay: Duration) {
        self.sync_delay_micros.store(delay.as_micros() as u64, Ordering::Relaxed);
    }

    /// How old entries of the log must be to be removed, whatever its size.
    pub fn oplog_retention(&self) -> Duration {
        Duration::from_millis(self.retention_millis.load(Ordering::Relaxed))
    }

    /// Sets how old entries of the log must be to be removed.
    pub fn set_oplog_retention(&self, retention: Duration) {
        self.retention_millis.store(millis(retention), Ordering::Relaxed);
    }
}

/// Milliseconds, of times that stand for "always" as well.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
