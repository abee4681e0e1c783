//! The server role: from settings to a running server, and down again.

pub mod life;

use std::path::PathBuf;
use std::process::ExitCode;

use sheaf_front::log;
use sheaf_front::reactor::leave_to_the_end;
use sheaf_server::mongod::Mongod;
use sheaf_server::options::{ClusterRole, MongodOptions};

use crate::config::{self, Settings};
use crate::flags::ServerFlags;
use crate::process::background::{FORKED, background};
use crate::process::security;
use crate::process::{LAST_PATIENCE, bad_options, exit, fail, front_options, open_log, runtimes};
use crate::{limits, sharded, values};

/// Runs the server role.
pub fn main(flags: ServerFlags, argv: &[String]) -> ExitCode {
    let settings = match settings(&flags) {
        Ok(settings) => settings,
        Err(text) => return bad_options(&text),
    };
    if flags.shutdown {
        return crate::end_other::main(&sharded::folder::locked(&data_folder(&settings)));
    }
    if settings.fork == Some(true) && std::env::var_os(FORKED).is_none() {
        return background(&settings, argv);
    }
    if let Err(text) =
        limits::close_files(&settings.parameters).and_then(|()| open_log(&settings, default_port(&settings)))
    {
        return bad_options(&text);
    }
    limits::raise_open_files();
    crate::allocator::prepare(sheaf_front::system::memory_limit());
    if let Some(shards) = flags.shards {
        return sharded::main(&settings, argv, shards);
    }
    let front = match front_options(&settings, argv, default_port(&settings)) {
        Ok(front) => front,
        Err(text) => return bad_options(&text),
    };
    let node = match Mongod::new(front, options(&settings)) {
        Ok(Mongod(node)) => node,
        Err(error) => return bad_options(error.message()),
    };
    // What must go on whatever happens to the data has threads of its own; see `sheaf_front::reactor`.
    let (control, data) = match runtimes() {
        Ok(runtimes) => runtimes,
        Err(error) => {
            return fail(exit::UNCAUGHT, log::ids::NO_THREADS, "Cannot start threads", &error.to_string());
        }
    };
    node.set_data_runtime(data.handle().clone());
    let code = control.block_on(life::run(node.clone(), &settings, life::Process::Own));
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

fn settings(flags: &ServerFlags) -> Result<Settings, String> {
    let file = match &flags.process.config {
        Some(path) => config::read(path, config::Process::Server)?,
        None => Settings::default(),
    };
    let settings = flags.settings()?.or(file);
    values::check(&settings)?;
    match flags.shards {
        Some(shards) => sharded::check(&settings, shards)?,
        None if flags.shutdown => {}
        None => sharded::folder::check_plain(&data_folder(&settings))?,
    }
    security::check(&settings, settings.repl_set.is_some())?;
    if settings.repl_set.is_some() && settings.journal == Some(false) {
        return Err("BadValue: A member of a replica set cannot do without the journal (--nojournal), which is its oplog".to_owned());
    }
    if let Some(role) = settings.cluster_role.filter(|_| settings.repl_set.is_none()) {
        return Err(format!(
            "Error: a {} has to be a member of a replica set: --replSet (replication.replSetName) is missing",
            role.name()
        ));
    }
    match settings.storage_engine.as_deref() {
        None | Some("wiredTiger") => {}
        Some(other) => {
            return Err(format!(
                "Unknown storage engine '{other}': 'wiredTiger' is accepted and means the only engine there is"
            ));
        }
    }
    Ok(settings)
}

/// How a mongod is to be run.
pub fn options(settings: &Settings) -> MongodOptions {
    let cache_bytes = match settings.cache_size_gb {
        Some(gb) => (gb * f64::from(1 << 30)) as u64,
        None => sheaf_front::system::default_cache_bytes(),
    };
    MongodOptions {
        set_name: settings.repl_set.as_ref().map(|name| name.split('/').next().unwrap_or("").to_owned()),
        dbpath: data_folder(settings),
        cluster_role: settings.cluster_role,
        journal: settings.journal != Some(false),
        cache_bytes,
    }
}

/// The port of a mongod of this role.
fn default_port(settings: &Settings) -> u16 {
    match settings.cluster_role {
        None => 27017,
        Some(ClusterRole::Shard) => 27018,
        Some(ClusterRole::Config) => 27019,
    }
}

/// The folder of the data.
pub fn data_folder(settings: &Settings) -> PathBuf {
    settings.dbpath.clone().unwrap_or_else(|| PathBuf::from("/data/db"))
}
