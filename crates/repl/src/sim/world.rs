//! The event loop: machines, network, time.

use std::collections::BTreeMap;

use raft::eraftpb::MessageType;

use crate::effect::{Effect, Persist};
use crate::message::{Body, Envelope};
use crate::rng::{Rng, mix};
use crate::types::{MemberState, OpTime};

use super::checks::Checker;
use super::clients::Clients;
use super::node::Node;
use super::plan::host;
use super::{Failure, Mutation, Plan, Report};

/// Something that happens at a time.
pub(super) enum Event {
    Tick { node: usize, incarnation: u64 },
    Deliver { from: usize, to: usize, envelope: Box<Envelope> },
    Write { node: usize, incarnation: u64 },
    Apply { node: usize, incarnation: u64 },
    Synced { node: usize, incarnation: u64, ops: usize, seq: u64 },
    Copied { node: usize, incarnation: u64, source: usize, at_least: OpTime },
    ConnectionLost { node: usize, incarnation: u64, peer: usize },
    Client,
    Fault,
    Restart { node: usize },
    Housekeeping,
}

impl Event {
    /// The machine whose process must be awake for it, and the start it belongs to.
    fn process(&self) -> Option<(usize, Option<u64>)> {
        match self {
            Event::Tick { node, incarnation }
            | Event::Write { node, incarnation }
            | Event::Apply { node, incarnation }
            | Event::Synced { node, incarnation, .. }
            | Event::Copied { node, incarnation, .. }
            | Event::ConnectionLost { node, incarnation, .. } => Some((*node, Some(*incarnation))),
            Event::Deliver { to, .. } => Some((*to, None)),
            Event::Client | Event::Fault | Event::Restart { .. } | Event::Housekeeping => None,
        }
    }
}

/// Everything.
pub struct World {
    pub(super) plan: Plan,
    pub(super) mutation: Option<Mutation>,
    pub(super) rng: Rng,
    pub(super) now: u64,
    queue: BTreeMap<(u64, u64), Event>,
    next_event: u64,
    pub(super) nodes: Vec<Node>,
    /// `cut[from][to]`: nothing gets through.
    pub(super) cut: Vec<Vec<bool>>,
    pub(super) calm: bool,
    pub(super) checker: Checker,
    pub(super) clients: Clients,
    pub(super) report: Report,
    pub(super) failure: Option<String>,
    /// From when on effects are printed.
    pub(super) tell_from: Option<u64>,
    /// `_id` for the next member that is added.
    pub(super) next_id: u64,
}

type Check = Result<(), String>;

impl World {
    /// The world of a plan, before anything has happened.
    pub fn new(plan: Plan, mutation: Option<Mutation>) -> Self {
        let count = plan.config.members.len() + plan.spares;
        let mut world = World {
            rng: Rng::new(plan.seed ^ 0x0077_6f72_6c64),
            mutation,
            now: 0,
            queue: BTreeMap::new(),
            next_event: 0,
            nodes: (0..count).map(|number| Node::new(&host(number))).collect(),
            cut: vec![vec![false; count]; count],
            calm: false,
            checker: Checker::new(),
            clients: Clients::default(),
            report: Report::default(),
            failure: None,
            tell_from: None,
            next_id: plan.config.members.len() as u64,
            plan,
        };
        for node in 0..count {
            world.start(node);
        }
        world
    }

    /// Prints every effect from this time on, and the members at the end.
    pub fn tell(mut self, from: u64) -> Self {
        self.tell_from = Some(from);
        self
    }

    fn tell_members(&self) {
        for (number, node) in self.nodes.iter().enumerate() {
            let Some(member) = &node.member else {
                println!("{number}: down");
                continue;
            };
            let (role, log) = (member.role(), node.disk.image.last());
            println!(
                "{number}: {:?} id {:?} term {} primary {:?} writable {} electable {} log {:?}..{log:?} commit {:?} \
                 config {:?} to write {} to apply {}",
                role.state,
                member.id(),
                member.term(),
                role.primary,
                member.is_writable(),
                member.is_electable(),
                node.disk.image.start,
                member.commit_point(),
                member.config().map(|config| config.config_version()),
                node.to_write.len(),
                node.to_apply.len(),
            );
            for of in member.config().map_or(&[][..], |config| &config.members) {
                println!(
                    "     {} {} votes {} priority {} arbiter {} new {} delay {}",
                    of.id,
                    of.host,
                    of.votes,
                    of.priority,
                    of.arbiter_only,
                    of.newly_added,
                    of.secondary_delay_secs
                );
            }
        }
    }

