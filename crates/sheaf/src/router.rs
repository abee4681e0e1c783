//! The router role: from settings to a running router, and down again.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sheaf_cluster::SetAddress;
use sheaf_front::listener::Listeners;
use sheaf_front::log;
use sheaf_front::options::FrontOptions;
use sheaf_front::reactor::leave_to_the_end;
use sheaf_router::{Mongos, Router};

use crate::config::{self, Settings};
use crate::flags::RouterFlags;
use crate::process::background::{FORKED, background};
use crate::process::security;
use crate::process::signals::Signals;
use crate::process::{
    LAST_PATIENCE, bad_options, exit, fail, fatal, front_options, listen, open_log, runtimes, warnings,
};
use crate::{limits, values};

/// A router's clients wait for shards on threads of their own.
const BUSY_THREADS: usize = 1024;

const DEFAULT_PORT: u16 = 27017;

/// Runs the router role.
pub fn main(flags: &RouterFlags, argv: &[String]) -> ExitCode {
    let (settings, config) = match settings(flags) {
        Ok(settings) => settings,
        Err(text) => return bad_options(&text),
    };
    if settings.fork == Some(true) && std::env::var_os(FORKED).is_none() {
        return background(&settings, argv);
    }
    if let Err(text) =
        limits::close_files(&settings.parameters).and_then(|()| open_log(&settings, DEFAULT_PORT))
    {
        return bad_options(&text);
    }
    limits::raise_open_files();
    crate::allocator::prepare(sheaf_front::system::memory_limit());
    let front = match options(&settings, argv) {
        Ok(front) => front,
        Err(text) => return bad_options(&text),
    };
    let router = match Mongos::new(front, &config) {
        Ok(Mongos(router)) => router,
        Err(error) => return bad_options(error.message()),
    };
    if let Some(millis) = settings.local_threshold {
        router.set_local_threshold(Duration::from_millis(u64::from(millis)));
    }
    let (control, data) = match runtimes() {
        Ok(runtimes) => runtimes,
        Err(error) => {
            return fail(exit::UNCAUGHT, log::ids::NO_THREADS, "Cannot start threads", &error.to_string());
        }
    };
    router.set_data_runtime(data.handle().clone());
    let code = control.block_on(alone(&router, &settings, &config)).map_or_else(|code| code, |()| 0);
    control.block_on(router.until_answered(LAST_PATIENCE));
    leave_to_the_end(data);
    leave_to_the_end(control);
    if let Some(path) = &settings.pidfilepath {
        let _ = std::fs::remove_file(path);
    }
    let attributes = sheaf_bson::doc! { "exitCode": i32::from(code) };
    log::info("CONTROL", log::ids::SHUTTING_DOWN, "initandlisten", "Shutting down", Some(attributes));
    ExitCode::from(code)
}

/// How a router's front is to be.
///
/// Errors: a text for the user.
pub fn options(settings: &Settings, argv: &[String]) -> Result<FrontOptions, String> {
    let mut front = front_options(settings, argv, DEFAULT_PORT)?;
    front.busy_threads = BUSY_THREADS;
    // Each client may need a connection to a shard, too.
    front.max_connections = (front.max_connections / 2).max(1);
    Ok(front)
}

fn settings(flags: &RouterFlags) -> Result<(Settings, SetAddress), String> {
    let file = match &flags.process.config {
        Some(path) => config::read(path, config::Process::Router)?,
        None => Settings::default(),
    };
    let settings = flags.settings()?.or(file);
    values::check(&settings)?;
    security::check(&settings, true)?;
    let Some(config) = &settings.config_db else {
        return Err(
            "Error: no config servers are named: --configdb <name of their set>/<host:port>,...".to_owned()
        );
    };
    let config = config.parse().map_err(|error: sheaf_errors::Error| error.message().to_owned())?;
    Ok((settings, config))
}

/// Runs until a signal or the `shutdown` command. Errors: the exit code.
async fn alone(router: &Arc<Router>, settings: &Settings, config: &SetAddress) -> Result<(), u8> {
    log::events::listen();
    log::events::listen_for_panics();
    warnings::at_start(router.front(), settings);
    let listeners = listen(router.front())?;
    live(router, settings, config, listeners).await
}

/// Runs behind these listeners until a signal or the `shutdown` command. Errors: the exit code.
pub async fn live(
    router: &Arc<Router>,
    settings: &Settings,
    config: &SetAddress,
    listeners: Listeners,
) -> Result<(), u8> {
    let attributes = sheaf_bson::doc! {
        "pid": i64::from(std::process::id()),
        "port": router.front().port.load(Ordering::Relaxed),
        "configDB": &config.to_string(),
        "host": &sheaf_front::front::hostname(),
    };
    log::info("CONTROL", log::ids::STARTING, "initandlisten", "Sheaf router starting", Some(attributes));
    crate::process::announce(router.front());
    if let Err(error) = sheaf_front::guard::start(router.front(), crate::allocator::HOOKS, |_| {}) {
        let attributes = sheaf_bson::doc! { "error": &error.to_string() };
        let text = "Cannot watch the memory of the process";
        log::warning("CONTROL", log::ids::MEMORY_NOT_WATCHED, "initandlisten", text, Some(attributes));
    }
    if let Some(path) = &settings.pidfilepath {
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
        })?;
    }
    match Signals::listen() {
        Ok(signals) => {
            tokio::spawn(signals.serve(router.front().clone(), async {}));
        }
        Err(error) => {
            let attributes = sheaf_bson::doc! { "error": &error.to_string() };
            let text = "Cannot listen for signals";
            log::warning("CONTROL", log::ids::NO_SIGNALS, "initandlisten", text, Some(attributes));
        }
    }
    let data = router.data_runtime().expect("it was set before");
    data.spawn(router.clone().keep_telling());
    data.spawn(router.clone().watch_config_servers());
    serve(router, listeners).await;
    Ok(())
}

/// Serves clients until the router is told to end. Who only does this is not noted in `config.mongos`.
pub async fn serve(router: &Arc<Router>, listeners: Listeners) {
    let data = router.data_runtime().expect("it was set before");
    data.spawn(router.clone().reap());
    data.spawn(router.clone().keep_settling());
    data.spawn(router.clone().keep_sampling());
    listeners.run(Arc::new(Mongos(router.clone()))).await;
}
