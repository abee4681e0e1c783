//! A whole sharded cluster in one process, for development: `sheaf server --shards N`.
//!
//! A config server, the shards, each of them a set of one member, and a router, in one process and below one folder. They are
//! the same servers as in a cluster of processes and talk to each other through loopback sockets; see design/0027.

pub mod folder;
mod setup;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sheaf_cluster::SetAddress;
use sheaf_front::listener::Listeners;
use sheaf_front::log;
use sheaf_front::reactor::leave_to_the_end;
use sheaf_router::{Mongos, Router};
use sheaf_server::mongod::Mongod;
use sheaf_server::node::Node;
use sheaf_server::options::{ClusterRole, MongodOptions};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use self::folder::Layout;
use crate::config::Settings;
use crate::process::{
    LAST_PATIENCE, bad_options, exit, fail, fatal, front_options, listen, runtimes, warnings,
};
use crate::router;
use crate::server::{data_folder, life, options};

/// More would be no development any more: each has threads and files of its own.
const MOST_SHARDS: u32 = 16;

/// Looks whether the settings go with a whole cluster.
///
/// Errors: a text for the user.
pub fn check(settings: &Settings, shards: u32) -> Result<(), String> {
    if !(1..=MOST_SHARDS).contains(&shards) {
        return Err(format!("BadValue: --shards must be between 1 and {MOST_SHARDS}"));
    }
    let beside = [
        (settings.repl_set.is_some(), "--replSet"),
        (settings.cluster_role.is_some(), "--shardsvr and --configsvr"),
        (settings.journal == Some(false), "--nojournal"),
        (settings.metrics_port.is_some(), "--metricsPort"),
        (settings.audit.destination.is_some(), "--auditDestination"),
    ];
    match beside.into_iter().find(|(said, _)| *said) {
        Some((_, flag)) => {
            Err(format!("BadValue: --shards starts a whole cluster; {flag} does not go with it"))
        }
        None => Ok(()),
    }
}

/// Everything that runs.
struct Whole {
    layout: Layout,
    settings: Settings,
    argv: Vec<String>,
    config: SetAddress,
    /// The config server, then the shards.
    members: Vec<Arc<Node>>,
    router: Arc<Router>,
}

/// Runs the cluster.
pub fn main(settings: &Settings, argv: &[String], shards: u32) -> ExitCode {
    let whole = match Whole::new(settings, argv, shards) {
        Ok(whole) => whole,
        Err(text) => return bad_options(&text),
    };
    let started = runtimes().and_then(|(control, members)| Ok((control, members, runtimes()?.1)));
    let (control, members, routers) = match started {
        Ok(runtimes) => runtimes,
        Err(error) => {
            return fail(exit::UNCAUGHT, log::ids::NO_THREADS, "Cannot start threads", &error.to_string());
        }
    };
    whole.members.iter().for_each(|node| node.set_data_runtime(members.handle().clone()));
    whole.router.set_data_runtime(routers.handle().clone());
    log::events::listen();
    log::events::listen_for_panics();
    let code = control.block_on(whole.live(routers.handle())).map_or_else(|code| code, |()| 0);
    control.block_on(whole.router.until_answered(LAST_PATIENCE));
    [members, routers, control].into_iter().for_each(leave_to_the_end);
    if let Some(path) = &settings.pidfilepath {
        let _ = std::fs::remove_file(path);
    }
    let attributes = sheaf_bson::doc! { "exitCode": i32::from(code) };
    log::info("CONTROL", log::ids::SHUTTING_DOWN, "initandlisten", "Shutting down", Some(attributes));
    ExitCode::from(code)
}

impl Whole {
    /// Errors: a text for the user.
    fn new(settings: &Settings, argv: &[String], shards: u32) -> Result<Whole, String> {
        let settings = &with_keys(settings)?;
        let layout = Layout::open(&data_folder(settings), shards, settings.port.unwrap_or(ROUTER_PORT))?;
        layout.save()?;
        let config: SetAddress = layout.set_address(0).parse().map_err(text)?;
        let members = (0..layout.ports.len()).map(|number| member(&layout, number, settings, argv));
        let members = members.collect::<Result<_, String>>()?;
        let Mongos(router) =
            Mongos::new(router::options(&of_router(settings), argv)?, &config).map_err(text)?;
        Ok(Whole { layout, settings: settings.clone(), argv: argv.to_vec(), config, members, router })
    }