    /// Plays until the end of the plan.
    pub fn play(mut self) -> Result<Report, Failure> {
        let config = self.plan.config.clone();
        if let Some(member) = &mut self.nodes[0].member {
            member.tick(0, wall(0));
            member.initiate(config, 0).expect("the plan's configuration is valid");
        }
        self.poll(0);
        self.after(50, Event::Client);
        self.after(1000, Event::Fault);
        self.after(100, Event::Housekeeping);
        let end = self.plan.faults_millis + self.plan.calm_millis;
        while self.failure.is_none() {
            let Some(((at, _), event)) = self.queue.pop_first() else { break };
            self.now = at;
            if !self.calm && self.now >= self.plan.faults_millis {
                self.begin_calm();
            }
            if self.now >= end {
                self.failure =
                    Some(format!("no rest after the faults: {}", self.unrest().unwrap_or_default()));
                break;
            }
            if self.calm && self.now.is_multiple_of(10) && self.clients.done() && self.unrest().is_none() {
                break;
            }
            self.happen(event);
        }
        if self.tell_from.is_some() {
            self.tell_members();
        }
        let failure = self.failure.take().or_else(|| self.checker.finish().err());
        self.report.committed = self.checker.committed();
        self.report.primaries = self.checker.primaries();
        self.report.acknowledged = self.checker.acknowledged;
        match failure {
            Some(what) => Err(Failure { seed: self.plan.seed, at: self.now, what }),
            None => Ok(self.report),
        }
    }

    pub(super) fn after(&mut self, millis: u64, event: Event) {
        self.next_event += 1;
        self.queue.insert((self.now + millis, self.next_event), event);
    }

    /// Adds to the hash of all that has happened.
    pub(super) fn trace(&mut self, what: u64) {
        self.report.trace = mix(self.report.trace ^ mix(what ^ (self.now << 20)));
    }

    pub(super) fn check(&mut self, check: Check) {
        if let Err(what) = check {
            self.failure.get_or_insert(what);
        }
    }

    fn happen(&mut self, event: Event) {
        self.report.events += 1;
        if let Some((node, incarnation)) = event.process() {
            let machine = &self.nodes[node];
            let gone = machine.member.is_none() || incarnation.is_some_and(|of| of != machine.incarnation);
            if gone {
                return;
            }
            if machine.paused_until > self.now {
                let wait = machine.paused_until - self.now;
                self.after(wait, event);
                return;
            }
        }
        match event {
            Event::Tick { node, .. } => self.tick(node),
            Event::Deliver { from, to, envelope } => self.deliver(from, to, *envelope),
            Event::Write { node, .. } => self.write(node),
            Event::Apply { node, .. } => self.apply(node),
            Event::Synced { node, ops, seq, .. } => self.synced(node, ops, seq),
            Event::Copied { node, source, at_least, .. } => self.copied(node, source, at_least),
            Event::ConnectionLost { node, peer, .. } => self.connection_lost(node, peer),
            Event::Client => self.client(),
            Event::Fault => self.fault(),
            Event::Restart { node } => self.start(node),
            Event::Housekeeping => self.housekeeping(),
        }
    }

    fn tick(&mut self, node: usize) {
        let clock = self.now + self.nodes[node].clock_ahead;
        let now = wall(self.now);
        let Some(member) = &mut self.nodes[node].member else { return };
        member.tick(clock, now);
        let gap = member.tick_millis();
        let incarnation = self.nodes[node].incarnation;
        self.poll(node);
        self.after(gap, Event::Tick { node, incarnation });
    }

