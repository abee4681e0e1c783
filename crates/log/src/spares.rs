//! Files of segments that are not needed any more, into which the next ones are written.
//!
//! A file that is there has its place on the disk and its length, so that a sync writes data and nothing else; where it is still in the
//! page cache, writing it costs a third of what fresh pages cost, and a tenth of that on a machine whose host must find the memory first. What
//! such a file has behind the entries of its new segment are the old ones', which that segment's salt does not fit.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::files::Reserve;
use crate::lock::lock;
use crate::segment::{Segment, sync_dir};
use crate::{Error, Result};

/// What their names end in: nobody takes them for segments.
const SUFFIX: &str = "spare";

pub(crate) struct Spares {
    dir: PathBuf,
    max: AtomicUsize,
    /// None of them has the name of a segment after a power failure.
    paths: Mutex<Vec<PathBuf>>,
}

impl Spares {
    /// None yet; what an earlier process has left of them is removed.
    pub fn open(dir: &Path, max: usize) -> Result<Spares> {
        let failed = |e| Error::io("looking for spare segments", e);
        for item in fs::read_dir(dir).map_err(failed)? {
            let path = item.map_err(failed)?.path();
            if path.extension().is_some_and(|suffix| suffix == SUFFIX) {
                fs::remove_file(&path).map_err(|e| Error::io("removing a spare segment", e))?;
            }
        }
        Ok(Spares { dir: dir.to_owned(), max: AtomicUsize::new(max), paths: Mutex::default() })
    }

    /// Takes in the files of segments that are no more, as many as are wanted. The others are removed.
    pub fn take_in(&self, removed: &[Segment], folder: &File) -> Result<()> {
        let wanted = self.max.load(Ordering::Relaxed).saturating_sub(lock(&self.paths).len());
        let mut kept = Vec::new();
        for segment in removed {
            let spare = self.dir.join(format!("{:020}.{SUFFIX}", segment.first_index));
            if kept.len() < wanted
                && !has_other_names(&segment.path)
                && fs::rename(&segment.path, &spare).is_ok()
            {
                kept.push(spare);
            } else {
                fs::remove_file(&segment.path).map_err(|e| Error::io("removing an old segment", e))?;
            }
        }
        if kept.is_empty() {
            return Ok(());
        }
        // A file that is written anew must not come back under its old name.
        if let Err(error) = sync_dir(folder) {
            kept.iter().for_each(|spare| drop(fs::remove_file(spare)));
            return Err(error);
        }
        lock(&self.paths).append(&mut kept);
        Ok(())
    }

    /// Gives a file this name, and opens it. `None`: there is none that can be had.
    pub fn open_as(&self, path: &Path, reserve: &Reserve) -> Option<File> {
        let spare = lock(&self.paths).pop()?;
        if fs::rename(&spare, path).is_err() {
            let _ = fs::remove_file(&spare);
            return None;
        }
        let opened = reserve.open(|| OpenOptions::new().read(true).write(true).open(path));
        if opened.is_err() {
            // Nothing has been written into it, and what comes there is made anew.
            let _ = fs::remove_file(path);
        }
        opened.ok()
    }

    /// Holds so many from now on; if none, the disk gets back what they take.
    pub fn hold(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
        if max == 0 {
            self.clear();
        }
    }

    /// Gives the disk back what they take; whether they took any.
    pub fn clear(&self) -> bool {
        let spares = std::mem::take(&mut *lock(&self.paths));
        // One that cannot be removed is left to the next start.
        spares.iter().for_each(|spare| drop(fs::remove_file(spare)));
        !spares.is_empty()
    }
}

/// Whether somebody else needs what the file has: it must not be written anew.
fn has_other_names(path: &Path) -> bool {
    fs::metadata(path).map_or(true, |about| about.nlink() > 1)
}
