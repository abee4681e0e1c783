//! A reconfiguration on its way.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::config::ReplSetConfig;

/// A reconfiguration under way.
pub struct Reconfig {
    /// The configuration that is to be installed.
    pub config: Arc<ReplSetConfig>,
    /// By a member that need not be primary, without asking anybody.
    pub force: bool,
    /// Asked for by a client, who waits for the answer.
    pub asked: bool,
    /// How far it is.
    pub phase: Phase,
}

/// How far a reconfiguration is.
pub enum Phase {
    /// Waits for answers of a majority of the new voters.
    QuorumCheck { answered: BTreeSet<u64>, deadline: u64 },
    /// Waits for the disk.
    Persisting,
}