    pub(super) fn start(&mut self, node: usize) {
        if self.nodes[node].member.is_some() {
            return;
        }
        let seed = mix(self.plan.seed ^ node as u64);
        self.nodes[node].start(seed, self.plan.cache_bytes);
        // Start-up has synced the log and applied all of it.
        for entry in &self.nodes[node].disk.image.entries {
            self.checker.applied(node, entry);
            self.checker.durable(node, entry);
        }
        if self.nodes[node].incarnation > 1 {
            self.report.restarts += 1;
        }
        let incarnation = self.nodes[node].incarnation;
        let first = self.rng.below(25);
        self.after(first, Event::Tick { node, incarnation });
    }

    pub(super) fn connection_lost(&mut self, node: usize, peer: usize) {
        let host = self.nodes[peer].host.clone();
        let Some(member) = &mut self.nodes[node].member else { return };
        let id = member.config().and_then(|config| config.member_at(&host)).map(|member| member.id);
        if let Some(id) = id {
            member.connection_lost(id);
            self.poll(node);
        }
    }

    /// Carries out what a member wants.
    pub(super) fn poll(&mut self, node: usize) {
        let plant = self.mutation == Some(Mutation::CommitOldTermByCount);
        let Some(member) = &mut self.nodes[node].member else { return };
        if plant {
            member.commit_old_terms_by_count();
        }
        for effect in member.poll() {
            self.perform(node, effect);
        }
        self.check_commit_rule(node);
    }

    /// A primary's commit point only ever moves to entries of its own term.
    fn check_commit_rule(&mut self, node: usize) {
        let Some((begin, committed)) = self.nodes[node].member.as_ref().and_then(|m| m.leading_commit())
        else {
            self.nodes[node].committed_at_election = None;
            return;
        };
        match self.nodes[node].committed_at_election {
            Some((of, before)) if of == begin && committed > before && committed < begin => {
                self.check(Err(format!(
                    "machine {node} commits {committed} by count; its term begins at {begin}"
                )));
            }
            Some((of, _)) if of == begin => {}
            _ => self.nodes[node].committed_at_election = Some((begin, committed)),
        }
    }

    fn perform(&mut self, node: usize, effect: Effect) {
        if self.tell_from.is_some_and(|from| self.now >= from) {
            println!("{:6} {node} {}", self.now, short(&effect));
        }
        match effect {
            Effect::Send { host, envelope } => self.send(node, &host, envelope),
            Effect::Persist(persist) => self.persist(node, persist),
            Effect::CommitPoint(at) => self.commit_point(node, at),
            Effect::Role(role) => {
                self.trace(role.term << 8 ^ role.state as u64);
                self.nodes[node].primary = role.state == MemberState::Primary;
                if role.state == MemberState::Primary {
                    let check = self.checker.primary(role.term, node);
                    self.check(check);
                }
            }
            Effect::Resolved { waiter, outcome } => self.resolved(node, waiter, outcome),
            Effect::Fetch { token, low, high, bytes_max } => self.fetch(node, token, low, high, bytes_max),
            Effect::InitialSync { source, at_least } => self.initial_sync(node, source, at_least),
            Effect::SteppedDown(result) => self.report.step_downs += u64::from(result.is_ok()),
            Effect::Reconfigured(result) => self.report.reconfigs += u64::from(result.is_ok()),
        }
    }

    // The network.

    pub(super) fn node_at(&self, host: &str) -> Option<usize> {
        self.nodes.iter().position(|node| &*node.host == host)
    }

    fn send(&mut self, from: usize, host: &str, envelope: Envelope) {
        let Some(to) = self.node_at(host) else { return };
        let kind = match &envelope.body {
            Body::Raft(message) => message.get_msg_type() as u64,
            Body::Progress(_) => 100,
            Body::Ping(_) => 101,
            Body::Pong(_) => 102,
            Body::Config(_) => 103,
        };
        self.trace((from as u64) << 16 ^ (to as u64) << 8 ^ kind);
        let envelope = if self.plan.encode {
            match Envelope::decode(&envelope.encode().into()) {
                Ok(decoded) if decoded == envelope => decoded,
                other => {
                    self.check(Err(format!("{envelope:?} does not survive its bytes: {other:?}")));
                    return;
                }
            }
        } else {
            envelope
        };
        if !self.calm {
            if self.cut[from][to] || self.rng.percent(self.plan.loss) {
                return;
            }
            if self.rng.percent(self.plan.doubled) {
                self.send_once(from, to, envelope.clone());
            }
        }
        self.send_once(from, to, envelope);
    }

