//! Commands of replica sets.

mod config;
mod defaults;
mod initiate;
mod maintenance;
mod note;
mod oplog;
mod published;
mod rollback_id;
mod status;
mod stepping;
mod sync_from;
mod test;

pub use defaults::Defaults;
pub use published::keep_config_published;

use std::sync::Arc;

use sheaf_errors::{Code, Result, bail};
use sheaf_repl::MemberState;

use crate::command::{Entry, RunOnMongod};
use crate::op::Operation;
use crate::registered;
use crate::replication::{Replica, not_yet_initialized};

/// The commands of this group.
pub static COMMANDS: &[Entry<RunOnMongod>] = &[
    registered!(config::ReplSetGetConfig),
    registered!(config::ReplSetReconfig<'_>),
    registered!(defaults::GetDefaultRwConcern),
    registered!(defaults::SetDefaultRwConcern<'_>),
    registered!(initiate::ReplSetInitiate<'_>),
    registered!(maintenance::ReplSetFreeze),
    registered!(maintenance::ReplSetMaintenance),
    registered!(note::AppendOplogNote<'_>),
    registered!(oplog::ReplSetResizeOplog),
    registered!(rollback_id::ReplSetGetRbid),
    registered!(status::ReplSetGetStatus),
    registered!(stepping::ReplSetAbortPrimaryCatchUp),
    registered!(stepping::ReplSetStepDown<'_>),
    registered!(stepping::ReplSetStepUp),
    registered!(sync_from::ReplSetSyncFrom<'_>),
    registered!(test::ReplSetTest),
];

/// The replication of this node.
///
/// Errors: `NoReplicationEnabled` on a node that is no member of a set.
fn enabled<'a>(op: &Operation<'a>) -> Result<&'a Arc<Replica>> {
    match op.node().replica() {
        Some(replica) => Ok(replica),
        None => bail!(Code::NO_REPLICATION_ENABLED, "not running with --replSet"),
    }
}

/// The replication of a node that has a configuration.
///
/// Errors: `NoReplicationEnabled`, and `NotYetInitialized` before there is one.
fn replica<'a>(op: &Operation<'a>) -> Result<&'a Arc<Replica>> {
    let replica = enabled(op)?;
    if replica.role().state == MemberState::Startup && replica.with(|core| core.config().is_none()) {
        return Err(not_yet_initialized());
    }
    Ok(replica)
}
