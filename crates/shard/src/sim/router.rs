//! A router: keeps nothing that outlives it.

use std::collections::{BTreeMap, BTreeSet};

use crate::time::{Clock, ClusterTime};
use crate::transaction::{Committer, CommitterEffect, Executed, Outcome, Part, Request};
use crate::types::TransactionId;

use super::message::{Address, Call, Change, Command, Done, Message, Op, Return, Seen};
use super::node::{shard_id, shard_number};
use super::world::{Event, World};
use super::{Mutation, Plan};

/// A transaction that a client runs through this router.
#[derive(Debug, Default)]
struct Running {
    read_at: Option<ClusterTime>,
    parts: BTreeMap<usize, (Executed, bool)>,
}

/// A statement on its way.
#[derive(Clone, Debug)]
struct Statement {
    client: usize,
    number: u64,
    id: TransactionId,
    shard: usize,
    op: Op,
}

/// What a router waits for, by the number of its call.
#[derive(Clone, Debug)]
enum Pending {
    Execute(Statement),
    Request { shard: usize, id: TransactionId },
    Scan { scan: u64, shard: usize },
    Write { client: usize, number: u64, change: Change },
}

#[derive(Debug)]
struct Scan {
    client: usize,
    number: u64,
    at: ClusterTime,
    left: BTreeSet<usize>,
    seen: Vec<Seen>,
}

#[derive(Default)]
pub(super) struct Process {
    committer: Committer,
    running: BTreeMap<TransactionId, Running>,
    pending: BTreeMap<u64, (Pending, u32)>,
    scans: BTreeMap<u64, Scan>,
    /// Clients that wait for an outcome, and since when.
    asked: BTreeMap<TransactionId, (usize, u64, u64)>,
    time: ClusterTime,
}

pub(super) struct Router {
    process: Option<Process>,
    pub incarnation: u64,
    pub wall_wrong: i64,
}

/// How often a call is tried again at another member, where one has said that it is not the primary.
const TRIES: u32 = 20;

impl Router {
    pub fn new(wall_wrong: i64) -> Self {
        Router { process: None, incarnation: 0, wall_wrong }
    }
}

impl Plan {
    /// The documents of a shard.
    pub(super) fn keys_of(&self, shard: usize) -> Vec<u64> {
        (0..self.keys).filter(|key| *key as usize % self.shards == shard).collect()
    }
}

impl World {
    pub(super) fn start_router(&mut self, router: usize) {
        let at = &mut self.routers[router];
        at.process = Some(Process::default());
        at.incarnation += 1;
        let incarnation = at.incarnation;
        self.after(1, Event::RouterTick { router, incarnation });
    }

    /// The router dies with all that it knows.
    pub(super) fn stop_router(&mut self, router: usize, back_after: u64) {
        if self.routers[router].process.take().is_some() {
            self.tally.routers_lost += 1;
            self.after(back_after, Event::RouterRestart { router });
        }
    }

    fn router_time(&mut self, router: usize, seen: ClusterTime) -> ClusterTime {
        let wall = self.wall(self.routers[router].wall_wrong);
        let Some(process) = &mut self.routers[router].process else { return seen };
        let mut clock = Clock::new(process.time.max(seen));
        process.time = clock.now(wall);
        process.time
    }

    pub(super) fn router_tick(&mut self, router: usize, incarnation: u64) {
        let impatient = self.mutation == Some(Mutation::SilenceAborts);
        let now = self.now;
        let at = &mut self.routers[router];
        if at.incarnation != incarnation {
            return;
        }
        let Some(process) = &mut at.process else { return };
        process.committer.tick(now);
        if impatient {
            let late = process.asked.iter().filter(|(_, (_, _, since))| since + 400 < now);
            let late: Vec<TransactionId> = late.map(|(id, _)| id.clone()).collect();
            for id in late {
                self.end(router, &id, Done::Ended(Outcome::Aborted));
            }
        }
        self.settle_router(router);
        self.after(20, Event::RouterTick { router, incarnation });
    }

