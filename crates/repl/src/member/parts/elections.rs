//! Elections: what only who has won one has, and what `replSetGetStatus` tells of them.

use crate::status::OpTimeAndTime;
use crate::types::LogPosition;

/// What only a primary has.
pub struct Leading {
    pub term: u64,
    /// Index of the no-op that began the term.
    pub begin: u64,
    pub since: u64,
    /// When a member of higher priority may be offered the lead.
    pub takeover_at: u64,
    /// Until when the member that was offered the lead may take it.
    pub hand_over_until: u64,
    /// Whether the lead was offered because the disk takes nothing, or soon will.
    pub offered: bool,
}

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
    /// Those of this kind.
    pub fn of(&mut self, reason: ElectionReason) -> &mut Attempts {
        match reason {
            ElectionReason::ElectionTimeout => &mut self.election_timeout,
            ElectionReason::PriorityTakeover => &mut self.priority_takeover,
            ElectionReason::StepUpRequest | ElectionReason::StepUpRequestSkipDryRun => &mut self.step_up,
            ElectionReason::SingleNodePromptElection => &mut self.alone,
        }
    }
}

/// What a member remembers of elections.
#[derive(Default)]
pub struct Elections {
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
