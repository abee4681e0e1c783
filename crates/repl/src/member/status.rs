//! What `hello` and `replSetGetStatus` need to know.

use super::Member;
use crate::config::ConfigVersion;
use crate::types::{MemberState, OpTime, Positions};

/// A member's view of its set.
#[derive(Clone, Debug)]
pub struct Status {
    /// What this member is.
    pub state: MemberState,
    /// Its `_id`.
    pub me: Option<u64>,
    /// Its term.
    pub term: u64,
    /// The primary it knows.
    pub primary: Option<u64>,
    /// How far it is.
    pub positions: Positions,
    /// The commit point as applied here.
    pub commit: OpTime,
    /// The configuration installed.
    pub config: ConfigVersion,
    /// Whether a majority has this configuration too.
    pub config_committed: bool,
    /// The other members, by `_id`.
    pub peers: Vec<PeerStatus>,
    /// Changes of role and configuration so far.
    pub topology_version: u64,
    /// Milliseconds since this member became primary.
    pub primary_for: Option<u64>,
}

/// What is known of another member.
#[derive(Clone, Debug)]
pub struct PeerStatus {
    /// Its `_id`.
    pub id: u64,
    /// What it said it is, or [`MemberState::Down`].
    pub state: MemberState,
    /// Whether it was heard of lately.
    pub up: bool,
    /// Milliseconds since it was heard of.
    pub heard_ago: Option<u64>,
    /// Milliseconds that a ping took.
    pub round_trip: u64,
    /// How far it said it is.
    pub positions: Positions,
    /// Its configuration.
    pub config: Option<ConfigVersion>,
}

impl Member {
    /// A primary's first entry and what is committed so far: for the simulator's checks.
    #[doc(hidden)]
    pub fn leading_commit(&self) -> Option<(u64, u64)> {
        let leading = self.leading.as_ref()?;
        Some((leading.begin, self.raft.as_ref()?.raft.raft_log.committed))
    }

    /// A picture of the set as this member sees it now.
    pub fn status(&self) -> Status {
        let config = self.config.as_deref();
        let others = config.map_or(&[][..], |config| &config.members);
        let peers = others.iter().filter(|member| Some(member.id) != self.me).map(|member| {
            let peer = self.peers.get(&member.id).cloned().unwrap_or_default();
            let up = self.is_up(&peer);
            let state = match (up, peer.heard_at) {
                (true, _) => peer.state,
                (false, Some(_)) => MemberState::Down,
                (false, None) => MemberState::Unknown,
            };
            PeerStatus {
                id: member.id,
                state,
                up,
                heard_ago: peer.heard_at.map(|heard| self.now.saturating_sub(heard)),
                round_trip: peer.round_trip,
                positions: peer.reported,
                config: peer.config,
            }
        });
        Status {
            state: self.state(),
            me: self.me,
            term: self.term(),
            primary: self.primary(),
            positions: self.positions,
            commit: self.commit,
            config: self.config_version(),
            config_committed: self.config_committed(),
            peers: peers.collect(),
            topology_version: self.role.topology_version,
            primary_for: self.leading.as_ref().map(|leading| self.now - leading.since),
        }
    }
}
