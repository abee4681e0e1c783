//! Who becomes primary, and when.

use super::*;
use crate::message::Body;

#[test]
fn a_single_voter_says_nothing_of_a_term_that_its_disk_does_not_have() {
    let mut config = ReplSetConfig::new("rs", members(2));
    (config.members[1].votes, config.members[1].priority) = (0, 0.0);
    config.term = 0;
    let hard_state = HardState { term: 1, vote: None, commit: 0 };
    let recovered = Recovered { hard_state, config: Some((config, Some(0))), ..Recovered::default() };
    let mut member = Member::new(MemberOptions::new("rs"), recovered);
    let mut units = Vec::new();
    let mut told = 0;
    let mut run = |member: &mut Member, from: u64, millis: u64, units: &mut Vec<u64>| {
        for now in (from..from + millis).step_by(50) {
            member.tick(now, 1_000_000);
            for effect in member.poll() {
                match effect {
                    Effect::Persist(unit) => units.push(unit.seq),
                    Effect::Send { envelope, .. } => {
                        told += u32::from(matches!(envelope.body, Body::Raft(_)))
                    }
                    _ => {}
                }
            }
        }
        std::mem::take(&mut told)
    };
    // The disk takes nothing; it leads all the same, and has heartbeats to send, but for the time that counts as stalled.
    let begun = (0..40_000u64)
        .step_by(50)
        .find(|now| run(&mut member, *now, 50, &mut units) > 0 || member.term() == 2);
    let begun = begun.expect("it stands");
    assert_eq!(
        run(&mut member, begun + 50, 9000, &mut units),
        0,
        "the other has heard of a term that may be forgotten"
    );
    let last = *units.last().expect("there is something to keep");
    member.written(last);
    member.applied(last);
    member.durable(last);
    assert!(run(&mut member, begun + 9050, 3000, &mut units) > 0);
}

#[test]
fn a_set_initiates_and_elects_the_member_that_was_told_to() {
    let mut set = three();
    for number in 0..3 {
        let role = set.member(number).role();
        assert_eq!(role.primary, Some(0));
        assert_eq!(role.writable, number == 0);
        let version = set.member(number).config().unwrap().config_version();
        assert_eq!(version, ConfigVersion { term: 1, version: 1 });
    }
    assert_eq!(set.state(0), MemberState::Primary);
    assert_eq!(set.state(1), MemberState::Secondary);
    let error = set.member(0).initiate(ReplSetConfig::new("rs", members(1)), 0).unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::ALREADY_INITIALIZED, "already initialized"));
}

#[test]
fn an_isolated_secondary_disturbs_nobody_when_it_returns() {
    let mut set = three();
    let term = set.member(0).term();
    set.cut(2);
    set.run(60_000);
    set.heal();
    set.run(5000);
    assert_eq!(set.primary(), Some(0));
    assert_eq!(set.member(2).term(), term);
}

#[test]
fn a_primary_whose_disk_takes_nothing_hands_over() {
    // One whose disk says nothing is believed for as long as the time-out; one that refuses is not.
    for (says_so, millis) in [(false, 10_500), (true, 1500)] {
        let mut set = three();
        set.run(10_000);
        set.node(0).stands_still = true;
        let at = set.propose(0);
        if says_so {
            set.member(0).refused();
        }
        set.run(millis - 700);
        assert_eq!(set.primary(), Some(0), "a disk may be slow for a moment");
        set.run(700);
        let next = set.primary().expect("the others are there, and have room");
        assert!(next != 0 && set.member(next).commit_point() >= at, "{next}");
    }
}

