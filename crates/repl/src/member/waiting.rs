//! Waits for write concerns.

use sheaf_errors::Result;

use super::errors::not_primary;
use super::{Effect, Member, WaiterId};
use crate::types::LogPosition;
use crate::write_concern::{W, WaitOutcome, WriteConcern, check_satisfiable, reached};

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
        self.note_wait(&concern);
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
        if self.waiting.is_empty() {
            return;
        }
        let config = self.config.clone().expect("nobody waits without a configuration");
        for number in 0..self.waiting.slots() {
            let Some(concern) = self.waiting.awaited(number) else { continue };
            let of = |id: u64| self.positions_of(id);
            let reached = reached(&config, concern, &self.positions, self.commit.index, &of);
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
        for number in 0..self.waiting.slots() {
            self.resolve_slot(number, u64::MAX, WaitOutcome::NotPrimary);
        }
        for waiter in self.barriers.take_all() {
            self.out.push(Effect::Resolved { waiter, outcome: WaitOutcome::NotPrimary });
        }
    }

    /// After a reconfiguration: waits that can no longer be met end.
    pub(super) fn resolve_unsatisfiable(&mut self) {
        let Some(config) = self.config.clone() else { return };
        for number in 0..self.waiting.slots() {
            let never = |concern| check_satisfiable(&config, concern).is_err();
            if self.waiting.awaited(number).is_some_and(never) {
                self.resolve_slot(number, u64::MAX, WaitOutcome::Unsatisfiable);
            }
        }
    }
}
