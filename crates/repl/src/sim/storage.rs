//! Disks at work: units written, applied, synced; entries read again; copies made.

use crate::effect::Persist;
use crate::types::LogPosition;

use super::Mutation;
use super::checks::Checker;
use super::world::{Event, World};

impl World {
    pub(super) fn persist(&mut self, node: usize, persist: Persist) {
        self.trace(
            persist.seq << 24 ^ (persist.entries.len() as u64) << 4 ^ u64::from(persist.rollback.is_some()),
        );
        self.nodes[node].to_write.push_back(persist);
        if self.nodes[node].to_write.len() == 1 {
            self.schedule_write(node);
        }
    }

    pub(super) fn schedule_write(&mut self, node: usize) {
        let incarnation = self.nodes[node].incarnation;
        let full = self.nodes[node].disk_full_until.saturating_sub(self.now);
        let millis = full + 1 + self.rng.below(self.plan.disk_millis.0);
        self.after(millis, Event::Write { node, incarnation });
    }

    pub(super) fn write(&mut self, node: usize) {
        if self.nodes[node].disk_full_until > self.now {
            if self.mutation == Some(Mutation::SkipOnFullDisk) {
                self.pass_over(node);
                return;
            }
            self.schedule_write(node);
            return;
        }
        // The log is only cut when all of it has been applied.
        let cuts = |persist: &Persist| persist.rollback.is_some() || persist.install.is_some();
        if !self.nodes[node].to_apply.is_empty() && self.nodes[node].to_write.front().is_some_and(cuts) {
            self.schedule_write(node);
            return;
        }
        let Some(mut persist) = self.nodes[node].to_write.pop_front() else { return };
        let seq = persist.seq;
        let restart = self.plan.restarts && cuts(&persist) && self.mutation != Some(Mutation::SkipRollback);
        if restart {
            persist.entries.clear();
        }
        self.check_rollback(node, &persist);
        let known = self.nodes[node].disk.image.hard_state.term;
        let term = persist.hard_state.map_or(known, |hard_state| hard_state.term);
        let too_much = self.mutation == Some(Mutation::KeepCommitBeforeCut);
        self.nodes[node].disk.keep(&persist, too_much);
        self.check_kept(node);
        if cuts(&persist) && !self.calm && (self.nodes[node].ends_half_kept || self.rng.percent(15)) {
            self.report.half_kept += 1;
            let machine = !self.plan.without_journal && self.rng.percent(50);
            self.crash(node, machine);
            return;
        }
        let lost = self.nodes[node].disk.write(&persist);
        for entry in &lost {
            let check = self.checker.rolled_back(node, term, entry);
            self.check(check);
        }
        self.report.rolled_back += lost.len() as u64;
        self.report.rollbacks += u64::from(persist.rollback.is_some());
        if let Some(at) = persist.install {
            self.check_installed(node, at);
        }
        if restart {
            self.restart_in_place(node);
            return;
        }
        self.nodes[node].written_seq = seq;
        let incarnation = self.nodes[node].incarnation;
        self.nodes[node].to_apply.push_back(persist);
        if self.nodes[node].to_apply.len() == 1 {
            let millis = self.rng.below(self.plan.disk_millis.1 + 1);
            self.after(millis, Event::Apply { node, incarnation });
        }
        if !self.nodes[node].to_write.is_empty() {
            self.schedule_write(node);
        }
        self.schedule_sync(node);
        let too_early = self.mutation == Some(Mutation::AcknowledgeBeforePersisting);
        if let Some(member) = &mut self.nodes[node].member {
            member.written(seq);
            if too_early {
                member.durable(seq);
            }
        }
        self.poll(node);
    }

    /// The planted bug: a unit that found no room is taken for written.
    fn pass_over(&mut self, node: usize) {
        let Some(unit) = self.nodes[node].to_write.pop_front() else { return };
        self.nodes[node].written_seq = unit.seq;
        if !self.nodes[node].to_write.is_empty() {
            self.schedule_write(node);
        }
        self.schedule_sync(node);
        if let Some(member) = &mut self.nodes[node].member {
            member.written(unit.seq);
            member.applied(unit.seq);
        }
        self.poll(node);
    }

    /// The commit point that is kept names what the set has committed also if the machine stops now, and with it what the log
    /// has that is not synced.
    fn check_kept(&mut self, node: usize) {
        let synced = &self.nodes[node].disk.synced;
        let at = synced.hard_state.commit;
        let (found, committed) = (synced.chain(at), self.checker.chain(at));
        if found.is_some() && committed.is_some() && found != committed {
            self.check(Err(format!("machine {node} keeps commit point {at} ahead of its log")));
        }
    }

