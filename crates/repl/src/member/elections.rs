//! Time-outs, elections, takeover, and messages of the consensus protocol on their way in.

use std::cmp::Reverse;
use std::sync::Arc;

use raft::StateRole;
use raft::eraftpb::{Message as RaftMessage, MessageType};

use super::errors;
use super::ids::{member_id, raft_id};
use super::parts::ElectionReason;
use super::{Body, Effect, Filling, Member};
use crate::config::ConfigVersion;
use crate::log_view::time_of;
use crate::types::{LogPosition, MemberState};

/// Ticks of raft-rs in an election time-out.
pub(super) const ELECTION_TICKS: usize = 20;
/// Ticks of raft-rs between heartbeats of the primary.
pub(super) const HEARTBEAT_TICKS: usize = 2;
/// How often a member lets others stand before it, until it hears of a primary.
const YIELDS_MAX: u32 = 4;
/// How many entries a member may be behind and still be offered the lead.
const TAKEOVER_LAG_MAX: u64 = 1000;

impl Member {
    /// The longest useful time between ticks: short enough for elections that do not wait for the time-out.
    pub fn tick_millis(&self) -> u64 {
        self.raft_tick_millis().min(50)
    }

    /// Milliseconds of a tick of raft-rs.
    pub(super) fn raft_tick_millis(&self) -> u64 {
        (self.election_timeout() / ELECTION_TICKS as u64).max(1)
    }

    /// One tick of raft-rs: heartbeats and the check for a quorum of a primary, the lease of the others.
    pub(super) fn tick_raft(&mut self) {
        let useless = self.is_stalled() && !self.leaves_to_another() || !self.hears_majority();
        if let Some(raft) = &mut self.raft {
            raft.tick();
            if useless
                && raft.raft.state == StateRole::Leader
                && raft.raft.prs().conf().voters().ids().len() > 1
            {
                // A primary whose disk takes nothing serves nobody, nor does one that hears no majority.
                let term = raft.raft.term;
                raft.raft.become_follower(term, raft::INVALID_ID);
            }
        }
        self.after_step();
    }

    /// A primary whose disk takes nothing offers the lead, once, to a member that can have it: the others hear this one, and would wait for
    /// another election time-out. Whether an offer may be taken yet.
    fn leaves_to_another(&mut self) -> bool {
        if self.is_handing_over() {
            return true;
        }
        self.offer_once(self.any_successor())
    }

    /// The disk soon has no room for what adds to the data, or has some again. A primary offers the lead, once, to a member that has room. Returns whether
    /// one is about to take it.
    pub fn short_of_room(&mut self, short: bool) -> bool {
        if std::mem::replace(&mut self.short_of_room, short) != short {
            self.hurry_pings();
        }
        if !short || !self.is_primary() || self.would_lack_room(true) {
            return false;
        }
        self.is_handing_over() || self.offer_once(self.successor(0.0, true))
    }

    /// The disk has so little room that whoever hands over for want of some had better not choose this one, or has more again: disks that are alike
    /// are full at the same time, and the lead would go in circles, which a client that tries once again does not survive.
    pub fn little_room(&mut self, little: bool) {
        if std::mem::replace(&mut self.little_room, little) != little {
            self.hurry_pings();
        }
    }

    /// Whether so many other members have no room on their disks that what adds to the data would be of no majority. Arbiters have room, so that where there is
    /// one a primary goes on alone, as it does without the others; and who is away has some when it comes.
    pub fn others_lack_room(&self) -> bool {
        self.would_lack_room(false)
    }

    /// Whether what adds to the data would not get to a majority, if this member lacks room or not.
    fn would_lack_room(&self, this_does: bool) -> bool {
        let Some(config) = &self.config else { return false };
        let lacks = |id: u64| match Some(id) == self.me {
            true => this_does,
            false => self.peers.get(&id).is_some_and(|peer| peer.short_of_room && self.is_up(peer)),
        };
        config.voters().filter(|member| !lacks(member.id)).count() < config.majority_vote_count()
    }

    fn offer_once(&mut self, successor: Option<u64>) -> bool {
        let (Some(successor), Some(leading)) = (successor, &mut self.leading) else { return false };
        if std::mem::replace(&mut leading.offered, true) {
            return false;
        }
        self.hand_over_to(successor);
        true
    }

