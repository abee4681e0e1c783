//! Opening a data folder: its lock, RocksDB at its last flush, the catalog, and the log from there on.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use sheaf_errors::{Code, Result, bail};

use super::damage::open_log;
use super::rekey::rekey;
use super::{install, missing};
use crate::apply::hold_prepared;
use crate::base::Base;
use crate::build;
use crate::commit::{Commits, Position};
use crate::core::Core;
use crate::db::Db;
use crate::definitions::Definitions;
use crate::definitions::stored::load_catalog;
use crate::durability::Durability;
use crate::flush::disk::segment_bytes_on;
use crate::flush::stable::{self, StableCopies};
use crate::flush::{Bookkeeping, Flushes, read_applied};
use crate::folder::{self, file_error, folder_error, remove, sync};
use crate::options::Options;
use crate::read::oplog_collection::OplogCollection;
use crate::read::published::Published;

/// A log on its way out.
const OLD_LOG: &str = "log.old";

/// Removes a log that is in the data files: as one step, for a part of it would be a damaged one.
fn remove_log(folder: &Path, log: &Path) -> Result<()> {
    missing::expect(folder)?;
    let old = folder.join(OLD_LOG);
    fs::rename(log, &old).map_err(|e| file_error("moving", log, &e))?;
    sync(folder)?;
    remove(&old)
}

impl Core {
    /// Opens the folder: lock, RocksDB at its last flush, catalog, log from there on.
    pub fn open(options: Options) -> Result<Arc<Core>> {
        let lock = folder::lock(&options.path)?;
        folder::lend_spare_room(&options.path);
        folder::check_format(&options.path)?;
        build::clear_folder(&options.path)?;
        install::finish_install(&options.path)?;
        stable::finish_rollback(&options.path)?;
        folder::check_readable(&options.path)?;
        let db = Arc::new(Db::open(&options.path.join("data"), &options)?);
        install::forget_local(&options.path, &db)?;
        rekey(&db)?;
        let Bookkeeping { at: known, batch, idents, log_knowledge } = read_applied(&db)?;
        let held = Position::read(&db)?;
        if let Some(held) = held.filter(|held| held.batch <= batch && held.at.index > known.index) {
            bail!(
                Code::INTERNAL_ERROR,
                "the data files hold entry {} and were written as holding the log up to {} only",
                held.at.index,
                known.index
            );
        }
        let ahead = held.filter(|held| held.batch > batch && held.at.index >= known.index);
        let applied = ahead.map_or(known, |held| held.at);
        let copies = StableCopies::open(&options.path, applied)?;
        let log_dir = options.path.join("log");
        remove(&options.path.join(OLD_LOG))?;
        // Without a journal, what an earlier run logged must still be applied once.
        let use_log = options.journal || log_dir.is_dir();
        let log = if use_log {
            let mut log_options = sheaf_log::Options::new(&log_dir);
            log_options.retain_bytes = options.oplog_bytes;
            let segment_bytes = (options.oplog_bytes / 16).min(segment_bytes_on(&options.path));
            log_options.segment_bytes = segment_bytes.clamp(1 << 20, 64 << 20);
            missing::check(&options, &log_dir, applied.index)?;
            let (log, recovered) = open_log(&options, &log_options, applied, ahead.is_some())?;
            missing::is_there(&options.path)?;
            if recovered.cut_bytes > 0 {
                tracing::info!(bytes = recovered.cut_bytes, "cut an unfinished entry off the end of the log");
            }
            copies.check_log(log.stats().first_index)?;
            Some(Arc::new(log))
        } else {
            missing::expect(&options.path)?;
            None
        };
        // The log syncs the names in its own folder, RocksDB those in its own: theirs are synced here, before anything in
        // them is promised to last.
        File::open(&options.path)
            .and_then(|folder| folder.sync_all())
            .map_err(|e| folder_error("syncing names", &options.path, &e))?;
        let mut catalog = load_catalog(&db)?;
        let journal = log.as_ref().filter(|_| options.journal);
        let oplog = journal.map(|log| OplogCollection::new(log.clone(), options.oplog_bytes));
        if let Some(oplog) = &oplog {
            catalog.put(oplog.collection.clone());
        }
        let base = Arc::new(Base::new(options, db.clone()));
        let published = Arc::new(Published::new(lock, db.clone(), catalog, oplog, applied));
        let position = Position { at: applied, batch: ahead.map_or(batch, |held| held.batch) };
        let commits = Commits::new(base.clone(), position);
        let definitions = Definitions::new(base.clone(), idents);
        let flushes = Flushes::new(base.clone(), applied, copies);
        let durability = Durability::new(base.clone(), log, log_knowledge, applied);
        let mut core = Core::new(base, published, commits, definitions, flushes, durability);
        core.commits.transactions().load(&db, |index| core.durability.pin_log(index))?;
        hold_prepared(&core)?;
        core.commits.transactions().begin(applied.time);
        if ahead.is_some() {
            core.base.db.values().doubt();
            core.reconcile(known)?;
        }
        core.recover()?;
        db.events().note_started();
        core.durability.begin(core.published.last());
        if !core.base.options.journal && core.durability.close_log() {
            // From here on the flushed state is all there is; an old log must not be applied again.
            core.checkpoint()?;
            remove_log(&core.base.options.path, &log_dir)?;
        }
        if core.base.options.repair.is_none() {
            let alone = !core.base.is_replica();
            core.base.db.values().begin(alone && core.durability.log().is_some())?;
        }
        folder::keep_spare_room(&core.base.options.path);
        Ok(Arc::new(core))
    }
}
