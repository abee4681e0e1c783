//! `sheaf repair`: an operation of the log that cannot be applied is shown, exported, and left out if its name is given. Damage of the log
//! is shown, and with `--cut-log` set aside.

use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;

use sheaf_bson::json::{Style, iso_date, to_json};
use sheaf_replica::Replica;
use sheaf_storage::{DamagedLog, Kept, OpTime, Options, Repaired, Unapplied};

use crate::flags::RepairFlags;

/// There is an operation that cannot be applied, or damage, and nothing was to be done about it.
const FOUND: u8 = 1;
/// Something else is wrong: mongod's code.
const FAILED: u8 = 100;

/// Runs it.
pub fn main(flags: &RepairFlags) -> ExitCode {
    match run(flags) {
        Ok(code) => code,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::from(FAILED)
        }
    }
}

fn run(flags: &RepairFlags) -> Result<ExitCode, String> {
    if !flags.dbpath.join("data").is_dir() {
        return Err(format!("{} is no data folder", flags.dbpath.display()));
    }
    check_owner(&flags.dbpath)?;
    let member = Replica::check_alone(&flags.dbpath).is_err();
    if member && !flags.skip.is_empty() && !flags.member_may_differ {
        return Err("This folder is a member's of a replica set. Without the operation its data would differ from the \
            other members'. Empty the folder instead, so that it takes their data; or, if there is no other member that \
            works, repeat this with --member-may-differ, and let the others take this member's data."
            .to_owned());
    }
    // What a set of several members has committed must not go from one of them.
    let others = member && Replica::members(&flags.dbpath).map_err(|error| error.to_string())? != 1;
    if others && flags.cut_log {
        return Err("This folder is a member's of a replica set: to cut its log would take back what it has acknowledged to \
            others. Empty the folder instead, so that it copies their data."
            .to_owned());
    }
    let options = Options {
        replica: member,
        clock_micros: std::sync::Arc::new(|| sheaf_front::front::Clock.now_micros()),
        ..Options::new(&flags.dbpath)
    };
    let had_log = std::fs::read_dir(flags.dbpath.join("log")).is_ok_and(|mut files| files.next().is_some());
    let done = if flags.cut_log {
        sheaf_storage::cut_log(options)
    } else {
        sheaf_storage::repair(options, &flags.skip)
    };
    let done = done.map_err(|error| error.to_string())?;
    for damaged in &done.damaged {
        show_damage(damaged);
    }
    if done.damaged.last().is_some_and(|damaged| damaged.aside.is_none()) {
        println!("Nothing was changed.");
        if others {
            println!(
                "The folder is a member's of a replica set: empty it, and the member copies the others' data."
            );
        } else {
            println!("A copy of the folder first; then `sheaf repair --dbpath ... --cut-log` does this.");
        }
        return Ok(ExitCode::from(FOUND));
    }
    for skipped in &done.skipped {
        let along = if skipped.along { ", with the rest of its transaction" } else { "" };
        println!("left out {} ({}){along}", skipped.id, skipped.summary());
    }
    let Some(failed) = done.failed else {
        if flags.cut_log && !had_log {
            println!("A new log begins behind entry {}, without what was in the old one.", done.last.index);
            return Ok(ExitCode::SUCCESS);
        }
        show_end(&done, flags);
        return Ok(ExitCode::SUCCESS);
    };
    show(&failed, member);
    if let Some(path) = &flags.export {
        export(&failed, path)?;
        println!("exported to {}", path.display());
    }
    if !done.skipped.is_empty() {
        println!("Nothing was changed: the folder is as it was before this command.");
    }
    Ok(ExitCode::from(FOUND))
}

/// What a repair makes belongs to who runs it, and the server's user must be able to read it.
fn check_owner(folder: &Path) -> Result<(), String> {
    let owner = std::fs::metadata(folder).map_err(|error| format!("{}: {error}", folder.display()))?.uid();
    let user = rustix::process::geteuid().as_raw();
    if owner == user {
        return Ok(());
    }
    Err(format!(
        "{} belongs to user {owner}, and this is user {user}: run this as that user (sudo -u '#{owner}' sheaf repair ...), so that the \
         server can read what is made",
        folder.display()
    ))
}

