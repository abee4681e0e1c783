//! The settings as `getCmdLineOpts` shows them: by the names of the configuration file, in their order, as mongod does.

use std::collections::BTreeMap;
use std::path::Path;

use sheaf_bson::{DocBuf, DocWriter, Value};

use crate::config::Settings;

/// Settings that were given, by their dotted names.
#[derive(Default)]
struct Given(BTreeMap<String, Shown>);

/// A value that owns its text.
enum Shown {
    Text(String),
    Flag(bool),
    Int(i64),
    Double(f64),
}

impl From<String> for Shown {
    fn from(text: String) -> Shown {
        Shown::Text(text)
    }
}

impl From<&str> for Shown {
    fn from(text: &str) -> Shown {
        Shown::Text(text.to_owned())
    }
}

impl From<&Path> for Shown {
    fn from(path: &Path) -> Shown {
        Shown::Text(path.display().to_string())
    }
}

impl From<bool> for Shown {
    fn from(flag: bool) -> Shown {
        Shown::Flag(flag)
    }
}

impl From<f64> for Shown {
    fn from(number: f64) -> Shown {
        Shown::Double(number)
    }
}

impl Shown {
    fn value(&self) -> Value<'_> {
        match self {
            Shown::Text(text) => Value::String(text),
            Shown::Flag(flag) => Value::Bool(*flag),
            // Whole numbers are ints where they are.
            Shown::Int(number) => i32::try_from(*number).map_or(Value::Int64(*number), Value::Int32),
            Shown::Double(number) => Value::Double(*number),
        }
    }
}

impl Given {
    fn put(&mut self, name: &str, value: Option<impl Into<Shown>>) {
        if let Some(value) = value {
            self.0.insert(name.to_owned(), value.into());
        }
    }

    fn int(&mut self, name: &str, value: Option<impl TryInto<i64>>) {
        let number = value.and_then(|value| value.try_into().ok());
        self.put(name, number.map(Shown::Int));
    }
}

/// All that flags and configuration file have said.
pub fn parsed(settings: &Settings) -> DocBuf {
    let mut given = Given::default();
    given.put("config", settings.config.as_deref());
    net(settings, &mut given);
    sharing(settings, &mut given);
    protection(settings, &mut given);
    storing(settings, &mut given);
    watching(settings, &mut given);
    let fields: Vec<_> = given.0.iter().map(|(name, value)| (name.as_str(), value)).collect();
    // Parameters have dots in their names, perhaps: they are no paths.
    let parameters: BTreeMap<_, _> = settings.parameters.iter().map(|(name, value)| (name, value)).collect();
    DocBuf::build(|doc| {
        let behind = fields.partition_point(|(name, _)| *name < "setParameter");
        write(doc, &fields[..behind]);
        if !parameters.is_empty() {
            let mut section = doc.document("setParameter");
            for (name, value) in parameters {
                section.append(name, value);
            }
        }
        write(doc, &fields[behind..]);
    })
}

/// Writes fields that are sorted by their names, those with the same beginning as one document.
fn write(doc: &mut DocWriter<'_, Vec<u8>>, fields: &[(&str, &Shown)]) {
    let first = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    for section in fields.chunk_by(|a, b| first(a.0) == first(b.0)) {
        let name = first(section[0].0);
        match section {
            [(whole, value)] if *whole == name => {
                doc.append(&name, value.value());
            }
            _ => {
                let inner: Vec<_> =
                    section.iter().map(|(path, value)| (&path[name.len() + 1..], *value)).collect();
                write(&mut doc.document(&name), &inner);
            }
        }
    }
}

fn net(settings: &Settings, given: &mut Given) {
    let all = (settings.bind_ip.is_none() && settings.bind_ip_all == Some(true)).then_some("*");
    given.put("net.bindIp", settings.bind_ip.as_deref().or(all));
    given.put("net.compression.compressors", settings.compressors.as_deref());
    given.put("net.ipv6", settings.ipv6);
    given.int("net.maxIncomingConnections", settings.max_conns);
    given.int("net.port", settings.port);
    given.put("net.unixDomainSocket.enabled", settings.unix_socket);
    given.int("net.unixDomainSocket.filePermissions", settings.unix_socket_permissions);
    given.put("net.unixDomainSocket.pathPrefix", settings.unix_socket_prefix.as_deref());
    let tls = &settings.tls;
    let hidden = |password: &Option<String>| password.as_ref().map(|_| "<password>");
    given.put("net.tls.mode", tls.mode.as_deref());
    given.put("net.tls.certificateKeyFile", tls.certificate_key_file.as_deref());
    given.put("net.tls.certificateKeyFilePassword", hidden(&tls.certificate_key_file_password));
    given.put("net.tls.clusterFile", tls.cluster_file.as_deref());
    given.put("net.tls.clusterPassword", hidden(&tls.cluster_password));
    given.put("net.tls.CAFile", tls.ca_file.as_deref());
    given.put("net.tls.clusterCAFile", tls.cluster_ca_file.as_deref());
    given.put("net.tls.CRLFile", tls.crl_file.as_deref());
    given.put("net.tls.disabledProtocols", tls.disabled_protocols.as_deref());
    given.put("net.tls.clusterAuthX509.attributes", tls.member_attributes.as_deref());
    given.put("net.tls.allowConnectionsWithoutCertificates", tls.without_certificates);
    given.put("net.tls.allowInvalidCertificates", tls.invalid_certificates);
    given.put("net.tls.allowInvalidHostnames", tls.invalid_hostnames);
    given.put("net.tls.FIPSMode", tls.fips);
}

