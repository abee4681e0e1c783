//! A router: keeps nothing that outlives it.

use std::collections::{BTreeMap, BTreeSet};

use crate::placement::{Belief, Ranges, RoutingTable};
use crate::time::{Clock, ClusterTime};
use crate::transaction::{Committer, CommitterEffect, Executed, Outcome, Part, Request};
use crate::types::TransactionId;

use super::Mutation;
use super::deciding::{Decided, Deciding};
use super::directory::{shard_id, shard_key, shard_number};
use super::message::{Address, Call, Change, Command, Done, Message, Op, Retryable, Return, Seen};
use super::plan::Plan;
use super::store::Key;
use super::world::{Event, World};

/// A transaction that a client runs through this router.
#[derive(Debug, Default)]
struct Running {
    read_at: Option<ClusterTime>,
    parts: BTreeMap<usize, (Executed, bool)>,
}

/// A statement on its way: what of it goes to this shard, what is left, and what has come of what is done.
#[derive(Clone, Debug)]
pub(super) struct Statement {
    client: usize,
    number: u64,
    id: TransactionId,
    shard: usize,
    op: Op,
    left: Op,
    seen: Vec<Seen>,
    wrote: Option<usize>,
}

/// What a router waits for, by the number of its call.
#[derive(Clone, Debug)]
pub(super) enum Pending {
    Execute(Statement),
    Request {
        shard: usize,
        id: TransactionId,
    },
    /// A scan that has yet to learn which shards own something.
    BeginScan {
        scan: u64,
    },
    Scan {
        scan: u64,
        shard: usize,
        /// By what it was chosen, where ranges move.
        belief: Option<Belief>,
    },
    Write {
        client: usize,
        number: u64,
        change: Change,
        retryable: Option<Retryable>,
    },
    Table,
    /// Commits that a shard is told of.
    Decide {
        shard: usize,
        batch: Vec<Decided>,
        since: u64,
    },
    /// Commits of which a shard is asked whether a majority has them; `of` are their places in the round.
    Confirm {
        shard: usize,
        of: Vec<usize>,
        batch: Vec<Decided>,
        since: u64,
    },
}

#[derive(Debug)]
struct Scan {
    client: usize,
    number: u64,
    at: ClusterTime,
    /// Whether the client has named the time.
    is_named: bool,
    left: BTreeSet<usize>,
    seen: Vec<Seen>,
}

#[derive(Default)]
pub(super) struct Process {
    pub committer: Committer,
    pub deciding: Deciding,
    running: BTreeMap<TransactionId, Running>,
    pub pending: BTreeMap<u64, (Pending, u32)>,
    scans: BTreeMap<u64, Scan>,
    /// Clients that wait for an outcome, and since when.
    asked: BTreeMap<TransactionId, (usize, u64, u64)>,
    time: ClusterTime,
    /// The directory as far as it is known, where ranges are moved.
    table: Option<RoutingTable>,
    /// What waits for the directory, and since when that is being read.
    waiting: Vec<(Pending, u32)>,
    reading_since: Option<u64>,
}

