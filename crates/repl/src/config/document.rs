//! Writing the document, fields in mongod's order and of mongod's types.

use sheaf_bson::{DocBuf, DocWriter};

use super::{MemberConfig, ReplSetConfig, Settings};

impl ReplSetConfig {
    /// The document as it is stored and sent to other members.
    pub fn to_document(&self) -> DocBuf {
        self.document(true)
    }

    /// The document as `replSetGetConfig` shows it: without what the set keeps for itself.
    pub fn to_client_document(&self) -> DocBuf {
        self.document(false)
    }

    fn document(&self, internal: bool) -> DocBuf {
        DocBuf::build(|doc| {
            doc.append("_id", self.set_name.as_str());
            doc.append("version", self.version as i32);
            if self.term != -1 {
                doc.append("term", self.term as i32);
            }
            {
                let mut members = doc.array("members");
                for member in &self.members {
                    member.write(&mut members.document(), internal);
                }
            }
            if self.configsvr {
                doc.append("configsvr", true);
            }
            doc.append("protocolVersion", self.protocol_version);
            doc.append("writeConcernMajorityJournalDefault", self.write_concern_majority_journal_default);
            self.settings.write(&mut doc.document("settings"));
        })
    }
}

impl MemberConfig {
    fn write(&self, doc: &mut DocWriter<'_, Vec<u8>>, internal: bool) {
        doc.append("_id", self.id as i32);
        doc.append("host", &*self.host);
        doc.append("arbiterOnly", self.arbiter_only);
        if internal && self.newly_added {
            doc.append("newlyAdded", true);
        }
        doc.append("buildIndexes", self.build_indexes);
        doc.append("hidden", self.hidden);
        doc.append("priority", self.priority);
        {
            let mut tags = doc.document("tags");
            for (name, value) in &self.tags {
                tags.append(name, value.as_str());
            }
        }
        doc.append("secondaryDelaySecs", self.secondary_delay_secs);
        doc.append("votes", self.votes as i32);
    }
}

impl Settings {
    fn write(&self, doc: &mut DocWriter<'_, Vec<u8>>) {
        doc.append("chainingAllowed", self.chaining_allowed);
        doc.append("heartbeatIntervalMillis", self.heartbeat_interval_millis as i32);
        doc.append("heartbeatTimeoutSecs", self.heartbeat_timeout_secs as i32);
        doc.append("electionTimeoutMillis", self.election_timeout_millis as i32);
        doc.append("catchUpTimeoutMillis", self.catch_up_timeout_millis as i32);
        doc.append("catchUpTakeoverDelayMillis", self.catch_up_takeover_delay_millis as i32);
        {
            let mut modes = doc.document("getLastErrorModes");
            for (mode, tags) in &self.get_last_error_modes {
                let mut constraints = modes.document(mode);
                for (tag, count) in tags {
                    constraints.append(tag, *count as i32);
                }
            }
        }
        {
            let mut defaults = doc.document("getLastErrorDefaults");
            defaults.append("w", 1);
            defaults.append("wtimeout", 0);
        }
        if let Some(id) = self.replica_set_id {
            doc.append("replicaSetId", id);
        }
    }
}
