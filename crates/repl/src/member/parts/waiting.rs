//! Who waits for which write concern.

use std::collections::{BTreeMap, BTreeSet};

use crate::effect::WaiterId;
use crate::write_concern::WriteConcern;

/// The waits, by what they wait for and then by position, so that progress touches only those it ends.
#[derive(Default)]
pub struct Waiting {
    /// One for each write concern in use; an empty one is used again.
    slots: Vec<Slot>,
    /// Slot and position of every wait.
    by_id: BTreeMap<WaiterId, (usize, u64)>,
    next: u64,
}

struct Slot {
    concern: WriteConcern,
    waiters: BTreeSet<(u64, WaiterId)>,
}

impl Waiting {
    /// A number for a wait, of this kind or another.
    pub fn next_id(&mut self) -> WaiterId {
        self.next += 1;
        WaiterId(self.next)
    }

    /// One more wait.
    pub fn add(&mut self, index: u64, concern: WriteConcern) -> WaiterId {
        let waiter = self.next_id();
        let found = self.slots.iter().position(|slot| slot.concern == concern);
        let number = found.or_else(|| self.slots.iter().position(|slot| slot.waiters.is_empty()));
        let number = number.unwrap_or(self.slots.len());
        if number == self.slots.len() {
            self.slots.push(Slot { concern, waiters: BTreeSet::new() });
        } else if found.is_none() {
            self.slots[number].concern = concern;
        }
        self.slots[number].waiters.insert((index, waiter));
        self.by_id.insert(waiter, (number, index));
        waiter
    }

    /// How many waits there are.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Panics where slots and register differ.
    pub fn check(&self) {
        let in_slots: usize = self.slots.iter().map(|slot| slot.waiters.len()).sum();
        assert_eq!(in_slots, self.by_id.len(), "a wait is in its slot and in the register of all");
        assert!(
            self.by_id.last_key_value().is_none_or(|(last, _)| last.0 <= self.next),
            "a wait nobody began"
        );
    }

    /// Forgets a wait. Returns whether there was one.
    pub fn remove(&mut self, waiter: WaiterId) -> bool {
        let Some((slot, index)) = self.by_id.remove(&waiter) else { return false };
        let there = self.slots[slot].waiters.remove(&(index, waiter));
        assert!(there, "{waiter:?} for {index} is not in its slot");
        there
    }

    /// How many slots there are.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// What those in a slot wait for; nothing, if nobody does.
    pub fn awaited(&self, slot: usize) -> Option<&WriteConcern> {
        let slot = &self.slots[slot];
        (!slot.waiters.is_empty()).then_some(&slot.concern)
    }

    /// Takes out the waits of a slot up to an index.
    pub fn take(&mut self, slot: usize, upto: u64) -> BTreeSet<(u64, WaiterId)> {
        let waiters = &mut self.slots[slot].waiters;
        if waiters.first().is_none_or(|(index, _)| *index > upto) {
            return BTreeSet::new();
        }
        let rest = match upto.checked_add(1) {
            Some(next) => waiters.split_off(&(next, WaiterId(0))),
            None => BTreeSet::new(),
        };
        let taken = std::mem::replace(waiters, rest);
        for (_, waiter) in &taken {
            self.by_id.remove(waiter);
        }
        taken
    }
}