    /// Whether a majority of the voters was heard of within the election time-out: before the others can elect
    /// a new one, or soon after, an isolated primary is none any more. (raft-rs looks only once per time-out, so
    /// that it may take twice as long.)
    fn hears_majority(&self) -> bool {
        let (Some(config), Some(leading)) = (&self.config, &self.leading) else { return true };
        let since = self.now.saturating_sub(self.election_timeout());
        if since < leading.since {
            return true;
        }
        let heard = |id: u64| {
            Some(id) == self.me
                || self.peers.get(&id).is_some_and(|peer| peer.heard_at.is_some_and(|at| at >= since))
        };
        config.voters().filter(|member| heard(member.id)).count() >= config.majority_vote_count()
    }

    /// Campaigns when no primary was heard of, offers the lead to a member of higher priority.
    pub(super) fn tick_elections(&mut self) {
        if self.is_leader() {
            self.offer_takeover();
            return;
        }
        if self.now >= self.election_deadline && !self.hint_is_void() {
            // Also who may not stand has no primary any more.
            if let Some(raft) = self.raft.as_mut().filter(|raft| raft.raft.state == StateRole::Follower) {
                raft.raft.leader_id = raft::INVALID_ID;
            }
            self.stand(ElectionReason::ElectionTimeout);
        }
    }

    /// Who has begun a set asks for votes when a majority has the configuration, without which nobody votes.
    pub(super) fn hurry_first_election(&mut self) {
        if self.first_election && self.config_committed() {
            self.first_election = false;
            (self.attempts, self.in_vain) = (0, 0);
            self.election_deadline = self.now;
        }
    }

    /// Stands for election, if this member may.
    pub(super) fn stand(&mut self, reason: ElectionReason) {
        // Each attempt waits longer than the one before: how long an election takes depends on the disks.
        let timeout = self.election_timeout();
        let patience = (timeout / 20) << self.in_vain.min(5);
        self.attempts += 1;
        self.in_vain += 1;
        self.election_deadline = self.now + patience / 2 + self.rng.below(patience + 1);
        // A term and a vote that the disk does not have yet are an attempt that has not begun.
        let voting = self.pending.iter().any(|pending| pending.vote && !pending.acknowledged);
        if voting || (!self.is_electable() && !self.may_stand_in()) {
            return;
        }
        self.note_candidacy(reason);
        self.forget_lost_leader();
        if let Some(raft) = &mut self.raft {
            errors::stepped(raft.campaign());
            self.after_step();
        }
    }

    /// Whether to lead for a moment although of priority 0: when the members that could be primary have
    /// lost entries which this one has, none of them can win until they got those back. A stand-in takes no
    /// writes, is not shown as primary, and hands over as soon as another can lead.
    fn may_stand_in(&self) -> bool {
        let votes = self.my_config().is_some_and(|me| me.is_voter() && me.bears_data() && me.priority <= 0.0);
        votes && self.attempts > 4 && self.is_in_order() && self.has_persisted_all()
    }

    /// Whether its data is of use, and its disk takes more.
    fn is_in_order(&self) -> bool {
        self.raft.is_some()
            && !self.syncing
            && self.maintenance == 0
            && !self.is_stalled()
            && !self.pending.iter().any(|pending| pending.rollback || pending.install)
    }

    fn has_persisted_all(&self) -> bool {
        self.raft.as_ref().is_some_and(|raft| raft.raft.raft_log.persisted == raft.raft.raft_log.last_index())
    }

    /// Puts off this member's next campaign, as contact with a primary does.
    pub(super) fn put_off_election(&mut self) {
        let timeout = self.election_timeout();
        // A member without data lets others go first.
        let empty = if self.view().last().index == 0 { timeout / 2 } else { 0 };
        self.election_deadline = self.now + timeout + empty + self.rng.below(timeout * 15 / 100 + 2);
    }

    /// A member that has just started does not wait for a primary as long as one that knew of it: if there is one, it will
    /// be heard of, or those who hear it say no. When all of a set was down, it has a primary again soon.
    pub(super) fn ask_early(&mut self) {
        if self.is_only_voter() {
            // There is nobody to hear of, and nobody else to say no.
            self.election_deadline = self.now;
        } else if self.view().last().index > 0 {
            let timeout = self.election_timeout();
            let early = self.now + timeout / 5 + self.rng.below(timeout / 10 + 1);
            self.election_deadline = self.election_deadline.min(early);
        }
    }

