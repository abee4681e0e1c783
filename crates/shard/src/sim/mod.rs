//! The simulator: whole clusters with their networks, disks, clocks and clients in one thread, from one seed.
//!
//! [`run`] plays a seed: shards of real [`sheaf_repl::Member`]s with a [`crate::Shard`] each, routers with a [`crate::Committer`], clients
//! that move balances, write and scan. With odd seeds there are config servers, in some the first shard, and ranges of documents are moved between the shards. First there are faults, then none, and the cluster must come to rest. A judge holds everything
//! that was read against all versions of all documents by commit time. Nothing depends on anything but the seed; [`Tally::trace`] is a
//! hash of everything that happened.

mod client;
mod conduct;
mod deciding;
mod decisions;
mod directory;
mod disk;
mod faults;
mod gate;
mod judge;
mod message;
mod moving;
mod node;
mod plan;
mod replication;
mod router;
mod serve;
mod state;
mod store;
#[cfg(test)]
mod tests;
mod world;

pub use plan::Plan;
pub use world::World;

/// A bug planted to see whether the judge notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A shard says that it has aborted before that is on a majority.
    AbortBeforeDurable,
    /// A shard says that it has prepared before that is on a majority.
    PrepareBeforeDurable,
    /// A shard says that it has committed before that is on a majority.
    DecisionBeforeDurable,
    /// A shard commits at the time of its own prepare.
    OwnCommitTime,
    /// A router calls a commit settled that not all have acknowledged.
    SettledTooEarly,
    /// Readers pass over what is prepared.
    ReadPastDoubt,
    /// A new primary stamps below the ceiling.
    ClockBelowCeiling,
    /// Cluster times that come with messages are not looked at.
    TimesNotObserved,
    /// A router takes silence for a refusal.
    SilenceAborts,
    /// What was only read is taken for confirmed.
    ConfirmUnasked,
    /// A shard prepares what it has of a transaction, whether that is all of it or not.
    PrepareInPart,
    /// Writers are let in when the donor has prepared.
    DonorWritesAfterPrepare,
    /// What has changed last before the range was closed is not written.
    TailSkipped,
    /// Routers and shards go by what is owned now, whenever is read.
    NewestTableAtT,
    /// A range comes back while its remains are being removed.
    ReturnedRangeRemoved,
    /// Records of retryable statements do not travel.
    StatementRowsLeft,
    /// A router calls settled what is applied, and does not ask whether majorities have it.
    SettledUnconfirmed,
    /// A shard commits the first decision of a message, and answers for all of them.
    FirstForAll,
}

impl Mutation {
    /// All mutations.
    pub const ALL: [Mutation; 18] = [
        Mutation::AbortBeforeDurable,
        Mutation::PrepareBeforeDurable,
        Mutation::DecisionBeforeDurable,
        Mutation::OwnCommitTime,
        Mutation::SettledTooEarly,
        Mutation::ReadPastDoubt,
        Mutation::ClockBelowCeiling,
        Mutation::TimesNotObserved,
        Mutation::SilenceAborts,
        Mutation::ConfirmUnasked,
        Mutation::PrepareInPart,
        Mutation::DonorWritesAfterPrepare,
        Mutation::TailSkipped,
        Mutation::NewestTableAtT,
        Mutation::ReturnedRangeRemoved,
        Mutation::StatementRowsLeft,
        Mutation::SettledUnconfirmed,
        Mutation::FirstForAll,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mutation::AbortBeforeDurable => "abort-before-durable",
            Mutation::PrepareBeforeDurable => "prepare-before-durable",
            Mutation::DecisionBeforeDurable => "decision-before-durable",
            Mutation::OwnCommitTime => "own-commit-time",
            Mutation::SettledTooEarly => "settled-too-early",
            Mutation::ReadPastDoubt => "read-past-doubt",
            Mutation::ClockBelowCeiling => "clock-below-ceiling",
            Mutation::TimesNotObserved => "times-not-observed",
            Mutation::SilenceAborts => "silence-aborts",
            Mutation::ConfirmUnasked => "confirm-unasked",
            Mutation::PrepareInPart => "prepare-in-part",
            Mutation::DonorWritesAfterPrepare => "donor-writes-after-prepare",
            Mutation::TailSkipped => "tail-skipped",
            Mutation::NewestTableAtT => "newest-table-at-t",
            Mutation::ReturnedRangeRemoved => "returned-range-removed",
            Mutation::StatementRowsLeft => "statement-rows-left",
            Mutation::SettledUnconfirmed => "settled-unconfirmed",
            Mutation::FirstForAll => "first-for-all",
        }
    }
}

/// What a run did, and the hash of all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Hash of all events.
    pub trace: u64,
    /// Events played.
    pub events: u64,
    /// Transactions that their clients know to be committed.
    pub committed: u64,
    /// Those of them that wrote on several shards.
    pub crossing: u64,
    /// Transactions that their clients know to be aborted when they had asked for the commit.
    pub refused: u64,
    /// Transactions whose outcome their clients never heard.
    pub unknown: u64,
    /// Commits asked for again with a recovery token.
    pub recovered: u64,
    /// Units of decisions that were written and not synced at once.
    pub late_decisions: u64,
    /// Decisions that went to a shard in one message with others.
    pub together: u64,
    /// Transactions that shards began to settle.
    pub settled: u64,
    /// Readers that waited for a transaction in doubt.
    pub waited: u64,
    /// Scans of all documents at one time.
    pub scans: u64,
    /// Plain writes acknowledged.
    pub written: u64,
    /// Processes of members that were started again.
    pub restarts: u64,
    /// Routers that were started again.
    pub routers_lost: u64,
    /// Terms of members as primaries.
    pub primaries: u64,
    /// Rollbacks.
    pub rollbacks: u64,
    /// Ceilings in logs.
    pub ceilings: u64,
    /// Moves begun.
    pub moves: u64,
    /// Moves that their conductors know to have happened.
    pub moved: u64,
    /// Moves given up, or found by another primary.
    pub given_up: u64,
    /// Requests of routers that did not know of a move.
    pub stale: u64,
    /// Reads at a time before the newest move that the router knew of.
    pub by_history: u64,
    /// Retryable statements answered from what is on record.
    pub repeated: u64,
}

impl Tally {
    /// Adds another run's counts.
    pub fn add(&mut self, other: &Tally) {
        self.trace ^= other.trace;
        self.events += other.events;
        self.committed += other.committed;
        self.crossing += other.crossing;
        self.refused += other.refused;
        self.unknown += other.unknown;
        self.recovered += other.recovered;
        self.late_decisions += other.late_decisions;
        self.together += other.together;
        self.settled += other.settled;
        self.waited += other.waited;
        self.scans += other.scans;
        self.written += other.written;
        self.restarts += other.restarts;
        self.routers_lost += other.routers_lost;
        self.primaries += other.primaries;
        self.rollbacks += other.rollbacks;
        self.ceilings += other.ceilings;
        self.moves += other.moves;
        self.moved += other.moved;
        self.given_up += other.given_up;
        self.stale += other.stale;
        self.by_history += other.by_history;
        self.repeated += other.repeated;
    }
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
        write!(
            f,
            "\nreplay: cargo run -p sheaf-shard --release --example simulate_shards -- --seed {}",
            self.seed
        )
    }
}

/// Plays one seed.
pub fn run(seed: u64, mutation: Option<Mutation>) -> Result<Tally, Failure> {
    World::new(Plan::of(seed), mutation).play()
}
