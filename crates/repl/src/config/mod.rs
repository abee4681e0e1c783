//! The replica-set configuration: MongoDB's document as a value.
//!
//! [`ReplSetConfig::parse`] reads it, [`ReplSetConfig::validate`] checks what must hold of one alone,
//! [`reconfig`] what must hold of one after another.

use std::sync::Arc;

use sheaf_bson::ObjectId;

mod document;
mod parse;
pub mod reconfig;
#[cfg(test)]
mod tests;
mod validate;

pub use parse::CUSTOM_DEFAULTS;

/// The most members that a set may have.
pub const MAX_MEMBERS: usize = 50;
/// The most members that may vote.
pub const MAX_VOTERS: usize = 7;

/// The `electionTimeoutMillis` of who has not set one.
pub const DEFAULT_ELECTION_TIMEOUT: i64 = 10_000;

/// A whole configuration (`local.system.replset` holds it as a document).
#[derive(Clone, Debug, PartialEq)]
pub struct ReplSetConfig {
    /// The set's name (`_id`).
    pub set_name: String,
    /// Grows with every reconfiguration.
    pub version: i64,
    /// Term of the primary that made it; -1 when it was forced or not given.
    pub term: i64,
    /// Always 1.
    pub protocol_version: i64,
    /// Whether `w: "majority"` means journaled.
    pub write_concern_majority_journal_default: bool,
    /// Whether the set is a config server's.
    pub configsvr: bool,
    /// The members, in the order of the document.
    pub members: Vec<MemberConfig>,
    /// The rest.
    pub settings: Settings,
}

/// One member of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberConfig {
    /// `_id`: never changes for a member.
    pub id: u64,
    /// `host:port`.
    pub host: Arc<str>,
    /// Votes and holds no data.
    pub arbiter_only: bool,
    /// Whether secondary indexes are built.
    pub build_indexes: bool,
    /// Not shown in `hello`.
    pub hidden: bool,
    /// 0 never becomes primary; the highest that is able to is made primary.
    pub priority: f64,
    /// Names and values, for write and read concerns.
    pub tags: Vec<(String, String)>,
    /// How far behind the primary the member stays.
    pub secondary_delay_secs: i64,
    /// 0 or 1.
    pub votes: i64,
    /// Set by the primary for a member that has just been added: it votes once it has caught up.
    pub newly_added: bool,
}

impl Default for MemberConfig {
    fn default() -> Self {
        MemberConfig {
            id: 0,
            host: Arc::from(""),
            arbiter_only: false,
            build_indexes: true,
            hidden: false,
            priority: 1.0,
            tags: Vec::new(),
            secondary_delay_secs: 0,
            votes: 1,
            newly_added: false,
        }
    }
}

impl MemberConfig {
    /// A member with nothing but defaults.
    pub fn new(id: u64, host: impl Into<Arc<str>>) -> Self {
        MemberConfig { id, host: host.into(), ..MemberConfig::default() }
    }

    /// Whether the member counts in elections now.
    pub fn is_voter(&self) -> bool {
        self.votes > 0 && !self.newly_added
    }

    /// Whether the member holds data.
    pub fn bears_data(&self) -> bool {
        !self.arbiter_only
    }

    /// Whether the member may ever become primary.
    pub fn is_electable(&self) -> bool {
        self.is_voter() && !self.arbiter_only && self.priority > 0.0
    }
}

/// `settings` of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Whether secondaries may be fed by others than the primary. Kept, without effect: the primary feeds all.
    pub chaining_allowed: bool,
    /// Time between the pings by which members know each other's state and measure round trips.
    pub heartbeat_interval_millis: i64,
    /// After how long without a message a member is shown as down and is no successor: this, but no longer than
    /// the election time-out and no shorter than two intervals. Also how long `replSetReconfig` waits for a
    /// majority's answers.
    pub heartbeat_timeout_secs: i64,
    /// After how long without a primary the others elect one, if they do not learn of its end from their
    /// connections; also after how long without a majority a primary steps down. With the default a primary that falls silent is
    /// taken for gone earlier.
    pub election_timeout_millis: i64,
    /// How long a new primary may catch up; -1 is without limit. Kept, without effect: nobody wins who lacks an
    /// entry that a majority has.
    pub catch_up_timeout_millis: i64,
    /// After how long a secondary that is ahead of the primary takes over. Kept, without effect: what it has
    /// beyond the primary's log is rolled back.
    pub catch_up_takeover_delay_millis: i64,
    /// Custom write concerns: name, then how many different values of which tag.
    pub get_last_error_modes: Vec<(String, Vec<(String, i64)>)>,
    /// Identifies the set.
    pub replica_set_id: Option<ObjectId>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            chaining_allowed: true,
            heartbeat_interval_millis: 2000,
            heartbeat_timeout_secs: 10,
            election_timeout_millis: DEFAULT_ELECTION_TIMEOUT,
            catch_up_timeout_millis: -1,
            catch_up_takeover_delay_millis: 30_000,
            get_last_error_modes: Vec::new(),
            replica_set_id: None,
        }
    }
}

/// Which configuration: compared by term, and by version within one or when one has no term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigVersion {
    /// See [`ReplSetConfig::term`].
    pub term: i64,
    /// See [`ReplSetConfig::version`].
    pub version: i64,
}

impl ConfigVersion {
    /// What a member without a configuration says.
    pub const NONE: ConfigVersion = ConfigVersion { term: -1, version: 0 };

    /// Whether this one replaces `other`. A forced one (term -1) is compared by version alone.
    pub fn newer_than(self, other: ConfigVersion) -> bool {
        if self.term == other.term || self.term == -1 || other.term == -1 {
            self.version > other.version
        } else {
            self.term > other.term
        }
    }
}

impl ReplSetConfig {
    /// A configuration of these members with nothing but defaults, of version 1.
    pub fn new(set_name: impl Into<String>, members: Vec<MemberConfig>) -> Self {
        ReplSetConfig {
            set_name: set_name.into(),
            version: 1,
            term: -1,
            protocol_version: 1,
            write_concern_majority_journal_default: true,
            configsvr: false,
            members,
            settings: Settings::default(),
        }
    }

    /// The configuration's version and term.
    pub fn config_version(&self) -> ConfigVersion {
        ConfigVersion { term: self.term, version: self.version }
    }

    /// The member with this `_id`.
    pub fn member(&self, id: u64) -> Option<&MemberConfig> {
        self.members.iter().find(|member| member.id == id)
    }

    /// The member at this host.
    pub fn member_at(&self, host: &str) -> Option<&MemberConfig> {
        self.members.iter().find(|member| &*member.host == host)
    }

    /// The members that vote.
    pub fn voters(&self) -> impl Iterator<Item = &MemberConfig> {
        self.members.iter().filter(|member| member.is_voter())
    }

    /// How many votes elect.
    pub fn majority_vote_count(&self) -> usize {
        self.voters().count() / 2 + 1
    }

    /// How many members hold data.
    pub fn data_bearing_count(&self) -> usize {
        self.members.iter().filter(|member| member.bears_data()).count()
    }

    /// How many voters hold data.
    pub fn writable_voting_members_count(&self) -> usize {
        self.voters().filter(|member| member.bears_data()).count()
    }

    /// How many voters with data make an entry majority-committed: the majority of all votes, but never
    /// more than there are such members.
    pub fn write_majority_count(&self) -> usize {
        self.majority_vote_count().min(self.writable_voting_members_count())
    }
}
