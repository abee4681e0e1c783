//! Keys that are used for a while and then left for new ones, so that what is kept of each stays short.

use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::generate::Random;

/// A few keys that are in use at a time, out of many.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// Key of each slot, and how often it was chosen.
    slots: Vec<(AtomicI64, AtomicU64)>,
    next: AtomicI64,
    end: i64,
    /// After so many choices a slot has another key.
    uses: u64,
}

impl Slots {
    /// `slots` of the keys 0, 1, 2, ... below `keys` at a time, each chosen about `uses` times.
    pub fn new(slots: u32, keys: i64, uses: u64) -> Slots {
        let slots = i64::from(slots).min(keys);
        Slots {
            slots: (0..slots).map(|key| (AtomicI64::new(key), AtomicU64::new(0))).collect(),
            next: AtomicI64::new(slots),
            end: keys,
            uses: uses.max(1),
        }
    }

    /// Whether there are no new keys any more: from now on the last ones stay.
    pub fn are_used_up(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.end
    }

    /// A key that is in use.
    pub fn choose(&self, random: &mut Random) -> i64 {
        let (key, used) = &self.slots[random.below(self.slots.len() as u64) as usize];
        if (used.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(self.uses) {
            let next = self.next.fetch_add(1, Ordering::Relaxed);
            if next < self.end {
                key.store(next, Ordering::Relaxed);
            }
        }
        key.load(Ordering::Relaxed)
    }

    /// The keys that were ever in use.
    pub fn used(&self) -> Range<i64> {
        0..self.next.load(Ordering::Relaxed).min(self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_used_for_a_while_and_run_out() {
        let (slots, mut random) = (Slots::new(3, 10, 20), Random::new(1));
        let mut counts = [0; 10];
        for _ in 0..150 {
            counts[slots.choose(&mut random) as usize] += 1;
        }
        assert!(counts[0] > 0 && counts[..6].iter().all(|n| *n <= 20), "{counts:?}");
        assert!(slots.used().end > 6 && slots.used().end <= 10);
        assert!(!Slots::new(3, 10, 20).are_used_up());
        (0..1000).for_each(|_| assert!(slots.choose(&mut random) < 10));
        assert!(slots.are_used_up() && slots.used() == (0..10));
    }
}
