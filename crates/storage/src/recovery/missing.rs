//! A log that is not there, though what is written last is in it alone: somebody has removed it, or has copied the folder without it.
//!
//! A log begins anew where a file says that it may: when data came from another member, when a server works without a journal, and when a repair
//! has taken all of it out.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use sheaf_errors::{Code, Result, bail};

use crate::folder::{file_error, remove, sync, write_durably};
use crate::options::Options;

/// The file's name in the data folder.
const EXPECTED: &str = "log.none";

/// From now on there may be no log.
pub(super) fn expect(folder: &Path) -> Result<()> {
    let name = folder.join(EXPECTED);
    if name.exists() { Ok(()) } else { write_durably(&name, b"") }
}

/// There is one.
pub(super) fn is_there(folder: &Path) -> Result<()> {
    if folder.join(EXPECTED).exists() {
        remove(&folder.join(EXPECTED))?;
        sync(folder)?;
    }
    Ok(())
}

/// Refuses a folder whose data files hold entries up to `flushed`, and which has no log.
///
/// Errors: `ChecksumMismatch`.
pub(super) fn check(options: &Options, log: &Path, flushed: u64) -> Result<()> {
    let cuts = options.repair.as_ref().is_some_and(|repair| repair.cuts_log());
    if flushed == 0 || cuts || options.path.join(EXPECTED).exists() || has_segments(log)? {
        return Ok(());
    }
    let way_out = if options.replica {
        "Empty the folder: the member copies everything from its set. If it is the only member, put the log back, or restore the folder from a copy"
    } else {
        "Put it back, or restore the folder from a copy"
    };
    bail!(
        Code::CHECKSUM_MISMATCH,
        "the log is missing: there is nothing of it in {}. RocksDB's files hold it up to entry {flushed}; what was written after that \
         was in the log alone. {way_out}, or begin a new log without that: `sheaf repair --dbpath {} --cut-log`",
        log.display(),
        options.path.display()
    )
}

fn has_segments(log: &Path) -> Result<bool> {
    let items = match fs::read_dir(log) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        items => items.map_err(|e| file_error("listing", log, &e))?,
    };
    for item in items {
        let path = item.map_err(|e| file_error("listing", log, &e))?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            return Ok(true);
        }
    }
    Ok(false)
}
