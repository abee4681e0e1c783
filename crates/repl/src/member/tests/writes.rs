//! What becomes of writes.

use super::*;

#[test]
fn write_concerns_count_who_has_it() {
    let mut set = three();
    set.cut(2);
    let one = set.write(0, WriteConcern::nodes(1));
    let two = set.write(0, WriteConcern::nodes(2).journaled());
    let majority = set.write(0, WriteConcern::majority());
    let three = set.write(0, WriteConcern::nodes(3));
    for waiter in [one, two, majority] {
        assert_eq!(set.outcome(0, waiter), Some(WaitOutcome::Satisfied));
    }
    assert_eq!(set.outcome(0, three), None);
    set.heal();
    set.run(3000);
    assert_eq!(set.outcome(0, three), Some(WaitOutcome::Satisfied));
    let at = set.propose(0);
    let never = set.member(0).wait(at, WriteConcern::nodes(4)).unwrap_err();
    assert_eq!(never.code(), Code::UNSATISFIABLE_WRITE_CONCERN);
    let unknown = WriteConcern { w: W::Mode("far".into()), journal: false };
    assert_eq!(set.member(0).wait(at, unknown).unwrap_err().code(), Code::UNKNOWN_REPL_WRITE_CONCERN);
    assert_eq!(
        set.member(1).wait(at, WriteConcern::majority()).unwrap_err().code(),
        Code::NOT_WRITABLE_PRIMARY
    );
}

#[test]
fn a_cancelled_wait_is_not_answered() {
    let mut set = three();
    set.cut(2);
    let waiter = set.write(0, WriteConcern::nodes(3));
    set.member(0).cancel_wait(waiter);
    set.heal();
    set.run(3000);
    assert_eq!(set.outcome(0, waiter), None);
}

#[test]
fn an_arbiter_votes_and_holds_nothing() {
    let mut config = ReplSetConfig::new("rs", members(3));
    config.members[2].arbiter_only = true;
    config.members[2].priority = 0.0;
    let mut set = Set::of(config);
    set.write(0, WriteConcern::majority());
    assert!(set.node(2).log.is_empty());
    assert_eq!(set.state(2), MemberState::Arbiter);
    // The arbiter keeps the primary in office, but does not make anything majority-committed.
    set.cut(1);
    let waiter = set.write(0, WriteConcern::majority());
    set.run(30_000);
    assert_eq!(set.primary(), Some(0));
    assert_eq!(set.outcome(0, waiter), None);
    let at = set.propose(0);
    let error = set.member(0).wait(at, WriteConcern::nodes(3)).unwrap_err();
    assert_eq!(error.message(), "Not enough data-bearing nodes");
}

#[test]
fn where_one_member_holds_data_it_commits_alone() {
    let mut config = ReplSetConfig::new("rs", members(3));
    for arbiter in &mut config.members[1..] {
        (arbiter.arbiter_only, arbiter.priority) = (true, 0.0);
    }
    let mut set = Set::of(config);
    let waiter = set.write(0, WriteConcern::majority());
    assert_eq!(set.outcome(0, waiter), Some(WaitOutcome::Satisfied));
}

#[test]
fn a_delayed_member_stays_behind() {
    let mut config = ReplSetConfig::new("rs", members(3));
    let delayed = &mut config.members[2];
    (delayed.priority, delayed.hidden, delayed.secondary_delay_secs) = (0.0, true, 60);
    let mut set = Set::of(config);
    let at = set.propose(0);
    set.run(50_000);
    assert!(set.member(2).positions().applied < at);
    set.run(20_000);
    assert_eq!(set.member(2).positions().applied, at);
    assert_eq!(set.primary(), Some(0));
}

#[test]
fn a_member_that_lost_touch_is_offered_a_copy() {
    let mut set = three();
    set.cut(2);
    for _ in 0..20 {
        set.write(0, WriteConcern::majority());
    }
    let commit = set.member(0).commit_point().index;
    set.member(0).compacted(commit - 2);
    set.member(1).compacted(commit - 2);
    set.heal();
    set.run(5000);
    assert_eq!(set.node(2).syncs, 1);
    assert_eq!(set.state(2), MemberState::Startup2);
    // It failed; another is offered.
    set.member(2).initial_sync_failed();
    set.run(5000);
    assert_eq!(set.node(2).syncs, 2);
}

