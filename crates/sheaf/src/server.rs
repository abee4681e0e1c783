//! The server role: from settings to a running server, and down again.

mod background;
mod life;
mod signals;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use sheaf_front::log;
use sheaf_front::reactor::leave_to_the_end;
use sheaf_replica::process::RESTARTED;
use sheaf_server::mongod::Mongod;
use sheaf_server::options::MongodOptions;

use crate::config::{self, Settings};
use crate::flags::ServerFlags;
use crate::limits::{self, Descriptors};
use background::{FORKED, background};

/// mongod's exit codes.
mod exit {
    pub const BAD_OPTIONS: u8 = 2;
    pub const NET_ERROR: u8 = 48;
    pub const UNCAUGHT: u8 = 100;
    pub const FORK_FAILED: u8 = 1;
}

/// Threads for links between members, signals, new connections and monitors.
const CONTROL_THREADS: usize = 2;

/// Threads that may wait at once (for locks, for data of tailable cursors).
const MAX_WAITING_THREADS: usize = 20_000;

/// For so long a thread that waited, or did something long, stays for the next one.
const IDLE_THREAD: Duration = Duration::from_secs(2);

/// How long the end of the process waits for operations that were told to stop.
const LAST_PATIENCE: Duration = Duration::from_secs(2);

/// Runs the server role.
pub fn main(flags: ServerFlags, argv: &[String]) -> ExitCode {
    let settings = match settings(&flags) {
        Ok(settings) => settings,
        Err(text) => return bad_options(&text),
    };
    if flags.shutdown {
        return crate::end_other::main(&data_folder(&settings));
    }
    if settings.fork == Some(true) && std::env::var_os(FORKED).is_none() {
        return background(&settings, argv);
    }
    if let Err(text) = open_log(&settings) {
        return bad_options(&text);
    }
    limits::raise_open_files();
    crate::allocator::prepare(sheaf_front::system::memory_limit());
    let (front, options) = match options(&settings, argv) {
        Ok(options) => options,
        Err(text) => return bad_options(&text),
    };
    let node = match Mongod::new(front, options) {
        Ok(Mongod(node)) => node,
        Err(error) => return bad_options(error.message()),
    };
    // What must go on whatever happens to the data has threads of its own; see `sheaf_front::reactor`.
    let runtimes = runtime("sheaf-control", CONTROL_THREADS).and_then(|control| {
        let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get).max(2);
        Ok((control, runtime("sheaf-worker", threads)?))
    });
    let (control, data) = match runtimes {
        Ok(runtimes) => runtimes,
        Err(error) => {
            return fail(exit::UNCAUGHT, log::ids::NO_THREADS, "Cannot start threads", &error.to_string());
        }
    };
    node.set_data_runtime(data.handle().clone());
    let code = control.block_on(life::run(node.clone(), &settings));
    // Whatever still runs has been told to stop; nobody waits for it longer than this.
    control.block_on(node.until_answered(LAST_PATIENCE));
    leave_to_the_end(data);
    leave_to_the_end(control);
    if let Some(path) = &settings.pidfilepath {
        let _ = std::fs::remove_file(path);
    }
    log::info(
        "CONTROL",
        log::ids::SHUTTING_DOWN,
        "initandlisten",
        "Shutting down",
        Some(sheaf_bson::doc! { "exitCode": i32::from(code) }),
    );
    ExitCode::from(code)
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

fn bad_options(text: &str) -> ExitCode {
    eprintln!("{text}");
    eprintln!("try 'sheaf server --help' for more information");
    ExitCode::from(exit::BAD_OPTIONS)
}

fn fail(code: u8, id: i32, message: &str, error: &str) -> ExitCode {
    let attributes = sheaf_bson::doc! { "error": error };
    log::write(log::Severity::Error, "CONTROL", id, "initandlisten", message, Some(&attributes));
    ExitCode::from(code)
}

fn settings(flags: &ServerFlags) -> Result<Settings, String> {
    let file = match &flags.config {
        Some(path) => config::read(path)?,
        None => Settings::default(),
    };
    let settings = flags.settings()?.or(file);
    if settings.auth == Some(true) {
        return Err("Error: authentication (--auth, --keyFile, security.authorization) is not supported by this server yet".to_owned());
    }
    if settings.repl_set.is_some() && settings.journal == Some(false) {
        return Err("BadValue: A member of a replica set cannot do without the journal (--nojournal), which is its oplog".to_owned());
    }
    if settings.tls == Some(true) {
        return Err("Error: TLS is not supported by this server yet".to_owned());
    }
    match settings.storage_engine.as_deref() {
        None | Some("wiredTiger") => {}
        Some(other) => {
            return Err(format!(
                "Unknown storage engine '{other}': 'wiredTiger' is accepted and means the only engine there is"
            ));
        }
    }
    if settings.journal_commit_interval.is_some_and(|ms| !(1..=500).contains(&ms)) {
        return Err("--journalCommitInterval must be between 1 and 500 milliseconds".to_owned());
    }
    Ok(settings)
}

