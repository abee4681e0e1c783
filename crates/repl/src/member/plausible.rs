//! What a member does not believe, whoever says it.
//!
//! The driver lets nothing through but what a member of the configuration has said: it asks the member itself. This is
//! the second line: a message that no working member can have sent is refused and named ([`Effect::Refused`]), before it has
//! changed anything. Between working members nothing of it happens, which the simulator checks.

use std::sync::Arc;

use raft::eraftpb::{Message as RaftMessage, MessageType};

use super::ids::raft_id;
use super::{Body, Effect, Envelope, Member};
use crate::config::ReplSetConfig;
use crate::log_view::time_of;
use crate::types::LogPosition;

/// How many elections a member may have missed. One a second for eleven days.
const TERMS_AHEAD_MAX: u64 = 1_000_000;

/// How many versions a configuration may be ahead: a forced one skips up to 100,000.
const VERSIONS_AHEAD_MAX: i64 = 10_000_000;

/// What an operator does about a member that has really missed so much.
const WAY_OUT: &str = "replSetReconfig with force on this member makes it believe it";

impl Member {
    /// Refuses a message that cannot be true. Returns whether it was refused.
    pub(super) fn refuses(&mut self, host: &Arc<str>, envelope: &Envelope) -> bool {
        let Some(what) = self.doubt(host, envelope) else { return false };
        self.out.push(Effect::Refused { host: host.clone(), from: envelope.from, what });
        true
    }

    fn doubt(&self, host: &Arc<str>, envelope: &Envelope) -> Option<String> {
        self.doubt_distance(envelope).or_else(|| match &envelope.body {
            Body::Config(config) => self.doubt_config(host, envelope.from, config),
            Body::Raft(message) => self.doubt_raft(message),
            Body::Progress(_) | Body::Ping(_) | Body::Pong(_) => None,
        })
    }

    /// Terms and versions far from what is known. A member that has nothing yet knows nothing to go by.
    fn doubt_distance(&self, envelope: &Envelope) -> Option<String> {
        let ours = self.config.as_ref().filter(|_| !self.believes_far)?.config_version();
        let version = match &envelope.body {
            Body::Config(config) => config.version.max(envelope.config.version),
            _ => envelope.config.version,
        };
        if version > ours.version.saturating_add(VERSIONS_AHEAD_MAX) {
            let known = ours.version;
            return Some(format!("configuration version {version} is too far from {known}; {WAY_OUT}"));
        }
        let said = match &envelope.body {
            Body::Raft(message) => message.term,
            Body::Progress(report) => report.term,
            Body::Ping(heartbeat) | Body::Pong(heartbeat) => heartbeat.report.term,
            Body::Config(config) => config.term.max(0) as u64,
        };
        let term = said.max(envelope.config.term.max(0) as u64);
        let known = self.term().max(ours.term.max(0) as u64);
        let new_here = self.view().last().index == 0;
        (!new_here && term > known.saturating_add(TERMS_AHEAD_MAX))
            .then(|| format!("term {term} is too far from {known}; {WAY_OUT}"))
    }

    fn doubt_config(&self, host: &Arc<str>, from: u64, config: &ReplSetConfig) -> Option<String> {
        match &self.config {
            Some(ours) if ours.member(from).is_none() => Some(format!(
                "a configuration of a member that is not in this one's; {WAY_OUT}, with the set's present members"
            )),
            Some(_) => None,
            // The first one comes from one of its own members, under the name by which the others know it.
            None if config.member(from).is_some_and(|sender| sender.host == *host) => None,
            None => Some("a configuration that does not name its sender".to_owned()),
        }
    }

    fn doubt_raft(&self, message: &RaftMessage) -> Option<String> {
        let last = self.view().last();
        // raft-rs takes what has no term for a message of its own, and looks no further. Only who has never heard of a term
        // says so, when it refuses to vote.
        let kind = message.get_msg_type();
        if message.term == 0 && !(kind == MessageType::MsgRequestPreVoteResponse && message.reject) {
            return Some(format!("a {kind:?} without a term"));
        }
        if let Some(leader) = self.leader()
            && matches!(kind, MessageType::MsgAppend | MessageType::MsgHeartbeat | MessageType::MsgSnapshot)
            && message.term == self.term()
            && message.from != raft_id(leader)
        {
            // raft-rs would follow it at once, and take what it says for committed.
            return Some(format!("a {kind:?} of term {}, of which member {leader} is primary", message.term));
        }
        match kind {
            MessageType::MsgAppendResponse => {
                let beyond = self.is_leader()
                    && message.term == self.term()
                    && !message.reject
                    && message.index > last.index;
                beyond.then(|| {
                    format!("it has entry {}, and this primary has only {}", message.index, last.index)
                })
            }
            MessageType::MsgAppend if LogPosition::new(message.log_term, message.index) == last => {
                let first = message.entries.first().map(time_of)?;
                let before = self.view().bounds().last_time;
                (first <= before)
                    .then(|| format!("entry {} of cluster time {first} after {before}", message.index + 1))
            }
            _ => None,
        }
    }
}
