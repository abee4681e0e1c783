//! Starting `mongod`, or what takes its flags.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use sheaf_bson::{DocBuf, doc, json};

use super::{Access, LaunchOptions, Member, MemoryGroup, Process, Running, name_of};
use crate::client::{Client, Connection, ConnectionString};
use crate::cluster::Links;
use crate::database::Database;
use crate::error::{Error, Result};
use crate::experiment::{ServerOptions, Topology, Variation};
use crate::journal::Journal;
use crate::part::{Part, Sharded};
use crate::ports;
use crate::stop::Stop;

/// What is started.
pub(super) struct Program {
    /// Of a server: the file, and arguments before the flags.
    pub server: (PathBuf, Vec<String>),
    /// Of a router.
    pub router: (PathBuf, Vec<String>),
    /// Whether it is Sheaf, which does with smaller caches than mongod, and whose members can be told to use links.
    pub is_sheaf: bool,
}

/// Name of the replica set that is made.
const SET: &str = "lab";
/// How long a new set may take to elect its first primary and to have everybody follow.
const FORMATION: Duration = Duration::from_secs(60);

pub(super) fn bring_up(
    program: &Program,
    variation: &Variation,
    options: &LaunchOptions,
    journal: &Journal,
    stop: &Stop,
) -> Result<Running> {
    let servers = servers(&variation.topology)?;
    let addresses = free_addresses(servers.len())?;
    let links = links(program, variation, &servers, &addresses)?;
    let mut running = Running {
        database: Database::MongoDb(ConnectionString::direct("")),
        access: Access::make(variation.server.secured, &options.data)?,
        name: String::new(),
        processes: Vec::new(),
        nodes: Vec::new(),
        members: Vec::new(),
        links,
        warnings: Vec::new(),
    };
    let sharded = servers.iter().any(|(part, _)| *part == Part::Router);
    let set = if variation.topology.members.unwrap_or(0) > 0 || sharded { Some(SET) } else { None };
    // Routers come last: they need the config servers.
    let (members, routers): (Vec<usize>, Vec<usize>) =
        (0..servers.len()).partition(|at| servers[*at].0 != Part::Router);
    let launch = Launch { program, server: &variation.server, options, journal, stop, set };
    launch.start(&mut running, &servers, &addresses, &members)?;
    if set.is_some() {
        let journaled = variation.server.journal != Some(false);
        launch.form(&running, journaled).map_err(|error| with_logs(error, &running.processes))?;
    }
    if sharded {
        launch.start(&mut running, &servers, &addresses, &routers)?;
        let config_shard = variation.topology.config_shard == Some(true);
        launch.add_shards(&running, config_shard).map_err(|error| with_logs(error, &running.processes))?;
    }
    let first = if sharded { Part::Router } else { servers[0].0 };
    let at = |wanted: bool| running.members.iter().filter(move |member| (member.part == first) == wanted);
    running.nodes = at(true).chain(at(false)).map(|member| member.address.clone()).collect();
    let hosts: Vec<String> = at(true).filter(|member| !member.arbiter).map(|m| m.address.clone()).collect();
    let to = ConnectionString {
        direct: set.is_none(),
        routed: sharded,
        replica_set: set.filter(|_| !sharded).map(str::to_owned),
        hosts,
        ..running.access.direct("")
    };
    running.name = name_of(&mut Client::connect(&to)?)?;
    running.database = Database::MongoDb(to);
    Ok(running)
}

