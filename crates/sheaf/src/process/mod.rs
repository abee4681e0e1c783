//! What the processes of all roles do alike: options of the front, threads, the log, signals, `--fork`.

pub mod audit;
pub mod background;
pub mod parsed;
pub mod passwords;
pub mod security;
pub mod shell_json;
pub mod signals;
pub mod tls;
pub mod warnings;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use sheaf_front::front::Front;
use sheaf_front::listener::{self, Listeners};
use sheaf_front::log;
use sheaf_front::options::FrontOptions;
use sheaf_replica::process::RESTARTED;

use crate::config::Settings;
use crate::limits::{self, Descriptors};
use crate::process::passwords::without_passwords;
use crate::values;

/// mongod's exit codes.
pub mod exit {
    #![allow(missing_docs)]
    pub const BAD_OPTIONS: u8 = 2;
    pub const NET_ERROR: u8 = 48;
    pub const UNCAUGHT: u8 = 100;
    pub const FORK_FAILED: u8 = 1;
}

/// Threads for links between members, signals, new connections and monitors.
pub const CONTROL_THREADS: usize = 2;

/// Threads that may wait at once (for locks, for data of tailable cursors).
const MAX_WAITING_THREADS: usize = 20_000;

/// For so long a thread that waited, or did something long, stays for the next one.
const IDLE_THREAD: Duration = Duration::from_secs(2);

/// How long the end of the process waits for operations that were told to stop.
pub const LAST_PATIENCE: Duration = Duration::from_secs(2);

/// The control runtime and the one for data; see `sheaf_front::reactor`.
pub fn runtimes() -> std::io::Result<(tokio::runtime::Runtime, tokio::runtime::Runtime)> {
    let control = runtime("sheaf-control", CONTROL_THREADS)?;
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get).max(2);
    Ok((control, runtime("sheaf-worker", threads)?))
}

fn runtime(name: &str, threads: usize) -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .max_blocking_threads(MAX_WAITING_THREADS)
        // An idle thread keeps memory, too.
        .thread_keep_alive(IDLE_THREAD)
        .thread_name(name)
        .enable_all()
        .build()
}

/// Tells the user what is wrong with what he asked for.
pub fn bad_options(text: &str) -> ExitCode {
    eprintln!("{text}");
    eprintln!("try '--help' for more information");
    ExitCode::from(exit::BAD_OPTIONS)
}

/// Tells the log why the server ends.
pub fn fail(code: u8, id: i32, message: &str, error: &str) -> ExitCode {
    let attributes = sheaf_bson::doc! { "error": error };
    log::write(log::Severity::Error, "CONTROL", id, "initandlisten", message, Some(&attributes));
    ExitCode::from(code)
}

/// Begins the log where the settings say.
///
/// Errors: a text for the user.
pub fn open_log(settings: &Settings, default_port: u16) -> Result<(), String> {
    if let Some(level) = settings.verbosity {
        log::set_verbosity(level);
    }
    log::set_quiet(settings.quiet == Some(true));
    log::set_reopening(reopens_logs(settings)?);
    if settings.syslog == Some(true) {
        let program = format!("sheaf.{}", settings.port.unwrap_or(default_port));
        let facility =
            settings.syslog_facility.as_deref().and_then(|name| name.parse().ok()).unwrap_or_default();
        return log::to_syslog(&program, facility)
            .map_err(|error| format!("Failed to open the system's log: {error}"));
    }
    let Some(path) = &settings.logpath else { return Ok(()) };
    if path.is_dir() {
        return Err(format!("logpath \"{}\" should name a file, not a directory.", path.display()));
    }
    let append = settings.logappend == Some(true) || std::env::var_os(RESTARTED).is_some();
    log::to_file(path, append).map_err(|error| format!("Failed to open \"{}\": {error}", path.display()))
}

/// Whether logs that are rotated are only opened anew. Errors: a text for the user.
fn reopens_logs(settings: &Settings) -> Result<bool, String> {
    match settings.log_rotate.as_deref() {
        None | Some("rename") => Ok(false),
        // Else a start would rename the file that somebody else looks after.
        Some("reopen") if settings.logappend != Some(true) => {
            Err("BadValue: logAppend must equal true if logRotate is set to reopen".to_owned())
        }
        Some("reopen") => Ok(true),
        Some(other) => Err(format!("BadValue: unsupported value for logRotate {other}")),
    }
}

