//! Which values options may have, wherever they were said: mongod's bounds, in its words.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::Path;

use sheaf_front::log::Facility;

use crate::config::Settings;

/// Looks at the values of what was said.
///
/// Errors: a text for the user.
pub fn check(settings: &Settings) -> Result<(), String> {
    // An empty path is a variable that is not set, and would be the folder in which the server happens to be started.
    is_said("storage.dbPath", settings.dbpath.as_deref())?;
    if settings.logpath.as_deref().is_some_and(is_empty) {
        return Err("BadValue: logpath cannot be empty if supplied".to_owned());
    }
    if settings.syslog == Some(true) && settings.logpath.is_some() {
        return Err("BadValue: Can't use both a logpath and syslog".to_owned());
    }
    if settings.syslog_facility.as_ref().is_some_and(|name| name.parse::<Facility>().is_err()) {
        return Err(
            "BadValue: syslogFacility must be set to a string representing one of the possible syslog facilities"
                .to_owned(),
        );
    }
    // What stands behind the slash of the flag is a list of members, as of old.
    let set_name = settings.repl_set.as_deref().and_then(|name| name.split('/').next());
    is_said("replication.replSetName", set_name.map(Path::new))?;
    if settings.bind_ip.as_ref().is_some_and(|list| addresses(list).next().is_none()) {
        return Err("BadValue: net.bindIp must name an address".to_owned());
    }
    // With fewer there is no room for who has logged in beside those who have not.
    if settings.max_conns.is_some_and(|most| most < 5) {
        return Err("BadValue: maxConns has to be at least 5".to_owned());
    }
    if let Some(level) = settings.profile.filter(|level| !(0..=2).contains(level)) {
        return Err(format!(
            "BadValue: Bad value for profile: {level}.  Supported modes are: (0=off|1=slowOp|2=all)"
        ));
    }
    if settings.verbosity.is_some_and(|level| level < 0) {
        return Err("BadValue: systemLog.verbosity YAML Config cannot be negative".to_owned());
    }
    if let Some(size) = settings.oplog_size_mb.filter(|size| *size < 1) {
        return Err(format!("BadValue: bad --oplogSize, arg must be greater than 0, found: {size}"));
    }
    is_within("operationProfiling.slowOpSampleRate", settings.sample_rate, 0.0..=1.0)?;
    is_within("storage.oplogMinRetentionHours", settings.oplog_min_retention_hours, 0.0..=f64::INFINITY)?;
    is_within("storage.syncPeriodSecs", settings.syncdelay, 0.0..=3600.0)?;
    is_within("storage.journal.commitIntervalMs", settings.journal_commit_interval, 1..=500)?;
    // Sheaf does with less memory than WiredTiger; nobody means less than this megabyte.
    is_within("storage.cacheSizeGB", settings.cache_size_gb, 0.001..=MOST_CACHE_GB)
}

/// Looks at the size of the caches where mongod's name of it was said, and so mongod's bounds are meant.
///
/// Errors: a text for the user.
pub fn wired_tiger_cache(gb: Option<f64>) -> Result<(), String> {
    is_within("storage.wiredTiger.engineConfig.cacheSizeGB", gb, 0.25..=MOST_CACHE_GB)
}

const MOST_CACHE_GB: f64 = 10_000.0;

/// The addresses of a list with commas.
pub fn addresses(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|host| !host.is_empty())
}

fn is_empty(path: &Path) -> bool {
    path.as_os_str().is_empty()
}

fn is_said(option: &str, value: Option<&Path>) -> Result<(), String> {
    match value {
        Some(value) if is_empty(value) => Err(format!("BadValue: {option} must not be empty")),
        _ => Ok(()),
    }
}

