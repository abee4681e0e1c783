//! Clients: each has a session, runs one thing after another, and goes to another router when it hears nothing.

use std::sync::Arc;

use crate::time::ClusterTime;
use crate::transaction::Outcome;
use crate::types::TransactionId;

use super::judge::Story;
use super::message::{Address, Change, Command, Done, Message, Op};
use super::world::{Event, World};

/// After how long a client takes its router for dead.
const PATIENCE_MILLIS: u64 = 1500;
/// How often it asks for the outcome of a commit.
const COMMITS: u32 = 5;
/// So much a client does after the faults.
const CALM_WORK: u32 = 3;

/// What a client is doing.
#[derive(Debug)]
enum Work {
    Nothing,
    Transaction { id: TransactionId, left: Vec<(usize, Op)>, story: Story },
    Committing { id: TransactionId, token: Option<usize>, tries: u32, crossing: bool },
    Scan,
    Write(Change),
}

pub(super) struct Client {
    lsid: Arc<[u8]>,
    number: i64,
    router: usize,
    /// The highest cluster time that it has heard of.
    time: ClusterTime,
    /// The highest at which it knows of a commit of its own.
    committed: ClusterTime,
    /// The command that it waits for.
    waits_for: u64,
    work: Work,
    /// What it has done since the faults ended.
    calm_done: u32,
}

impl Client {
    pub fn new(number: usize) -> Self {
        Client {
            lsid: Arc::from([number as u8].as_slice()),
            number: 0,
            router: number % 2,
            time: ClusterTime::ZERO,
            committed: ClusterTime::ZERO,
            waits_for: 0,
            work: Work::Nothing,
            calm_done: 0,
        }
    }

    /// Whether it has shown that the cluster works again, and does nothing more.
    pub fn is_done(&self) -> bool {
        self.calm_done >= CALM_WORK && matches!(self.work, Work::Nothing)
    }
}

impl World {
    fn ask(&mut self, client: usize, command: Command) {
        self.next_call += 1;
        let number = self.next_call;
        let of = &mut self.clients[client];
        of.waits_for = number;
        let (router, time) = (of.router, of.time);
        self.send(
            Address::Client(client),
            Address::Router(router),
            Message::Command { number, time, command },
        );
        self.after(PATIENCE_MILLIS, Event::Timeout { client, number });
    }

    /// Something new, or the next step of what is being done.
    pub(super) fn think(&mut self, client: usize) {
        if !matches!(self.clients[client].work, Work::Nothing) {
            return self.next_statement(client);
        }
        if self.clients[client].calm_done >= CALM_WORK {
            return;
        }
        match self.rng.below(10) {
            0..=1 => {
                self.clients[client].work = Work::Scan;
                self.ask(client, Command::Scan);
            }
            2..=3 => {
                let change =
                    Change { key: self.rng.below(self.plan.keys), delta: 0, writer: self.new_writer() };
                self.clients[client].work = Work::Write(change);
                self.ask(client, Command::Write(change));
            }
            _ => self.begin_transaction(client),
        }
    }

    fn new_writer(&mut self) -> u64 {
        self.next_writer += 1;
        self.next_writer
    }

    /// Moves an amount between two documents or more, and reads others.
    fn begin_transaction(&mut self, client: usize) {
        let shards = self.plan.shards;
        let most = [0, 1, 2, 2, 2, 3][self.rng.below(6) as usize];
        let mut taken: Vec<u64> = (0..most).map(|_| self.rng.below(self.plan.keys)).collect();
        taken.sort_unstable();
        taken.dedup();
        let mut left = Vec::new();
        let mut sum = 0;
        for (at, key) in taken.iter().enumerate() {
            let delta = if at + 1 == taken.len() { -sum } else { self.rng.between(1, 9) as i64 };
            sum += delta;
            let change = Change { key: *key, delta, writer: self.new_writer() };
            left.push((*key as usize % shards, Op { reads: Vec::new(), write: Some(change) }));
        }
        for _ in 0..self.rng.below(3) {
            let shard = self.rng.below(shards as u64) as usize;
            let keys = self.plan.keys_of(shard);
            let reads = keys.into_iter().filter(|key| !taken.contains(key) && self.rng.percent(50)).collect();
            let at = self.rng.below(left.len() as u64 + 1) as usize;
            left.insert(at, (shard, Op { reads, write: None }));
        }
        let of = &mut self.clients[client];
        of.number += 1;
        let id = TransactionId::new(of.lsid.clone(), of.number);
        of.work = Work::Transaction { id, left, story: Story::new(of.committed) };
        self.next_statement(client);
    }

