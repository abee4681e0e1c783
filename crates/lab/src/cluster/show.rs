//! `sheaf cluster status`.

use serde::Serialize;

use super::control::Control;
use super::record::Record;
use crate::error::{Error, Result};
use crate::part::Part;
use crate::report::bytes;
use crate::target::bytes_on_disk;
use crate::target::set::State;

/// What is shown of a cluster.
#[derive(Serialize)]
struct Status {
    name: String,
    folder: String,
    #[serde(rename = "connectionString")]
    connection_string: String,
    members: Vec<MemberStatus>,
    /// Ways between members that are cut.
    cut: Vec<String>,
}

#[derive(Serialize)]
struct MemberStatus {
    number: usize,
    address: String,
    /// The replica set of a member of a sharded cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    set: Option<String>,
    state: &'static str,
    pid: Option<u32>,
    #[serde(rename = "diskBytes")]
    disk_bytes: u64,
}

fn word(state: &State) -> &'static str {
    match state {
        State::Primary(_) => "primary",
        State::Secondary => "secondary",
        State::Arbiter => "arbiter",
        State::Away => "not ready",
    }
}

fn look(record: &Record) -> Status {
    let states = record.states();
    let member = |(number, state): (usize, &State)| {
        let member = &record.members[number];
        let running = member.running();
        MemberStatus {
            number,
            address: member.address(),
            set: member.part.set_name(),
            state: match running {
                None => "down",
                Some(_) if member.paused => "paused",
                Some(_) if member.part == Part::Router && *state != State::Away => "router",
                Some(_) if record.standalone && *state != State::Away => "standalone",
                Some(_) => word(state),
            },
            pid: running.map(|process| process.pid),
            disk_bytes: bytes_on_disk(&record.data(number)),
        }
    };
    Status {
        name: record.name.clone(),
        folder: record.folder.display().to_string(),
        connection_string: record
            .connection_string()
            .map_or_else(|error| error.to_string(), |to| to.to_string()),
        members: states.iter().enumerate().map(member).collect(),
        cut: cut_ways(record),
    }
}

fn cut_ways(record: &Record) -> Vec<String> {
    let Some(mut control) = record.links.as_ref().and_then(|_| Control::connect(&record.socket()).ok())
    else {
        return Vec::new();
    };
    let all = record.members.len();
    let mut cut = Vec::new();
    for (from, to) in (0..all).flat_map(|a| (0..all).map(move |b| (a, b))).filter(|(a, b)| a != b) {
        match control.ask(&format!("get {from} {to}")) {
            Ok(state) if !state.starts_with("open") => {
                cut.push(format!("{from} -> {to}: {}", state.split(' ').next().unwrap_or("")));
            }
            Ok(_) => {}
            Err(_) => break,
        }
    }
    cut
}

/// Prints what every member is.
pub fn show(record: &Record, json: bool) -> Result<()> {
    let status = look(record);
    if json {
        let text = serde_json::to_string_pretty(&status).map_err(|error| Error::failed(error.to_string()))?;
        println!("{text}");
        return Ok(());
    }
    print!("{}", table(&status.members, record.is_sharded()));
    for way in &status.cut {
        println!("link {way}");
    }
    println!("{}", status.connection_string);
    Ok(())
}

/// A line for each member; of a sharded cluster it also tells the set.
fn table(members: &[MemberStatus], sharded: bool) -> String {
    let line = |[number, address, set, state, pid, disk]: [&str; 6]| {
        let set = if sharded { format!("{set:8}  ") } else { String::new() };
        format!("{number:6}  {address:21}  {set}{state:10}  {pid:>8}  {disk:>8}\n")
    };
    let mut text = line(["member", "address", "set", "state", "process", "on disk"]);
    for member in members {
        let pid = member.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        let (number, set, disk) = (
            member.number.to_string(),
            member.set.as_deref().unwrap_or("-"),
            if member.state == "router" { "-".to_owned() } else { bytes(member.disk_bytes) },
        );
        text += &line([&number, &member.address, set, member.state, &pid, &disk]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::process::Lasting;
    use crate::cluster::record::Member;
    use crate::target::fake::{self, FakeMember};

    #[test]
    fn everybody_is_shown_as_what_they_are() {
        let fakes = [FakeMember::start(fake::primary()), FakeMember::start(fake::secondary())];
        let process = Some(Lasting::of(std::process::id()));
        let member = |address: &str, process, paused| Member {
            port: address.rsplit_once(':').unwrap().1.parse().unwrap(),
            part: Part::Set,
            arbiter: false,
            process,
            paused,
            called: None,
        };
        let folder = tempfile::tempdir().unwrap();
        let members = vec![
            member(&fakes[0].address, process, false),
            member(&fakes[1].address, process, false),
            member("x:1", process, true),
            member("x:2", None, false),
            member("x:3", process, false),
        ];
        let status = look(&Record::new(folder.path().to_owned(), "rs0", members));
        let states: Vec<_> = status.members.iter().map(|member| member.state).collect();
        assert_eq!(states, ["primary", "secondary", "paused", "down", "not ready"]);
        assert!(status.members[3].pid.is_none() && status.cut.is_empty());
        assert!(status.connection_string.ends_with("/?replicaSet=rs0"));
        assert!(!table(&status.members, false).contains("set"));
    }
}
