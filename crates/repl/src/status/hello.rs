//! What `hello` says of a member, as a value and as fields of the reply.

use std::sync::Arc;

use sheaf_bson::{DocWriter, ObjectId, Sink, Value};

use super::OpTimeAndTime;
use crate::config::MemberConfig;
use crate::member::Member;
use crate::types::MemberState;

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
    /// Whether the member takes writes.
    pub is_writable_primary: bool,
    /// Whether the member can be read as a secondary.
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