    fn next_statement(&mut self, client: usize) {
        let of = &mut self.clients[client];
        let Work::Transaction { id, left, story } = &mut of.work else { return };
        let id = id.clone();
        if let Some((shard, op)) = left.first().cloned() {
            let first = story.is_new();
            return self.ask(client, Command::Statement { id, first, shard, op });
        }
        let shards = self.plan.shards;
        let writers: Vec<usize> = story.writes.keys().map(|key| *key as usize % shards).collect();
        let token = writers.first().copied();
        let crossing = writers.iter().any(|shard| Some(*shard) != token);
        let story = std::mem::take(story);
        of.work = Work::Committing { id: id.clone(), token, tries: 0, crossing };
        self.judge.asked_to_commit(&id, story);
        self.ask(client, Command::Commit { id, token });
    }

    /// The router has answered.
    pub(super) fn client_answered(&mut self, client: usize, number: u64, time: ClusterTime, done: Done) {
        let of = &mut self.clients[client];
        of.time = of.time.max(time);
        if of.waits_for != number {
            return;
        }
        of.waits_for = 0;
        match (std::mem::replace(&mut of.work, Work::Nothing), done) {
            (Work::Transaction { id, mut left, mut story }, Done::Executed { read_at, seen }) => {
                let (_, op) = left.remove(0);
                story.note(read_at, &op, &seen);
                of.work = Work::Transaction { id, left, story };
            }
            (Work::Committing { id, crossing, .. }, Done::Ended(outcome)) => {
                self.ended(client, &id, outcome, crossing);
            }
            (Work::Committing { .. }, _) => self.tally.unknown += 1,
            (Work::Scan, Done::Scanned { at, seen }) => {
                self.tally.scans += 1;
                let check = self.judge.scanned(at, self.clients[client].committed, &seen);
                self.check(check);
                self.clients[client].calm_done += u32::from(self.calm);
            }
            (Work::Write(change), Done::Written { before }) => {
                self.tally.written += 1;
                self.judge.written(change, before);
                self.clients[client].calm_done += u32::from(self.calm);
            }
            _ => {}
        }
        let think = 1 + self.rng.below(self.plan.think_millis);
        self.after(think, Event::Think { client });
    }

    fn ended(&mut self, client: usize, id: &TransactionId, outcome: Outcome, crossing: bool) {
        let check = self.judge.told(id, outcome);
        self.check(check);
        match outcome {
            Outcome::Aborted => self.tally.refused += 1,
            Outcome::Committed(at) => {
                self.tally.committed += 1;
                self.tally.crossing += u64::from(crossing);
                let of = &mut self.clients[client];
                of.committed = of.committed.max(at);
                of.calm_done += u32::from(self.calm);
                let behind = of.time < at;
                if behind {
                    self.fail(format!("{id:?} has committed at {at}, and its answer came before that"));
                }
            }
        }
    }

    /// Nothing was heard for long: a commit is asked for again, perhaps elsewhere; anything else is given up.
    pub(super) fn timeout(&mut self, client: usize, number: u64) {
        if self.clients[client].waits_for != number {
            return;
        }
        let routers = self.plan.routers;
        let of = &mut self.clients[client];
        let old = of.router;
        of.router = (of.router + 1) % routers;
        of.waits_for = 0;
        match std::mem::replace(&mut of.work, Work::Nothing) {
            Work::Committing { id, token, tries, crossing } if tries < COMMITS => {
                of.work = Work::Committing { id: id.clone(), token, tries: tries + 1, crossing };
                return self.ask(client, Command::Commit { id, token });
            }
            Work::Committing { .. } => self.tally.unknown += 1,
            Work::Transaction { id, .. } => {
                self.clients[client].router = old;
                self.ask(client, Command::Abort { id });
                self.clients[client].waits_for = 0;
                self.clients[client].router = (old + 1) % routers;
            }
            _ => {}
        }
        let think = 1 + self.rng.below(self.plan.think_millis);
        self.after(think, Event::Think { client });
    }
}