    /// A client wants something.
    pub(super) fn command(
        &mut self,
        router: usize,
        client: usize,
        number: u64,
        time: ClusterTime,
        command: Command,
    ) {
        let now = self.router_time(router, time);
        let clock = self.now;
        let Some(process) = &mut self.routers[router].process else { return };
        match command {
            Command::Statement { id, first, .. } if !first && !process.running.contains_key(&id) => {
                // This router has been started since the transaction began.
                self.done(router, client, number, Done::Failed);
            }
            Command::Statement { id, shard, op, .. } => {
                process.running.entry(id.clone()).or_default();
                self.call(router, Pending::Execute(Statement { client, number, id, shard, op }), 0);
            }
            Command::Commit { id, token } => {
                process.asked.insert(id.clone(), (client, number, clock));
                match (process.running.remove(&id), token) {
                    (Some(running), _) => {
                        let part = |(shard, (executed, wrote)): (usize, (Executed, bool))| Part {
                            shard: shard_id(shard),
                            executed,
                            wrote,
                            confirmed: false,
                        };
                        let parts = running.parts.into_iter().map(part).collect();
                        process.committer.commit(id, parts, running.read_at.unwrap_or(now));
                    }
                    (None, Some(shard)) => {
                        self.tally.recovered += 1;
                        process.committer.recover(id, shard_id(shard));
                    }
                    (None, None) => self.end(router, &id, Done::Forgotten),
                }
            }
            Command::Abort { id } => {
                let Some(running) = process.running.remove(&id) else { return };
                for shard in running.parts.into_keys() {
                    self.request_of_router(router, shard, Request::Abandon { id: id.clone() });
                }
            }
            Command::Scan => self.scan(router, client, number, now),
            Command::Write(change) => self.call(router, Pending::Write { client, number, change }, 0),
        }
        self.settle_router(router);
    }

    fn scan(&mut self, router: usize, client: usize, number: u64, at: ClusterTime) {
        let shards = self.plan.shards;
        self.next_call += 1;
        let scan = self.next_call;
        let Some(process) = &mut self.routers[router].process else { return };
        process
            .scans
            .insert(scan, Scan { client, number, at, left: (0..shards).collect(), seen: Vec::new() });
        for shard in 0..shards {
            self.call(router, Pending::Scan { scan, shard }, 0);
        }
    }

    /// Sends a call to the shard that it is for.
    fn call(&mut self, router: usize, pending: Pending, tries: u32) {
        let Some(process) = &mut self.routers[router].process else { return };
        let (shard, call) = match &pending {
            Pending::Execute(Statement { id, shard, op, .. }) => {
                let running = process.running.get(id);
                let read_at = running.and_then(|running| running.read_at);
                let after =
                    running.and_then(|running| running.parts.get(shard)).map(|(executed, _)| *executed);
                (*shard, Call::Execute { id: id.clone(), after, read_at, op: op.clone() })
            }
            Pending::Scan { scan, shard } => {
                let Some(scan) = process.scans.get(scan) else { return };
                (*shard, Call::ReadAt { at: scan.at, keys: self.plan.keys_of(*shard) })
            }
            Pending::Write { change, .. } => (change.key as usize % self.plan.shards, Call::Write(*change)),
            Pending::Request { .. } => return,
        };
        self.next_call += 1;
        let (number, time) = (self.next_call, process.time);
        process.pending.insert(number, (pending, tries));
        let to = Address::Member(self.guess(shard));
        self.send(Address::Router(router), to, Message::Call { number, time, call });
    }

    fn request_of_router(&mut self, router: usize, shard: usize, request: Request) {
        let Some(process) = &mut self.routers[router].process else { return };
        self.next_call += 1;
        let (number, time) = (self.next_call, process.time);
        if let Some(id) = request.id() {
            process.pending.insert(number, (Pending::Request { shard, id: id.clone() }, 0));
        }
        let to = Address::Member(self.guess(shard));
        self.send(Address::Router(router), to, Message::Call { number, time, call: Call::Request(request) });
    }

