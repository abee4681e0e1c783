//! The document: read, written, refused.

use sheaf_bson::json;
use sheaf_errors::Error;

use super::reconfig::{mark_newly_added, validate_for_initiate, validate_for_reconfig};
use super::{ConfigVersion, MemberConfig, ReplSetConfig};

fn parse(text: &str) -> Result<ReplSetConfig, Error> {
    let doc = json::parse_document(text).expect("the test's own JSON");
    ReplSetConfig::parse(doc.as_raw())
}

fn checked(text: &str) -> Result<ReplSetConfig, Error> {
    let config = parse(text)?;
    config.validate()?;
    Ok(config)
}

/// Refused with `InvalidReplicaSetConfig` and this text.
fn refused(text: &str, message: &str) {
    match checked(text) {
        Ok(config) => panic!("accepted: {config:?}"),
        Err(error) => {
            assert_eq!((error.code().0, error.message()), (93, message), "{text}");
        }
    }
}

/// A set of one member with these further fields.
fn with_member(fields: &str) -> String {
    format!(
        r#"{{"_id": "rs", "version": 1, "members": [{{"_id": 0, "host": "a:1"}}, {{"_id": 1, "host": "b:1", {fields}}}]}}"#
    )
}

fn with_settings(settings: &str) -> String {
    format!(
        r#"{{"_id": "rs", "version": 1, "members": [{{"_id": 0, "host": "a:1", "tags": {{"dc": "east"}}}}], "settings": {settings}}}"#
    )
}

