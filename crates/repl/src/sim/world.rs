//! The event loop: machines, network, time.

use std::collections::BTreeMap;

use raft::eraftpb::MessageType;

use crate::effect::Effect;
use crate::message::{Body, Envelope};
use crate::rng::{Rng, mix};
use crate::types::{LogPosition, MemberState};

use super::checks::Checker;
use super::clients::Clients;
use super::machine::Machine;
use super::plan::host;
use super::tell;
use super::{Failure, Mutation, Plan, Tally};

/// Something that happens at a time.
pub(super) enum Event {
    Tick { node: usize, incarnation: u64 },
    Deliver { from: usize, to: usize, envelope: Box<Envelope> },
    Write { node: usize, incarnation: u64 },
    Apply { node: usize, incarnation: u64 },
    Synced { node: usize, incarnation: u64, ops: usize, seq: u64 },
    Copied { node: usize, incarnation: u64, source: usize, at_least: LogPosition },
    ConnectionLost { node: usize, incarnation: u64, peer: usize },
    Contest { node: usize, incarnation: u64, peer: usize },
    Client,
    Fault,
    Restart { node: usize },
    Housekeeping,
    Operator,
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
            | Event::ConnectionLost { node, incarnation, .. }
            | Event::Contest { node, incarnation, .. } => Some((*node, Some(*incarnation))),
            Event::Deliver { to, .. } => Some((*to, None)),
            Event::Client | Event::Fault | Event::Restart { .. } | Event::Housekeeping | Event::Operator => {
                None
            }
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
    /// Where in the queue the last message of each way is.
    newest_sent: BTreeMap<(usize, usize), (u64, u64)>,
    pub(super) nodes: Vec<Machine>,
    /// `cut[from][to]`: nothing gets through.
    pub(super) cut: Vec<Vec<bool>>,
    pub(super) calm: bool,
    pub(super) checker: Checker,
    pub(super) clients: Clients,
    pub(super) report: Tally,
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
            newest_sent: BTreeMap::new(),
            nodes: (0..count).map(|number| Machine::new(&host(number))).collect(),
            cut: vec![vec![false; count]; count],
            calm: false,
            checker: Checker::new(),
            clients: Clients::default(),
            report: Tally::default(),
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

    /// Plays until the end of the plan.
    pub fn play(mut self) -> Result<Tally, Failure> {
        self.initiate();
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

    pub(super) fn initiate(&mut self) {
        let config = self.plan.config.clone();
        if let Some(member) = &mut self.nodes[0].member {
            member.tick(0, wall(0));
            member.initiate(config, 0).expect("the plan's configuration is valid");
        }
        self.poll(0);
    }

    /// Plays the next event. Returns false when there is none.
    pub(super) fn advance(&mut self) -> bool {
        let Some(((at, _), event)) = self.queue.pop_first() else { return false };
        self.now = at;
        self.happen(event);
        true
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
            Event::Contest { node, peer, .. } => self.contested(node, peer),
            Event::Client => self.client(),
            Event::Fault => self.fault(),
            Event::Restart { node } => self.start(node),
            Event::Housekeeping => self.housekeeping(),
            Event::Operator => self.look_after_members(),
        }
    }

    fn tick(&mut self, node: usize) {
        let clock = self.now + self.nodes[node].clock_ahead;
        let now = self.wall_of(node);
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
        self.nodes[node].start(seed, &self.plan);
        // Start-up has synced the log and applied all of it.
        for entry in &self.nodes[node].disk.image.entries {
            self.checker.applied(node, entry);
            self.checker.durable(node, entry);
        }
        if self.nodes[node].incarnation > 1 {
            self.report.restarts += 1;
        }
        self.check_start(node);
        let incarnation = self.nodes[node].incarnation;
        let first = self.rng.below(25);
        self.after(first, Event::Tick { node, incarnation });
    }