    fn send_once(&mut self, from: usize, to: usize, envelope: Envelope) {
        let (low, high) = self.plan.latency;
        let late = !self.calm && self.rng.percent(self.plan.late);
        let millis = if late { self.rng.between(high, 2000) } else { self.rng.between(low, high) };
        self.after(millis, Event::Deliver { from, to, envelope: Box::new(envelope) });
    }

    fn deliver(&mut self, from: usize, to: usize, envelope: Envelope) {
        let host = self.nodes[from].host.clone();
        if self.mutation == Some(Mutation::VoteTwice) {
            self.vote_again(from, to, &envelope);
        }
        let Some(member) = &mut self.nodes[to].member else { return };
        member.step(&host, envelope);
        self.poll(to);
    }

    /// The planted bug: a grant for whoever asks in the term in which the member may have voted already.
    fn vote_again(&mut self, from: usize, to: usize, envelope: &Envelope) {
        let Body::Raft(message) = &envelope.body else { return };
        let Some(member) = &self.nodes[to].member else { return };
        if message.get_msg_type() == MessageType::MsgRequestVote && message.term == member.term() {
            let mut grant = raft::eraftpb::Message::default();
            grant.set_msg_type(MessageType::MsgRequestVoteResponse);
            grant.from = message.to;
            grant.to = message.from;
            grant.term = message.term;
            let answer = Envelope {
                from: envelope.to,
                to: envelope.from,
                config: envelope.config,
                incarnation: self.nodes[to].incarnation,
                body: Body::Raft(Box::new(grant)),
            };
            self.send_once(to, from, answer);
        }
    }

    // The disk.

    fn persist(&mut self, node: usize, persist: Persist) {
        self.trace(
            persist.seq << 24 ^ (persist.entries.len() as u64) << 4 ^ u64::from(persist.rollback.is_some()),
        );
        self.nodes[node].to_write.push_back(persist);
        if self.nodes[node].to_write.len() == 1 {
            self.schedule_write(node);
        }
    }

    fn schedule_write(&mut self, node: usize) {
        let incarnation = self.nodes[node].incarnation;
        let full = self.nodes[node].disk_full_until.saturating_sub(self.now);
        let millis = full + 1 + self.rng.below(self.plan.disk_millis.0);
        self.after(millis, Event::Write { node, incarnation });
    }

    fn write(&mut self, node: usize) {
        if self.nodes[node].disk_full_until > self.now {
            self.schedule_write(node);
            return;
        }
        // The log is only cut when all of it has been applied.
        let cuts = |persist: &Persist| persist.rollback.is_some() || persist.install.is_some();
        if !self.nodes[node].to_apply.is_empty() && self.nodes[node].to_write.front().is_some_and(cuts) {
            self.schedule_write(node);
            return;
        }
        let Some(persist) = self.nodes[node].to_write.pop_front() else { return };
        let seq = persist.seq;
        self.check_rollback(node, &persist);
        let lost = self.nodes[node].disk.write(&persist);
        for entry in &lost {
            let check = self.checker.rolled_back(node, entry);
            self.check(check);
        }
        self.report.rolled_back += lost.len() as u64;
        self.report.rollbacks += u64::from(persist.rollback.is_some());
        if let Some(at) = persist.install {
            self.check_installed(node, at);
        }
        self.nodes[node].written_seq = seq;
        let incarnation = self.nodes[node].incarnation;
        self.nodes[node].to_apply.push_back(persist);
        if self.nodes[node].to_apply.len() == 1 {
            let millis = self.rng.below(self.plan.disk_millis.1 + 1);
            self.after(millis, Event::Apply { node, incarnation });
        }
        if !self.nodes[node].to_write.is_empty() {
            self.schedule_write(node);
        }
        self.schedule_sync(node);
        let too_early = self.mutation == Some(Mutation::AcknowledgeBeforePersisting);
        if let Some(member) = &mut self.nodes[node].member {
            member.written(seq);
            if too_early {
                member.durable(seq);
            }
        }
        self.poll(node);
    }