#[test]
fn a_member_whose_log_takes_nothing_votes() {
    let mut set = three();
    set.run(10_000);
    set.node(1).stands_still = true;
    let at = set.propose(0);
    set.settle();
    set.member(1).refused();
    set.cut(0);
    set.run(60_000);
    assert_eq!(set.primary(), None, "what may be forgotten is not told");
    for _ in 0..200 {
        if let Some(seq) = set.node(1).to_keep {
            set.member(1).kept(seq);
        }
        set.run(100);
    }
    assert_eq!(set.primary(), Some(2));
    assert!(set.member(2).log().last > at.index);
    // What it has not written it has not told.
    let waiter = set.write(2, WriteConcern::majority());
    assert_eq!(set.outcome(2, waiter), None);
}

#[test]
fn a_primary_short_of_room_hands_over_to_a_member_that_has_some() {
    let mut set = three();
    set.run(10_000);
    assert!(!set.member(1).short_of_room(true), "it does not lead");
    set.run(100);
    assert!(!set.member(0).others_lack_room());
    assert!(!set.member(0).short_of_room(true), "one alone has room, which is of no use");
    set.run(5000);
    assert_eq!(set.primary(), Some(0));
    set.member(2).short_of_room(true);
    set.run(100);
    assert!(set.member(0).others_lack_room());
    set.cut(2);
    set.run(30_000);
    assert!(!set.member(0).others_lack_room(), "who is away is not asked");
    set.heal();
    set.run(5000);
    (1..=2).for_each(|number| _ = set.member(number).short_of_room(false));
    set.run(100);
    (1..=2).for_each(|number| set.member(number).little_room(true));
    set.run(100);
    assert!(!set.member(0).short_of_room(true), "they would be short next");
    set.member(1).little_room(false);
    set.run(100);
    let at = set.propose(0);
    assert!(set.member(0).short_of_room(true));
    set.run(1000);
    assert_eq!(set.primary(), Some(1));
    assert!(set.member(1).commit_point() >= at);
}

#[test]
fn a_lost_connection_shortens_the_election() {
    let mut set = three();
    set.run(10_000);
    set.cut(0);
    for number in [1, 2] {
        set.member(number).connection_lost(0);
    }
    set.run(1000);
    assert!(set.primary().is_some_and(|primary| primary != 0));
    // Without that hint silence has to tell.
    let mut set = three();
    set.run(10_000);
    set.cut(0);
    set.run(700);
    assert_eq!(set.primary(), None);
    set.run(1300);
    assert!(set.primary().is_some_and(|primary| primary != 0));
}

/// What a primary says waits behind a message that takes long.
#[test]
fn a_long_message_is_no_silence() {
    let mut set = three();
    set.run(10_000);
    let term = set.member(0).term();
    set.cut(0);
    for _ in 0..40 {
        for number in [1, 2] {
            set.member(number).still_sends(0);
        }
        set.run(200);
    }
    set.heal();
    set.run(5000);
    assert_eq!((set.primary(), set.member(1).term()), (Some(0), term));
}

#[test]
fn silence_is_no_hint_where_the_time_out_was_set() {
    let mut config = ReplSetConfig::new("rs", members(3));
    config.settings.election_timeout_millis = 9000;
    let mut set = Set::of(config);
    set.run(10_000);
    set.cut(0);
    set.run(7500);
    assert_eq!(set.primary(), None);
    set.run(12_000);
    assert!(set.primary().is_some());
}

#[test]
fn one_member_that_hears_nothing_of_the_primary_elects_nobody() {
    let mut set = three();
    set.run(10_000);
    let term = set.member(0).term();
    set.cut(2);
    set.run(5000);
    assert_eq!((set.primary(), set.member(0).term()), (Some(0), term));
    set.heal();
    set.run(5000);
    assert_eq!((set.primary(), set.member(2).term()), (Some(0), term));
}

