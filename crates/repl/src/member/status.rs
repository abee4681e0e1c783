//! What `replSetGetStatus` needs to know.

use std::sync::Arc;

use sheaf_errors::{Code, Error, Result};

use super::Member;
use super::errors::not_yet_initialized;
use super::parts::{CandidateMetrics, ParticipantMetrics};
use crate::config::{ConfigVersion, ReplSetConfig};
use crate::types::{LogPosition, MemberState, Positions};

/// A member with data that lacks entries of another one's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behind {
    /// Its `host:port`.
    pub host: Arc<str>,
    /// What it is, as far as is known.
    pub state: MemberState,
    /// So many seconds of the log.
    pub seconds: u64,
}

/// A member's view of its set.
#[derive(Clone, Debug)]
pub struct Status {
    /// The member's own milliseconds at which this was true.
    pub now: u64,
    /// What this member is.
    pub state: MemberState,
    /// This member's `_id`.
    pub me: Option<u64>,
    /// The term that this member is in.
    pub term: u64,
    /// The primary that this member knows.
    pub primary: Option<u64>,
    /// How far this member is.
    pub positions: Positions,
    /// The commit point as applied here.
    pub commit: LogPosition,
    /// Cluster time of the commit point.
    pub commit_time: u64,
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
    /// How often `replSetMaintenance` was turned on.
    pub maintenance: u32,
    /// Cluster time of the entry that began this term, if the log has one.
    pub election_time: Option<u64>,
    /// The election that made this member primary.
    pub candidate: Option<CandidateMetrics>,
    /// The last election in which it voted for another.
    pub participant: Option<ParticipantMetrics>,
}

/// What is known of another member. Times are this member's own milliseconds.
#[derive(Clone, Debug)]
pub struct PeerStatus {
    /// The member's `_id`.
    pub id: u64,
    /// The state that the member has told, or [`MemberState::Down`].
    pub state: MemberState,
    /// Whether the member was heard of lately.
    pub up: bool,
    /// For how many milliseconds the member has been heard of.
    pub up_for: u64,
    /// Milliseconds since the member was heard of.
    pub heard_ago: Option<u64>,
    /// When the member's last answer to a ping came; of a member that is down, when a ping was last sent.
    pub answered_at: Option<u64>,
    /// When the member's last ping came.
    pub ping_at: Option<u64>,
    /// Milliseconds that pings took lately.
    pub round_trip: Option<u64>,
    /// The connection to the member broke, and nothing was heard of it since.
    pub lost: bool,
    /// It was lost at a proof.
    pub unproved: bool,
    /// The primary that the member knows.
    pub primary: Option<u64>,
    /// How far the member has said it is.
    pub positions: Positions,
    /// The configuration that the member has told.
    pub config: Option<ConfigVersion>,
}

impl Member {
    /// A primary's first entry and what is committed so far: for the simulator's checks.
    #[doc(hidden)]
    pub fn leading_commit(&self) -> Option<(u64, u64)> {
        let leading = self.leading.as_ref()?;
        Some((leading.begin, self.raft.as_ref()?.raft.raft_log.committed))
    }

    /// The configuration, also one that this member is no part of; or `NotYetInitialized`.
    pub(crate) fn known_config(&self) -> Result<&ReplSetConfig> {
        self.config.as_deref().ok_or_else(not_yet_initialized)
    }

    /// The configuration and this member's place in it, or why `replSetGetStatus` has nothing to tell.
    pub(crate) fn place(&self) -> Result<(&ReplSetConfig, u64)> {
        let config = self.known_config()?;
        match self.me.filter(|me| config.member(*me).is_some()) {
            Some(me) => Ok((config, me)),
            None => Err(Error::new(
                Code::INVALID_REPLICA_SET_CONFIG,
                "Our replica set config is invalid or we are not a member of it",
            )),
        }
    }

    /// A picture of the set as this member sees it now.
    pub fn status(&self) -> Status {
        let config = self.config.as_deref();
        let others = config.map_or(&[][..], |config| &config.members);
        let others = others.iter().filter(|member| Some(member.id) != self.me);
        let begin = self.elections.term_begin.filter(|(at, _)| at.term == self.term());
        Status {
            now: self.now,
            state: self.state(),
            me: self.me,
            term: self.term(),
            primary: self.primary(),
            positions: self.positions,
            commit: self.commit,
            commit_time: self.commit_time,
            config: self.config_version(),
            config_committed: self.config_committed(),
            peers: others.map(|member| self.peer_status(member.id)).collect(),
            topology_version: self.role.topology_version,
            primary_for: self.leading.as_ref().map(|leading| self.now - leading.since),
            maintenance: self.maintenance,
            election_time: begin.map(|(_, time)| time),
            candidate: self.elections.candidate.clone(),
            participant: self.elections.participant.clone(),
        }
    }

    /// Who has not applied what this member has.
    pub fn behind(&self) -> Vec<Behind> {
        let seconds = |positions: &Positions| positions.times[1] >> 32;
        let (own, config) = (&self.positions, self.config.as_ref());
        let others = config.into_iter().flat_map(|config| &config.members);
        let others = others.filter(|member| Some(member.id) != self.me && !member.arbiter_only);
        others
            .map(|member| (member, self.peer_status(member.id)))
            .filter(|(_, peer)| peer.positions.applied < own.applied)
            .map(|(member, peer)| Behind {
                host: member.host.clone(),
                state: peer.state,
                seconds: seconds(own).saturating_sub(seconds(&peer.positions)),
            })
            .collect()
    }

    fn peer_status(&self, id: u64) -> PeerStatus {
        let peer = self.peers.get(&id).cloned().unwrap_or_default();
        let up = self.is_up(&peer);
        let waited = peer.pinged_first.is_some_and(|first| self.now > first + self.up_timeout());
        let state = match (up, peer.heard_at.is_some() || peer.lost || waited) {
            (true, _) => peer.state,
            (false, true) => MemberState::Down,
            (false, false) => MemberState::Unknown,
        };
        let asked = peer.pinged_first.map(|_| peer.pinged_at);
        PeerStatus {
            id,
            state,
            up,
            up_for: if up { self.now.saturating_sub(peer.up_since) } else { 0 },
            heard_ago: peer.heard_at.map(|heard| self.now.saturating_sub(heard)),
            answered_at: if up { peer.pong_at } else { asked },
            ping_at: peer.ping_at,
            round_trip: peer.round_trip,
            lost: peer.lost,
            unproved: peer.unproved,
            primary: peer.primary,
            positions: peer.reported,
            config: peer.config,
        }
    }
}
