//! The config servers: the directory, and who leads moves.

use sheaf_repl::rng::Rng;

use std::sync::Arc;

use crate::moves::{Conductor, ConductorEffect, Ending, Misfit, Move, MoveId, MoveStatement};
use crate::placement::Key as ShardKey;
use crate::transaction::{CommitterEffect, Executed, Outcome, Request};
use crate::types::{ShardId, TransactionId};

use super::directory::{UUID, pattern, shard_id, shard_key, shard_number};
use super::gate::WAIT_MILLIS;
use super::message::{Address, Call, Return};
use super::node::OpenWrites;
use super::state::{Called, Statement, Then};
use super::store::{Payload, Store};
use super::world::{Event, World};

impl World {
    /// A range is to be moved, if a primary of the config servers is there and has nothing else to do.
    pub(super) fn want_move(&mut self) {
        if self.calm {
            return;
        }
        let gap = 1 + self.rng.below(self.plan.move_gap_millis);
        self.after(gap, Event::WantMove);
        let node = self.guess(self.plan.config());
        let (now, config) = (self.now, shard_id(self.plan.config()));
        self.next_call += 1;
        let number = self.next_call;
        let keys = self.plan.keys;
        let rng = &mut self.rng;
        let Some(process) = &mut self.nodes[node].process else { return };
        if !process.leads() {
            return;
        }
        if let Some(conductor) = process.moves.conductors.values_mut().next() {
            if rng.percent(3) {
                conductor.cancel("somebody has called it off".to_owned());
                self.settle_node(node);
            }
            return;
        }
        if !process.store.migrations.is_empty() {
            return;
        }
        let the_move = Arc::new(choose(&process.store, rng, self.plan.shards, keys, number));
        self.tally.moves += 1;
        let conductor = Conductor::new(the_move.clone(), config, now);
        process.moves.conductors.insert(the_move.id, conductor);
        self.settle_node(node);
    }

    pub(super) fn tick_conductors(&mut self, node: usize) {
        let (now, config) = (self.now, shard_id(self.plan.config()));
        if !self.plan.moves || self.nodes[node].shard != self.plan.config() {
            return;
        }
        let Some(process) = &mut self.nodes[node].process else { return };
        if !process.leads() {
            return;
        }
        process.moves.committer.tick(now);
        process.moves.conductors.values_mut().for_each(|conductor| conductor.tick(now));
        for (id, the_move) in &process.store.migrations {
            let is_locked = is_locked(&process.store, *id);
            if !is_locked && !process.moves.conductors.contains_key(id) {
                let conductor = Conductor::resume(the_move.clone(), config.clone(), now);
                process.moves.conductors.insert(*id, conductor);
            }
        }
    }

    /// False: nothing was to be done.
    pub(super) fn settle_conductors(&mut self, node: usize) -> bool {
        let Some(process) = &mut self.nodes[node].process else { return false };
        let mut any = false;
        let ids: Vec<MoveId> = process.moves.conductors.keys().copied().collect();
        for id in ids {
            let Some(process) = &mut self.nodes[node].process else { return any };
            let Some(conductor) = process.moves.conductors.get_mut(&id) else { continue };
            for effect in conductor.poll() {
                any = true;
                self.of_conductor(node, id, effect);
            }
        }
        let Some(process) = &mut self.nodes[node].process else { return any };
        for effect in process.moves.committer.poll() {
            any = true;
            self.of_committer(node, effect);
        }
        any
    }

    fn of_conductor(&mut self, node: usize, id: MoveId, effect: ConductorEffect) {
        let Some(process) = &mut self.nodes[node].process else { return };
        let Some(conductor) = process.moves.conductors.get_mut(&id) else { return };
        let the_move = conductor.the_move().clone();
        match effect {
            ConductorEffect::Begin if !process.store.migrations.is_empty() => {
                conductor.begun(Err(Misfit("another move is under way".to_owned())));
            }
            ConductorEffect::Begin => {
                let payload = Payload { migration: Some((id, Some(the_move))), ..Payload::default() };
                if let Some(at) = self.propose(node, payload)
                    && let Some(process) = &mut self.nodes[node].process
                {
                    process.moves.majority.entry(at.index).or_default().push(Then::Begun(id));
                }
            }
            ConductorEffect::Send(request) => {
                let shard = shard_number(&the_move.to);
                self.call_of_move(node, shard, Called::Recipient(id), Call::Move(request));
            }
            ConductorEffect::ReadTable => {
                process.moves.reading.insert(id);
                self.pass_directory(node);
            }
            ConductorEffect::Execute { on, id: transaction, statement } => {
                if shard_number(&on) == self.plan.config() {
                    return self.execute_here(node, id, transaction, statement);
                }
                let called = Called::Statement { id, on: on.clone(), transaction: transaction.clone() };
                let call = Call::Statement { id: transaction, statement };
                self.call_of_move(node, shard_number(&on), called, call);
            }
            ConductorEffect::Commit { id, parts } => {
                let now = process.clock.time();
                process.moves.committer.commit(id, parts, now);
            }
            // What this process has opened it closes by itself: nobody else would.
            ConductorEffect::Abandon { on, id: transaction } if shard_number(&on) == self.plan.config() => {
                process.shard.abandon(&transaction);
            }
            ConductorEffect::Abandon { on, id: transaction } => {
                let called = Called::Commit { shard: shard_number(&on), transaction: transaction.clone() };
                let request = Request::Abandon { id: transaction };
                self.call_of_move(node, shard_number(&on), called, Call::Request(request));
            }
            ConductorEffect::Forget => {
                process.moves.forgetting.insert(id);
                self.pass_directory(node);
            }
            ConductorEffect::Over(ending) => {
                process.moves.conductors.remove(&id);
                match ending {
                    Ending::Committed(_) => self.tally.moved += 1,
                    Ending::GivenUp { .. } => self.tally.given_up += 1,
                }
            }
        }
    }

