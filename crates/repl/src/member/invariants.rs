//! What holds of a member after each input and [`Member::poll`]. Checked wherever debug assertions are on: in tests, and in
//! the simulator.

use raft::StateRole;

use super::{Member, raft_id};

impl Member {
    /// Panics where the core contradicts itself. Takes the same time however long the log is.
    pub(super) fn check_invariants(&self) {
        self.check_positions();
        self.check_pending();
        self.check_office();
    }

    fn check_positions(&self) {
        let view = self.view();
        let last = view.last();
        let at = &self.positions;
        assert!(
            self.commit.index <= at.applied.index,
            "committed {:?}, applied {:?}",
            self.commit,
            at.applied
        );
        // A copy replaces log and state when its unit is carried out.
        if self.pending.iter().any(|pending| pending.install) {
            return;
        }
        assert!(at.written.index <= last.index, "written {:?}, the log ends at {last:?}", at.written);
        assert!(at.durable.index <= last.index, "durable {:?}, the log ends at {last:?}", at.durable);
        if let Some(term) = view.term_at(self.commit.index) {
            assert_eq!(term, self.commit.term, "the log has another entry at {:?}", self.commit);
        }
        // What is taken back is applied until that unit is carried out.
        if !self.pending.iter().any(|pending| pending.rollback) {
            assert!(
                at.applied.index <= at.written.index,
                "applied {:?}, written {:?}",
                at.applied,
                at.written
            );
            assert!(view.bounds().start.index <= at.applied.index, "the log begins after {:?}", at.applied);
        }
        let times = (self.times.front(), self.times.back());
        if let (Some(first), Some(end)) = times {
            assert!(first.index > self.commit.index || self.commit.index == view.bounds().start.index);
            assert_eq!(end.index, last.index, "the newest entry's time is known");
            assert_eq!(self.times.len() as u64, end.index - first.index + 1, "times are without gaps");
            assert!(first.time <= end.time && end.time <= self.cluster_time, "times rise");
        }
    }

    fn check_pending(&self) {
        if let (Some(first), Some(end)) = (self.pending.front(), self.pending.back()) {
            assert_eq!(end.seq + 1, self.next_seq, "units are numbered as they are made");
            assert_eq!(self.pending.len() as u64, end.seq - first.seq + 1, "no unit is missing");
        }
        assert!(self.durable_seq < self.next_seq && self.applied_seq < self.next_seq);
    }

    fn check_office(&self) {
        assert_ne!(self.raft.is_some(), self.parked.is_some(), "the log is in one place");
        assert_eq!(self.is_leader(), self.leading.is_some(), "who leads knows it");
        let Some(raft) = &self.raft else { return };
        let (Some(config), Some(me)) = (&self.config, self.me) else {
            panic!("a member without a configuration takes part");
        };
        assert_eq!(raft.raft.id, raft_id(me));
        assert!(config.member(me).is_some(), "member {me} is in its configuration");
        if let Some(leading) = &self.leading {
            assert_eq!(leading.term, raft.raft.term);
            assert!(leading.begin <= self.view().last().index.max(raft.raft.raft_log.last_index()));
        }
        assert!(raft.raft.raft_log.committed <= raft.raft.raft_log.last_index());
        assert!(self.commit.index <= raft.raft.raft_log.committed, "the commit point is the set's");
        let voters = raft.raft.prs().conf().voters().ids().len();
        assert_eq!(voters, config.voters().count(), "who votes is in the configuration");
        assert!(self.step_down.is_none() || !self.is_writable());
        assert!(raft.raft.state != StateRole::Leader || raft.raft.leader_id == raft.raft.id);
    }
}