    /// Runs until a signal, the `shutdown` command or the end of a member. Errors: the exit code.
    async fn live(&self, routers: &Handle) -> Result<(), u8> {
        warnings::at_start(self.router.front(), &self.settings);
        // The ports first: a second start must not get as far as the data. Who connects meanwhile waits.
        let listeners = listen(self.router.front())?;
        let mut members = JoinSet::new();
        for node in &self.members {
            let (node, settings) = (node.clone(), self.settings.clone());
            members.spawn(async move { life::run(node, &settings, life::Process::Shared).await });
        }
        let mut worst = tokio::select! {
            outcome = self.form_and_serve(listeners, routers) => outcome.err().unwrap_or(0),
            // Without one of them the rest is of no use; its log has said why.
            Some(ended) = members.join_next() => ended.unwrap_or(exit::UNCAUGHT),
        };
        self.router.front().begin_shutdown();
        self.members.iter().for_each(|node| node.front().begin_shutdown());
        while let Some(ended) = members.join_next().await {
            worst = worst.max(ended.unwrap_or(exit::UNCAUGHT));
        }
        if worst == 0 { Ok(()) } else { Err(worst) }
    }

    async fn form_and_serve(&self, listeners: Listeners, routers: &Handle) -> Result<(), u8> {
        let layout = self.layout.clone();
        let membership = self.router.membership.clone();
        in_time(move || setup::form(&layout, &membership)).await?;
        if !self.layout.complete {
            self.add_shards(routers).await?;
        }
        router::live(&self.router, &self.settings, &self.config, listeners).await
    }

    /// By a router of its own, so that nobody else's commands come before there are shards.
    async fn add_shards(&self, routers: &Handle) -> Result<(), u8> {
        let settings = Settings {
            port: Some(0),
            bind_ip: Some("127.0.0.1".to_owned()),
            bind_ip_all: None,
            unix_socket: Some(false),
            ..of_router(&self.settings)
        };
        let made = router::options(&settings, &self.argv)
            .and_then(|options| Mongos::new(options, &self.config).map_err(text))
            .map_err(|text| failed(&text))?;
        let first = made.0;
        first.set_data_runtime(routers.clone());
        let listeners = listen(first.front())?;
        let address = format!("127.0.0.1:{}", first.front().port.load(Ordering::Relaxed));
        let (mut layout, membership) = (self.layout.clone(), self.router.membership.clone());
        let serving = tokio::spawn({
            let first = first.clone();
            async move { router::serve(&first, listeners).await }
        });
        let added = in_time(move || {
            setup::add_shards(&layout, &membership, &address)?;
            layout.complete = true;
            layout.save().map_err(sheaf_client::Error::failed)
        });
        let added = added.await;
        first.front().begin_shutdown();
        let _ = serving.await;
        added
    }
}

/// A port of the router where none is named: mongos'.
const ROUTER_PORT: u16 = 27017;

fn text(error: sheaf_errors::Error) -> String {
    error.message().to_owned()
}

/// Where clients must prove who they are, members must prove to each other that they belong to this process.
fn with_keys(settings: &Settings) -> Result<Settings, String> {
    if settings.auth != Some(true) || settings.key_file.is_some() {
        return Ok(settings.clone());
    }
    let key: String = rand::random::<[u8; 32]>().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Settings { own_keys: Some(sheaf_auth::Keys::parse(&key, "the process")?), ..settings.clone() })
}

/// What all members share is not the router's: it keeps no journal.
fn of_router(settings: &Settings) -> Settings {
    Settings { journal_commit_interval: None, syncdelay: None, ..settings.clone() }
}

/// The first user is made by the router: who needs none of a shard's own would leave its exception open for good.
fn of_members(parameters: &[(String, String)]) -> Vec<(String, String)> {
    let mut all = parameters.to_vec();
    all.push(("enableLocalhostAuthBypass".to_owned(), "false".to_owned()));
    all
}

fn member(layout: &Layout, number: usize, settings: &Settings, argv: &[String]) -> Result<Arc<Node>, String> {
    let role = if number == 0 { ClusterRole::Config } else { ClusterRole::Shard };
    let own = Settings {
        port: Some(layout.ports[number]),
        bind_ip: Some("127.0.0.1".to_owned()),
        bind_ip_all: None,
        unix_socket: Some(false),
        repl_set: Some(layout.set_name(number)),
        cluster_role: Some(role),
        dbpath: Some(layout.data(number)),
        parameters: of_members(&settings.parameters),
        ..settings.clone()
    };
    let front = front_options(&own, argv, layout.ports[number])?;
    let options = options(&own);
    // They share the memory that one server would have.
    let options = MongodOptions { cache_bytes: options.cache_bytes / layout.ports.len() as u64, ..options };
    Mongod::new(front, options).map(|Mongod(node)| node).map_err(text)
}

/// Does what waits for members, on a thread of its own. Errors: the exit code.
async fn in_time(work: impl FnOnce() -> sheaf_client::Result<()> + Send + 'static) -> Result<(), u8> {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(failed(&error.to_string())),
        Err(panic) => Err(failed(&panic.to_string())),
    }
}

/// Says in the log why there is no cluster; the exit code.
fn failed(error: &str) -> u8 {
    let attributes = sheaf_bson::doc! { "error": error };
    let text = "Cannot bring the members of the cluster together";
    fatal("SHARDING", log::ids::NO_CLUSTER, "initandlisten", text, attributes);
    exit::UNCAUGHT
}
