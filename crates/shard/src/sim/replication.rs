//! Members at work: the core's effects performed, units written, applied and synced.

use bytes::Bytes;
use sheaf_repl::rng::mix;
use sheaf_repl::{Effect, LogPosition, Persist};

use crate::LogRecord;
use crate::time::ClusterTime;
use crate::transaction::Record;

use super::Mutation;
use super::message::{Address, Message};
use super::node::payload_of;
use super::store::Payload;
use super::world::{Event, World};

/// How long decisions wait for something that is to be synced anyway: from the patience of who wants them confirmed to the time after which
/// a log is synced in any case.
const DECISIONS_WAIT_MILLIS: (u64, u64) = (4, 100);

/// Whether a unit holds nothing that somebody waits for at once.
fn only_decides(persist: &Persist, payloads: &[Payload]) -> bool {
    let decides = |payload: &Payload| {
        let Some(LogRecord::Transaction(record)) = &payload.record else { return false };
        matches!(record, Record::Commit { .. } | Record::Settled { .. })
    };
    !persist.entries.is_empty()
        && persist.entries.iter().all(|entry| payload_of(&entry.payload, payloads).is_some_and(decides))
}

impl World {
    pub(super) fn start(&mut self, node: usize) {
        if self.nodes[node].process.is_some() {
            return;
        }
        let seed = mix(self.plan.seed ^ node as u64);
        let first = self.plan.first_store(self.nodes[node].shard);
        self.nodes[node].start(seed, first, &self.payloads);
        let incarnation = self.nodes[node].incarnation;
        self.tally.restarts += u64::from(incarnation > 1);
        let first = self.rng.below(25);
        self.after(first, Event::Tick { node, incarnation });
    }

    /// Ends a process, or switches its machine off; it comes back after a while.
    pub(super) fn stop(&mut self, node: usize, machine: bool, back_after: u64) {
        if self.nodes[node].process.take().is_none() {
            return;
        }
        let at = &mut self.nodes[node];
        at.paused_until = 0;
        if machine {
            at.disk.crash_machine(&mut self.rng)
        } else {
            at.disk.crash_process()
        }
        let (shard, id) = (at.shard, at.id);
        let first = shard * self.plan.members;
        for peer in (first..first + self.plan.members).filter(|peer| *peer != node) {
            let incarnation = self.nodes[peer].incarnation;
            self.after(1, Event::ConnectionLost { node: peer, incarnation, peer: id });
        }
        self.after(back_after, Event::Restart { node });
    }

    pub(super) fn tick(&mut self, node: usize) {
        let wall = self.wall(self.nodes[node].wall_wrong);
        let (now, incarnation) = (self.now, self.nodes[node].incarnation);
        let Some(process) = &mut self.nodes[node].process else { return };
        process.member.observe_time(process.clock.time().bits());
        process.member.tick(now, wall / 1_000_000);
        let time = process.clock.now(wall);
        process.shard.tick(now, time);
        if self.plan.moves {
            self.tick_moves(node);
        }
        let Some(process) = &mut self.nodes[node].process else { return };
        let gap = process.member.tick_millis();
        self.settle_node(node);
        self.after(gap, Event::Tick { node, incarnation });
    }

    /// Performs effects until there are none.
    pub(super) fn settle_node(&mut self, node: usize) {
        loop {
            let incarnation = self.nodes[node].incarnation;
            let Some(process) = &mut self.nodes[node].process else { return };
            let of_member = process.member.poll();
            let of_shard = process.shard.poll();
            let nothing = of_member.is_empty() && of_shard.is_empty();
            for effect in of_member {
                self.perform(node, effect);
            }
            for effect in of_shard {
                self.perform_of_shard(node, effect);
            }
            if self.nodes[node].incarnation != incarnation {
                return;
            }
            let moved = self.plan.moves && self.settle_moves(node);
            if nothing && !moved {
                return;
            }
        }
    }

