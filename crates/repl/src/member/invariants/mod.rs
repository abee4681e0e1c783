//! What holds of a member whenever [`Member::poll`] has run: one function for each, with the reason why it holds.
//!
//! [`Member::check_invariants`] goes through all of them. It runs at the end of each poll where
//! [`MemberOptions::check_invariants`](super::MemberOptions) is set: in tests, in debug builds, and in the simulator,
//! however it is built. What a single input must find is asserted where that input is read, in every build.
//!
//! Nothing here is about what another member says: that is refused ([`super::plausible`]), never asserted. What comes from
//! another member is believed only once it is in this member's log or in [`super::peers`], with the rules of these in between.

use raft::{RawNode, StateRole};

use super::Member;
use super::ids::{member_id, raft_id};
use super::parts::{Leading, Window};
use crate::log_view::LogView;

mod steps;

pub(super) use steps::Before;

/// What holds at any time, in the order in which a reader would ask.
const ALWAYS: [fn(&Member); 16] = [
    the_log_is_in_one_place,
    the_log_view_is_without_gaps,
    what_is_committed_is_applied,
    what_is_committed_stays_in_the_log,
    what_is_applied_was_written,
    what_is_said_of_the_disk_is_in_the_log,
    times_rise_with_the_index,
    units_are_numbered_without_gaps,
    units_are_acknowledged_in_order,
    who_leads_knows_it,
    only_a_primary_takes_writes,
    only_a_primary_has_waits,
    waits_are_counted_once,
    windows_add_up,
    followers_are_within_the_primarys_log,
    an_election_is_fought_by_members,
];

/// What holds while the member takes part in the consensus group.
const IN_THE_GROUP: [fn(&Member, &RawNode<LogView>); 6] = [
    the_group_is_the_configuration,
    raft_ends_where_the_log_ends,
    the_commit_point_is_the_sets,
    the_hard_state_is_on_its_way_to_the_disk,
    raft_has_nothing_left_to_say,
    the_term_began_in_the_log,
];

impl Member {
    /// Panics where the core contradicts itself, with what was seen. The time that it takes grows with the number of members,
    /// units under way and kinds of write concern, and not with the log.
    pub fn check_invariants(&self) {
        ALWAYS.iter().for_each(|holds| holds(self));
        if let Some(raft) = &self.raft {
            IN_THE_GROUP.iter().for_each(|holds| holds(self, raft));
        }
    }

    fn now_for_steps(&self) -> Before {
        let (term, vote) = match (&self.raft, &self.parked) {
            (Some(raft), _) => (raft.raft.term, member_id(raft.raft.vote)),
            (None, Some((_, hard_state))) => (hard_state.term, hard_state.vote),
            (None, None) => unreachable!("the log is with the raft node or parked"),
        };
        Before {
            term,
            vote,
            commit: self.commit,
            positions: self.positions,
            seqs: [self.next_seq, self.applied_seq, self.durable_seq],
            config: self.config_version(),
            cluster_time: self.cluster_time,
            topology_version: self.role.topology_version,
            start: self.view().bounds().start,
            last: self.view().last(),
            leading: self.leading.as_ref().map(|leading| (leading.term, leading.begin)),
            undoing: self.is_undoing(),
        }
    }

    /// Panics where this poll has taken back what the one before it had settled.
    pub(super) fn check_step(&mut self) {
        let now = self.now_for_steps();
        if let Some(before) = &self.before {
            before.check(&now);
        }
        self.before = Some(Box::new(now));
    }

    /// Whether the end of the log, or all of it, is being replaced: then what is applied is not what the log says, until that
    /// unit is applied too.
    fn is_undoing(&self) -> bool {
        self.pending.iter().any(|pending| pending.rollback || pending.install)
    }

    fn is_installing(&self) -> bool {
        self.pending.iter().any(|pending| pending.install)
    }
}

/// The log moves between raft-rs and [`Member::parked`] as a whole: `mem::take` on the one side, `Option::take` on the other.
fn the_log_is_in_one_place(member: &Member) {
    assert_ne!(member.raft.is_some(), member.parked.is_some(), "the log is with raft-rs, or parked");
}

/// Entries are appended one behind another, cut from the end, or removed from the front.
fn the_log_view_is_without_gaps(member: &Member) {
    member.view().check();
}

/// The commit point is the lower of what the set has committed and what is applied here, and what is committed is not undone.
fn what_is_committed_is_applied(member: &Member) {
    let (commit, applied) = (member.commit, member.positions.applied);
    assert!(commit.index <= applied.index, "committed {commit:?}, applied {applied:?}");
}

