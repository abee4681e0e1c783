//! `sheaf cluster up`.

use std::fs::{DirEntry, File, TryLockError};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use sheaf_bson::{doc, json};

use super::cli::UpArgs;
use super::control::{Control, check_path};
use super::process::Lasting;
use super::record::{LinksRecord, Member, Record, is_unfinished};
use super::secrets;
use super::secured::{Secured, USER};
use super::sharded::{self, Shape};
use super::{down, faults};
use crate::client::Connection;
use crate::error::{Error, Result};
use crate::experiment::{Centres, Distance, Time};
use crate::journal::Journal;
use crate::part::Part;
use crate::ports;
use crate::stop::Stop;
use crate::target::set::{State, wait_until_whole};
use crate::target::{configuration, quoted};

/// mongod's port.
const PORT: u16 = 27017;
/// How long a server may take to listen.
const START: Duration = Duration::from_secs(60);
/// How long a set may take to have a primary, and everybody following.
const FORMATION: Duration = Duration::from_secs(120);
/// What a member of a set says that is to be made one.
const ALREADY_INITIALIZED: i32 = 23;
/// Lines of a log that are shown when a server does not start.
const TAIL: usize = 12;

/// Starts a cluster, or what does not run of one that is there: it was kept, some of its servers have ended, or whoever started it
/// was killed meanwhile.
pub fn up(folder: &Path, name: &str, arguments: &UpArgs, journal: &Journal, stop: &Stop) -> Result<Record> {
    let _turn = turn(folder)?;
    let found = Record::find(folder)?;
    if let Some(record) = &found {
        record.settle();
    }
    let mut record = match found {
        Some(record) if record.is_up() => {
            return Err(Error::usage(format!(
                "the cluster in {} is up; `sheaf cluster down` ends it",
                folder.display()
            )));
        }
        Some(record) => again(record, arguments)?,
        None => plan(folder, name, arguments)?,
    };
    let before = record.running();
    let outcome = start_all(&mut record, arguments, journal, stop);
    if let Err(error) = outcome {
        // Nothing half-started stays; the data and the logs do, to see why. What ran before goes on.
        if before.is_empty() {
            down::end_all(&mut record, journal);
        } else {
            let started: Vec<usize> =
                record.running().into_iter().filter(|member| !before.contains(member)).collect();
            down::end(&mut record, &started, journal);
        }
        record.save()?;
        let kept = format!(
            "; logs and data are in {}, `sheaf cluster down --discard` removes them",
            folder.display()
        );
        return Err(match error {
            Error::Interrupted => Error::Interrupted,
            other => Error::failed(format!("{other}{kept}")),
        });
    }
    Ok(record)
}

/// Only one at a time starts a cluster. The folder, open and locked; the system unlocks it when the process ends, however it does.
fn turn(folder: &Path) -> Result<Option<File>> {
    let file = match File::open(folder) {
        Ok(file) => file,
        // It is about to be made, by whoever gets the ports.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::from(error).context(folder.display())),
    };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => {
            let text = "another `sheaf cluster up` is starting the cluster in";
            Err(Error::usage(format!("{text} {}", folder.display())))
        }
        Err(TryLockError::Error(error)) => Err(Error::from(error).context(folder.display())),
    }
}

/// A cluster that was kept, as it was.
fn again(mut record: Record, arguments: &UpArgs) -> Result<Record> {
    let is = Shape::of(&record);
    let differs = arguments.members.is_some_and(|members| members != is.members)
        || arguments.arbiters.is_some_and(|number| number != is.arbiters)
        || arguments.shards.is_some_and(|number| number != is.shards)
        || arguments.routers.is_some_and(|number| number != is.routers)
        || arguments.config_servers.is_some_and(|number| number != is.config_servers)
        || arguments.standalone && !record.standalone
        || arguments.config_shard && !record.config_shard
        || arguments.auth && record.secured.is_none()
        || arguments.tls && !record.secured.as_ref().is_some_and(|secured| secured.tls)
        || arguments.port.is_some_and(|port| port != 0 && port != record.members[0].port)
        || arguments.links && record.links.is_none()
        || distance(arguments)?.is_some_and(|distance| record.distance != Some(distance));
    if differs {
        return Err(Error::usage(format!(
            "the cluster that was kept in {} is another one ({is}, from port {}); \
             `sheaf cluster down --discard` removes it",
            record.folder.display(),
            record.members[0].port
        )));
    }
    record.keep |= arguments.keep;
    let running = record.running();
    for member in record.members.iter_mut().filter(|member| member.running().is_none()) {
        (member.process, member.paused) = (None, false);
    }
    if !arguments.set.is_empty() || arguments.oplog_size.is_some() || arguments.cache_size_gb.is_some() {
        if !running.is_empty() {
            return Err(Error::usage(format!(
                "members {} of the cluster in {} run without these flags; `sheaf cluster down --keep` ends them",
                listed(&running),
                record.folder.display()
            )));
        }
        record.flags = flags(arguments);
    }
    Ok(record)
}