fn show_end(done: &Repaired, flags: &RepairFlags) {
    let last = done.last.index;
    if !done.skipped.is_empty() {
        let kept = flags.dbpath.join("repair.json");
        println!("The rest was applied, up to entry {last}. What was left out is in {}.", kept.display());
        println!("Check the collections concerned with the validate command.");
    } else if !done.damaged.is_empty() {
        println!("The log was applied, up to entry {last}.");
        println!(
            "Check the collections with the validate command: a large document may have been in the damaged part."
        );
    } else {
        println!("The log can be applied whole, up to entry {last}. Nothing was changed.");
        println!("Only the log was looked at: the validate command reads the data.");
    }
}

fn show_damage(damaged: &DamagedLog) {
    let DamagedLog { mending, flushed, in_part, aside } = damaged;
    let damage = &mending.damage;
    println!("damaged    {} at byte {}", damage.segment, damage.offset);
    match damage.term {
        Some(term) => println!("entry      {} (term {term})", damage.entry),
        None => println!("entry      {}", damage.entry),
    }
    println!("why        {}", damage.what);
    println!("data files have the log up to entry {}", flushed.index);
    match mending.kept {
        Kept::All => println!("stays      every entry: only the header of the segment is damaged"),
        Kept::UpTo(last) => println!("stays      the log up to entry {}, of {}", last.index, time(last)),
        Kept::From(first) => {
            println!("stays      the log from entry {first} on; the data files have what is before it")
        }
        Kept::Nothing => println!("stays      nothing of the log; the data files have what is in them"),
    }
    let since = match mending.kept {
        Kept::UpTo(last) => Some(last),
        Kept::Nothing => Some(*flushed),
        Kept::All | Kept::From(_) => None,
    };
    match (since, mending.last_lost) {
        (None, _) => println!("lost       no entry that the data files do not have"),
        (Some(since), Some(last)) => println!(
            "lost       entries {} to {}: what was written after {} and until {}",
            since.index + 1,
            last.index,
            time(since),
            time(last)
        ),
        (Some(since), None) => {
            println!(
                "lost       what was written after {}, if anything was: nothing of it can be read or counted",
                time(since)
            );
        }
    }
    if let Some(next) = mending.next {
        println!("more       entry {next} is not readable either: that is next");
    }
    if *in_part {
        println!("in part    entry {} may be in the data files in part", flushed.index);
    }
    if let Some(aside) = aside {
        println!("set aside  {}", aside.display());
    }
    println!();
}

/// When an entry was written.
fn time(at: OpTime) -> String {
    let seconds = (at.time >> 32) as i64;
    iso_date(seconds * 1000, false).unwrap_or_else(|| format!("{seconds} s"))
}

fn show(failed: &Unapplied, member: bool) {
    println!("entry      {}", failed.id);
    println!("term       {}", failed.id.term);
    println!("index      {}", failed.id.index);
    println!("time       {} s, increment {}", failed.id.time >> 32, failed.id.time as u32);
    println!("what       {}", failed.summary());
    println!("why        {}", failed.why.as_deref().unwrap_or("left out"));
    println!("operation  {}", to_json(failed.operation.as_raw(), Style::Canonical));
    println!();
    if member {
        println!(
            "The folder is a member's of a replica set: empty it, and the member takes the others' data."
        );
    } else {
        if failed.is_of_chain() {
            println!(
                "It is one of several entries of a transaction; they are left out together, whichever is named."
            );
        }
        println!(
            "A copy of the folder first; then `sheaf repair --dbpath ... --skip {}` leaves it out.",
            failed.id
        );
    }
}

fn export(failed: &Unapplied, path: &Path) -> Result<(), String> {
    // It may be a user's credentials.
    let file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| {
        writeln!(file, "{}", to_json(failed.operation.as_raw(), Style::Canonical))?;
        file.sync_all()
    });
    written.map_err(|error| format!("writing {} failed: {error}", path.display()))
}
