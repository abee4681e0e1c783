//! How often an index has been used: what `$indexStats` shows.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The uses of one index since it was made or the server started; shared by all catalog versions of the index.
#[derive(Debug)]
pub struct Accesses {
    ops: AtomicU64,
    since_millis: i64,
}

impl Default for Accesses {
    #[expect(clippy::disallowed_methods, reason = "shown by $indexStats, decides nothing")]
    fn default() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64);
        Accesses { ops: AtomicU64::new(0), since_millis: now }
    }
}

impl Accesses {
    /// Counts one operation that uses the index.
    pub fn count(&self) {
        self.ops.fetch_add(1, Ordering::Relaxed);
    }

    /// Operations that have used it.
    pub fn ops(&self) -> u64 {
        self.ops.load(Ordering::Relaxed)
    }

    /// Since when they are counted, milliseconds since the epoch.
    pub fn since_millis(&self) -> i64 {
        self.since_millis
    }
}
