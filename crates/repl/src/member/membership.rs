//! Taking a configuration into use, and what this member is because of it.

use std::sync::Arc;

use raft::eraftpb::{ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState};
use raft::{Config as RaftConfig, RawNode, StateRole};
use slog::{Discard, Logger, o};

use super::elections::{ELECTION_TICKS, HEARTBEAT_TICKS};
use super::ids::{member_id, raft_id};
use super::{Body, Effect, Filling, HardState, Member, MemberRole};
use crate::config::ReplSetConfig;
use crate::types::MemberState;

/// Voters and non-voters as raft-rs wants them.
fn conf_state(config: &ReplSetConfig) -> ConfState {
    let ids = |voting: bool| {
        let members = config.members.iter().filter(move |member| member.is_voter() == voting);
        members.map(|member| raft_id(member.id)).collect::<Vec<u64>>()
    };
    ConfState::from((ids(true), ids(false)))
}

/// What makes `new` of `old`.
fn changes(old: &ConfState, new: &ConfState) -> Vec<ConfChangeSingle> {
    let single = |id: u64, kind: ConfChangeType| {
        let mut change = ConfChangeSingle { node_id: id, ..ConfChangeSingle::default() };
        change.set_change_type(kind);
        change
    };
    let mut changes = Vec::new();
    for id in new.voters.iter().filter(|id| !old.voters.contains(id)) {
        changes.push(single(*id, ConfChangeType::AddNode));
    }
    for id in new.learners.iter().filter(|id| !old.learners.contains(id)) {
        changes.push(single(*id, ConfChangeType::AddLearnerNode));
    }
    let kept = |id: &u64| new.voters.contains(id) || new.learners.contains(id);
    for id in old.voters.iter().chain(old.learners.iter()).filter(|id| !kept(id)) {
        changes.push(single(*id, ConfChangeType::RemoveNode));
    }
    changes
}

impl Member {
    /// Uses this configuration from now on. It is durable already.
    pub(super) fn install_config(&mut self, config: Arc<ReplSetConfig>, me: Option<u64>) {
        let state = conf_state(&config);
        self.peers.retain(|id, _| config.member(*id).is_some());
        for peer in self.peers.values_mut() {
            peer.config_sent = None;
        }
        let member = me.is_none_or(|me| config.member(me).is_some());
        assert!(member, "this member is {me:?}, which is not in the configuration that it installs");
        self.config = Some(config.clone());
        self.me = me;
        self.commit_at_install =
            self.raft.as_ref().map_or(self.commit.index, |raft| raft.raft.raft_log.committed);
        match (me, self.raft.is_some()) {
            (None, true) => self.park(),
            (None, false) => {}
            (Some(_), false) => self.unpark_due = true,
            (Some(me), true) => self.change_conf_state(me, &state),
        }
        self.unpark_when_due();
        self.config_changed = true;
        self.park_arbiters();
        self.hurry_pings();
        self.tell_config();
        self.config_installed();
    }

    /// Sends the configuration to all who may not have it.
    fn tell_config(&mut self) {
        let Some(config) = self.config.clone() else { return };
        let ours = config.config_version();
        let behind = |id: u64| {
            self.peers.get(&id).and_then(|peer| peer.config).is_none_or(|theirs| ours.newer_than(theirs))
        };
        let to: Vec<u64> = config.members.iter().map(|m| m.id).filter(|id| behind(*id)).collect();
        for id in to {
            self.send_to(id, Body::Config(config.clone()));
        }
    }

    /// Joins the consensus group.
    pub(super) fn unpark_when_due(&mut self) {
        let (Some(config), Some(me)) = (self.config.clone(), self.me) else { return };
        if !self.unpark_due || !self.pending.is_empty() {
            return;
        }
        self.unpark_due = false;
        let (mut log, hard_state) = self.parked.take().expect("who is to join has a parked log");
        let state = conf_state(&config);
        log.hard_state.term = hard_state.term;
        log.hard_state.vote = hard_state.vote.map_or(0, raft_id);
        log.hard_state.commit = hard_state.commit;
        log.conf_state = state;
        let config = RaftConfig {
            id: raft_id(me),
            election_tick: ELECTION_TICKS,
            heartbeat_tick: HEARTBEAT_TICKS,
            // Its own election timer never runs out: it draws from a generator that cannot be seeded, and
            // knows nothing of priorities.
            min_election_tick: usize::MAX / 2,
            max_election_tick: usize::MAX / 2 + 1,
            applied: hard_state.commit,
            max_size_per_msg: self.options.message_bytes_max,
            max_inflight_msgs: self.options.messages_in_flight_max,
            check_quorum: true,
            pre_vote: true,
            batch_append: true,
            ..RaftConfig::default()
        };
        let logger = Logger::root(Discard, o!());
        let raft = RawNode::new(&config, log, &logger).expect("the log and the configuration are consistent");
        self.raft = Some(raft);
        self.put_off_election();
        self.ask_early();
    }

