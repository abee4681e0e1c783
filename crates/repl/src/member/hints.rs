//! Broken connections as a hint that the primary is gone.
//!
//! When a process is killed its connections break at once, and nobody has to wait for the election time-out. But a
//! connection may also break, or be refused in one direction only, while the primary is well. So a hint is no more
//! than that: it lets a member ask soon whether it would be elected, and lets it say yes to others that ask. Those who hear
//! the primary say no, and a word from the primary makes the hint void.

use raft::StateRole;

use super::Member;
use super::ids::raft_id;

impl Member {
    /// The connection to `peer` broke, or is refused; to be called again for every attempt that is refused, because
    /// messages that were on their way may be read after the end of the connection is seen.
    pub fn connection_lost(&mut self, peer: u64) {
        self.lost(peer, false);
    }

    /// The same of one whose proof is not taken, or that does not take this one's.
    pub fn not_believed(&mut self, peer: u64) {
        self.lost(peer, true);
    }

    fn lost(&mut self, peer: u64, unproved: bool) {
        let Some(known) = self.peers.get_mut(&peer) else { return };
        known.unproved = unproved;
        if std::mem::replace(&mut known.lost, true) {
            return;
        }
        // Whether it is refused is known only by trying.
        known.ping_due = 0;
        let follows = self.raft.as_ref().is_some_and(|raft| {
            raft.raft.state == StateRole::Follower && raft.raft.leader_id == raft_id(peer)
        });
        if !follows {
            return;
        }
        self.hint_at_loss();
    }

    /// The primary seems to be gone.
    pub(super) fn hint_at_loss(&mut self) {
        let timeout = self.election_timeout();
        self.hints.add(self.now, timeout, self.term());
        // A moment for the others to notice it too.
        let soon = self.now + timeout / 200 + self.rng.below(timeout / 50 + 1);
        if self.hints.are_believed() && soon < self.election_deadline {
            self.hints.bring_forward(self.election_deadline);
            self.election_deadline = soon;
        }
    }

    /// Whether this member follows a primary to which the connection is lost or that has fallen silent, and has not heard of it since.
    fn has_lost_leader(&self) -> bool {
        let peer = self.leader().and_then(|leader| self.peers.get(&leader));
        self.hints.are_believed() && peer.is_some_and(|peer| peer.lost || peer.silent)
    }

    /// Lets a member that has lost the primary too be voted for.
    pub(super) fn forget_lost_leader(&mut self) {
        let lost = self.has_lost_leader();
        if let Some(raft) = &mut self.raft
            && lost
            && raft.raft.state == StateRole::Follower
        {
            raft.raft.leader_id = raft::INVALID_ID;
        }
    }

    /// An election is due. Was it only so by a hint that has become void?
    pub(super) fn hint_is_void(&mut self) -> bool {
        let Some(before) = self.hints.take_deadline() else { return false };
        if self.leader().is_none() || self.has_lost_leader() {
            return false;
        }
        self.election_deadline = self.election_deadline.max(before);
        self.now < self.election_deadline
    }

    /// The primary was heard of.
    pub(super) fn end_hint(&mut self) {
        self.hints.take_deadline();
    }
}
