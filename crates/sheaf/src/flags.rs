//! The command line, in mongod's words.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use sheaf_server::options::ClusterRole;

use crate::config::{self, Auditing, Settings};
#[cfg(not(feature = "lab"))]
use crate::no_lab as lab;
use crate::tls_settings::TlsSettings;
use crate::values;
#[cfg(feature = "lab")]
use sheaf_lab::cli as lab;

#[derive(Parser)]
#[command(name = "sheaf", about = "A MongoDB-compatible document database", disable_version_flag = true)]
pub(crate) struct Cli {
    /// Show the version and exit
    #[arg(long)]
    version: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// A database server; takes mongod's flags
    Server(Box<ServerFlags>),
    /// A router of a sharded cluster; takes mongos' flags
    Router(Box<RouterFlags>),
    /// The laboratory: run experiments on Sheaf, on mongod or on PostgreSQL, and compare them
    #[cfg_attr(not(feature = "lab"), command(hide = true))]
    Bench(lab::Bench),
    /// Start, break, secure and end a single server, a replica set or a sharded cluster on this machine
    #[cfg_attr(not(feature = "lab"), command(hide = true))]
    Cluster(Box<lab::Cluster>),
    /// Show an operation of the log that cannot be applied, export it, leave it out; show damage of the log, set it aside
    Repair(RepairFlags),
    /// Look whether this machine suits a database, and say what to mend
    #[cfg_attr(not(feature = "lab"), command(hide = true))]
    Doctor(lab::Doctor),
}

/// `sheaf repair`: what to do where the server does not start because its log cannot be applied or is damaged.
#[derive(Args, Clone, Debug)]
pub struct RepairFlags {
    /// Folder of the data
    #[arg(long)]
    pub dbpath: PathBuf,
    /// Write the operation to this file, as Extended JSON
    #[arg(long, value_name = "FILE")]
    pub export: Option<PathBuf>,
    /// Leave this operation out: term/index/seconds.increment, as shown; may be repeated
    #[arg(long, value_name = "ENTRY")]
    pub skip: Vec<sheaf_storage::OperationId>,
    /// Leave it out though the folder is a replica set member's, who will then differ from the others
    #[arg(long)]
    pub member_may_differ: bool,
    /// Take what is damaged out of the log, with what cannot stay in it without that, and keep it in a folder within the data folder
    #[arg(long, conflicts_with_all = ["skip", "export"])]
    pub cut_log: bool,
}

