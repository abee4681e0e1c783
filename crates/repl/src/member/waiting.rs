//! Waits for write concerns.

use std::collections::{BTreeMap, BTreeSet};

use sheaf_errors::Result;

use super::{Effect, Member, WaiterId, not_primary};
use crate::types::LogPosition;
use crate::write_concern::{W, WaitOutcome, WriteConcern, check_satisfiable, reached};

/// The waits, by what they wait for and then by position, so that progress touches only those it ends.
#[derive(Default)]
pub(super) struct Waiting {
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
    pub fn next_id(&mut self) -> WaiterId {
        self.next += 1;
        WaiterId(self.next)
    }

    fn add(&mut self, index: u64, concern: WriteConcern) -> WaiterId {
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
    fn remove(&mut self, waiter: WaiterId) -> bool {
        let Some((slot, index)) = self.by_id.remove(&waiter) else { return false };
        let there = self.slots[slot].waiters.remove(&(index, waiter));
        assert!(there, "{waiter:?} for {index} is not in its slot");
        there
    }

    /// Takes out the waits of a slot up to an index.
    fn take(&mut self, slot: usize, upto: u64) -> BTreeSet<(u64, WaiterId)> {
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

impl Member {
    /// Waits until everything up to `at` fulfils `concern`: [`Effect::Resolved`] tells the end. There is no
    /// time-out; [`Member::cancel_wait`] gives up.
    ///
    /// `at` may be anything that this member has applied, also of earlier terms and from before the log's
    /// first entry: a retried write waits for its first execution. What is committed already is known to be
    /// so by every member, not just the primary.
    pub fn wait(&mut self, at: LogPosition, concern: WriteConcern) -> Result<WaiterId> {
        let Some(config) = &self.config else { return Err(not_primary()) };
        check_satisfiable(config, &concern)?;
        let journaled = !concern.journal || config.write_concern_majority_journal_default;
        let done = self.has_committed(at) && concern.w == W::Majority && journaled;
        let in_log = self.raft.as_ref().is_some_and(|raft| raft.raft.raft_log.match_term(at.index, at.term));
        let waits = self.leading.is_some() && (in_log || self.has_committed(at));
        if !done && !waits {
            return Err(not_primary());
        }
        Ok(self.waiting.add(at.index, concern))
    }

    /// Whether the entry at `at` is one of those that the set has committed, as far as this member knows.
    fn has_committed(&self, at: LogPosition) -> bool {
        let view = self.view();
        let start = view.bounds().start;
        // Of entries that have left the log only that much is known: terms grow with the index. A position
        // comes from a member's applied state, so it cannot be of a branch that was rolled back there.
        let on_history = if at.index < start.index { at.term <= start.term } else { view.has(at) };
        at.index <= self.commit.index && on_history
    }

    /// Forgets a wait, for a write concern or a barrier.
    pub fn cancel_wait(&mut self, waiter: WaiterId) {
        if !self.waiting.remove(waiter) {
            self.barriers.cancel(waiter);
        }
    }

    /// How many wait for a write concern.
    pub fn waiters(&self) -> usize {
        self.waiting.len()
    }

    /// How far the commit point is behind the end of this member's log: how many entries are not yet
    /// committed, and for how many milliseconds this member has had the oldest of them. What flow control
    /// goes by; an idle set has no lag.
    pub fn commit_lag(&self) -> (u64, u64) {
        let entries = self.view().last().index.saturating_sub(self.commit.index);
        let oldest = self.times.iter().find(|entry| entry.index > self.commit.index);
        (entries, oldest.map_or(0, |entry| self.now.saturating_sub(entry.since)))
    }

    /// Ends the waits that are over.
    pub(super) fn resolve_waiters(&mut self) {
        if self.waiting.by_id.is_empty() {
            return;
        }
        let config = self.config.clone().expect("nobody waits without a configuration");
        for number in 0..self.waiting.slots.len() {
            let slot = &self.waiting.slots[number];
            if slot.waiters.is_empty() {
                continue;
            }
            let of = |id: u64| self.positions_of(id);
            let reached = reached(&config, &slot.concern, &self.positions, self.commit.index, &of);
            self.resolve_slot(number, reached, WaitOutcome::Satisfied);
        }
    }

    fn resolve_slot(&mut self, number: usize, upto: u64, outcome: WaitOutcome) {
        for (_, waiter) in self.waiting.take(number, upto) {
            self.out.push(Effect::Resolved { waiter, outcome: outcome.clone() });
        }
    }

    /// Nobody's wait can be answered by a member that is no longer primary.
    pub(super) fn resolve_not_primary(&mut self) {
        for number in 0..self.waiting.slots.len() {
            self.resolve_slot(number, u64::MAX, WaitOutcome::NotPrimary);
        }
        for waiter in self.barriers.take_all() {
            self.out.push(Effect::Resolved { waiter, outcome: WaitOutcome::NotPrimary });
        }
    }

    /// After a reconfiguration: waits that can no longer be met end.
    pub(super) fn resolve_unsatisfiable(&mut self) {
        let Some(config) = self.config.clone() else { return };
        for number in 0..self.waiting.slots.len() {
            if check_satisfiable(&config, &self.waiting.slots[number].concern).is_err() {
                self.resolve_slot(number, u64::MAX, WaitOutcome::Unsatisfiable);
            }
        }
    }
}
