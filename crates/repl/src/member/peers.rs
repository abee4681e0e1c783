//! What is known of the other members, and the heartbeats by which it is known.

use std::sync::Arc;

use raft::ProgressState;

use super::ids::raft_id;
use super::parts::Peer;
use super::{Body, Envelope, Heartbeat, Member, Report};
use crate::types::{LogPosition, MemberState, Positions};

impl Member {
    /// Takes note of the sender. Returns whether the message is to be read.
    pub(super) fn note_sender(&mut self, host: &Arc<str>, envelope: &Envelope) -> bool {
        let from = envelope.from;
        let meant = self.me.is_none_or(|me| me == envelope.to) && self.me != Some(from);
        if !meant || self.of_other_set(&envelope.body) || self.refuses(host, envelope) {
            return false;
        }
        self.note_quorum_check(from);
        let known = self.config.as_ref().is_some_and(|config| config.member(from).is_some());
        let ours = self.config_version();
        if !known {
            // Members that are not in the configuration are not listened to; who was removed is told so.
            if ours.newer_than(envelope.config) && !matches!(envelope.body, Body::Config(_)) {
                self.send_config(host, from);
            }
            return self.config.is_none();
        }
        let now = self.now;
        let was_up = self.peers.get(&from).is_some_and(|peer| self.is_up(peer));
        let peer = self.peers.entry(from).or_default();
        if envelope.incarnation < peer.incarnation {
            return false;
        }
        let restarted = envelope.incarnation > peer.incarnation;
        peer.incarnation = envelope.incarnation;
        peer.heard_at = Some(now);
        (peer.lost, peer.silent) = (false, false);
        if restarted || !was_up {
            peer.up_since = now;
            self.ask_who_has_come();
        }
        self.listening.heard(from, self.election_timeout());
        let peer = self.peers.entry(from).or_default();
        let newer = peer.config.is_none_or(|config| envelope.config.newer_than(config));
        if newer || restarted {
            peer.config = Some(envelope.config);
        }
        if newer {
            self.hurry_first_election();
        }
        let peer = self.peers.get_mut(&from).expect("the sender was noted above");
        let stale = ours.newer_than(envelope.config) && peer.config_sent.is_none_or(|sent| now >= sent + 50);
        if stale {
            peer.config_sent = Some(now);
        }
        if restarted {
            peer.in_log = Positions::default();
            self.forget_progress(from);
        }
        if stale {
            self.send_config(host, from);
        }
        true
    }

    fn of_other_set(&self, body: &Body) -> bool {
        match body {
            Body::Ping(heartbeat) | Body::Pong(heartbeat) => *heartbeat.set_name != *self.options.set_name,
            Body::Config(config) => config.set_name != self.options.set_name,
            Body::Raft(_) | Body::Progress(_) => false,
        }
    }

    /// A member has restarted: it may have less than it had acknowledged, without a journal, or with a folder that was emptied. It is asked
    /// whether it has what it had; if not, it says from where on it lacks entries.
    fn forget_progress(&mut self, id: u64) {
        if let Some(raft) = &mut self.raft
            && let Some(progress) = raft.raft.mut_prs().get_mut(raft_id(id))
            && progress.state != ProgressState::Snapshot
        {
            // A primary that has not heard of it yet begins at its own end, and goes back from there.
            let next = if progress.matched > 0 { progress.matched + 1 } else { progress.next_idx };
            progress.matched = 0;
            progress.become_probe();
            progress.next_idx = next;
        }
    }

