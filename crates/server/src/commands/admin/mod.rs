//! Commands for administrators and handshakes.

pub mod build_info;
mod cluster_parameter;
mod cmd_line;
mod connection_status;
mod fail_point;
mod features;
mod fsync;
mod get_log;
mod hello;
mod host_info;
mod list_commands;
mod parameters;
mod ping;
mod shutdown;
mod test_version;
mod users;

use crate::command::Registered;
use crate::registered;

/// The commands of this group.
pub const COMMANDS: &[Registered] = &[
    registered!(build_info::BuildInfo),
    registered!(cluster_parameter::GetClusterParameter),
    registered!(cluster_parameter::SetClusterParameter<'_>),
    registered!(cmd_line::GetCmdLineOpts),
    registered!(connection_status::ConnectionStatus),
    registered!(connection_status::WhatsMyUri),
    registered!(fail_point::ConfigureFailPoint<'_>),
    registered!(fsync::Fsync),
    registered!(fsync::FsyncUnlock),
    registered!(get_log::GetLog),
    registered!(get_log::LogRotate),
    registered!(hello::Hello<'_>),
    registered!(hello::IsMaster<'_>),
    registered!(host_info::HostInfo),
    registered!(list_commands::ListCommands),
    registered!(parameters::GetParameter<'_>),
    registered!(parameters::SetParameter<'_>),
    registered!(ping::Ping),
    registered!(features::Features),
    registered!(features::ValidateDbMetadata),
    registered!(shutdown::Shutdown),
    registered!(test_version::TestVersion2),
    registered!(users::UsersInfo),
    registered!(users::RolesInfo),
    registered!(users::SaslStart),
    registered!(users::SaslContinue),
    registered!(users::Authenticate),
    registered!(users::Logout),
];
