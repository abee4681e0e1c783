//! A member serving routers and other shards.

use std::collections::BTreeMap;

use crate::placement::Belief;
use crate::time::ClusterTime;
use crate::transaction::{Executed, Record, ReplyId, Request, Row, WaiterId};
use crate::types::TransactionId;
use crate::{Answer, LogRecord, ReaderId, ShardEffect, Until};

use super::Mutation;
use super::directory::{shard_id, shard_number};
use super::message::{Address, Call, Change, Message, Op, Retryable, Return, Seen};
use super::node::{Reader, Reading};
use super::state::Then;
use super::store::{Payload, Statements, Value};
use super::world::World;

impl World {
    /// A time has come with a message.
    pub(super) fn observe_at(&mut self, node: usize, time: ClusterTime) {
        if self.mutation == Some(Mutation::TimesNotObserved) {
            return;
        }
        let wall = self.wall(self.nodes[node].wall_wrong);
        if let Some(process) = &mut self.nodes[node].process {
            process.clock.observe(time, wall).expect("clocks are wrong by seconds only");
        }
    }

    /// A call has come, with a time that was observed.
    pub(super) fn serve(&mut self, node: usize, from: Address, number: u64, call: Call) {
        let wall = self.wall(self.nodes[node].wall_wrong);
        let Some(process) = &mut self.nodes[node].process else { return };
        let now = process.clock.now(wall);
        match call {
            Call::Request(request) => self.request(node, from, number, request, now),
            _ if !process.leads() => self.give_back(node, from, number, Return::NotPrimary),
            Call::Decide { all, applied: true } => self.decide(node, from, number, all),
            Call::Decide { all, applied: false } => self.is_decided(node, from, number, all),
            Call::Execute { id, after, read_at, op, belief } => {
                let at = read_at.unwrap_or(now);
                let reading = Reading::Execute { id, after, op, belief };
                self.read(node, Reader { from, number, at, reading }, Until::Applied, now);
            }
            Call::ReadAt { at, keys, belief } => {
                let reader = Reader { from, number, at, reading: Reading::At { keys, belief } };
                self.read(node, reader, Until::Final, now);
            }
            Call::Write { change, retryable, belief } => {
                let result = self.plain_write(node, from, number, change, retryable, belief);
                if let Some(result) = result {
                    self.give_back(node, from, number, result);
                }
            }
            Call::ReadTable => {
                process.moves.table_readers.push((from, number));
                self.pass_directory(node);
            }
            Call::Move(request) => self.move_request(node, from, number, request),
            Call::Statement { id, statement } => self.move_statement(node, from, number, id, statement),
        }
        self.settle_node(node);
    }

    pub(super) fn give_back(&mut self, node: usize, to: Address, number: u64, result: Return) {
        let Some(process) = &self.nodes[node].process else { return };
        let time = process.clock.time();
        self.send(Address::Member(node), to, Message::Return { number, time, result });
    }

    fn request(&mut self, node: usize, from: Address, number: u64, mut request: Request, now: ClusterTime) {
        let mutation = self.mutation;
        let Some(process) = &mut self.nodes[node].process else { return };
        match &mut request {
            Request::Commit { id, at } if mutation == Some(Mutation::OwnCommitTime) => {
                if let Some(Row::Prepared { at: own, .. }) = process.shard.rows().get(id) {
                    *at = *own;
                }
            }
            Request::Prepare { id, executed, .. } if mutation == Some(Mutation::PrepareInPart) => {
                if let Some(open) = process.open.get(id) {
                    *executed = open.executed;
                }
            }
            Request::Confirm { .. } if mutation == Some(Mutation::ConfirmUnasked) && process.leads() => {
                return self.give_back(node, from, number, Return::Answer(Answer::Confirmed));
            }
            _ => {}
        }
        let reply = ReplyId(process.next_number());
        process.replies.insert(reply, (from, number));
        process.shard.request(reply, request, now);
    }

