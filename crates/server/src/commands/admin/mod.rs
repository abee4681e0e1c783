//! Commands for administrators and handshakes.

mod cluster_parameter;
mod fsync;
mod hello;
mod query_analyzer;
mod validate_metadata;

use crate::command::{Entry, RunOnMongod};
use crate::op::Operation;
use crate::registered;

/// The commands of this group.
pub static COMMANDS: &[Entry<RunOnMongod>] = &[
    registered!(cluster_parameter::GetClusterParameter),
    registered!(cluster_parameter::SetClusterParameter<'_>),
    registered!(query_analyzer::ConfigureQueryAnalyzer<'_>),
    registered!(fsync::Fsync),
    registered!(fsync::FsyncUnlock),
    registered!(hello::Hello<'_>),
    registered!(hello::IsMaster<'_>),
    registered!(validate_metadata::ValidateDbMetadata<'_>),
];