fn listed(members: &[usize]) -> String {
    members.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

/// A new cluster.
fn plan(folder: &Path, name: &str, arguments: &UpArgs) -> Result<Record> {
    let strange =
        |entry: std::io::Result<DirEntry>| !entry.is_ok_and(|entry| is_unfinished(&entry.file_name()));
    if std::fs::read_dir(folder).is_ok_and(|mut entries| entries.any(strange)) {
        return Err(Error::usage(format!(
            "{} is not empty and holds no cluster; name another folder with --data",
            folder.display()
        )));
    }
    let servers = sharded::servers(arguments)?;
    let sharded = arguments.shards.is_some();
    if let Some(setting) = arguments.set.iter().find(|setting| !setting.contains('=')) {
        return Err(Error::usage(format!("--set {setting}: say name=value")));
    }
    let distance = distance(arguments)?;
    let linked = arguments.links || distance.is_some();
    if linked && sharded {
        return Err(Error::usage("--links: only the members of a single replica set can be linked so"));
    }
    if linked && servers.len() < 2 {
        return Err(Error::usage("--links: there are no links with less than two members"));
    }
    let ports = ports_from(arguments.port.unwrap_or(PORT), servers.len() as u32)?;
    let member = |((part, arbiter), port): (&(Part, bool), &u16)| Member {
        port: *port,
        part: *part,
        arbiter: *arbiter,
        process: None,
        paused: false,
        called: None,
    };
    let mut record = Record::new(folder.to_owned(), name, servers.iter().zip(&ports).map(member).collect());
    record.standalone = arguments.standalone;
    record.config_shard = arguments.config_shard;
    record.secured = arguments.auth.then_some(Secured { tls: arguments.tls, has_user: false });
    record.keep = arguments.keep;
    record.flags = flags(arguments);
    record.distance = distance;
    if linked {
        check_path(&record.socket())?;
        record.links = Some(LinksRecord { process: None, peers: Vec::new() });
    }
    Ok(record)
}

fn distance(arguments: &UpArgs) -> Result<Option<Distance>> {
    Ok(match (arguments.distance, arguments.between) {
        (same, Some(other)) => {
            let same = same.unwrap_or_else(Time::default);
            Some(Distance::Centres(Centres { centres: arguments.centres.clone(), same, other }))
        }
        (Some(same), None) => Some(Distance::Everywhere(same)),
        (None, None) => None,
    })
}

/// Flags that every server gets.
fn flags(arguments: &UpArgs) -> Vec<String> {
    let mut flags = Vec::new();
    if let Some(mb) = arguments.oplog_size {
        flags.extend(["--oplogSize".to_owned(), mb.to_string()]);
    }
    if let Some(gb) = arguments.cache_size_gb {
        flags.extend(["--cacheSizeGB".to_owned(), gb.to_string()]);
    }
    for setting in &arguments.set {
        flags.extend(["--setParameter".to_owned(), setting.clone()]);
    }
    flags
}

/// The ports of the members, which nobody must listen on.
fn ports_from(first: u16, count: u32) -> Result<Vec<u16>> {
    if first == 0 {
        return ports::free(count as usize);
    }
    let mut held = Vec::new();
    for number in 0..count {
        let port = u16::try_from(u32::from(first) + number)
            .map_err(|_| Error::usage(format!("--port {first}: there are not enough ports behind it")))?;
        let listener = TcpListener::bind(("127.0.0.1", port)).map_err(|error| {
            Error::usage(format!(
                "port {port} cannot be used ({error}); name another with --port, or 0 for free ones"
            ))
        })?;
        held.push(listener);
    }
    Ok(held.iter().map(|listener| listener.local_addr().map(|at| at.port())).collect::<Result<_, _>>()?)
}

fn start_all(record: &mut Record, arguments: &UpArgs, journal: &Journal, stop: &Stop) -> Result<()> {
    let folder = &record.folder;
    std::fs::create_dir_all(folder).map_err(|error| Error::from(error).context(folder.display()))?;
    // Before there is anything else, so that whoever comes knows what that is.
    record.save()?;
    if let Some(secured) = &record.secured {
        secrets::make(&record.folder, secured.tls)?;
    }
    for number in 0..record.members.len() {
        let data = record.data(number);
        if record.members[number].part.is_set() && !data.is_dir() {
            journal.note("shell", format!("mkdir -p {}", quoted(&data.to_string_lossy())));
            std::fs::create_dir_all(&data).map_err(|error| Error::from(error).context(data.display()))?;
        }
    }
    if !record.is_linked() && !record.running().is_empty() {
        // Links that begin anew have other ports, of which who runs does not know.
        down::end_all(record, journal);
    }
    let running = record.running();
    if !running.is_empty() {
        eprintln!("members {} run; the others are started", listed(&running));
        faults::resume(record, &[], journal)?;
    }
    start_links(record, journal)?;
    let servers: Vec<usize> =
        (0..record.members.len()).filter(|at| record.members[*at].part.is_set()).collect();
    let down: Vec<usize> = servers.iter().copied().filter(|at| !running.contains(at)).collect();
    start(record, &down, journal, stop)?;
    for number in running {
        if let Err(error) = wait_until_it_listens(record, number, stop) {
            if matches!(error, Error::Interrupted) || record.members[number].running().is_some() {
                return Err(error);
            }
            // Whoever started it was killed before it could tell it to go on, so that it was about to end.
            start(record, &[number], journal, stop)?;
        }
    }
    if !record.standalone {
        if !record.initiated {
            for part in record.parts().into_iter().filter(|part| part.is_set()) {
                initiate(record, part, journal)?;
            }
            record.initiated = true;
            record.save()?;
        }
        eprintln!("waiting for a primary, and for the others to follow");
    }
    // A large set has much to copy.
    let members = arguments.members.unwrap_or(0).max(servers.len() as u32);
    let patience = FORMATION + Duration::from_secs(u64::from(members));
    for part in record.parts().into_iter().filter(|part| part.is_set()) {
        let own = record.of_part(part);
        let states = || {
            let all = record.states();
            own.iter().map(|at| all[*at].clone()).collect()
        };
        wait_until_whole(patience, stop, states, |at| record.members[own[at]].address())
            .map_err(|error| with_log(record, error))?;
    }
    let first = if record.is_sharded() {
        sharded::add_routers(record, journal, stop)?;
        record.of_part(Part::Router)[0]
    } else {
        let leads = |state: &State| matches!(state, State::Primary(_));
        record.states().iter().position(leads).unwrap_or(0)
    };
    if record.secured.as_ref().is_some_and(|secured| !secured.has_user) {
        let text = format!(
            "db.getSiblingDB(\"admin\").createUser({{user: \"{USER}\", pwd: passwordPrompt(), roles: [\"root\"]}})"
        );
        journal.note("shell", record.shell(record.members[first].port, &text));
    }
    let first = record.members[first].address();
    record.make_user(&first)
}

/// Starts some servers, and waits until they answer.
pub fn start(record: &mut Record, servers: &[usize], journal: &Journal, stop: &Stop) -> Result<()> {
    for number in servers {
        start_member(record, *number, journal)?;
    }
    for number in servers {
        wait_until_it_listens(record, *number, stop)?;
    }
    Ok(())
}

fn with_log(record: &Record, error: Error) -> Error {
    let ended = (0..record.members.len()).find(|at| record.members[*at].running().is_none());
    match ended {
        Some(number) => Error::failed(format!("{error}\n{}", end_of_log(record, number))),
        None => error,
    }
}

fn end_of_log(record: &Record, number: usize) -> String {
    let text = std::fs::read(record.log(number)).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    let tail = lines[lines.len().saturating_sub(TAIL)..].join("\n  ");
    format!("member {number} has ended; the end of {}:\n  {tail}", record.log(number).display())
}

/// Starts the process that holds the links, if the cluster has such.
fn start_links(record: &mut Record, journal: &Journal) -> Result<()> {
    if record.is_linked() {
        return Ok(());
    }
    let socket = record.socket();
    let _ = std::fs::remove_file(&socket);
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["cluster", "links", "--socket"]).arg(&socket);
    for member in &record.members {
        command.args(["--member", &member.address()]);
    }
    let log = record.folder.join("links.log");
    Lasting::start(&command, &log, journal, |process| {
        record.links = Some(LinksRecord { process: Some(process), peers: Vec::new() });
        record.save()
    })?;
    let mut control = Control::wait(&socket)?;
    let all = record.members.len();
    let peers = (0..all).map(|member| control.ask(&format!("peers {member}"))).collect::<Result<_>>()?;
    if let Some(links) = &mut record.links {
        links.peers = peers;
    }
    if let Some(distance) = &record.distance {
        for (from, to) in (0..all).flat_map(|a| (0..all).map(move |b| (a, b))).filter(|(a, b)| a != b) {
            let half = Time(distance.round_trip(from, to) / 2);
            control.ask(&format!("delay {from} {to} {half}"))?;
        }
    }
    record.save()
}

