//! Where the audit log goes and in which form.

use std::path::PathBuf;

use sheaf_bson::DocBuf;

/// `auditLog` of the settings.
#[derive(Clone, Debug)]
pub struct AuditOptions {
    /// Where events go.
    pub destination: Destination,
    /// How they are written.
    pub format: Format,
    /// Which events are written; all without it.
    pub filter: Option<DocBuf>,
    /// Whether the filter can be changed while the server runs (`auditLog.runtimeConfiguration`).
    pub runtime: bool,
}

/// Where events go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To this file.
    File(PathBuf),
    /// To standard output.
    Console,
    /// To the system's log.
    Syslog,
}

/// How events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One line of JSON each.
    Json,
    /// One document each.
    Bson,
}
