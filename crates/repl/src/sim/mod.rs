//! The simulator: a whole replica set with its network, disks and clients in one thread, from one seed.
//!
//! [`run`] plays a seed: first with faults, then without, and checks all the time what must always hold
//! ([`checks`]), and at the end that the set has come to rest in one state. Nothing in it depends on
//! anything but the seed, so that a failing seed fails again in the same way; [`Tally::trace`] is a hash
//! of everything that happened.

pub mod checks;
mod clients;
mod disk;
pub mod failover;
mod faults;
mod machine;
mod model;
mod plan;
mod storage;
mod tell;
#[cfg(test)]
mod tests;
mod world;

pub use plan::Plan;
pub use world::World;

/// A bug planted to see whether the checks notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A member votes for everyone who asks.
    VoteTwice,
    /// A member acknowledges what its disk does not have yet.
    AcknowledgeBeforePersisting,
    /// A primary commits entries of earlier terms by counting.
    CommitOldTermByCount,
    /// What is cut from the log stays applied.
    SkipRollback,
    /// Entries are applied in another order than the log's.
    ApplyOutOfOrder,
    /// A primary answers linearizable reads without asking whether it still leads.
    ReadWithoutAsking,
    /// A unit that could not be applied is passed over, and the next one acknowledged.
    ApplyPastFailure,
    /// A unit that found no room on the disk is passed over, and acknowledged.
    SkipOnFullDisk,
    /// The commit point of the log to come is kept before the log's end is cut off.
    KeepCommitBeforeCut,
    /// A process goes on after a panic, and what its core wanted done is lost in part.
    GoOnAfterPanic,
}

impl Mutation {
    /// All mutations.
    pub const ALL: [Mutation; 10] = [
        Mutation::VoteTwice,
        Mutation::AcknowledgeBeforePersisting,
        Mutation::CommitOldTermByCount,
        Mutation::SkipRollback,
        Mutation::ApplyOutOfOrder,
        Mutation::ReadWithoutAsking,
        Mutation::ApplyPastFailure,
        Mutation::SkipOnFullDisk,
        Mutation::KeepCommitBeforeCut,
        Mutation::GoOnAfterPanic,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mutation::VoteTwice => "vote-twice",
            Mutation::AcknowledgeBeforePersisting => "acknowledge-before-persisting",
            Mutation::CommitOldTermByCount => "commit-old-term-by-count",
            Mutation::SkipRollback => "skip-rollback",
            Mutation::ApplyOutOfOrder => "apply-out-of-order",
            Mutation::ReadWithoutAsking => "read-without-asking",
            Mutation::ApplyPastFailure => "apply-past-failure",
            Mutation::SkipOnFullDisk => "skip-on-full-disk",
            Mutation::KeepCommitBeforeCut => "keep-commit-before-cut",
            Mutation::GoOnAfterPanic => "go-on-after-panic",
        }
    }
}

/// What a run did, and the hash of all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Hash of every event and effect in order.
    pub trace: u64,
    /// Events played.
    pub events: u64,
    /// Entries committed.
    pub committed: u64,
    /// Terms in which there was a primary.
    pub primaries: u64,
    /// Writes acknowledged.
    pub acknowledged: u64,
    /// Linearizable reads answered.
    pub reads: u64,
    /// Linearizable reads refused because the lead was lost meanwhile.
    pub reads_refused: u64,
    /// Rollbacks, and entries lost by them.
    pub rollbacks: u64,
    /// Entries taken back.
    pub rolled_back: u64,
    /// Members restarted after a crash.
    pub restarts: u64,
    /// Copies of the data made.
    pub initial_syncs: u64,
    /// Configurations installed by a primary.
    pub reconfigs: u64,
    /// Entries that had to be read from the log again.
    pub fetches: u64,
    /// Planned hand-overs.
    pub step_downs: u64,
    /// Processes that ended because a unit could not be applied.
    pub apply_failures: u64,
    /// Processes that ended between two effects of one poll.
    pub panics: u64,
    /// Processes that ended after a unit's term, vote and commit point were kept, and before its log was.
    pub half_kept: u64,
    /// Wall clocks set forward or back.
    pub clock_steps: u64,
    /// Configurations refused because their sender was unknown.
    pub strangers: u64,
    /// Configurations that an operator had to force on a member that knew none of the others any more.
    pub forced: u64,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The simulated time in milliseconds.
    pub at: u64,
    /// What.
    pub what: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {} at {} ms: {}", self.seed, self.at, self.what)?;
        write!(f, "\nreplay: cargo run -p sheaf-repl --release --example simulate -- --seed {}", self.seed)
    }
}

/// Plays one seed.
pub fn run(seed: u64, mutation: Option<Mutation>) -> Result<Tally, Failure> {
    World::new(Plan::of(seed), mutation).play()
}
