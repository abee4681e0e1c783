//! Copies of a data folder's contents, for members of a replica set that begin anew.
//!
//! A copy is what RocksDB's files hold at a flush, as hard links: it costs no time and hardly any room while it is being
//! fetched by another member. There it takes the place of `data` when the engine is not open, and the log begins behind it.
//!
//! Taking it into use must survive crashes. A marker names the copy; while it is there, the steps are done (again) before
//! the folder is opened. A second marker stays until the collections that were the other member's own are out of the
//! catalog.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use rocksdb::WriteBatch;
use rocksdb::checkpoint::Checkpoint;
use sheaf_errors::{Code, Error, Result, bail};

use crate::core::Core;
use crate::db::{Db, io_error};
use crate::definitions::command::{drop_command, load_catalog};
use crate::durability::LogPin;
use crate::engine::Engine;
use crate::options::OpTime;
use crate::sequencer::stays_here;

/// Its contents are the path of the copy, relative to the data folder.
const INSTALL: &str = "install.copy";
/// Says that the data came from another member.
const COPIED: &str = "copied.data";

/// What [`Engine::export_copy`] has made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Up to where the copy is complete.
    pub at: OpTime,
    /// Names and sizes of its files, in the order of their names.
    pub files: Vec<(String, u64)>,
}

impl Engine {
    /// Makes a copy in `folder`, which does not exist yet and is on the same file system. It is flushed first, as far as the
    /// set allows, so the copy may be older than the newest commit; it holds nothing that is not committed. Whoever takes it needs the log from [`Copied::at`] on.
    pub fn export_copy(&self, folder: &Path) -> Result<Copied> {
        self.core().export_copy(folder)
    }
}

impl Engine {
    /// Keeps the log from the last flush on, whatever its size, while the pin lives: who takes a copy needs it.
    pub fn pin_log(&self) -> LogPin {
        let core = self.core();
        core.durability.pin_log(core.flushes.stable().index)
    }
}

impl Core {
    fn export_copy(&self, folder: &Path) -> Result<Copied> {
        let at = self.with_flushed(|db, at| {
            if let Some(parent) = folder.parent() {
                fs::create_dir_all(parent).map_err(|e| failed("creating", parent, &e))?;
            }
            if let Some((at, copy)) = self.flushes.stable_copy() {
                // The data are ahead of what is committed.
                link_copy(&copy, folder)?;
                return Ok(at);
            }
            let sealed = db.events().sealed();
            let checkpoint = Checkpoint::new(db.raw()).map_err(io_error)?;
            // The highest figure means: flush nothing. What is not flushed has no place in a copy.
            checkpoint.create_checkpoint_with_log_size(folder, u64::MAX).map_err(io_error)?;
            if db.events().sealed() != sealed || db.property("rocksdb.num-immutable-mem-table") > 0 {
                // A flush that nobody here has ordered, as a manual compaction begins with one: the copy may hold more
                // than `at` says.
                remove(folder)?;
                bail!(Code::INTERNAL_ERROR, "memtables were flushed while a copy was made; try again");
            }
            Ok(at)
        })?;
        let mut files = Vec::new();
        for item in fs::read_dir(folder).map_err(|e| failed("listing", folder, &e))? {
            let item = item.map_err(|e| failed("listing", folder, &e))?;
            let size = item.metadata().map_err(|e| failed("listing", folder, &e))?.len();
            match item.file_name().into_string() {
                Ok(name) => files.push((name, size)),
                Err(name) => bail!(Code::INTERNAL_ERROR, "a file of a copy has the name {name:?}"),
            }
        }
        files.sort();
        Ok(Copied { at, files })
    }
}

/// A copy of a copy: tables are linked, the small files beside them, which may be written to where they are in use, are not.
fn link_copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to).map_err(|e| failed("creating", to, &e))?;
    for item in fs::read_dir(from).map_err(|e| failed("listing", from, &e))? {
        let item = item.map_err(|e| failed("listing", from, &e))?;
        let (path, target) = (item.path(), to.join(item.file_name()));
        let table = path.extension().is_some_and(|kind| kind == "sst" || kind == "blob");
        let done = if table { fs::hard_link(&path, &target) } else { fs::copy(&path, &target).map(|_| ()) };
        done.map_err(|e| failed("copying", &path, &e))?;
    }
    sync(to)
}

/// Decides that the copy in `copy`, a folder within the data folder, is to take the place of the data there: the next
/// [`Engine::open`] does it. All files of the copy must be on stable storage.
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
        Err(error) => return Err(failed("reading", &marker, &error)),
    };
    let (data, log) = (folder.join("data"), folder.join("log"));
    // Once the copy has its place there is nothing of the old left.
    if copy.is_dir() {
        write_durably(&folder.join(COPIED), b"")?;
        step();
        crate::flush::stable::discard(folder)?;
        step();
        // The log first: without it, the old data are merely old.
        for old in [&log, &data] {
            remove(old)?;
            step();
        }
        sync(folder)?;
        fs::rename(&copy, &data).map_err(|e| failed("moving", &copy, &e))?;
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
    let failed = db.events().failed_flushes();
    db.flush()?;
    while !db.flush_ended(failed)? {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    remove(&marker)?;
    sync(folder)
}

pub(crate) fn write_durably(path: &Path, contents: &[u8]) -> Result<()> {
    let next: PathBuf = path.with_extension("next");
    let written = File::create(&next).and_then(|mut file| {
        file.write_all(contents)?;
        file.sync_all()?;
        fs::rename(&next, path)
    });
    written.map_err(|e| failed("writing", path, &e))?;
    path.parent().map_or(Ok(()), sync)
}

/// Removes a file or folder, if it is there.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("removing", path, &error)),
        _ => Ok(()),
    }
}

pub(crate) fn sync(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|e| failed("syncing", folder, &e))
}

pub(crate) fn failed(what: &str, path: &Path, error: &std::io::Error) -> Error {
    let full = matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
    let code = if full { Code::OUT_OF_DISK_SPACE } else { Code::FILE_STREAM_FAILED };
    Error::new(code, format!("{what} {} failed: {error}", path.display()))
}