/// The flags of a server, whatever its role. What a flag leaves open, the configuration file or the default decides.
#[derive(Args, Clone, Debug, Default)]
pub struct ProcessFlags {
    /// Show the version and exit
    #[arg(long)]
    pub version: bool,
    /// Configuration file (YAML, as mongod has it)
    #[arg(short = 'f', long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// TCP port; 0 picks a free one and logs it
    #[arg(long)]
    pub port: Option<u16>,
    /// Addresses to listen on, with commas between them
    #[arg(long = "bind_ip")]
    pub bind_ip: Option<String>,
    /// Listen on all addresses
    #[arg(long = "bind_ip_all")]
    pub bind_ip_all: bool,
    /// Listen on IPv6 as well
    #[arg(long)]
    pub ipv6: bool,
    /// Log to this file instead of standard output
    #[arg(long)]
    pub logpath: Option<PathBuf>,
    /// Log to the system's log instead of standard output
    #[arg(long)]
    pub syslog: bool,
    /// What the system's log is told that this program is: user, daemon, local0 and so on
    #[arg(long = "syslogFacility")]
    pub syslog_facility: Option<String>,
    /// Go on with the log file that is there
    #[arg(long)]
    pub logappend: bool,
    /// rename or reopen: what log rotation does
    #[arg(long = "logRotate", alias = "log-rotate")]
    pub log_rotate: Option<String>,
    /// Run in the background
    #[arg(long)]
    pub fork: bool,
    /// Write the process id to this file
    #[arg(long)]
    pub pidfilepath: Option<PathBuf>,
    /// Set a server parameter: name=value
    #[arg(long = "setParameter", value_name = "NAME=VALUE")]
    pub set_parameter: Vec<String>,
    /// Most connections at once
    #[arg(long = "maxConns")]
    pub max_conns: Option<usize>,
    /// Milliseconds after which an operation is logged as slow
    #[arg(long, allow_negative_numbers = true)]
    pub slowms: Option<i32>,
    /// Share of slow operations that are logged, 0 to 1
    #[arg(long = "slowOpSampleRate")]
    pub slow_op_sample_rate: Option<f64>,
    /// Log less
    #[arg(long)]
    pub quiet: bool,
    /// Log more; repeat for still more
    #[arg(short = 'v', long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Open no Unix domain socket
    #[arg(long)]
    pub nounixsocket: bool,
    /// Folder of the Unix domain socket
    #[arg(long = "unixSocketPrefix")]
    pub unix_socket_prefix: Option<PathBuf>,
    /// Permissions of the Unix domain socket, in octal
    #[arg(long = "filePermissions")]
    pub file_permissions: Option<String>,
    /// Compressors to offer, or "disabled"
    #[arg(long = "networkMessageCompressors")]
    pub compressors: Option<String>,
    /// Taken for compatibility; time zones are built in
    #[arg(long = "timeZoneInfo")]
    pub time_zone_info: Option<PathBuf>,
    /// Clients' JavaScript does not run
    #[arg(long)]
    pub noscripting: bool,
    /// Clients must prove who they are, and may do only what they were granted
    #[arg(long, conflicts_with = "noauth")]
    pub auth: bool,
    /// Clients may do everything (the default)
    #[arg(long)]
    pub noauth: bool,
    /// File with the key (or the list of keys) by which members know each other; clients must prove who they are, too
    #[arg(long = "keyFile")]
    pub key_file: Option<PathBuf>,
    /// How members know each other: keyFile (the default), sendKeyFile, sendX509, x509
    #[arg(long = "clusterAuthMode", value_name = "MODE")]
    pub cluster_auth_mode: Option<String>,
    /// For the change to keyFile, member by member: take also clients and members that prove nothing
    #[arg(long = "transitionToAuth")]
    pub transition_to_auth: bool,
    /// TLS
    #[command(flatten)]
    pub tls: TlsSettings,
    /// Where the audit log goes: file, console or syslog; without it there is none
    #[arg(long = "auditDestination", value_name = "WHERE")]
    pub audit_destination: Option<String>,
    /// JSON (a line for each event) or BSON
    #[arg(long = "auditFormat", value_name = "FORMAT")]
    pub audit_format: Option<String>,
    /// File of the audit log
    #[arg(long = "auditPath", value_name = "FILE")]
    pub audit_path: Option<PathBuf>,
    /// Which events are written: a filter, as JSON
    #[arg(long = "auditFilter", value_name = "FILTER")]
    pub audit_filter: Option<String>,
    /// How events are written: mongo, or OCSF (not supported)
    #[arg(long = "auditSchema", value_name = "SCHEMA")]
    pub audit_schema: Option<String>,
    /// Logs tell no values of clients' data
    #[arg(long = "redactClientLogData")]
    pub redact_client_log_data: bool,
    /// Not supported
    #[arg(long = "enableEncryption")]
    pub enable_encryption: bool,
    /// Not supported
    #[arg(long = "encryptionKeyFile", value_name = "FILE")]
    pub encryption_key_file: Option<PathBuf>,
    /// Not supported
    #[arg(long = "encryptionCipherMode", value_name = "MODE")]
    pub encryption_cipher_mode: Option<String>,
}

