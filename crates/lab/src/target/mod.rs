//! What an experiment runs on: servers that are started for it, or a deployment that is there already.

mod access;
#[cfg(test)]
pub(crate) mod fake;
mod group;
mod launch;
mod postgres;
mod process;
pub mod set;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use sheaf_bson::doc;

use crate::client::{Client, ConnectionString, without_password};
use crate::cluster::Links;
use crate::database::Database;
use crate::error::{Error, Result};
use crate::experiment::Variation;
use crate::journal::Journal;
use crate::part::Part;
use crate::stop::Stop;

pub use access::Access;
pub use group::MemoryGroup;
pub(crate) use launch::configuration;
pub use process::Process;
pub(crate) use process::{quoted, shell_text};

/// What `--target` names.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a run has a handful of them")]
pub enum Target {
    /// `sheaf`, or `sheaf=FILE` for another binary than the running one.
    Sheaf(Option<PathBuf>),
    /// A folder with `mongod` (and `mongos`).
    Folder(PathBuf),
    /// `mongodb://...`.
    Deployment(ConnectionString),
    /// `postgres`: one that is started from the binaries of Debian's package, or wherever `PATH` has them.
    Postgres,
    /// `postgresql://...`.
    PostgresAt(String),
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Target> {
        if text == "sheaf" {
            return Ok(Target::Sheaf(None));
        }
        if let Some(binary) = text.strip_prefix("sheaf=") {
            let binary = PathBuf::from(binary);
            if !binary.is_file() {
                return Err(Error::usage(format!("target {text}: there is no such file")));
            }
            return Ok(Target::Sheaf(Some(binary)));
        }
        if text == "postgres" {
            return Ok(Target::Postgres);
        }
        if text.starts_with("postgresql://") || text.starts_with("postgres://") {
            return Ok(Target::PostgresAt(text.to_owned()));
        }
        if text.starts_with("mongodb") {
            return text.parse().map(Target::Deployment);
        }
        let folder = PathBuf::from(text);
        if folder.join("mongod").is_file() {
            return Ok(Target::Folder(folder));
        }
        Err(Error::usage(format!(
            "target {text}: neither sheaf, sheaf=FILE, postgres, a connection string, nor a folder with a mongod"
        )))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Sheaf(None) => f.write_str("sheaf"),
            Target::Sheaf(Some(binary)) => write!(f, "sheaf={}", binary.display()),
            Target::Folder(folder) => write!(f, "{}", folder.display()),
            Target::Deployment(to) => to.fmt(f),
            Target::Postgres => f.write_str("postgres"),
            Target::PostgresAt(url) => f.write_str(&without_password(url)),
        }
    }
}

impl Target {
    /// Whether what it takes is there, asked before anything is measured.
    ///
    /// Errors: what is missing.
    pub fn check(&self) -> Result<()> {
        match self {
            Target::Postgres => postgres::find().map(|_| ()),
            _ => Ok(()),
        }
    }

    /// Whether it is a PostgreSQL, which few workloads know.
    pub fn is_postgresql(&self) -> bool {
        matches!(self, Target::Postgres | Target::PostgresAt(_))
    }

    /// Whether the laboratory starts and ends it.
    pub fn is_launched(&self) -> bool {
        !matches!(self, Target::Deployment(_) | Target::PostgresAt(_))
    }
}

/// How targets are started, apart from what the experiment says.
#[derive(Clone, Debug)]
pub struct LaunchOptions {
    /// The folder in which data folders are made.
    pub data: PathBuf,
    /// Data folders stay, and servers are shut down in order instead of being killed.
    pub keep: bool,
    /// `--scale`, for what limits a server.
    pub scale: f64,
}

/// A server of a target, as a workload or a check sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// "host:port".
    pub address: String,
    /// What it is a part of.
    pub part: Part,
    /// It votes and holds no data.
    pub arbiter: bool,
    /// Its data folder, when the laboratory has started it: where to look for `rollback/`.
    pub data: Option<PathBuf>,
}

/// A target that is up. It goes down with this value.
#[derive(Debug)]
pub struct Running {
    /// How to reach it.
    pub database: Database,
    /// How to reach each of its servers.
    pub access: Access,
    /// "sheaf 0.1.0", "mongod 8.2.1", "PostgreSQL 15.18".
    pub name: String,
    /// The servers that were started; empty for a deployment that was there.
    pub processes: Vec<Process>,
    /// "host:port" of every server.
    pub nodes: Vec<String>,
    /// Every member, in the order of their numbers, which is that of the processes: those of a replica set, or the config
    /// servers, shards and routers of a sharded cluster; one for a single server, none for PostgreSQL.
    pub members: Vec<Member>,
    /// The links between the members, when they go through proxies.
    pub links: Option<Links>,
    /// What could not be done as the experiment asks for.
    pub warnings: Vec<String>,
}