#[test]
fn a_member_with_a_copy_follows_from_there() {
    let mut set = three();
    set.cut(2);
    for _ in 0..20 {
        set.write(0, WriteConcern::majority());
    }
    let commit = set.member(0).commit_point().index;
    set.member(0).compacted(commit - 2);
    set.heal();
    set.run(5000);
    assert_eq!(set.node(2).syncs, 1);
    // It has copied what was committed, and starts anew. Meanwhile the set goes on.
    let (copy, time) = (set.member(0).commit_point(), set.member(0).commit_time());
    for _ in 0..10 {
        set.write(0, WriteConcern::majority());
    }
    let config = set.member(0).config().unwrap().clone();
    let recovered = Recovered {
        hard_state: HardState { term: set.member(2).term(), vote: None, commit: copy.index },
        log: LogBounds { start: copy, last: copy.index, runs: Vec::new(), last_time: time },
        times: vec![(copy.index, time)],
        config: Some((config.as_ref().clone(), Some(2))),
    };
    set.node(2).member = Member::new(MemberOptions { incarnation: 2, ..MemberOptions::new("rs") }, recovered);
    set.run(5000);
    assert_eq!(set.node(2).syncs, 1);
    assert_eq!(set.member(2).commit_point(), set.member(0).commit_point());
    assert_eq!(set.state(2), MemberState::Secondary);
}

/// What a primary knew of a member is nothing to go by when that has lost its folder: it is fed from where it is, at once, and is not
/// read before it has come as far as the set was.
#[test]
fn a_member_that_was_emptied_is_fed_from_the_beginning() {
    let mut set = three();
    set.node(0).reads = true;
    for _ in 0..300 {
        set.write(0, WriteConcern::nodes(3));
    }
    let commit = set.member(0).commit_point();
    set.empty(2);
    // It hears of its set first.
    set.full.insert(host(2));
    set.run(3000);
    set.full.clear();
    set.node(2).stands_still = true;
    set.run(2000);
    assert_eq!(set.state(2), MemberState::Startup2);
    assert!(!set.node(2).held.is_empty(), "it was given nothing");
    set.go_on(2);
    set.run(1500);
    assert_eq!(set.state(2), MemberState::Secondary);
    assert_eq!((set.node(2).syncs, set.node(2).log.last().map(|entry| entry.at)), (0, Some(commit)));
    // And it counts.
    let waiter = set.write(0, WriteConcern::nodes(3));
    assert_eq!(set.outcome(0, waiter), Some(WaitOutcome::Satisfied));
}

/// A new primary knows nothing of a member that was down when it was elected: it begins at its own end, not before what its log still has.
#[test]
fn a_member_that_comes_back_to_another_primary_copies_nothing() {
    let mut set = three();
    for _ in 0..20 {
        set.write(0, WriteConcern::nodes(3));
    }
    set.cut(0);
    set.run(15_000);
    let primary = set.primary().expect("the others have one");
    assert_ne!(primary, 0);
    set.write(primary, WriteConcern::majority());
    let commit = set.member(primary).commit_point().index;
    for number in 1..3 {
        set.node(number).reads = true;
        set.member(number).compacted(commit - 3);
    }
    set.restart(0);
    set.heal();
    set.run(5000);
    assert_eq!(set.node(0).syncs, 0);
    assert_eq!(set.member(0).commit_point(), set.member(primary).commit_point());
}

