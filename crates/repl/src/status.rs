//! What `hello` says of a member, as a value and as fields of the reply.

use std::sync::Arc;

use sheaf_bson::{DocWriter, ObjectId, Sink, Timestamp, Value};

use crate::config::MemberConfig;
use crate::member::Member;
use crate::types::{MemberState, OpTime};

/// A position as replies show it: `{ts, t}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpTimeAndTime {
    /// The position.
    pub at: OpTime,
    /// Its cluster time.
    pub time: u64,
}

impl OpTimeAndTime {
    /// Appends `{ts, t}` under `key`.
    pub fn write<S: Sink>(&self, doc: &mut DocWriter<'_, S>, key: &str) {
        let mut at = doc.document(key);
        at.append("ts", Timestamp(self.time));
        // Before the first election there is no term.
        at.append("t", if self.at.index == 0 { -1 } else { self.at.term as i64 });
    }

    /// The wall clock of the position, as far as the cluster time tells it: milliseconds since 1970.
    pub fn wall_millis(&self) -> i64 {
        (self.time >> 32) as i64 * 1000
    }
}

/// The part of `hello` that is about the set.
#[derive(Clone, Debug, PartialEq)]
pub struct Hello {
    /// Counts the changes that a waiting `hello` is answered for.
    pub topology_counter: u64,
    /// None for a member that is in no set (yet, or any more).
    pub set: Option<HelloSet>,
}

/// What a member with a configuration tells.
#[derive(Clone, Debug, PartialEq)]
pub struct HelloSet {
    /// `setName`.
    pub set_name: String,
    /// `setVersion`.
    pub set_version: i64,
    /// Members that may become primary and are not hidden.
    pub hosts: Vec<Arc<str>>,
    /// Members with data that may not.
    pub passives: Vec<Arc<str>>,
    /// Members without data.
    pub arbiters: Vec<Arc<str>>,
    /// The member that answers.
    pub me: MemberConfig,
    /// Whether it takes writes.
    pub is_writable_primary: bool,
    /// Whether it can be read as a secondary.
    pub secondary: bool,
    /// The primary's host.
    pub primary: Option<Arc<str>>,
    /// Names the election; only a primary has one.
    pub election_id: Option<ObjectId>,
    /// The last entry applied.
    pub last_write: OpTimeAndTime,
    /// The commit point.
    pub majority: OpTimeAndTime,
}

/// The `electionId` of a term: a later term's is the higher.
pub fn election_id(term: u64) -> ObjectId {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&0x7fff_ffff_u32.to_be_bytes());
    bytes[4..].copy_from_slice(&term.to_be_bytes());
    ObjectId(bytes)
}

impl Member {
    /// What `hello` says now.
    pub fn hello(&self) -> Hello {
        Hello { topology_counter: self.role().topology_version, set: self.hello_set() }
    }

    fn hello_set(&self) -> Option<HelloSet> {
        let config = self.config()?;
        let role = self.role();
        let me = config.member(self.id()?)?.clone();
        let hosts = |of: &dyn Fn(&MemberConfig) -> bool| {
            config.members.iter().filter(|m| !m.hidden && of(m)).map(|m| m.host.clone()).collect()
        };
        let positions = self.positions();
        Some(HelloSet {
            set_name: config.set_name.clone(),
            set_version: config.version,
            hosts: hosts(&|member| !member.arbiter_only && member.priority > 0.0),
            passives: hosts(&|member| !member.arbiter_only && member.priority == 0.0),
            arbiters: hosts(&|member| member.arbiter_only),
            me,
            is_writable_primary: role.writable,
            secondary: role.state == MemberState::Secondary,
            primary: role.primary.and_then(|id| config.member(id)).map(|member| member.host.clone()),
            election_id: role.writable.then(|| election_id(role.term)),
            last_write: OpTimeAndTime { at: positions.applied, time: positions.times[1] },
            majority: OpTimeAndTime { at: self.commit_point(), time: self.commit_time() },
        })
    }
}