    pub(super) fn perform_of_shard(&mut self, node: usize, effect: ShardEffect) {
        let is_told = match &effect {
            ShardEffect::Reply { to, answer } => self.question_answered(node, *to, answer),
            ShardEffect::NotPrimary { to } => self.question_refused(node, *to),
            _ => false,
        };
        if is_told {
            return;
        }
        let Some(process) = &mut self.nodes[node].process else { return };
        match effect {
            ShardEffect::Observe(time) => process.clock.follow(time),
            ShardEffect::Append(record) => self.append(node, record),
            ShardEffect::Discard { id, opening } => {
                if process.open.get(&id).is_some_and(|open| open.executed.opening == opening) {
                    process.open.remove(&id);
                    self.ended_for_moves(node, &id, false);
                }
            }
            ShardEffect::Reply { to, answer } => {
                if let Some((from, number)) = process.replies.remove(&to) {
                    self.give_back(node, from, number, Return::Answer(answer));
                }
            }
            ShardEffect::NotPrimary { to } => {
                if let Some((from, number)) = process.replies.remove(&to) {
                    self.give_back(node, from, number, Return::NotPrimary);
                }
            }
            ShardEffect::Wake { waiter, .. } => {
                if let Some(reader) = process.waits.remove(&waiter) {
                    self.look(node, reader);
                }
            }
            ShardEffect::Ready(reader) => {
                if let Some(reader) = process.reads.remove(&reader) {
                    self.look(node, reader);
                }
            }
            ShardEffect::Send { to, request } => {
                let Some(id) = request.id().cloned().or_else(|| settled_id(&request)) else { return };
                let shard = shard_number(&to);
                self.next_call += 1;
                let (number, time) = (self.next_call, process.clock.time());
                self.tally.settled += u64::from(matches!(request, Request::Ask { .. }));
                process.calls.insert(number, (shard, id));
                let to = Address::Member(self.guess(shard));
                self.send(
                    Address::Member(node),
                    to,
                    Message::Call { number, time, call: Call::Request(request) },
                );
            }
            ShardEffect::Contradiction { id, what } => self.fail(format!("machine {node}, {id:?}: {what}")),
        }
    }

    fn append(&mut self, node: usize, record: LogRecord) {
        let mutation = self.mutation;
        let Some(process) = &mut self.nodes[node].process else { return };
        let mut payload = Payload::default();
        if let LogRecord::Transaction(Record::Prepare { id, .. } | Record::Alone { id }) = &record {
            // An open transaction of the machine's is one of the driver's.
            let open = process.open.get(id).expect("what is prepared is open");
            if !open.payload.writes.is_empty() && !process.may_write(open.read_at, mutation) {
                process.shard.append_failed(&record);
                return process.shard.abandon(id);
            }
            payload = open.payload.clone();
            process.ending.insert(id.clone());
        }
        payload.record = Some(record.clone());
        if self.propose(node, payload).is_none()
            && let Some(process) = &mut self.nodes[node].process
        {
            process.shard.append_failed(&record);
        }
    }

    /// Another shard has answered.
    pub(super) fn member_answered(&mut self, node: usize, number: u64, result: Return) {
        if self.move_answered(node, number, &result) {
            return self.settle_node(node);
        }
        let Some(process) = &mut self.nodes[node].process else { return };
        let Some((shard, id)) = process.calls.remove(&number) else { return };
        if let Return::Answer(answer) = result {
            process.shard.answered(&shard_id(shard), &id, answer);
        }
        self.settle_node(node);
    }

    // Readers.

    fn read(&mut self, node: usize, reader: Reader, until: Until, now: ClusterTime) {
        let Some(process) = &mut self.nodes[node].process else { return };
        let id = ReaderId(process.next_number());
        let at = reader.at;
        process.reads.insert(id, reader);
        process.shard.read(id, at, process.last_index, until, now);
    }

    /// The reader looks, unless it meets what is in doubt.
    fn look(&mut self, node: usize, reader: Reader) {
        let past = self.mutation == Some(Mutation::ReadPastDoubt);
        let newest = self.mutation == Some(Mutation::NewestTableAtT);
        let has_places = !self.plan.moves;
        let Some(process) = &mut self.nodes[node].process else { return };
        if !process.leads() {
            return self.give_back(node, reader.from, reader.number, Return::NotPrimary);
        }
        let keys = match &reader.reading {
            Reading::Execute { op, .. } => op.keys(),
            Reading::At { keys, .. } => keys.clone(),
        };
        let in_doubt = |id: &&TransactionId| process.shard.is_in_doubt(id, Some(reader.at));
        let doubt = process.store.holders(&keys).find(in_doubt).cloned();
        if let Some(id) = doubt.filter(|_| !past) {
            self.tally.waited += 1;
            let waiter = WaiterId(process.next_number());
            process.waits.insert(waiter, reader);
            return process.shard.wait(&id, waiter);
        }
        let (Reading::Execute { belief, .. } | Reading::At { belief, .. }) = &reader.reading;
        let owned_at = if newest { ClusterTime::from_bits(u64::MAX) } else { reader.at };
        if !process.store.is_believed(*belief, owned_at) {
            self.tally.stale += 1;
            return self.give_back(node, reader.from, reader.number, Return::Stale);
        }
        self.tally.by_history += u64::from(matches!(belief, Some(Belief::Owned { .. })));
        let result = match reader.reading {
            Reading::Execute { id, after, op, .. } => self.execute(node, &id, after, reader.at, &op),
            Reading::At { keys, .. } if has_places => {
                let seen =
                    keys.iter().map(|key| Seen { key: *key, value: process.store.read(*key, reader.at) });
                Return::Read(seen.collect())
            }
            Reading::At { .. } => {
                let visible = process.store.visible(reader.at).into_iter();
                Return::Read(visible.map(|(key, value)| Seen { key, value }).collect())
            }
        };
        self.give_back(node, reader.from, reader.number, result);
    }