/// A data folder that was a standalone's becomes a set: its log is the set's.
#[test]
fn a_standalone_becomes_the_first_member() {
    let mut set = Set::uninitiated(3);
    let entry = |index: u64| Entry {
        at: LogPosition::new(1, index),
        time: (900_000 << 32) + index,
        payload: Bytes::from_static(b"x"),
    };
    let log: Vec<Entry> = (1..=5).map(entry).collect();
    let recovered = Recovered {
        hard_state: HardState { term: 1, vote: None, commit: 5 },
        log: LogBounds {
            start: LogPosition::default(),
            last: 5,
            runs: vec![TermRun { first: 1, term: 1 }],
            last_time: (900_000 << 32) + 5,
        },
        times: vec![(5, (900_000 << 32) + 5)],
        config: None,
    };
    set.node(0).member = Member::new(MemberOptions::new("rs"), recovered);
    set.node(0).log = log.clone();
    set.member(0).initiate(ReplSetConfig::new("rs", members(3)), 0).unwrap();
    set.settle();
    // The others must have the entries from somewhere: in the server from the log, here from this test.
    let mut served = 0;
    for _ in 0..60 {
        set.run(50);
        if let Some((token, low, high)) = set.node(0).fetch.take() {
            served += 1;
            let entries = log[low as usize - 1..(high as usize - 1).min(5)].to_vec();
            set.member(0).fetched(token, entries);
        }
    }
    assert_eq!(set.primary(), Some(0));
    assert!(served > 0);
    let waiter = set.write(0, WriteConcern::nodes(3));
    set.run(3000);
    assert_eq!(set.outcome(0, waiter), Some(WaitOutcome::Satisfied));
    assert_eq!(set.node(2).log[..5], log[..]);
}

/// A retried write waits for its first execution, however long ago that was.
#[test]
fn what_is_committed_can_be_waited_for_on_every_member() {
    let mut set = three();
    let first = set.propose(0);
    set.settle();
    for _ in 0..5 {
        set.write(0, WriteConcern::majority());
    }
    let primary = step_down(&mut set);
    let lost_term = LogPosition::new(first.term + 7, first.index);
    for compacted in [false, true] {
        for number in 0..3 {
            let waiter = set.member(number).wait(first, WriteConcern::majority()).unwrap();
            set.settle();
            assert_eq!(set.outcome(number, waiter), Some(WaitOutcome::Satisfied));
            let error = set.member(number).wait(lost_term, WriteConcern::majority()).unwrap_err();
            assert_eq!(error.code(), Code::NOT_WRITABLE_PRIMARY);
            let all = set.member(number).wait(first, WriteConcern::nodes(3));
            assert_eq!(all.is_ok(), number == primary);
            set.settle();
            if let Ok(waiter) = all {
                assert_eq!(set.outcome(number, waiter), Some(WaitOutcome::Satisfied));
            }
            if !compacted {
                let commit = set.member(number).commit_point().index;
                set.member(number).compacted(commit - 1);
            }
        }
    }
}

/// Hands the lead over. Returns who has it then.
fn step_down(set: &mut Set) -> usize {
    set.member(0).step_down(10_000, 60_000, false).unwrap();
    set.run(1000);
    set.primary().unwrap()
}

#[test]
fn waits_come_and_go_by_the_thousand() {
    let mut set = three();
    set.cut(1);
    set.cut(2);
    let concerns = [WriteConcern::majority(), WriteConcern::nodes(2), WriteConcern::nodes(3).journaled()];
    let waits: Vec<WaiterId> = (0..30_000).map(|number| set.write(0, concerns[number % 3].clone())).collect();
    assert_eq!(set.member(0).waiters(), 30_000);
    // In no order that helps.
    for number in 0..15_000 {
        set.member(0).cancel_wait(waits[(number * 7919) % 15_000]);
    }
    assert_eq!(set.member(0).waiters(), 15_000);
    set.heal();
    set.run(3000);
    assert_eq!(set.member(0).waiters(), 0);
    assert!(waits[..15_000].iter().all(|waiter| !set.nodes[&host(0)].resolved.contains_key(waiter)));
    let done = |waiter: &&WaiterId| set.nodes[&host(0)].resolved.get(waiter) == Some(&WaitOutcome::Satisfied);
    assert_eq!(waits[15_000..].iter().filter(done).count(), 15_000);
}

