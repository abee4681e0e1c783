//! `sheaf cluster down`.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use super::control::Control;
use super::process::Lasting;
use super::record::Record;
use crate::error::{Error, Result};
use crate::journal::Journal;
use crate::part::Part;
use crate::target::quoted;
use crate::target::set::{State, primary_of};

/// How long servers may take to shut down before they are killed.
const GRACE: Duration = Duration::from_secs(30);

/// Ends all processes, and keeps the data or throws it away.
pub fn down(record: &mut Record, keep: bool, journal: &Journal) -> Result<()> {
    end_all(record, journal);
    if keep {
        eprintln!("the data is kept in {}; `sheaf cluster up` starts it again", record.folder.display());
        return record.save();
    }
    discard(record, journal)
}

/// Ends all processes: routers first, then the shards and after them the config servers, in each of them the primary
/// last, so that nobody is elected meanwhile.
pub fn end_all(record: &mut Record, journal: &Journal) {
    let states = record.states();
    let primaries: Vec<usize> = record
        .parts()
        .into_iter()
        .filter_map(|part| {
            let of_part = record.of_part(part);
            let own: Vec<State> = of_part.iter().map(|at| states[*at].clone()).collect();
            primary_of(&own).map(|at| of_part[at])
        })
        .collect();
    let routers = record.of_part(Part::Router);
    end(record, &routers, journal);
    let data: Vec<usize> =
        (0..record.members.len()).filter(|at| record.members[*at].part.holds_data()).collect();
    for servers in [data, record.of_part(Part::Config)] {
        let (last, first): (Vec<usize>, Vec<usize>) =
            servers.into_iter().partition(|at| primaries.contains(at));
        end(record, &first, journal);
        end(record, &last, journal);
    }
    end_links(record, journal);
}

/// Ends some members in order (SIGTERM), and where that does not help, at once.
pub fn end(record: &mut Record, members: &[usize], journal: &Journal) {
    let running: Vec<Lasting> = members.iter().filter_map(|at| record.members[*at].running()).collect();
    for process in &running {
        process.signal(Signal::TERM, journal);
    }
    for at in members {
        // A stopped process hears of it when it goes on.
        if let Some(process) = record.members[*at].running().filter(|_| record.members[*at].paused) {
            process.signal(Signal::CONT, journal);
        }
        record.members[*at].paused = false;
    }
    for process in &running {
        if !process.ends_within(GRACE) {
            process.signal(Signal::KILL, journal);
            process.ends_within(GRACE);
        }
    }
    for at in members {
        record.members[*at].process = None;
    }
}

fn end_links(record: &mut Record, journal: &Journal) {
    let socket = record.socket();
    let Some(links) = &mut record.links else { return };
    let Some(process) = links.process.take().filter(Lasting::runs) else { return };
    if Control::connect(&socket).and_then(|mut control| control.ask("end")).is_err()
        || !process.ends_within(GRACE)
    {
        process.signal(Signal::KILL, journal);
        process.ends_within(GRACE);
    }
}

/// Removes what belongs to the cluster, and its folder if nothing else is in it.
fn discard(record: &Record, journal: &Journal) -> Result<()> {
    let there: Vec<_> = record.files().into_iter().filter(|file| file.exists()).collect();
    let names: Vec<String> = there.iter().map(|file| quoted(&file.to_string_lossy())).collect();
    journal.note("shell", format!("rm -rf {}", names.join(" ")));
    for file in &there {
        remove(file).map_err(|error| Error::from(error).context(file.display()))?;
    }
    let _ = std::fs::remove_dir(&record.folder);
    Ok(())
}

fn remove(path: &Path) -> std::io::Result<()> {
    if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }
}