/// The servers of a topology, and which of them are arbiters; routers last.
fn servers(topology: &Topology) -> Result<Vec<(Part, bool)>> {
    let Topology { members, arbiters, shards, routers, config_servers, config_shard, .. } = *topology;
    match shards.filter(|shards| *shards > 0) {
        Some(shards) => {
            let sharded = Sharded::new(shards, members.filter(|n| *n > 0), arbiters, routers, config_servers);
            if let Some(problem) = sharded.problem() {
                return Err(Error::usage(format!("topology: {problem}")));
            }
            let (routers, sets): (Vec<_>, Vec<_>) =
                sharded.servers().into_iter().partition(|(part, _)| *part == Part::Router);
            Ok(sets.into_iter().chain(routers).collect())
        }
        None if routers.or(config_servers).is_some() || config_shard == Some(true) => Err(Error::usage(
            "topology: routers and config servers are those of a sharded cluster: say shards",
        )),
        None => {
            let (members, arbiters) = (members.unwrap_or(0), arbiters.unwrap_or(0));
            if members == 0 && arbiters > 0 {
                return Err(Error::usage("topology.arbiters: arbiters without members make no replica set"));
            }
            let holding = members.max(1);
            Ok((0..holding + arbiters).map(|at| (Part::Set, at >= holding)).collect())
        }
    }
}

/// What starting servers takes.
struct Launch<'a> {
    program: &'a Program,
    server: &'a ServerOptions,
    options: &'a LaunchOptions,
    journal: &'a Journal,
    stop: &'a Stop,
    /// The name of the replica set that is not part of a sharded cluster.
    set: Option<&'a str>,
}

impl Launch<'_> {
    /// Starts some of the servers, and waits until they answer.
    fn start(
        &self,
        running: &mut Running,
        servers: &[(Part, bool)],
        addresses: &[SocketAddr],
        which: &[usize],
    ) -> Result<()> {
        let config = set_address(running, Part::Config);
        for number in which {
            let (part, arbiter) = servers[*number];
            let peers =
                running.links.as_ref().filter(|_| part.is_set()).map(|links| links.peer_addresses(*number));
            let set = if part == Part::Set { self.set.map(str::to_owned) } else { part.set_name() };
            let place =
                Place { part, set, config: &config, number: *number, address: addresses[*number], peers };
            let process = start(self, &running.access, &place, &mut running.warnings)?;
            let data = part.is_set().then(|| process.data.clone());
            running.members.push(Member { address: process.address.clone(), part, arbiter, data });
            running.processes.push(process);
        }
        for number in which {
            let process = &running.processes[*number];
            let to = running.access.direct(&process.address);
            process.wait_until(self.stop, || {
                Connection::open(&process.address, &to).is_ok_and(|mut connection| connection.hello().is_ok())
            })?;
        }
        Ok(())
    }

    /// Makes sets of the servers. In a set, that a majority need not have it in its journal is said by the configuration.
    fn form(&self, running: &Running, journaled: bool) -> Result<()> {
        let of = |part: Part| part.set_name().or_else(|| self.set.map(str::to_owned)).unwrap_or_default();
        for part in running.parts() {
            let members: Vec<Member> =
                running.of_part(part).iter().map(|at| running.members[*at].clone()).collect();
            initiate(&of(part), &running.access, &members, part, journaled, self.journal)?;
        }
        running.parts().into_iter().try_for_each(|part| running.wait_for_part(part, FORMATION, self.stop))
    }

    /// Tells the routers of the shards, of which the config servers may be one.
    fn add_shards(&self, running: &Running, config_shard: bool) -> Result<()> {
        let routers = running.of_part(Part::Router);
        let Some(first) = routers.first().map(|at| running.members[*at].address.clone()) else {
            return Ok(());
        };
        let mut router = Connection::open(&first, &running.access.direct(&first))?;
        let shards = running.parts().into_iter().filter(|part| matches!(part, Part::Shard(_)));
        let mut commands: Vec<DocBuf> =
            shards.map(|part| doc! { "addShard": set_address(running, part).as_str() }).collect();
        if config_shard {
            commands.push(doc! { "transitionFromDedicatedConfigServer": 1 });
        }
        for command in commands {
            let text = json::to_json(command.as_raw(), json::Style::Relaxed);
            self.journal.note(&first, format!("use admin; db.runCommand({text})"));
            router.command("admin", &command).map_err(|error| error.context(&text))?;
        }
        Ok(())
    }
}

