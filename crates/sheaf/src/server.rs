//! The server role: from settings to a running server, and down again.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sheaf_front::listener;
use sheaf_front::log;
use sheaf_front::reactor::leave_to_the_end;
use sheaf_replica::Replica;
use sheaf_replica::driver::RESTARTED;
use sheaf_server::mongod::Mongod;
use sheaf_server::node::Node;
use sheaf_server::options::Options;
use sheaf_storage::Engine;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::{self, Settings};
use crate::flags::ServerFlags;
use crate::limits::{self, Descriptors};

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
    let node = match Node::new(front, options) {
        Ok(node) => node,
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
    let code = control.block_on(run(node.clone(), &settings));
    // Whatever still runs has been told to stop; nobody waits for it longer than this.
    control.block_on(node.until_answered(LAST_PATIENCE));
    leave_to_the_end(data);
    leave_to_the_end(control);
    if let Some(path) = &settings.pidfilepath {
        let _ = std::fs::remove_file(path);
    }
    log::info(
        "CONTROL",
        23138,
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

fn options(settings: &Settings, argv: &[String]) -> Result<(sheaf_front::options::Options, Options), String> {
    let defaults = sheaf_front::options::Options::default();
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
    let front = sheaf_front::options::Options {
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
    let own = Options {
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

/// Runs until a signal or the `shutdown` command; gives the exit code.
async fn run(node: Arc<Node>, settings: &Settings) -> u8 {
    let options = &node.options;
    let attributes = sheaf_bson::doc! {
        "pid": i64::from(std::process::id()),
        "port": i32::from(node.front().options.port),
        "dbPath": &options.dbpath.display().to_string(),
        "architecture": "64-bit",
        "host": &sheaf_front::front::hostname(),
    };
    log::events::listen();
    log::events::listen_for_panics();
    log::info("CONTROL", 4615611, "initandlisten", "Sheaf starting", Some(attributes));
    warn_about_host();
    // The port first: a second server on it must not get as far as the data.
    let listeners = match listener::bind(node.front()) {
        Ok(listeners) => listeners,
        Err(error) => {
            let text = match error.source.kind() {
                std::io::ErrorKind::AddrInUse => "Address already in use".to_owned(),
                _ => error.source.to_string(),
            };
            let attributes = sheaf_bson::doc! {
                "error": { "code": 9001, "codeName": "SocketException", "errmsg": &*format!("{text} [{}]", error.address) }
            };
            log::write(
                log::Severity::Error,
                "CONTROL",
                20568,
                "initandlisten",
                "Error setting up listener",
                Some(&attributes),
            );
            log::write(
                log::Severity::Error,
                "NETWORK",
                23024,
                "initandlisten",
                "Failed to set up listener",
                Some(&attributes),
            );
            return exit::NET_ERROR;
        }
    };
    let engine = match tokio::task::block_in_place(|| open_engine(&node, settings)) {
        Ok(engine) => engine,
        Err(text) => {
            let attributes = sheaf_bson::doc! { "error": &text };
            log::write(
                log::Severity::Error,
                "STORAGE",
                20557,
                "initandlisten",
                "DBException in initAndListen, terminating",
                Some(&attributes),
            );
            return exit::UNCAUGHT;
        }
    };
    if let Some(set_name) = &options.set_name {
        match tokio::task::block_in_place(|| node.join(&engine, set_name)) {
            Ok(()) => {}
            Err(error) => {
                let attributes = sheaf_bson::doc! { "error": error.message() };
                let text = "Cannot take part in a replica set";
                log::write(
                    log::Severity::Error,
                    "REPL",
                    log::ids::NO_REPLICA,
                    "initandlisten",
                    text,
                    Some(&attributes),
                );
                return exit::UNCAUGHT;
            }
        }
    } else if let Err(error) = sheaf_server::first_start::prepare(&engine, &|| node.until_end()) {
        // A full disk must not keep the data from being read.
        let attributes = sheaf_bson::doc! { "error": error.message() };
        log::warning(
            "STORAGE",
            log::ids::VERSION_NOT_WRITTEN,
            "initandlisten",
            "Cannot write the folder's version",
            Some(attributes),
        );
    }
    node.set_engine(engine.clone());
    let caches = Arc::downgrade(&node);
    let shrink = move |short| {
        if let Some(node) = caches.upgrade() {
            node.engine().shrink_cache(short);
        }
    };
    if let Err(error) = sheaf_front::guard::start(node.front(), crate::allocator::HOOKS, shrink) {
        let attributes = sheaf_bson::doc! { "error": &error.to_string() };
        let text = "Cannot watch the memory of the process";
        log::warning("CONTROL", log::ids::MEMORY_NOT_WATCHED, "initandlisten", text, Some(attributes));
    }
    if let Err(error) = sheaf_server::first_start::log_start(&node) {
        let attributes = sheaf_bson::doc! { "error": error.message() };
        log::warning(
            "STORAGE",
            log::ids::STARTUP_LOG_NOT_WRITTEN,
            "initandlisten",
            "Cannot write local.startup_log",
            Some(attributes),
        );
    }
    if let Some(path) = &settings.pidfilepath
        && let Err(error) = std::fs::write(path, format!("{}\n", std::process::id()))
    {
        let attributes = sheaf_bson::doc! { "error": &error.to_string() };
        log::write(
            log::Severity::Error,
            "CONTROL",
            log::ids::PID_FILE_NOT_WRITTEN,
            "initandlisten",
            "Cannot write pid file",
            Some(&attributes),
        );
        return exit::BAD_OPTIONS;
    }
    if let Some(port) = settings.metrics_port {
        match tokio::net::TcpListener::bind((node.front().options.bind[0].as_str(), port)).await {
            Ok(listener) => {
                tokio::spawn(crate::metrics::serve(listener, node.clone()));
            }
            Err(error) => {
                let attributes = sheaf_bson::doc! { "error": &error.to_string(), "port": i32::from(port) };
                log::write(
                    log::Severity::Error,
                    "NETWORK",
                    log::ids::METRICS_NOT_SERVED,
                    "initandlisten",
                    "Cannot serve metrics",
                    Some(&attributes),
                );
                return exit::NET_ERROR;
            }
        }
    }
    let data = node.data_runtime().expect("it was set before");
    let tasks = [
        data.spawn(sheaf_server::reaper::run(node.clone())),
        data.spawn(sheaf_server::ttl::run(node.clone())),
    ];
    // Before anybody is answered: whoever has talked to this server may end it in order.
    match Signals::listen() {
        Ok(signals) => {
            let reopen = settings.log_rotate.as_deref() == Some("reopen");
            tokio::spawn(signals.serve(node.clone(), reopen));
        }
        Err(error) => {
            let attributes = sheaf_bson::doc! { "error": &error.to_string() };
            let text = "Cannot listen for signals";
            log::warning("CONTROL", log::ids::NO_SIGNALS, "initandlisten", text, Some(attributes));
        }
    }
    listeners.run(Arc::new(Mongod(node.clone()))).await;
    log::info("CONTROL", 4784901, "SignalHandler", "Shutting down: commands under way are interrupted", None);
    // Running commands see the flag at their next check; then nothing writes any more.
    tokio::time::sleep(Duration::from_millis(150)).await;
    if let Err(error) = tokio::task::block_in_place(|| stop_engine(&node, &engine)) {
        let attributes = sheaf_bson::doc! { "error": &error };
        log::write(
            log::Severity::Error,
            "STORAGE",
            log::ids::UNCLEAN_END,
            "SignalHandler",
            "Unclean end of storage",
            Some(&attributes),
        );
        return exit::UNCAUGHT;
    }
    // They may be in the middle of something, as operations may.
    let ended = async {
        for task in tasks {
            let _ = task.await;
        }
    };
    let _ = tokio::time::timeout(LAST_PATIENCE, ended).await;
    0
}

/// Flushes and stops storage. What the log holds need not be flushed, only applied again by the next
/// start; so where the disk has no room for a flush, which would wait for it, there is none.
fn stop_engine(node: &Node, engine: &Engine) -> Result<(), String> {
    let room = sheaf_front::system::free_bytes(&node.options.dbpath);
    let needed = engine.stats().memtable_bytes;
    let clean = !node.options.journal || room.is_none_or(|room| room > needed + needed / 4);
    if !clean {
        let attributes =
            sheaf_bson::doc! { "freeBytes": room.unwrap_or(0) as i64, "neededBytes": needed as i64 };
        no_last_flush("Too little free space to flush; the next start applies the log again", attributes);
    }
    let ended = engine.shutdown(clean);
    if let Ok(Some(error)) = &ended {
        let attributes = sheaf_bson::doc! { "error": error.message() };
        no_last_flush("The last flush was left out; the next start applies the log again", attributes);
    }
    if let Some(replica) = node.replica() {
        replica.stop();
    }
    ended.map(|_| ()).map_err(|error| error.message().to_owned())
}

fn no_last_flush(text: &str, attributes: sheaf_bson::DocBuf) {
    log::warning("STORAGE", log::ids::NO_LAST_FLUSH, "SignalHandler", text, Some(attributes));
}

fn warn_about_host() {
    if let Some(files) = limits::open_files().filter(|files| *files < 64_000) {
        let attributes = sheaf_bson::doc! { "currentValue": files as i64, "recommendedMinimum": 64_000i64 };
        log::warning(
            "CONTROL",
            22184,
            "initandlisten",
            "Soft rlimits for open file descriptors too low",
            Some(attributes),
        );
    }
    log::warning(
        "CONTROL",
        22120,
        "initandlisten",
        "Access control is not enabled for the database. Read and write access to data and configuration is unrestricted",
        None,
    );
}

fn open_engine(node: &Arc<Node>, settings: &Settings) -> Result<Engine, String> {
    let path = &node.options.dbpath;
    check_folder(path)?;
    if node.options.set_name.is_none() {
        Replica::check_alone(path).map_err(|error| error.to_string())?;
    }
    let waiting = node.clone();
    let options = sheaf_storage::Options {
        path: path.clone(),
        cache_bytes: node.options.cache_bytes,
        journal: node.options.journal,
        journal_commit_interval: Duration::from_millis(
            node.parameters.int("journalCommitInterval").max(1) as u64
        ),
        sync_delay: Duration::from_secs_f64(node.parameters.double("syncdelay").max(0.0)),
        oplog_bytes: settings.oplog_size_mb.unwrap_or(DEFAULT_OPLOG_MB) << 20,
        oplog_retention: Duration::try_from_secs_f64(
            settings.oplog_min_retention_hours.unwrap_or(0.0) * 3600.0,
        )
        .unwrap_or(Duration::MAX),
        block: Arc::new(move |work| {
            waiting.lock_waiters.fetch_add(1, Ordering::Relaxed);
            tokio::task::block_in_place(work);
            waiting.lock_waiters.fetch_sub(1, Ordering::Relaxed);
        }),
        replica: node.options.set_name.is_some(),
        open_files: Descriptors::share(limits::open_files()).tables,
        repair: None,
        reopen: Some(Arc::new(|why| sheaf_replica::driver::restart_in_place(why))),
        clock: Arc::new(|| sheaf_front::front::Clock.now_millis()),
        ..sheaf_storage::Options::new(path)
    };
    Engine::open(options).map_err(|error| error.to_string())
}

/// Log kept by default; enough for change streams and restarts, small enough for a laptop.
const DEFAULT_OPLOG_MB: u64 = 1024;

fn check_folder(path: &Path) -> Result<(), String> {
    match std::fs::metadata(path) {
        Ok(about) if !about.is_dir() => {
            return Err(format!("NonExistentPath: Data directory {} is not a directory.", path.display()));
        }
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(format!(
                "NonExistentPath: Data directory {} not found. Create the missing directory or specify another path using (1) the --dbpath command line option, or (2) by adding the 'storage.dbPath' option in the configuration file.",
                path.display()
            ));
        }
        Err(error) => return Err(format!("Data directory {}: {error}", path.display())),
    }
    // It would look empty, and get files between those that it has.
    if path.join("WiredTiger").exists() && !path.join("sheaf.format").exists() {
        return Err(format!(
            "Data directory {} is mongod's; its files cannot be read. Copy the data into another directory with mongodump and mongorestore.",
            path.display()
        ));
    }
    let probe = path.join(".sheaf-probe");
    match std::fs::write(&probe, b"") {
        Ok(()) => {
            let _ = std::fs::remove_file(&probe);
            Ok(())
        }
        // On a full disk it can be opened all the same, in the room that storage has kept.
        Err(error) if error.kind() == std::io::ErrorKind::StorageFull => Ok(()),
        Err(error) => Err(format!(
            "IllegalOperation: Attempted to create a lock file on a read-only directory: {}: {error}",
            path.display()
        )),
    }
}

/// SIGTERM, SIGINT and SIGHUP stop the server, as they do mongod; SIGUSR1 rotates the log.
struct Signals {
    term: Signal,
    int: Signal,
    hangup: Signal,
    rotate: Signal,
}

impl Signals {
    /// From now on signals wait for [`Signals::serve`] instead of ending the process.
    fn listen() -> std::io::Result<Signals> {
        Ok(Signals {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            rotate: signal(SignalKind::user_defined1())?,
        })
    }

    async fn serve(mut self, node: Arc<Node>, reopen: bool) {
        loop {
            let (number, called) = tokio::select! {
                _ = self.term.recv() => (15, "Terminated"),
                _ = self.int.recv() => (2, "Interrupt"),
                _ = self.hangup.recv() => (1, "Hangup"),
                _ = self.rotate.recv() => {
                    if let Err(error) = log::rotate(!reopen) {
                        eprintln!("cannot rotate the log: {error}");
                    }
                    continue;
                }
                () = node.until_shutdown() => return,
            };
            let attributes = sheaf_bson::doc! { "signal": number, "error": called };
            log::info("CONTROL", 23377, "SignalHandler", "Received signal", Some(attributes));
            if let Some(replica) = node.replica().cloned() {
                // Another member takes over while this one still answers. Together with what is under way it has this time.
                let millis = node.parameters.int("shutdownTimeoutMillisForSignaledShutdown").max(0) as u64;
                let until = Instant::now() + Duration::from_millis(millis);
                let _ = tokio::task::spawn_blocking(move || replica.hand_over(millis)).await;
                node.become_quiet(until.saturating_duration_since(Instant::now())).await;
            }
            node.begin_shutdown();
            return;
        }
    }
}

/// `--fork`: starts this program again in the background and waits until it listens.
fn background(settings: &Settings, argv: &[String]) -> ExitCode {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    let Some(logpath) = &settings.logpath else {
        return bad_options("BadValue: --fork has to be used with --logpath or --syslog");
    };
    let Ok(program) = std::env::current_exe() else {
        return ExitCode::from(exit::FORK_FAILED);
    };
    // `--fork` may stand in the configuration file, where it can't be taken out.
    let mut child = Command::new(program);
    child.args(argv[1..].iter().filter(|argument| *argument != "--fork"));
    child.env(FORKED, "1").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let before = std::fs::metadata(logpath).map_or(0, |about| about.len());
    let mut child = match child.spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("cannot start the server in the background: {error}");
            return ExitCode::from(exit::FORK_FAILED);
        }
    };
    println!("about to fork child process, waiting until server is ready for connections.");
    println!("forked process: {}", child.id());
    loop {
        std::thread::sleep(Duration::from_millis(20));
        if let Ok(Some(status)) = child.try_wait() {
            eprintln!("ERROR: child process failed, exited with {}", status.code().unwrap_or(1));
            return ExitCode::from(exit::FORK_FAILED);
        }
        let text = std::fs::read(logpath).unwrap_or_default();
        let new = if settings.logappend == Some(true) {
            text.get(before as usize..).unwrap_or_default()
        } else {
            &text
        };
        if String::from_utf8_lossy(new).contains("Waiting for connections") {
            println!("child process started successfully, parent exiting");
            return ExitCode::SUCCESS;
        }
    }
}

/// Set in the process that `--fork` has started.
const FORKED: &str = "SHEAF_FORKED";