    /// Leaves the consensus group, keeping log and term.
    fn park(&mut self) {
        let mut raft = self.raft.take().expect("who leaves the group is in it");
        let leader = raft.raft.state == StateRole::Leader;
        // As the disk has it or will: a newer term or vote has not been told to anybody yet.
        let kept = &raft.store().hard_state;
        let commit = raft.raft.raft_log.committed.min(raft.store().last().index);
        let hard_state = HardState { term: kept.term, vote: member_id(kept.vote), commit };
        self.parked = Some((std::mem::take(raft.mut_store()), hard_state));
        self.unpark_due = false;
        for pending in &mut self.pending {
            pending.ready = None;
            pending.messages.clear();
        }
        if leader {
            self.lost_lead();
        }
    }

    fn change_conf_state(&mut self, me: u64, state: &ConfState) {
        let raft = self.raft.as_mut().expect("who changes places is in the group");
        if raft.raft.id != raft_id(me) {
            // The member was given another `_id`, which only a forced reconfiguration can do.
            self.run_ready();
            self.park();
            self.unpark_due = true;
            return;
        }
        let changes = changes(&raft.raft.prs().conf().to_conf_state(), state);
        if changes.is_empty() {
            return;
        }
        if raft.raft.state == StateRole::Leader && !state.voters.contains(&raft_id(me)) {
            let term = raft.raft.term;
            raft.raft.become_follower(term, raft::INVALID_ID);
        }
        let mut change = ConfChangeV2::default();
        change.set_transition(ConfChangeTransition::Explicit);
        change.set_changes(changes.into());
        // In two steps without anything in between: raft-rs makes larger changes in no other way.
        raft.apply_conf_change(&change).expect("a checked configuration has voters");
        let now = raft.apply_conf_change(&ConfChangeV2::default()).expect("the change is under way");
        assert_eq!(raft.raft.prs().conf().voters().ids().len(), state.voters.len(), "voters of {now:?}");
        raft.mut_store().conf_state = now;
        self.after_step();
    }

    /// What this member is.
    pub(super) fn state(&self) -> MemberState {
        let Some(config) = &self.config else { return MemberState::Startup };
        let Some(me) = self.me.and_then(|me| config.member(me)) else { return MemberState::Removed };
        if me.arbiter_only {
            MemberState::Arbiter
        } else if self.is_primary() {
            MemberState::Primary
        } else if self.syncing
            || self.filling.is_some()
            || self.view().last().index == 0
            || self.pending.iter().any(|p| p.install)
        {
            MemberState::Startup2
        } else if self.pending.iter().any(|pending| pending.rollback && pending.seq > self.applied_seq) {
            MemberState::Rollback
        } else if self.maintenance > 0 {
            MemberState::Recovering
        } else {
            MemberState::Secondary
        }
    }

    /// Who has come as far as its set was when it began, or leads it, may be read from now on.
    pub(super) fn end_filling(&mut self) {
        let done = match self.filling {
            Some(Filling::To(index)) => self.positions.applied.index >= index,
            // A copy is of a moment after that.
            Some(Filling::Unknown) => {
                let start = self.view().bounds().start.index;
                start > 0 && self.positions.applied.index >= start
            }
            None => false,
        };
        if done || self.is_leader() {
            self.filling = None;
        }
    }

    /// `_id` of the member that leads, if one is known.
    pub(super) fn leader(&self) -> Option<u64> {
        self.raft.as_ref().and_then(|raft| member_id(raft.raft.leader_id))
    }

    /// `_id` of the primary, if one is known. A stand-in is none.
    pub(super) fn primary(&self) -> Option<u64> {
        let leader = self.leader()?;
        self.config.as_ref()?.member(leader).filter(|member| member.priority > 0.0)?;
        Some(leader)
    }

    /// Says so when this member's role, the primary it knows, or the configuration has changed.
    pub(super) fn refresh_role(&mut self) {
        let role = MemberRole {
            state: self.state(),
            term: self.term(),
            primary: self.primary(),
            writable: self.is_writable(),
            topology_version: self.role.topology_version,
        };
        self.elections.last_primary = role.primary.or(self.elections.last_primary);
        let config_changed = std::mem::take(&mut self.config_changed);
        if config_changed || role != self.role {
            let seen = |role: &MemberRole| (role.state, role.primary, role.writable);
            if config_changed || seen(&role) != seen(&self.role) {
                self.role = MemberRole { topology_version: role.topology_version + 1, ..role };
                self.hurry_pings();
            } else {
                self.role = role;
            }
            self.out.push(Effect::Role(self.role));
        }
    }

    /// `replSetMaintenance`: a secondary that is not to be read nor elected, until it was turned off as often as on.
    pub fn set_maintenance(&mut self, on: bool) -> sheaf_errors::Result<()> {
        if on && self.is_leader() {
            return Err(sheaf_errors::Error::new(
                sheaf_errors::Code::NOT_SECONDARY,
                "primaries can't modify maintenance mode",
            ));
        }
        self.maintenance = match (on, self.maintenance) {
            (true, count) => count + 1,
            (false, 0) => {
                let text = "already out of maintenance mode";
                return Err(sheaf_errors::Error::new(sheaf_errors::Code::OPERATION_FAILED, text));
            }
            (false, count) => count - 1,
        };
        Ok(())
    }
}