/// `shard0/host:port,host:port`: how a part is named to routers.
fn set_address(running: &Running, part: Part) -> String {
    let hosts: Vec<&str> = running
        .of_part(part)
        .into_iter()
        .map(|at| &running.members[at])
        .filter(|member| !member.arbiter)
        .map(|member| member.address.as_str())
        .collect();
    format!("{}/{}", part.set_name().unwrap_or_default(), hosts.join(","))
}

fn with_logs(error: Error, processes: &[Process]) -> Error {
    let Some(ended) = processes.iter().find(|process| process.has_ended_by_itself()) else { return error };
    Error::failed(format!(
        "{error}. {} has ended with {}; the end of its log:\n  {}",
        ended.address,
        ended.how_it_ended(),
        ended.end_of_log()
    ))
}

/// Addresses that nobody listens on, all different.
fn free_addresses(count: usize) -> Result<Vec<SocketAddr>> {
    Ok(ports::free(count)?.into_iter().map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect())
}

/// The links that the topology or a fault asks for, with their delays.
fn links(
    program: &Program,
    variation: &Variation,
    servers: &[(Part, bool)],
    addresses: &[SocketAddr],
) -> Result<Option<Links>> {
    let Topology { links, distance, .. } = &variation.topology;
    let faults = variation.fault_plan(1.0, 1)?;
    let wanted = links.unwrap_or(distance.is_some() || faults.needs_links());
    if !wanted {
        return match distance.is_some() || faults.needs_links() {
            true => Err(Error::usage("topology.links: distances, cut and split need the links")),
            false => Ok(None),
        };
    }
    if !program.is_sheaf {
        return Err(Error::usage(
            "distances, cut and split need links between the members, which only Sheaf's members can be told to use",
        ));
    }
    if addresses.len() < 2 {
        return Err(Error::usage("topology.links: there are no links with less than two members"));
    }
    let started = Links::start(addresses)?;
    if let Some(distance) = distance {
        for (from, to) in (0..addresses.len()).flat_map(|a| (0..addresses.len()).map(move |b| (a, b))) {
            if from != to {
                // By the place of each in its own set.
                let place =
                    |at: usize| at - servers.iter().take_while(|(part, _)| *part != servers[at].0).count();
                started.set_delay(from, to, distance.round_trip(place(from), place(to)) / 2)?;
            }
        }
    }
    Ok(Some(started))
}

/// Where one server belongs.
struct Place<'a> {
    part: Part,
    /// Its replica set.
    set: Option<String>,
    /// The config servers, for a router.
    config: &'a str,
    number: usize,
    address: SocketAddr,
    peers: Option<String>,
}

fn start(
    launch: &Launch<'_>,
    access: &Access,
    place: &Place<'_>,
    warnings: &mut Vec<String>,
) -> Result<Process> {
    let Launch { program, server, options, journal, .. } = launch;
    // A name of its own for each, also when several runs share the folder.
    let data = tempfile::Builder::new()
        .prefix(&format!("sheaf-lab-{}-", place.number))
        .tempdir_in(&options.data)
        .map_err(|error| Error::from(error).context(options.data.display()))?
        .keep();
    let port = place.address.port();
    let (binary, arguments) = if place.part == Part::Router { &program.router } else { &program.server };
    let mut command = Command::new(binary);
    command.args(arguments);
    command.args(["--port", &port.to_string(), "--bind_ip", "127.0.0.1", "--nounixsocket"]);
    command.args(&access.flags);
    if place.part == Part::Router {
        // What the experiment says of servers is about those that keep data.
        command.args(["--configdb", place.config]);
        return Process::start(command, place.address.to_string(), data, options.keep, journal);
    }
    command.arg("--dbpath").arg(&data).args(place.part.flag());
    // With the journal, which is the default: mongod knows --journal no more. A member of a set always has one.
    if server.journal == Some(false) && place.set.is_none() {
        command.arg("--nojournal");
    }
    let memory = server.memory_bytes(options.scale);
    let cache_gb = server.cache_gb.or(memory.map(cache_gb));
    if let Some(gb) = cache_gb {
        let flag = if program.is_sheaf { "--cacheSizeGB" } else { "--wiredTigerCacheSizeGB" };
        command.args([flag, &gb.to_string()]);
    }
    if let Some(mb) = server.oplog_mb {
        command.args(["--oplogSize", &mb.to_string()]);
    }
    if let Some(set) = &place.set {
        command.args(["--replSet", set]);
    }
    if let Some(peers) = &place.peers {
        command.args(["--setParameter", &format!("peerAddresses={peers}")]);
    }
    for (name, value) in &server.parameters {
        let value = serde_yaml_ng::to_string(value).unwrap_or_default();
        command.args(["--setParameter", &format!("{name}={}", value.trim_end())]);
    }
    command.args(server.flags.iter().flatten());
    let group = memory.and_then(|bytes| group(bytes, journal, warnings));
    Process::start_in(group, command, place.address.to_string(), data, options.keep, journal)
}

