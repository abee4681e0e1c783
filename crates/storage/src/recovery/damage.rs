//! A log that is damaged: what a start says, and what `sheaf repair` does.
//!
//! A start refuses such a log, for nothing is to be lost without a word. [`cut_log`](super::repair::cut_log) has it mended
//! ([`Mending`]): what is damaged, and what cannot stay without it, goes to a folder of its own in the data folder.

use std::fs;
use std::path::PathBuf;

use sheaf_errors::{Code, Error, Result};
use sheaf_log::{Damage, Log, Mending, Recovered};

use super::missing;
use super::rollback::file_time;
use crate::folder::{file_error, sync};
use crate::oplog::damaged::DamagedLog;
use crate::options::{OpTime, Options};

/// Where what leaves the log is kept: a folder for each time.
const FOLDER: &str = "repair";

/// Opens the log, of which RocksDB's files hold what is up to `flushed`, the last entry of it perhaps `in_part`. What is damaged is mended
/// if a repair is to do so.
///
/// Errors: `ChecksumMismatch` if it is damaged.
pub(super) fn open_log(
    options: &Options,
    log: &sheaf_log::Options,
    flushed: OpTime,
    in_part: bool,
) -> Result<(Log, Recovered)> {
    let mut mended = None;
    loop {
        let damage = match Log::open(log.clone(), flushed) {
            Err(sheaf_log::Error::Damaged(damage)) => damage,
            opened => return opened.map_err(log_open_error),
        };
        let refused = refusal(options, &damage, flushed);
        let Some(repair) = options.repair.as_ref().filter(|_| mended.as_ref() != Some(&damage)) else {
            return Err(refused);
        };
        let mending = Mending::of(&log.dir, damage.clone(), flushed).map_err(log_open_error)?;
        let in_part = in_part && mending.is_without(flushed.index);
        let mut aside = None;
        if repair.cuts_log() {
            missing::expect(&options.path)?;
            let folder = new_folder(options)?;
            mending.carry_out(&folder).map_err(log_open_error)?;
            tracing::warn!(%damage, aside = %folder.display(), "mended the log");
            aside = Some(folder);
        }
        let changed = aside.is_some();
        repair.damaged(DamagedLog { mending, flushed, in_part, aside });
        if !changed {
            return Err(refused);
        }
        mended = Some(damage);
    }
}

/// What a start says.
fn refusal(options: &Options, damage: &Damage, flushed: OpTime) -> Error {
    let path = options.path.display();
    let held = if damage.entry <= flushed.index { "have" } else { "do not have" };
    let way_out = if options.replica {
        "Empty the folder: the member copies everything from its set. If it is the only member, restore the folder from a copy"
    } else {
        "Restore the folder from a copy"
    };
    let text = format!(
        "{damage}. RocksDB's files {held} that entry: they hold the log up to entry {}. {way_out}, or see what can be kept: \
         `sheaf repair --dbpath {path}` shows it, and with --cut-log sets the damaged part of the log aside",
        flushed.index
    );
    Error::new(Code::CHECKSUM_MISMATCH, text)
}

/// A new folder, whose name lasts.
fn new_folder(options: &Options) -> Result<PathBuf> {
    let home = options.path.join(FOLDER);
    let time = file_time(options.wall_millis());
    fs::create_dir_all(&home).map_err(|e| file_error("creating", &home, &e))?;
    // Another in the same second has a number as well.
    let names = std::iter::once(time.clone()).chain((1..).map(|number| format!("{time}.{number}")));
    let folder = names.map(|name| home.join(name)).find(|path| !path.exists()).unwrap_or(home.clone());
    fs::create_dir(&folder).map_err(|e| file_error("creating", &folder, &e))?;
    sync(&home)?;
    sync(&options.path)?;
    Ok(folder)
}

fn log_open_error(error: sheaf_log::Error) -> Error {
    let code = match &error {
        sheaf_log::Error::TooNew { .. } => Code::MUST_UPGRADE,
        sheaf_log::Error::Damaged { .. } => Code::CHECKSUM_MISMATCH,
        e if e.is_disk_full() => Code::OUT_OF_DISK_SPACE,
        _ => Code::FILE_OPEN_FAILED,
    };
    Error::new(code, error.to_string())
}