pub(super) struct Router {
    pub process: Option<Process>,
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
        if process.reading_since.is_some_and(|since| since + 300 < now) {
            process.reading_since = None;
            self.read_table(router);
        }
        let Some(process) = &mut self.routers[router].process else { return };
        if impatient {
            let late = process.asked.iter().filter(|(_, (_, _, since))| since + 400 < now);
            let late: Vec<TransactionId> = late.map(|(id, _)| id.clone()).collect();
            for id in late {
                self.end(router, &id, Done::Ended(Outcome::Aborted));
            }
        }
        if self.plan.decisions_together {
            self.tick_decisions(router);
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
                let (seen, wrote, left) = (Vec::new(), None, op.clone());
                let statement = Statement { client, number, id, shard, op, left, seen, wrote };
                self.call(router, Pending::Execute(statement), 0);
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
            Command::Scan { at } => self.scan(router, client, number, at.unwrap_or(now), at.is_some()),
            Command::Write { change, retryable } => {
                self.call(router, Pending::Write { client, number, change, retryable }, 0);
            }
        }
        self.settle_router(router);
    }

    fn scan(&mut self, router: usize, client: usize, number: u64, at: ClusterTime, is_named: bool) {
        let (shards, moves) = (self.plan.shards, self.plan.moves);
        self.next_call += 1;
        let scan = self.next_call;
        let Some(process) = &mut self.routers[router].process else { return };
        let left = (0..shards).collect();
        process.scans.insert(scan, Scan { client, number, at, is_named, left, seen: Vec::new() });
        if moves {
            return self.call(router, Pending::BeginScan { scan }, 0);
        }
        for shard in 0..shards {
            self.call(router, Pending::Scan { scan, shard, belief: None }, 0);
        }
    }

    /// Asks the shards that own something as of the scan's time.
    fn begin_scan(&mut self, router: usize, scan: u64, tries: u32) {
        let newest = self.mutation == Some(Mutation::NewestTableAtT);
        let shards = self.plan.shards;
        let Some(process) = &mut self.routers[router].process else { return };
        let (Some(of), Some(table)) = (process.scans.get_mut(&scan), &process.table) else { return };
        let at = (!newest).then_some(of.at);
        let owners = (0..shards).filter(|shard| !table_ranges(table, *shard, at).is_empty());
        // Whatever becomes of the table meanwhile: all are asked by the one by which they were chosen.
        let asked: Vec<(usize, Option<Belief>)> =
            owners.map(|shard| (shard, Some(believed(table, shard, at)))).collect();
        of.left = asked.iter().map(|(shard, _)| *shard).collect();
        of.seen.clear();
        for (shard, belief) in asked {
            self.call(router, Pending::Scan { scan, shard, belief }, tries);
        }
    }

    /// Sends a call to the shard that it is for.
    pub(super) fn call(&mut self, router: usize, mut pending: Pending, tries: u32) {
        let Some(process) = &mut self.routers[router].process else { return };
        let needs_table =
            !matches!(pending, Pending::Table | Pending::Decide { .. } | Pending::Confirm { .. });
        if self.plan.moves && process.table.is_none() && needs_table {
            process.waiting.push((pending, tries));
            return self.read_table(router);
        }
        if let Pending::BeginScan { scan } = pending {
            return self.begin_scan(router, scan, tries);
        }
        self.aim(router, &mut pending);
        let newest = self.mutation == Some(Mutation::NewestTableAtT);
        let Some(process) = &mut self.routers[router].process else { return };
        let belief = |shard: usize, at: Option<ClusterTime>| -> Option<Belief> {
            let table = process.table.as_ref()?;
            Some(believed(table, shard, at.filter(|_| !newest)))
        };
        let (shard, call) = match &pending {
            Pending::Execute(Statement { id, shard, op, .. }) => {
                let running = process.running.get(id);
                let read_at = running.and_then(|running| running.read_at);
                let after =
                    running.and_then(|running| running.parts.get(shard)).map(|(executed, _)| *executed);
                let belief = belief(*shard, read_at);
                (*shard, Call::Execute { id: id.clone(), after, read_at, op: op.clone(), belief })
            }
            Pending::Scan { scan, shard, belief } => {
                let Some(scan) = process.scans.get(scan) else { return };
                let keys = match belief {
                    Some(_) => (0..self.plan.keys).collect(),
                    None => self.plan.keys_of(*shard),
                };
                (*shard, Call::ReadAt { at: scan.at, keys, belief: *belief })
            }
            Pending::Write { change, retryable, .. } => {
                let shard = owner(process.table.as_ref(), self.plan.shards, change.key, None);
                let belief = belief(shard, None);
                (shard, Call::Write { change: *change, retryable: retryable.clone(), belief })
            }
            Pending::Table => (self.plan.config(), Call::ReadTable),
            Pending::Decide { .. } | Pending::Confirm { .. } => {
                let Some(call) = World::call_of_decisions(&pending) else { return };
                call
            }
            Pending::BeginScan { .. } | Pending::Request { .. } => return,
        };
        self.next_call += 1;
        let (number, time) = (self.next_call, process.time);
        process.pending.insert(number, (pending, tries));
        let to = Address::Member(self.guess(shard));
        self.send(Address::Router(router), to, Message::Call { number, time, call });
    }

    /// Of a statement, what goes to one shard, by who owned the documents at the transaction's time.
    fn aim(&mut self, router: usize, pending: &mut Pending) {
        let newest = self.mutation == Some(Mutation::NewestTableAtT);
        let shards = self.plan.shards;
        let Some(process) = &mut self.routers[router].process else { return };
        let (Pending::Execute(statement), Some(table)) = (pending, &process.table) else { return };
        let read_at = process.running.get(&statement.id).and_then(|running| running.read_at);
        let of = |key: &Key| owner(Some(table), shards, *key, read_at.filter(|_| !newest));
        let Some(first) = statement.left.keys().first().map(of) else { return };
        statement.shard = first;
        statement.op.reads = statement.left.reads.iter().copied().filter(|key| of(key) == first).collect();
        statement.op.write = statement.left.write.filter(|write| of(&write.key) == first);
    }

    /// Reads the directory, unless that is under way.
    fn read_table(&mut self, router: usize) {
        let now = self.now;
        let Some(process) = &mut self.routers[router].process else { return };
        if process.reading_since.is_none() {
            process.reading_since = Some(now);
            self.call(router, Pending::Table, 0);
        }
    }

    fn table_read(&mut self, router: usize, table: RoutingTable) {
        let Some(process) = &mut self.routers[router].process else { return };
        let is_newer = |old: &RoutingTable| old.version().lastmod <= table.version().lastmod;
        if process.table.as_ref().is_none_or(is_newer) {
            process.table = Some(table);
        }
        process.reading_since = None;
        for (pending, tries) in std::mem::take(&mut process.waiting) {
            self.call(router, pending, tries);
        }
    }

    /// The shard owns something else: the directory is read again before this is tried again.
    fn stale(&mut self, router: usize, pending: Pending, tries: u32) {
        let now = self.router_time(router, ClusterTime::ZERO);
        let Some(process) = &mut self.routers[router].process else { return };
        let pending = match pending {
            // All shards are read as of one time.
            Pending::Scan { scan, .. } => {
                let Some(mut of) = process.scans.remove(&scan) else { return };
                if !of.is_named {
                    of.at = now;
                }
                self.next_call += 1;
                process.scans.insert(self.next_call, of);
                Pending::BeginScan { scan: self.next_call }
            }
            Pending::Execute(statement) => {
                let running = process.running.get(&statement.id);
                if running.is_none_or(|running| running.parts.contains_key(&statement.shard)) {
                    return self.executed(router, statement, Return::Failed);
                }
                Pending::Execute(statement)
            }
            pending => pending,
        };
        process.waiting.push((pending, tries + 1));
        self.read_table(router);
    }

    pub(super) fn request_of_router(&mut self, router: usize, shard: usize, request: Request) {
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
            (Pending::Table, Return::Table(table)) => self.table_read(router, table),
            (Pending::Decide { shard, batch, .. }, Return::Decided(has)) => {
                self.decisions_answered(router, shard, batch, &has);
            }
            (Pending::Confirm { of, .. }, Return::Decided(has)) => self.confirmed(router, &of, &has),
            (pending, Return::Stale) if tries < TRIES => self.stale(router, pending, tries),
            (pending, Return::NotPrimary) if tries < TRIES => self.call(router, pending, tries + 1),
            (Pending::Execute(statement), result) => self.executed(router, statement, result),
            (Pending::Scan { scan, shard, .. }, Return::Read(seen)) => {
                self.scanned(router, scan, shard, seen)
            }
            (Pending::Write { client, number, .. }, Return::Written { before }) => {
                self.done(router, client, number, Done::Written { before });
            }
            (Pending::Write { client, number, .. }, _) => self.done(router, client, number, Done::Failed),
            (Pending::Scan { scan, .. }, Return::Stale) => {
                if let Some(of) = process.scans.remove(&scan) {
                    self.done(router, of.client, of.number, Done::Failed);
                }
            }
            (Pending::Decide { shard, batch, .. }, _) => {
                self.decisions_answered(router, shard, batch, &[]);
            }
            (Pending::Confirm { of, .. }, _) => self.confirmed(router, &of, &[]),
            (Pending::Scan { .. } | Pending::BeginScan { .. } | Pending::Table, _) => {}
        }
        self.settle_router(router);
    }

    fn executed(&mut self, router: usize, mut statement: Statement, result: Return) {
        let (client, number, id) = (statement.client, statement.number, statement.id.clone());
        let Some(process) = &mut self.routers[router].process else { return };
        let Some(running) = process.running.get_mut(&id) else { return };
        if let Return::Executed { executed, read_at, mut seen } = result {
            running.read_at = Some(read_at);
            let (shard, op) = (statement.shard, &statement.op);
            let wrote = op.write.is_some() || running.parts.get(&shard).is_some_and(|(_, wrote)| *wrote);
            running.parts.insert(shard, (executed, wrote));
            if op.write.is_some() {
                statement.wrote = Some(shard);
                statement.left.write = None;
            }
            statement.seen.append(&mut seen);
            statement.left.reads.retain(|key| !op.reads.contains(key));
            if self.plan.moves && !statement.left.keys().is_empty() {
                return self.call(router, Pending::Execute(statement), 0);
            }
            let (seen, wrote) = (statement.seen, statement.wrote);
            return self.done(router, client, number, Done::Executed { read_at, seen, wrote });
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
        let effects = process.committer.poll();
        let mut decisions: BTreeMap<TransactionId, Vec<(usize, Request)>> = BTreeMap::new();
        for effect in &effects {
            if let CommitterEffect::Send { to, request: request @ Request::Commit { id, .. } } = effect {
                decisions.entry(id.clone()).or_default().push((shard_number(to), request.clone()));
            }
        }
        decisions.retain(|_, requests| self.goes_with_others(router, requests));
        for effect in effects {
            match effect {
                CommitterEffect::Send { request: Request::Commit { id, .. }, .. }
                    if decisions.contains_key(&id) => {}
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

/// Who owns a document, now or as of a time.
fn owner(table: Option<&RoutingTable>, shards: usize, key: Key, at: Option<ClusterTime>) -> usize {
    let Some(table) = table else { return key as usize % shards };
    let key = shard_key(key);
    let chunk = table.chunks().iter().rev().find(|chunk| chunk.min <= key).expect("chunks leave no gaps");
    let shard = at.map_or(Some(chunk.shard()), |at| chunk.shard_at(at));
    shard_number(shard.expect("the history reaches back to the beginning"))
}

fn believed(table: &RoutingTable, shard: usize, at: Option<ClusterTime>) -> Belief {
    table.belief(&shard_id(shard), at).expect("the history reaches back to the beginning")
}

fn table_ranges(table: &RoutingTable, shard: usize, at: Option<ClusterTime>) -> Ranges {
    match at {
        None => table.ranges_of(&shard_id(shard)),
        Some(at) => table.ranges_at(&shard_id(shard), at).expect("the history reaches back"),
    }
}