    /// What a process takes for committed when it starts is what the set has committed.
    fn check_start(&mut self, node: usize) {
        let machine = &self.nodes[node];
        let at = machine.commit;
        let (found, committed) = (machine.disk.image.chain(at.index), self.checker.chain(at.index));
        if found.is_some() && committed.is_some() && found != committed {
            self.check(Err(format!(
                "machine {node} starts with commit point {at:?} on another log's entries"
            )));
        }
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

    /// Performs a member's effects.
    pub(super) fn poll(&mut self, node: usize) {
        let plant = self.mutation == Some(Mutation::CommitOldTermByCount);
        let Some(member) = &mut self.nodes[node].member else { return };
        if plant {
            member.commit_old_terms_by_count();
        }
        let effects = member.poll();
        let incarnation = self.nodes[node].incarnation;
        for effect in effects {
            if self.panics_here(node) {
                break;
            }
            self.perform(node, effect);
            // It may have ended the process.
            if self.nodes[node].member.is_none() || self.nodes[node].incarnation != incarnation {
                return;
            }
        }
        self.check_commit_rule(node);
        if std::mem::take(&mut self.nodes[node].told) {
            self.poll(node);
        }
    }

    /// Whether the process panics before the next effect is performed, which ends it.
    fn panics_here(&mut self, node: usize) -> bool {
        let Some(left) = &mut self.nodes[node].panics_after else { return false };
        if *left > 0 {
            *left -= 1;
            return false;
        }
        self.nodes[node].panics_after = None;
        if self.mutation != Some(Mutation::GoOnAfterPanic) {
            self.report.panics += 1;
            self.crash(node, false);
        }
        true
    }

    /// What a member refuses, none of the others should have sent; but one that is away may miss all whom it knew.
    fn refused(&mut self, node: usize, from: u64, what: String) {
        if what.contains("not in this one's") {
            self.nodes[node].knows_nobody = true;
            self.report.strangers += 1;
            return;
        }
        self.check(Err(format!("machine {node} refuses what member {from} has sent: {what}")));
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
            println!("{:6} {node} {}", self.now, tell::short(&effect));
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
            Effect::Refused { from, what, .. } => self.refused(node, from, what),
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
        let envelope = match self.put_behind(from, to, envelope) {
            Some(envelope) => envelope,
            None => return,
        };
        let (low, high) = self.plan.latency;
        let late = !self.calm && self.rng.percent(self.plan.late);
        let millis = if late { self.rng.between(high, 2000) } else { self.rng.between(low, high) };
        self.after(millis, Event::Deliver { from, to, envelope: Box::new(envelope) });
        self.newest_sent.insert((from, to), (self.now + millis, self.next_event));
    }

    /// The message becomes a part of the last one on this way, if that is still under way and can take it in.
    fn put_behind(&mut self, from: usize, to: usize, envelope: Envelope) -> Option<Envelope> {
        if !self.plan.together || self.rng.percent(50) {
            return Some(envelope);
        }
        match self.newest_sent.get(&(from, to)).and_then(|at| self.queue.get_mut(at)) {
            Some(Event::Deliver { envelope: last, .. }) => last.absorb(envelope),
            _ => Some(envelope),
        }
    }

    fn deliver(&mut self, from: usize, to: usize, envelope: Envelope) {
        let host = self.nodes[from].host.clone();
        if self.mutation == Some(Mutation::VoteTwice) && self.vote_again(from, to, &envelope) {
            return;
        }
        let Some(member) = &mut self.nodes[to].member else { return };
        member.step(&host, envelope);
        self.poll(to);
    }

    /// The planted bug: a grant for whoever asks in the term in which the member may have voted already.
    fn vote_again(&mut self, from: usize, to: usize, envelope: &Envelope) -> bool {
        let Body::Raft(message) = &envelope.body else { return false };
        let Some(member) = &self.nodes[to].member else { return false };
        if message.get_msg_type() != MessageType::MsgRequestVote || message.term != member.term() {
            return false;
        }
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
        true
    }
}

impl World {
    /// What a machine's wall clock shows.
    pub(super) fn wall_of(&self, node: usize) -> u64 {
        wall(self.now).saturating_add_signed(self.nodes[node].wall_wrong)
    }
}

/// Seconds since 1970 of a simulated time.
pub(super) fn wall(now: u64) -> u64 {
    1_700_000_000 + now / 1000
}