    fn perform(&mut self, node: usize, effect: Effect) {
        match effect {
            Effect::Send { host, envelope } => {
                if let Some(to) = self.nodes.iter().position(|other| other.host == host) {
                    self.send(Address::Member(node), Address::Member(to), Message::Repl(Box::new(envelope)));
                }
            }
            Effect::Persist(persist) => self.persist(node, persist),
            Effect::CommitPoint(at) => self.commit_point(node, at),
            Effect::Role(role) => self.role(node, role.writable),
            Effect::Fetch { token, low, high, .. } => {
                let at = &mut self.nodes[node];
                let entries = (low..high).map_while(|index| at.disk.image.entry(index).cloned()).collect();
                if let Some(process) = &mut at.process {
                    process.member.fetched(token, entries);
                }
            }
            Effect::InitialSync { .. } => {
                self.fail(format!("machine {node} has a whole log and wants a copy"))
            }
            Effect::Refused { what, .. } => self.fail(format!("machine {node} refuses {what}")),
            Effect::Resolved { .. } | Effect::SteppedDown(_) | Effect::Reconfigured(_) => {}
        }
    }

    fn role(&mut self, node: usize, writable: bool) {
        let below = self.mutation == Some(Mutation::ClockBelowCeiling);
        let Some(process) = &mut self.nodes[node].process else { return };
        if process.leading == writable {
            return;
        }
        process.leading = writable;
        if writable {
            let applied = process.member.positions().applied.index;
            process.last_index = process.last_index.max(applied);
            process.shard.became_primary(process.member.term(), process.last_index);
            if below {
                process.shard.poll();
            }
            self.tally.primaries += 1;
        } else {
            process.shard.lost_primary();
            process.open.clear();
            process.writing.clear();
            process.ending.clear();
            process.moves.lost();
            process.written.clear();
            process.reads.clear();
            process.waits.clear();
            process.replies.clear();
            process.batches.clear();
            process.questions.clear();
        }
        self.trace(node as u64 ^ u64::from(writable) << 8);
    }

    /// Makes the payload the next entry. False: this member is not the primary.
    pub(super) fn propose(&mut self, node: usize, payload: Payload) -> Option<LogPosition> {
        let wall = self.wall(self.nodes[node].wall_wrong);
        let number = self.payloads.len() as u64;
        let process = self.nodes[node].process.as_mut()?;
        process.clock.follow(ClusterTime::from_bits(process.member.cluster_time()));
        let time = process.clock.stamp(wall);
        let at = process.member.propose(time.bits(), Bytes::copy_from_slice(&number.to_le_bytes())).ok()?;
        process.last_index = at.index;
        self.payloads.push(payload);
        Some(at)
    }

    fn persist(&mut self, node: usize, persist: Persist) {
        let Some(process) = &mut self.nodes[node].process else { return };
        process.to_write.push_back(persist);
        if process.to_write.len() == 1 {
            self.schedule_write(node);
        }
    }

    fn schedule_write(&mut self, node: usize) {
        let incarnation = self.nodes[node].incarnation;
        let millis = 1 + self.rng.below(self.plan.disk_millis.0);
        self.after(millis, Event::Write { node, incarnation });
    }

    fn schedule_apply(&mut self, node: usize) {
        let incarnation = self.nodes[node].incarnation;
        let millis = self.rng.below(self.plan.disk_millis.1 + 1);
        self.after(millis, Event::Apply { node, incarnation });
    }

    pub(super) fn write(&mut self, node: usize) {
        let at = &mut self.nodes[node];
        let Some(process) = &mut at.process else { return };
        let Some(mut persist) = process.to_write.pop_front() else { return };
        if persist.rollback.is_some() || persist.install.is_some() {
            if !process.to_apply.is_empty() {
                process.to_write.push_front(persist);
                return self.schedule_write(node);
            }
            // The process begins anew on what is left of the log.
            persist.entries.clear();
            at.disk.keep(&persist);
            at.disk.write(&persist);
            self.tally.rollbacks += 1;
            let back = self.rng.between(5, 60);
            return self.stop(node, false, back);
        }
        let waits = self.plan.decisions_wait && only_decides(&persist, &self.payloads);
        at.disk.keep(&persist);
        at.disk.write(&persist);
        process.written_seq = persist.seq;
        process.member.written(persist.seq);
        process.to_apply.push_back(persist);
        let (first, more) = (process.to_apply.len() == 1, !process.to_write.is_empty());
        if first {
            self.schedule_apply(node);
        }
        if more {
            self.schedule_write(node);
        }
        if waits {
            self.schedule_late_sync(node);
        } else {
            self.schedule_sync(node);
        }
        self.settle_node(node);
    }

    /// Decisions are synced with what comes next, or when those who want them confirmed have waited for a while.
    fn schedule_late_sync(&mut self, node: usize) {
        let incarnation = self.nodes[node].incarnation;
        let millis = self.rng.between(DECISIONS_WAIT_MILLIS.0, DECISIONS_WAIT_MILLIS.1);
        self.tally.late_decisions += 1;
        self.after(millis, Event::SyncDue { node, incarnation });
    }

