//! Clients: each has a session, runs one thing after another, and goes to another router when it hears nothing.

use std::sync::Arc;

use crate::time::ClusterTime;
use crate::transaction::Outcome;
use crate::types::TransactionId;

use super::judge::Story;
use super::message::{Address, Change, Command, Done, Message, Op, Retryable};
use super::world::{Event, World};

/// After how long a client takes its router for dead.
const PATIENCE_MILLIS: u64 = 1500;
/// How often it asks for the outcome of a commit.
const COMMITS: u32 = 5;
/// How often it sends a retryable statement.
const RETRIES: u32 = 8;
/// So much a client does after the faults.
const CALM_WORK: u32 = 3;

/// What a client is doing.
#[derive(Debug)]
enum Work {
    Nothing,
    Transaction {
        id: TransactionId,
        left: Vec<(usize, Op)>,
        story: Story,
        wrote: Vec<usize>,
    },
    Committing {
        id: TransactionId,
        token: Option<usize>,
        tries: u32,
        crossing: bool,
    },
    /// Perhaps as of an earlier scan's time.
    Scan {
        at: Option<ClusterTime>,
    },
    Write(Change),
    /// Statements that are sent again until they are answered: which is next, and how often it was sent.
    Retry {
        changes: Vec<Change>,
        next: u32,
        tries: u32,
    },
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
    /// The number of its retryable statements, which have a session of their own.
    retries: i64,
    scanned_at: Option<ClusterTime>,
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
            retries: 0,
            scanned_at: None,
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
        match self.clients[client].work {
            Work::Nothing => {}
            Work::Retry { .. } => return self.next_retry(client),
            _ => return self.next_statement(client),
        }
        if self.clients[client].calm_done >= CALM_WORK {
            return;
        }
        match self.rng.below(10) {
            0..=1 => {
                let earlier = self.clients[client].scanned_at;
                let at = earlier.filter(|_| self.plan.moves && self.rng.percent(40));
                self.clients[client].work = Work::Scan { at };
                self.ask(client, Command::Scan { at });
            }
            2..=3 if self.plan.moves && self.rng.percent(70) => {
                let changes = (0..self.rng.between(1, 3)).map(|_| {
                    let (key, writer) = (self.rng.below(self.plan.keys), self.new_writer());
                    Change { key, delta: 0, writer }
                });
                let changes = changes.collect();
                let of = &mut self.clients[client];
                of.retries += 1;
                of.work = Work::Retry { changes, next: 0, tries: 0 };
                self.next_retry(client);
            }
            2..=3 => {
                let change =
                    Change { key: self.rng.below(self.plan.keys), delta: 0, writer: self.new_writer() };
                self.clients[client].work = Work::Write(change);
                self.ask(client, Command::Write { change, retryable: None });
            }
            _ => self.begin_transaction(client),
        }
    }

    /// Sends the next retryable statement, or the same again.
    fn next_retry(&mut self, client: usize) {
        let of = &mut self.clients[client];
        let Work::Retry { changes, next, tries } = &mut of.work else { return };
        let Some(change) = changes.get(*next as usize).copied().filter(|_| *tries < RETRIES) else {
            of.work = Work::Nothing;
            let think = 1 + self.rng.below(self.plan.think_millis);
            return self.after(think, Event::Think { client });
        };
        *tries += 1;
        let lsid: Vec<u8> = of.lsid.iter().copied().chain([1]).collect();
        let retryable = Retryable { lsid: lsid.into(), number: of.retries, stmt: *next };
        self.ask(client, Command::Write { change, retryable: Some(retryable) });
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
        of.work = Work::Transaction { id, left, story: Story::new(of.committed), wrote: Vec::new() };
        self.next_statement(client);
    }

    fn next_statement(&mut self, client: usize) {
        let of = &mut self.clients[client];
        let Work::Transaction { id, left, story, wrote } = &mut of.work else { return };
        let id = id.clone();
        if let Some((shard, op)) = left.first().cloned() {
            let first = story.is_new();
            return self.ask(client, Command::Statement { id, first, shard, op });
        }
        let token = wrote.first().copied();
        let crossing = wrote.iter().any(|shard| Some(*shard) != token);
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
            (
                Work::Transaction { id, mut left, mut story, wrote: mut all },
                Done::Executed { read_at, seen, wrote },
            ) => {
                let (_, op) = left.remove(0);
                story.note(read_at, &op, &seen);
                all.extend(wrote);
                of.work = Work::Transaction { id, left, story, wrote: all };
            }
            (Work::Committing { id, crossing, .. }, Done::Ended(outcome)) => {
                self.ended(client, &id, outcome, crossing);
            }
            (Work::Committing { .. }, _) => self.tally.unknown += 1,
            (Work::Scan { at: named }, Done::Scanned { at, seen }) => {
                self.tally.scans += 1;
                of.scanned_at = Some(at);
                let after = if named.is_some() { ClusterTime::ZERO } else { of.committed };
                let check = self.judge.scanned(at, after, &seen);
                self.check(check);
                self.clients[client].calm_done += u32::from(self.calm);
            }
            (Work::Write(change), Done::Written { before }) => {
                self.tally.written += 1;
                self.judge.written(change, before);
                self.clients[client].calm_done += u32::from(self.calm);
            }
            (Work::Retry { changes, next, tries }, done) => {
                if let (Done::Written { before }, Some(change)) = (&done, changes.get(next as usize)) {
                    self.tally.written += 1;
                    self.judge.written(*change, *before);
                    of.calm_done += u32::from(self.calm);
                    of.work = Work::Retry { changes, next: next + 1, tries: 0 };
                } else {
                    of.work = Work::Retry { changes, next, tries };
                }
            }
            (Work::Scan { .. }, _) => of.scanned_at = None,
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
            Work::Retry { changes, next, tries } => of.work = Work::Retry { changes, next, tries },
            Work::Scan { .. } => of.scanned_at = None,
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
