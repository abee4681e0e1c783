//! Commands of replica sets.

mod config;
mod defaults;
mod initiate;
mod maintenance;
mod note;
mod oplog;
mod published;
mod status;
mod stepping;
mod sync_from;

pub use defaults::Defaults;
pub use published::keep_config_published;

use std::sync::Arc;

use sheaf_errors::{Code, Result, bail};

use crate::command::Registered;
use crate::op::OpContext;
use crate::registered;
use crate::replication::Replica;

/// The commands of this group.
pub const COMMANDS: &[Registered] = &[
    registered!(config::ReplSetGetConfig),
    registered!(config::ReplSetReconfig<'_>),
    registered!(defaults::GetDefaultRwConcern),
    registered!(defaults::SetDefaultRwConcern<'_>),
    registered!(initiate::ReplSetInitiate<'_>),
    registered!(maintenance::ReplSetFreeze),
    registered!(maintenance::ReplSetMaintenance),
    registered!(note::AppendOplogNote<'_>),
    registered!(oplog::ReplSetResizeOplog),
    registered!(status::ReplSetGetStatus),
    registered!(stepping::ReplSetAbortPrimaryCatchUp),
    registered!(stepping::ReplSetStepDown),
    registered!(stepping::ReplSetStepUp),
    registered!(sync_from::ReplSetSyncFrom<'_>),
];

/// The replication of this node.
///
/// Errors: `NoReplicationEnabled` on a node that is no member of a set.
fn replica<'a>(op: &OpContext<'a>) -> Result<&'a Arc<Replica>> {
    match op.node().replica() {
        Some(replica) => Ok(replica),
        None => bail!(Code::NO_REPLICATION_ENABLED, "not running with --replSet"),
    }
}