    /// A member that was away is heard again. Who has asked in vain without it, and so waits for long between two attempts, asks soon,
    /// and often again: it may be what a majority was missing. First a primary has the time to be heard of.
    pub(super) fn ask_who_has_come(&mut self) {
        let has_data = self.view().last().index > 0;
        if !has_data || self.leader().is_some() || self.is_leader() {
            return;
        }
        let timeout = self.election_timeout();
        let soon = self.now + timeout / 8 + self.rng.below(timeout / 20 + 1);
        self.election_deadline = self.election_deadline.min(soon);
        self.in_vain = 0;
    }

    fn is_only_voter(&self) -> bool {
        self.config.as_ref().is_some_and(|config| {
            config.majority_vote_count() == 1 && config.voters().all(|member| Some(member.id) == self.me)
        })
    }

    /// Whether this member would win an election if all others agreed.
    pub fn is_electable(&self) -> bool {
        self.can_lead() && self.has_persisted_all()
    }

    /// Whether it would, once its disk has what is on its way there, which is before anybody hears of it: a member that is written to is
    /// seldom without.
    pub(super) fn can_lead(&self) -> bool {
        self.my_config().is_some_and(|member| member.is_electable())
            && self.now >= self.frozen_until
            && self.is_in_order()
    }

    /// Whether the disk has not taken something for as long as an election time-out, or a tenth of it where it says that it does not.
    pub(super) fn is_stalled(&self) -> bool {
        let timeout = self.election_timeout();
        self.pending.front().is_some_and(|pending| self.now >= pending.since + timeout)
            || self.refused_since.is_some_and(|since| self.now >= since + timeout / 10)
    }

    /// The best member to hand the lead to: of the highest priority, then the furthest. `with_room`: none whose disk is full soon, or before long.
    fn successor(&self, priority_above: f64, with_room: bool) -> Option<u64> {
        let config = self.config.as_ref()?;
        let raft = self.raft.as_ref()?;
        let last = raft.raft.raft_log.last_index();
        let mut best: Option<(f64, u64, u64)> = None;
        for member in config.members.iter().filter(|m| Some(m.id) != self.me && m.is_electable()) {
            let Some(peer) = self.peers.get(&member.id) else { continue };
            let up = self.is_up(peer) && peer.electable && peer.state == MemberState::Secondary;
            let matched = raft.raft.prs().get(raft_id(member.id)).map_or(0, |progress| progress.matched);
            let lacks_room = with_room && (peer.short_of_room || peer.little_room);
            if !up || lacks_room || member.priority <= priority_above || matched + TAKEOVER_LAG_MAX < last {
                continue;
            }
            if best.is_none_or(|(priority, at, _)| (member.priority, matched) > (priority, at)) {
                best = Some((member.priority, matched, member.id));
            }
        }
        best.map(|(_, _, id)| id)
    }

    /// The best member to hand the lead to by somebody who must: one that has room, if there is one.
    pub(super) fn any_successor(&self) -> Option<u64> {
        self.successor(0.0, true).or_else(|| self.successor(0.0, false))
    }

    fn offer_takeover(&mut self) {
        let due = self.leading.as_ref().is_some_and(|leading| self.now >= leading.takeover_at);
        let stands_in = !self.is_primary();
        // Who changes priorities shall hear that it is done before the lead goes by them.
        let settled = self.config_was_committed(self.config_version());
        let busy = self.step_down.is_some() || self.reconfig.is_some() || !self.is_writable() || !settled;
        if !due || (busy && !stands_in) {
            return;
        }
        let mine = self.my_config().map_or(0.0, |member| member.priority);
        let Some(successor) = self.successor(mine, true) else { return };
        let again = self.now + self.election_timeout() / if stands_in { 10 } else { 1 };
        if let Some(leading) = &mut self.leading {
            leading.takeover_at = again;
        }
        self.hand_over_to(successor);
    }