fn open_log(settings: &Settings) -> Result<(), String> {
    if let Some(level) = settings.verbosity {
        log::set_verbosity(level);
    }
    log::set_quiet(settings.quiet == Some(true));
    let Some(path) = &settings.logpath else { return Ok(()) };
    if path.is_dir() {
        return Err(format!("logpath \"{}\" should name a file, not a directory.", path.display()));
    }
    let append = settings.logappend == Some(true) || std::env::var_os(RESTARTED).is_some();
    log::to_file(path, append).map_err(|error| format!("Failed to open \"{}\": {error}", path.display()))
}

fn options(
    settings: &Settings,
    argv: &[String],
) -> Result<(sheaf_front::options::FrontOptions, MongodOptions), String> {
    let defaults = sheaf_front::options::FrontOptions::default();
    let mut bind: Vec<String> = match (&settings.bind_ip, settings.bind_ip_all) {
        (Some(list), _) => list.split(',').map(|host| host.trim().to_owned()).collect(),
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
    let cache_bytes = match settings.cache_size_gb {
        Some(gb) if gb > 0.0 => (gb * f64::from(1 << 30)) as u64,
        Some(_) => return Err("cacheSizeGB must be above 0".to_owned()),
        None => sheaf_front::system::default_cache_bytes(),
    };
    let folder = settings.unix_socket_prefix.clone().unwrap_or_else(|| PathBuf::from("/tmp"));
    let sample_rate = settings.sample_rate.unwrap_or(1.0);
    if !(0.0..=1.0).contains(&sample_rate) {
        return Err("slowOpSampleRate must be between 0 and 1".to_owned());
    }
    if settings.oplog_min_retention_hours.is_some_and(|hours| hours < 0.0 || !hours.is_finite()) {
        return Err("BadValue: oplogMinRetentionHours must be greater than or equal to 0".to_owned());
    }
    let front = sheaf_front::options::FrontOptions {
        bind,
        port: settings.port.unwrap_or(27017),
        unix_socket_folder: (settings.unix_socket != Some(false)).then_some(folder),
        unix_socket_permissions: settings.unix_socket_permissions.unwrap_or(0o700),
        max_connections: settings
            .max_conns
            .unwrap_or(defaults.max_connections)
            .min(Descriptors::share(limits::open_files()).connections)
            .max(1),
        slow_ms: settings.slowms.unwrap_or(100),
        sample_rate,
        profile_level: settings.profile.unwrap_or(0),
        compressors,
        parameters: parameters(settings),
        argv: argv.to_vec(),
        parsed: parsed(settings),
        write_timeout: defaults.write_timeout,
        busy_threads: defaults.busy_threads,
    };
    let own = MongodOptions {
        set_name: settings.repl_set.as_ref().map(|name| name.split('/').next().unwrap_or("").to_owned()),
        dbpath: data_folder(settings),
        journal: settings.journal != Some(false),
        cache_bytes,
    };
    Ok((front, own))
}

fn data_folder(settings: &Settings) -> PathBuf {
    settings.dbpath.clone().unwrap_or_else(|| PathBuf::from("/data/db"))
}

/// The `--setParameter`s, after the flags that have a parameter of the same meaning.
fn parameters(settings: &Settings) -> Vec<(String, String)> {
    let interval = settings.journal_commit_interval.map(|ms| ("journalCommitInterval", ms.to_string()));
    let delay = settings.syncdelay.map(|seconds| ("syncdelay", seconds.to_string()));
    let flags = interval.into_iter().chain(delay);
    flags.map(|(name, value)| (name.to_owned(), value)).chain(settings.parameters.iter().cloned()).collect()
}

/// The settings as `getCmdLineOpts` shows them.
fn parsed(settings: &Settings) -> sheaf_bson::DocBuf {
    sheaf_bson::DocBuf::build(|doc| {
        {
            let mut net = doc.document("net");
            if let Some(hosts) = &settings.bind_ip {
                net.append("bindIp", hosts);
            }
            if let Some(port) = settings.port {
                net.append("port", i32::from(port));
            }
        }
        if let Some(name) = &settings.repl_set {
            doc.document("replication").append("replSet", name);
        }
        if !settings.parameters.is_empty() {
            let mut parameters = doc.document("setParameter");
            for (name, value) in &settings.parameters {
                parameters.append(name, value);
            }
        }
        if let Some(path) = &settings.dbpath {
            doc.document("storage").append("dbPath", &path.display().to_string());
        }
        if let Some(path) = &settings.logpath {
            doc.document("systemLog")
                .append("destination", "file")
                .append("path", &path.display().to_string());
        }
    })
}