/// mongod's flags.
#[derive(Args, Clone, Debug, Default)]
pub struct ServerFlags {
    /// Those of every server
    #[command(flatten)]
    pub process: ProcessFlags,
    /// Be a shard of a cluster (port 27018)
    #[arg(long, conflicts_with = "configsvr")]
    pub shardsvr: bool,
    /// Be a config server of a cluster (port 27019)
    #[arg(long)]
    pub configsvr: bool,
    /// For development: a whole cluster of so many shards in one process and folder; `--port` is its router's, the
    /// following ones are its members'
    #[arg(long, value_name = "N")]
    pub shards: Option<u32>,
    /// Folder of the data
    #[arg(long)]
    pub dbpath: Option<PathBuf>,
    /// End the server that runs with this data folder, and wait until it has ended
    #[arg(long)]
    pub shutdown: bool,
    /// Be a member of the replica set of this name; a new set begins with replSetInitiate
    #[arg(long = "replSet")]
    pub repl_set: Option<String>,
    /// Megabytes of log (oplog) to keep
    #[arg(long = "oplogSize", allow_negative_numbers = true)]
    pub oplog_size: Option<i32>,
    /// Hours for which entries of the log are kept, whatever its size
    #[arg(long = "oplogMinRetentionHours", allow_negative_numbers = true)]
    pub oplog_min_retention_hours: Option<f64>,
    /// Keep a journal (the default)
    #[arg(long)]
    pub journal: bool,
    /// Keep no journal: a crash loses what was not flushed
    #[arg(long)]
    pub nojournal: bool,
    /// Milliseconds between syncs of the journal
    #[arg(long = "journalCommitInterval")]
    pub journal_commit_interval: Option<u64>,
    /// Seconds between flushes of data files
    #[arg(long, allow_negative_numbers = true)]
    pub syncdelay: Option<f64>,
    /// Gigabytes of memory for caches
    #[arg(long = "cacheSizeGB")]
    pub cache_size_gb: Option<f64>,
    /// The same, within mongod's bounds: 0.25 to 10000
    #[arg(long = "wiredTigerCacheSizeGB")]
    pub wired_tiger_cache_size_gb: Option<f64>,
    /// wiredTiger: taken for compatibility, it names the only engine there is
    #[arg(long = "storageEngine")]
    pub storage_engine: Option<String>,
    /// Profiling level: 0, 1 or 2
    #[arg(long, allow_negative_numbers = true)]
    pub profile: Option<i32>,
    /// Taken for compatibility; each database has its files together anyway
    #[arg(long)]
    pub directoryperdb: bool,
    /// Taken for compatibility
    #[arg(long = "wiredTigerDirectoryForIndexes")]
    pub wired_tiger_directory_for_indexes: bool,
    /// Taken for compatibility
    #[arg(long = "wiredTigerCollectionBlockCompressor", value_name = "NAME")]
    pub wired_tiger_collection_block_compressor: Option<String>,
    /// Taken for compatibility
    #[arg(long = "wiredTigerJournalCompressor", value_name = "NAME")]
    pub wired_tiger_journal_compressor: Option<String>,
    /// Taken for compatibility
    #[arg(long = "wiredTigerIndexPrefixCompression", value_name = "BOOL")]
    pub wired_tiger_index_prefix_compression: Option<bool>,
    /// Taken if it says true, which it always is, as in mongod
    #[arg(long = "enableMajorityReadConcern", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub enable_majority_read_concern: Option<bool>,
    /// Serve Prometheus metrics over HTTP on this port
    #[arg(long = "metricsPort")]
    pub metrics_port: Option<u16>,
}

/// mongos' flags.
#[derive(Args, Clone, Debug, Default)]
pub struct RouterFlags {
    /// Those of every server
    #[command(flatten)]
    pub process: ProcessFlags,
    /// The config servers: name of their set/host:port,...
    #[arg(long, value_name = "SET/HOST:PORT,...")]
    pub configdb: Option<String>,
    /// By how many milliseconds a member that answers reads may be farther away than the nearest one (15)
    #[arg(long = "localThreshold", value_name = "MS")]
    pub local_threshold: Option<u32>,
}

