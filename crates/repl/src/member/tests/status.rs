//! `replSetGetStatus` and `replSetGetConfig`, fields in order and with their types.

use sheaf_bson::{DocBuf, json};

use super::*;
use crate::member::{Attempts, ElectionCounts};
use crate::status::StatusContext;

/// The wall clock of the tests' ticks, in milliseconds.
fn wall_millis(set: &Set) -> i64 {
    1_000_000_000 + set.now as i64
}

fn status(set: &mut Set, number: usize) -> String {
    set.settle();
    let progress = DocBuf::new().with("failedInitialSyncAttempts", 0);
    let context = StatusContext {
        now_millis: wall_millis(set),
        uptime_secs: 77,
        last_stable_recovery: Some(1_000_001 << 32),
        initial_sync: (number == 2).then(|| progress.as_raw()),
    };
    let member = set.member(number);
    let doc = DocBuf::build(|doc| member.write_status(doc, &context).unwrap());
    json::to_json(doc.as_raw(), json::Style::Canonical)
}

/// The text without what is checked elsewhere: Extended JSON's wrappers of numbers and dates.
fn plain(text: &str) -> String {
    let mut out = text.to_owned();
    for (open, close, mark) in [
        (r#"{"$numberInt":""#, r#""}"#, ""),
        (r#"{"$numberLong":""#, r#""}"#, "L"),
        (r#"{"$numberDouble":""#, r#""}"#, ""),
        (r#"{"$date":"#, "}", "D"),
        (r#"{"$timestamp":"#, "}", ""),
    ] {
        while let Some(at) = out.find(open) {
            let inner = at + open.len();
            let end = inner + out[inner..].find(close).unwrap();
            let value = out[inner..end].to_owned();
            out.replace_range(at..end + close.len(), &format!("{value}{mark}"));
        }
    }
    out
}

/// Three members of which the third is an arbiter; the second is gone without a trace.
fn with_one_gone() -> Set {
    let mut config = ReplSetConfig::new("rs", members(3));
    (config.members[2].arbiter_only, config.members[2].priority) = (true, 0.0);
    let mut set = Set::of(config);
    set.write(0, WriteConcern::majority());
    set.cut(1);
    set.run(20_000);
    set
}

#[test]
fn a_primary_tells_of_its_set() {
    let mut set = with_one_gone();
    check(&plain(&status(&mut set, 0)), PRIMARY);
}

#[test]
fn a_secondary_tells_of_its_set() {
    let mut set = three();
    check(&plain(&status(&mut set, 1)), SECONDARY);
}

#[test]
fn a_hand_over_is_told_as_such() {
    let mut set = three();
    set.member(0).step_down(10_000, 60_000, false).unwrap();
    set.run(1000);
    let primary = set.primary().unwrap();
    let text = plain(&status(&mut set, primary));
    for part in [
        r#""lastElectionReason":"stepUpRequestSkipDryRun","#,
        r#""electionTerm":2L,"#,
        r#""priorPrimaryMemberId":0,"numCatchUpOps":0L,"newTermStartDate":"#,
        r#""electionParticipantMetrics":{"votedForCandidate":true,"electionTerm":1L,"#,
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    // Who was primary is a candidate no more, and who is in maintenance says so.
    set.member(0).set_maintenance(true).unwrap();
    let text = plain(&status(&mut set, 0));
    assert!(!text.contains("electionCandidateMetrics"));
    let mine = r#""syncSourceId":PRIMARY,"maintenanceMode":1,"infoMessage":"","configVersion""#;
    assert!(text.contains(&mine.replace("PRIMARY", &primary.to_string())), "{text}");
}

#[test]
fn elections_are_counted_by_their_reason() {
    let mut set = three();
    let won = Attempts { called: 1, successful: 1 };
    let first = set.member(0).election_counts();
    assert_eq!((first.election_timeout, first.caught_up), (won, 1));
    set.member(0).step_down(10_000, 60_000, false).unwrap();
    set.run(1000);
    let second = set.primary().unwrap();
    assert_eq!(
        set.member(second).election_counts(),
        ElectionCounts { step_up: won, caught_up: 1, ..Default::default() }
    );
    assert_eq!(set.member(0).election_counts().higher_term, 0, "who hands over is not surprised");
    // Two members are left that may lead: the other one stands against the primary.
    let third = 3 - second;
    set.member(third).step_up().unwrap();
    set.run(1000);
    assert_eq!(set.primary(), Some(third));
    assert_eq!(set.member(third).election_counts().step_up, won);
    assert_eq!(set.member(second).election_counts().higher_term, 1);
}

#[test]
fn a_member_whose_connection_broke_is_down_at_once() {
    let mut set = three();
    set.cut(1);
    set.member(0).connection_lost(1);
    let text = plain(&status(&mut set, 0));
    let part = r#""lastHeartbeatMessage":"Error connecting to m1:27017 :: caused by :: Connection refused","#;
    assert!(text.contains(part) && text.contains(r#""stateStr":"(not reachable/healthy)""#), "{text}");
    // Where somebody listens who is not believed, nobody is to look for a firewall.
    set.member(0).not_believed(1);
    let part = part.replace("Connection refused", "Authentication failed.");
    let text = plain(&status(&mut set, 0));
    assert!(text.contains(&part), "{text}");
    set.heal();
    set.run(3000);
    assert!(!plain(&status(&mut set, 0)).contains("not reachable"));
}

#[test]
fn pings_are_measured_by_the_clock() {
    let mut set = Set::uninitiated(2);
    set.member(0).initiate(ReplSetConfig::new("rs", members(2)), 0).unwrap();
    // The clock goes on while the first pings travel.
    for number in [0, 1] {
        set.member(number).tick(0, 1_000_000);
    }
    for effect in set.member(0).poll() {
        set.perform(&host(0), effect);
    }
    for effect in set.member(0).poll() {
        set.perform(&host(0), effect);
    }
    set.member(0).tick(10, 1_000_000);
    for effect in set.member(0).poll() {
        set.perform(&host(0), effect);
    }
    set.member(0).observe_clock(81);
    set.settle();
    assert!(plain(&status(&mut set, 0)).contains(r#""pingMs":71L"#));
}

fn config(set: &mut Set, number: usize, commitment_status: bool) -> Result<String, Error> {
    let mut result = Ok(());
    let member = set.member(number);
    let doc = DocBuf::build(|doc| result = member.write_config(doc, commitment_status));
    result.map(|()| json::to_json(doc.as_raw(), json::Style::Relaxed))
}

#[test]
fn the_configuration_and_whether_it_is_committed() {
    let mut set = three();
    let text = config(&mut set, 1, false).unwrap();
    assert!(text.starts_with(r#"{"config":{"_id":"rs","version":1,"term":1,"members":[{"_id":0,"#), "{text}");
    assert!(!text.contains("commitmentStatus"));
    let refused = config(&mut set, 1, true).unwrap_err();
    assert_eq!(refused.message(), "commitmentStatus is only supported on primary.");
    assert!(config(&mut set, 0, true).unwrap().ends_with(r#"},"commitmentStatus":true}"#));
    // Not before a majority has it.
    let mut new = (**set.member(0).config().unwrap()).clone();
    new.version += 1;
    set.member(0).reconfig(new, false, None).unwrap();
    set.settle();
    set.cut(1);
    set.cut(2);
    let mut newer = (**set.member(0).config().unwrap()).clone();
    newer.version += 1;
    set.member(0).reconfig(newer, true, None).unwrap();
    set.settle();
    assert!(config(&mut set, 0, true).unwrap().ends_with(r#"},"commitmentStatus":false}"#));
    let none = config(&mut Set::uninitiated(1), 0, false).unwrap_err();
    assert_eq!(
        (none.code(), none.message()),
        (Code::NOT_YET_INITIALIZED, "no replset config has been received")
    );
}

fn check(got: &str, wanted: &[&str]) {
    assert_eq!(got, wanted.concat());
}

/// The second member is down, the third an arbiter.
const PRIMARY: &[&str] = &[
    r#"{"set":"rs","date":1000023000LD,"myState":1,"term":1L,"syncSourceHost":"","syncSourceId":-1"#,
    r#","heartbeatIntervalMillis":2000L,"majorityVoteCount":2,"writeMajorityCount":2"#,
    r#","votingMembersCount":3,"writableVotingMembersCount":2"#,
    r#","optimes":{"lastCommittedOpTime":{"ts":{"t":1000003,"i":1},"t":1L}"#,
    r#","lastCommittedWallTime":1000003000LD,"readConcernMajorityOpTime":{"ts":{"t":1000003,"i":1}"#,
    r#","t":1L},"appliedOpTime":{"ts":{"t":1000003,"i":1},"t":1L},"durableOpTime":{"ts":{"t":1000003"#,
    r#","i":1},"t":1L},"writtenOpTime":{"ts":{"t":1000003,"i":1},"t":1L}"#,
    r#","lastAppliedWallTime":1000003000LD,"lastDurableWallTime":1000003000LD"#,
    r#","lastWrittenWallTime":1000003000LD}"#,
    r#","lastStableRecoveryTimestamp":{"t":1000001,"i":0}"#,
    r#","electionCandidateMetrics":{"lastElectionReason":"electionTimeout""#,
    r#","lastElectionDate":1000000050LD,"electionTerm":1L,"lastCommittedOpTimeAtElection":{"ts":{"t":0"#,
    r#","i":0},"t":-1L},"lastSeenWrittenOpTimeAtElection":{"ts":{"t":0,"i":0},"t":-1L}"#,
    r#","lastSeenOpTimeAtElection":{"ts":{"t":0,"i":0},"t":-1L},"numVotesNeeded":2"#,
    r#","priorityAtElection":1.0,"electionTimeoutMillis":10000L,"numCatchUpOps":0L"#,
    r#","newTermStartDate":1000000050LD,"wMajorityWriteAvailabilityDate":1000000050LD}"#,
    r#","members":[{"_id":0,"name":"m0:27017","health":1.0,"state":1,"stateStr":"PRIMARY","uptime":77"#,
    r#","optime":{"ts":{"t":1000003,"i":1},"t":1L},"optimeDate":1000003000LD"#,
    r#","optimeWritten":{"ts":{"t":1000003,"i":1},"t":1L},"optimeWrittenDate":1000003000LD"#,
    r#","lastAppliedWallTime":1000003000LD,"lastDurableWallTime":1000003000LD"#,
    r#","lastWrittenWallTime":1000003000LD,"syncSourceHost":"","syncSourceId":-1,"infoMessage":"""#,
    r#","electionTime":{"t":1000000,"i":1},"electionDate":1000000000LD,"configVersion":1,"configTerm":1"#,
    r#","self":true,"lastHeartbeatMessage":""}"#,
    r#",{"_id":1,"name":"m1:27017","health":0.0,"state":8,"stateStr":"(not reachable/healthy)""#,
    r#","uptime":0,"optime":{"ts":{"t":0,"i":0},"t":-1L},"optimeDurable":{"ts":{"t":0,"i":0},"t":-1L}"#,
    r#","optimeWritten":{"ts":{"t":0,"i":0},"t":-1L},"optimeDate":0LD,"optimeDurableDate":0LD"#,
    r#","optimeWrittenDate":0LD,"lastAppliedWallTime":1000003000LD,"lastDurableWallTime":1000003000LD"#,
    r#","lastWrittenWallTime":1000003000LD,"lastHeartbeat":1000022100LD"#,
    r#","lastHeartbeatRecv":1000002850LD,"pingMs":0L"#,
    r#","lastHeartbeatMessage":"Couldn't get a connection within the time limit","syncSourceHost":"""#,
    r#","syncSourceId":-1,"infoMessage":"","configVersion":1,"configTerm":1}"#,
    r#",{"_id":2,"name":"m2:27017","health":1.0,"state":7,"stateStr":"ARBITER","uptime":22"#,
    r#","lastHeartbeat":1000022100LD,"lastHeartbeatRecv":1000022850LD,"pingMs":0L"#,
    r#","lastHeartbeatMessage":"","syncSourceHost":"","syncSourceId":-1,"infoMessage":"""#,
    r#","configVersion":1,"configTerm":1}]}"#,
];

/// All are up.
const SECONDARY: &[&str] = &[
    r#"{"set":"rs","date":1000003000LD,"myState":2,"term":1L,"syncSourceHost":"m0:27017""#,
    r#","syncSourceId":0,"heartbeatIntervalMillis":2000L,"majorityVoteCount":2,"writeMajorityCount":2"#,
    r#","votingMembersCount":3,"writableVotingMembersCount":3"#,
    r#","optimes":{"lastCommittedOpTime":{"ts":{"t":1000000,"i":1},"t":1L}"#,
    r#","lastCommittedWallTime":1000000000LD,"readConcernMajorityOpTime":{"ts":{"t":1000000,"i":1}"#,
    r#","t":1L},"appliedOpTime":{"ts":{"t":1000000,"i":1},"t":1L},"durableOpTime":{"ts":{"t":1000000"#,
    r#","i":1},"t":1L},"writtenOpTime":{"ts":{"t":1000000,"i":1},"t":1L}"#,
    r#","lastAppliedWallTime":1000000000LD,"lastDurableWallTime":1000000000LD"#,
    r#","lastWrittenWallTime":1000000000LD}"#,
    r#","lastStableRecoveryTimestamp":{"t":1000001,"i":0}"#,
    r#","electionParticipantMetrics":{"votedForCandidate":true,"electionTerm":1L"#,
    r#","lastVoteDate":1000000050LD"#,
    r#","electionCandidateMemberId":0,"voteReason":"","lastWrittenOpTimeAtElection":{"ts":{"t":0,"i":0}"#,
    r#","t":-1L},"maxWrittenOpTimeInSet":{"ts":{"t":0,"i":0},"t":-1L}"#,
    r#","lastAppliedOpTimeAtElection":{"ts":{"t":0,"i":0},"t":-1L},"maxAppliedOpTimeInSet":{"ts":{"t":0"#,
    r#","i":0},"t":-1L},"priorityAtElection":1.0,"newTermStartDate":1000000000LD"#,
    r#","newTermAppliedDate":1000000050LD}"#,
    r#","members":[{"_id":0,"name":"m0:27017","health":1.0,"state":1,"stateStr":"PRIMARY","uptime":2"#,
    r#","optime":{"ts":{"t":1000000,"i":1},"t":1L},"optimeDurable":{"ts":{"t":1000000,"i":1},"t":1L}"#,
    r#","optimeWritten":{"ts":{"t":1000000,"i":1},"t":1L},"optimeDate":1000000000LD"#,
    r#","optimeDurableDate":1000000000LD,"optimeWrittenDate":1000000000LD"#,
    r#","lastAppliedWallTime":1000000000LD,"lastDurableWallTime":1000000000LD"#,
    r#","lastWrittenWallTime":1000000000LD,"lastHeartbeat":1000002850LD"#,
    r#","lastHeartbeatRecv":1000002100LD,"pingMs":0L,"lastHeartbeatMessage":"","syncSourceHost":"""#,
    r#","syncSourceId":-1,"infoMessage":"","electionTime":{"t":1000000,"i":1}"#,
    r#","electionDate":1000000000LD,"configVersion":1,"configTerm":1}"#,
    r#",{"_id":1,"name":"m1:27017","health":1.0,"state":2,"stateStr":"SECONDARY","uptime":77"#,
    r#","optime":{"ts":{"t":1000000,"i":1},"t":1L},"optimeDate":1000000000LD"#,
    r#","optimeWritten":{"ts":{"t":1000000,"i":1},"t":1L},"optimeWrittenDate":1000000000LD"#,
    r#","lastAppliedWallTime":1000000000LD,"lastDurableWallTime":1000000000LD"#,
    r#","lastWrittenWallTime":1000000000LD,"syncSourceHost":"m0:27017","syncSourceId":0"#,
    r#","infoMessage":"","configVersion":1,"configTerm":1,"self":true,"lastHeartbeatMessage":""}"#,
    r#",{"_id":2,"name":"m2:27017","health":1.0,"state":2,"stateStr":"SECONDARY","uptime":2"#,
    r#","optime":{"ts":{"t":1000000,"i":1},"t":1L},"optimeDurable":{"ts":{"t":1000000,"i":1},"t":1L}"#,
    r#","optimeWritten":{"ts":{"t":1000000,"i":1},"t":1L},"optimeDate":1000000000LD"#,
    r#","optimeDurableDate":1000000000LD,"optimeWrittenDate":1000000000LD"#,
    r#","lastAppliedWallTime":1000000000LD,"lastDurableWallTime":1000000000LD"#,
    r#","lastWrittenWallTime":1000000000LD,"lastHeartbeat":1000002100LD"#,
    r#","lastHeartbeatRecv":1000002100LD,"pingMs":0L,"lastHeartbeatMessage":"""#,
    r#","syncSourceHost":"m0:27017","syncSourceId":0,"infoMessage":"","configVersion":1,"configTerm":1}]}"#,
];
