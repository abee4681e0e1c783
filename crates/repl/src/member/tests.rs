//! Members that talk to each other without loss or delay, with disks that are done at once: what happens
//! when, step by step. What happens under faults is the simulator's.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use sheaf_errors::{Code, Error};

use super::{Member, Options, Recovered};
use crate::config::{ConfigVersion, MemberConfig, ReplSetConfig};
use crate::effect::{Effect, Rollback, WaiterId};
use crate::message::Envelope;
use crate::types::{Entry, HardState, LogBounds, MemberState, OpTime, TermRun};
use crate::write_concern::{Outcome, W, WriteConcern};

/// A member and its disk.
struct Node {
    member: Member,
    log: Vec<Entry>,
    rollbacks: Vec<Rollback>,
    resolved: BTreeMap<WaiterId, Outcome>,
    stepped_down: Option<Result<(), Error>>,
    reconfigured: Option<Result<ConfigVersion, Error>>,
    syncs: u32,
    fetch: Option<(u64, u64, u64)>,
}

/// A set whose members are named m0, m1, ...
struct Set {
    nodes: BTreeMap<Arc<str>, Node>,
    messages: VecDeque<(Arc<str>, Arc<str>, Envelope)>,
    cut: BTreeSet<Arc<str>>,
    now: u64,
}

fn host(number: usize) -> Arc<str> {
    Arc::from(format!("m{number}:27017"))
}

fn members(count: usize) -> Vec<MemberConfig> {
    (0..count).map(|number| MemberConfig::new(number as u64, host(number))).collect()
}

impl Set {
    /// Members with this configuration, the first of which has been told to initiate it.
    fn initiated(config: ReplSetConfig) -> Set {
        let mut set = Set::uninitiated(config.members.len());
        set.member(0).initiate(config, 0).unwrap();
        set.settle();
        set
    }

    fn uninitiated(count: usize) -> Set {
        let mut set = Set { nodes: BTreeMap::new(), messages: VecDeque::new(), cut: BTreeSet::new(), now: 0 };
        for number in 0..count {
            set.add(number);
        }
        set
    }

    fn add(&mut self, number: usize) {
        let options = Options { seed: number as u64, allow_multiple_arbiters: true, ..Options::new("rs") };
        let node = Node {
            member: Member::new(options, Recovered::default()),
            log: Vec::new(),
            rollbacks: Vec::new(),
            resolved: BTreeMap::new(),
            stepped_down: None,
            reconfigured: None,
            syncs: 0,
            fetch: None,
        };
        self.nodes.insert(host(number), node);
    }

    /// With a primary: the first member.
    fn of(config: ReplSetConfig) -> Set {
        let mut set = Set::initiated(config);
        set.run(3000);
        assert_eq!(set.primary(), Some(0));
        set
    }

    fn member(&mut self, number: usize) -> &mut Member {
        &mut self.node(number).member
    }

    fn node(&mut self, number: usize) -> &mut Node {
        self.nodes.get_mut(&host(number)).unwrap()
    }

    fn state(&mut self, number: usize) -> MemberState {
        self.settle();
        self.member(number).role().state
    }

    fn primary(&mut self) -> Option<usize> {
        let of = |set: &mut Set, number: usize| set.member(number).is_writable();
        let found: Vec<usize> = (0..self.nodes.len())
            .filter(|number| !self.cut.contains(&host(*number)))
            .collect::<Vec<_>>()
            .into_iter()
            .filter(|number| of(self, *number))
            .collect();
        assert!(found.len() <= 1, "{found:?}");
        found.first().copied()
    }

    /// Lets time pass.
    fn run(&mut self, millis: u64) {
        let end = self.now + millis;
        while self.now < end {
            self.now += 50;
            for number in 0..self.nodes.len() {
                let now = self.now;
                self.member(number).tick(now, 1_000_000 + now / 1000);
            }
            self.settle();
        }
    }

