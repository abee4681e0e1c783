//! mongod's YAML configuration file.

use std::path::{Path, PathBuf};

use serde_yaml_ng::Value;
use sheaf_auth::AddressRange;
use sheaf_server::options::ClusterRole;

use crate::tls_settings::{self, TlsSettings};
use crate::values;

/// What flags and file can decide; `None` is open.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs)]
pub struct Settings {
    /// The file that says the rest.
    pub config: Option<PathBuf>,
    pub dbpath: Option<PathBuf>,
    pub port: Option<u16>,
    pub bind_ip: Option<String>,
    pub bind_ip_all: Option<bool>,
    pub ipv6: Option<bool>,
    pub logpath: Option<PathBuf>,
    pub syslog: Option<bool>,
    pub syslog_facility: Option<String>,
    pub logappend: Option<bool>,
    pub log_rotate: Option<String>,
    pub fork: Option<bool>,
    pub pidfilepath: Option<PathBuf>,
    /// Shown, and of no effect: time zones are built in.
    pub time_zone_info: Option<PathBuf>,
    pub repl_set: Option<String>,
    /// Whether it is the file that names it: there the option has another name.
    pub repl_set_in_file: Option<bool>,
    pub cluster_role: Option<ClusterRole>,
    pub config_db: Option<String>,
    pub local_threshold: Option<u32>,
    pub oplog_size_mb: Option<i32>,
    pub oplog_min_retention_hours: Option<f64>,
    pub journal: Option<bool>,
    pub journal_commit_interval: Option<u64>,
    pub syncdelay: Option<f64>,
    pub cache_size_gb: Option<f64>,
    pub storage_engine: Option<String>,
    pub parameters: Vec<(String, String)>,
    pub max_conns: Option<usize>,
    pub max_conns_override: Option<Vec<AddressRange>>,
    pub slowms: Option<i32>,
    pub sample_rate: Option<f64>,
    pub profile: Option<i32>,
    pub quiet: Option<bool>,
    pub verbosity: Option<i64>,
    pub unix_socket: Option<bool>,
    pub unix_socket_prefix: Option<PathBuf>,
    pub unix_socket_permissions: Option<u32>,
    pub compressors: Option<String>,
    pub auth: Option<bool>,
    pub javascript: Option<bool>,
    pub key_file: Option<PathBuf>,
    pub cluster_auth_mode: Option<String>,
    pub transition_to_auth: Option<bool>,
    /// Keys that no file has: those of a cluster within one process.
    pub own_keys: Option<sheaf_auth::Keys>,
    pub tls: TlsSettings,
    pub metrics_port: Option<u16>,
    pub audit: Auditing,
    pub redact_client_log_data: Option<bool>,
    /// Whether encryption at rest was asked for.
    pub encryption: Option<bool>,
}

/// `auditLog`.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs)]
pub struct Auditing {
    pub destination: Option<String>,
    pub format: Option<String>,
    pub path: Option<PathBuf>,
    pub filter: Option<String>,
    pub schema: Option<String>,
    pub runtime: Option<bool>,
}

impl Auditing {
    fn or(self, file: Auditing) -> Auditing {
        Auditing {
            destination: self.destination.or(file.destination),
            format: self.format.or(file.format),
            path: self.path.or(file.path),
            filter: self.filter.or(file.filter),
            schema: self.schema.or(file.schema),
            runtime: self.runtime.or(file.runtime),
        }
    }
}

impl Settings {
    /// Fills what is open from `file`; what the command line says goes first.
    #[must_use]
    pub fn or(self, file: Settings) -> Settings {
        let mut parameters = file.parameters;
        parameters.extend(self.parameters);
        macro_rules! merge {
            ($($name:ident),* $(,)?) => {
                Settings { parameters, audit: self.audit.or(file.audit), $($name: self.$name.or(file.$name)),* }
            };
        }
        merge!(
            config,
            dbpath,
            port,
            bind_ip,
            bind_ip_all,
            ipv6,
            logpath,
            syslog,
            syslog_facility,
            logappend,
            log_rotate,
            fork,
            pidfilepath,
            time_zone_info,
            repl_set,
            repl_set_in_file,
            cluster_role,
            config_db,
            local_threshold,
            oplog_size_mb,
            oplog_min_retention_hours,
            journal,
            journal_commit_interval,
            syncdelay,
            cache_size_gb,
            storage_engine,
            max_conns,
            max_conns_override,
            slowms,
            sample_rate,
            profile,
            quiet,
            verbosity,
            unix_socket,
            unix_socket_prefix,
            unix_socket_permissions,
            compressors,
            auth,
            key_file,
            cluster_auth_mode,
            transition_to_auth,
            own_keys,
            tls,
            metrics_port,
            redact_client_log_data,
            encryption,
            javascript,
        )
    }
}