/// A member that can hear the primary but is refused by it, again and again.
#[test]
fn a_wrong_hint_changes_nothing() {
    let mut set = three();
    set.run(20_000);
    let (term, topology) = (set.member(0).term(), set.member(2).role().topology_version);
    let mut changes = 0;
    for _ in 0..600 {
        set.member(2).connection_lost(0);
        let before = set.member(2).role().topology_version;
        set.run(100);
        changes += set.member(2).role().topology_version - before;
        assert_eq!(set.primary(), Some(0));
    }
    assert_eq!(set.member(1).term(), term);
    // Within an election time-out a few hints count, each of which may have it ask once.
    assert!(changes <= 6 * 2 * 5, "{changes}");
    set.run(20_000);
    let quiet = set.member(2).role().topology_version;
    set.run(20_000);
    assert_eq!(set.member(2).role().topology_version, quiet);
    // Heard of in time, the primary makes a hint void.
    assert!(quiet >= topology);
    set.member(2).connection_lost(0);
    set.write(0, WriteConcern::nodes(3));
    set.run(20_000);
    assert_eq!(set.member(2).role().topology_version, quiet);
}

#[test]
fn a_member_of_higher_priority_takes_over_once_it_has_caught_up() {
    let mut config = ReplSetConfig::new("rs", members(3));
    config.members[2].priority = 2.0;
    let mut set = Set::initiated(config);
    set.run(5000);
    assert_eq!(set.primary(), Some(0));
    set.run(20_000);
    assert_eq!(set.primary(), Some(2));
}

#[test]
fn a_step_down_hands_over_at_once() {
    let mut set = three();
    set.write(0, WriteConcern::nodes(1));
    set.member(0).step_down(10_000, 60_000, false).unwrap();
    set.settle();
    let primary = set.primary().expect("the lead went over without waiting for any time-out");
    assert_ne!(primary, 0);
    set.run(100);
    assert_eq!(set.node(0).stepped_down.take(), Some(Ok(())));
    // It is not elected again for the time asked, even if it is the only one that could be.
    set.member(0).step_up().unwrap_err();
    assert_eq!(set.member(0).step_down(0, 0, false).unwrap_err().message(), "not primary so can't step down");
}

/// Who ends waits for those only who could follow.
#[test]
fn a_member_that_ends_waits_only_for_who_can_follow() {
    let mut set = three();
    set.write(0, WriteConcern::nodes(3));
    // One of the two others is enough, and takes the lead.
    set.cut(2);
    set.member(0).connection_lost(2);
    set.member(0).hand_over(3000).unwrap();
    set.settle();
    assert_eq!(set.primary(), Some(1));
    set.run(100);
    assert_eq!(set.node(0).stepped_down.take(), Some(Ok(())));
    // Nobody is left: not a moment is waited.
    let mut set = three();
    for other in [1, 2] {
        set.cut(other);
        set.member(0).connection_lost(other as u64);
    }
    assert!(set.member(0).is_primary());
    set.member(0).hand_over(3000).unwrap();
    set.settle();
    assert_eq!(set.node(0).stepped_down.take(), Some(Ok(())));
    assert_eq!(set.primary(), None);
}

/// Members that are written to always have something on its way to their disks: they can follow all the same.
#[test]
fn a_member_that_ends_waits_for_what_is_on_its_way_to_disks() {
    let mut set = three();
    set.write(0, WriteConcern::nodes(3));
    for other in [1, 2] {
        set.node(other).stands_still = true;
    }
    set.propose(0);
    // Long enough that each has told the others how it is.
    set.run(3000);
    set.member(0).hand_over(3000).unwrap();
    set.settle();
    assert_eq!(set.node(0).stepped_down, None);
    set.go_on(1);
    assert_eq!(set.primary(), Some(1));
    set.run(100);
    assert_eq!(set.node(0).stepped_down.take(), Some(Ok(())));
}

/// When all of a set was down there is nobody to wait for.
#[test]
fn a_set_that_starts_again_has_a_primary_soon() {
    let mut set = three();
    set.write(0, WriteConcern::nodes(3));
    set.run(3000);
    for number in 0..3 {
        set.restart(number);
    }
    set.run(4000);
    assert!(set.primary().is_some());
    let waiter = {
        let primary = set.primary().unwrap();
        (primary, set.write(primary, WriteConcern::majority()))
    };
    assert_eq!(set.outcome(waiter.0, waiter.1), Some(WaitOutcome::Satisfied));
}

