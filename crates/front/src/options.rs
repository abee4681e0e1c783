//! How to run a server, as far as its front is concerned.

use std::path::PathBuf;
use std::time::Duration;

use sheaf_auth::AddressRange;

/// Everything that flags and the configuration file decide; the binary fills it in.
#[derive(Clone, Debug)]
pub struct FrontOptions {
    /// Addresses to listen on.
    pub bind: Vec<String>,
    /// TCP port; 0 picks a free one.
    pub port: u16,
    /// Folder for the Unix domain socket; `None` for no such socket.
    pub unix_socket_folder: Option<PathBuf>,
    /// Permissions of the Unix domain socket.
    pub unix_socket_permissions: u32,
    /// Most connections at once.
    pub max_connections: usize,
    /// From where there may be more.
    pub exempt: Vec<AddressRange>,
    /// Operations slower than this are logged.
    pub slow_ms: i64,
    /// Share of slow operations that are logged, 0 to 1.
    pub sample_rate: f64,
    /// Profiling level of databases that say nothing else.
    pub profile_level: i32,
    /// Compressors that the server offers, in its order of preference.
    pub compressors: Vec<sheaf_wire::Compressor>,
    /// Whether clients must prove who they are, and may do only what they were granted (`--auth`).
    pub authorization: bool,
    /// By what members of the deployment know each other (`--keyFile`).
    pub keys: Option<sheaf_auth::Keys>,
    /// By what members prove that they are (`--clusterAuthMode`).
    pub cluster_auth_mode: sheaf_auth::ClusterAuthMode,
    /// Whether and how TLS is spoken.
    pub tls: Option<crate::tls::TlsOptions>,
    /// The audit log, if there is one.
    pub audit: Option<crate::audit::AuditOptions>,
    /// Whether members and clients are taken, too, that prove nothing, while others get their keys.
    pub transition_to_auth: bool,
    /// Whether clients' JavaScript runs (`--noscripting`); of the whole process.
    pub javascript: bool,
    /// `--setParameter`s, in order.
    pub parameters: Vec<(String, String)>,
    /// The command line, for `getCmdLineOpts`.
    pub argv: Vec<String>,
    /// The options as parsed, for `getCmdLineOpts`.
    pub parsed: sheaf_bson::DocBuf,
    /// How long a reply may make no progress before its connection is closed.
    pub write_timeout: Duration,
    /// Most busy connections that are served by threads of their own; the others share the reactor's.
    pub busy_threads: usize,
}

impl Default for FrontOptions {
    fn default() -> Self {
        FrontOptions {
            bind: vec!["127.0.0.1".to_owned()],
            port: 27017,
            unix_socket_folder: None,
            unix_socket_permissions: 0o700,
            max_connections: 1_000_000,
            exempt: Vec::new(),
            slow_ms: 100,
            sample_rate: 1.0,
            profile_level: 0,
            compressors: vec![
                sheaf_wire::Compressor::Snappy,
                sheaf_wire::Compressor::Zstd,
                sheaf_wire::Compressor::Zlib,
            ],
            authorization: false,
            keys: None,
            cluster_auth_mode: sheaf_auth::ClusterAuthMode::KeyFile,
            tls: None,
            audit: None,
            transition_to_auth: false,
            javascript: true,
            parameters: Vec::new(),
            argv: Vec::new(),
            parsed: sheaf_bson::DocBuf::new(),
            write_timeout: Duration::from_secs(300),
            // The runtime's pool has 512 threads, which others need as well.
            busy_threads: (4 * std::thread::available_parallelism().map_or(1, usize::from)).min(256),
        }
    }
}