/// Whose configuration file it is.
#[derive(Clone, Copy, PartialEq)]
pub enum Process {
    /// A server's, mongod's.
    Server,
    /// A router's, mongos'.
    Router,
}

impl Process {
    /// Whether its file may have this option: what would have no effect there is told, not passed over.
    fn has(self, path: &str) -> bool {
        match self {
            Process::Server => !matches!(path, "sharding.configDB" | "replication.localPingThresholdMs"),
            Process::Router => {
                let is_servers = matches!(
                    path,
                    "replication.replSetName"
                        | "replication.enableMajorityReadConcern"
                        | "replication.oplogSizeMB"
                        | "sharding.clusterRole"
                        | "operationProfiling.mode"
                );
                !is_servers && !path.starts_with("storage.")
            }
        }
    }
}

/// Reads a configuration file.
///
/// Errors: a text for the user; unknown keys are errors, as in mongod.
pub fn read(path: &Path, process: Process) -> Result<Settings, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("Error opening config file {}: {error}", path.display()))?;
    parse(&text, process)
}

/// Parses a configuration file's text.
pub fn parse(text: &str, process: Process) -> Result<Settings, String> {
    let mut settings = Settings::default();
    if text.trim().is_empty() {
        return Ok(settings);
    }
    let value: Value =
        serde_yaml_ng::from_str(text).map_err(|error| format!("Error parsing YAML config file: {error}"))?;
    match value {
        Value::Null => {}
        Value::Mapping(_) => section(&mut settings, process, "", &value)?,
        _ => return Err("Error parsing YAML config file: no map at top level".to_owned()),
    }
    Ok(settings)
}

/// Walks nested maps; keys are named by their dotted paths, which may stand dotted in the file too.
fn section(settings: &mut Settings, process: Process, prefix: &str, value: &Value) -> Result<(), String> {
    let Value::Mapping(map) = value else { return Err(format!("{prefix} must be a map")) };
    for (key, value) in map {
        let Some(key) = key.as_str() else { return Err("keys must be strings".to_owned()) };
        let path = if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
        if path == "setParameter" {
            parameters(settings, value)?;
        } else if matches!(value, Value::Mapping(_)) {
            section(settings, process, &path, value)?;
        } else if !process.has(&path) {
            return Err(format!("Unrecognized option: {path}"));
        } else if !value.is_null() {
            apply(settings, &path, value)?;
        }
    }
    Ok(())
}

fn parameters(settings: &mut Settings, value: &Value) -> Result<(), String> {
    let Value::Mapping(map) = value else { return Err("setParameter must be a map".to_owned()) };
    for (name, value) in map {
        match name.as_str() {
            Some(name) => settings.parameters.push((name.to_owned(), text(name, value)?)),
            None => return Err("keys must be strings".to_owned()),
        }
    }
    Ok(())
}