    /// What is to be taken back is exactly the end of the log, and none of it committed.
    fn check_rollback(&mut self, node: usize, persist: &Persist) {
        let Some(rollback) = persist.rollback else { return };
        let machine = &self.nodes[node];
        let log = &machine.disk.image;
        let kept = log.entry(rollback.keep.index).map_or(log.start, |entry| entry.at);
        let check = if log.last() != rollback.last || kept != rollback.keep {
            Err(format!("machine {node} shall roll back {rollback:?}, its log ends at {:?}", log.last()))
        } else if rollback.keep.index < machine.commit.index {
            Err(format!("machine {node} rolls back to {:?}, behind {:?}", rollback.keep, machine.commit))
        } else {
            Ok(())
        };
        self.check(check);
    }

    fn check_installed(&mut self, node: usize, at: OpTime) {
        let chain = self.nodes[node].disk.flushed.chain;
        if self.checker.chain(at.index) != Some(chain) {
            self.check(Err(format!(
                "machine {node} has a copy as of {at:?} that is not the committed state"
            )));
        }
        self.checker.holds_all(node, at.index);
    }

    fn schedule_sync(&mut self, node: usize) {
        let machine = &mut self.nodes[node];
        if machine.syncing || machine.disk_full_until > self.now {
            return;
        }
        machine.syncing = true;
        let (ops, seq, incarnation) = (machine.disk.unsynced(), machine.written_seq, machine.incarnation);
        let millis = 1 + self.rng.below(self.plan.disk_millis.2);
        self.after(millis, Event::Synced { node, incarnation, ops, seq });
    }

    fn synced(&mut self, node: usize, ops: usize, seq: u64) {
        let machine = &mut self.nodes[node];
        machine.syncing = false;
        for entry in machine.disk.sync(ops) {
            self.checker.durable(node, &entry);
        }
        let more = machine.written_seq > seq;
        if let Some(member) = &mut machine.member {
            member.durable(seq);
        }
        if more {
            self.schedule_sync(node);
        }
        self.poll(node);
    }

    fn apply(&mut self, node: usize) {
        let Some(mut persist) = self.nodes[node].to_apply.pop_front() else { return };
        if !self.nodes[node].to_apply.is_empty() {
            let millis = self.rng.below(self.plan.disk_millis.1 + 1);
            let incarnation = self.nodes[node].incarnation;
            self.after(millis, Event::Apply { node, incarnation });
        }
        let skip = self.mutation == Some(Mutation::SkipRollback);
        let machine = &mut self.nodes[node];
        if persist.install.is_some() {
            machine.model = machine.disk.flushed.clone();
        }
        if let Some(rollback) = persist.rollback
            && !skip
        {
            machine.model = machine.disk.model_before(rollback.keep.index, &machine.model);
        }
        if self.mutation == Some(Mutation::ApplyOutOfOrder) && persist.entries.len() > 1 {
            persist.entries.reverse();
        }
        for entry in &persist.entries {
            machine.model.apply(entry);
            self.checker.applied(node, entry);
        }
        let seq = persist.seq;
        self.check_applied(node, &persist);
        if let Some(member) = &mut self.nodes[node].member {
            member.applied(seq);
        }
        self.poll(node);
    }

    /// The state is that of the log.
    fn check_applied(&mut self, node: usize, persist: &Persist) {
        let machine = &self.nodes[node];
        let Some(last) = persist.entries.iter().map(|entry| entry.at).max() else { return };
        if machine.disk.image.chain(last.index) != Some(machine.model.chain) {
            self.check(Err(format!("machine {node} has applied something else than its log up to {last:?}")));
        }
    }