fn is_within<T>(option: &str, value: Option<T>, bounds: RangeInclusive<T>) -> Result<(), String>
where
    T: Display + PartialOrd,
{
    match value {
        Some(value) if value > *bounds.end() => {
            Err(format!("BadValue: {option} must be less than or equal to {}", bounds.end()))
        }
        // Neither less nor more: no number.
        Some(value) if !bounds.contains(&value) => {
            Err(format!("BadValue: {option} must be greater than or equal to {}", bounds.start()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::config::{self, Process};
    use crate::flags::ServerFlags;

    #[derive(Parser)]
    struct Server {
        #[command(flatten)]
        flags: ServerFlags,
    }

    /// What is said of these words on the command line of a server.
    fn of_flags(words: &[&str]) -> Result<(), String> {
        let server =
            Server::try_parse_from([&["server"], words].concat()).map_err(|error| error.to_string())?;
        server.flags.settings().and_then(|settings| check(&settings))
    }

    /// What is said of this line of a configuration file.
    fn of_file(line: &str) -> Result<(), String> {
        config::parse(line, Process::Server).and_then(|settings| check(&settings))
    }

    #[test]
    fn what_mongod_refuses_is_refused() {
        for (flag, value, option, text) in [
            ("--profile", "3", "", "Bad value for profile: 3.  Supported modes are: (0=off|1=slowOp|2=all)"),
            ("--profile", "-1", "", "Bad value for profile: -1"),
            ("--oplogSize", "0", "replication.oplogSizeMB", "arg must be greater than 0, found: 0"),
            ("--oplogSize", "-5", "replication.oplogSizeMB", "arg must be greater than 0, found: -5"),
            ("--oplogSize", "99999999999999", "replication.oplogSizeMB", "oplogSize"),
            ("--replSet", "", "replication.replSetName", "replSetName must not be empty"),
            ("--replSet", "/a:1,b:1", "", "replSetName must not be empty"),
            ("", "", "replication.replSetName: a/b", "must not contain a '/' character"),
            ("--wiredTigerCacheSizeGB", "0.001", WIRED_TIGER, "must be greater than or equal to 0.25"),
            ("--wiredTigerCacheSizeGB", "10001", WIRED_TIGER, "must be less than or equal to 10000"),
            ("--cacheSizeGB", "0", "storage.cacheSizeGB", "must be greater than or equal to 0.001"),
            ("--cacheSizeGB", "nan", "storage.cacheSizeGB: .nan", "must be greater than or equal to 0.001"),
            ("--port", "70000", "net.port", "port"),
            ("", "", "net.port: -1", "net.port is out of range: -1"),
            ("", "", "net.port: 27017.5", "net.port must be a whole number"),
            ("--maxConns", "4", "net.maxIncomingConnections", "maxConns has to be at least 5"),
            (
                "--syncdelay",
                "-5",
                "storage.syncPeriodSecs",
                "syncPeriodSecs must be greater than or equal to 0",
            ),
            (
                "--syncdelay",
                "3601",
                "storage.syncPeriodSecs",
                "syncPeriodSecs must be less than or equal to 3600",
            ),
            (
                "--journalCommitInterval",
                "0",
                "storage.journal.commitIntervalMs",
                "greater than or equal to 1",
            ),
            (
                "--journalCommitInterval",
                "1000",
                "storage.journal.commitIntervalMs",
                "less than or equal to 500",
            ),
            (
                "--oplogMinRetentionHours",
                "-1",
                "storage.oplogMinRetentionHours",
                "greater than or equal to 0",
            ),
            ("--slowOpSampleRate", "1.5", "operationProfiling.slowOpSampleRate", "less than or equal to 1"),
            ("--slowms", "99999999999", "operationProfiling.slowOpThresholdMs", "slow"),
            ("", "", "systemLog.verbosity: -1", "cannot be negative"),
            ("--bind_ip", "", "net.bindIp", "net.bindIp must name an address"),
            ("--bind_ip", " ,", "net.bindIp", "net.bindIp must name an address"),
            // Of the flags an empty path is no value.
            ("", "", "storage.dbPath", "storage.dbPath must not be empty"),
            ("", "", "systemLog.path", "logpath cannot be empty if supplied"),
        ] {
            if !flag.is_empty() {
                let said = of_flags(&[flag, value]).expect_err(flag);
                assert!(said.contains(text), "{flag} {value}: {said}");
            }
            if !option.is_empty() {
                let line =
                    if option.contains(": ") { option.to_owned() } else { format!("{option}: {value:?}") };
                let said = of_file(&line).expect_err(&line);
                assert!(said.contains(text), "{line}: {said}");
            }
        }
    }

    const WIRED_TIGER: &str = "storage.wiredTiger.engineConfig.cacheSizeGB";

    #[test]
    fn what_mongod_takes_is_taken() {
        for words in [
            ["--profile", "2"],
            ["--oplogSize", "1"],
            ["--replSet", "rs/a:1"],
            ["--wiredTigerCacheSizeGB", "0.25"],
            ["--cacheSizeGB", "0.032"],
            ["--syncdelay", "0"],
            ["--slowms", "-1"],
            ["--journalCommitInterval", "500"],
            ["--bind_ip", "localhost,"],
        ] {
            assert_eq!(of_flags(&words), Ok(()), "{words:?}");
        }
    }

    #[test]
    fn permissions_are_octal_where_they_begin_with_zero() {
        let of = |value: &str| {
            let text = format!("net.unixDomainSocket.filePermissions: {value}");
            config::parse(&text, Process::Server).map(|settings| settings.unix_socket_permissions.unwrap())
        };
        assert_eq!((of("0770"), of("504")), (Ok(0o770), Ok(0o770)));
        assert!(of("0790").is_err() && of("-1").is_err());
    }
}