    /// Offers the lead to a member. No writes are taken until it has taken it, or has not for too long.
    pub(super) fn hand_over_to(&mut self, successor: u64) {
        let patience = self.hand_over_patience();
        assert_ne!(Some(successor), self.me, "a primary hands over to another member");
        let leading = self.leading.as_mut().expect("only who leads hands the lead over");
        leading.hand_over_until = self.now + patience;
        let raft = self.raft.as_mut().expect("who leads has a raft node");
        raft.transfer_leader(raft_id(successor));
    }

    /// How long who was offered the lead may take.
    pub(super) fn hand_over_patience(&self) -> u64 {
        (self.election_timeout() / 5).max(500)
    }

    /// Whether another member was offered the lead.
    pub(super) fn is_handing_over(&self) -> bool {
        self.raft.as_ref().is_some_and(|raft| raft.raft.lead_transferee.is_some())
    }

    pub(super) fn tick_hand_over(&mut self) {
        let overdue = self.leading.as_ref().is_some_and(|leading| self.now >= leading.hand_over_until);
        if overdue
            && self.is_handing_over()
            && let Some(raft) = &mut self.raft
        {
            raft.raft.abort_leader_transfer();
        }
    }

    /// A message of the consensus protocol.
    pub(super) fn step_raft(
        &mut self,
        from: u64,
        host: &Arc<str>,
        config: ConfigVersion,
        mut message: RaftMessage,
    ) {
        let Some(raft) = &self.raft else { return };
        if message.from != raft_id(from) || message.to != raft.raft.id {
            return;
        }
        let kind = message.get_msg_type();
        match kind {
            MessageType::MsgRequestVote | MessageType::MsgRequestPreVote
                if self.config_version().newer_than(config) =>
            {
                // Who has an older configuration may count its votes wrongly.
                self.send_config(host, from);
                return;
            }
            MessageType::MsgTimeoutNow if !self.is_electable() => return,
            MessageType::MsgTimeoutNow => self.note_handed_over(),
            MessageType::MsgSnapshot if !self.take_snapshot_offer(&mut message) => return,
            MessageType::MsgAppend => {
                if self.syncing || self.my_config().is_none_or(|me| me.arbiter_only) {
                    return;
                }
                self.hold_back(&mut message);
                if self.filling == Some(Filling::Unknown) && message.term >= self.term() {
                    self.filling = Some(Filling::To(message.commit));
                    self.end_filling();
                }
                self.heed_what_is_wanted(&message);
            }
            // A member that lost entries it had acknowledged (only without a journal) has fewer than the
            // primary thinks.
            MessageType::MsgHeartbeat => message.commit = message.commit.min(self.view().last().index),
            MessageType::MsgPropose | MessageType::MsgTransferLeader | MessageType::MsgReadIndex => return,
            _ => {}
        }
        self.note_contact(kind, message.term);
        if kind == MessageType::MsgAppendResponse && !message.reject {
            self.note_match(from, message.term, message.index);
            self.note_fed(from, message.index);
        }
        if matches!(kind, MessageType::MsgRequestPreVote | MessageType::MsgRequestVote) {
            self.forget_lost_leader();
        }
        if kind == MessageType::MsgRequestPreVote {
            self.yield_candidacy(from, &message);
        }
        let tells_commit = kind == MessageType::MsgAppend && self.tells_commit_alone(&message);
        let raft = self.raft.as_mut().expect("what was noted above parks nobody");
        let vote_before = raft.raft.vote;
        errors::stepped(raft.step(message));
        let voted = raft.raft.vote != vote_before && raft.raft.vote != raft::INVALID_ID;
        match kind {
            MessageType::MsgRequestVote if voted => {
                self.wait_for_election(self.election_timeout() / 5);
                self.note_vote(from);
            }
            MessageType::MsgRequestPreVote => self.wait_for_candidate(from),
            MessageType::MsgAppend => self.note_answer(tells_commit),
            _ => {}
        }
        self.after_step();
    }

    /// Lets an election go on that another member has begun: at least `patience` and at most twice that.
    fn wait_for_election(&mut self, patience: u64) {
        let until = self.now + patience + self.rng.below(patience + 1);
        self.election_deadline = self.election_deadline.max(until);
    }

