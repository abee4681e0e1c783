//! Starting `mongod`, or what takes its flags.

use std::path::PathBuf;
use std::process::Command;

use sheaf_bson::{DocBuf, doc, json};

use super::process::free_port;
use super::{LaunchOptions, Member, Process, Running, name_of};
use crate::client::{Client, Connection, ConnectionString};
use crate::context::{Database, Stop};
use crate::error::{Error, Result};
use crate::experiment::{ServerOptions, Topology, Variation};
use crate::journal::Journal;

/// What is started.
pub(super) struct Program {
    pub binary: PathBuf,
    /// Arguments before the flags.
    pub arguments: Vec<String>,
}

/// Name of the replica set that is made.
const SET: &str = "lab";

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
    let mut processes = Vec::new();
    for number in 0..members.max(1) + arbiters {
        processes.push(start(program, &variation.server, set, number, options, journal)?);
    }
    for process in &mut processes {
        let to = ConnectionString::direct(&process.address);
        let address = process.address.clone();
        process.wait_until(stop, || {
            Connection::open(&address, &to).is_ok_and(|mut connection| connection.hello().is_ok())
        })?;
    }
    let nodes: Vec<String> = processes.iter().map(|process| process.address.clone()).collect();
    let mut to = ConnectionString::direct(&nodes[0]);
    if set.is_some() {
        initiate(&nodes, members as usize, journal)?;
        to.direct = false;
        to.replica_set = Some(SET.to_owned());
        to.hosts.clone_from(&nodes);
    }
    let mut client = Client::connect(&to)?;
    let name = name_of(&mut client)?;
    let member = |(at, process): (usize, &Process)| Member {
        address: process.address.clone(),
        arbiter: at >= members.max(1) as usize,
        data: Some(process.data.clone()),
    };
    let members = processes.iter().enumerate().map(member).collect();
    Ok(Running { database: Database::MongoDb(to), name, processes, nodes, members })
}

fn start(
    program: &Program,
    server: &ServerOptions,
    set: Option<&str>,
    number: u32,
    options: &LaunchOptions,
    journal: &Journal,
) -> Result<Process> {
    // A name of its own for each, also when several runs share the folder.
    let data = tempfile::Builder::new()
        .prefix(&format!("sheaf-lab-{number}-"))
        .tempdir_in(&options.data)
        .map_err(|error| Error::from(error).context(options.data.display()))?
        .keep();
    let port = free_port()?;
    let mut command = Command::new(&program.binary);
    command.args(&program.arguments).arg("--dbpath").arg(&data);
    command.args(["--port", &port.to_string(), "--bind_ip", "127.0.0.1", "--nounixsocket"]);
    // With the journal, which is the default: mongod knows --journal no more.
    if server.journal == Some(false) {
        command.arg("--nojournal");
    }
    if let Some(gb) = server.cache_gb {
        command.args(["--wiredTigerCacheSizeGB", &gb.to_string()]);
    }
    if let Some(mb) = server.oplog_mb {
        command.args(["--oplogSize", &mb.to_string()]);
    }
    if let Some(set) = set {
        command.args(["--replSet", set]);
    }
    for (name, value) in &server.parameters {
        let value = serde_yaml_ng::to_string(value).unwrap_or_default();
        command.args(["--setParameter", &format!("{name}={}", value.trim_end())]);
    }
    command.args(server.flags.iter().flatten());
    Process::start(command, format!("127.0.0.1:{port}"), data, options.keep, journal)
}

/// Makes the servers a replica set; the first of them becomes its primary, because its priority is higher.
fn initiate(nodes: &[String], members: usize, journal: &Journal) -> Result<()> {
    let config = DocBuf::build(|config| {
        config.append("_id", SET);
        let mut list = config.array("members");
        for (at, node) in nodes.iter().enumerate() {
            let mut member = list.document();
            member.append("_id", at as i32).append("host", node.as_str());
            match at {
                0 => drop(member.append("priority", 2)),
                at if at >= members => drop(member.append("arbiterOnly", true)),
                _ => {}
            }
        }
    });
    let command = doc! { "replSetInitiate": config.as_raw() };
    journal.note(
        &nodes[0],
        format!("use admin; db.runCommand({})", json::to_json(command.as_raw(), json::Style::Relaxed)),
    );
    let mut connection = Connection::open(&nodes[0], &ConnectionString::direct(&nodes[0]))?;
    match connection.command("admin", &command) {
        // AlreadyInitialized: a server may be a set of one from the beginning.
        Err(error) if error.code() != Some(23) => return Err(error.context("replSetInitiate")),
        _ => {}
    }
    // Servers that did not join are not what the experiment asks for, whatever they answer.
    let status = connection.hello()?;
    if status.hosts.len() != members {
        return Err(Error::failed(format!(
            "the servers do not form a replica set of {members}: the first knows {}",
            status.hosts.join(", ")
        )));
    }
    Ok(())
}
