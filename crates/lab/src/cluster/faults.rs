//! What can be done to the members of a cluster: kill, pause, resume, restart, cut, heal.

use rustix::process::Signal;

use super::control::{Control, word};
use super::links::Cut;
use super::record::{Member, Record};
use super::{down, up};
use crate::error::{Error, Result};
use crate::journal::Journal;
use crate::stop::Stop;

/// The numbers of members by what a person calls them, all looked up before anything is done.
fn numbers(record: &Record, members: &[String]) -> Result<Vec<usize>> {
    members.iter().map(|text| record.member(text)).collect()
}

/// The same of members that something was done to, after which the names of those that run may be others'.
fn numbers_of_gone(
    record: &Record,
    members: &[String],
    is_gone: impl Fn(&Member) -> bool + Copy,
) -> Result<Vec<usize>> {
    let mut found = Vec::new();
    for text in members {
        let meant = record.gone(text, is_gone)?;
        found.extend(meant.into_iter().filter(|at| !found.contains(at)).collect::<Vec<_>>());
    }
    Ok(found)
}

/// Kills members at once.
pub fn kill(record: &mut Record, members: &[String], journal: &Journal) -> Result<()> {
    for (number, name) in numbers(record, members)?.into_iter().zip(members) {
        let Some(process) = record.members[number].running() else {
            return Err(Error::usage(format!("member {number} is not running")));
        };
        process.signal(Signal::KILL, journal);
        process.ends_within(std::time::Duration::from_secs(10));
        let member = &mut record.members[number];
        (member.process, member.paused, member.called) = (None, false, Some(name.clone()));
        record.save()?;
    }
    Ok(())
}

/// Stops members until they are resumed.
pub fn pause(record: &mut Record, members: &[String], journal: &Journal) -> Result<()> {
    for (number, name) in numbers(record, members)?.into_iter().zip(members) {
        let Some(process) = record.members[number].running() else {
            return Err(Error::usage(format!("member {number} is not running")));
        };
        process.signal(Signal::STOP, journal);
        (record.members[number].paused, record.members[number].called) = (true, Some(name.clone()));
        record.save()?;
    }
    Ok(())
}

/// Lets paused members go on.
pub fn resume(record: &mut Record, members: &[String], journal: &Journal) -> Result<()> {
    let named = numbers_of_gone(record, members, |member| member.paused)?;
    let paused = |number: &usize| record.members[*number].paused;
    if let Some(number) = named.iter().find(|number| !paused(number)) {
        return Err(Error::usage(format!("member {number} is not paused")));
    }
    let chosen: Vec<usize> =
        if named.is_empty() { (0..record.members.len()).filter(paused).collect() } else { named };
    for number in chosen {
        if let Some(process) = record.members[number].running() {
            process.signal(Signal::CONT, journal);
        }
        (record.members[number].paused, record.members[number].called) = (false, None);
        record.save()?;
    }
    Ok(())
}

/// Starts members again, and ends them first where they run: one after another, so that an upgrade can be done so.
pub fn restart(record: &mut Record, members: &[String], journal: &Journal, stop: &Stop) -> Result<()> {
    for number in numbers_of_gone(record, members, |member| member.paused || member.running().is_none())? {
        down::end(record, &[number], journal);
        record.save()?;
        up::start_member(record, number, journal)?;
        up::wait_until_it_listens(record, number, stop)?;
    }
    Ok(())
}

fn control(record: &Record) -> Result<Control> {
    let Some(links) = &record.links else {
        return Err(Error::usage(
            "the members talk to each other directly; only a cluster that was started with --links can be cut",
        ));
    };
    if !links.process.is_some_and(|process| process.runs()) {
        return Err(Error::failed(
            "the process that holds the links has ended; `sheaf cluster down --keep` and `up` start it again",
        ));
    }
    Control::connect(&record.socket())
}

/// The ways between one member and another, or all others; in both directions unless it is to be one.
fn ways(members: usize, one: usize, other: Option<usize>, one_way: bool) -> Vec<(usize, usize)> {
    let others = (0..members).filter(|at| *at != one && other.is_none_or(|other| other == *at));
    let both = |other: usize| [(one, other), (other, one)];
    others.flat_map(|other| both(other).into_iter().take(if one_way { 1 } else { 2 })).collect()
}

/// Cuts a member off from the others, or from one.
pub fn cut(record: &Record, member: &str, other: Option<&str>, refuse: bool, one_way: bool) -> Result<()> {
    let mut control = control(record)?;
    let one = record.member(member)?;
    let other = other.map(|other| record.member(other)).transpose()?;
    if other == Some(one) {
        return Err(Error::usage("there is no link from a member to itself"));
    }
    let state = word(if refuse { Cut::Refused } else { Cut::Silent });
    for (from, to) in ways(record.members.len(), one, other, one_way) {
        control.ask(&format!("set {from} {to} {state}"))?;
        eprintln!("link {from} -> {to}: {state}");
    }
    Ok(())
}

/// Lets everything through again, or what is sent to and by one member.
pub fn heal(record: &Record, member: Option<&str>) -> Result<()> {
    let mut control = control(record)?;
    let one = member.map(|member| record.member(member)).transpose()?;
    let all = record.members.len();
    for (from, to) in (0..all).flat_map(|a| (0..all).map(move |b| (a, b))).filter(|(a, b)| a != b) {
        let concerns = one.is_none_or(|one| from == one || to == one);
        if concerns && !control.ask(&format!("get {from} {to}"))?.starts_with("open") {
            control.ask(&format!("set {from} {to} open"))?;
            eprintln!("link {from} -> {to}: open");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::process::Lasting;
    use crate::part::Part;

    #[test]
    fn ways_of_a_cut() {
        assert_eq!(ways(3, 1, None, false), [(1, 0), (0, 1), (1, 2), (2, 1)]);
        assert_eq!(ways(3, 1, Some(2), false), [(1, 2), (2, 1)]);
        assert_eq!(ways(3, 1, Some(2), true), [(1, 2)]);
        assert_eq!(ways(3, 0, None, true), [(0, 1), (0, 2)]);
    }

    #[test]
    fn members_are_killed_paused_and_resumed() {
        let (folder, journal) = (tempfile::tempdir().unwrap(), Journal::silent());
        let mut members = Vec::new();
        for port in [1, 2] {
            let mut command = std::process::Command::new("sleep");
            command.arg("1000");
            let process = Lasting::start_at_once(command, &folder.path().join("log"));
            members.push(Member {
                port,
                part: Part::Set,
                arbiter: false,
                process: Some(process),
                paused: false,
                called: None,
            });
        }
        let mut record = Record::new(folder.path().to_owned(), "rs0", members);
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        pause(&mut record, &names(&["0"]), &journal).unwrap();
        assert!(Record::open(folder.path()).unwrap().members[0].paused);
        assert!(
            resume(&mut record, &names(&["1"]), &journal).unwrap_err().to_string().contains("not paused")
        );
        resume(&mut record, &[], &journal).unwrap();
        assert!(!record.members[0].paused);
        kill(&mut record, &names(&["1"]), &journal).unwrap();
        assert!(record.members[1].running().is_none());
        assert!(kill(&mut record, &names(&["1"]), &journal).unwrap_err().to_string().contains("not running"));
        assert!(cut(&record, "0", None, false, false).unwrap_err().to_string().contains("--links"));
        pause(&mut record, &names(&["0"]), &journal).unwrap();
        down::down(&mut record, false, &journal).unwrap();
        assert!(record.members[0].running().is_none());
        let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "what is not the cluster's stays");
    }
}
