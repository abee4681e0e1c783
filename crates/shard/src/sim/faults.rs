//! What goes wrong, and whether the cluster has recovered from it.

use crate::transaction::Row;

use super::directory::shard_key;
use super::node::Process;
use super::world::{Event, World};

impl Process {
    /// What is left of moves.
    fn unfinished_moves(&self) -> Option<&'static str> {
        let filters = self.store.newest_placement().is_some_and(|placed| placed.placement.filters());
        let leads = self.leads();
        let left = [
            (filters, "marks"),
            (!self.store.migrations.is_empty(), "documents of moves"),
            (leads && !self.moves.conductors.is_empty(), "moves that it leads"),
            (leads && self.moves.recipients.moves().count() > 0, "moves that it receives"),
            (leads && !self.moves.removals.is_idle(), "something to remove"),
        ];
        left.into_iter().find(|(is, _)| *is).map(|(_, what)| what)
    }
}

impl World {
    /// One fault, and the time of the next.
    pub(super) fn fault(&mut self) {
        if self.calm {
            return;
        }
        let gap = 1 + self.rng.below(self.plan.fault_gap_millis);
        self.after(gap, Event::Fault);
        let node = self.victim();
        let kind = self.rng.below(100);
        self.trace(kind << 8 ^ node as u64);
        let back = self.rng.between(20, 2500);
        match kind {
            0..=11 => self.stop(node, false, back),
            12..=25 => self.stop(node, true, back),
            26..=37 => self.nodes[node].paused_until = self.now + self.rng.between(50, 3000),
            38..=52 => self.cut[node] = true,
            53..=62 => self.cut.fill(false),
            63..=77 => {
                let router = self.rng.below(self.routers.len() as u64) as usize;
                self.stop_router(router, back);
            }
            78..=83 => self.step_clock(node),
            84..=94 => {
                if let Some(process) = &mut self.nodes[node].process {
                    // Refused where it is not the primary.
                    let _ = process.member.step_down(100, 1000, false);
                }
                self.settle_node(node);
            }
            _ => {
                for node in 0..self.nodes.len() {
                    if self.rng.percent(70) {
                        let (machine, back) = (self.rng.percent(50), self.rng.between(20, 2500));
                        self.stop(node, machine, back);
                    }
                }
            }
        }
    }

    /// A machine; a primary more often than others.
    fn victim(&mut self) -> usize {
        let shard = self.rng.below(self.plan.sets() as u64) as usize;
        if self.rng.percent(60) {
            return self.guess(shard);
        }
        self.rng.below(self.nodes.len() as u64) as usize
    }

    /// Somebody sets a wall clock, forward or back.
    fn step_clock(&mut self, node: usize) {
        let by = self.rng.below(5000) as i64;
        self.nodes[node].wall_wrong += if self.rng.percent(50) { by } else { -by };
    }

    pub(super) fn begin_calm(&mut self) {
        self.calm = true;
        self.cut.fill(false);
        for node in &mut self.nodes {
            node.paused_until = node.paused_until.min(self.now);
        }
    }

    /// What keeps the cluster from being at rest.
    pub(super) fn unrest(&self) -> Option<String> {
        if let Some(client) = self.clients.iter().position(|client| !client.is_done()) {
            return Some(format!("client {client} has not done its work"));
        }
        if let Some(doubt) = self.judge.in_doubt() {
            return Some(doubt);
        }
        for shard in 0..self.plan.sets() {
            let members = self.nodes[shard * self.plan.members..].iter().take(self.plan.members);
            let mut first: Option<&super::node::Process> = None;
            for node in members {
                let Some(process) = &node.process else { return Some(format!("{} is down", node.host)) };
                let positions = process.member.positions();
                if process.member.commit_point() != positions.applied
                    || positions.applied != positions.durable
                {
                    return Some(format!("{} is not where its log is", node.host));
                }
                let over = |row: &Row| matches!(row, Row::Aborted | Row::Committed { settled: true, .. });
                if let Some((id, row)) = process.shard.rows().iter().find(|(_, row)| !over(row)) {
                    return Some(format!("{} has {row:?} of {id:?}", node.host));
                }
                // What a client has begun and given up stays open until its session's next transaction, or its end.
                if !process.writing.is_empty() {
                    return Some(format!("{} is writing", node.host));
                }
                if let Some(what) = process.unfinished_moves() {
                    return Some(format!("{} has {what}", node.host));
                }
                if first.is_some_and(|first| first.member.commit_point() != process.member.commit_point()) {
                    return Some(format!("{} is not where others are", node.host));
                }
                first = Some(process);
            }
        }
        None
    }

    /// No document is on a shard that does not own it.
    fn check_places(&self) -> Result<(), String> {
        for node in &self.nodes {
            let Some(store) = node.process.as_ref().map(|process| &process.store) else { continue };
            let Some(placed) = store.newest_placement() else { continue };
            let there = store.versions.keys().filter(|key| store.newest(**key).is_some());
            if let Some(key) = there.into_iter().find(|key| !placed.placement.owns(&shard_key(**key))) {
                return Err(format!("{} has document {key}, which it does not own", node.host));
            }
        }
        Ok(())
    }

    /// Everything that must hold at rest.
    pub(super) fn final_judgement(&self) -> Result<(), String> {
        for shard in 0..self.plan.sets() {
            let members = &self.nodes[shard * self.plan.members..][..self.plan.members];
            let processes: Vec<_> = members.iter().filter_map(|node| node.process.as_ref()).collect();
            let rows = |process: &super::node::Process| -> Vec<_> {
                process.shard.rows().iter().map(|(id, row)| (id.clone(), row.clone())).collect()
            };
            for pair in processes.windows(2) {
                if pair[0].store != pair[1].store || rows(pair[0]) != rows(pair[1]) {
                    return Err(format!("members of shard {shard} differ at rest"));
                }
            }
        }
        self.check_places()?;
        self.judge.finish()
    }
}
