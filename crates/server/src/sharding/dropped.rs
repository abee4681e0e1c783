//! Databases that were dropped on this shard: routers may believe for a while that they are here.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Databases that were dropped here, and when.
#[derive(Default)]
pub(super) struct Dropped {
    any: AtomicBool,
    when: Mutex<HashMap<String, Instant>>,
}

/// For longer than this no router believes what it has read of a database, unless the config servers do not answer.
const BELIEVED: Duration = Duration::from_secs(60);

impl Dropped {
    /// A database is about to be dropped.
    pub(super) fn note(&self, db: &str) {
        self.when.lock().insert(db.to_owned(), Instant::now());
        self.any.store(true, Ordering::SeqCst);
    }

    /// When a database was dropped here, if some router may not know it yet.
    pub(super) fn when(&self, db: &str) -> Option<Instant> {
        if !self.any.load(Ordering::SeqCst) {
            return None;
        }
        let mut when = self.when.lock();
        let found = when.get(db).copied();
        if found.is_none_or(|dropped| dropped.elapsed() >= BELIEVED) {
            // Where nobody asks for one again, whoever asks for another finds it too old.
            when.retain(|_, dropped| dropped.elapsed() < BELIEVED);
            self.any.store(!when.is_empty(), Ordering::SeqCst);
            return None;
        }
        found
    }

    /// A database has been here since it was dropped at this time.
    pub(super) fn is_here(&self, db: &str, dropped: Instant) {
        let mut when = self.when.lock();
        if when.get(db) == Some(&dropped) {
            when.remove(db);
            self.any.store(!when.is_empty(), Ordering::SeqCst);
        }
    }
}
