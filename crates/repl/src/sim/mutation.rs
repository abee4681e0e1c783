//! Bugs that are planted to see whether the checks notice.

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