fn apply(settings: &mut Settings, path: &str, value: &Value) -> Result<(), String> {
    let path_of = |value: &Value| text(path, value).map(PathBuf::from);
    match path {
        "storage.dbPath" => settings.dbpath = Some(path_of(value)?),
        "storage.journal.enabled" => settings.journal = Some(boolean(path, value)?),
        "storage.journal.commitIntervalMs" => {
            settings.journal_commit_interval = Some(integer(path, value)?);
        }
        "storage.syncPeriodSecs" => settings.syncdelay = Some(number(path, value)?),
        "storage.oplogMinRetentionHours" => settings.oplog_min_retention_hours = Some(number(path, value)?),
        "storage.engine" => settings.storage_engine = Some(text(path, value)?),
        "storage.wiredTiger.engineConfig.cacheSizeGB" => {
            settings.cache_size_gb = Some(number(path, value)?);
            values::wired_tiger_cache(settings.cache_size_gb)?;
        }
        "storage.cacheSizeGB" => settings.cache_size_gb = Some(number(path, value)?),
        "storage.directoryPerDB"
        | "storage.wiredTiger.engineConfig.journalCompressor"
        | "storage.wiredTiger.engineConfig.directoryForIndexes"
        | "storage.wiredTiger.collectionConfig.blockCompressor"
        | "storage.wiredTiger.indexConfig.prefixCompression" => {}
        "net.port" => settings.port = Some(integer(path, value)?),
        "net.bindIp" => settings.bind_ip = Some(text(path, value)?),
        "net.bindIpAll" => settings.bind_ip_all = Some(boolean(path, value)?),
        "net.ipv6" => settings.ipv6 = Some(boolean(path, value)?),
        "net.maxIncomingConnections" => settings.max_conns = Some(integer(path, value)?),
        "net.maxIncomingConnectionsOverride" => settings.max_conns_override = Some(ranges(path, value)?),
        "net.wireObjectCheck" => {}
        "net.unixDomainSocket.enabled" => settings.unix_socket = Some(boolean(path, value)?),
        "net.unixDomainSocket.pathPrefix" => settings.unix_socket_prefix = Some(path_of(value)?),
        "net.unixDomainSocket.filePermissions" => {
            settings.unix_socket_permissions = Some(permissions(path, value)?);
        }
        "net.compression.compressors" => settings.compressors = Some(text(path, value)?),
        _ if path.starts_with("net.tls.") => {
            if !settings.tls.take(&path["net.tls.".len()..], text(path, value)?)? {
                return Err(format!("Unrecognized option: {path}"));
            }
        }
        // What is below `net.tls` has had other names, which still hold.
        _ if path.starts_with("net.ssl.") => {
            let (name, value) = tls_settings::named_anew(&path["net.ssl.".len()..], text(path, value)?);
            if !settings.tls.take(name, value)? {
                return Err(format!("Unrecognized option: {path}"));
            }
        }
        "systemLog.destination" => {
            settings.syslog = match text(path, value)?.as_str() {
                "file" => None,
                "syslog" => Some(true),
                other => {
                    return Err(format!(
                        "BadValue: Bad value for systemLog.destination: {other}; expected one of (syslog|file)"
                    ));
                }
            };
        }
        "systemLog.path" => settings.logpath = Some(path_of(value)?),
        "systemLog.syslogFacility" => settings.syslog_facility = Some(text(path, value)?),
        "systemLog.logAppend" => settings.logappend = Some(boolean(path, value)?),
        "systemLog.logRotate" => settings.log_rotate = Some(text(path, value)?),
        "systemLog.quiet" => settings.quiet = Some(boolean(path, value)?),
        "systemLog.verbosity" => settings.verbosity = Some(integer(path, value)?),
        _ if path.starts_with("systemLog.component.") => {
            settings.parameters.push(component_level(path, number(path, value)?)?);
        }
        "systemLog.timeStampFormat" | "systemLog.traceAllExceptions" => {}
        "processManagement.fork" => settings.fork = Some(boolean(path, value)?),
        "processManagement.pidFilePath" => settings.pidfilepath = Some(path_of(value)?),
        "processManagement.timeZoneInfo" => settings.time_zone_info = Some(path_of(value)?),
        "operationProfiling.mode" => {
            settings.profile = Some(match text(path, value)?.as_str() {
                "off" | "false" => 0,
                "slowOp" => 1,
                "all" => 2,
                other => return Err(format!("Bad value for {path}: {other}")),
            });
        }
        "operationProfiling.slowOpThresholdMs" => settings.slowms = Some(integer(path, value)?),
        "operationProfiling.slowOpSampleRate" => settings.sample_rate = Some(number(path, value)?),
        "replication.replSetName" => {
            let name = text(path, value)?;
            if name.contains('/') {
                return Err(format!("BadValue: {path} must not contain a '/' character"));
            }
            settings.repl_set = Some(name);
            settings.repl_set_in_file = Some(true);
        }
        "replication.enableMajorityReadConcern" => majority_read_concern(boolean(path, value)?)?,
        "replication.oplogSizeMB" => settings.oplog_size_mb = Some(integer(path, value)?),
        "sharding.clusterRole" => {
            let name = text(path, value)?;
            let role =
                ClusterRole::from_name(&name).ok_or_else(|| format!("Bad value for {path}: {name}"))?;
            settings.cluster_role = Some(role);
        }
        "sharding.configDB" => settings.config_db = Some(text(path, value)?),
        "replication.localPingThresholdMs" => settings.local_threshold = Some(integer(path, value)?),
        "security.authorization" => {
            settings.auth = Some(match text(path, value)?.as_str() {
                "enabled" => true,
                "disabled" => false,
                other => return Err(format!("Bad value for {path}: {other}: it is enabled or disabled")),
            });
        }
        "security.javascriptEnabled" => settings.javascript = Some(boolean(path, value)?),
        "security.keyFile" => settings.key_file = Some(path_of(value)?),
        "security.clusterAuthMode" => settings.cluster_auth_mode = Some(text(path, value)?),
        "security.transitionToAuth" => settings.transition_to_auth = Some(boolean(path, value)?),
        "security.redactClientLogData" => settings.redact_client_log_data = Some(boolean(path, value)?),
        "security.enableEncryption" => settings.encryption = boolean(path, value)?.then_some(true),
        "security.encryptionKeyFile" | "security.encryptionCipherMode" => settings.encryption = Some(true),
        "auditLog.destination" => settings.audit.destination = Some(text(path, value)?),
        "auditLog.format" => settings.audit.format = Some(text(path, value)?),
        "auditLog.path" => settings.audit.path = Some(path_of(value)?),
        "auditLog.filter" => settings.audit.filter = Some(text(path, value)?),
        "auditLog.schema" => settings.audit.schema = Some(text(path, value)?),
        "auditLog.runtimeConfiguration" => settings.audit.runtime = Some(boolean(path, value)?),
        "metrics.port" => settings.metrics_port = Some(integer(path, value)?),
        _ => return Err(format!("Unrecognized option: {path}")),
    }
    Ok(())
}

