//! Commands that show what the server does.

mod conn_pool;
pub mod current_op;
pub mod profile;
mod replication;
mod server_status;
mod top;

use crate::command::Registered;
use crate::registered;

/// The commands of this group.
pub const COMMANDS: &[Registered] = &[
    registered!(conn_pool::ConnPoolStats),
    registered!(conn_pool::LockInfo),
    registered!(current_op::CurrentOp<'_>),
    registered!(current_op::KillOp),
    registered!(profile::Profile<'_>),
    registered!(server_status::ServerStatus<'_>),
    registered!(top::Top),
];
