//! What must hold of a configuration by itself.

use sheaf_errors::{Code, Error, Result};

use super::{MAX_MEMBERS, MAX_VOTERS, MemberConfig, ReplSetConfig};

/// A year of 366 days.
const SECONDARY_DELAY_SECS_MAX: i64 = 3600 * 24 * 366;
const PRIORITY_MAX: f64 = 1000.0;

fn invalid(text: impl Into<String>) -> Error {
    Error::new(Code::INVALID_REPLICA_SET_CONFIG, text)
}

impl ReplSetConfig {
    /// Checks everything that does not depend on an earlier configuration.
    pub fn validate(&self) -> Result<()> {
        if self.version <= 0 || self.version > i64::from(i32::MAX) {
            return Err(invalid(format!("version field value of {} is out of range", self.version)));
        }
        if self.set_name.is_empty() {
            return Err(invalid("Replica set configuration must have non-empty _id field"));
        }
        if self.protocol_version != 1 {
            return Err(invalid(match self.protocol_version {
                0 => "Support for replication protocol version 0 was removed in MongoDB 4.0. Downgrade to MongoDB \
                      version 3.6 and upgrade your protocol version to 1 before upgrading your MongoDB version"
                    .to_owned(),
                other => format!(
                    "protocolVersion field value of {other} is not 1. Support for replication protocol versions other \
                     than 1 is not available"
                ),
            }));
        }
        let count = self.members.len();
        if count == 0 || count > MAX_MEMBERS {
            return Err(invalid(format!(
                "Replica set configuration contains {count} members, but must have at least 1 and no more than  {MAX_MEMBERS}"
            )));
        }
        for member in &self.members {
            member.validate()?;
        }
        self.check_distinct()?;
        self.check_counts()?;
        self.check_modes()
    }

    fn check_distinct(&self) -> Result<()> {
        for (i, member) in self.members.iter().enumerate() {
            for (j, other) in self.members.iter().enumerate().filter(|(j, _)| *j != i) {
                let same = |field: &str, value: &str| {
                    Err(invalid(format!(
                        "Found two member configurations with same {field} field, members.{i}.{field} == \
                         members.{j}.{field} == {value}"
                    )))
                };
                if member.id == other.id {
                    return same("_id", &format!("MemberId({})", member.id));
                }
                if member.host == other.host {
                    return same("host", &member.host);
                }
            }
        }
        Ok(())
    }

    fn check_counts(&self) -> Result<()> {
        let count = self.members.len();
        let local = self.members.iter().filter(|member| is_localhost(&member.host)).count();
        if local != 0 && local != count {
            return Err(invalid(format!(
                "Either all host names in a replica set configuration must be localhost references, or none must be; \
                 found {local} out of {count}"
            )));
        }
        let voters = self.members.iter().filter(|member| member.votes > 0).count();
        if voters == 0 || voters > MAX_VOTERS {
            return Err(invalid(format!(
                "Replica set configuration contains {voters} voting members, but must be at least 1 and no more than \
                 {MAX_VOTERS}"
            )));
        }
        if !self.members.iter().any(|member| !member.arbiter_only && member.priority > 0.0) {
            return Err(invalid(
                "Replica set configuration must contain at least one non-arbiter member with priority > 0",
            ));
        }
        Ok(())
    }

    /// Custom write concerns may only name tags that some member has.
    fn check_modes(&self) -> Result<()> {
        for (_, tags) in &self.settings.get_last_error_modes {
            for (tag, _) in tags {
                let known = self.members.iter().any(|member| member.tags.iter().any(|(name, _)| name == tag));
                if !known {
                    return Err(invalid(format!("No replica set tag named '{tag}' is configured")));
                }
            }
        }
        Ok(())
    }

    /// Whether a write without a write concern waits for a majority: not where an arbiter could make that
    /// impossible when one member is down.
    pub fn implicit_default_is_majority(&self) -> bool {
        let arbiters = self.voters().filter(|member| member.arbiter_only).count();
        arbiters == 0 || self.writable_voting_members_count() > self.majority_vote_count()
    }
}

impl MemberConfig {
    fn validate(&self) -> Result<()> {
        if !(0.0..=PRIORITY_MAX).contains(&self.priority) {
            return Err(invalid(format!("priority field value of {} is out of range", self.priority)));
        }
        if self.votes != 0 && self.votes != 1 {
            return Err(invalid(format!("votes field value is {} but must be 0 or 1", self.votes)));
        }
        if self.arbiter_only {
            if !self.tags.is_empty() {
                return Err(invalid("Cannot set tags on arbiters."));
            }
            if self.votes == 0 {
                return Err(invalid("Arbiter must vote (cannot have 0 votes)"));
            }
        }
        if !(0..=SECONDARY_DELAY_SECS_MAX).contains(&self.secondary_delay_secs) {
            return Err(invalid(format!(
                "secondaryDelaySecs field value of {} seconds is out of range",
                self.secondary_delay_secs
            )));
        }
        if self.priority == 0.0 {
            return Ok(());
        }
        let must_be_zero = [
            (self.votes == 0, "non-voting (votes:0)"),
            (self.secondary_delay_secs > 0, "secondaryDelaySecs is used"),
            (self.hidden, "hidden=true"),
            (!self.build_indexes, "buildIndexes=false"),
        ];
        match must_be_zero.iter().find(|(wrong, _)| *wrong) {
            Some((_, when)) => Err(invalid(format!("priority must be 0 when {when}"))),
            None => Ok(()),
        }
    }
}

fn is_localhost(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    matches!(name, "localhost" | "[::1]" | "anonymous unix socket")
        || name.starts_with("127.")
        || name.starts_with('/')
}