#[test]
fn the_lag_of_the_commit_point_is_known() {
    let mut set = three();
    set.run(30_000);
    set.write(0, WriteConcern::majority());
    assert_eq!(set.member(0).commit_lag(), (0, 0));
    set.cut(1);
    set.cut(2);
    set.write(0, WriteConcern::nodes(1));
    set.run(2000);
    set.write(0, WriteConcern::nodes(1));
    assert_eq!(set.member(0).commit_lag(), (2, 2000));
    set.heal();
    set.run(3000);
    assert_eq!(set.member(0).commit_lag(), (0, 0));
}

#[test]
fn a_linearizable_read_asks_a_majority() {
    let mut set = three();
    set.write(0, WriteConcern::majority());
    let barrier = set.member(0).read_barrier().unwrap();
    set.settle();
    assert_eq!(set.outcome(0, barrier), Some(WaitOutcome::Satisfied));
    let error = set.member(1).read_barrier().unwrap_err();
    assert_eq!(error.message(), "cannot satisfy linearizable read concern on non-primary node");
    // One that was cut off cannot know, and then learns that it is none any more.
    set.cut(0);
    let barrier = set.member(0).read_barrier().unwrap();
    let given_up = set.member(0).read_barrier().unwrap();
    set.member(0).cancel_wait(given_up);
    set.run(5000);
    assert!(set.member(0).is_writable());
    assert_eq!(set.outcome(0, barrier), None);
    set.run(40_000);
    assert_eq!(set.outcome(0, barrier), Some(WaitOutcome::NotPrimary));
    assert_eq!(set.outcome(0, given_up), None);
}

#[test]
fn a_question_that_was_lost_is_asked_again() {
    let mut set = three();
    set.cut(0);
    let barrier = set.member(0).read_barrier().unwrap();
    set.run(700);
    assert_eq!(set.outcome(0, barrier), None);
    set.heal();
    set.run(2000);
    assert_eq!(set.outcome(0, barrier), Some(WaitOutcome::Satisfied));
    // A set of one has nobody to ask.
    let mut alone = Set::of(ReplSetConfig::new("rs", members(1)));
    let barrier = alone.member(0).read_barrier().unwrap();
    alone.settle();
    assert_eq!(alone.outcome(0, barrier), Some(WaitOutcome::Satisfied));
}

/// A clock that is wrong for a moment must not become the set's time.
#[test]
fn a_wall_clock_is_no_cluster_time() {
    let mut set = three();
    let before = set.member(1).cluster_time();
    let now = set.now;
    set.member(1).tick(now, 60_000_000);
    set.settle();
    assert_eq!(set.member(1).cluster_time(), before);
    set.run(3000);
    assert_eq!(set.member(0).cluster_time(), before);
    // What begins a term has the time of day, so that later entries are not far behind it.
    assert!(before >> 32 >= 1_000_000, "{before}");
}

#[test]
fn a_small_machine_keeps_and_sends_ahead_less() {
    let sizes = |memory: u64| {
        let options = MemberOptions::new("rs").within(memory);
        (options.cache_bytes >> 20, options.messages_in_flight_max)
    };
    assert_eq!(sizes(64 << 30), (64, 64));
    assert_eq!(sizes(4 << 30), (64, 64));
    assert_eq!(sizes(512 << 20), (16, 8));
    assert_eq!(sizes(1 << 20), (1, 4));
}

/// Writes an entry of so many bytes, and gives the messages with entries that go to the second member; they do not arrive.
fn feed(set: &mut Set, bytes: usize) -> Vec<Envelope> {
    let member = set.member(0);
    let time = member.cluster_time() + 1;
    member.propose(time, Bytes::from(vec![b'x'; bytes])).unwrap();
    fed(set)
}

fn fed(set: &mut Set) -> Vec<Envelope> {
    let mut sent = Vec::new();
    loop {
        let effects = set.member(0).poll();
        if effects.is_empty() {
            return sent;
        }
        for effect in effects {
            match effect {
                Effect::Send { host: to, envelope } if to == host(1) && envelope.entry_bytes() > 0 => {
                    sent.push(envelope)
                }
                Effect::Send { .. } => {}
                effect => set.perform(&host(0), effect),
            }
        }
    }
}

