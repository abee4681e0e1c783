//! Copies of a data folder's contents, for members of a replica set that begin anew.
//!
//! A copy is what RocksDB's files hold at a flush, as hard links: it costs no time and hardly any room while it is being
//! fetched by another member. There it takes the place of `data` when the engine is not open, and the log begins behind it.

use std::fs;
use std::path::Path;

use rocksdb::checkpoint::Checkpoint;
use sheaf_errors::{Code, Result, bail};

use crate::core::Core;
use crate::db::io_error;
use crate::durability::LogPin;
use crate::engine::Engine;
use crate::folder::{file_error, remove, sync};
use crate::options::OpTime;

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
                fs::create_dir_all(parent).map_err(|e| file_error("creating", parent, &e))?;
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
            db.values().link_into(folder)?;
            if db.events().sealed() != sealed || db.property("rocksdb.num-immutable-mem-table") > 0 {
                // A flush that nobody here has ordered, as a manual compaction begins with one: the copy may hold more
                // than `at` says.
                remove(folder)?;
                bail!(Code::INTERNAL_ERROR, "memtables were flushed while a copy was made; try again");
            }
            Ok(at)
        })?;
        let mut files = Vec::new();
        for item in fs::read_dir(folder).map_err(|e| file_error("listing", folder, &e))? {
            let item = item.map_err(|e| file_error("listing", folder, &e))?;
            let size = item.metadata().map_err(|e| file_error("listing", folder, &e))?.len();
            match item.file_name().into_string() {
                Ok(name) => {
                    let needed = self.base.db.values().needed_of(&name);
                    files.push((name, needed.map_or(size, |needed| needed.min(size))));
                }
                Err(name) => bail!(Code::INTERNAL_ERROR, "a file of a copy has the name {name:?}"),
            }
        }
        files.sort();
        Ok(Copied { at, files })
    }
}

/// A copy of a copy: tables are linked, the small files beside them, which may be written to where they are in use, are not.
fn link_copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to).map_err(|e| file_error("creating", to, &e))?;
    for item in fs::read_dir(from).map_err(|e| file_error("listing", from, &e))? {
        let item = item.map_err(|e| file_error("listing", from, &e))?;
        let (path, target) = (item.path(), to.join(item.file_name()));
        let table = path.extension().is_some_and(|kind| kind == "sst" || kind == "blob" || kind == "values");
        let done = if table { fs::hard_link(&path, &target) } else { fs::copy(&path, &target).map(|_| ()) };
        done.map_err(|e| file_error("copying", &path, &e))?;
    }
    sync(to)
}
