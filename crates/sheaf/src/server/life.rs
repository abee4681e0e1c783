//! A server from its start to its end, step by step.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sheaf_front::log;
use sheaf_replica::Replica;
use sheaf_server::mongod::Mongod;
use sheaf_server::node::Node;
use sheaf_storage::Engine;
use tokio::task::JoinHandle;

use crate::config::Settings;
use crate::limits::{self, Descriptors};
use crate::process::signals::Signals;
use crate::process::{LAST_PATIENCE, exit, fatal, listen, warnings};

/// Whose the process is that a server runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// Its own.
    Own,
    /// Shared with others of its cluster. Signals, the file of the process id and what is said about the host are the
    /// business of who has started them all.
    Shared,
}

/// Runs until a signal or the `shutdown` command; gives the exit code.
pub async fn run(node: Arc<Node>, settings: &Settings, process: Process) -> u8 {
    live(&node, settings, process).await.map_or_else(|code| code, |()| 0)
}

/// Errors: the exit code.
async fn live(node: &Arc<Node>, settings: &Settings, process: Process) -> Result<(), u8> {
    if process == Process::Own {
        log::events::listen();
        log::events::listen_for_panics();
    }
    announce(node);
    if process == Process::Own {
        warnings::at_start(node.front(), settings);
    }
    // The port first: a second server on it must not get as far as the data.
    let listeners = listen(node.front())?;
    let engine = open(node, settings)?;
    take_part(node, &engine)?;
    sheaf_server::sharding::warn_of_role(&engine, node.options.cluster_role);
    node.set_engine(engine.clone());
    watch_memory(node);
    note_start(node);
    // What was set before holds for the first command already.
    tokio::task::block_in_place(|| sheaf_server::commands::admin::parameters::refresh(node));
    if process == Process::Own {
        write_pid(settings)?;
        serve_metrics(node, settings).await?;
    }
    let tasks = begin_own_work(node);
    if process == Process::Own {
        // Before anybody is answered: whoever has talked to this server may end it in order.
        listen_for_signals(node);
    }
    listeners.run(Arc::new(Mongod(node.clone()))).await;
    end(node, &engine, tasks).await
}

fn announce(node: &Node) {
    let attributes = sheaf_bson::doc! {
        "pid": i64::from(std::process::id()),
        "port": i32::from(node.front().options.port),
        "dbPath": &node.options.dbpath.display().to_string(),
        "architecture": "64-bit",
        "host": &sheaf_front::front::hostname(),
    };
    log::info("CONTROL", log::ids::STARTING, "initandlisten", "Sheaf starting", Some(attributes));
    crate::process::announce(node.front());
}

fn open(node: &Arc<Node>, settings: &Settings) -> Result<Engine, u8> {
    tokio::task::block_in_place(|| open_engine(node, settings)).map_err(|text| {
        let attributes = sheaf_bson::doc! { "error": &text };
        fatal(
            "STORAGE",
            log::ids::STORAGE_NOT_OPEN,
            "initandlisten",
            "DBException in initAndListen, terminating",
            attributes,
        );
        exit::UNCAUGHT
    })
}

/// As a member of a set, or by writing what a server alone has to have.
fn take_part(node: &Arc<Node>, engine: &Engine) -> Result<(), u8> {
    if let Some(set_name) = &node.options.set_name {
        return tokio::task::block_in_place(|| node.join(engine, set_name)).map_err(|error| {
            let attributes = sheaf_bson::doc! { "error": error.message() };
            fatal(
                "REPL",
                log::ids::NO_REPLICA,
                "initandlisten",
                "Cannot take part in a replica set",
                attributes,
            );
            exit::UNCAUGHT
        });
    }
    if let Err(error) = sheaf_server::first_start::prepare(engine, &|| node.until_end()) {
        // A full disk must not keep the data from being read.
        let attributes = sheaf_bson::doc! { "error": error.message() };
        let text = "Cannot write the folder's version";
        log::warning("STORAGE", log::ids::VERSION_NOT_WRITTEN, "initandlisten", text, Some(attributes));
    }
    Ok(())
}

fn watch_memory(node: &Arc<Node>) {
    let caches = Arc::downgrade(node);
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
}

fn note_start(node: &Node) {
    if let Err(error) = sheaf_server::first_start::log_start(node) {
        let attributes = sheaf_bson::doc! { "error": error.message() };
        let text = "Cannot write local.startup_log";
        log::warning("STORAGE", log::ids::STARTUP_LOG_NOT_WRITTEN, "initandlisten", text, Some(attributes));
    }
}