/// Members that may not stand do not go on naming a primary that is gone.
#[test]
fn who_may_not_stand_knows_that_there_is_no_primary() {
    for told in [false, true] {
        let mut config = ReplSetConfig::new("rs", members(3));
        config.members[1].priority = 0.0;
        (config.members[2].arbiter_only, config.members[2].priority) = (true, 0.0);
        let mut set = Set::of(config);
        set.run(5000);
        set.cut(0);
        for number in [1, 2] {
            assert_eq!(set.member(number).role().primary, Some(0));
            if told {
                set.member(number).connection_lost(0);
            }
        }
        set.run(if told { 500 } else { 20_000 });
        assert_eq!([1, 2].map(|number| set.member(number).role().primary), [None, None], "{told}");
    }
}

/// Without time to catch up: the lead goes over all the same, and the others need not wait for the time-out.
#[test]
fn a_forced_step_down_hands_over_too() {
    for force in [false, true] {
        let mut set = three();
        let waiter = set.write(0, WriteConcern::majority());
        assert_eq!(set.outcome(0, waiter), Some(WaitOutcome::Satisfied));
        set.member(0).step_down(0, 60_000, force).unwrap();
        assert!(!set.member(0).is_writable());
        set.settle();
        assert!(set.primary().is_some_and(|primary| primary != 0));
        set.run(100);
        assert_eq!(set.node(0).stepped_down.take(), Some(Ok(())));
    }
    // Nobody takes the last offer.
    let mut set = three();
    set.cut(1);
    set.cut(2);
    set.member(0).step_down(0, 60_000, true).unwrap();
    set.run(1900);
    assert_eq!(set.node(0).stepped_down, None);
    set.run(500);
    assert_eq!(set.node(0).stepped_down.take(), Some(Ok(())));
}

#[test]
fn maintenance_ends_when_it_was_turned_off_as_often_as_on() {
    let mut set = three();
    for on in [true, true, false] {
        set.member(1).set_maintenance(on).unwrap();
        assert_eq!(set.state(1), MemberState::Recovering);
    }
    set.member(1).set_maintenance(false).unwrap();
    assert_eq!(set.state(1), MemberState::Secondary);
    let error = set.member(1).set_maintenance(false).unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::OPERATION_FAILED, "already out of maintenance mode"));
    assert_eq!(set.member(0).set_maintenance(true).unwrap_err().code(), Code::NOT_SECONDARY);
}

#[test]
fn a_frozen_member_is_not_elected() {
    let mut set = three();
    assert_eq!(set.member(0).freeze(1000).unwrap_err().code(), Code::NOT_SECONDARY);
    set.member(1).freeze(600_000).unwrap();
    set.run(5000);
    set.cut(0);
    set.run(60_000);
    assert_eq!(set.primary(), Some(2));
    set.cut(2);
    set.heal();
    set.cut(0);
    set.member(1).freeze(0).unwrap();
}

#[test]
fn the_topology_counter_moves_with_the_topology_alone() {
    let mut set = three();
    let before = set.member(1).role().topology_version;
    set.write(0, WriteConcern::nodes(3));
    set.run(20_000);
    assert_eq!(set.member(1).role().topology_version, before);
    set.member(0).step_down(10_000, 60_000, false).unwrap();
    set.run(1000);
    assert!(set.member(1).role().topology_version > before);
}