impl Hello {
    /// Appends the fields in mongod's order. `process` is the `processId` of `topologyVersion`; `legacy` is
    /// `isMaster`, which has another name for one field.
    pub fn write<S: Sink>(&self, doc: &mut DocWriter<'_, S>, process: ObjectId, legacy: bool) {
        {
            let mut version = doc.document("topologyVersion");
            version.append("processId", process);
            version.append("counter", self.topology_counter as i64);
        }
        let writable = if legacy { "ismaster" } else { "isWritablePrimary" };
        let Some(set) = &self.set else {
            doc.append(writable, false);
            doc.append("secondary", false);
            doc.append("info", "Does not have a valid replica set config");
            doc.append("isreplicaset", true);
            return;
        };
        write_hosts(doc, "hosts", &set.hosts);
        for (name, hosts) in [("passives", &set.passives), ("arbiters", &set.arbiters)] {
            if !hosts.is_empty() {
                write_hosts(doc, name, hosts);
            }
        }
        doc.append("setName", set.set_name.as_str());
        doc.append("setVersion", set.set_version as i32);
        doc.append(writable, set.is_writable_primary);
        doc.append("secondary", set.secondary);
        if let Some(primary) = &set.primary {
            doc.append("primary", &**primary);
        }
        set.write_me(doc);
        doc.append("me", &*set.me.host);
        doc.append("electionId", set.election_id.map_or(Value::Missing, Value::ObjectId));
        let mut last = doc.document("lastWrite");
        set.last_write.write(&mut last, "opTime");
        last.append("lastWriteDate", Value::DateTime(set.last_write.wall_millis()));
        set.majority.write(&mut last, "majorityOpTime");
        last.append("majorityWriteDate", Value::DateTime(set.majority.wall_millis()));
    }
}

impl HelloSet {
    /// What is special about this member.
    fn write_me<S: Sink>(&self, doc: &mut DocWriter<'_, S>) {
        if self.me.arbiter_only {
            doc.append("arbiterOnly", true);
        }
        if self.me.priority == 0.0 && !self.me.arbiter_only {
            doc.append("passive", true);
        }
        if self.me.hidden {
            doc.append("hidden", true);
        }
        if !self.me.build_indexes {
            doc.append("buildIndexes", false);
        }
        if self.me.secondary_delay_secs > 0 {
            doc.append("secondaryDelaySecs", self.me.secondary_delay_secs as i32);
        }
        if !self.me.tags.is_empty() {
            let mut tags = doc.document("tags");
            for (name, value) in &self.me.tags {
                tags.append(name, value.as_str());
            }
        }
    }
}

fn write_hosts<S: Sink>(doc: &mut DocWriter<'_, S>, key: &str, hosts: &[Arc<str>]) {
    let mut array = doc.array(key);
    for host in hosts {
        array.push(&**host);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sheaf_bson::{DocBuf, ObjectId, json};

    use crate::config::{MemberConfig, ReplSetConfig};
    use crate::member::{Member, Options, Recovered};
    use crate::types::{HardState, LogBounds, OpTime, TermRun};

    fn hello(member: &Member) -> String {
        let doc = DocBuf::build(|doc| member.hello().write(doc, ObjectId([1; 12]), false));
        json::to_json(doc.as_raw(), json::Style::Relaxed)
    }

    #[test]
    fn a_member_without_a_set_says_so() {
        let member = Member::new(Options::new("rs"), Recovered::default());
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
            Options::new("rs"),
            Recovered {
                hard_state: HardState { term: 2, vote: None, commit: 4 },
                log: LogBounds {
                    start: OpTime::default(),
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
        assert_eq!(super::election_id(1).to_string(), "7fffffff0000000000000001");
        assert!(super::election_id(256) > super::election_id(255));
    }
}