    /// Until nobody has anything to say.
    fn settle(&mut self) {
        loop {
            let mut busy = false;
            let hosts: Vec<Arc<str>> = self.nodes.keys().cloned().collect();
            for host in hosts {
                let effects = self.nodes.get_mut(&host).unwrap().member.poll();
                busy |= !effects.is_empty();
                for effect in effects {
                    self.perform(&host, effect);
                }
            }
            while let Some((from, to, envelope)) = self.messages.pop_front() {
                busy = true;
                if self.cut.contains(&from) == self.cut.contains(&to)
                    && (!self.cut.contains(&from) || from == to)
                    && let Some(node) = self.nodes.get_mut(&to)
                {
                    node.member.step(&from, envelope);
                }
            }
            if !busy {
                return;
            }
        }
    }

    fn perform(&mut self, host: &Arc<str>, effect: Effect) {
        let node = self.nodes.get_mut(host).unwrap();
        match effect {
            Effect::Send { host: to, envelope } => self.messages.push_back((host.clone(), to, envelope)),
            Effect::Persist(persist) => {
                if let Some(rollback) = persist.rollback {
                    node.log.truncate(rollback.keep.index as usize);
                    node.rollbacks.push(rollback);
                }
                node.log.extend(persist.entries);
                node.member.written(persist.seq);
                node.member.applied(persist.seq);
                node.member.durable(persist.seq);
            }
            Effect::Resolved { waiter, outcome } => {
                node.resolved.insert(waiter, outcome);
            }
            Effect::SteppedDown(result) => node.stepped_down = Some(result),
            Effect::Reconfigured(result) => node.reconfigured = Some(result),
            Effect::InitialSync { .. } => node.syncs += 1,
            Effect::Fetch { token, low, high, .. } => node.fetch = Some((token, low, high)),
            Effect::CommitPoint(_) | Effect::Role(_) => {}
        }
    }

    /// A write, without letting anybody react to it.
    fn propose(&mut self, number: usize) -> OpTime {
        let time = (1_000_000 + self.now / 1000) << 32;
        let member = self.member(number);
        let time = time.max(member.cluster_time() + 1);
        member.propose(time, Bytes::from_static(b"x")).unwrap()
    }

    fn write(&mut self, number: usize, concern: WriteConcern) -> WaiterId {
        let at = self.propose(number);
        let waiter = self.member(number).wait(at, concern).unwrap();
        self.settle();
        waiter
    }

    fn outcome(&mut self, number: usize, waiter: WaiterId) -> Option<Outcome> {
        self.node(number).resolved.get(&waiter).cloned()
    }

    fn cut(&mut self, number: usize) {
        self.cut.insert(host(number));
    }

    fn heal(&mut self) {
        self.cut.clear();
    }

    fn reconfig(
        &mut self,
        number: usize,
        change: impl FnOnce(&mut ReplSetConfig),
    ) -> Result<ConfigVersion, Error> {
        let mut config = (**self.member(number).config().unwrap()).clone();
        config.version += 1;
        change(&mut config);
        self.node(number).reconfigured = None;
        self.member(number).reconfig(config, false, None)?;
        self.settle();
        self.node(number).reconfigured.take().expect("all members answer at once")
    }
}

