//! Commands of replica sets.

mod apply_ops;
mod config;
mod defaults;
mod entry;
mod initiate;
mod maintenance;
mod membership;
mod note;
mod oplog;
mod published;
mod rollback_id;
mod status;
mod stepping;
mod sync_from;
mod test;

pub use published::keep_config_published;
pub use status::ReplSetGetStatus;

use crate::command::{Entry, RunOnMongod};
use crate::op::Operation;
use crate::registered;

/// The commands of this group.
pub static COMMANDS: &[Entry<RunOnMongod>] = &[
    registered!(apply_ops::ApplyOps<'_>),
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