#[test]
fn the_largest_set_works() {
    let mut config = ReplSetConfig::new("rs", members(50));
    for member in &mut config.members[7..] {
        (member.votes, member.priority) = (0, 0.0);
    }
    let mut set = Set::of(config);
    let waiter = set.write(0, WriteConcern::nodes(50).journaled());
    assert_eq!(set.outcome(0, waiter), Some(WaitOutcome::Satisfied));
    set.cut(0);
    set.run(30_000);
    assert!(set.primary().is_some_and(|primary| (1..7).contains(&primary)));
}

/// The server keeps a member behind a mutex that several threads lock.
#[test]
fn a_member_can_be_sent_to_another_thread() {
    fn check<T: Send>() {}
    check::<Member>();
}

/// Who was offered the lead and does not take it keeps the set without a primary for a moment only.
#[test]
fn an_offer_that_nobody_takes_ends() {
    let mut config = ReplSetConfig::new("rs", members(3));
    config.members[2].priority = 2.0;
    let mut set = Set::initiated(config);
    set.run(9000);
    set.cut(2);
    let (mut without, mut longest) = (0, 0);
    for _ in 0..400 {
        set.run(50);
        without = if set.member(0).is_writable() { 0 } else { without + 50 };
        longest = longest.max(without);
    }
    assert!((1000..=2100).contains(&longest), "{longest}");
    // It may have it later.
    set.heal();
    set.run(30_000);
    assert_eq!(set.primary(), Some(2));
}

#[test]
fn an_isolated_primary_is_none_after_the_time_out() {
    for after in (0..10_000).step_by(700) {
        let mut set = three();
        set.run(after);
        set.cut(0);
        set.run(9000);
        assert!(set.member(0).is_writable(), "{after}");
        set.run(2500);
        assert!(!set.member(0).is_writable(), "{after}");
    }
}

/// Who could not be elected for want of a majority is not waited for longer, the longer that has lasted.
#[test]
fn a_set_that_is_whole_again_has_a_primary_soon() {
    for apart in [1000, 8000, 13_000, 22_000, 60_000, 200_000] {
        for alone in 0..3 {
            let mut set = three();
            set.run(10_000);
            let others = (0..3).filter(|number| *number != alone).collect::<Vec<_>>();
            // The log of the old primary may be the longest.
            set.propose(0);
            others.iter().for_each(|number| set.cut(*number));
            set.propose(0);
            set.run(apart);
            others.iter().filter(|number| **number != 0).for_each(|number| set.restart(*number));
            set.heal();
            set.run(2500);
            assert!(set.primary().is_some(), "{apart}, {alone}");
        }
    }
}

/// Votes are given by those who have the configuration. Who begins a set does not wait for its next attempt.
#[test]
fn the_first_election_comes_as_soon_as_a_majority_can_vote() {
    let mut set = Set::uninitiated(3);
    set.cut(0);
    set.member(0).initiate(ReplSetConfig::new("rs", members(3)), 0).unwrap();
    // Some attempts fail.
    set.run(7000);
    assert_eq!(set.primary(), None);
    set.heal();
    // The next ping tells who has no configuration.
    set.run(2150);
    assert_eq!(set.primary(), Some(0));
}

/// Nobody is waited for where nobody else votes: neither at the beginning nor after a restart.
#[test]
fn the_only_voter_is_elected_at_once() {
    let mut set = Set::initiated(ReplSetConfig::new("rs", members(1)));
    set.run(100);
    assert_eq!(set.primary(), Some(0));
    set.write(0, WriteConcern::nodes(1));
    set.restart(0);
    set.run(100);
    assert_eq!(set.primary(), Some(0));

    // The other has data and no vote.
    let mut config = ReplSetConfig::new("rs", members(2));
    (config.members[1].votes, config.members[1].priority) = (0, 0.0);
    let mut set = Set::of(config);
    set.write(0, WriteConcern::nodes(2));
    set.run(1000);
    for number in [0, 1] {
        set.restart(number);
    }
    set.run(100);
    assert_eq!(set.primary(), Some(0));
    set.run(30_000);
    assert_eq!(set.primary(), Some(0));
}
