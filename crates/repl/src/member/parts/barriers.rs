//! Who asks whether this member still leads, and how far the question is.

use raft::ReadState;

use crate::effect::WaiterId;

/// Barriers on their way. One question is under way at a time and answers all who had asked before it; it is
/// repeated with the heartbeats until it is answered.
#[derive(Default)]
pub struct Barriers {
    /// For the next question.
    fresh: Vec<WaiterId>,
    /// Who the question under way is for, and its number.
    asked: Option<(u64, Vec<WaiterId>)>,
    /// Answered: to be told when the commit point is at this index here.
    answered: Vec<(u64, Vec<WaiterId>)>,
    questions: u64,
}

impl Barriers {
    /// One more asks whether this member still leads.
    pub fn add(&mut self, waiter: WaiterId) {
        self.fresh.push(waiter);
    }

    /// The number of the next question, if anybody asks one and none is under way.
    pub fn next_question(&mut self) -> Option<u64> {
        if self.fresh.is_empty() || self.asked.is_some() {
            return None;
        }
        self.questions += 1;
        self.asked = Some((self.questions, std::mem::take(&mut self.fresh)));
        Some(self.questions)
    }

    /// Who asked is not interested any more.
    pub fn cancel(&mut self, waiter: WaiterId) {
        let asked = self.asked.iter_mut().map(|(_, waiters)| waiters);
        let answered = self.answered.iter_mut().map(|(_, waiters)| waiters);
        for waiters in asked.chain(answered).chain([&mut self.fresh]) {
            waiters.retain(|id| *id != waiter);
        }
    }

    /// Whether no answer has come that is still to be told.
    pub fn are_unanswered(&self) -> bool {
        self.answered.is_empty()
    }

    /// How many barriers have not ended.
    pub fn len(&self) -> usize {
        let asked = self.asked.iter().map(|(_, waiters)| waiters.len());
        self.fresh.len() + asked.chain(self.answered.iter().map(|(_, waiters)| waiters.len())).sum::<usize>()
    }

    /// Ends all of them.
    pub fn take_all(&mut self) -> Vec<WaiterId> {
        let mut all = std::mem::take(&mut self.fresh);
        all.extend(self.asked.take().into_iter().flat_map(|(_, waiters)| waiters));
        all.extend(std::mem::take(&mut self.answered).into_iter().flat_map(|(_, waiters)| waiters));
        all
    }

    /// Ends those that are answered as of this commit point, or an earlier one.
    pub fn take_passed(&mut self, commit: u64) -> impl Iterator<Item = WaiterId> + use<> {
        let (passed, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.answered).into_iter().partition(|(index, _)| *index <= commit);
        self.answered = rest;
        passed.into_iter().flat_map(|(_, waiters)| waiters)
    }

    /// A majority has answered a question.
    pub fn note(&mut self, state: &ReadState) {
        let number = state.request_ctx.as_slice().try_into().map(u64::from_le_bytes).ok();
        if let Some((_, waiters)) = self.asked.take_if(|(asked, _)| Some(*asked) == number) {
            self.answered.push((state.index, waiters));
        }
    }
}
