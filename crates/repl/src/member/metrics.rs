//! What `replSetGetStatus` tells of elections: of the one that this member won, and of the last one that it
//! voted in. Nothing here has any influence on what the member does.

use super::Member;
use super::parts::{CandidateMetrics, ElectionCounts, ElectionReason, ParticipantMetrics};
use crate::status::OpTimeAndTime;
use crate::types::Positions;

fn written(positions: &Positions) -> OpTimeAndTime {
    OpTimeAndTime { at: positions.written, time: positions.times[0] }
}

fn applied(positions: &Positions) -> OpTimeAndTime {
    OpTimeAndTime { at: positions.applied, time: positions.times[1] }
}

impl Member {
    /// This member stands for election.
    pub(super) fn note_candidacy(&mut self, reason: ElectionReason) {
        let alone = self.config.as_ref().is_some_and(|config| config.members.len() == 1);
        let reason = if alone { ElectionReason::SingleNodePromptElection } else { reason };
        self.elections.stood = (reason, self.now);
        self.elections.counts.of(reason).called += 1;
    }

    /// This member is no longer primary. One that hands over expects the later term.
    pub(super) fn note_lost_lead(&mut self) {
        let Some(leading) = &self.leading else { return };
        let handing_over = self.step_down.is_some() || leading.hand_over_until > self.now;
        if self.term() > leading.term && !handing_over {
            self.elections.counts.higher_term += 1;
        }
    }

    /// How many elections there were.
    pub fn election_counts(&self) -> ElectionCounts {
        self.elections.counts
    }

    /// The primary has handed over: to a member of higher priority than its own, or because it steps down.
    pub(super) fn note_handed_over(&mut self) {
        let priority = |id: Option<u64>| {
            let config = self.config.as_ref()?;
            Some(config.member(id?)?.priority)
        };
        let higher = priority(self.me) > priority(self.elections.last_primary);
        self.note_candidacy(match higher {
            true => ElectionReason::PriorityTakeover,
            false => ElectionReason::StepUpRequestSkipDryRun,
        });
    }

    pub(super) fn note_won(&mut self) {
        let (reason, at) = self.elections.stood;
        let config = self.config.as_ref().expect("who wins an election has a configuration");
        self.elections.counts.of(reason).successful += 1;
        self.elections.counts.caught_up += u64::from(config.members.len() > 1);
        self.elections.candidate = Some(CandidateMetrics {
            reason,
            at,
            term: self.term(),
            committed: OpTimeAndTime { at: self.commit, time: self.commit_time },
            written: written(&self.positions),
            applied: applied(&self.positions),
            votes_needed: config.majority_vote_count(),
            priority: self.my_config().map_or(0.0, |me| me.priority),
            election_timeout: self.election_timeout(),
            prior_primary: self.elections.last_primary,
            new_term_start: self.now,
            majority_available: None,
        });
    }

    /// The commit point has moved.
    pub(super) fn note_available(&mut self) {
        let begin = self.leading.as_ref().map(|leading| leading.begin);
        if let Some(candidate) = &mut self.elections.candidate
            && candidate.majority_available.is_none()
            && begin.is_some_and(|begin| self.commit.index >= begin)
        {
            candidate.majority_available = Some(self.now);
        }
    }

    /// This member has given its vote.
    pub(super) fn note_vote(&mut self, candidate: u64) {
        let all = || self.peers.values().map(|peer| &peer.reported).chain([&self.positions]);
        let participant = ParticipantMetrics {
            term: self.term(),
            at: self.now,
            candidate,
            written: written(&self.positions),
            written_in_set: all().map(written).max_by_key(|it| it.at).unwrap_or_default(),
            applied: applied(&self.positions),
            applied_in_set: all().map(applied).max_by_key(|it| it.at).unwrap_or_default(),
            priority: self.my_config().map_or(0.0, |me| me.priority),
            new_term_time: None,
            new_term_applied: None,
        };
        self.elections.participant = Some(participant);
    }

    /// Entries are applied here.
    pub(super) fn note_applied(&mut self) {
        let (applied, now) = (self.positions.applied, self.now);
        if let Some((begin, time)) = self.elections.term_begin
            && let Some(participant) = &mut self.elections.participant
            && participant.term == begin.term
            && participant.new_term_applied.is_none()
            && applied.index >= begin.index
        {
            participant.new_term_time = Some(time);
            participant.new_term_applied = Some(now);
        }
    }
}