/// What the command line asks for.
pub enum Parsed {
    /// Run a server.
    Server(Box<ServerFlags>),
    /// Run a router.
    Router(Box<RouterFlags>),
    /// Everything is said and done.
    Done(ExitCode),
}

/// mongod's exit code for a bad command line.
const EXIT_BADOPTIONS: u8 = 2;

/// Parses the command line; answers `--help` and `--version` itself.
pub fn parse(argv: &[String]) -> Parsed {
    let cli = match Cli::try_parse_from(argv) {
        Ok(cli) => cli,
        Err(error) => {
            // clap prints help to standard output and errors to standard error.
            let _ = error.print();
            let code = if error.use_stderr() { EXIT_BADOPTIONS } else { 0 };
            return Parsed::Done(ExitCode::from(code));
        }
    };
    match cli.role {
        Some(Role::Repair(flags)) => Parsed::Done(crate::repair::main(&flags)),
        Some(Role::Doctor(doctor)) => Parsed::Done(lab::doctor(&doctor)),
        Some(Role::Cluster(cluster)) => Parsed::Done(lab::cluster(&cluster)),
        Some(Role::Bench(bench)) => Parsed::Done(lab::bench(&bench)),
        Some(Role::Server(flags)) if !flags.process.version => Parsed::Server(flags),
        Some(Role::Router(flags)) if !flags.process.version => Parsed::Router(flags),
        Some(Role::Server(_) | Role::Router(_)) => {
            print_version();
            Parsed::Done(ExitCode::SUCCESS)
        }
        None if cli.version => {
            print_version();
            Parsed::Done(ExitCode::SUCCESS)
        }
        None => {
            eprintln!("sheaf: say what to run, for example: sheaf server --dbpath data");
            Parsed::Done(ExitCode::from(EXIT_BADOPTIONS))
        }
    }
}

/// The first lines are mongod's, because tools parse them; then our own. Who has read enough may have closed the pipe.
fn print_version() {
    use std::io::Write;

    use sheaf_front::version::{COMPATIBLE, GIT, OWN};
    let architecture = std::env::consts::ARCH;
    let lines = [
        &format!("db version v{COMPATIBLE}"),
        "Build Info: {",
        &format!("    \"version\": \"{COMPATIBLE}\","),
        &format!("    \"gitVersion\": \"{GIT}\","),
        "    \"modules\": [],",
        "    \"allocator\": \"mimalloc\",",
        "    \"environment\": {",
        &format!("        \"distarch\": \"{architecture}\","),
        &format!("        \"target_arch\": \"{architecture}\""),
        "    }",
        "}",
        &match crate::process::commit() {
            Some(commit) => format!("sheaf version v{OWN} ({commit})"),
            None => format!("sheaf version v{OWN}"),
        },
    ];
    let _ = writeln!(std::io::stdout(), "{}", lines.join("\n"));
}