#[test]
fn the_shortest_document_gets_all_defaults() {
    let config =
        checked(r#"{"_id": "rs0", "version": 1, "members": [{"_id": 0, "host": "localhost"}]}"#).unwrap();
    assert_eq!(&*config.members[0].host, "localhost:27017");
    let expected = concat!(
        r#"{"_id":"rs0","version":1,"members":[{"_id":0,"host":"localhost:27017","arbiterOnly":false,"#,
        r#""buildIndexes":true,"hidden":false,"priority":1.0,"tags":{},"secondaryDelaySecs":0,"votes":1}],"#,
        r#""protocolVersion":1,"writeConcernMajorityJournalDefault":true,"#,
        r#""settings":{"chainingAllowed":true,"heartbeatIntervalMillis":2000,"heartbeatTimeoutSecs":10,"#,
        r#""electionTimeoutMillis":10000,"catchUpTimeoutMillis":-1,"catchUpTakeoverDelayMillis":30000,"#,
        r#""getLastErrorModes":{},"getLastErrorDefaults":{"w":1,"wtimeout":0}}}"#,
    );
    assert_eq!(relaxed(&config.to_document()), expected);
}

fn relaxed(doc: &sheaf_bson::DocBuf) -> String {
    json::to_json(doc.as_raw(), json::Style::Relaxed)
}

#[test]
fn everything_that_is_written_is_read_again() {
    let text = r#"{"_id": "rs", "version": 7, "term": 4, "protocolVersion": 1, "configsvr": false,
        "writeConcernMajorityJournalDefault": false,
        "members": [
            {"_id": 3, "host": "a.example:27018", "priority": 2.5, "tags": {"dc": "east", "use": "all"}},
            {"_id": 1, "host": "[::2]:27019", "arbiterOnly": true, "priority": 1},
            {"_id": 9, "host": "c.example", "hidden": true, "priority": 0, "secondaryDelaySecs": 3600, "votes": 0,
             "buildIndexes": false, "newlyAdded": true}],
        "settings": {"chainingAllowed": false, "heartbeatIntervalMillis": 500, "heartbeatTimeoutSecs": 5,
            "electionTimeoutMillis": 4000, "catchUpTimeoutMillis": 0, "catchUpTakeoverDelayMillis": 10,
            "getLastErrorModes": {"everywhere": {"dc": 1, "use": 1}}, "getLastErrorDefaults": {"w": 1, "wtimeout": 0},
            "replicaSetId": {"$oid": "0123456789abcdef01234567"}}}"#;
    let config = checked(text).unwrap();
    assert_eq!(config.members[1].priority, 0.0, "an arbiter's old default");
    assert_eq!(ReplSetConfig::parse(config.to_document().as_raw()).unwrap(), config);
    let client = relaxed(&config.to_client_document());
    assert!(!client.contains("newlyAdded") && client.contains(r#""term":4"#));
}

#[test]
fn unknown_missing_and_mistyped_fields_are_refused() {
    refused(
        r#"{"_id": "rs", "version": 1}"#,
        "BSON field 'ReplSetConfig.members' is missing but a required field",
    );
    refused(
        r#"{"version": 1, "members": []}"#,
        "BSON field 'ReplSetConfig._id' is missing but a required field",
    );
    refused(
        r#"{"_id": "rs", "version": 1, "members": [], "nodes": 3}"#,
        "BSON field 'ReplSetConfig.nodes' is an unknown field.",
    );
    refused(&with_member(r#""slaveDelay": 1"#), "BSON field 'MemberConfig.slaveDelay' is an unknown field.");
    refused(
        r#"{"_id": "rs", "version": 1, "members": [{"_id": 0, "host": 1}]}"#,
        "BSON field 'MemberConfig.host' is the wrong type 'int', expected type 'string'",
    );
    refused(&with_member(r#""tags": {"dc": 1}"#), "tags.dc field has non-string value of type int");
    refused(
        &with_settings(r#"{"electionTimeoutMillis": 0}"#),
        "BSON field 'electionTimeoutMillis' value must be > 0, actual value '0'",
    );
}

#[test]
fn a_configuration_must_make_sense() {
    refused(
        r#"{"_id": "", "version": 1, "members": []}"#,
        "Replica set configuration must have non-empty _id field",
    );
    refused(r#"{"_id": "rs", "version": 0, "members": []}"#, "version field value of 0 is out of range");
    refused(
        r#"{"_id": "rs", "version": 1, "members": []}"#,
        "Replica set configuration contains 0 members, but must have at least 1 and no more than  50",
    );
    refused(
        r#"{"_id": "rs", "version": 1, "members": [{"_id": 0, "host": "a:1"}, {"_id": 0, "host": "b:1"}]}"#,
        "Found two member configurations with same _id field, members.0._id == members.1._id == MemberId(0)",
    );
    refused(
        r#"{"_id": "rs", "version": 1, "members": [{"_id": 0, "host": "a:1"}, {"_id": 1, "host": "a:1"}]}"#,
        "Found two member configurations with same host field, members.0.host == members.1.host == a:1",
    );
    refused(
        r#"{"_id": "rs", "version": 1, "members": [{"_id": 0, "host": "a:1"}, {"_id": 1, "host": "localhost:1"}]}"#,
        "Either all host names in a replica set configuration must be localhost references, or none must be; found 1 \
         out of 2",
    );
    refused(
        r#"{"_id": "rs", "version": 1, "members": [{"_id": 0, "host": "a:1", "priority": 0}]}"#,
        "Replica set configuration must contain at least one non-arbiter member with priority > 0",
    );
    let eight: Vec<String> = (0..8).map(|id| format!(r#"{{"_id": {id}, "host": "m{id}:1"}}"#)).collect();
    refused(
        &format!(r#"{{"_id": "rs", "version": 1, "members": [{}]}}"#, eight.join(",")),
        "Replica set configuration contains 8 voting members, but must be at least 1 and no more than 7",
    );
}

#[test]
fn a_member_must_make_sense() {
    refused(&with_member(r#""priority": -1"#), "priority field value of -1 is out of range");
    refused(&with_member(r#""priority": 1001"#), "priority field value of 1001 is out of range");
    refused(&with_member(r#""votes": 2"#), "votes field value is 2 but must be 0 or 1");
    refused(&with_member(r#""votes": 0"#), "priority must be 0 when non-voting (votes:0)");
    refused(&with_member(r#""hidden": true"#), "priority must be 0 when hidden=true");
    refused(&with_member(r#""buildIndexes": false"#), "priority must be 0 when buildIndexes=false");
    refused(&with_member(r#""secondaryDelaySecs": 5"#), "priority must be 0 when secondaryDelaySecs is used");
    refused(
        &with_member(r#""priority": 0, "secondaryDelaySecs": -5"#),
        "secondaryDelaySecs field value of -5 seconds is out of range",
    );
    refused(&with_member(r#""arbiterOnly": true, "votes": 0"#), "Arbiter must vote (cannot have 0 votes)");
    refused(&with_member(r#""arbiterOnly": true, "tags": {"a": "b"}"#), "Cannot set tags on arbiters.");
}

#[test]
fn write_concern_modes_name_tags_that_exist() {
    checked(&with_settings(r#"{"getLastErrorModes": {"m": {"dc": 1}}}"#)).unwrap();
    refused(
        &with_settings(r#"{"getLastErrorModes": {"m": {"rack": 1}}}"#),
        "No replica set tag named 'rack' is configured",
    );
    refused(
        &with_settings(r#"{"getLastErrorModes": {"m": {"dc": 0}}}"#),
        "Value of settings.getLastErrorModes.m.dc must be positive, but found 0",
    );
    refused(
        &with_settings(r#"{"getLastErrorModes": {"m": 1}}"#),
        "Expected settings.getLastErrorModes.m to be an object, not int",
    );
}

fn three() -> ReplSetConfig {
    ReplSetConfig::new("rs", (0..3).map(|id| MemberConfig::new(id, format!("m{id}:1").as_str())).collect())
}

fn next(change: impl FnOnce(&mut ReplSetConfig)) -> Result<(), (i32, String)> {
    let mut new = three();
    new.version = 2;
    change(&mut new);
    validate_for_reconfig(&three(), &new, 0, false).map_err(|e| (e.code().0, e.message().to_owned()))
}

#[test]
fn a_reconfiguration_keeps_what_must_stay() {
    assert_eq!(next(|_| {}), Ok(()));
    assert_eq!(next(|config| config.members[1].host = "elsewhere:1".into()), Ok(()));
    assert_eq!(next(|config| config.configsvr = true), Ok(()));
    type Change = fn(&mut ReplSetConfig);
    let table: [(Change, i32, &str); 10] = [
        (
            |config| config.version = 1,
            103,
            "New replica set configuration version and term must be greater than old, but {version: 1, term: -1} is not \
             greater than {version: 1, term: -1} for replica set rs",
        ),
        (
            |config| config.set_name = "other".into(),
            93,
            "Rejecting reconfig where new config set name differs from command line set name, new config set name: \
             other, old config set name: rs",
        ),
        (
            |config| config.members[1].id = 5,
            103,
            "New and old configurations both have members with host of m1:1 but in the new configuration the _id field \
             is MemberId(5) and in the old configuration it is MemberId(1) for replica set rs",
        ),
        (
            |config| (config.members[1].build_indexes, config.members[1].priority) = (false, 0.0),
            103,
            "New and old configurations differ in the setting of the buildIndexes field for member m1:1; to make this \
             change, remove then re-add the member",
        ),
        (
            |config| (config.members[1].arbiter_only, config.members[1].priority) = (true, 0.0),
            103,
            "New and old configurations differ in the setting of the arbiterOnly field for member m1:1; to make this \
             change, remove then re-add the member",
        ),
        (
            |config| {
                let arbiter =
                    MemberConfig { arbiter_only: true, priority: 2.0, ..MemberConfig::new(3, "m3:1") };
                config.members.push(arbiter);
            },
            103,
            "Member m3:1 is an arbiter but has priority 2. Arbiter priority must be 0.",
        ),
        (
            |config| config.members.truncate(1),
            103,
            "Non force replica set reconfig can only add or remove at most 1 voting member.",
        ),
        (
            |config| config.members[2].host = "localhost:1".into(),
            103,
            "Either all host names in a replica set configuration must be localhost references, or none must be; found 1 \
             out of 3",
        ),
        (
            |config| config.members[0].priority = 0.0,
            104,
            "This node, m0:1, with _id MemberId(0) is not electable under the new configuration with {version: 2, term: \
             -1} for replica set rs",
        ),
        (
            |config| drop(config.members.remove(0)),
            74,
            "No host described in new configuration with {version: 2, term: -1} for replica set rs maps to this node",
        ),
    ];
    for (change, code, text) in table {
        assert_eq!(next(change), Err((code, text.to_owned())));
    }
}

#[test]
fn a_lone_writer_gets_company_in_two_steps() {
    let with = |votes: i64, priority: f64, version: i64| {
        let mut config = three();
        config.members[2] = MemberConfig { arbiter_only: true, priority: 0.0, ..config.members[2].clone() };
        config.members[1] = MemberConfig { votes, priority, ..config.members[1].clone() };
        ReplSetConfig { version, ..config }
    };
    let alone = with(0, 0.0, 1);
    for force in [false, true] {
        let error = validate_for_reconfig(&alone, &with(1, 1.0, 2), 0, force).unwrap_err();
        assert_eq!(error.code().0, 103);
        assert!(
            error.message().starts_with("Rejecting reconfig where the new config has a PSA topology"),
            "{error}"
        );
        assert_eq!(validate_for_reconfig(&alone, &with(1, 0.0, 2), 0, force), Ok(()));
        assert_eq!(validate_for_reconfig(&with(1, 0.0, 1), &with(1, 1.0, 2), 0, force), Ok(()));
    }
}

#[test]
fn the_first_configuration_is_of_version_one_and_of_this_set() {
    assert!(validate_for_initiate(&three(), "rs", 0).is_ok());
    let name = validate_for_initiate(&three(), "other", 0).unwrap_err();
    assert_eq!(
        (name.code().0, name.message()),
        (
            93,
            "Rejecting initiate with a set name that differs from command line set name, initiate set name: rs, command \
             line set name: other"
        )
    );
    let version = validate_for_initiate(&ReplSetConfig { version: 2, ..three() }, "rs", 0).unwrap_err();
    // Two spaces, as mongod has them.
    assert_eq!(
        (version.code().0, version.message()),
        (93, "Configuration used to initiate a replica set must  have version 1, but found 2")
    );
    assert!(validate_for_initiate(&three(), "rs", 7).is_err());
}

#[test]
fn only_members_that_come_with_a_vote_are_newly_added() {
    let mut new = three();
    new.members.push(MemberConfig::new(3, "m3:1"));
    new.members.push(MemberConfig { votes: 0, priority: 0.0, ..MemberConfig::new(4, "m4:1") });
    mark_newly_added(&three(), &mut new);
    let marked: Vec<bool> = new.members.iter().map(|member| member.newly_added).collect();
    assert_eq!(marked, [false, false, false, true, false]);
    assert_eq!(new.voters().count(), 3);
}

#[test]
fn versions_are_compared_by_term_unless_one_was_forced() {
    let of = |term, version| ConfigVersion { term, version };
    assert!(of(2, 1).newer_than(of(1, 9)));
    assert!(of(2, 3).newer_than(of(2, 2)));
    assert!(of(-1, 50_000).newer_than(of(7, 3)));
    assert!(!of(7, 3).newer_than(of(-1, 50_000)));
    assert!(of(0, 1).newer_than(ConfigVersion::NONE));
    assert!(!of(1, 1).newer_than(of(1, 1)));
}

#[test]
fn majorities_count_members_with_data() {
    let counts = |data: u64, arbiters: u64| {
        let mut config =
            ReplSetConfig::new("rs", (0..data + arbiters).map(|id| MemberConfig::new(id, "h:1")).collect());
        for member in config.members.iter_mut().skip(data as usize) {
            member.arbiter_only = true;
        }
        (config.majority_vote_count(), config.write_majority_count(), config.implicit_default_is_majority())
    };
    assert_eq!(counts(1, 0), (1, 1, true));
    assert_eq!(counts(3, 0), (2, 2, true));
    assert_eq!(counts(2, 1), (2, 2, false));
    assert_eq!(counts(1, 1), (2, 1, false));
    assert_eq!(counts(1, 2), (2, 1, false));
    assert_eq!(counts(4, 1), (3, 3, true));
}

#[test]
fn horizons_are_refused_rather_than_forgotten() {
    assert!(checked(&with_member(r#""horizons": {}"#)).is_ok());
    let error = checked(&with_member(r#""horizons": {"outside": "example.com:27017"}"#)).unwrap_err();
    assert_eq!(error.code(), sheaf_errors::Code::NOT_IMPLEMENTED);
}
