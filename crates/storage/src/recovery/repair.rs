//! An operation of the log that cannot be applied, or a damaged log, and the operator's way out.
//!
//! It should not be: the log says what was done. If it is all the same, a start ends there, for what follows may build on it.
//! [`repair`] finds the operation, and leaves it out if its name is given; what is left out is written to `repair.json` in the
//! data folder first. [`cut_log`] opens a folder whose log is damaged ([`super::damage`]). Nothing else ever passes over an operation.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::Arc;

use sheaf_bson::Value;
use sheaf_bson::json::{Style, to_json};
use sheaf_errors::{Code, Error, Result};

use crate::core::Core;
use crate::oplog::damaged::DamagedLog;
use crate::oplog::skipped::{OperationId, Repair, Unapplied};
use crate::options::{OpTime, Options};

/// Where what was left out is kept: a line of Extended JSON for each operation.
const FILE: &str = "repair.json";

/// What [`repair`] has found and done.
#[derive(Clone, Debug, Default)]
pub struct Repaired {
    /// What was left out.
    pub skipped: Vec<Unapplied>,
    /// The first operation that cannot be applied and was not to be left out. The folder does not open.
    pub failed: Option<Unapplied>,
    /// Where the log is damaged. The folder does not open if that was not mended.
    pub damaged: Vec<DamagedLog>,
    /// How far the log was applied.
    pub last: OpTime,
}

/// Applies the log as a start does, without the operations named, and flushes. Nothing is changed if some other operation
/// cannot be applied, or if none had to be left out.
pub fn repair(options: Options, skip: &[OperationId]) -> Result<Repaired> {
    run(options, Repair::without(skip))
}

/// Takes out of a damaged log what it cannot keep, which goes to a folder within `repair` in the data folder, and applies the rest as a start
/// does. Nothing is changed if the log is not damaged.
pub fn cut_log(options: Options) -> Result<Repaired> {
    run(options, Repair::cutting_log())
}

fn run(options: Options, repair: Repair) -> Result<Repaired> {
    let repair = Arc::new(repair);
    let opened = Core::open(Options { repair: Some(repair.clone()), ..options });
    let (skipped, failed) = repair.take();
    let damaged = repair.take_damaged();
    let is_refused = damaged.last().is_some_and(|damaged| damaged.aside.is_none());
    let last = match opened {
        Ok(core) => {
            if !skipped.is_empty() {
                record(&core, &skipped)?;
                core.flush_whatever_the_set_has()?;
            }
            core.published.last()
        }
        Err(_) if failed.is_some() || is_refused => OpTime::default(),
        Err(error) => return Err(after_cuts(error, &damaged)),
    };
    Ok(Repaired { skipped, failed, damaged, last })
}

/// Says as well what has left the log before this error.
fn after_cuts(error: Error, damaged: &[DamagedLog]) -> Error {
    let folders: Vec<_> = damaged.iter().filter_map(|damaged| damaged.aside.as_deref()).collect();
    if folders.is_empty() {
        return error;
    }
    Error::new(
        error.code(),
        format!("{} (the log was cut; what has left it is in {folders:?})", error.message()),
    )
}

/// Keeps what is left out, for good, before the data without it is.
fn record(core: &Core, skipped: &[Unapplied]) -> Result<()> {
    let path = core.base.options.path.join(FILE);
    let mut lines = String::new();
    for unapplied in skipped {
        let line = sheaf_bson::doc! {
            "skipped": &unapplied.id.to_string(),
            "at": Value::DateTime(core.base.options.wall_millis()),
            "operation": &unapplied.operation
        };
        lines.push_str(&to_json(line.as_raw(), Style::Canonical));
        lines.push('\n');
        tracing::warn!(entry = %unapplied.id, what = unapplied.summary(), "left out an operation of the log");
    }
    let written = OpenOptions::new().create(true).append(true).open(&path).and_then(|mut file| {
        file.write_all(lines.as_bytes())?;
        file.sync_all()?;
        File::open(&core.base.options.path)?.sync_all()
    });
    written.map_err(|error| {
        Error::new(Code::FILE_STREAM_FAILED, format!("writing {} failed: {error}", path.display()))
    })
}