impl ProcessFlags {
    /// What the flags say, in the form of the configuration file.
    ///
    /// Errors: a text for the user.
    pub fn settings(&self) -> Result<Settings, String> {
        let mut parameters = Vec::new();
        for setting in &self.set_parameter {
            match setting.split_once('=') {
                Some((name, value)) => parameters.push((name.to_owned(), value.to_owned())),
                None => return Err(format!("Illegal option assignment: \"{setting}\"")),
            }
        }
        let permissions = match &self.file_permissions {
            Some(text) => match u32::from_str_radix(text, 8) {
                Ok(mode) => Some(mode),
                Err(_) => return Err(format!("filePermissions must be octal, not {text}")),
            },
            None => None,
        };
        Ok(Settings {
            config: self.config.clone(),
            port: self.port,
            bind_ip: self.bind_ip.clone(),
            bind_ip_all: self.bind_ip_all.then_some(true),
            ipv6: self.ipv6.then_some(true),
            logpath: self.logpath.clone(),
            syslog: self.syslog.then_some(true),
            syslog_facility: self.syslog_facility.clone(),
            logappend: self.logappend.then_some(true),
            log_rotate: self.log_rotate.clone(),
            fork: self.fork.then_some(true),
            pidfilepath: self.pidfilepath.clone(),
            time_zone_info: self.time_zone_info.clone(),
            parameters,
            max_conns: self.max_conns,
            slowms: self.slowms,
            sample_rate: self.slow_op_sample_rate,
            quiet: self.quiet.then_some(true),
            verbosity: (self.verbose > 0).then_some(i64::from(self.verbose)),
            unix_socket: self.nounixsocket.then_some(false),
            unix_socket_prefix: self.unix_socket_prefix.clone(),
            unix_socket_permissions: permissions,
            compressors: self.compressors.clone(),
            javascript: self.noscripting.then_some(false),
            auth: if self.noauth { Some(false) } else { self.auth.then_some(true) },
            key_file: self.key_file.clone(),
            cluster_auth_mode: self.cluster_auth_mode.clone(),
            transition_to_auth: self.transition_to_auth.then_some(true),
            tls: self.tls.clone(),
            audit: Auditing {
                destination: self.audit_destination.clone(),
                format: self.audit_format.clone(),
                path: self.audit_path.clone(),
                filter: self.audit_filter.clone(),
                schema: self.audit_schema.clone(),
                ..Auditing::default()
            },
            redact_client_log_data: self.redact_client_log_data.then_some(true),
            encryption: (self.enable_encryption
                || self.encryption_key_file.is_some()
                || self.encryption_cipher_mode.is_some())
            .then_some(true),
            ..Settings::default()
        })
    }
}

impl ServerFlags {
    /// What the flags say, in the form of the configuration file.
    ///
    /// Errors: a text for the user.
    pub fn settings(&self) -> Result<Settings, String> {
        if self.journal && self.nojournal {
            return Err("Can't specify both --journal and --nojournal options.".to_owned());
        }
        config::majority_read_concern(self.enable_majority_read_concern.unwrap_or(true))?;
        values::wired_tiger_cache(self.wired_tiger_cache_size_gb)?;
        let cluster_role = match (self.shardsvr, self.configsvr) {
            (true, _) => Some(ClusterRole::Shard),
            (_, true) => Some(ClusterRole::Config),
            _ => None,
        };
        Ok(Settings {
            dbpath: self.dbpath.clone(),
            repl_set: self.repl_set.clone(),
            repl_set_in_file: self.repl_set.is_some().then_some(false),
            cluster_role,
            oplog_size_mb: self.oplog_size,
            oplog_min_retention_hours: self.oplog_min_retention_hours,
            journal: if self.nojournal { Some(false) } else { self.journal.then_some(true) },
            journal_commit_interval: self.journal_commit_interval,
            syncdelay: self.syncdelay,
            cache_size_gb: self.cache_size_gb.or(self.wired_tiger_cache_size_gb),
            storage_engine: self.storage_engine.clone(),
            profile: self.profile,
            metrics_port: self.metrics_port,
            ..self.process.settings()?
        })
    }
}

impl RouterFlags {
    /// What the flags say, in the form of the configuration file.
    ///
    /// Errors: a text for the user.
    pub fn settings(&self) -> Result<Settings, String> {
        let (config_db, local_threshold) = (self.configdb.clone(), self.local_threshold);
        Ok(Settings { config_db, local_threshold, ..self.process.settings()? })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn commands_of_the_laboratory_are_listed_where_it_is() {
        let cli = Cli::command();
        let listed = |name: &str| !cli.find_subcommand(name).expect(name).is_hide_set();
        assert!(listed("server") && listed("router") && listed("repair"));
        for name in ["bench", "cluster", "doctor"] {
            assert_eq!(listed(name), cfg!(feature = "lab"), "{name}");
        }
    }
}
