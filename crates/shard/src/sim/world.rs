//! The event loop: processes, network, time.

use std::collections::BTreeMap;

use sheaf_repl::config::{MemberConfig, ReplSetConfig};
use sheaf_repl::rng::{Rng, mix};

use super::client::Client;
use super::judge::Judge;
use super::message::{Address, Call, Message};
use super::node::Node;
use super::router::Router;
use super::store::Payload;
use super::{Failure, Mutation, Plan, Tally};

/// Something that happens at a time.
pub(super) enum Event {
    Deliver { from: Address, to: Address, message: Message },
    Tick { node: usize, incarnation: u64 },
    Write { node: usize, incarnation: u64 },
    Apply { node: usize, incarnation: u64 },
    Synced { node: usize, incarnation: u64, ops: usize, seq: u64 },
    SyncDue { node: usize, incarnation: u64 },
    ConnectionLost { node: usize, incarnation: u64, peer: u64 },
    Restart { node: usize },
    RouterTick { router: usize, incarnation: u64 },
    RouterRestart { router: usize },
    Think { client: usize },
    Timeout { client: usize, number: u64 },
    Fault,
    WantMove,
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
    pub(super) routers: Vec<Router>,
    pub(super) clients: Vec<Client>,
    /// Members that no other member of their set reaches; routers still do.
    pub(super) cut: Vec<bool>,
    pub(super) calm: bool,
    pub(super) payloads: Vec<Payload>,
    pub(super) judge: Judge,
    pub(super) next_call: u64,
    pub(super) next_writer: u64,
    pub(super) tally: Tally,
    pub(super) failure: Option<String>,
    /// From when on messages are printed.
    pub(super) tell_from: Option<u64>,
}

/// Microseconds since 1970 when a run begins.
const BEGIN_MICROS: u64 = 1_700_000_000_000_000;

impl World {
    /// The world of a plan, before anything has happened.
    pub fn new(plan: Plan, mutation: Option<Mutation>) -> Self {
        let mut rng = Rng::new(plan.seed ^ 0x0077_6f72_6c64);
        let mut wrong = || rng.below(2 * plan.skew_millis + 1) as i64 - plan.skew_millis as i64;
        let members = (0..plan.sets()).flat_map(|shard| (0..plan.members).map(move |id| (shard, id as u64)));
        let nodes: Vec<Node> = members.map(|(shard, id)| Node::new(shard, id, wrong())).collect();
        let routers = (0..plan.routers).map(|_| Router::new(wrong())).collect();
        World {
            mutation,
            now: 0,
            queue: BTreeMap::new(),
            next_event: 0,
            cut: vec![false; nodes.len()],
            nodes,
            routers,
            clients: (0..plan.clients).map(Client::new).collect(),
            calm: false,
            payloads: Vec::new(),
            judge: Judge::new(&plan),
            next_call: 0,
            next_writer: 0,
            tally: Tally::default(),
            failure: None,
            tell_from: None,
            rng,
            plan,
        }
    }

    /// Prints what is said from this time on.
    pub fn tell(mut self, from: u64) -> Self {
        self.tell_from = Some(from);
        self
    }

    /// Plays until the cluster is at rest after the faults.
    pub fn play(mut self) -> Result<Tally, Failure> {
        self.begin();
        let end = self.plan.faults_millis + self.plan.calm_millis;
        let mut looked = 0;
        while self.failure.is_none() {
            let Some(((at, _), event)) = self.queue.pop_first() else { break };
            self.now = at;
            if !self.calm && self.now >= self.plan.faults_millis {
                self.begin_calm();
            }
            if self.now >= end {
                self.fail(format!("no rest after the faults: {}", self.unrest().unwrap_or_default()));
                break;
            }
            if self.calm && self.now >= looked + 50 {
                looked = self.now;
                if self.unrest().is_none() {
                    break;
                }
            }
            self.happen(event);
        }
        if self.failure.is_none()
            && let Err(what) = self.final_judgement()
        {
            self.fail(what);
        }
        match self.failure.take() {
            Some(what) => Err(Failure { seed: self.plan.seed, at: self.now, what }),
            None => Ok(self.tally),
        }
    }

