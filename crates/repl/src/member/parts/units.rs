//! What is on its way to the driver's disk, and what was asked of it.

use std::sync::Arc;

use raft::eraftpb::Message as RaftMessage;

use crate::config::ReplSetConfig;
use crate::types::LogPosition;

/// A [`Persist`](crate::effect::Persist) that is not yet applied and durable.
pub struct Pending {
    pub seq: u64,
    /// raft-rs's number for it.
    pub ready: Option<u64>,
    /// May be sent when it is acknowledged.
    pub messages: Vec<RaftMessage>,
    /// Where the log ends with it.
    pub last: LogPosition,
    pub last_time: u64,
    /// Holds a term or a vote: nothing may be said of it before it is durable.
    pub vote: bool,
    pub config: Option<(Arc<ReplSetConfig>, Option<u64>)>,
    pub rollback: bool,
    pub install: bool,
    pub acknowledged: bool,
    pub since: u64,
}

impl Pending {
    /// Whether a term or a vote is not durable before this is.
    pub fn keeps_term(&self) -> bool {
        self.vote && self.ready.is_some() && !self.acknowledged
    }
}

/// Entries that the driver was asked for.
pub struct Fetch {
    pub low: u64,
    pub asked_at: u64,
    /// What raft-rs wants them for, and how that reads.
    pub wanted: Vec<(String, raft::GetEntriesContext)>,
}

/// An entry's cluster time.
#[derive(Clone, Copy)]
pub struct EntryTime {
    pub index: u64,
    pub time: u64,
    /// When this member got it, in its own milliseconds.
    pub since: u64,
}
