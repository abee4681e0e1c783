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

/// With so many of them, those are forgotten that no router believes to be here any more.
const DROPPED_MAX: usize = 1000;

/// For longer than this no router believes what it has read of a database, unless the config servers do not answer.
const BELIEVED: Duration = Duration::from_secs(60);

impl Dropped {
    /// A database is about to be dropped.
    pub(super) fn note(&self, db: &str) {
        let now = Instant::now();
        let mut when = self.when.lock();
        if when.len() >= DROPPED_MAX {
            when.retain(|_, dropped| now.duration_since(*dropped) < BELIEVED);
        }
        when.insert(db.to_owned(), now);
        self.any.store(true, Ordering::SeqCst);
    }

    /// When a database was dropped here, if some router may not know it yet.
    pub(super) fn when(&self, db: &str) -> Option<Instant> {
        if !self.any.load(Ordering::SeqCst) {
            return None;
        }
        self.when.lock().get(db).copied().filter(|dropped| dropped.elapsed() < BELIEVED)
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