    /// The process begins anew with what the disk has; nobody was told anything of the unit just written.
    fn restart_in_place(&mut self, node: usize) {
        self.report.restarts += 1;
        self.stop(node, false);
        let back = self.rng.between(5, 60);
        self.after(back, Event::Restart { node });
    }

    /// What is to be taken back is exactly the end of the log, and none of it committed.
    pub(super) fn check_rollback(&mut self, node: usize, persist: &Persist) {
        let Some(rollback) = persist.rollback else { return };
        let machine = &self.nodes[node];
        let log = &machine.disk.image;
        let kept = log.entry(rollback.keep.index).map_or(log.start, |entry| entry.at);
        let check = if log.last() != rollback.last || kept != rollback.keep {
            Err(format!("machine {node} shall roll back {rollback:?}, its log ends at {:?}", log.last()))
        } else if rollback.keep.index < machine.commit.index {
            Err(format!("machine {node} rolls back to {:?}, behind {:?}", rollback.keep, machine.commit))
        } else {
            Ok(())
        };
        self.check(check);
    }

    pub(super) fn check_installed(&mut self, node: usize, at: LogPosition) {
        let chain = self.nodes[node].disk.flushed.chain;
        if self.checker.chain(at.index) != Some(chain) {
            self.check(Err(format!(
                "machine {node} has a copy as of {at:?} that is not the committed state"
            )));
        }
        self.checker.holds_all(node, at.index);
    }

    pub(super) fn schedule_sync(&mut self, node: usize) {
        let machine = &mut self.nodes[node];
        if machine.syncing {
            return;
        }
        machine.syncing = true;
        let full = machine.disk_full_until.saturating_sub(self.now);
        let (ops, seq, incarnation) = (machine.disk.unsynced(), machine.written_seq, machine.incarnation);
        let millis = full + 1 + self.rng.below(self.plan.disk_millis.2);
        self.after(millis, Event::Synced { node, incarnation, ops, seq });
    }

    pub(super) fn synced(&mut self, node: usize, ops: usize, seq: u64) {
        let machine = &mut self.nodes[node];
        machine.syncing = false;
        for entry in machine.disk.sync(ops) {
            self.checker.durable(node, &entry);
        }
        let more = machine.written_seq > seq;
        if let Some(member) = &mut machine.member {
            member.durable(seq);
        }
        if more {
            self.schedule_sync(node);
        }
        self.poll(node);
    }

    pub(super) fn apply(&mut self, node: usize) {
        let incarnation = self.nodes[node].incarnation;
        if self.nodes[node].disk_full_until > self.now {
            // It is the next one again as soon as there is room.
            let millis = self.nodes[node].disk_full_until - self.now;
            self.after(millis, Event::Apply { node, incarnation });
            return;
        }
        let Some(mut persist) = self.nodes[node].to_apply.pop_front() else { return };
        if !self.nodes[node].to_apply.is_empty() {
            let millis = self.rng.below(self.plan.disk_millis.1 + 1);
            self.after(millis, Event::Apply { node, incarnation });
        }
        if self.nodes[node].apply_fails && !persist.entries.is_empty() {
            self.nodes[node].apply_fails = false;
            if self.mutation != Some(Mutation::ApplyPastFailure) {
                self.report.apply_failures += 1;
                self.crash(node, false);
                return;
            }
            persist.entries.clear();
        }
        let skip = self.mutation == Some(Mutation::SkipRollback);
        let machine = &mut self.nodes[node];
        if persist.install.is_some() {
            machine.model = machine.disk.flushed.clone();
        }
        if let Some(rollback) = persist.rollback
            && !skip
        {
            machine.model = machine.disk.model_before(rollback.keep.index, &machine.model);
        }
        if self.mutation == Some(Mutation::ApplyOutOfOrder) && persist.entries.len() > 1 {
            persist.entries.reverse();
        }
        for entry in &persist.entries {
            if entry.at.index != machine.model.at.index + 1 && self.mutation.is_none() {
                let (at, reached) = (entry.at, machine.model.at);
                self.failure.get_or_insert(format!("machine {node} applies {at:?} after {reached:?}"));
                return;
            }
            machine.model.apply(entry);
            self.checker.applied(node, entry);
        }
        let seq = persist.seq;
        self.check_applied(node, &persist);
        if let Some(member) = &mut self.nodes[node].member {
            member.applied(seq);
        }
        self.poll(node);
    }

    /// The state is that of the log.
    pub(super) fn check_applied(&mut self, node: usize, persist: &Persist) {
        let machine = &self.nodes[node];
        let Some(last) = persist.entries.iter().map(|entry| entry.at).max() else { return };
        if machine.disk.image.chain(last.index) != Some(machine.model.chain) {
            self.check(Err(format!("machine {node} has applied something else than its log up to {last:?}")));
        }
    }