    fn begin(&mut self) {
        for node in 0..self.nodes.len() {
            self.start(node);
        }
        for shard in 0..self.plan.sets() {
            let first = shard * self.plan.members;
            let hosts = self.nodes[first..first + self.plan.members].iter().map(|node| node.host.clone());
            let members = (0..).zip(hosts).map(|(id, host)| MemberConfig::new(id, host)).collect();
            let mut config = ReplSetConfig::new("rs", members);
            config.settings.election_timeout_millis = 500;
            config.settings.heartbeat_interval_millis = 100;
            config.settings.heartbeat_timeout_secs = 1;
            let process = self.nodes[first].process.as_mut().expect("it was just started");
            process.member.tick(0, BEGIN_MICROS / 1_000_000);
            process.member.initiate(config, 0).expect("the plan's configuration is valid");
            self.settle_node(first);
        }
        for router in 0..self.routers.len() {
            self.start_router(router);
        }
        for client in 0..self.clients.len() {
            let first = 300 + self.rng.below(300);
            self.after(first, Event::Think { client });
        }
        self.after(1000, Event::Fault);
        if self.plan.moves {
            self.after(800, Event::WantMove);
        }
    }

    pub(super) fn after(&mut self, millis: u64, event: Event) {
        self.next_event += 1;
        self.queue.insert((self.now + millis, self.next_event), event);
    }

    /// Adds to the hash of all that has happened.
    pub(super) fn trace(&mut self, what: u64) {
        self.tally.trace = mix(self.tally.trace ^ mix(what ^ (self.now << 20)));
    }

    pub(super) fn fail(&mut self, what: String) {
        self.failure.get_or_insert(what);
    }

    pub(super) fn check(&mut self, check: Result<(), String>) {
        if let Err(what) = check {
            self.fail(what);
        }
    }

    /// What a wall clock that is wrong by so many milliseconds shows, in microseconds since 1970.
    pub(super) fn wall(&self, wrong: i64) -> u64 {
        BEGIN_MICROS.saturating_add_signed((self.now as i64 + wrong) * 1000)
    }

    fn happen(&mut self, event: Event) {
        self.tally.events += 1;
        if let Some((node, incarnation)) = process_of(&event) {
            let at = &self.nodes[node];
            if at.process.is_none() || incarnation.is_some_and(|of| of != at.incarnation) {
                return;
            }
            if at.paused_until > self.now {
                let wait = at.paused_until - self.now;
                return self.after(wait, event);
            }
        }
        match event {
            Event::Deliver { from, to, message } => self.deliver(from, to, message),
            Event::Tick { node, .. } => self.tick(node),
            Event::Write { node, .. } => self.write(node),
            Event::Apply { node, .. } => self.apply(node),
            Event::Synced { node, ops, seq, .. } => self.synced(node, ops, seq),
            Event::SyncDue { node, .. } => self.sync_due(node),
            Event::ConnectionLost { node, peer, .. } => {
                if let Some(process) = &mut self.nodes[node].process {
                    process.member.connection_lost(peer);
                }
                self.settle_node(node);
            }
            Event::Restart { node } => self.start(node),
            Event::RouterTick { router, incarnation } => self.router_tick(router, incarnation),
            Event::RouterRestart { router } => self.start_router(router),
            Event::Think { client } => self.think(client),
            Event::Timeout { client, number } => self.timeout(client, number),
            Event::Fault => self.fault(),
            Event::WantMove => self.want_move(),
        }
    }

    // The network.

