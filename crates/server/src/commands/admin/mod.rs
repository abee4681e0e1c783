//! Commands for administrators and handshakes.

mod analyze;
mod analyze_shard_key;
mod audit_config;
mod auto_compact;
pub mod cluster_parameter;
mod drop_connections;
mod feature_version;
mod file_md5;
mod fsync;
mod hello;
mod index_commit_quorum;
mod query_analyzer;
mod validate_metadata;
mod write_block;

pub use cluster_parameter::{keep_newer, parameters};

use crate::command::{Entry, RunOnMongod};
use crate::op::Operation;
use crate::registered;

/// The commands of this group.
pub static COMMANDS: &[Entry<RunOnMongod>] = &[
    registered!(analyze::Analyze),
    registered!(audit_config::GetAuditConfig),
    registered!(audit_config::SetAuditConfig<'_>),
    registered!(auto_compact::AutoCompact),
    registered!(drop_connections::DropConnections),
    registered!(file_md5::FileMd5<'_>),
    registered!(feature_version::SetFeatureVersion<'_>),
    registered!(index_commit_quorum::SetIndexCommitQuorum<'_>),
    registered!(cluster_parameter::GetClusterParameter),
    registered!(cluster_parameter::SetClusterParameter<'_>),
    registered!(analyze_shard_key::AnalyzeShardKey<'_>),
    registered!(query_analyzer::ConfigureQueryAnalyzer<'_>),
    registered!(fsync::Fsync),
    registered!(fsync::FsyncUnlock),
    registered!(hello::Hello<'_>),
    registered!(hello::IsMaster<'_>),
    registered!(validate_metadata::ValidateDbMetadata<'_>),
    registered!(write_block::SetUserWriteBlockMode),
];
