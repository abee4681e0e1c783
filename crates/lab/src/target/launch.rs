//! Starting `mongod`, or what takes its flags.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use sheaf_bson::{DocBuf, doc, json};

use super::{LaunchOptions, Member, Process, Running, name_of};
use crate::client::{Client, Connection, ConnectionString};
use crate::cluster::Links;
use crate::database::Database;
use crate::error::{Error, Result};
use crate::experiment::{ServerOptions, Topology, Variation};
use crate::journal::Journal;
use crate::ports;
use crate::stop::Stop;

/// What is started.
pub(super) struct Program {
    pub binary: PathBuf,
    /// Arguments before the flags.
    pub arguments: Vec<String>,
    /// Whether its members can be told to use links.
    pub takes_links: bool,
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
    let Topology { members, arbiters, shards, .. } = variation.topology;
    if shards.is_some_and(|shards| shards > 0) {
        return Err(Error::usage("topology.shards: starting sharded clusters is not supported"));
    }
    let (members, arbiters) = (members.unwrap_or(0), arbiters.unwrap_or(0));
    if members == 0 && arbiters > 0 {
        return Err(Error::usage("topology.arbiters: arbiters without members make no replica set"));
    }
    let set = (members > 0).then_some(SET);
    let holding = members.max(1) as usize;
    let addresses = free_addresses(holding + arbiters as usize)?;
    let links = links(program, variation, &addresses)?;
    let mut processes = Vec::new();
    for (number, address) in addresses.iter().enumerate() {
        let peers = links.as_ref().map(|links| links.peer_addresses(number));
        let place = Place { set, number, address: *address, peers };
        processes.push(start(program, &variation.server, &place, options, journal)?);
    }
    for process in &processes {
        let to = ConnectionString::direct(&process.address);
        process.wait_until(stop, || {
            Connection::open(&process.address, &to).is_ok_and(|mut connection| connection.hello().is_ok())
        })?;
    }
    let member = |(at, process): (usize, &Process)| Member {
        address: process.address.clone(),
        arbiter: at >= holding,
        data: Some(process.data.clone()),
    };
    let members: Vec<Member> = processes.iter().enumerate().map(member).collect();
    let nodes: Vec<String> = processes.iter().map(|process| process.address.clone()).collect();
    let to = ConnectionString::direct(&nodes[0]);
    let mut running = Running {
        database: Database::MongoDb(to.clone()),
        name: String::new(),
        processes,
        nodes,
        members,
        links,
    };
    let to = match set {
        None => to,
        Some(set) => {
            // In a set, that a majority need not have it in its journal is said by the configuration.
            initiate(set, &running.members, variation.server.journal != Some(false), journal)?;
            let formed = running.wait_until_whole(FORMATION, stop);
            formed.map_err(|error| with_logs(error, &running.processes))?;
            let hosts = running.members.iter().filter(|m| !m.arbiter).map(|m| m.address.clone()).collect();
            ConnectionString { hosts, direct: false, replica_set: Some(set.to_owned()), ..to }
        }
    };
    running.name = name_of(&mut Client::connect(&to)?)?;
    running.database = Database::MongoDb(to);
    Ok(running)
}

fn with_logs(error: Error, processes: &[Process]) -> Error {
    let Some(ended) = processes.iter().find(|process| process.has_ended_by_itself()) else { return error };
    Error::failed(format!(
        "{error}. {} has ended; the end of its log:\n  {}",
        ended.address,
        ended.end_of_log()
    ))
}

/// Addresses that nobody listens on, all different.
fn free_addresses(count: usize) -> Result<Vec<SocketAddr>> {
    Ok(ports::free(count)?.into_iter().map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect())
}

/// The links that the topology or a fault asks for, with their delays.
fn links(program: &Program, variation: &Variation, addresses: &[SocketAddr]) -> Result<Option<Links>> {
    let Topology { links, distance, .. } = &variation.topology;
    let faults = variation.fault_plan(1.0, 1)?;
    let wanted = links.unwrap_or(distance.is_some() || faults.needs_links());
    if !wanted {
        return match distance.is_some() || faults.needs_links() {
            true => Err(Error::usage("topology.links: distances, cut and split need the links")),
            false => Ok(None),
        };
    }
    if !program.takes_links {
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
                started.set_delay(from, to, distance.round_trip(from, to) / 2)?;
            }
        }
    }
    Ok(Some(started))
}

/// Where one server belongs.
struct Place<'a> {
    set: Option<&'a str>,
    number: usize,
    address: SocketAddr,
    peers: Option<String>,
}

fn start(
    program: &Program,
    server: &ServerOptions,
    place: &Place<'_>,
    options: &LaunchOptions,
    journal: &Journal,
) -> Result<Process> {
    // A name of its own for each, also when several runs share the folder.
    let data = tempfile::Builder::new()
        .prefix(&format!("sheaf-lab-{}-", place.number))
        .tempdir_in(&options.data)
        .map_err(|error| Error::from(error).context(options.data.display()))?
        .keep();
    let port = place.address.port();
    let mut command = Command::new(&program.binary);
    command.args(&program.arguments).arg("--dbpath").arg(&data);
    command.args(["--port", &port.to_string(), "--bind_ip", "127.0.0.1", "--nounixsocket"]);
    // With the journal, which is the default: mongod knows --journal no more. A member of a set always has one.
    if server.journal == Some(false) && place.set.is_none() {
        command.arg("--nojournal");
    }
    if let Some(gb) = server.cache_gb {
        command.args(["--wiredTigerCacheSizeGB", &gb.to_string()]);
    }
    if let Some(mb) = server.oplog_mb {
        command.args(["--oplogSize", &mb.to_string()]);
    }
    if let Some(set) = place.set {
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
    Process::start(command, place.address.to_string(), data, options.keep, journal)
}

/// The configuration of a new set.
pub(crate) fn configuration(set: &str, members: &[(String, bool)], journaled: bool) -> DocBuf {
    DocBuf::build(|config| {
        config.append("_id", set);
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
fn initiate(set: &str, members: &[Member], journaled: bool, journal: &Journal) -> Result<()> {
    let hosts: Vec<(String, bool)> = members.iter().map(|m| (m.address.clone(), m.arbiter)).collect();
    let command = doc! { "replSetInitiate": configuration(set, &hosts, journaled).as_raw() };
    let first = &members[0].address;
    let text = json::to_json(command.as_raw(), json::Style::Relaxed);
    journal.note(first, format!("use admin; db.runCommand({text})"));
    let mut connection = Connection::open(first, &ConnectionString::direct(first))?;
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