    /// A member says how far it is.
    pub(super) fn note_report(&mut self, from: u64, incarnation: u64, report: Report) {
        let current = self.is_leader() && report.term == self.term();
        let Some(peer) = self.peers.get(&from) else { return };
        if incarnation < peer.incarnation {
            return;
        }
        let mut in_log = peer.in_log;
        if current {
            let view = self.view();
            let raise = |known: &mut LogPosition, said: LogPosition| {
                if said.index > known.index && view.has(said) {
                    *known = said;
                }
            };
            raise(&mut in_log.written, report.positions.written);
            raise(&mut in_log.applied, report.positions.applied);
            raise(&mut in_log.durable, report.positions.durable);
        }
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.in_log = in_log;
            if report.term >= peer.term {
                peer.term = report.term;
                peer.reported = report.positions;
            }
        }
    }

    /// The consensus protocol's own acknowledgement, which comes after applying and making durable.
    pub(super) fn note_match(&mut self, from: u64, term: u64, index: u64) {
        let Some(at) = self.view().term_at(index).map(|of| LogPosition::new(of, index)) else { return };
        let journaled = self.config.as_ref().is_none_or(|c| c.write_concern_majority_journal_default);
        let time = self.uncommitted_time(index);
        if self.is_leader()
            && term == self.term()
            && let Some(peer) = self.peers.get_mut(&from)
        {
            let known = &mut peer.in_log;
            known.written = known.written.max(at);
            known.applied = known.applied.max(at);
            if journaled {
                known.durable = known.durable.max(at);
            }
            if let Some(time) = time.filter(|_| peer.term <= term) {
                peer.term = term;
                let kinds = if journaled { 3 } else { 2 };
                let said = &mut peer.reported;
                let places = [&mut said.written, &mut said.applied, &mut said.durable];
                for (place, said) in places.into_iter().zip(&mut said.times).take(kinds) {
                    if *place < at {
                        (*place, *said) = (at, time);
                    }
                }
            }
        }
    }

    /// The cluster time of an entry that is not committed yet, if it is known.
    fn uncommitted_time(&self, index: u64) -> Option<u64> {
        let place = self.times.partition_point(|entry| entry.index < index);
        self.times.get(place).filter(|entry| entry.index == index).map(|entry| entry.time)
    }

    /// Who was not heard of for longer than this many milliseconds is taken to be down.
    pub(super) fn up_timeout(&self) -> u64 {
        let Some(config) = &self.config else { return 0 };
        let millis = |number: i64| number.max(1) as u64;
        (millis(config.settings.heartbeat_timeout_secs) * 1000)
            .min(self.election_timeout())
            .max(2 * millis(config.settings.heartbeat_interval_millis))
    }

    pub(super) fn is_up(&self, peer: &Peer) -> bool {
        !peer.lost && peer.heard_at.is_some_and(|heard| self.now <= heard + self.up_timeout())
    }

    /// Whether another member that has data is heard.
    pub fn hears_data_bearing(&self) -> bool {
        let Some(config) = &self.config else { return false };
        let up = |id: u64| self.peers.get(&id).is_some_and(|peer| self.is_up(peer));
        config
            .members
            .iter()
            .any(|member| !member.arbiter_only && Some(member.id) != self.me && up(member.id))
    }

    /// Sends the heartbeats that are due.
    pub(super) fn send_pings(&mut self) {
        let Some(config) = self.config.clone() else { return };
        let Some(me) = self.me else { return };
        let interval = config.settings.heartbeat_interval_millis.max(1) as u64;
        let now = self.now;
        for member in config.members.iter().filter(|member| member.id != me) {
            let peer = self.peers.entry(member.id).or_default();
            if now >= peer.ping_due {
                peer.ping_due = now + interval;
                peer.pinged_at = now;
                peer.pinged_first.get_or_insert(now);
                let heartbeat = self.heartbeat(self.precise);
                self.send_to(member.id, Body::Ping(heartbeat));
            }
        }
    }

    /// Makes the next heartbeats due at once.
    pub(super) fn hurry_pings(&mut self) {
        for peer in self.peers.values_mut() {
            peer.ping_due = 0;
        }
    }

    pub(super) fn answer_ping(&mut self, host: &Arc<str>, from: u64, to: u64, heartbeat: Heartbeat) {
        let answer = self.heartbeat(heartbeat.sent_at);
        self.note_heartbeat(from, &heartbeat);
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.ping_at = Some(self.now);
        }
        // A member without a configuration answers under the name it was called by.
        self.send(host, from, self.me.unwrap_or(to), Body::Pong(answer));
    }

    pub(super) fn note_pong(&mut self, from: u64, heartbeat: Heartbeat) {
        self.note_heartbeat(from, &heartbeat);
        if let Some(peer) = self.peers.get_mut(&from) {
            let took = self.precise.saturating_sub(heartbeat.sent_at);
            peer.pong_at = Some(self.now);
            // The newest counts for a fifth.
            peer.round_trip = Some(peer.round_trip.map_or(took, |known| (4 * known + took + 2) / 5));
        }
    }

    fn note_heartbeat(&mut self, from: u64, heartbeat: &Heartbeat) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        peer.state = heartbeat.state;
        peer.electable = heartbeat.electable;
        peer.short_of_room = heartbeat.short_of_room;
        peer.little_room = heartbeat.little_room;
        peer.primary = heartbeat.primary;
        peer.commit = heartbeat.commit;
        let incarnation = peer.incarnation;
        if heartbeat.state == MemberState::Removed
            && let Some(config) = self.config.clone()
        {
            // It does not know itself in the configuration by which this member knows it.
            self.send_to(from, Body::Config(config));
        }
        self.note_report(from, incarnation, heartbeat.report);
        if !heartbeat.syncing {
            self.end_snapshot(from, heartbeat.report.positions.written.index);
        }
    }

    /// The primary feeds a member again that does not copy (any more), from where that says that its log ends: raft-rs
    /// would begin before its own log, and offer the next copy to a member that has just taken one.
    fn end_snapshot(&mut self, id: u64, written: u64) {
        let arbiter = self.config.as_ref().and_then(|c| c.member(id)).is_none_or(|m| m.arbiter_only);
        if let Some(raft) = &mut self.raft
            && !arbiter
            && raft.raft.state == raft::StateRole::Leader
        {
            let last = raft.raft.raft_log.last_index();
            if let Some(progress) = raft.raft.mut_prs().get_mut(raft_id(id))
                && progress.state == ProgressState::Snapshot
            {
                // What is said is only where to ask first.
                progress.pending_snapshot = written.min(last);
                progress.become_probe();
            }
        }
    }

    /// Where a member is in this primary's log.
    pub(super) fn positions_of(&self, id: u64) -> Positions {
        if Some(id) == self.me {
            return self.positions;
        }
        self.peers.get(&id).map_or(Positions::default(), |peer| peer.in_log)
    }
}
