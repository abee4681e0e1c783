//! What `replSetGetStatus` tells of elections: of the one that this member won, and of the last one that it
//! voted in. Nothing here has any influence on what the member does.

use super::Member;
use crate::status::OpTimeAndTime;
use crate::types::{LogPosition, Positions};

/// Why a member stood for election, in mongod's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ElectionReason {
    /// No primary was heard of.
    #[default]
    ElectionTimeout,
    /// The primary offered the lead to a member of higher priority.
    PriorityTakeover,
    /// `replSetStepUp`.
    StepUpRequest,
    /// The primary handed over because it was to step down.
    StepUpRequestSkipDryRun,
    /// The set has no other member.
    SingleNodePromptElection,
}

impl ElectionReason {
    /// As `lastElectionReason` shows it.
    pub fn name(self) -> &'static str {
        match self {
            ElectionReason::ElectionTimeout => "electionTimeout",
            ElectionReason::PriorityTakeover => "priorityTakeover",
            ElectionReason::StepUpRequest => "stepUpRequest",
            ElectionReason::StepUpRequestSkipDryRun => "stepUpRequestSkipDryRun",
            ElectionReason::SingleNodePromptElection => "singleNodePromptElection",
        }
    }
}

/// `electionCandidateMetrics`: of a primary only. Times are the member's own milliseconds.
#[derive(Clone, Debug)]
pub struct CandidateMetrics {
    /// Why the member stood.
    pub reason: ElectionReason,
    /// When the member stood.
    pub at: u64,
    /// The term that was won.
    pub term: u64,
    /// The commit point when the election was won.
    pub committed: OpTimeAndTime,
    /// The end of the candidate's log then.
    pub written: OpTimeAndTime,
    /// The end of what the candidate had applied then.
    pub applied: OpTimeAndTime,
    /// How many votes the candidate needed.
    pub votes_needed: usize,
    /// The candidate's priority.
    pub priority: f64,
    /// `settings.electionTimeoutMillis` then.
    pub election_timeout: u64,
    /// The primary of an earlier term.
    pub prior_primary: Option<u64>,
    /// When the election was won.
    pub new_term_start: u64,
    /// When the entry that began the term was committed.
    pub majority_available: Option<u64>,
}

/// `electionParticipantMetrics`: the last vote that was given to another member.
#[derive(Clone, Debug)]
pub struct ParticipantMetrics {
    /// The term of the election.
    pub term: u64,
    /// When, in the member's own milliseconds.
    pub at: u64,
    /// Who got the vote.
    pub candidate: u64,
    /// The end of this member's log then.
    pub written: OpTimeAndTime,
    /// The furthest end of a log that this member knew of.
    pub written_in_set: OpTimeAndTime,
    /// What this member had applied then.
    pub applied: OpTimeAndTime,
    /// The furthest that any member had applied, as far as this one knew.
    pub applied_in_set: OpTimeAndTime,
    /// This member's priority.
    pub priority: f64,
    /// Cluster time of the entry that began the term.
    pub new_term_time: Option<u64>,
    /// When that entry was applied here, in the member's own milliseconds.
    pub new_term_applied: Option<u64>,
}

/// Elections of one kind that this member has stood for, and those that it won.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Attempts {
    pub called: u64,
    pub successful: u64,
}

/// `electionMetrics` of `serverStatus`: counted since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ElectionCounts {
    /// By a command, or because the primary handed over.
    pub step_up: Attempts,
    /// By priority.
    pub priority_takeover: Attempts,
    /// No primary was heard of.
    pub election_timeout: Attempts,
    /// The only member of its set.
    pub alone: Attempts,
    /// How often this member ceased to be primary because it met a later term.
    pub higher_term: u64,
    /// Elections won with every entry that there was; in other sets than one of a single member that is every one.
    pub caught_up: u64,
}

impl ElectionCounts {
    fn of(&mut self, reason: ElectionReason) -> &mut Attempts {
        match reason {
            ElectionReason::ElectionTimeout => &mut self.election_timeout,
            ElectionReason::PriorityTakeover => &mut self.priority_takeover,
            ElectionReason::StepUpRequest | ElectionReason::StepUpRequestSkipDryRun => &mut self.step_up,
            ElectionReason::SingleNodePromptElection => &mut self.alone,
        }
    }
}

/// What is remembered for them.
#[derive(Default)]
pub(super) struct Elections {
    pub counts: ElectionCounts,
    pub candidate: Option<CandidateMetrics>,
    pub participant: Option<ParticipantMetrics>,
    /// Why and when this member last stood.
    pub stood: (ElectionReason, u64),
    /// The primary known last.
    pub last_primary: Option<u64>,
    /// The entry that began the newest term in the log, with its cluster time.
    pub term_begin: Option<(LogPosition, u64)>,
}

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
