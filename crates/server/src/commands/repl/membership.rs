//! The set that a command is about: this node has to be a member of one.

use std::sync::Arc;

use sheaf_errors::{Code, Result, bail};
use sheaf_repl::MemberState;

use crate::op::Operation;
use crate::replication::{Replica, not_yet_initialized};

/// The replication of this node.
///
/// Errors: `NoReplicationEnabled` on a node that is no member of a set.
pub(super) fn enabled<'a>(op: &Operation<'a>) -> Result<&'a Arc<Replica>> {
    match op.node().replica() {
        Some(replica) => Ok(replica),
        None => bail!(Code::NO_REPLICATION_ENABLED, "not running with --replSet"),
    }
}

/// The replication of a node that has a configuration.
///
/// Errors: `NoReplicationEnabled`, and `NotYetInitialized` before there is one.
pub(super) fn replica<'a>(op: &Operation<'a>) -> Result<&'a Arc<Replica>> {
    let replica = enabled(op)?;
    if replica.role().state == MemberState::Startup && replica.with(|core| core.config().is_none()) {
        return Err(not_yet_initialized());
    }
    Ok(replica)
}
