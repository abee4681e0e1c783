//! Barriers for linearizable reads: does this member still lead?
//!
//! A primary that was cut off does not know that another has been elected and takes writes. Before it
//! answers a linearizable read it asks the others, and only the answers of a majority, given in its own term
//! after the question, tell that no other primary had committed anything by then (Raft's ReadIndex). Nothing
//! is written for it.

use raft::ReadState;
use sheaf_errors::{Code, Error, Result};

use super::{Effect, Member, WaiterId};
use crate::write_concern::WaitOutcome;

impl Member {
    /// For a linearizable read: [`Effect::Resolved`] says `Satisfied` once it is sure that this member was
    /// primary at some moment after this call, and has everything in its commit point that any member had
    /// committed before it. The read is then done on the majority's state, as of the commit point or later;
    /// it may return what such a read gives. `NotPrimary` when the lead was lost meanwhile.
    ///
    /// A barrier ends when a majority can be heard, so a time limit belongs to it ([`Member::cancel_wait`]).
    pub fn read_barrier(&mut self) -> Result<WaiterId> {
        if !self.is_writable() {
            return Err(Error::new(
                Code::NOT_WRITABLE_PRIMARY,
                "cannot satisfy linearizable read concern on non-primary node",
            ));
        }
        let waiter = self.waiting.next_id();
        self.barriers.add(waiter);
        Ok(waiter)
    }

    /// Asks the next question.
    pub(super) fn ask_barrier(&mut self) {
        let committed = self.leading.as_ref().is_some_and(|leading| self.commit.index >= leading.begin);
        let Some(raft) = self.raft.as_mut().filter(|_| committed) else { return };
        if let Some(number) = self.barriers.next_question() {
            raft.read_index(number.to_le_bytes().to_vec());
        }
    }

    pub(super) fn note_read_states(&mut self, states: &[ReadState]) {
        states.iter().for_each(|state| self.barriers.note(state));
    }

    /// Ends the barriers that are passed.
    pub(super) fn resolve_barriers(&mut self) {
        if self.barriers.are_unanswered() {
            return;
        }
        for waiter in self.barriers.take_passed(self.commit.index) {
            self.out.push(Effect::Resolved { waiter, outcome: WaitOutcome::Satisfied });
        }
    }
}