fn text(path: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Bool(b) => Ok(b.to_string()),
        Value::Number(n) => Ok(n.to_string()),
        _ => Err(format!("{path} must be a scalar")),
    }
}

fn number(path: &str, value: &Value) -> Result<f64, String> {
    match value {
        Value::Number(n) => n.as_f64().ok_or_else(|| format!("{path} must be a number")),
        Value::String(text) => text.parse().map_err(|_| format!("{path} must be a number")),
        _ => Err(format!("{path} must be a number")),
    }
}

/// A whole number that its setting can have.
fn integer<T: TryFrom<i64>>(path: &str, value: &Value) -> Result<T, String> {
    let number = number(path, value)?;
    if number.fract() != 0.0 {
        return Err(format!("{path} must be a whole number"));
    }
    T::try_from(number as i64).map_err(|_| format!("BadValue: {path} is out of range: {number}"))
}

/// Permissions of a file, octal where they begin with 0, as mongod reads them.
fn permissions(path: &str, value: &Value) -> Result<u32, String> {
    match value {
        Value::String(text) if text.starts_with('0') => {
            u32::from_str_radix(text, 8).map_err(|_| format!("{path} must be octal, not {text}"))
        }
        _ => integer(path, value),
    }
}

/// What a component's level is as a parameter: `{network: {asio: {verbosity: 1}}}`.
fn component_level(path: &str, level: f64) -> Result<(String, String), String> {
    let name = path.trim_start_matches("systemLog.component.");
    let unknown = || format!("Unrecognized option: {path}");
    let name = name.strip_suffix(".verbosity").ok_or_else(unknown)?;
    let levels = name
        .rsplit('.')
        .fold(format!("{{verbosity: {level}}}"), |inner, name| format!("{{{name}: {inner}}}"));
    sheaf_front::log::components::Levels::parse_text(&levels).map_err(|_| unknown())?;
    Ok(("logComponentVerbosity".to_owned(), levels))
}

/// Looks at an option that MongoDB has had no choice about since 5.0.
///
/// Errors: a text for the user.
pub fn majority_read_concern(enabled: bool) -> Result<(), String> {
    if enabled { Ok(()) } else { Err("enableMajorityReadConcern may not be set to false".to_owned()) }
}

/// A list of addresses and ranges of them.
fn ranges(path: &str, value: &Value) -> Result<Vec<AddressRange>, String> {
    let Value::Sequence(list) = value else {
        return Err(format!("{path} must be a list of addresses: [10.0.0.1, 10.1.0.0/16]"));
    };
    let read = |value: &Value| {
        let text = text(path, value)?;
        AddressRange::parse(&text)
            .ok_or_else(|| format!("{path}: {text} is no address, and no range of them"))
    };
    list.iter().map(read).collect()
}

