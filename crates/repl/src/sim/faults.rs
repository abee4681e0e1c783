//! What goes wrong.

use std::sync::Arc;

use crate::config::{MemberConfig, ReplSetConfig};

use super::machine::Machine;
use super::world::{Event, World};

impl World {
    /// One fault, and the time of the next.
    pub(super) fn fault(&mut self) {
        if self.calm {
            return;
        }
        let gap = 1 + self.rng.below(self.plan.fault_gap_millis);
        self.after(gap, Event::Fault);
        let node = self.victim();
        let kind = self.rng.below(120);
        self.trace(kind << 8 ^ node as u64);
        match kind {
            0..=11 => self.crash(node, false),
            12..=27 => self.crash(node, !self.plan.without_journal),
            28..=34 => self.pause(node),
            35..=46 => self.cut_off(node),
            47..=52 => self.split(),
            53..=60 => self.heal(),
            61..=65 => self.fill_disk(node),
            66..=69 => self.nodes[node].clock_ahead += 1000,
            70..=84 => self.reconfigure(),
            85..=87 => self.step_down(),
            88..=92 => self.contest(node),
            93..=94 => {
                if let Some(member) = &mut self.nodes[node].member {
                    let _ = member.freeze(1500);
                }
            }
            95..=96 => self.crash_all(),
            100..=105 => self.nodes[node].apply_fails = true,
            106..=110 => self.step_clock(node),
            111..=114 => self.nodes[node].ends_half_kept = true,
            115..=119 => self.nodes[node].panics_after = Some(self.rng.below(8)),
            _ => {
                if let Some(member) = &mut self.nodes[node].member {
                    let _ = member.step_up();
                }
                self.poll(node);
            }
        }
    }

    /// A machine; the primary more often than others.
    fn victim(&mut self) -> usize {
        let primaries: Vec<usize> = (0..self.nodes.len()).filter(|node| self.nodes[*node].primary).collect();
        if !primaries.is_empty() && self.rng.percent(40) {
            return *self.rng.pick(&primaries);
        }
        self.rng.below(self.nodes.len() as u64) as usize
    }

    /// Somebody sets a wall clock, by seconds or by hours. Not forward where a member keeps its distance by the clock: it
    /// would wait for as long.
    fn step_clock(&mut self, node: usize) {
        let most = if self.rng.percent(50) { 4 * 3600 } else { 30 };
        let by = self.rng.below(most) as i64;
        let delayed = self.plan.config.members.iter().any(|member| member.secondary_delay_secs > 0);
        let back = delayed || self.rng.percent(50);
        self.nodes[node].wall_wrong += if back { -by } else { by };
        self.report.clock_steps += 1;
    }

    pub(super) fn crash(&mut self, node: usize, machine: bool) {
        if self.nodes[node].member.is_none() {
            return;
        }
        self.stop(node, machine);
        let back = self.rng.between(20, 3000);
        self.after(back, Event::Restart { node });
    }

    /// Ends a process, or switches its machine off.
    pub(super) fn stop(&mut self, node: usize, machine: bool) {
        self.nodes[node].stop();
        let disk = &mut self.nodes[node].disk;
        let kept = if machine { disk.crash_machine(&mut self.rng) } else { disk.crash_process() };
        for entry in kept {
            self.checker.durable(node, &entry);
        }
        if !machine {
            // Who was connected to the process learns at once that it is gone.
            for peer in (0..self.nodes.len()).filter(|peer| *peer != node) {
                let incarnation = self.nodes[peer].incarnation;
                self.after(1, Event::ConnectionLost { node: peer, incarnation, peer: node });
            }
        }
    }