    fn of_committer(&mut self, node: usize, effect: CommitterEffect) {
        match effect {
            CommitterEffect::Send { to, request } => {
                let transaction =
                    request.id().cloned().unwrap_or_else(|| TransactionId::new([].as_slice(), 0));
                let shard = shard_number(&to);
                let called = Called::Commit { shard, transaction };
                self.call_of_move(node, shard, called, Call::Request(request));
            }
            CommitterEffect::Ended { id, outcome } => {
                let check = self.judge.told(&id, outcome);
                self.check(check);
                let Some(process) = &mut self.nodes[node].process else { return };
                if let Outcome::Committed(at) = outcome {
                    process.clock.follow(at);
                }
                for conductor in process.moves.conductors.values_mut() {
                    conductor.ended(&id, outcome);
                }
                // The conductor's own part goes with the commit that it was given to, also where nobody has asked for it here.
                if outcome == Outcome::Aborted && process.open.contains_key(&id) {
                    process.shard.abandon(&id);
                }
            }
            CommitterEffect::Forgotten { .. } => {}
            CommitterEffect::Contradiction { id, what } => self.fail(format!("conductor, {id:?}: {what}")),
        }
    }

    /// The config servers' part of the transaction. Where they are the donor or the recipient, both of their statements are executed together.
    fn execute_here(&mut self, node: usize, id: MoveId, of: TransactionId, statement: MoveStatement) {
        let until = self.now + WAIT_MILLIS;
        let Some(process) = &mut self.nodes[node].process else { return };
        if !matches!(statement, MoveStatement::Directory { .. }) {
            process.moves.own_statement = Some(statement);
            return;
        }
        if let Some(own) = process.moves.own_statement.take() {
            let (from, directory) = (Address::Member(node), Some(statement));
            process.moves.statements.push(Statement {
                from,
                number: 0,
                id: of,
                statement: own,
                directory,
                until,
            });
            return self.pass_gate(node);
        }
        let result = self.change_directory(node, &of, &statement);
        self.executed_of_move(node, id, &shard_id(self.plan.config()), &of, result);
    }

    fn change_directory(
        &mut self,
        node: usize,
        id: &TransactionId,
        statement: &MoveStatement,
    ) -> Result<Executed, Misfit> {
        let misfit = |what: &str| Err(Misfit(what.to_owned()));
        let Some(process) = &mut self.nodes[node].process else { return misfit("it is down") };
        if !process.moves.gate.is_free() {
            return misfit("others change the directory");
        }
        let payload = entered(&process.store, statement)?;
        let Ok(executed) = process.shard.try_execute(id, None) else {
            return misfit("the transaction is not new");
        };
        process.moves.gate.hold_by_transaction(id.clone());
        let read_at = process.clock.time();
        process.open.insert(id.clone(), OpenWrites { executed, read_at, payload });
        Ok(executed)
    }

    pub(super) fn executed_of_move(
        &mut self,
        node: usize,
        id: MoveId,
        on: &ShardId,
        transaction: &TransactionId,
        result: Result<Executed, Misfit>,
    ) {
        let Some(process) = &mut self.nodes[node].process else { return };
        if let Some(conductor) = process.moves.conductors.get_mut(&id) {
            conductor.executed(on, transaction, result);
        }
    }

    /// An answer that a conductor waits for.
    pub(super) fn conductor_answered(&mut self, node: usize, called: Called, result: Return) {
        let Some(process) = &mut self.nodes[node].process else { return };
        match (called, result) {
            (Called::Recipient(id), Return::Move(answer, _)) => {
                if let Some(conductor) = process.moves.conductors.get_mut(&id) {
                    conductor.answered(answer);
                }
            }
            (Called::Commit { shard, transaction }, Return::Answer(answer)) => {
                process.moves.committer.answered(&shard_id(shard), &transaction, answer);
            }
            (Called::Statement { id, on, transaction }, result) => {
                let result = match result {
                    Return::Statement(result) => result,
                    _ => Err(Misfit("it is not the primary".to_owned())),
                };
                self.executed_of_move(node, id, &on, &transaction, result);
            }
            _ => {}
        }
    }