/// Only entries behind the commit point are replaced. (A copy replaces the log before it is the state.)
fn what_is_committed_stays_in_the_log(member: &Member) {
    let (commit, view) = (member.commit, member.view());
    if let Some(term) = view.term_at(commit.index) {
        assert_eq!(term, commit.term, "the log has another entry at {commit:?}");
    } else {
        let bounds = (view.bounds().start, view.last());
        assert!(member.is_installing(), "the commit point {commit:?} is outside the log, {bounds:?}");
    }
}

/// The driver writes a unit before it applies it. What is taken back stays applied until that unit is applied itself.
fn what_is_applied_was_written(member: &Member) {
    if member.is_undoing() {
        return;
    }
    let (at, start) = (&member.positions, member.view().bounds().start);
    assert!(at.applied.index <= at.written.index, "applied {:?}, written {:?}", at.applied, at.written);
    assert!(start.index <= at.applied.index, "the log begins at {start:?}, behind {:?}", at.applied);
}

/// The log is what the disk has or is about to get. (A copy replaces log and state when its unit is applied.)
fn what_is_said_of_the_disk_is_in_the_log(member: &Member) {
    if member.is_installing() {
        return;
    }
    let (at, last) = (&member.positions, member.view().last());
    assert!(at.written.index <= last.index, "written {:?}, the log ends at {last:?}", at.written);
    assert!(at.durable.index <= last.index, "durable {:?}, the log ends at {last:?}", at.durable);
}

/// A primary gives each entry a later cluster time than all that it has seen, and sees those of its log.
fn times_rise_with_the_index(member: &Member) {
    let (Some(first), Some(end)) = (member.times.front(), member.times.back()) else { return };
    let (last, seen) = (member.view().last(), member.cluster_time);
    assert_eq!(end.index, last.index, "the time of the newest entry is known");
    assert!(first.index > member.commit.index || member.is_installing(), "times of what is committed stay");
    assert!(member.times.len() as u64 <= end.index - first.index + 1, "an entry has two times");
    assert!(first.index == end.index || first.time < end.time, "{} is not before {}", first.time, end.time);
    assert!(end.time <= seen, "an entry has the time {}, and {seen} is the highest", end.time);
}

/// Each unit gets the next number, and units leave in order when they are applied and durable.
fn units_are_numbered_without_gaps(member: &Member) {
    let next = member.next_seq;
    if let (Some(first), Some(end)) = (member.pending.front(), member.pending.back()) {
        assert_eq!(end.seq + 1, next, "the newest unit has the newest number");
        assert_eq!(member.pending.len() as u64, end.seq - first.seq + 1, "a unit is missing before {next}");
    }
    assert!(member.applied_seq < next, "unit {} is applied, the next one made is {next}", member.applied_seq);
    assert!(member.durable_seq < next, "unit {} is durable, the next one made is {next}", member.durable_seq);
}

/// Acknowledging goes from the oldest unit on and ends at the first one that is not safe; nothing is held back for a unit that is.
fn units_are_acknowledged_in_order(member: &Member) {
    let waiting = member.pending.iter().skip_while(|pending| pending.acknowledged);
    for pending in waiting {
        assert!(!pending.acknowledged, "unit {} is acknowledged before an earlier one", pending.seq);
    }
    for pending in member.pending.iter().take_while(|pending| pending.acknowledged) {
        assert!(pending.messages.is_empty(), "unit {} holds messages back for nothing", pending.seq);
        assert!(
            pending.seq <= member.applied_seq,
            "unit {} is acknowledged before it is applied",
            pending.seq
        );
    }
}

/// [`Member::after_step`](super::Member) looks after each input of raft-rs who leads, and in which term.
fn who_leads_knows_it(member: &Member) {
    assert_eq!(member.is_leader(), member.leading.is_some(), "who leads knows it, and nobody else thinks so");
    if let (Some(Leading { term, begin, .. }), Some(raft)) = (&member.leading, &member.raft) {
        assert_eq!(*term, raft.raft.term, "a primary leads in its own term");
        assert_eq!(raft.raft.leader_id, raft.raft.id, "who leads follows itself");
        let last = raft.raft.raft_log.last_index();
        assert!(*begin <= last, "term {term} begins at {begin}, the log ends at {last}");
    }
}

/// A member that steps down, stands in, or has offered the lead takes none: a successor would not have them.
fn only_a_primary_takes_writes(member: &Member) {
    if !member.is_writable() {
        return;
    }
    assert!(member.step_down.is_none() && !member.is_handing_over(), "who gives up the lead takes writes");
    assert!(member.my_config().is_some_and(|me| me.priority > 0.0), "a stand-in takes writes");
    let begin = member.leading.as_ref().map(|leading| leading.begin);
    assert!(begin.is_some_and(|begin| begin <= member.positions.applied.index), "{begin:?} is not applied");
}

