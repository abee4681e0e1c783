//! Stable copies: what RocksDB's files held before they were flushed ahead of the set's commit point.
//!
//! ```text
//! <folder>/data                          what is in use, flushed up to F
//! <folder>/stable/<index>.<term>.<time>  the files as they were at an earlier flush
//! <folder>/install.stable                names the copy that is to take the place of `data` at the next start
//! ```
//!
//! What holds at any moment, so that a start decides by files alone:
//!
//! - without copies, everything in `data` is committed;
//! - otherwise the oldest copy is, and the log reaches back to it. A newer one waits for the commit point to pass it;
//! - a copy is whole once it has its name, and `data` is flushed further only after that name is durable;
//! - the marker is written before the log's end is cut. A start that finds it brings the copy into use, as often as it
//!   takes, and applies what the log has: all of it if the log was not cut yet, and then the rollback is found anew.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};

use sheaf_errors::{Code, Result, bail};

use crate::folder::{file_error, remove, sync, write_durably};
use crate::options::OpTime;
use crate::order::{Mutex, rank};

/// The folder of the copies.
pub(super) const FOLDER: &str = "stable";
/// Its contents are the path of the copy, relative to the data folder.
const INSTALL: &str = "install.stable";
/// The copies of a folder.
#[derive(Default)]
pub(crate) struct StableCopies {
    /// Where they are, oldest first.
    pub(super) at: Mutex<{ rank::LEAF }, Vec<OpTime>>,
    /// Up to here RocksDB may have flushed by itself while there were copies.
    pub(super) let_through: AtomicU64,
    /// Nothing more is let through: whether copies are needed is being decided, or they go.
    pub(super) closed: AtomicBool,
    /// Size of the log when its growth was last told of.
    pub(super) told: AtomicU64,
}

/// The name of the folder of a copy of what was flushed up to there.
pub(super) fn name_of(at: OpTime) -> String {
    format!("{}.{}.{}", at.index, at.term, at.time)
}

fn position_of(name: &str) -> Option<OpTime> {
    let mut parts = name.split('.').map(|part| part.parse::<u64>().ok());
    let (index, term, time) = (parts.next()??, parts.next()??, parts.next()??);
    parts.next().is_none().then_some(OpTime { term, index, time })
}

impl StableCopies {
    /// Finds the copies of a folder whose `data` are flushed up to `flushed`, and removes what is none.
    pub fn open(folder: &Path, flushed: OpTime) -> Result<StableCopies> {
        let home = folder.join(FOLDER);
        let mut found = Vec::new();
        if home.is_dir() {
            for item in fs::read_dir(&home).map_err(|e| file_error("listing", &home, &e))? {
                let item = item.map_err(|e| file_error("listing", &home, &e))?;
                match item.file_name().to_str().and_then(position_of) {
                    Some(at) if at.index <= flushed.index => found.push(at),
                    // One that was not finished, or was being removed; or the flush that it was made for is lost.
                    _ => remove(&item.path())?,
                }
            }
            found.sort_by_key(|at| at.index);
            sync(&home)?;
        }
        Ok(StableCopies { at: Mutex::new(found), ..StableCopies::default() })
    }

    /// The log has entries from `first` on.
    ///
    /// Errors: `UnrecoverableRollbackError` if it does not reach back to the oldest copy.
    pub fn check_log(&self, first: u64) -> Result<()> {
        match self.oldest() {
            Some(oldest) if first > oldest.index + 1 => bail!(
                Code::UNRECOVERABLE_ROLLBACK_ERROR,
                "the log begins with entry {first}, so it does not reach back to the stable copy at {}",
                oldest.index
            ),
            _ => Ok(()),
        }
    }

    /// Where the oldest is: it is committed.
    pub fn oldest(&self) -> Option<OpTime> {
        self.at.lock().first().copied()
    }
}

/// Brings a copy into use where a rollback has decided so. The folder is locked and nothing of it is open.
pub(crate) fn finish_rollback(folder: &Path) -> Result<()> {
    finish_in_steps(folder, &mut || {})
}

/// `step` is called between the changes of the folder.
pub(crate) fn finish_in_steps(folder: &Path, step: &mut dyn FnMut()) -> Result<()> {
    let marker = folder.join(INSTALL);
    let copy = match fs::read_to_string(&marker) {
        Ok(name) => folder.join(name),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(file_error("reading", &marker, &error)),
    };
    let (data, home) = (folder.join("data"), folder.join(FOLDER));
    // Once the copy has its place there is nothing of the old left.
    if copy.is_dir() {
        remove(&data)?;
        step();
        sync(folder)?;
        fs::rename(&copy, &data).map_err(|e| file_error("moving", &copy, &e))?;
        step();
        sync(folder)?;
        sync(&home)?;
    }
    if !data.is_dir() {
        bail!(Code::UNRECOVERABLE_ROLLBACK_ERROR, "the stable copy {} is not there", copy.display());
    }
    // The others are newer, and hold what is taken back or is not committed yet.
    remove(&home)?;
    step();
    sync(folder)?;
    remove(&marker)?;
    step();
    sync(folder)
}

/// Decides that this copy is to take the place of the data: the next start does it.
pub(super) fn choose(folder: &Path, copy: OpTime) -> Result<()> {
    write_durably(&folder.join(INSTALL), format!("{FOLDER}/{}", name_of(copy)).as_bytes())
}

/// Removes all copies and the marker: the folder's data are about to be replaced as a whole.
pub(crate) fn discard(folder: &Path) -> Result<()> {
    remove(&folder.join(INSTALL))?;
    remove(&folder.join(FOLDER))
}