    pub(super) fn sync_due(&mut self, node: usize) {
        if self.nodes[node].disk.unsynced() > 0 {
            self.schedule_sync(node);
        }
    }

    fn schedule_sync(&mut self, node: usize) {
        let at = &mut self.nodes[node];
        let Some(process) = &mut at.process else { return };
        if process.syncing {
            return;
        }
        process.syncing = true;
        let (ops, seq, incarnation) = (at.disk.unsynced(), process.written_seq, at.incarnation);
        let millis = 1 + self.rng.below(self.plan.disk_millis.2);
        self.after(millis, Event::Synced { node, incarnation, ops, seq });
    }

    pub(super) fn synced(&mut self, node: usize, ops: usize, seq: u64) {
        let at = &mut self.nodes[node];
        let Some(process) = &mut at.process else { return };
        process.syncing = false;
        at.disk.sync(ops);
        process.member.durable(seq);
        if process.written_seq > seq {
            self.schedule_sync(node);
        }
        self.settle_node(node);
    }

    pub(super) fn apply(&mut self, node: usize) {
        let Some(process) = &mut self.nodes[node].process else { return };
        let Some(persist) = process.to_apply.pop_front() else { return };
        let more = !process.to_apply.is_empty();
        for entry in &persist.entries {
            let payload = payload_of(&entry.payload, &self.payloads);
            self.apply_entry(node, entry.at.index, ClusterTime::from_bits(entry.time), payload.cloned());
        }
        if let Some(process) = &mut self.nodes[node].process {
            process.member.applied(persist.seq);
        }
        if more {
            self.schedule_apply(node);
        }
        if self.plan.moves {
            self.pass_gate(node);
        }
        if let Some(last) = persist.entries.last() {
            self.answer_batches(node, last.at.index);
        }
        self.settle_node(node);
    }

    fn apply_entry(&mut self, node: usize, index: u64, time: ClusterTime, payload: Option<Payload>) {
        let mutation = self.mutation;
        let Some(process) = &mut self.nodes[node].process else { return };
        process.clock.follow(time);
        let Some(payload) = payload else {
            process.shard.applied(index, time, None);
            return self.applied_for_moves(node, index, None);
        };
        let made = process.store.apply(time, &payload);
        if payload.record.is_none() {
            process.writing.retain(|key| !payload.writes.contains_key(key));
        }
        process.shard.applied(index, time, payload.record.as_ref());
        self.applied_for_moves(node, index, made.as_ref());
        let Some(process) = &mut self.nodes[node].process else { return };
        let Some(LogRecord::Transaction(record)) = &payload.record else { return };
        if let Record::Prepare { id, .. } | Record::Alone { id } = record {
            process.open.remove(id);
            process.ending.remove(id);
        }
        let early = match record {
            Record::Abort { .. } => mutation == Some(Mutation::AbortBeforeDurable),
            Record::Prepare { .. } => mutation == Some(Mutation::PrepareBeforeDurable),
            Record::Commit { .. } => mutation == Some(Mutation::DecisionBeforeDurable),
            _ => false,
        };
        if early {
            process.shard.majority(index);
        }
        match record {
            Record::Commit { id, .. } => self.ended_for_moves(node, id, true),
            Record::Abort { id } => self.ended_for_moves(node, id, false),
            _ => {}
        }
        if let Record::Commit { id, at } = record {
            let check = self.judge.committed(id, *at);
            self.check(check);
        }
    }

    fn commit_point(&mut self, node: usize, at: LogPosition) {
        self.trace(at.index << 8 ^ 7);
        let shard = self.nodes[node].shard;
        let from = self.judge.known(shard);
        for index in from + 1..=at.index {
            let Some(entry) = self.nodes[node].disk.image.entry(index).cloned() else { break };
            let payload = payload_of(&entry.payload, &self.payloads).cloned();
            let is_ceiling =
                payload.as_ref().is_some_and(|of| matches!(of.record, Some(LogRecord::Ceiling(_))));
            self.tally.ceilings += u64::from(is_ceiling);
            let check = self.judge.entry(shard, index, ClusterTime::from_bits(entry.time), payload);
            self.check(check);
        }
        let Some(process) = &mut self.nodes[node].process else { return };
        process.shard.majority(at.index);
        self.tell_written(node, at.index);
        self.majority_for_moves(node, at.index);
    }
}
