//! The commands of every server, whatever its role: they know connections, sessions, cursors, parameters and the log, and no data.
//! Where a role has more to do, it is asked through [`Role`](crate::role::Role).

mod application_message;
mod authenticate;
pub mod build_info;
mod cmd_line;
mod conn_pool;
mod connection_status;
mod current_op;
mod end_sessions;
mod fail_point;
mod features;
mod get_log;
mod host_info;
mod kill_cursors;
mod kill_op;
mod kill_sessions;
mod list_commands;
mod oidc_keys;
mod parameters;
mod ping;
mod rotate_certificates;
mod shutdown;
mod start_session;
mod test_version;

pub use end_sessions::session_list;

use crate::command::{Entry, RunOnFront};
use crate::command_entry;
use crate::request::Request;

/// The commands of every server.
pub static COMMANDS: &[Entry<RunOnFront>] = &[
    command_entry!(application_message::LogApplicationMessage, Request),
    command_entry!(authenticate::Authenticate<'_>, Request),
    command_entry!(authenticate::Logout, Request),
    command_entry!(authenticate::SaslContinue<'_>, Request),
    command_entry!(authenticate::SaslStart<'_>, Request),
    command_entry!(build_info::BuildInfo, Request),
    command_entry!(cmd_line::GetCmdLineOpts, Request),
    command_entry!(conn_pool::ConnPoolStats, Request),
    command_entry!(connection_status::ConnectionStatus, Request),
    command_entry!(connection_status::WhatsMyUri, Request),
    command_entry!(current_op::CurrentOp<'_>, Request),
    command_entry!(end_sessions::EndSessions, Request),
    command_entry!(end_sessions::RefreshSessions, Request),
    command_entry!(fail_point::ConfigureFailPoint<'_>, Request),
    command_entry!(features::Features, Request),
    command_entry!(get_log::GetLog, Request),
    command_entry!(get_log::LogRotate, Request),
    command_entry!(host_info::HostInfo, Request),
    command_entry!(kill_cursors::KillCursors<'_>, Request),
    command_entry!(kill_op::KillOp, Request),
    command_entry!(kill_sessions::KillAllSessions, Request),
    command_entry!(kill_sessions::KillAllSessionsByPattern, Request),
    command_entry!(kill_sessions::KillSessions, Request),
    command_entry!(list_commands::ListCommands, Request),
    command_entry!(oidc_keys::OidcListKeys<'_>, Request),
    command_entry!(oidc_keys::OidcRefreshKeys<'_>, Request),
    command_entry!(parameters::GetParameter<'_>, Request),
    command_entry!(parameters::SetParameter<'_>, Request),
    command_entry!(ping::Ping, Request),
    command_entry!(rotate_certificates::RotateCertificates<'_>, Request),
    command_entry!(shutdown::Shutdown, Request),
    command_entry!(start_session::StartSession, Request),
    command_entry!(test_version::TestVersion2, Request),
];