    fn commit_point(&mut self, node: usize, at: OpTime) {
        self.trace(at.index << 8 ^ 7);
        let from = self.nodes[node].commit.index.max(self.nodes[node].disk.image.start.index);
        for index in from + 1..=at.index {
            let check = match self.nodes[node].disk.image.entry(index) {
                Some(entry) => {
                    let entry = entry.clone();
                    self.checker.commit(node, &entry)
                }
                None => Err(format!("machine {node} commits {index}, which its log does not have")),
            };
            self.check(check);
        }
        let machine = &self.nodes[node];
        let applied = machine.model.at;
        let entry_time = machine.disk.image.entry(at.index).map(|entry| entry.time);
        let told = machine.member.as_ref().map(|member| member.commit_time());
        if applied.index < at.index {
            self.check(Err(format!("machine {node} commits {at:?}, having applied {applied:?}")));
        }
        if entry_time.is_some() && entry_time != told {
            self.check(Err(format!("machine {node} commits {at:?} of {entry_time:?} as of {told:?}")));
        }
        self.nodes[node].commit = at;
    }

    fn fetch(&mut self, node: usize, token: u64, low: u64, high: u64, bytes_max: u64) {
        self.report.fetches += 1;
        let log = &self.nodes[node].disk.image;
        let mut bytes = 0;
        let mut entries = Vec::new();
        for entry in (low..high).map_while(|index| log.entry(index)) {
            bytes += entry.payload.len() as u64 + 40;
            if !entries.is_empty() && bytes > bytes_max {
                break;
            }
            entries.push(entry.clone());
        }
        if let Some(member) = &mut self.nodes[node].member {
            member.fetched(token, entries);
        }
        self.poll(node);
    }

    // Copies of the data.

    fn initial_sync(&mut self, node: usize, source: u64, at_least: OpTime) {
        let config = self.nodes[node].member.as_ref().and_then(|member| member.config().cloned());
        let host = config.and_then(|config| config.member(source).map(|member| member.host.clone()));
        let incarnation = self.nodes[node].incarnation;
        let millis = self.rng.between(5, 200);
        // Without a source the copy fails, after a while.
        let source = host.and_then(|host| self.node_at(&host)).unwrap_or(node);
        self.after(millis, Event::Copied { node, incarnation, source, at_least });
    }

    fn copied(&mut self, node: usize, source: usize, at_least: OpTime) {
        let cut = self.cut[source][node] && !self.calm;
        let from = &self.nodes[source];
        let at = from.member.as_ref().map(|member| member.commit_point());
        let fresh = at.filter(|at| at.index >= at_least.index && source != node && !cut);
        let fresh = fresh.filter(|at| at.index >= from.disk.flushed.at.index);
        let copy = fresh.map(|at| from.disk.model_at(at.index));
        let machine = &mut self.nodes[node];
        let Some(member) = &mut machine.member else { return };
        match copy {
            Some(model) => {
                let (at, time) = (model.at, model.time);
                self.report.initial_syncs += 1;
                machine.disk.incoming = Some(model);
                member.initial_sync_finished(at, time);
            }
            None => member.initial_sync_failed(),
        }
        self.poll(node);
    }

    // The rest.

    /// Flushes and cuts logs off at the front.
    fn housekeeping(&mut self) {
        let gap = self.rng.between(50, 300);
        self.after(gap, Event::Housekeeping);
        let node = self.rng.below(self.nodes.len() as u64) as usize;
        let short = self.rng.percent(50);
        let machine = &mut self.nodes[node];
        let Some(member) = &mut machine.member else { return };
        let busy = machine
            .to_write
            .iter()
            .chain(&machine.to_apply)
            .any(|p| p.rollback.is_some() || p.install.is_some());
        if machine.paused_until > self.now || busy {
            return;
        }
        let synced = member.positions().durable.index;
        let upto = member.commit_point().index.min(synced).min(machine.disk.image.last().index);
        if upto < machine.disk.image.start.index {
            return;
        }
        machine.disk.flush(upto);
        let keep = if short { 5 } else { 100 };
        let cut = machine.disk.flushed.at.index.saturating_sub(keep).min(synced);
        if cut > machine.disk.image.start.index && cut > machine.disk.synced.start.index {
            machine.disk.compact(cut);
            member.compacted(cut);
        }
    }

