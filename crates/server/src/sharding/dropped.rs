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

    /// Whether there may be any: each write on a shard begins by asking this, and mostly asks nothing else then.
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// When a database was dropped here, if some router may not know it yet.
    pub(super) fn when(&self, db: &str) -> Option<Instant> {
        if !self.any() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_look_for_drops_only_while_some_router_may_not_know_of_one() {
        let dropped = Dropped::default();
        assert!(!dropped.any());
        dropped.note("plants");
        assert!(dropped.any() && dropped.when("herbs").is_none());
        assert!(dropped.any(), "who asks for another one forgets none that is young");
        let when = dropped.when("plants").unwrap();
        dropped.note("plants");
        dropped.is_here("plants", when);
        assert!(dropped.any(), "it was dropped again since");
        dropped.is_here("plants", dropped.when("plants").unwrap());
        assert!(!dropped.any());
    }
}