    /// Two members that ask for votes at once, each having its own vote already, would both fail. So the one
    /// of lower priority, or else the one with the higher `_id`, gives up when it hears of the other before
    /// it has voted for itself.
    fn yield_candidacy(&mut self, from: u64, message: &RaftMessage) {
        let (Some(config), Some(me)) = (&self.config, self.me) else { return };
        let rank = |id: u64| (config.member(id).map_or(0.0, |member| member.priority), Reverse(id));
        let last = self.view().last();
        let theirs = LogPosition::new(message.log_term, message.index);
        let better = theirs > last || (theirs == last && rank(from) > rank(me));
        let Some(raft) = &mut self.raft else { return };
        if raft.raft.state == StateRole::PreCandidate && better && self.yielded < YIELDS_MAX {
            let term = raft.raft.term;
            raft.raft.become_follower(term, raft::INVALID_ID);
        }
    }

    /// For the simulator: asks for votes at once, as a member does that was told it would get them. Elections in
    /// which several do are too rare otherwise.
    #[doc(hidden)]
    pub fn contest(&mut self) {
        if !self.is_electable() || self.is_leader() {
            return;
        }
        self.forget_lost_leader();
        if let Some(raft) = &mut self.raft {
            raft.raft.campaign(raft::CAMPAIGN_ELECTION);
            self.after_step();
        }
    }

    /// Does not stand while another member that would get this one's vote does.
    fn wait_for_candidate(&mut self, candidate: u64) {
        let Some(raft) = &self.raft else { return };
        let granted = raft.raft.msgs.last().is_some_and(|answer| {
            answer.get_msg_type() == MessageType::MsgRequestPreVoteResponse
                && answer.to == raft_id(candidate)
                && !answer.reject
        });
        // Not for ever: it may be one that can be heard and cannot hear.
        if granted && raft.raft.state == StateRole::Follower && self.yielded < YIELDS_MAX {
            self.yielded += 1;
            self.wait_for_election(self.election_timeout() / 20);
        }
    }

    fn note_contact(&mut self, kind: MessageType, term: u64) {
        let from_primary =
            matches!(kind, MessageType::MsgAppend | MessageType::MsgHeartbeat | MessageType::MsgSnapshot);
        if from_primary && term >= self.term() {
            (self.attempts, self.in_vain) = (0, 0);
            self.yielded = 0;
            self.end_hint();
            self.put_off_election();
        }
    }

    /// A member with `secondaryDelaySecs` takes only what is old enough; the rest will be sent again.
    fn hold_back(&self, message: &mut RaftMessage) {
        let delay = self.my_config().map_or(0, |me| me.secondary_delay_secs.max(0) as u64);
        if delay > 0 {
            let due = |time: u64| (time >> 32) + delay <= self.wall_secs;
            let count = message.entries.iter().take_while(|entry| due(time_of(entry))).count();
            message.entries.truncate(count);
        }
    }

    /// The primary's log begins after the end of this one. Returns whether raft-rs shall see the message:
    /// when the log turns out to have it all.
    fn take_snapshot_offer(&mut self, message: &mut RaftMessage) -> bool {
        let metadata = message.get_snapshot().get_metadata();
        let at = LogPosition::new(metadata.term, metadata.index);
        if message.term < self.term() || self.my_config().is_none_or(|me| me.arbiter_only) {
            return false;
        }
        let committed = self.raft.as_ref().map_or(0, |raft| raft.raft.raft_log.committed);
        if self.view().has(at) || at.index <= committed {
            if let Some(raft) = &self.raft {
                let members = raft.raft.prs().conf().to_conf_state();
                message.mut_snapshot().mut_metadata().set_conf_state(members);
            }
            return true;
        }
        self.note_contact(MessageType::MsgSnapshot, message.term);
        let installing = self.pending.iter().any(|pending| pending.install);
        if let Some(source) = member_id(message.from)
            && !self.syncing
            && !installing
        {
            self.syncing = true;
            self.out.push(Effect::InitialSync { source, at_least: at });
        }
        false
    }

    pub(super) fn send_config(&mut self, host: &Arc<str>, to: u64) {
        if let (Some(me), Some(config)) = (self.me, self.config.clone()) {
            self.send(host, to, me, Body::Config(config));
        }
    }
}