fn three() -> Set {
    Set::of(ReplSetConfig::new("rs", members(3)))
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
fn write_concerns_count_who_has_it() {
    let mut set = three();
    set.cut(2);
    let one = set.write(0, WriteConcern::nodes(1));
    let two = set.write(0, WriteConcern::nodes(2).journaled());
    let majority = set.write(0, WriteConcern::majority());
    let three = set.write(0, WriteConcern::nodes(3));
    for waiter in [one, two, majority] {
        assert_eq!(set.outcome(0, waiter), Some(Outcome::Satisfied));
    }
    assert_eq!(set.outcome(0, three), None);
    set.heal();
    set.run(3000);
    assert_eq!(set.outcome(0, three), Some(Outcome::Satisfied));
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
fn an_isolated_primary_steps_down_and_its_writes_are_rolled_back() {
    let mut set = three();
    set.write(0, WriteConcern::majority());
    let kept = set.member(0).positions().applied;
    set.cut(0);
    let lost = set.write(0, WriteConcern::majority());
    let last = set.propose(0);
    set.run(40_000);
    assert_eq!(set.state(0), MemberState::Secondary);
    assert_eq!(set.outcome(0, lost), Some(Outcome::NotPrimary));
    let primary = set.primary().unwrap();
    assert_ne!(primary, 0);
    set.write(primary, WriteConcern::majority());
    set.heal();
    set.run(5000);
    assert_eq!(set.node(0).rollbacks, vec![Rollback { keep: kept, last }]);
    let log = set.node(primary).log.clone();
    assert_eq!(set.node(0).log, log);
    assert_eq!(set.state(0), MemberState::Secondary);
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
fn a_lost_connection_shortens_the_election() {
    let mut set = three();
    set.run(10_000);
    set.cut(0);
    for number in [1, 2] {
        set.member(number).connection_lost(0);
    }
    set.run(1000);
    assert!(set.primary().is_some_and(|primary| primary != 0));
    // Without that hint nobody moves before the time-out.
    let mut set = three();
    set.run(10_000);
    set.cut(0);
    set.run(8000);
    assert_eq!(set.primary(), None);
    set.run(12_000);
    assert!(set.primary().is_some());
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

#[test]
fn a_step_down_without_a_successor_needs_force() {
    let mut set = three();
    set.cut(1);
    set.cut(2);
    set.member(0).step_down(1000, 5000, false).unwrap();
    set.run(2000);
    let refused = set.node(0).stepped_down.take().unwrap().unwrap_err();
    assert_eq!(refused.code(), Code::EXCEEDED_TIME_LIMIT);
    assert_eq!(set.primary(), Some(0));
    set.member(0).step_down(1000, 5000, true).unwrap();
    set.run(2000);
    assert_eq!(set.node(0).stepped_down.take(), Some(Ok(())));
    assert_eq!(set.primary(), None);
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
    assert_eq!(set.outcome(0, waiter), Some(Outcome::Satisfied));
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
fn a_new_voter_votes_once_it_has_the_data() {
    let mut set = three();
    set.write(0, WriteConcern::majority());
    set.add(3);
    let added = set.reconfig(0, |config| config.members.push(MemberConfig::new(3, host(3))));
    assert_eq!(added, Ok(ConfigVersion { term: 1, version: 2 }));
    assert!(set.member(0).config().unwrap().member(3).unwrap().newly_added);
    set.run(10_000);
    let config = set.member(0).config().unwrap().clone();
    assert_eq!((config.version, config.member(3).unwrap().newly_added), (3, false));
    assert!(set.member(0).config_committed());
    let all = set.write(0, WriteConcern::nodes(4));
    assert_eq!(set.outcome(0, all), Some(Outcome::Satisfied));
    // And goes again.
    let waiter = {
        set.cut(3);
        set.write(0, WriteConcern::nodes(4))
    };
    set.reconfig(0, |config| drop(config.members.pop())).unwrap();
    assert_eq!(set.outcome(0, waiter), Some(Outcome::Unsatisfiable));
    set.heal();
    set.run(5000);
    assert_eq!(set.state(3), MemberState::Removed);
}

#[test]
fn a_reconfiguration_must_be_safe() {
    let mut set = three();
    let two = set.reconfig(0, |config| config.members.truncate(1)).unwrap_err();
    assert_eq!(
        two.message(),
        "Non force replica set reconfig can only add or remove at most 1 voting member."
    );
    let not_primary = set.reconfig(1, |_| {}).unwrap_err();
    assert_eq!(not_primary.code(), Code::NOT_WRITABLE_PRIMARY);
    assert_eq!(
        not_primary.message(),
        "New config is rejected :: caused by :: replSetReconfig should only be run on a writable PRIMARY. Current \
         state SECONDARY;"
    );
    let old = set.reconfig(0, |config| config.version = 1).unwrap_err();
    assert_eq!(old.code(), Code::NEW_REPLICA_SET_CONFIGURATION_INCOMPATIBLE);
    // A majority must answer before anything changes.
    set.cut(1);
    set.cut(2);
    let mut config = (**set.member(0).config().unwrap()).clone();
    config.version += 1;
    set.member(0).reconfig(config, false, None).unwrap();
    assert_eq!(
        set.member(0).reconfig(ReplSetConfig::new("rs", members(3)), false, None).unwrap_err().code(),
        Code::CONFIGURATION_IN_PROGRESS
    );
    set.run(15_000);
    let failed = set.node(0).reconfigured.take().unwrap().unwrap_err();
    assert!([Code::NODE_NOT_FOUND, Code::NOT_WRITABLE_PRIMARY].contains(&failed.code()), "{failed:?}");
}

#[test]
fn force_makes_a_set_of_what_is_left() {
    let mut set = three();
    let waiter = set.write(0, WriteConcern::majority());
    assert_eq!(set.outcome(0, waiter), Some(Outcome::Satisfied));
    set.cut(0);
    set.cut(2);
    set.run(40_000);
    assert_eq!(set.primary(), None);
    let mut config = (**set.member(1).config().unwrap()).clone();
    config.members.retain(|member| member.id == 1);
    set.member(1).reconfig(config, true, None).unwrap();
    set.run(30_000);
    assert_eq!(set.primary(), Some(1));
    let version = set.member(1).config().unwrap().config_version();
    assert!(version.version > 10_000 && version.term == -1, "{version:?}");
    let waiter = set.write(1, WriteConcern::majority());
    assert_eq!(set.outcome(1, waiter), Some(Outcome::Satisfied));
    // The others learn that they are out.
    set.heal();
    set.run(10_000);
    assert_eq!((set.state(0), set.state(2)), (MemberState::Removed, MemberState::Removed));
    // One that is out can force itself in again, if it says which member it is.
    let mut config = (**set.member(2).config().unwrap()).clone();
    config.members.push(MemberConfig::new(5, host(2)));
    set.member(2).reconfig(config.clone(), true, None).unwrap_err();
    set.member(2).reconfig(config, true, Some(5)).unwrap();
    set.run(30_000);
    let waiter = set.write(1, WriteConcern::nodes(2));
    assert_eq!(set.outcome(1, waiter), Some(Outcome::Satisfied));
}

#[test]
fn the_largest_set_works() {
    let mut config = ReplSetConfig::new("rs", members(50));
    for member in &mut config.members[7..] {
        (member.votes, member.priority) = (0, 0.0);
    }
    let mut set = Set::of(config);
    let waiter = set.write(0, WriteConcern::nodes(50).journaled());
    assert_eq!(set.outcome(0, waiter), Some(Outcome::Satisfied));
    set.cut(0);
    set.run(30_000);
    assert!(set.primary().is_some_and(|primary| (1..7).contains(&primary)));
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
fn a_reconfiguration_changes_the_topology() {
    let mut set = three();
    let before = set.member(1).role().topology_version;
    set.reconfig(0, |config| config.members[1].priority = 1.5).unwrap();
    assert!(set.member(1).role().topology_version > before);
}

/// The server keeps a member behind a mutex that several threads lock.
#[test]
fn a_member_can_be_sent_to_another_thread() {
    fn check<T: Send>() {}
    check::<Member>();
}

/// A data folder that was a standalone's becomes a set: its log is the set's.
#[test]
fn a_standalone_becomes_the_first_member() {
    let mut set = Set::uninitiated(3);
    let entry = |index: u64| Entry {
        at: OpTime::new(1, index),
        time: (900_000 << 32) + index,
        payload: Bytes::from_static(b"x"),
    };
    let log: Vec<Entry> = (1..=5).map(entry).collect();
    let recovered = Recovered {
        hard_state: HardState { term: 1, vote: None, commit: 5 },
        log: LogBounds {
            start: OpTime::default(),
            last: 5,
            runs: vec![TermRun { first: 1, term: 1 }],
            last_time: (900_000 << 32) + 5,
        },
        times: vec![(5, (900_000 << 32) + 5)],
        config: None,
    };
    set.node(0).member = Member::new(Options::new("rs"), recovered);
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
    assert_eq!(set.outcome(0, waiter), Some(Outcome::Satisfied));
    assert_eq!(set.node(2).log[..5], log[..]);
}
