//! What members say to each other.

use std::sync::Arc;

use crate::config::{ConfigVersion, ReplSetConfig};
use crate::types::{MemberState, Positions};

/// A message with its address.
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope {
    /// `_id` of the member that sends.
    pub from: u64,
    /// `_id` of the member it is for. It tells a member without a configuration who it is.
    pub to: u64,
    /// The configuration that the sender has installed; lets the older side be updated.
    pub config: ConfigVersion,
    /// A number that the sender drew at its start: tells a restarted member from one that went on.
    pub incarnation: u64,
    /// What is said.
    pub body: Body,
}

impl Envelope {
    /// Whether it brings entries of the log, or says that they are to be copied.
    pub fn brings_entries(&self) -> bool {
        use raft::eraftpb::MessageType;
        let Body::Raft(message) = &self.body else { return false };
        match message.get_msg_type() {
            MessageType::MsgAppend => !message.entries.is_empty(),
            kind => kind == MessageType::MsgSnapshot,
        }
    }
}

/// What is said.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// A message of the consensus protocol.
    Raft(Box<raft::eraftpb::Message>),
    /// A member tells the primary how far it is.
    Progress(Report),
    /// A heartbeat, which is to be answered.
    Ping(Heartbeat),
    /// The answer.
    Pong(Heartbeat),
    /// The sender's configuration, for a member that has an older one.
    Config(Arc<ReplSetConfig>),
}

/// How far a member is, as of a term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The member's term. Within a term a member never takes back what its primary has, so a report of
    /// the primary's own term stays true until the member restarts.
    pub term: u64,
    /// How far.
    pub positions: Positions,
}

/// What members tell each other at intervals.
#[derive(Clone, Debug, PartialEq)]
pub struct Heartbeat {
    /// The set's name: members of another set are not listened to.
    pub set_name: Arc<str>,
    /// How far the sender is.
    pub report: Report,
    /// What the sender is.
    pub state: MemberState,
    /// The primary that the sender knows.
    pub primary: Option<u64>,
    /// Whether the sender would take over as primary.
    pub electable: bool,
    /// Whether the sender copies its data from another member now.
    pub syncing: bool,
    /// The sender's commit point.
    pub commit: u64,
    /// The time of the sender of the ping, given back in the answer.
    pub sent_at: u64,
}
