//! What came of a run.

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
