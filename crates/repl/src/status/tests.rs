//! Replies as golden strings.

use std::sync::Arc;

use sheaf_bson::{DocBuf, ObjectId, json};

use super::election_id;
use crate::config::{MemberConfig, ReplSetConfig};
use crate::member::{Member, MemberOptions, Recovered};
use crate::types::{HardState, LogBounds, LogPosition, TermRun};

fn hello(member: &Member) -> String {
    let doc = DocBuf::build(|doc| member.hello().write(doc, ObjectId([1; 12]), false));
    json::to_json(doc.as_raw(), json::Style::Relaxed)
}

#[test]
fn a_member_without_a_set_says_so() {
    let member = Member::new(MemberOptions::new("rs"), Recovered::default());
    assert_eq!(
        hello(&member),
        concat!(
            r#"{"topologyVersion":{"processId":{"$oid":"010101010101010101010101"},"counter":0},"#,
            r#""isWritablePrimary":false,"secondary":false,"#,
            r#""info":"Does not have a valid replica set config","isreplicaset":true}"#
        )
    );
}

#[test]
fn a_restarted_member_is_a_secondary_of_a_set() {
    let mut members: Vec<MemberConfig> =
        (0..4).map(|id| MemberConfig::new(id, Arc::from(format!("m{id}:1")))).collect();
    (members[1].priority, members[1].tags) = (0.0, vec![("dc".into(), "east".into())]);
    (members[2].arbiter_only, members[2].priority) = (true, 0.0);
    (members[3].hidden, members[3].priority) = (true, 0.0);
    let config = ReplSetConfig { version: 3, term: 2, ..ReplSetConfig::new("rs", members) };
    let seconds = 1_700_000_000_u64;
    let mut member = Member::new(
        MemberOptions::new("rs"),
        Recovered {
            hard_state: HardState { term: 2, vote: None, commit: 4 },
            log: LogBounds {
                start: LogPosition::default(),
                last: 5,
                runs: vec![TermRun { first: 1, term: 2 }],
                last_time: (seconds << 32) + 9,
            },
            times: vec![(4, (seconds << 32) + 8), (5, (seconds << 32) + 9)],
            config: Some((config, Some(1))),
        },
    );
    member.poll();
    assert_eq!(
        hello(&member),
        concat!(
            r#"{"topologyVersion":{"processId":{"$oid":"010101010101010101010101"},"counter":1},"#,
            r#""hosts":["m0:1"],"passives":["m1:1"],"arbiters":["m2:1"],"setName":"rs","setVersion":3,"#,
            r#""isWritablePrimary":false,"secondary":true,"passive":true,"tags":{"dc":"east"},"me":"m1:1","#,
            r#""lastWrite":{"opTime":{"ts":{"$timestamp":{"t":1700000000,"i":9}},"t":2},"#,
            r#""lastWriteDate":{"$date":"2023-11-14T22:13:20Z"},"#,
            r#""majorityOpTime":{"ts":{"$timestamp":{"t":1700000000,"i":8}},"t":2},"#,
            r#""majorityWriteDate":{"$date":"2023-11-14T22:13:20Z"}}}"#
        )
    );
}

#[test]
fn later_terms_have_higher_election_ids() {
    assert_eq!(election_id(1).to_string(), "7fffffff0000000000000001");
    assert!(election_id(256) > election_id(255));
}