    /// Sends a message, which may be lost, come late, or twice.
    pub(super) fn send(&mut self, from: Address, to: Address, message: Message) {
        if self.tell_from.is_some_and(|at| self.now >= at) && !matches!(message, Message::Repl(_)) {
            println!("{:6} {from:?} -> {to:?} {message:?}", self.now);
        }
        if !self.calm {
            let within = matches!(message, Message::Repl(_));
            let is_cut = |address| matches!(address, Address::Member(node) if self.cut[node]);
            if (within && (is_cut(from) || is_cut(to))) || self.rng.percent(self.plan.loss) {
                return;
            }
            if may_be_doubled(&message) && self.rng.percent(self.plan.doubled) {
                let other = self.perhaps_another(to, within);
                let behind = self.rng.below(1000);
                self.send_once(from, other, message.clone(), behind);
            }
        }
        self.send_once(from, to, message, 0);
    }

    /// What is sent again may be sent to another member of the shard.
    fn perhaps_another(&mut self, to: Address, within: bool) -> Address {
        match to {
            Address::Member(node) if !within && self.rng.percent(50) => {
                let first = self.nodes[node].shard * self.plan.members;
                Address::Member(first + self.rng.below(self.plan.members as u64) as usize)
            }
            _ => to,
        }
    }

    fn send_once(&mut self, from: Address, to: Address, message: Message, behind: u64) {
        let (low, high) = self.plan.latency;
        let late = !self.calm && self.rng.percent(self.plan.late);
        let millis = if late { self.rng.between(high, 3000) } else { self.rng.between(low, high) };
        self.after(millis + behind, Event::Deliver { from, to, message });
    }

    fn deliver(&mut self, from: Address, to: Address, message: Message) {
        match (to, message) {
            (Address::Member(node), Message::Repl(envelope)) => {
                let Address::Member(sender) = from else { return };
                let host = self.nodes[sender].host.clone();
                if let Some(process) = &mut self.nodes[node].process {
                    process.member.step(&host, *envelope);
                }
                self.settle_node(node);
            }
            (Address::Member(node), Message::Call { number, time, call }) => {
                self.trace(number << 4 ^ node as u64);
                self.observe_at(node, time);
                self.serve(node, from, number, call);
            }
            (Address::Member(node), Message::Return { number, time, result }) => {
                self.observe_at(node, time);
                self.member_answered(node, number, result);
            }
            (Address::Router(router), Message::Return { number, time, result }) => {
                self.router_answered(router, number, time, result);
            }
            (Address::Router(router), Message::Command { number, time, command }) => {
                let Address::Client(client) = from else { return };
                self.command(router, client, number, time, command);
            }
            (Address::Client(client), Message::Done { number, time, done }) => {
                self.trace(number << 4 ^ 9);
                self.client_answered(client, number, time, done);
            }
            (to, message) => unreachable!("{message:?} is not for {to:?}"),
        }
    }

    /// The member to try for a shard: mostly one that takes itself for the primary.
    pub(super) fn guess(&mut self, shard: usize) -> usize {
        let first = shard * self.plan.members;
        let all: Vec<usize> = (first..first + self.plan.members).collect();
        let leads =
            |node: &&usize| self.nodes[**node].process.as_ref().is_some_and(|process| process.leading);
        let leading: Vec<usize> = all.iter().filter(leads).copied().collect();
        if leading.is_empty() || self.rng.percent(5) {
            *self.rng.pick(&all)
        } else {
            *self.rng.pick(&leading)
        }
    }
}

/// Clients send a command again themselves, and plain writes have no number by which a second could be told.
fn may_be_doubled(message: &Message) -> bool {
    !matches!(
        message,
        Message::Command { .. }
            | Message::Done { .. }
            | Message::Call { call: Call::Write { retryable: None, .. }, .. }
    )
}

/// The member whose process must be awake for an event, and the start that it belongs to.
fn process_of(event: &Event) -> Option<(usize, Option<u64>)> {
    match event {
        Event::Tick { node, incarnation }
        | Event::Write { node, incarnation }
        | Event::Apply { node, incarnation }
        | Event::Synced { node, incarnation, .. }
        | Event::SyncDue { node, incarnation }
        | Event::ConnectionLost { node, incarnation, .. } => Some((*node, Some(*incarnation))),
        Event::Deliver { to: Address::Member(node), .. } => Some((*node, None)),
        _ => None,
    }
}