impl Running {
    /// Ends the servers; data folders go unless they are to be kept.
    pub fn shut_down(mut self) -> Result<()> {
        // Routers first, config servers last; of each set the primary last, so that nobody is elected meanwhile.
        let primaries = if self.processes.len() > 1 { self.primaries() } else { Vec::new() };
        let rank = |at: usize| {
            let part = self.members.get(at).map_or(Part::Set, |member| member.part);
            let turn = [Part::Config, Part::Router].iter().position(|known| *known == part);
            (turn.map_or(1, |turn| turn * 2), !primaries.contains(&at))
        };
        let mut order: Vec<usize> = (0..self.processes.len()).collect();
        order.sort_by_key(|at| std::cmp::Reverse(rank(*at)));
        let mut processes: Vec<Option<Process>> =
            std::mem::take(&mut self.processes).into_iter().map(Some).collect();
        order.into_iter().filter_map(|at| processes[at].take()).try_for_each(Process::end)
    }
}

/// Brings a target up for one variation.
pub fn bring_up(
    target: &Target,
    variation: &Variation,
    options: &LaunchOptions,
    journal: &Journal,
    stop: &Stop,
) -> Result<Running> {
    match target {
        Target::Sheaf(binary) => {
            let binary = match binary {
                Some(binary) => binary.clone(),
                None => std::env::current_exe()?,
            };
            let role = |name: &str| (binary.clone(), vec![name.to_owned()]);
            let program = launch::Program { server: role("server"), router: role("router"), is_sheaf: true };
            launch::bring_up(&program, variation, options, journal, stop)
        }
        Target::Folder(folder) => {
            let role = |name: &str| (folder.join(name), Vec::new());
            let program = launch::Program { server: role("mongod"), router: role("mongos"), is_sheaf: false };
            launch::bring_up(&program, variation, options, journal, stop)
        }
        Target::Deployment(to) => attach(to),
        Target::Postgres => postgres::bring_up(options, journal, stop),
        Target::PostgresAt(url) => Ok(Running {
            database: Database::PostgreSql(url.clone()),
            access: Access::default(),
            name: "PostgreSQL".to_owned(),
            processes: Vec::new(),
            nodes: Vec::new(),
            members: Vec::new(),
            links: None,
            warnings: Vec::new(),
        }),
    }
}

fn attach(to: &ConnectionString) -> Result<Running> {
    let mut client = Client::connect(to)?;
    let name = name_of(&mut client)?;
    let mut nodes = to.hosts.clone();
    let hello = client.command("admin", &doc! { "hello": 1 })?;
    // Every member that holds data, not only those that the connection string names.
    if let Some(hosts) = hello.get("hosts").and_then(|hosts| hosts.as_array()).filter(|_| !to.direct) {
        nodes = hosts.values().filter_map(|host| host.as_str().map(str::to_owned)).collect();
    }
    // Of a sharded cluster only its routers are known: what is behind them may be out of reach from here.
    let routed = hello.get("msg").and_then(|text| text.as_str()) == Some("isdbgrid");
    let part = if routed { Part::Router } else { Part::Set };
    let member = |address: String, arbiter| Member { address, part, arbiter, data: None };
    let mut members: Vec<Member> = nodes.iter().map(|node| member(node.clone(), false)).collect();
    if let Some(arbiters) = hello.get("arbiters").and_then(|hosts| hosts.as_array()).filter(|_| !to.direct) {
        let arbiters = arbiters.values().filter_map(|host| host.as_str().map(str::to_owned));
        members.extend(arbiters.map(|address| member(address, true)));
    }
    Ok(Running {
        database: Database::MongoDb(ConnectionString { routed, ..to.clone() }),
        access: Access::of(to),
        name,
        processes: Vec::new(),
        nodes,
        members,
        links: None,
        warnings: Vec::new(),
    })
}

/// What the server calls itself: "sheaf 0.1.0", "mongod 8.2.1".
fn name_of(client: &mut Client) -> Result<String> {
    let info = client.command("admin", &doc! { "buildInfo": 1 })?;
    let text = |key: &str| info.get(key).and_then(|value| value.as_str()).unwrap_or("?");
    Ok(match text("gitVersion").strip_prefix("sheaf-") {
        Some(own) => format!("sheaf {own}"),
        None => format!("mongod {}", text("version")),
    })
}

/// Bytes that the files of a folder take on disk.
pub fn bytes_on_disk(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut all = 0;
    let mut folders = vec![folder.to_owned()];
    // Files come and go while the server runs: what is gone counts nothing.
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(meta) if meta.is_dir() => folders.push(entry.path()),
                Ok(meta) => all += meta.blocks() * 512,
                Err(_) => {}
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_by_their_text() {
        assert_eq!("sheaf".parse::<Target>().unwrap(), Target::Sheaf(None));
        assert_eq!("postgres".parse::<Target>().unwrap(), Target::Postgres);
        assert!(matches!("mongodb://h/".parse::<Target>().unwrap(), Target::Deployment(_)));
        let url = "postgresql://u:secret@h/db".parse::<Target>().unwrap();
        assert_eq!(url.to_string(), "postgresql://u@h/db");
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().display().to_string();
        assert!(text.parse::<Target>().unwrap_err().to_string().contains("nor a folder with a mongod"));
        std::fs::write(folder.path().join("mongod"), "").unwrap();
        assert_eq!(text.parse::<Target>().unwrap(), Target::Folder(folder.path().to_owned()));
        assert!("sheaf=/no/such".parse::<Target>().is_err());
        assert!("mongodb://".parse::<Target>().is_err());
    }
}