    /// Why the set is not at rest, if it is not.
    pub(super) fn unrest(&self) -> Option<String> {
        let writable = |node: &&Node| node.member.as_ref().is_some_and(|member| member.is_writable());
        let primaries: Vec<&Node> = self.nodes.iter().filter(writable).collect();
        let [primary] = primaries[..] else {
            return Some(format!("{} members take writes", primaries.len()));
        };
        let leader = primary.member.as_ref()?;
        let config = leader.config()?;
        if config.members.iter().any(|member| member.newly_added) || !leader.config_committed() {
            return Some(format!("the configuration is not settled: {config:?}"));
        }
        let highest = config.members.iter().map(|member| member.priority).fold(0.0, f64::max);
        if config.member_at(&primary.host).is_some_and(|member| member.priority < highest) {
            return Some(format!("{} is primary, but another has a higher priority", primary.host));
        }
        let last = primary.disk.image.last();
        for of in &config.members {
            let node = &self.nodes[self.node_at(&of.host)?];
            let Some(member) = &node.member else { return Some(format!("{} is down", of.host)) };
            if member.config().is_none_or(|theirs| theirs.config_version() != config.config_version()) {
                return Some(format!("{} has another configuration", of.host));
            }
            if of.arbiter_only {
                if !node.disk.image.entries.is_empty() {
                    return Some(format!("the arbiter {} holds data", of.host));
                }
                continue;
            }
            let settled = node.disk.image.last() == last
                && member.commit_point() == last
                && node.model.at == last
                && node.to_write.is_empty();
            if !settled {
                let (log, commit) = (node.disk.image.last(), member.commit_point());
                return Some(format!("{} is at {log:?}, commit point {commit:?}, not {last:?}", of.host));
            }
            if node.model.chain != primary.model.chain || node.model != primary.model {
                return Some(format!("{} differs from the primary", of.host));
            }
        }
        None
    }
}

/// An effect in one line.
fn short(effect: &Effect) -> String {
    match effect {
        Effect::Send { envelope, host } => {
            let (term, version) = (envelope.config.term, envelope.config.version);
            let what = match &envelope.body {
                Body::Raft(m) => format!(
                    "{:?} t{} index {} log term {} entries {} commit {} reject {} {}",
                    m.msg_type,
                    m.term,
                    m.index,
                    m.log_term,
                    m.entries.len(),
                    m.commit,
                    m.reject,
                    m.reject_hint
                ),
                Body::Progress(report) => format!("progress {}", report.positions.durable.index),
                Body::Ping(heartbeat) => format!("ping as {:?}", heartbeat.state),
                Body::Pong(heartbeat) => format!("pong as {:?}", heartbeat.state),
                Body::Config(config) => format!("config {:?}", config.config_version()),
            };
            format!("{}->{} {host} config {term}/{version}: {what}", envelope.from, envelope.to)
        }
        Effect::Persist(persist) => format!(
            "persist {} {:?} entries {:?} rollback {:?} install {:?} config {:?}",
            persist.seq,
            persist.hard_state,
            persist.entries.iter().map(|entry| (entry.at.term, entry.at.index)).collect::<Vec<_>>(),
            persist.rollback,
            persist.install,
            persist.config.as_ref().map(|(config, me)| (config.config_version(), *me)),
        ),
        other => format!("{other:?}"),
    }
}

/// Seconds since 1970 of a simulated time.
pub(super) fn wall(now: u64) -> u64 {
    1_700_000_000 + now / 1000
}

impl Checker {
    /// A machine has got everything up to `index` by a copy.
    fn holds_all(&mut self, node: usize, index: u64) {
        let writes: Vec<u64> =
            self.writes.iter().filter(|(_, write)| write.at.index <= index).map(|(uid, _)| *uid).collect();
        for uid in writes {
            self.mark(node, uid);
        }
    }
}
