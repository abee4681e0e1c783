//! The small types that every part of the core shares.

use bytes::Bytes;
pub use sheaf_log::LogPosition;

/// One entry of the log: a commit group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Where the entry stands.
    pub at: LogPosition,
    /// Cluster time of its last operation; grows with the index.
    pub time: u64,
    /// The operations, opaque to this crate. Empty is the no-op with which a new primary begins its term.
    pub payload: Bytes,
}

/// What a member must never forget: its term and whom it voted for in it. `commit` may be lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The newest term that this member has seen.
    pub term: u64,
    /// The member that got this member's vote in `term`.
    pub vote: Option<u64>,
    /// The commit point known.
    pub commit: u64,
}

/// Terms of a log in runs: from `first` on, until the next run begins, entries are of `term`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermRun {
    /// Index of the run's first entry.
    pub first: u64,
    /// The term of the run's entries.
    pub term: u64,
}

/// What is known of a log without reading its payloads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogBounds {
    /// The position before the first entry that the log still has.
    pub start: LogPosition,
    /// Index of the last entry; `start.index` when the log is empty.
    pub last: u64,
    /// Terms of the entries after `start`.
    pub runs: Vec<TermRun>,
    /// Cluster time of the last entry.
    pub last_time: u64,
}

/// How far a member is with the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Positions {
    /// Appended to the log.
    pub written: LogPosition,
    /// Applied, thus visible to local reads.
    pub applied: LogPosition,
    /// Survives a crash of the machine.
    pub durable: LogPosition,
    /// Cluster times of these three.
    pub times: [u64; 3],
}

/// What a replica-set member is, in MongoDB's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum MemberState {
    /// Has no configuration yet.
    #[default]
    Startup = 0,
    /// Takes writes.
    Primary = 1,
    /// Follows the primary and can be read.
    Secondary = 2,
    /// Follows, but is not to be read (maintenance).
    Recovering = 3,
    /// Copies its data from another member.
    Startup2 = 5,
    /// Nothing was ever heard of it.
    Unknown = 6,
    /// Votes, holds no data.
    Arbiter = 7,
    /// Not heard of for too long.
    Down = 8,
    /// Takes back entries that the set has not kept.
    Rollback = 9,
    /// Not in the configuration any more.
    Removed = 10,
}

impl MemberState {
    /// The state's name in `replSetGetStatus`.
    pub fn name(self) -> &'static str {
        match self {
            MemberState::Startup => "STARTUP",
            MemberState::Primary => "PRIMARY",
            MemberState::Secondary => "SECONDARY",
            MemberState::Recovering => "RECOVERING",
            MemberState::Startup2 => "STARTUP2",
            MemberState::Unknown => "UNKNOWN",
            MemberState::Arbiter => "ARBITER",
            MemberState::Down => "(not reachable/healthy)",
            MemberState::Rollback => "ROLLBACK",
            MemberState::Removed => "REMOVED",
        }
    }

    /// The state of this number, as messages carry it.
    pub fn from_number(number: u8) -> Option<Self> {
        use MemberState::*;
        [Startup, Primary, Secondary, Recovering, Startup2, Unknown, Arbiter, Down, Rollback, Removed]
            .into_iter()
            .find(|state| *state as u8 == number)
    }

    /// Whether the member holds data that it can show.
    pub fn readable(self) -> bool {
        matches!(self, MemberState::Primary | MemberState::Secondary)
    }
}