#[test]
fn what_is_on_its_way_to_a_member_is_counted_in_bytes() {
    let mut set = three();
    set.node(0).reads = true;
    let limit = 64 << 20;
    let mut sent = Vec::new();
    for _ in 0..20 {
        sent.extend(feed(&mut set, 16 << 20));
    }
    let bytes = |sent: &[Envelope]| sent.iter().map(Envelope::entry_bytes).sum::<usize>();
    assert_eq!((sent.len(), bytes(&sent)), (4, limit));
    // What arrives makes room for as much.
    for envelope in std::mem::take(&mut sent) {
        set.member(1).step(&host(0), envelope);
    }
    let effects = set.member(1).poll();
    effects.into_iter().for_each(|effect| set.perform(&host(1), effect));
    let answers: Vec<_> = set.member(1).poll();
    for effect in answers {
        if let Effect::Send { host: to, envelope } = effect
            && to == host(0)
        {
            set.member(0).step(&host(1), envelope);
        }
    }
    sent.extend(fed(&mut set));
    assert!(!sent.is_empty() && bytes(&sent) <= limit, "{}", bytes(&sent));
    // Small ones are counted as before.
    set.run(10_000);
    let small: Vec<_> = (0..40).flat_map(|_| feed(&mut set, 10)).collect();
    assert_eq!(small.len(), 40);
}

#[test]
fn less_is_sent_ahead_and_kept_while_memory_is_short() {
    let mut set = three();
    set.node(0).reads = true;
    let (mut kept, mut sent) = (0, 0);
    for _ in 0..60 {
        sent += feed(&mut set, 1 << 20).len();
        kept = kept.max(set.member(0).kept_bytes());
    }
    assert_eq!(sent, 60);
    assert!(kept > 50 << 20, "{kept}");
    set.member(0).be_sparing(true);
    let kept = set.member(0).kept_bytes();
    assert!(kept <= 17 << 20, "{kept}");
    assert_eq!(set.member(0).unwritten_bytes(), 0);
    set.run(10_000);
    let sent: usize = (0..60).map(|_| feed(&mut set, 1 << 20).len()).sum();
    assert_eq!(sent, 16);
}

#[test]
fn entries_are_read_once_for_a_member_that_is_behind() {
    let mut set = three();
    set.cut(2);
    set.member(0).options.cache_bytes = 1000;
    for _ in 0..50 {
        set.write(0, WriteConcern::majority());
    }
    set.heal();
    let mut asked = 0;
    // The member is heard of, and found to be behind; meanwhile clients go on, and nobody has read anything yet.
    for _ in 0..30 {
        set.run(50);
        let before = set.member(0).next_token;
        set.write(0, WriteConcern::majority());
        asked += set.member(0).next_token - before;
    }
    let (token, low, high) = set.node(0).fetch.take().expect("it is behind");
    assert_eq!(asked, 0, "entries from {low} to {high} were asked for again");
    let entries = set.node(0).log[low as usize - 1..high as usize - 1].to_vec();
    set.node(0).reads = true;
    set.member(0).fetched(token, entries);
    set.run(10_000);
    assert_eq!(set.member(2).positions().applied, set.member(0).positions().applied);
}

#[test]
fn a_member_that_passes_over_entries_stays_in_the_set() {
    let mut set = three();
    let term = set.member(0).term();
    set.full.insert(host(1));
    for _ in 0..200 {
        set.write(0, WriteConcern::majority());
        set.run(300);
    }
    assert_eq!((set.primary(), set.member(1).term()), (Some(0), term));
    assert_eq!(set.state(1), MemberState::Secondary);
    assert!(set.member(1).positions().applied < set.member(0).positions().applied);
    set.full.clear();
    set.run(3000);
    assert_eq!(set.member(1).positions().applied, set.member(0).positions().applied);
    assert_eq!(set.member(1).term(), term);
}