fn write_pid(settings: &Settings) -> Result<(), u8> {
    let Some(path) = &settings.pidfilepath else { return Ok(()) };
    std::fs::write(path, format!("{}\n", std::process::id())).map_err(|error| {
        let attributes = sheaf_bson::doc! { "error": &error.to_string() };
        fatal(
            "CONTROL",
            log::ids::PID_FILE_NOT_WRITTEN,
            "initandlisten",
            "Cannot write pid file",
            attributes,
        );
        exit::BAD_OPTIONS
    })
}

async fn serve_metrics(node: &Arc<Node>, settings: &Settings) -> Result<(), u8> {
    let Some(port) = settings.metrics_port else { return Ok(()) };
    match tokio::net::TcpListener::bind((node.front().options.bind[0].as_str(), port)).await {
        Ok(listener) => {
            tokio::spawn(crate::metrics::serve(listener, node.clone()));
            Ok(())
        }
        Err(error) => {
            let attributes = sheaf_bson::doc! { "error": &error.to_string(), "port": i32::from(port) };
            fatal(
                "NETWORK",
                log::ids::METRICS_NOT_SERVED,
                "initandlisten",
                "Cannot serve metrics",
                attributes,
            );
            Err(exit::NET_ERROR)
        }
    }
}

/// What a server does by itself: sessions and cursors end, documents expire, files are compacted.
fn begin_own_work(node: &Arc<Node>) -> [JoinHandle<()>; 3] {
    let data = node.data_runtime().expect("it was set before");
    [
        data.spawn(sheaf_server::reaper::run(node.clone())),
        data.spawn(sheaf_server::ttl::run(node.clone())),
        data.spawn(sheaf_server::auto_compact::run(node.clone())),
    ]
}

fn listen_for_signals(node: &Arc<Node>) {
    match Signals::listen() {
        Ok(signals) => {
            let (front, node) = (node.front().clone(), node.clone());
            tokio::spawn(signals.serve(front, async move { hand_over(&node).await }));
        }
        Err(error) => {
            let attributes = sheaf_bson::doc! { "error": &error.to_string() };
            let text = "Cannot listen for signals";
            log::warning("CONTROL", log::ids::NO_SIGNALS, "initandlisten", text, Some(attributes));
        }
    }
}

/// Another member takes over while this one still answers. Together with what is under way it has a limited time.
async fn hand_over(node: &Node) {
    let Some(replica) = node.replica().cloned() else { return };
    let millis = node.parameters.int("shutdownTimeoutMillisForSignaledShutdown").max(0) as u64;
    let until = Instant::now() + Duration::from_millis(millis);
    let _ = tokio::task::spawn_blocking(move || replica.hand_over(millis)).await;
    node.become_quiet(until.saturating_duration_since(Instant::now())).await;
}

async fn end(node: &Arc<Node>, engine: &Engine, tasks: [JoinHandle<()>; 3]) -> Result<(), u8> {
    log::info(
        "CONTROL",
        log::ids::ENDING_COMMANDS,
        "SignalHandler",
        "Shutting down: commands under way are interrupted",
        None,
    );
    // Running commands see the flag at their next check; then nothing writes any more.
    tokio::time::sleep(Duration::from_millis(150)).await;
    tokio::task::block_in_place(|| stop_engine(node, engine)).map_err(|error| {
        let attributes = sheaf_bson::doc! { "error": &error };
        fatal("STORAGE", log::ids::UNCLEAN_END, "SignalHandler", "Unclean end of storage", attributes);
        exit::UNCAUGHT
    })?;
    // They may be in the middle of something, as operations may.
    let ended = async {
        for task in tasks {
            let _ = task.await;
        }
    };
    let _ = tokio::time::timeout(LAST_PATIENCE, ended).await;
    Ok(())
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

fn open_engine(node: &Arc<Node>, settings: &Settings) -> Result<Engine, String> {
    let path = &node.options.dbpath;
    check_folder(path)?;
    sheaf_server::spill_into(path.join("_tmp"));
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
        oplog_bytes: settings.oplog_size_mb.map_or(DEFAULT_OPLOG_MB, |mb| mb.unsigned_abs().into()) << 20,
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
        reopen: Some(Arc::new(|why| sheaf_replica::process::restart_in_place(why))),
        clock_micros: Arc::new(|| sheaf_front::front::Clock.now_micros()),
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