fn boolean(path: &str, value: &Value) -> Result<bool, String> {
    match value {
        Value::Bool(b) => Ok(*b),
        Value::String(text) if text == "true" => Ok(true),
        Value::String(text) if text == "false" => Ok(false),
        _ => Err(format!("{path} must be true or false")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Settings, String> {
        super::parse(text, Process::Server)
    }

    #[test]
    fn options_of_the_other_process_are_none() {
        let refused = |process: Process, text: &str| super::parse(text, process).unwrap_err();
        let config_db = "sharding:\n  configDB: config/localhost:27019\n";
        assert_eq!(refused(Process::Server, config_db), "Unrecognized option: sharding.configDB");
        let read = super::parse(config_db, Process::Router).unwrap();
        assert_eq!(read.config_db.as_deref(), Some("config/localhost:27019"));
        let read = super::parse("replication.localPingThresholdMs: 30", Process::Router).unwrap();
        assert_eq!(read.local_threshold, Some(30));
        for text in ["storage.dbPath: data", "sharding.clusterRole: shardsvr", "replication.replSetName: rs"]
        {
            let option = text.split(':').next().unwrap();
            assert_eq!(refused(Process::Router, text), format!("Unrecognized option: {option}"));
            assert!(parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn addresses_without_a_limit_are_ranges() {
        let of = |list: &str| parse(&format!("net:\n  maxIncomingConnectionsOverride: {list}\n"));
        let ranges = of("[10.0.0.0/8, \"::1\"]").unwrap().max_conns_override.unwrap();
        for (address, is_in) in
            [("10.7.1.2", true), ("11.0.0.1", false), ("::1", true), ("::ffff:10.0.0.9", true)]
        {
            let address = address.parse().unwrap();
            assert_eq!(ranges.iter().any(|range| range.contains(address)), is_in, "{address}");
        }
        assert!(of("[10.0.0.0/33]").is_err() && of("10.0.0.1").is_err() && of("[host]").is_err());
    }

    #[test]
    fn tls_by_its_former_names() {
        let text = "net: {ssl: {mode: preferSSL, PEMKeyFile: /key, PEMKeyPassword: secret, CAFile: /ca, allowInvalidHostnames: true}}";
        let anew = "net: {tls: {mode: preferTLS, certificateKeyFile: /key, certificateKeyFilePassword: secret, CAFile: /ca, \
                    allowInvalidHostnames: true}}";
        assert_eq!(parse(text).unwrap().tls, parse(anew).unwrap().tls);
        assert!(parse("net.ssl.nonesuch: 1").unwrap_err().contains("Unrecognized option: net.ssl.nonesuch"));
    }

    #[test]
    fn the_log_goes_to_one_place() {
        let settings = parse("systemLog: {destination: syslog, syslogFacility: local3}").unwrap();
        assert_eq!((settings.syslog, settings.syslog_facility.as_deref()), (Some(true), Some("local3")));
        assert!(parse("systemLog.destination: paper").unwrap_err().contains("expected one of (syslog|file)"));
        let both = parse("systemLog: {destination: syslog, path: /log}").unwrap();
        assert!(values::check(&both).unwrap_err().contains("both a logpath and syslog"));
        let facility = parse("systemLog.syslogFacility: local9").unwrap();
        assert!(values::check(&facility).unwrap_err().contains("syslogFacility"));
    }

    #[test]
    fn a_usual_file() {
        let text = "
storage:
  dbPath: /data/db
  wiredTiger:
    engineConfig:
      cacheSizeGB: 1.5
systemLog:
  destination: file
  path: /var/log/sheaf.log
  logAppend: true
net:
  port: 27018
  bindIp: 127.0.0.1,::1
setParameter:
  enableTestCommands: true
";
        let settings = parse(text).unwrap();
        assert_eq!(settings.dbpath, Some(PathBuf::from("/data/db")));
        assert_eq!((settings.port, settings.cache_size_gb), (Some(27018), Some(1.5)));
        assert_eq!(settings.parameters, [("enableTestCommands".to_owned(), "true".to_owned())]);
        let flags = Settings { port: Some(1), ..Settings::default() };
        assert_eq!(flags.or(settings).port, Some(1));
    }

    #[test]
    fn components_of_the_log_have_levels() {
        let text = "systemLog:\n  component:\n    replication:\n      verbosity: 1\n      election:\n        verbosity: 2\n";
        let expected = ["{replication: {verbosity: 1}}", "{replication: {election: {verbosity: 2}}}"];
        let settings = parse(text).unwrap();
        assert_eq!(settings.parameters.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>(), expected);
        for text in ["systemLog.component.nonesuch.verbosity: 1", "systemLog.component.index: 1"] {
            assert!(parse(text).unwrap_err().contains("Unrecognized"), "{text}");
        }
    }

    #[test]
    fn a_majority_can_always_be_read_from() {
        assert!(parse("replication.enableMajorityReadConcern: true").is_ok());
        assert!(parse("replication.enableMajorityReadConcern: false").is_err());
    }

    #[test]
    fn what_is_unknown_is_an_error() {
        assert_eq!(parse("net:\n  prot: 1\n").unwrap_err(), "Unrecognized option: net.prot");
        assert!(parse("net:\n  port: many\n").is_err());
        assert!(parse("- a\n").is_err());
        assert_eq!(parse("").unwrap(), Settings::default());
    }
}
