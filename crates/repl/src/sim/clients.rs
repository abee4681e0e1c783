//! Clients that write, and remember what they were promised.

use std::collections::BTreeMap;

use crate::effect::WaiterId;
use crate::write_concern::{W, WaitOutcome, WriteConcern};

use super::Mutation;
use super::checks::Write;
use super::model::payload;
use super::world::{Event, World};

/// The clients' memory.
#[derive(Default)]
pub(super) struct Clients {
    next: u64,
    /// A write's number, by machine, start of that machine, and wait.
    waiting: BTreeMap<(usize, u64, WaiterId), u64>,
    /// Likewise the linearizable reads: how much was committed anywhere when they began.
    reading: BTreeMap<(usize, u64, WaiterId), u64>,
    /// Writes with a majority acknowledged since the faults stopped.
    calm_acknowledged: u64,
    calm_since: Option<u64>,
}

impl Clients {
    /// Whether the set has shown that it works again.
    pub fn done(&self) -> bool {
        self.calm_acknowledged >= 3
    }

    pub fn calm(&mut self) {
        self.calm_since = Some(self.next);
    }
}

impl World {
    /// Some writes, to whoever takes them.
    pub(super) fn client(&mut self) {
        if !self.clients.done() {
            let gap = 1 + self.rng.below(self.plan.write_gap_millis);
            self.after(gap, Event::Client);
        }
        let awake = |node: &&usize| self.nodes[**node].paused_until <= self.now;
        let all: Vec<usize> = (0..self.nodes.len()).collect();
        let writable = |node: &&usize| self.nodes[**node].member.as_ref().is_some_and(|m| m.is_writable());
        let takers: Vec<usize> = all.iter().filter(awake).filter(writable).copied().collect();
        if takers.is_empty() {
            return;
        }
        let node = *self.rng.pick(&takers);
        for _ in 0..self.rng.between(1, 3) {
            self.write_one(node);
        }
        if self.rng.percent(30) {
            self.read_one(node);
        }
        self.poll(node);
    }

    /// A linearizable read must see what was committed anywhere before it began.
    fn read_one(&mut self, node: usize) {
        let committed = self.checker.committed();
        if self.mutation == Some(Mutation::ReadWithoutAsking) {
            self.check_read(node, committed);
            return;
        }
        let Some(member) = &mut self.nodes[node].member else { return };
        if let Ok(waiter) = member.read_barrier() {
            let incarnation = self.nodes[node].incarnation;
            self.clients.reading.insert((node, incarnation, waiter), committed);
        }
    }

    fn check_read(&mut self, node: usize, committed: u64) {
        self.report.reads += 1;
        let seen = self.nodes[node].commit.index;
        if seen < committed {
            self.check(Err(format!("machine {node} reads as of {seen} when {committed} was committed")));
        }
    }

    fn write_one(&mut self, node: usize) {
        let concern = self.draw_concern();
        let filler = if self.rng.percent(10) { self.rng.below(300) as usize } else { 0 };
        let key = self.rng.below(20);
        let wall = self.wall_of(node);
        let Some(member) = &mut self.nodes[node].member else { return };
        let uid = self.clients.next;
        let time = (wall << 32).max(member.cluster_time()) + 1;
        let Ok(at) = member.propose(time, payload(uid, key, filler)) else { return };
        self.clients.next += 1;
        self.checker.writes.insert(uid, Write { at, concern: concern.clone(), acknowledged: false });
        if let Ok(waiter) = member.wait(at, concern) {
            let incarnation = self.nodes[node].incarnation;
            self.clients.waiting.insert((node, incarnation, waiter), uid);
        }
    }

    fn draw_concern(&mut self) -> WriteConcern {
        if self.calm {
            return WriteConcern::majority();
        }
        let w = match self.rng.below(10) {
            0..=2 => W::Nodes(1),
            3 => W::Nodes(2),
            4 => W::Nodes(3),
            5 => W::Mode("twoCenters".into()),
            6 => W::Tags(vec![("dc".into(), 1), ("rack".into(), 2)]),
            _ => W::Majority,
        };
        WriteConcern { w, journal: self.rng.percent(self.plan.journal_percent) }
    }

    pub(super) fn resolved(&mut self, node: usize, waiter: WaiterId, outcome: WaitOutcome) {
        let incarnation = self.nodes[node].incarnation;
        if let Some(committed) = self.clients.reading.remove(&(node, incarnation, waiter)) {
            self.trace(waiter.0 << 4 ^ outcome.clone() as u64);
            match outcome {
                WaitOutcome::Satisfied => self.check_read(node, committed),
                _ => self.report.reads_refused += 1,
            }
            return;
        }
        let Some(uid) = self.clients.waiting.remove(&(node, incarnation, waiter)) else { return };
        self.trace(uid << 4 ^ outcome.clone() as u64);
        if outcome != WaitOutcome::Satisfied {
            return;
        }
        if self.clients.calm_since.is_some_and(|since| uid >= since) {
            self.clients.calm_acknowledged += 1;
        }
        let config = self.nodes[node].member.as_ref().and_then(|member| member.config().cloned());
        let hosts: Vec<_> = self.nodes.iter().map(|node| node.host.clone()).collect();
        let tags = |node: usize, tag: &str| -> Option<String> {
            let member = config.as_ref()?.member_at(hosts.get(node)?)?;
            member.tags.iter().find(|(name, _)| name == tag).map(|(_, value)| value.clone())
        };
        let check = self.checker.acknowledge(uid, &tags);
        self.check(check);
    }
}