/// Replica sets and clusters.
fn sharing(settings: &Settings, given: &mut Given) {
    given.int("replication.oplogSizeMB", settings.oplog_size_mb);
    let in_file = settings.repl_set_in_file == Some(true);
    let name = if in_file { "replication.replSetName" } else { "replication.replSet" };
    given.put(name, settings.repl_set.as_deref());
    given.int("replication.localPingThresholdMs", settings.local_threshold);
    given.put("sharding.clusterRole", settings.cluster_role.map(|role| role.name()));
    given.put("sharding.configDB", settings.config_db.as_deref());
}

fn protection(settings: &Settings, given: &mut Given) {
    let enabled = |on: bool| if on { "enabled" } else { "disabled" };
    given.put("security.authorization", settings.auth.map(enabled));
    given.put("security.clusterAuthMode", settings.cluster_auth_mode.as_deref());
    given.put("security.javascriptEnabled", settings.javascript);
    given.put("security.keyFile", settings.key_file.as_deref());
    given.put("security.redactClientLogData", settings.redact_client_log_data);
    given.put("security.transitionToAuth", settings.transition_to_auth);
    let audit = &settings.audit;
    given.put("auditLog.destination", audit.destination.as_deref());
    given.put("auditLog.filter", audit.filter.as_deref());
    given.put("auditLog.format", audit.format.as_deref());
    given.put("auditLog.path", audit.path.as_deref());
    given.put("auditLog.runtimeConfiguration", audit.runtime);
    given.put("auditLog.schema", audit.schema.as_deref());
}

fn storing(settings: &Settings, given: &mut Given) {
    given.put("storage.dbPath", settings.dbpath.as_deref());
    given.put("storage.engine", settings.storage_engine.as_deref());
    given.int("storage.journal.commitIntervalMs", settings.journal_commit_interval);
    given.put("storage.journal.enabled", settings.journal);
    given.put("storage.oplogMinRetentionHours", settings.oplog_min_retention_hours);
    given.put("storage.syncPeriodSecs", settings.syncdelay);
    given.put("storage.wiredTiger.engineConfig.cacheSizeGB", settings.cache_size_gb);
}

/// Logs, profiler and the process itself.
fn watching(settings: &Settings, given: &mut Given) {
    let mode = |level: i32| match level {
        0 => "off",
        1 => "slowOp",
        _ => "all",
    };
    given.put("operationProfiling.mode", settings.profile.map(mode));
    given.put("operationProfiling.slowOpSampleRate", settings.sample_rate);
    given.int("operationProfiling.slowOpThresholdMs", settings.slowms);
    given.put("processManagement.fork", settings.fork);
    given.put("processManagement.pidFilePath", settings.pidfilepath.as_deref());
    given.put("processManagement.timeZoneInfo", settings.time_zone_info.as_deref());
    let to_syslog = settings.syslog.is_some_and(|on| on).then_some("syslog");
    given.put("systemLog.destination", settings.logpath.as_ref().map(|_| "file").or(to_syslog));
    given.put("systemLog.logAppend", settings.logappend);
    given.put("systemLog.logRotate", settings.log_rotate.as_deref());
    given.put("systemLog.path", settings.logpath.as_deref());
    given.put("systemLog.syslogFacility", settings.syslog_facility.as_deref());
    given.put("systemLog.quiet", settings.quiet);
    given.int("systemLog.verbosity", settings.verbosity);
    given.int("metrics.port", settings.metrics_port);
}

#[cfg(test)]
mod tests {
    use sheaf_bson::json::{Style, to_json};

    use super::*;
    use crate::config::{Process, parse};

    fn of(text: &str) -> String {
        to_json(parsed(&parse(text, Process::Server).unwrap()).as_raw(), Style::Relaxed)
    }

    #[test]
    fn options_are_shown_as_they_are_in_a_file() {
        let file = "
storage: {dbPath: /data, journal: {commitIntervalMs: 50}, wiredTiger: {engineConfig: {cacheSizeGB: 1.5}}}
net: {port: 27018, bindIpAll: true, unixDomainSocket: {enabled: false}, maxIncomingConnections: 200}
replication: {oplogSizeMB: 990, replSetName: rs}
operationProfiling: {mode: all, slowOpThresholdMs: 20}
processManagement: {timeZoneInfo: /usr/share/zoneinfo}
systemLog: {verbosity: 1}
setParameter: {b.c: 1, a: true}
";
        let expected = concat!(
            r#"{"net":{"bindIp":"*","maxIncomingConnections":200,"port":27018,"unixDomainSocket":{"enabled":false}},"#,
            r#""operationProfiling":{"mode":"all","slowOpThresholdMs":20},"#,
            r#""processManagement":{"timeZoneInfo":"/usr/share/zoneinfo"},"#,
            r#""replication":{"oplogSizeMB":990,"replSetName":"rs"},"setParameter":{"a":"true","b.c":"1"},"#,
            r#""storage":{"dbPath":"/data","journal":{"commitIntervalMs":50},"wiredTiger":{"engineConfig":{"cacheSizeGB":1.5}}},"#,
            r#""systemLog":{"verbosity":1}}"#,
        );
        assert_eq!(of(file).replace(' ', ""), expected);
        assert_eq!(of(""), "{}");
    }

    #[test]
    fn passwords_are_not_shown() {
        let shown = of("net: {tls: {certificateKeyFilePassword: secret, mode: disabled}}");
        assert!(shown.contains("<password>") && !shown.contains("secret"), "{shown}");
    }
}
