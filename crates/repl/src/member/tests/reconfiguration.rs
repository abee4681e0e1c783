//! Changing the set.

use sheaf_bson::DocBuf;

use super::*;

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
    assert_eq!(set.outcome(0, all), Some(WaitOutcome::Satisfied));
    // And goes again.
    let waiter = {
        set.cut(3);
        set.write(0, WriteConcern::nodes(4))
    };
    set.reconfig(0, |config| drop(config.members.pop())).unwrap();
    assert_eq!(set.outcome(0, waiter), Some(WaitOutcome::Unsatisfiable));
    set.heal();
    set.run(5000);
    assert_eq!(set.state(3), MemberState::Removed);
    // It shows the configuration that says so.
    let shown =
        [3, 0].map(|number| DocBuf::build(|doc| set.member(number).write_config(doc, false).unwrap()));
    assert_eq!(shown[0], shown[1]);
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
    assert_eq!(set.outcome(0, waiter), Some(WaitOutcome::Satisfied));
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
    assert_eq!(set.outcome(1, waiter), Some(WaitOutcome::Satisfied));
    // The others learn that they are out.
    set.heal();
    set.run(10_000);
    assert_eq!((set.state(0), set.state(2)), (MemberState::Removed, MemberState::Removed));
    // One that is out can say that it is in again, if it says which member it is. The others do not believe it: anybody
    // could say so.
    let mut config = (**set.member(2).config().unwrap()).clone();
    config.members.push(MemberConfig::new(5, host(2)));
    set.member(2).reconfig(config.clone(), true, None).unwrap_err();
    set.member(2).reconfig(config, true, Some(5)).unwrap();
    set.run(10_000);
    let refused = &set.node(1).refused;
    assert!(refused.iter().any(|what| what.contains("not in this one's")), "{refused:?}");
    assert!(set.member(1).config().unwrap().member(5).is_none());
    // It is where the set is that it is let in.
    set.reconfig(1, |config| config.members.push(MemberConfig::new(5, host(2)))).unwrap();
    set.run(30_000);
    let waiter = set.write(1, WriteConcern::nodes(2));
    assert_eq!(set.outcome(1, waiter), Some(WaitOutcome::Satisfied));
}

#[test]
fn what_nobody_in_the_set_can_have_said_is_refused_and_named() {
    let mut set = three();
    let config = ReplSetConfig::clone(set.member(1).config().unwrap());
    let ours = config.config_version();
    let far = ReplSetConfig { term: 2_000_000, version: 2_000_000, ..config.clone() };
    let far_version = ReplSetConfig { version: 20_000_000, ..config.clone() };
    let newer = ReplSetConfig { version: config.version + 1, ..config.clone() };
    let named = [
        (7, newer.clone(), "not in this one's"),
        (0, far, "is too far"),
        (0, far_version.clone(), "is too far"),
    ];
    let say = |set: &mut Set, from: u64, config: ReplSetConfig| {
        let body = Body::Config(Arc::new(config.clone()));
        let envelope = Envelope { from, to: 1, config: config.config_version(), incarnation: 99, body };
        set.member(1).step(&host(0), envelope);
        set.settle();
        set.node(1).refused.pop()
    };
    for (from, config, why) in named {
        let refused = say(&mut set, from, config).expect("it is refused");
        assert!(refused.contains(why) && refused.contains("replSetReconfig"), "{refused}");
        assert_eq!(set.member(1).config().unwrap().config_version(), ours);
    }
    assert_eq!(say(&mut set, 0, newer.clone()), None);
    assert_eq!(set.member(1).config().unwrap().config_version(), newer.config_version());
    // An operator's word makes this member believe what is far away.
    let forced = ReplSetConfig::clone(set.member(1).config().unwrap());
    set.member(1).reconfig(forced, true, None).unwrap();
    set.settle();
    assert_eq!(say(&mut set, 0, far_version), None);
    assert_eq!(set.member(1).config().unwrap().version, 20_000_000);
}

#[test]
fn a_first_configuration_names_its_sender() {
    let mut set = Set::uninitiated(2);
    let config =
        ReplSetConfig { version: 2_000_000, term: 2_000_000, ..ReplSetConfig::new("rs", members(2)) };
    let say = |set: &mut Set, from: u64| {
        let body = Body::Config(Arc::new(config.clone()));
        let envelope = Envelope { from, to: 1, config: config.config_version(), incarnation: 99, body };
        set.member(1).step(&host(0), envelope);
        set.settle();
        set.member(1).config().is_some()
    };
    assert!(!say(&mut set, 3));
    assert!(!say(&mut set, 1));
    assert!(say(&mut set, 0), "a new member takes what the set has, however far it is");
}

#[test]
fn a_reconfiguration_changes_the_topology() {
    let mut set = three();
    let before = set.member(1).role().topology_version;
    set.reconfig(0, |config| config.members[1].priority = 1.5).unwrap();
    assert!(set.member(1).role().topology_version > before);
}

#[test]
fn what_was_committed_stays_known_as_such() {
    let mut set = three();
    let installed = set.reconfig(0, |config| config.members[2].priority = 0.5).unwrap();
    // The others say with their next pings that they have it.
    set.run(50);
    assert!(set.member(0).config_was_committed(installed));
    set.cut(1);
    set.cut(2);
    let mut config = (**set.member(0).config().unwrap()).clone();
    config.members[1].priority = 0.5;
    set.member(0).reconfig(config, true, None).unwrap();
    set.settle();
    let forced = set.member(0).config().unwrap().config_version();
    assert!(forced.newer_than(installed));
    assert!(!set.member(0).config_was_committed(forced));
    assert!(set.member(0).config_was_committed(installed), "although only this member has the one after it");
}