    pub(super) fn router_answered(&mut self, router: usize, number: u64, time: ClusterTime, result: Return) {
        self.router_time(router, time);
        let Some(process) = &mut self.routers[router].process else { return };
        let Some((pending, tries)) = process.pending.remove(&number) else { return };
        match (pending, result) {
            (Pending::Request { shard, id }, Return::Answer(answer)) => {
                process.committer.answered(&shard_id(shard), &id, answer);
            }
            (Pending::Request { .. }, _) => {}
            (pending, Return::NotPrimary) if tries < TRIES => self.call(router, pending, tries + 1),
            (Pending::Execute(statement), result) => self.executed(router, statement, result),
            (Pending::Scan { scan, shard }, Return::Read(seen)) => self.scanned(router, scan, shard, seen),
            (Pending::Write { client, number, .. }, Return::Written { before }) => {
                self.done(router, client, number, Done::Written { before });
            }
            (Pending::Write { client, number, .. }, _) => self.done(router, client, number, Done::Failed),
            (Pending::Scan { .. }, _) => {}
        }
        self.settle_router(router);
    }

    fn executed(&mut self, router: usize, statement: Statement, result: Return) {
        let Statement { client, number, id, shard, op } = statement;
        let Some(process) = &mut self.routers[router].process else { return };
        let Some(running) = process.running.get_mut(&id) else { return };
        if let Return::Executed { executed, read_at, seen } = result {
            running.read_at = Some(read_at);
            let wrote = op.write.is_some() || running.parts.get(&shard).is_some_and(|(_, wrote)| *wrote);
            running.parts.insert(shard, (executed, wrote));
            return self.done(router, client, number, Done::Executed { read_at, seen });
        }
        let parts = process.running.remove(&id).map(|running| running.parts).unwrap_or_default();
        for shard in parts.into_keys() {
            self.request_of_router(router, shard, Request::Abandon { id: id.clone() });
        }
        self.done(router, client, number, Done::Failed);
    }

    fn scanned(&mut self, router: usize, scan: u64, shard: usize, mut seen: Vec<Seen>) {
        let Some(process) = &mut self.routers[router].process else { return };
        let Some(of) = process.scans.get_mut(&scan) else { return };
        if of.left.remove(&shard) {
            of.seen.append(&mut seen);
        }
        if of.left.is_empty()
            && let Some(of) = process.scans.remove(&scan)
        {
            self.done(router, of.client, of.number, Done::Scanned { at: of.at, seen: of.seen });
        }
    }

    fn done(&mut self, router: usize, client: usize, number: u64, done: Done) {
        let Some(process) = &self.routers[router].process else { return };
        let time = process.time;
        self.send(Address::Router(router), Address::Client(client), Message::Done { number, time, done });
    }

    fn end(&mut self, router: usize, id: &TransactionId, done: Done) {
        let Some(process) = &mut self.routers[router].process else { return };
        if let Some((client, number, _)) = process.asked.remove(id) {
            self.done(router, client, number, done);
        }
    }

    fn settle_router(&mut self, router: usize) {
        let too_early = self.mutation == Some(Mutation::SettledTooEarly);
        let Some(process) = &mut self.routers[router].process else { return };
        for effect in process.committer.poll() {
            match effect {
                CommitterEffect::Send { to, request } => {
                    let shard = shard_number(&to);
                    if too_early && let Request::Commit { id, .. } = &request {
                        let settled = Request::Settled { ids: vec![id.clone()] };
                        self.request_of_router(router, shard, request.clone());
                        self.request_of_router(router, shard, settled);
                        continue;
                    }
                    self.request_of_router(router, shard, request);
                }
                CommitterEffect::Ended { id, outcome } => {
                    if let Outcome::Committed(at) = outcome {
                        self.router_time(router, at);
                    }
                    self.end(router, &id, Done::Ended(outcome));
                }
                CommitterEffect::Forgotten { id } => self.end(router, &id, Done::Forgotten),
                CommitterEffect::Contradiction { id, what } => {
                    self.fail(format!("router {router}, {id:?}: {what}"))
                }
            }
        }
    }
}