    /// What waits for the directory's documents to be free.
    pub(super) fn pass_directory(&mut self, node: usize) {
        let wall = self.wall(self.nodes[node].wall_wrong);
        let Some(process) = &mut self.nodes[node].process else { return };
        if process.store.table.is_none() {
            return;
        }
        if process.store.prepared.values().all(|payload| payload.chunks.is_empty()) {
            let table = process.store.table.as_ref().map(|table| table.0.clone());
            let now = process.clock.now(wall);
            for id in std::mem::take(&mut process.moves.reading) {
                if let Some(conductor) = process.moves.conductors.get_mut(&id) {
                    conductor.table(table.as_ref(), now);
                }
            }
            for (to, number) in std::mem::take(&mut process.moves.table_readers) {
                if let Some(table) = table.clone() {
                    self.give_back(node, to, number, Return::Table(table));
                }
            }
        }
        let Some(process) = &mut self.nodes[node].process else { return };
        if !process.moves.gate.is_free() {
            return;
        }
        let ids = process.moves.forgetting.iter().copied();
        let ids: Vec<MoveId> = ids.filter(|id| !is_locked(&process.store, *id)).collect();
        for id in ids {
            let Some(process) = &mut self.nodes[node].process else { return };
            process.moves.forgetting.remove(&id);
            let is_there = process.store.migrations.contains_key(&id);
            let payload = Payload { migration: Some((id, None)), ..Payload::default() };
            let at = if is_there { self.propose(node, payload) } else { None };
            let Some(process) = &mut self.nodes[node].process else { return };
            let known = process.moves.index;
            let index = match at {
                Some(at) => at.index,
                None if !is_there => known,
                None => continue,
            };
            process.moves.majority.entry(index).or_default().push(Then::Forgotten(id));
            let sure = process.member.commit_point().index;
            self.majority_for_moves(node, sure);
        }
    }

    /// An entry of the config servers is on a majority.
    pub(super) fn of_config(&mut self, node: usize, then: Then) {
        let Some(process) = &mut self.nodes[node].process else { return };
        match then {
            Then::Begun(id) => {
                if let Some(conductor) = process.moves.conductors.get_mut(&id) {
                    conductor.begun(Ok(()));
                }
            }
            Then::Forgotten(id) => {
                if let Some(conductor) = process.moves.conductors.get_mut(&id) {
                    conductor.forgotten();
                }
            }
            then => unreachable!("{then:?} does not wait for a majority"),
        }
    }
}

/// What is entered into the directory when a range has a new owner.
pub(super) fn entered(store: &Store, statement: &MoveStatement) -> Result<Payload, Misfit> {
    let misfit = |what: &str| Err(Misfit(what.to_owned()));
    let MoveStatement::Directory { the_move, chunks } = statement else {
        return misfit("that is for shards");
    };
    let is_there = store.migrations.contains_key(&the_move.id);
    if !is_there || store.prepared.values().any(|payload| !payload.chunks.is_empty()) {
        return misfit("others change the directory");
    }
    let Some(table) = &store.table else { return misfit("there is no directory") };
    if chunks.iter().any(|chunk| chunk.lastmod <= table.0.version().lastmod) {
        return misfit("the directory has changed since");
    }
    Ok(Payload { chunks: chunks.clone(), migration: Some((the_move.id, None)), ..Payload::default() })
}

/// Whether the transaction that ends this move is in doubt.
fn is_locked(store: &Store, id: MoveId) -> bool {
    let deletes = |payload: &Payload| payload.migration.as_ref().is_some_and(|(of, _)| *of == id);
    store.prepared.values().any(deletes)
}

/// A chunk or a part of one, to another shard; often back to where it came from.
fn choose(store: &Store, rng: &mut Rng, shards: usize, keys: u64, number: u64) -> Move {
    let table = &store.table.as_ref().expect("config servers have it").0;
    let chunk = rng.pick(table.chunks());
    let within: Vec<ShardKey> =
        (0..keys).map(shard_key).filter(|key| chunk.min < *key && *key < chunk.max).collect();
    let (mut min, mut max) = (chunk.min.clone(), chunk.max.clone());
    if !within.is_empty() && rng.percent(40) {
        let cut = rng.pick(&within).clone();
        if rng.percent(50) { min = cut } else { max = cut }
    }
    let from = chunk.shard().clone();
    let before = chunk.history.get(1).map(|owned| owned.shard.clone()).filter(|shard| *shard != from);
    let to = match before {
        Some(before) if rng.percent(50) => before,
        _ => {
            let other = 1 + rng.below(shards as u64 - 1) as usize;
            shard_id((shard_number(&from) + other) % shards)
        }
    };
    let mut id = [0; 16];
    id[..8].copy_from_slice(&number.to_be_bytes());
    Move { id: MoveId(id), ns: "bank.accounts".into(), uuid: UUID, pattern: pattern(), min, max, from, to }
}