/// All waits end when the lead is lost, and one for what is committed already ends in the poll after it was begun.
fn only_a_primary_has_waits(member: &Member) {
    if member.leading.is_none() {
        assert_eq!(member.waiting.len(), 0, "nobody's wait is answered by a member that does not lead");
        assert_eq!(member.barriers.len(), 0, "no barrier is passed by a member that does not lead");
    }
}

/// A wait is added to its slot and to the register of all in one go, and removed so.
fn waits_are_counted_once(member: &Member) {
    member.waiting.check();
}

/// A window counts what it holds, in the order in which it was sent.
fn windows_add_up(member: &Member) {
    member.windows.values().for_each(Window::check);
}

/// What a member says of itself counts only where the primary's log has that entry, and a primary cuts nothing off its log.
/// An acknowledgement of what the log does not have is refused.
fn followers_are_within_the_primarys_log(member: &Member) {
    let (Some(_), Some(raft)) = (&member.leading, &member.raft) else { return };
    let last = member.view().last().index;
    for (id, peer) in &member.peers {
        let at = &peer.in_log;
        let furthest = at.written.index.max(at.applied.index).max(at.durable.index);
        assert!(furthest <= last, "member {id} has entry {furthest}, the primary's log ends at {last}");
    }
    for (id, progress) in raft.raft.prs().iter() {
        assert!(progress.matched <= last, "{id} matches {}, the log ends at {last}", progress.matched);
    }
}

/// A configuration tells a member which one it is, or leaves it without consensus group; peers are members of it.
fn an_election_is_fought_by_members(member: &Member) {
    let Some(config) = &member.config else {
        assert!(
            member.raft.is_none() && member.peers.is_empty(),
            "a member without a configuration takes part"
        );
        return;
    };
    if let Some(me) = member.me {
        assert!(config.member(me).is_some(), "member {me} is not in its own configuration");
        assert!(!member.peers.contains_key(&me), "member {me} is its own peer");
    }
    let stranger = member.peers.keys().find(|id| config.member(**id).is_none());
    assert_eq!(stranger, None, "a peer is not in the configuration");
}

/// A configuration is installed and given to raft-rs in one go.
fn the_group_is_the_configuration(member: &Member, raft: &RawNode<LogView>) {
    let (Some(config), Some(me)) = (&member.config, member.me) else {
        panic!("a member without a configuration takes part as {}", raft.raft.id);
    };
    assert_eq!(raft.raft.id, raft_id(me), "raft-rs knows this member under its name");
    let conf = raft.raft.prs().conf();
    assert_eq!(conf.voters().ids().len(), config.voters().count(), "who votes is in the configuration");
    let other = config.members.iter().find(|m| conf.voters().contains(raft_id(m.id)) != m.is_voter());
    assert!(other.is_none(), "{other:?} votes for the one and not for the other");
}

/// Entries that raft-rs has are handed out in the same poll, and appended to the view then.
fn raft_ends_where_the_log_ends(member: &Member, raft: &RawNode<LogView>) {
    let (log, last) = (&raft.raft.raft_log, member.view().last().index);
    assert_eq!(log.last_index(), last, "raft-rs's log ends elsewhere than its view");
    assert!(log.persisted <= last, "raft-rs takes {} for persisted, the log ends at {last}", log.persisted);
}

/// An entry is committed here when raft-rs says so and it is applied.
fn the_commit_point_is_the_sets(member: &Member, raft: &RawNode<LogView>) {
    let log = &raft.raft.raft_log;
    let (ours, theirs) = (member.commit.index, log.committed);
    assert!(ours <= theirs, "{ours} is committed here, {theirs} by the set");
    assert!(theirs <= log.last_index(), "{theirs} is committed, the log ends at {}", log.last_index());
    assert!(log.applied <= theirs, "raft-rs has passed {}, and {theirs} is committed", log.applied);
}

/// Term and vote go into a unit in the poll in which raft-rs changes them.
fn the_hard_state_is_on_its_way_to_the_disk(_: &Member, raft: &RawNode<LogView>) {
    let (kept, known) = (&raft.store().hard_state, &raft.raft);
    assert_eq!((kept.term, kept.vote), (known.term, known.vote), "term and vote are not what the disk gets");
}

/// [`Member::poll`] asks raft-rs until it has nothing more.
fn raft_has_nothing_left_to_say(_: &Member, raft: &RawNode<LogView>) {
    assert!(!raft.has_ready(), "raft-rs has something left to say");
}

/// A primary appends the entry that begins its term when it is elected, and cuts nothing off its log.
fn the_term_began_in_the_log(member: &Member, raft: &RawNode<LogView>) {
    let Some(leading) = &member.leading else { return };
    assert_eq!(raft.raft.state, StateRole::Leader);
    let began = member.view().term_at(leading.begin);
    let removed = leading.begin < member.view().bounds().start.index;
    assert!(began == Some(leading.term) || removed, "entry {} is of term {began:?}", leading.begin);
}