/// The cache of a server whose memory is limited: a quarter of it, as Sheaf takes by itself.
fn cache_gb(memory: u64) -> f64 {
    let quarter = memory as f64 / 4.0 / f64::from(1 << 30);
    (quarter * 1e4).round() / 1e4
}

/// A group with this limit; where none can be made, the cache's size is all that is limited, and the run says so.
fn group(bytes: u64, journal: &Journal, warnings: &mut Vec<String>) -> Option<MemoryGroup> {
    match MemoryGroup::make(bytes) {
        Ok(group) => {
            journal.note("shell", group.shell_text());
            Some(group)
        }
        Err(why) => {
            warnings.push(format!(
                "no control group could be made to limit the server's memory to {} MB ({why}): only its cache is limited, \
                 and the page cache holds what it likes",
                bytes >> 20
            ));
            None
        }
    }
}

/// The configuration of a new set.
pub(crate) fn configuration(set: &str, members: &[(String, bool)], part: Part, journaled: bool) -> DocBuf {
    DocBuf::build(|config| {
        config.append("_id", set);
        if part == Part::Config {
            config.append("configsvr", true);
        }
        if !journaled {
            config.append("writeConcernMajorityJournalDefault", false);
        }
        let mut list = config.array("members");
        for (at, (host, arbiter)) in members.iter().enumerate() {
            let mut member = list.document();
            member.append("_id", at as i32).append("host", host.as_str());
            if *arbiter {
                member.append("arbiterOnly", true);
            }
        }
    })
}

/// Makes the servers a replica set.
fn initiate(
    set: &str,
    access: &Access,
    members: &[Member],
    part: Part,
    journaled: bool,
    journal: &Journal,
) -> Result<()> {
    let hosts: Vec<(String, bool)> = members.iter().map(|m| (m.address.clone(), m.arbiter)).collect();
    let command = doc! { "replSetInitiate": configuration(set, &hosts, part, journaled).as_raw() };
    let first = &members[0].address;
    let text = json::to_json(command.as_raw(), json::Style::Relaxed);
    journal.note(first, format!("use admin; db.runCommand({text})"));
    let mut connection = Connection::open(first, &access.direct(first))?;
    match connection.command("admin", &command) {
        // AlreadyInitialized: a server may be a set of one from the beginning.
        Err(error) if error.code() != Some(23) => return Err(error.context("replSetInitiate")),
        _ => {}
    }
    // Servers that did not join are not what the experiment asks for, whatever they answer.
    let status = connection.hello()?;
    let expected = members.iter().filter(|member| !member.arbiter).count();
    if status.hosts.len() != expected {
        return Err(Error::failed(format!(
            "the servers do not form a replica set of {expected}: the first knows {}",
            status.hosts.join(", ")
        )));
    }
    Ok(())
}
