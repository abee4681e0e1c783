//! What must hold of a configuration by itself.

use sheaf_errors::{Code, Error, Result};

use super::{MAX_MEMBERS, MAX_VOTERS, ReplSetConfig};

impl ReplSetConfig {
    /// Checks everything that does not depend on an earlier configuration.
    pub fn validate(&self) -> Result<()> {
        let invalid = |text: String| Err(Error::new(Code::INVALID_REPLICA_SET_CONFIG, text));
        if self.members.is_empty() || self.members.len() > MAX_MEMBERS {
            return invalid(format!("Replica set must have between 1 and {MAX_MEMBERS} members"));
        }
        if self.members.iter().filter(|member| member.votes > 0).count() > MAX_VOTERS {
            return invalid("too many voters".into());
        }
        Ok(())
    }
}