    /// The primary goes, and the others all want to lead at once.
    fn contest(&mut self, node: usize) {
        let node = (0..self.nodes.len()).find(|node| self.nodes[*node].primary).unwrap_or(node);
        self.crash(node, !self.plan.without_journal);
        // When all that was on its way has come and is on the disks.
        let quiet = self.plan.latency.1 + 2 * self.plan.disk_millis.2;
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            let incarnation = self.nodes[other].incarnation;
            self.after(quiet, Event::Contest { node: other, incarnation, peer: node });
        }
    }

    pub(super) fn contested(&mut self, node: usize, gone: usize) {
        self.connection_lost(node, gone);
        if let Some(member) = &mut self.nodes[node].member {
            member.contest();
        }
        self.poll(node);
    }

    fn crash_all(&mut self) {
        for node in 0..self.nodes.len() {
            if self.rng.percent(80) {
                self.crash(node, !self.plan.without_journal);
            }
        }
    }

    fn pause(&mut self, node: usize) {
        self.nodes[node].paused_until = self.now + self.rng.between(50, 2000);
    }

    fn fill_disk(&mut self, node: usize) {
        self.nodes[node].disk_full_until = self.now + self.rng.between(100, 2000);
    }

    /// Cuts one machine off, in one direction or both.
    fn cut_off(&mut self, node: usize) {
        let direction = self.rng.below(3);
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            if direction != 1 {
                self.cut[node][other] = true;
            }
            if direction != 0 {
                self.cut[other][node] = true;
            }
        }
    }

    /// Splits the set in two, perhaps with one way left open.
    fn split(&mut self) {
        let sides = self.rng.next();
        let one_way = self.rng.percent(30);
        for from in 0..self.nodes.len() {
            for to in 0..self.nodes.len() {
                let (a, b) = (sides >> from & 1, sides >> to & 1);
                if a != b && !(one_way && a == 0) {
                    self.cut[from][to] = true;
                }
            }
        }
    }

    fn heal(&mut self) {
        for row in &mut self.cut {
            row.fill(false);
        }
    }

    fn step_down(&mut self) {
        let catch_up = self.rng.between(50, 1000);
        let force = self.rng.percent(50);
        let primaries: Vec<usize> = (0..self.nodes.len()).filter(|node| self.nodes[*node].primary).collect();
        for node in primaries {
            if let Some(member) = &mut self.nodes[node].member {
                let _ = member.step_down(catch_up, catch_up + 500, force);
            }
            self.poll(node);
        }
    }

    /// A primary is asked for another configuration.
    fn reconfigure(&mut self) {
        let writable = |node: &usize| self.nodes[*node].member.as_ref().is_some_and(|m| m.is_writable());
        let primaries: Vec<usize> = (0..self.nodes.len()).filter(writable).collect();
        if primaries.is_empty() {
            return;
        }
        let node = *self.rng.pick(&primaries);
        let Some(config) = self.nodes[node].member.as_ref().and_then(|member| member.config().cloned())
        else {
            return;
        };
        let me = self.nodes[node].host.clone();
        let new = self.draw_config(&config, &me);
        if let Some(member) = &mut self.nodes[node].member {
            let _ = member.reconfig(new, false, None);
        }
        self.poll(node);
    }

    fn draw_config(&mut self, old: &ReplSetConfig, me: &str) -> ReplSetConfig {
        let mut new = old.clone();
        new.version += 1;
        for member in &mut new.members {
            member.newly_added = false;
        }
        let others: Vec<usize> = (0..new.members.len()).filter(|at| &*new.members[*at].host != me).collect();
        let outside: Vec<Arc<str>> = self
            .nodes
            .iter()
            .map(|node| node.host.clone())
            .filter(|host| old.member_at(host).is_none())
            .collect();
        match self.rng.below(6) {
            0 | 1 if !outside.is_empty() => {
                let host = self.rng.pick(&outside).clone();
                let mut member = MemberConfig::new(self.next_id, host);
                self.next_id += 1;
                member.tags = vec![("dc".into(), "south".into()), ("rack".into(), format!("r{}", member.id))];
                if self.rng.percent(30) {
                    member.votes = 0;
                    member.priority = 0.0;
                }
                new.members.push(member);
            }
            2 if !others.is_empty() => {
                let at = *self.rng.pick(&others);
                new.members.remove(at);
            }
            3 if !others.is_empty() => {
                let at = *self.rng.pick(&others);
                if !new.members[at].arbiter_only && !new.members[at].hidden {
                    let votes = new.members[at].votes;
                    new.members[at].votes = 1 - votes;
                    new.members[at].priority = (1 - votes) as f64;
                }
            }
            _ => {
                if let Some(at) = others.first()
                    && new.members[*at].priority > 0.0
                {
                    new.members[*at].priority = self.rng.between(1, 5) as f64;
                }
            }
        }
        new
    }

    /// A member that was away while all that it knew were replaced listens to nobody: somebody looks after it, reads in its
    /// log what it has refused, and forces the set's configuration on it.
    pub(super) fn look_after_members(&mut self) {
        self.after(3000, Event::Operator);
        let primary =
            |node: &&Machine| node.member.as_ref().is_some_and(|m| m.is_writable() && m.config_committed());
        let Some(config) =
            self.nodes.iter().find(primary).and_then(|node| node.member.as_ref()?.config().cloned())
        else {
            return;
        };
        if config.members.iter().any(|member| member.newly_added) {
            return;
        }
        for node in 0..self.nodes.len() {
            let knows_nobody = std::mem::take(&mut self.nodes[node].knows_nobody);
            let Some(id) = config.member_at(&self.nodes[node].host).map(|member| member.id) else { continue };
            let Some(member) = &mut self.nodes[node].member else { continue };
            let other = member.config().is_some_and(|own| own.config_version() != config.config_version());
            if knows_nobody && other && member.reconfig(ReplSetConfig::clone(&config), true, Some(id)).is_ok()
            {
                self.report.forced += 1;
                self.poll(node);
                return;
            }
        }
    }

    /// The faults are over.
    pub(super) fn begin_calm(&mut self) {
        self.calm = true;
        self.heal();
        self.clients.calm();
        self.after(5000, Event::Operator);
        for node in 0..self.nodes.len() {
            self.nodes[node].paused_until = self.now;
            self.nodes[node].disk_full_until = self.now;
            self.nodes[node].apply_fails = false;
            self.nodes[node].panics_after = None;
            self.nodes[node].ends_half_kept = false;
            self.nodes[node].wall_wrong = 0;
            if self.nodes[node].member.is_none() {
                self.start(node);
            }
        }
    }
}
