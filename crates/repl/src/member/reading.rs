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

/// Barriers on their way. One question is under way at a time and answers all who had asked before it; it is
/// repeated with the heartbeats until it is answered.
#[derive(Default)]
pub(super) struct Barriers {
    /// For the next question.
    fresh: Vec<WaiterId>,
    /// Who the question under way is for, and its number.
    asked: Option<(u64, Vec<WaiterId>)>,
    /// Answered: to be told when the commit point is at this index here.
    answered: Vec<(u64, Vec<WaiterId>)>,
    questions: u64,
}

impl Barriers {
    pub fn cancel(&mut self, waiter: WaiterId) {
        let asked = self.asked.iter_mut().map(|(_, waiters)| waiters);
        let answered = self.answered.iter_mut().map(|(_, waiters)| waiters);
        for waiters in asked.chain(answered).chain([&mut self.fresh]) {
            waiters.retain(|id| *id != waiter);
        }
    }

    /// How many barriers have not ended.
    pub fn len(&self) -> usize {
        let asked = self.asked.iter().map(|(_, waiters)| waiters.len());
        self.fresh.len() + asked.chain(self.answered.iter().map(|(_, waiters)| waiters.len())).sum::<usize>()
    }

    pub fn take_all(&mut self) -> Vec<WaiterId> {
        let mut all = std::mem::take(&mut self.fresh);
        all.extend(self.asked.take().into_iter().flat_map(|(_, waiters)| waiters));
        all.extend(std::mem::take(&mut self.answered).into_iter().flat_map(|(_, waiters)| waiters));
        all
    }

    fn note(&mut self, state: &ReadState) {
        let number = state.request_ctx.as_slice().try_into().map(u64::from_le_bytes).ok();
        if let Some((_, waiters)) = self.asked.take_if(|(asked, _)| Some(*asked) == number) {
            self.answered.push((state.index, waiters));
        }
    }
}

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
        self.barriers.fresh.push(waiter);
        Ok(waiter)
    }

    /// Asks the next question.
    pub(super) fn ask_barrier(&mut self) {
        let committed = self.leading.as_ref().is_some_and(|leading| self.commit.index >= leading.begin);
        if self.barriers.fresh.is_empty() || self.barriers.asked.is_some() || !committed {
            return;
        }
        let Some(raft) = &mut self.raft else { return };
        self.barriers.questions += 1;
        let number = self.barriers.questions;
        self.barriers.asked = Some((number, std::mem::take(&mut self.barriers.fresh)));
        raft.read_index(number.to_le_bytes().to_vec());
    }

    pub(super) fn note_read_states(&mut self, states: &[ReadState]) {
        states.iter().for_each(|state| self.barriers.note(state));
    }

    /// Ends the barriers that are passed.
    pub(super) fn resolve_barriers(&mut self) {
        let commit = self.commit.index;
        let (passed, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.barriers.answered).into_iter().partition(|(index, _)| *index <= commit);
        self.barriers.answered = rest;
        for waiter in passed.into_iter().flat_map(|(_, waiters)| waiters) {
            self.out.push(Effect::Resolved { waiter, outcome: WaitOutcome::Satisfied });
        }
    }
}
