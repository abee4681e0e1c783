//! Giving up the lead: `replSetStepDown`, `replSetFreeze`, and the hand-over at shutdown.

use raft::eraftpb::{Message as RaftMessage, MessageType};
use sheaf_errors::{Code, Error, Result};

use super::errors::{self, not_primary};
use super::parts::{ElectionReason, StepDown};
use super::{Effect, Member};
use crate::types::MemberState;

impl Member {
    /// Hands the lead to the best secondary as soon as it has everything; no writes are taken meanwhile.
    /// If none has after `catch_up_millis`, steps down all the same when `force`, and otherwise stays. One that is
    /// close behind by then is given a moment more.
    /// [`Effect::SteppedDown`] tells the end. The member is not elected again for `step_down_millis`.
    pub fn step_down(&mut self, catch_up_millis: u64, step_down_millis: u64, force: bool) -> Result<()> {
        self.begin_step_down(catch_up_millis, step_down_millis, force, false)
    }

    /// A forced [`Member::step_down`] of a member that is about to end: for as long as `catch_up_millis` it waits for a member
    /// that can take the lead, and not at all where none can be reached, or none would be elected.
    pub fn hand_over(&mut self, catch_up_millis: u64) -> Result<()> {
        self.begin_step_down(catch_up_millis, catch_up_millis, true, true)
    }

    fn begin_step_down(
        &mut self,
        catch_up_millis: u64,
        step_down_millis: u64,
        force: bool,
        ending: bool,
    ) -> Result<()> {
        if !self.is_primary() {
            return Err(Error::new(Code::NOT_WRITABLE_PRIMARY, "not primary so can't step down"));
        }
        if self.step_down.is_some() {
            return Err(Error::new(
                Code::CONFLICTING_OPERATION_IN_PROGRESS,
                "There is already a step down in progress.",
            ));
        }
        self.step_down = Some(StepDown {
            deadline: self.now + catch_up_millis,
            until: self.now + step_down_millis,
            force,
            term: self.term(),
            offered: false,
            ending,
        });
        self.tick_step_down();
        Ok(())
    }

    pub(super) fn tick_step_down(&mut self) {
        let Some(step_down) = &self.step_down else { return };
        let (until, force, term) = (step_down.until, step_down.force, step_down.term);
        let in_vain = step_down.ending && !self.can_be_followed();
        let deadline = if in_vain { 0 } else { step_down.deadline };
        if !self.is_leader() || self.term() != term {
            self.end_step_down(until, Ok(()));
            return;
        }
        if self.now >= deadline && !in_vain && self.make_last_offer() {
            return;
        }
        if self.now >= deadline {
            if let Some(raft) = &mut self.raft {
                if force {
                    let term = raft.raft.term;
                    raft.raft.become_follower(term, raft::INVALID_ID);
                } else {
                    raft.raft.abort_leader_transfer();
                }
            }
            self.after_step();
            let result = if force { Ok(()) } else { Err(no_successor()) };
            self.end_step_down(until, result);
            return;
        }
        if !self.is_handing_over()
            && let Some(successor) = self.any_successor()
        {
            self.step_down.as_mut().expect("it was under way above").offered = true;
            self.hand_over_to(successor);
        }
    }

    /// Whether another member may come to lead while this one is still there: one that can be elected hears it, and enough do
    /// to elect it.
    fn can_be_followed(&self) -> bool {
        let Some(config) = &self.config else { return false };
        let up = |id: u64| self.peers.get(&id).filter(|peer| self.is_up(peer));
        let votes =
            config.voters().filter(|member| Some(member.id) == self.me || up(member.id).is_some()).count();
        let candidate = config.members.iter().any(|member| {
            member.is_electable()
                && Some(member.id) != self.me
                && up(member.id).is_some_and(|peer| peer.electable && peer.state == MemberState::Secondary)
        });
        candidate && votes >= config.majority_vote_count()
    }

    /// Even without time to catch up the lead goes to a member that can have it: otherwise the others would only
    /// notice after the election time-out. Returns whether there is one.
    fn make_last_offer(&mut self) -> bool {
        let Some(successor) = self.any_successor() else { return false };
        let patience = self.hand_over_patience();
        let step_down = self.step_down.as_mut().expect("an offer is a part of a step-down");
        if std::mem::replace(&mut step_down.offered, true) {
            return false;
        }
        step_down.deadline = self.now + patience;
        self.hand_over_to(successor);
        true
    }

    fn end_step_down(&mut self, until: u64, result: Result<()>) {
        assert!(self.step_down.take().is_some(), "a step-down that ends was under way");
        if result.is_ok() {
            self.frozen_until = self.frozen_until.max(until);
        }
        self.out.push(Effect::SteppedDown(result));
    }

    /// `replSetFreeze`: this member does not stand for election for that long; 0 ends it.
    pub fn freeze(&mut self, millis: u64) -> Result<()> {
        if self.is_primary() {
            return Err(Error::new(
                Code::NOT_SECONDARY,
                "cannot freeze node when primary or running for election. state: Primary",
            ));
        }
        self.frozen_until = if millis == 0 { 0 } else { self.now + millis };
        if millis == 0 {
            self.election_deadline = self.election_deadline.min(self.now + self.election_timeout() / 10);
        }
        Ok(())
    }

    /// `replSetStepUp`: stands for election now.
    pub fn step_up(&mut self) -> Result<()> {
        if self.is_leader() {
            return Ok(());
        }
        if !self.is_electable() {
            return Err(not_electable());
        }
        if self.primary().is_some() && self.would_win() {
            self.stand_against_primary();
        } else {
            self.stand(ElectionReason::StepUpRequest);
        }
        Ok(())
    }

    /// Whether a majority is not known to have anything that this member lacks: who hears a primary gives no preliminary
    /// votes, and an election that nobody wins leaves the set without a primary.
    fn would_win(&self) -> bool {
        let Some(config) = &self.config else { return false };
        let end = self.view().last();
        let agrees = |id: u64| {
            Some(id) == self.me
                || self.peers.get(&id).is_some_and(|peer| self.is_up(peer) && peer.reported.written <= end)
        };
        config.voters().filter(|member| agrees(member.id)).count() >= config.majority_vote_count()
    }

    /// Asks for votes as the successor that a primary has named does.
    fn stand_against_primary(&mut self) {
        self.note_candidacy(ElectionReason::StepUpRequest);
        if let Some(raft) = &mut self.raft {
            let mut now =
                RaftMessage { from: raft.raft.leader_id, to: raft.raft.id, ..RaftMessage::default() };
            now.set_msg_type(MessageType::MsgTimeoutNow);
            errors::stepped(raft.step(now));
            self.after_step();
        }
    }

    /// Whether a step-down is under way.
    pub fn is_stepping_down(&self) -> bool {
        self.step_down.is_some()
    }

    /// Refuses what only a primary may do.
    pub fn check_primary(&self) -> Result<()> {
        if self.is_writable() { Ok(()) } else { Err(not_primary()) }
    }
}

fn no_successor() -> Error {
    Error::new(
        Code::EXCEEDED_TIME_LIMIT,
        "No electable secondaries caught up as of the end of the catch up period. Please use the \
         replSetStepDown command with the argument {force: true} to force node to step down.",
    )
}

fn not_electable() -> Error {
    Error::new(Code::COMMAND_FAILED, "Election failed.")
}
