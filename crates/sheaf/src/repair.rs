//! `sheaf repair`: an operation of the log that cannot be applied is shown, exported, and left out if its name is given.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;

use sheaf_bson::json::{Style, to_json};
use sheaf_replica::Replica;
use sheaf_storage::{Options, Unapplied};

use crate::flags::RepairFlags;

/// There is an operation that cannot be applied, and it was not to be left out.
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
    let member = Replica::check_alone(&flags.dbpath).is_err();
    if member && !flags.skip.is_empty() && !flags.member_may_differ {
        return Err("This folder is a member's of a replica set. Without the operation its data would differ from the \
            other members'. Empty the folder instead, so that it takes their data; or, if there is no other member that \
            works, repeat this with --member-may-differ, and let the others take this member's data."
            .to_owned());
    }
    let options = Options {
        replica: member,
        clock_micros: std::sync::Arc::new(|| sheaf_front::front::Clock.now_micros()),
        ..Options::new(&flags.dbpath)
    };
    let done = sheaf_storage::repair(options, &flags.skip).map_err(|error| error.to_string())?;
    for skipped in &done.skipped {
        let along = if skipped.along { ", with the rest of its transaction" } else { "" };
        println!("left out {} ({}){along}", skipped.id, skipped.summary());
    }
    let Some(failed) = done.failed else {
        if done.skipped.is_empty() {
            println!("The log can be applied whole, up to entry {}. Nothing was changed.", done.last.index);
        } else {
            let kept = flags.dbpath.join("repair.json");
            println!(
                "The rest was applied, up to entry {}. What was left out is in {}.",
                done.last.index,
                kept.display()
            );
            println!("Check the collections concerned with the validate command.");
        }
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
