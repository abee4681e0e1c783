//! Which version of a document a read may see, when several clients replace it at once.
//!
//! Versions of a key are numbered when their write begins. A write that began while no other one was under way, and has
//! been acknowledged, is a floor: whatever is read from then on is that version or a later one. What overlaps can end
//! in either order, and says nothing. So every stale read that is reported is one.

use std::sync::{Mutex, PoisonError};

/// What is known of every key.
#[derive(Debug)]
pub(super) struct Versions {
    keys: Vec<Mutex<Key>>,
    /// Whether the write concern acknowledges, without which nothing can be expected.
    acknowledged: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Key {
    issued: u32,
    under_way: u32,
    floor: u32,
}

/// A write that is under way.
#[derive(Debug)]
pub(super) struct Writing {
    key: u64,
    /// To be written.
    pub version: i64,
    alone: bool,
}

impl Versions {
    /// For the keys below `keys`.
    pub fn new(keys: u64, acknowledged: bool) -> Versions {
        Versions { keys: (0..keys).map(|_| Mutex::default()).collect(), acknowledged }
    }

    fn key(&self, key: u64) -> std::sync::MutexGuard<'_, Key> {
        self.keys[key as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write of this key begins. When it fails, or nobody knows how it ended, it is dropped instead of finished: its
    /// version may turn up or not, and the key has no new floors.
    pub fn begin(&self, key: u64) -> Writing {
        let mut state = self.key(key);
        state.issued += 1;
        state.under_way += 1;
        Writing { key, version: state.issued.into(), alone: state.under_way == 1 }
    }

    /// The write was acknowledged.
    pub fn finish(&self, writing: Writing) {
        if !self.acknowledged {
            return;
        }
        let mut state = self.key(writing.key);
        state.under_way -= 1;
        if writing.alone {
            state.floor = state.floor.max(writing.version as u32);
        }
    }

    /// To be asked before a read begins: the oldest version that it may see.
    pub fn floor(&self, key: u64) -> i64 {
        self.key(key).floor.into()
    }

    /// Judges a version that was read, given what [`Versions::floor`] said before.
    pub fn judge(&self, key: u64, floor: i64, seen: i64) -> Option<String> {
        let issued = self.key(key).issued.into();
        if seen < floor {
            Some(format!("version {seen}, though version {floor} had been acknowledged before"))
        } else if seen > issued {
            Some(format!("version {seen}, though only {issued} were ever written"))
        } else {
            None
        }
    }

    /// Writes that were begun, of all keys.
    pub fn issued(&self) -> u64 {
        self.keys.iter().map(|key| u64::from(key.lock().unwrap_or_else(PoisonError::into_inner).issued)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledged_write_is_a_floor() {
        let versions = Versions::new(2, true);
        assert_eq!(versions.floor(1), 0);
        let first = versions.begin(1);
        assert_eq!((first.version, versions.floor(1)), (1, 0));
        assert_eq!(versions.judge(1, 0, 1), None);
        versions.finish(first);
        assert_eq!(versions.floor(1), 1);
        assert!(versions.judge(1, 1, 0).unwrap().contains("acknowledged before"));
        assert!(versions.judge(1, 1, 2).unwrap().contains("ever written"));
        assert_eq!((versions.floor(0), versions.issued()), (0, 1));
    }

    #[test]
    fn what_overlaps_may_end_in_either_order() {
        let versions = Versions::new(1, true);
        let (first, second) = (versions.begin(0), versions.begin(0));
        versions.finish(second);
        assert_eq!(versions.floor(0), 0);
        // The first began alone; the second came later and may have been overtaken by it, not by anything older.
        versions.finish(first);
        assert_eq!(versions.floor(0), 1);
        let third = versions.begin(0);
        versions.finish(third);
        assert_eq!(versions.floor(0), 3);
    }

    #[test]
    fn after_a_failure_and_without_acknowledgement_nothing_is_expected() {
        let versions = Versions::new(1, true);
        let _failed = versions.begin(0);
        let next = versions.begin(0);
        versions.finish(next);
        assert_eq!(versions.floor(0), 0);
        let unacknowledged = Versions::new(1, false);
        let writing = unacknowledged.begin(0);
        unacknowledged.finish(writing);
        assert_eq!(unacknowledged.floor(0), 0);
    }
}
