//! Taking a copy of another member's data into use.
//!
//! It must survive crashes. A marker names the copy; while it is there, the steps are done (again) before
//! the folder is opened. A second marker stays until the collections that were the other member's own are out of the
//! catalog.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use rocksdb::WriteBatch;
use sheaf_errors::{Code, Result, bail};

use super::missing;
use crate::db::Db;
use crate::definitions::command::drop_command;
use crate::definitions::stored::load_catalog;
use crate::flush::stable;
use crate::folder::{file_error, remove, sync, write_durably};
use crate::sequencer::stays_here;

/// Its contents are the path of the copy, relative to the data folder.
const INSTALL: &str = "install.copy";
/// Says that the data came from another member.
const COPIED: &str = "copied.data";

/// Decides that the copy in `copy`, a folder within the data folder, is to take the place of the data there: the next
/// [`crate::Engine::open`] does it. All files of the copy must be on stable storage.
pub fn install_at_next_open(folder: &Path, copy: &Path) -> Result<()> {
    let Some(name) = copy.strip_prefix(folder).ok().and_then(Path::to_str).filter(|_| copy.is_dir()) else {
        bail!(Code::BAD_VALUE, "{} is no copy within {}", copy.display(), folder.display());
    };
    write_durably(&folder.join(INSTALL), name.as_bytes())
}

/// Does what [`install_at_next_open`] has decided. The folder is locked and nothing of it is open.
pub(crate) fn finish_install(folder: &Path) -> Result<()> {
    install_in_steps(folder, &mut || {})
}

/// `step` is called between the changes of the folder.
pub(crate) fn install_in_steps(folder: &Path, step: &mut dyn FnMut()) -> Result<()> {
    let marker = folder.join(INSTALL);
    let copy = match fs::read_to_string(&marker) {
        Ok(name) => folder.join(name),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(file_error("reading", &marker, &error)),
    };
    let (data, log) = (folder.join("data"), folder.join("log"));
    // Once the copy has its place there is nothing of the old left.
    if copy.is_dir() {
        write_durably(&folder.join(COPIED), b"")?;
        step();
        stable::discard(folder)?;
        step();
        missing::expect(folder)?;
        step();
        // The log first: without it, the old data are merely old.
        for old in [&log, &data] {
            remove(old)?;
            step();
        }
        sync(folder)?;
        fs::rename(&copy, &data).map_err(|e| file_error("moving", &copy, &e))?;
        step();
        sync(folder)?;
        if let Some(parent) = copy.parent().filter(|parent| *parent != folder) {
            sync(parent)?;
        }
    }
    if !data.is_dir() {
        bail!(Code::UNRECOVERABLE_ROLLBACK_ERROR, "the copy {} is not there", copy.display());
    }
    remove(&marker)?;
    step();
    sync(folder)
}

/// Takes the collections out of a copy that were the other member's own, and flushes that: RocksDB has just been opened.
pub(crate) fn forget_local(folder: &Path, db: &Db) -> Result<()> {
    let marker = folder.join(COPIED);
    if !marker.exists() {
        return Ok(());
    }
    let mut catalog = load_catalog(db)?;
    let mut batch = WriteBatch::default();
    let own: Vec<_> = catalog.all().filter(|c| stays_here(&c.namespace)).cloned().collect();
    for collection in &own {
        let applied = drop_command(collection).apply(catalog)?;
        applied.put(db, &mut batch);
        catalog = applied.catalog;
    }
    db.write(batch)?;
    db.flush_and_wait()?;
    remove(&marker)?;
    sync(folder)
}