/// How the front of a server is to be, whatever its role.
///
/// Errors: a text for the user.
pub fn front_options(
    settings: &Settings,
    argv: &[String],
    default_port: u16,
) -> Result<FrontOptions, String> {
    let defaults = FrontOptions::default();
    let mut bind: Vec<String> = match (&settings.bind_ip, settings.bind_ip_all) {
        (Some(list), _) => values::addresses(list).map(str::to_owned).collect(),
        (None, Some(true)) => vec!["0.0.0.0".to_owned()],
        (None, _) => vec!["127.0.0.1".to_owned()],
    };
    if settings.ipv6 == Some(true) && settings.bind_ip_all == Some(true) {
        bind.push("::".to_owned());
    }
    let compressors = match settings.compressors.as_deref() {
        None => defaults.compressors.clone(),
        Some("disabled") => Vec::new(),
        Some(list) => list
            .split(',')
            .map(|name| {
                sheaf_wire::Compressor::from_name(name.trim())
                    .ok_or_else(|| format!("Invalid network message compressor: {name}"))
            })
            .collect::<Result<_, _>>()?,
    };
    let folder = settings.unix_socket_prefix.clone().unwrap_or_else(|| PathBuf::from("/tmp"));
    Ok(FrontOptions {
        bind,
        port: settings.port.unwrap_or(default_port),
        unix_socket_folder: (settings.unix_socket != Some(false)).then_some(folder),
        unix_socket_permissions: settings.unix_socket_permissions.unwrap_or(0o700),
        max_connections: settings
            .max_conns
            .unwrap_or(defaults.max_connections)
            .min(Descriptors::share(limits::open_files()).connections)
            .max(1),
        exempt: settings.max_conns_override.clone().unwrap_or_default(),
        slow_ms: i64::from(settings.slowms.unwrap_or(100)),
        sample_rate: settings.sample_rate.unwrap_or(1.0),
        profile_level: settings.profile.unwrap_or(0),
        compressors,
        authorization: security::asks_clients(settings),
        keys: security::keys(settings)?,
        cluster_auth_mode: security::cluster_auth_mode(settings)?,
        tls: tls::options(settings)?,
        audit: audit::options(settings)?,
        transition_to_auth: settings.transition_to_auth == Some(true),
        javascript: settings.javascript != Some(false),
        parameters: parameters(settings),
        argv: without_passwords(argv),
        parsed: parsed::parsed(settings),
        write_timeout: defaults.write_timeout,
        busy_threads: defaults.busy_threads,
    })
}

/// The `--setParameter`s, after the flags that have a parameter of the same meaning.
fn parameters(settings: &Settings) -> Vec<(String, String)> {
    let interval = settings.journal_commit_interval.map(|ms| ("journalCommitInterval", ms.to_string()));
    let delay = settings.syncdelay.map(|seconds| ("syncdelay", seconds.to_string()));
    let redact = settings.redact_client_log_data.map(|on| ("redactClientLogData", on.to_string()));
    let flags = interval.into_iter().chain(delay).chain(redact);
    flags.map(|(name, value)| (name.to_owned(), value)).chain(settings.parameters.iter().cloned()).collect()
}

/// The commit that this was built from, where `scripts/build` or `scripts/start` has built it; `-dirty` behind it: and from changes.
pub fn commit() -> Option<&'static str> {
    option_env!("SHEAF_COMMIT").filter(|commit| !commit.is_empty())
}

/// Says in the log which version this is, and what options it was given.
pub fn announce(front: &Front) {
    use sheaf_front::version::{COMPATIBLE, GIT, OWN};
    let mut build = sheaf_bson::doc! {
        "version": COMPATIBLE, "gitVersion": GIT, "sheafVersion": OWN
    };
    if let Some(commit) = commit() {
        build = sheaf_bson::DocBuf::build(|out| {
            out.append_all(build.as_raw());
            out.append("commit", commit);
        });
    }
    let build = sheaf_bson::doc! { "buildInfo": build.as_raw() };
    log::info("CONTROL", log::ids::BUILD_INFO, "initandlisten", "Build Info", Some(build));
    let options = sheaf_bson::doc! { "options": front.options.parsed.as_raw() };
    let text = "Options set by command line";
    log::info("CONTROL", log::ids::OPTIONS, "initandlisten", text, Some(options));
}

/// Says in the log why the server ends.
pub fn fatal(component: &str, id: i32, context: &str, text: &str, attributes: sheaf_bson::DocBuf) {
    log::write(log::Severity::Error, component, id, context, text, Some(&attributes));
}

/// Opens the ports.
///
/// Errors: the exit code.
pub fn listen(front: &Arc<Front>) -> Result<Listeners, u8> {
    listener::bind(front).map_err(|error| {
        let text = match error.source.kind() {
            std::io::ErrorKind::AddrInUse => "Address already in use".to_owned(),
            _ => error.source.to_string(),
        };
        let attributes = sheaf_bson::doc! {
            "error": { "code": 9001, "codeName": "SocketException", "errmsg": &*format!("{text} [{}]", error.address) }
        };
        fatal("CONTROL", log::ids::NO_LISTENER, "initandlisten", "Error setting up listener", attributes.clone());
        fatal("NETWORK", log::ids::LISTENER_FAILED, "initandlisten", "Failed to set up listener", attributes);
        exit::NET_ERROR
    })
}
