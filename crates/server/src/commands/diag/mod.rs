//! Commands that show what the server does.

mod diagnostic_data;
mod lock_info;
pub mod profile;
mod replication;
mod server_status;
mod top;

use crate::command::{Entry, RunOnMongod};
use crate::op::Operation;
use crate::registered;

/// The commands of this group.
pub static COMMANDS: &[Entry<RunOnMongod>] = &[
    registered!(diagnostic_data::GetDiagnosticData),
    registered!(lock_info::LockInfo),
    registered!(profile::Profile<'_>),
    registered!(server_status::ServerStatus<'_>),
    registered!(top::Top),
];
