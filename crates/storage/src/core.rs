//! What all parts of an open engine share, how it opens and closes, and its background work.

use std::fs::{self, File};
use std::sync::{Arc, OnceLock, Weak};

use sheaf_errors::{Code, Error, Result, bail};
use sheaf_log::Log;

use crate::base::Base;
use crate::commit::Commits;
use crate::critical::Critical;
use crate::db::Db;
use crate::definitions::Definitions;
use crate::durability::Durability;
use crate::flush::{Bookkeeping, Flushes, read_applied};
use crate::folder::{self, folder_error};
use crate::oplog_reader::OplogCollection;
use crate::options::Options;
use crate::position::Position;
use crate::published::Published;

/// An open data folder: four owners, each with its own fields and locks, on common ground; and what spans them.
///
/// | owner | has |
/// | --- | --- |
/// | [`Commits`] | the pipeline, locks of records, conflicts, the set's states |
/// | [`Definitions`] | numbers of collections and indexes, the DDL's turn, builds, dropped data |
/// | [`Flushes`] | what RocksDB's files hold, memory of memtables, stable copies |
/// | [`Durability`] | the log, its syncs and who waits for them, whether writes are taken |
///
/// An owner calls none of the others. What needs several of them (a commit is ordered, logged, applied and published) is a
/// method here, in the module of the owner whose work it begins. Locks are taken in the order of [`crate::order::rank`].
pub(crate) struct Core {
    pub base: Arc<Base>,
    /// What readers see.
    pub published: Arc<Published>,
    pub commits: Commits,
    pub definitions: Definitions,
    pub flushes: Flushes,
    pub durability: Durability,
    /// Itself, once it is open.
    me: OnceLock<Weak<Core>>,
}

impl Drop for Core {
    fn drop(&mut self) {
        self.base.db.end_background();
    }
}

impl Core {
    /// Opens the folder: lock, RocksDB at its last flush, catalog, log from there on.
    pub fn open(options: Options) -> Result<Arc<Core>> {
        let lock = folder::lock(&options.path)?;
        folder::lend_spare_room(&options.path);
        folder::check_format(&options.path)?;
        crate::build::clear_folder(&options.path)?;
        crate::copy::finish_install(&options.path)?;
        crate::flush::stable::finish_rollback(&options.path)?;
        let db = Arc::new(Db::open(&options.path.join("data"), &options)?);
        crate::copy::forget_local(&options.path, &db)?;
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
        let copies = crate::flush::stable::StableCopies::open(&options.path, applied)?;
        let log_dir = options.path.join("log");
        // Without a journal, what an earlier run logged must still be applied once.
        let use_log = options.journal || log_dir.is_dir();
        let log = if use_log {
            let mut log_options = sheaf_log::Options::new(&log_dir);
            log_options.retain_bytes = options.oplog_bytes;
            log_options.segment_bytes = (options.oplog_bytes / 16).clamp(1 << 20, 64 << 20);
            let (log, recovered) = Log::open(log_options, applied).map_err(log_open_error)?;
            if recovered.cut_bytes > 0 {
                tracing::info!(bytes = recovered.cut_bytes, "cut an unfinished entry off the end of the log");
            }
            copies.check_log(log.stats().first_index)?;
            Some(Arc::new(log))
        } else {
            None
        };
        // The log syncs the names in its own folder, RocksDB those in its own: theirs are synced here, before anything in
        // them is promised to last.
        File::open(&options.path)
            .and_then(|folder| folder.sync_all())
            .map_err(|e| folder_error("syncing names", &options.path, &e))?;
        let mut catalog = crate::definitions::command::load_catalog(&db)?;
        let journal = log.as_ref().filter(|_| options.journal);
        let oplog = journal.map(|log| OplogCollection::new(log.clone(), options.oplog_bytes));
        if let Some(oplog) = &oplog {
            catalog.put(oplog.collection.clone());
        }
        let base = Arc::new(Base::new(options, db.clone()));
        let published = Arc::new(Published::new(lock, db.clone(), catalog, oplog, applied));
        let position = Position { at: applied, batch: ahead.map_or(batch, |held| held.batch) };
        let mut core = Core {
            commits: Commits::new(base.clone(), position),
            definitions: Definitions::new(base.clone(), idents),
            flushes: Flushes::new(base.clone(), applied, copies),
            durability: Durability::new(base.clone(), log, log_knowledge, applied),
            base,
            published,
            me: OnceLock::new(),
        };
        if ahead.is_some() {
            core.reconcile(known)?;
        }
        core.recover()?;
        core.durability.begin(core.published.last());
        if !core.base.options.journal && core.durability.close_log() {
            // From here on the flushed state is all there is; an old log must not be applied again.
            core.checkpoint()?;
            fs::remove_dir_all(&log_dir).map_err(|e| folder_error("removing the old log", &log_dir, &e))?;
        }
        folder::keep_spare_room(&core.base.options.path);
        Ok(Arc::new(core))
    }

    /// Starts the background threads. They end when the engine is dropped or shut down.
    pub fn start(self: &Arc<Self>) -> Result<Vec<std::thread::JoinHandle<()>>> {
        let spawn = |name: &str, run: fn(&Core)| {
            let core = self.clone();
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || {
                    let _critical = Critical::enter("a thread of storage");
                    run(&core);
                })
                .map_err(|e| Error::new(Code::INTERNAL_ERROR, format!("cannot start thread {name}: {e}")))
        };
        assert!(self.me.set(Arc::downgrade(self)).is_ok(), "an engine is started once");
        self.guard_flushes();
        self.flushes.begin();
        let mut threads = vec![spawn("sheaf-keeper", Core::run_keeper)?];
        if self.durability.log().is_some() {
            threads.push(spawn("sheaf-sync", |core| core.durability.run_syncs())?);
        }
        Ok(threads)
    }

    /// Ends background work.
    pub fn stop(&self) {
        self.base.db.events().close();
        self.durability.stop();
        self.flushes.stop();
    }

    /// Itself, to be kept by a thread; `None` while it is being opened.
    pub fn me(&self) -> Option<Arc<Core>> {
        self.me.get().and_then(Weak::upgrade)
    }

    /// Whether background work is to end.
    pub fn is_stopping(&self) -> bool {
        self.flushes.is_stopping()
    }
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
