//! The one rule by which everybody finds a transaction's outcome.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::time::ClusterTime;
use crate::types::ShardId;

use super::{Answer, Outcome};

/// What the participants of one transaction have said.
#[derive(Debug)]
pub(super) struct Decision {
    participants: Arc<[ShardId]>,
    answers: BTreeMap<ShardId, Answer>,
    outcome: Option<Outcome>,
    /// Who has the outcome on a majority.
    acknowledged: BTreeSet<ShardId>,
}

/// What an answer has changed.
#[derive(Debug, PartialEq)]
pub(super) enum Noted {
    /// Nothing that matters.
    Nothing,
    /// The outcome is known, and to be told to [`Decision::lacking`].
    Decided(Outcome),
    /// All participants have the outcome on majorities.
    Over,
    /// The answer cannot be true together with others.
    Contradiction(String),
}

impl Decision {
    /// About a transaction whose outcome is to be found, or is known.
    pub fn new(participants: Arc<[ShardId]>, outcome: Option<Outcome>) -> Self {
        Decision { participants, answers: BTreeMap::new(), outcome, acknowledged: BTreeSet::new() }
    }

    pub fn participants(&self) -> &Arc<[ShardId]> {
        &self.participants
    }

    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    /// Before the outcome is known, those who have not answered; then, those who do not have it yet.
    pub fn lacking(&self) -> impl Iterator<Item = &ShardId> {
        self.participants.iter().filter(|shard| match self.outcome {
            None => !self.answers.contains_key(*shard),
            Some(_) => !self.acknowledged.contains(*shard),
        })
    }

    /// It has committed: this is certain. False: that was known.
    pub fn learn(&mut self, at: ClusterTime) -> bool {
        let committed = Some(Outcome::Committed(at));
        if self.outcome == committed {
            return false;
        }
        *self = Decision::new(self.participants.clone(), committed);
        true
    }

    /// A participant has said this.
    pub fn note(&mut self, from: &ShardId, answer: Answer) -> Noted {
        if !self.participants.contains(from) {
            return Noted::Nothing;
        }
        match self.outcome {
            None => self.weigh(from, answer),
            Some(outcome) => self.acknowledge(from, answer, outcome),
        }
    }

    fn weigh(&mut self, from: &ShardId, answer: Answer) -> Noted {
        self.answers.insert(from.clone(), answer);
        let outcome = match answer {
            Answer::Committed(at) => Some(Outcome::Committed(at)),
            Answer::Aborted | Answer::TooOld => Some(Outcome::Aborted),
            Answer::Prepared(_) => self.all_prepared().map(Outcome::Committed),
            Answer::Confirmed | Answer::Abandoned => None,
        };
        let Some(outcome) = outcome else { return Noted::Nothing };
        self.outcome = Some(outcome);
        if matches!(answer, Answer::Committed(_) | Answer::Aborted) {
            self.acknowledged.insert(from.clone());
        }
        Noted::Decided(outcome)
    }

    /// The commit time, if all have prepared: the highest of their times.
    fn all_prepared(&self) -> Option<ClusterTime> {
        let time = |shard| match self.answers.get(shard) {
            Some(Answer::Prepared(at)) => Some(*at),
            _ => None,
        };
        let times: Option<Vec<ClusterTime>> = self.participants.iter().map(time).collect();
        times?.into_iter().max()
    }

    fn acknowledge(&mut self, from: &ShardId, answer: Answer, outcome: Outcome) -> Noted {
        match (outcome, answer) {
            (Outcome::Committed(at), Answer::Committed(other)) if at == other => {}
            (Outcome::Aborted, Answer::Aborted | Answer::TooOld) => {}
            (Outcome::Committed(_), Answer::Committed(_) | Answer::Aborted) => {
                return Noted::Contradiction(format!("{outcome:?}, and {from} says {answer:?}"));
            }
            // Who has missed that it was settled takes it for aborted, which does no harm: see `Participant::wake`.
            (Outcome::Aborted, Answer::Committed(_)) if self.rests_on_an_abort() => {
                return Noted::Contradiction(format!("{outcome:?}, and {from} says {answer:?}"));
            }
            _ => return Noted::Nothing,
        }
        let new = self.acknowledged.insert(from.clone());
        if new && self.acknowledged.len() == self.participants.len() { Noted::Over } else { Noted::Nothing }
    }

    fn rests_on_an_abort(&self) -> bool {
        self.answers.values().any(|answer| *answer == Answer::Aborted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(name: &str) -> ShardId {
        ShardId::new(name)
    }

    fn decision() -> Decision {
        Decision::new([shard("a"), shard("b")].into(), None)
    }

    fn at(time: u64) -> ClusterTime {
        ClusterTime::from_bits(time)
    }

    #[test]
    fn all_prepared_is_committed_at_the_highest_time() {
        let mut decision = decision();
        assert_eq!(decision.note(&shard("b"), Answer::Prepared(at(7))), Noted::Nothing);
        assert_eq!(decision.note(&shard("b"), Answer::Prepared(at(7))), Noted::Nothing);
        let decided = Noted::Decided(Outcome::Committed(at(7)));
        assert_eq!(decision.note(&shard("a"), Answer::Prepared(at(5))), decided);
        assert_eq!(decision.note(&shard("a"), Answer::Committed(at(7))), Noted::Nothing);
        assert_eq!(decision.lacking().collect::<Vec<_>>(), [&shard("b")]);
        assert_eq!(decision.note(&shard("b"), Answer::Committed(at(7))), Noted::Over);
    }

    #[test]
    fn one_abort_aborts_and_one_commit_commits() {
        let mut one = decision();
        assert_eq!(one.note(&shard("b"), Answer::Aborted), Noted::Decided(Outcome::Aborted));
        let mut one = decision();
        let decided = Noted::Decided(Outcome::Committed(at(9)));
        assert_eq!(one.note(&shard("b"), Answer::Committed(at(9))), decided);
        assert_eq!(one.lacking().collect::<Vec<_>>(), [&shard("a")]);
    }

    #[test]
    fn two_outcomes_contradict_each_other() {
        let mut one = decision();
        one.note(&shard("a"), Answer::Committed(at(9)));
        assert!(matches!(one.note(&shard("b"), Answer::Committed(at(8))), Noted::Contradiction(_)));
        assert!(matches!(one.note(&shard("b"), Answer::Aborted), Noted::Contradiction(_)));
    }

    #[test]
    fn strangers_say_nothing() {
        assert_eq!(decision().note(&shard("c"), Answer::Aborted), Noted::Nothing);
    }
}