    fn execute(
        &mut self,
        node: usize,
        id: &TransactionId,
        after: Option<Executed>,
        at: ClusterTime,
        op: &Op,
    ) -> Return {
        let mutation = self.mutation;
        let Some(process) = &mut self.nodes[node].process else { return Return::Failed };
        let Ok(executed) = process.shard.try_execute(id, after) else { return Return::Failed };
        let conflicts = |write: &Change| {
            process.conflicts(write.key, Some(id), Some(at)) || !process.may_write(at, mutation)
        };
        if op.write.as_ref().is_some_and(conflicts) {
            process.shard.abandon(id);
            return Return::Failed;
        }
        let store = &process.store;
        if after.is_none() {
            process.open.remove(id);
        }
        let open = process.open.entry(id.clone()).or_default();
        open.executed = executed;
        open.read_at = at;
        let value = |key| open.payload.writes.get(&key).copied().unwrap_or_else(|| store.read(key, at));
        let seen = op.keys().into_iter().map(|key| Seen { key, value: value(key) }).collect();
        if let Some(change) = op.write {
            let changed = change.of(value(change.key));
            open.payload.writes.insert(change.key, changed);
        }
        Return::Executed { executed, read_at: at, seen }
    }

    /// A write without a transaction: on the newest state, visible at once, acknowledged by a majority. None: it will be answered.
    fn plain_write(
        &mut self,
        node: usize,
        from: Address,
        number: u64,
        change: Change,
        retryable: Option<Retryable>,
        belief: Option<Belief>,
    ) -> Option<Return> {
        let mutation = self.mutation;
        let newest = ClusterTime::from_bits(u64::MAX);
        let process = self.nodes[node].process.as_mut()?;
        if !process.may_write(newest, mutation) {
            return Some(Return::Failed);
        }
        if !process.store.is_believed(belief, newest) {
            self.tally.stale += 1;
            return Some(Return::Stale);
        }
        let mut statements = BTreeMap::new();
        if let Some(retryable) = retryable {
            let known = process.store.statements.get(&retryable.lsid);
            match known.filter(|known| known.number >= retryable.number) {
                Some(known) if known.number > retryable.number => return Some(Return::Failed),
                Some(known) if known.executed.contains_key(&retryable.stmt) => {
                    let result = Return::Written { before: known.executed[&retryable.stmt] };
                    self.tally.repeated += 1;
                    let result = Box::new(result);
                    let then = Then::Answer { to: from, number, result };
                    process.moves.majority.entry(process.last_index).or_default().push(then);
                    let sure = process.member.commit_point().index;
                    self.majority_for_moves(node, sure);
                    return None;
                }
                _ => {}
            }
            let before = process.store.read(change.key, newest);
            let executed = BTreeMap::from([(retryable.stmt, before)]);
            statements.insert(retryable.lsid, Statements { number: retryable.number, executed });
        }
        if process.conflicts(change.key, None, None) {
            return Some(Return::Failed);
        }
        let before = process.store.read(change.key, newest);
        let writes = BTreeMap::from([(change.key, change.of(before))]);
        let payload = Payload { writes, statements, ..Payload::default() };
        let Some(at) = self.propose(node, payload) else { return Some(Return::NotPrimary) };
        self.judge.plain(change, before);
        if let Some(process) = &mut self.nodes[node].process {
            process.writing.insert(change.key);
            process.written.insert(at.index, (from, number, before));
        }
        None
    }

    /// Answers plain writes that are on a majority.
    pub(super) fn tell_written(&mut self, node: usize, index: u64) {
        while let Some(process) = &mut self.nodes[node].process
            && let Some(entry) = process.written.first_entry()
            && *entry.key() <= index
        {
            let (to, number, before) = entry.remove();
            self.give_back(node, to, number, Return::Written { before });
        }
    }
}

impl Change {
    /// The document with this change.
    pub fn of(self, before: Value) -> Value {
        Value { balance: before.balance + self.delta, writer: self.writer }
    }
}

fn settled_id(request: &Request) -> Option<TransactionId> {
    match request {
        Request::Settled { ids } => ids.first().cloned(),
        _ => None,
    }
}