/// Starts one server.
pub fn start_member(record: &mut Record, number: usize, journal: &Journal) -> Result<()> {
    let member = &record.members[number];
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(if member.part == Part::Router { "router" } else { "server" });
    command.args(["--port", &member.port.to_string(), "--bind_ip", "127.0.0.1", "--nounixsocket"]);
    if member.part == Part::Router {
        command.args(["--configdb", &sharded::set_address(record, Part::Config)]);
        // Of what a server keeps, a router has nothing.
        command.args(record.parameters());
    } else {
        command.arg("--dbpath").arg(record.data(number));
        command.args(member.part.flag());
        if let Some(set) = record.set_of(number) {
            command.args(["--replSet", &set]);
        }
        command.args(&record.flags);
    }
    if let Some(peers) = record.links.as_ref().and_then(|links| links.peers.get(number)) {
        command.args(["--setParameter", &format!("peerAddresses={peers}")]);
    }
    command.args(record.secured_flags());
    let log = record.log(number);
    Lasting::start(&command, &log, journal, |process| {
        let member = &mut record.members[number];
        (member.process, member.paused, member.called) = (Some(process), false, None);
        record.save()
    })
}

/// Waits until a server answers.
pub fn wait_until_it_listens(record: &Record, number: usize, stop: &Stop) -> Result<()> {
    let address = record.members[number].address();
    let mut to = record.direct(&address)?;
    to.socket_timeout = Duration::from_secs(5);
    let began = Instant::now();
    while !Connection::open(&address, &to).is_ok_and(|mut connection| connection.hello().is_ok()) {
        if record.members[number].running().is_none() {
            return Err(Error::failed(end_of_log(record, number)));
        }
        if began.elapsed() > START {
            return Err(Error::failed(format!("member {number} ({address}) does not answer")));
        }
        if stop.is_set() {
            return Err(Error::Interrupted);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Makes the servers of a part a replica set.
fn initiate(record: &Record, part: Part, journal: &Journal) -> Result<()> {
    let own = record.of_part(part);
    let hosts: Vec<(String, bool)> =
        own.iter().map(|at| (record.members[*at].address(), record.members[*at].arbiter)).collect();
    let name = record.set_of(own[0]).unwrap_or_default();
    let config = configuration(&name, &hosts, part, true);
    let text = json::to_json(config.as_raw(), json::Style::Relaxed);
    let port = record.members[own[0]].port;
    journal.note("shell", record.shell(port, &format!("rs.initiate({text})")));
    let first: SocketAddr = SocketAddr::from(([127, 0, 0, 1], port));
    let mut connection = Connection::open(&first.to_string(), &record.direct(&first.to_string())?)?;
    match connection.command("admin", &doc! { "replSetInitiate": config.as_raw() }) {
        // Whoever has done it was killed before it could be noted.
        Err(error) if error.code() == Some(ALREADY_INITIALIZED) => Ok(()),
        told => told.map(drop).map_err(|error| error.context("replSetInitiate")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: UpArgs,
    }

    fn arguments(line: &str) -> UpArgs {
        Line::parse_from(std::iter::once("up").chain(line.split_whitespace())).arguments
    }

    fn planned(line: &str) -> Result<Record> {
        let folder = tempfile::tempdir().unwrap();
        plan(folder.path(), "rs0", &arguments(&format!("--port 0 {line}")))
    }

    #[test]
    fn what_is_asked_for_is_planned() {
        let record = planned("--members 2 --arbiters 1 --set a=1 --oplogSize 64 --keep").unwrap();
        let arbiters: Vec<bool> = record.members.iter().map(|member| member.arbiter).collect();
        assert_eq!(arbiters, [false, false, true]);
        assert_eq!(record.flags, ["--oplogSize", "64", "--setParameter", "a=1"]);
        assert!(record.keep && !record.standalone && record.links.is_none());
        assert_eq!(planned("").unwrap().members.len(), 3);
        let single = planned("--standalone").unwrap();
        assert!(
            single.standalone
                && single.connection_string().unwrap().to_string().ends_with("?directConnection=true")
        );
        let sharded = planned("--shards 2 --members 2 --routers 2 --config-servers 1 --set a=1").unwrap();
        assert_eq!(Shape::of(&sharded).to_string(), "2 shards of 2 members, 2 routers, 1 config server");
        assert_eq!(sharded.members.len(), 7);
        let holding = planned("--shards 1 --config-shard").unwrap();
        assert_eq!(
            Shape::of(&holding).to_string(),
            "1 shard of 1 member, 1 router, 1 config server, a shard too"
        );
        assert!(again(sharded.clone(), &arguments("--shards 2 --config-shard")).is_err());
        assert_eq!(sharded.set_of(3).as_deref(), Some("shard0"));
        assert_eq!(
            sharded::set_address(&sharded, Part::Config),
            format!("config/{}", sharded.members[2].address())
        );
        let far = planned("--distance 0.86ms --centres 0,0,1 --between 71ms").unwrap();
        let trip = |a, b| far.distance.as_ref().unwrap().round_trip(a, b).as_micros();
        assert_eq!((trip(0, 1), trip(0, 2), trip(2, 1)), (860, 71_000, 71_000));
        assert!(far.links.is_some());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (line, why) in [
            ("--members 0", "at least one"),
            ("--members 51", "at most 50"),
            ("--members 9", "at most 7"),
            ("--members 6 --arbiters 2", "at most 7"),
            ("--shards 2 --members 9", "at most 7"),
            ("--shards 1 --config-servers 8", "at most 7"),
            ("--standalone --members 2", "single server"),
            ("--standalone --links", "no links"),
            ("--set a", "name=value"),
            ("--shards 0", "at least one shard"),
            ("--shards 2 --members 0", "at least one member"),
            ("--shards 2 --members 51", "at most 50"),
            ("--shards 2 --links", "single replica set"),
        ] {
            let error = planned(line).unwrap_err().to_string();
            assert!(error.contains(why), "{line}: {error}");
        }
        let folder = tempfile::tempdir().unwrap();
        let go = |line: &str| {
            let (journal, stop) = (Journal::silent(), Stop::default());
            up(folder.path(), "rs0", &arguments(line), &journal, &stop).unwrap_err().to_string()
        };
        let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let listener = TcpListener::bind(("127.0.0.1", taken)).unwrap();
        assert!(go(&format!("--members 1 --port {taken}")).contains("cannot be used"));
        drop(listener);
        std::fs::write(folder.path().join("something"), "").unwrap();
        assert!(go("--port 0").contains("is not empty"));
    }

    #[test]
    fn a_kept_cluster_is_started_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let record = plan(folder.path(), "rs0", &arguments("--members 2 --port 0 --distance 5ms")).unwrap();
        for line in ["", "--members 2", "--arbiters 0 --keep", "--distance 5ms", "--links"] {
            assert!(again(record.clone(), &arguments(line)).is_ok(), "{line}");
        }
        for line in ["--members 3", "--arbiters 1", "--standalone", "--port 1", "--distance 6ms"] {
            assert!(again(record.clone(), &arguments(line)).is_err(), "{line}");
        }
        assert!(again(record.clone(), &arguments("--shards 2")).is_err());
        let changed = again(record, &arguments("--set x=y")).unwrap();
        assert_eq!(changed.flags, ["--setParameter", "x=y"]);
    }
}