    pub(super) fn commit_point(&mut self, node: usize, at: LogPosition) {
        self.trace(at.index << 8 ^ 7);
        let from = self.nodes[node].commit.index.max(self.nodes[node].disk.image.start.index);
        let term = self.nodes[node].member.as_ref().map_or(0, |member| member.term());
        for index in from + 1..=at.index {
            let check = match self.nodes[node].disk.image.entry(index) {
                Some(entry) => {
                    let entry = entry.clone();
                    self.checker.commit(node, term, &entry)
                }
                None => Err(format!("machine {node} commits {index}, which its log does not have")),
            };
            self.check(check);
        }
        let machine = &self.nodes[node];
        let applied = machine.model.at;
        let entry_time = machine.disk.image.entry(at.index).map(|entry| entry.time);
        let told = machine.member.as_ref().map(|member| member.commit_time());
        if applied.index < at.index {
            self.check(Err(format!("machine {node} commits {at:?}, having applied {applied:?}")));
        }
        if entry_time.is_some() && entry_time != told {
            self.check(Err(format!("machine {node} commits {at:?} of {entry_time:?} as of {told:?}")));
        }
        self.nodes[node].commit = at;
    }

    pub(super) fn fetch(&mut self, node: usize, token: u64, low: u64, high: u64, bytes_max: u64) {
        self.report.fetches += 1;
        let log = &self.nodes[node].disk.image;
        let mut bytes = 0;
        let mut entries = Vec::new();
        for entry in (low..high).map_while(|index| log.entry(index)) {
            bytes += entry.payload.len() as u64 + 40;
            if !entries.is_empty() && bytes > bytes_max {
                break;
            }
            entries.push(entry.clone());
        }
        if let Some(member) = &mut self.nodes[node].member {
            member.fetched(token, entries);
        }
        // What comes of it is done behind what is being done, as by the driver, which answers on another thread.
        self.nodes[node].told = true;
    }

    pub(super) fn initial_sync(&mut self, node: usize, source: u64, at_least: LogPosition) {
        let config = self.nodes[node].member.as_ref().and_then(|member| member.config().cloned());
        let host = config.and_then(|config| config.member(source).map(|member| member.host.clone()));
        let incarnation = self.nodes[node].incarnation;
        let millis = self.rng.between(5, 200);
        // Without a source the copy fails, after a while.
        let source = host.and_then(|host| self.node_at(&host)).unwrap_or(node);
        self.after(millis, Event::Copied { node, incarnation, source, at_least });
    }

    pub(super) fn copied(&mut self, node: usize, source: usize, at_least: LogPosition) {
        let cut = self.cut[source][node] && !self.calm;
        let from = &self.nodes[source];
        let at = from.member.as_ref().map(|member| member.commit_point());
        let fresh = at.filter(|at| at.index >= at_least.index && source != node && !cut);
        let fresh = fresh.filter(|at| at.index >= from.disk.flushed.at.index);
        let copy = fresh.map(|at| from.disk.model_at(at.index));
        let machine = &mut self.nodes[node];
        let Some(member) = &mut machine.member else { return };
        match copy {
            Some(model) => {
                let (at, time) = (model.at, model.time);
                self.report.initial_syncs += 1;
                machine.disk.incoming = Some(model);
                member.initial_sync_finished(at, time);
            }
            None => member.initial_sync_failed(),
        }
        self.poll(node);
    }

    /// Flushes and cuts logs off at the front.
    pub(super) fn housekeeping(&mut self) {
        let gap = self.rng.between(50, 300);
        self.after(gap, Event::Housekeeping);
        let node = self.rng.below(self.nodes.len() as u64) as usize;
        let short = self.rng.percent(50);
        let machine = &mut self.nodes[node];
        let Some(member) = &mut machine.member else { return };
        let busy = machine
            .to_write
            .iter()
            .chain(&machine.to_apply)
            .any(|p| p.rollback.is_some() || p.install.is_some());
        if machine.paused_until > self.now || busy {
            return;
        }
        let synced = member.positions().durable.index;
        let upto = member.commit_point().index.min(synced).min(machine.disk.image.last().index);
        if upto < machine.disk.image.start.index {
            return;
        }
        machine.disk.flush(upto);
        let keep = if short { 5 } else { 100 };
        let cut = machine.disk.flushed.at.index.saturating_sub(keep).min(synced);
        if cut > machine.disk.image.start.index && cut > machine.disk.synced.start.index {
            machine.disk.compact(cut);
            member.compacted(cut);
        }
    }
}

impl Checker {
    /// A machine has got everything up to `index` by a copy.
    fn holds_all(&mut self, node: usize, index: u64) {
        let writes: Vec<u64> =
            self.writes.iter().filter(|(_, write)| write.at.index <= index).map(|(uid, _)| *uid).collect();
        for uid in writes {
            self.mark(node, uid);
        }
    }
}
