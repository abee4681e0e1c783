//! What all parts of an open engine share, how it opens and closes, and its background work.

use std::fs::{self, File};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use rocksdb::WriteBatch;
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_log::Log;

use crate::base::Base;
use crate::catalog::Collection;
use crate::critical::Critical;
use crate::db::{Cf, Db, io_error};
use crate::durability::Durability;
use crate::flush::{Bookkeeping, Flushes, read_applied};
use crate::folder::{self, folder_error};
use crate::keys::prefix_range;
use crate::locks::{Gate, LockTable};
use crate::oplog_reader::OplogCollection;
use crate::options::{OpTime, Options};
use crate::order::{Mutex, rank};
use crate::pipeline::Pipeline;
use crate::position::Position;
use crate::published::Published;
use crate::sequencer::stays_here;
use crate::transaction::Recent;

/// Buffers kept, and the largest one that is.
const BUFFERS_MAX: usize = 4;
const BUFFER_BYTES_MAX: usize = 8 << 20;

/// Numbers of collections and indexes that stay on a member of a replica set begin here.
pub(crate) const LOCAL_IDENTS: u32 = 1 << 30;

pub(crate) struct Core {
    pub base: Arc<Base>,
    /// What readers see.
    pub published: Arc<Published>,
    pub locks: LockTable,
    pub pipeline: Pipeline,
    pub flushes: Flushes,
    pub durability: Durability,
    pub recent: Mutex<{ rank::RECENT }, Recent>,
    pub next_ident: AtomicU32,
    /// Numbers of what stays on this member are apart: the others' are the log's to give.
    pub next_local_ident: AtomicU32,
    /// Itself, once it is open.
    pub me: std::sync::OnceLock<Weak<Core>>,
    /// The index builds at work here.
    pub builds: crate::build::Builds,
    /// The entries at the log's end that begin a transaction whose last entry has not come; see [`crate::chain`].
    pub chain: Mutex<{ rank::LEAF }, Vec<crate::sequencer::LogEntry>>,
    pub majority: crate::majority::Majority,
    /// Grows with entries that others have ordered. What was prepared on an older state must not be committed on it.
    pub others_entries: AtomicU64,
    /// That of the DDL under way.
    pub ddl_began: AtomicU64,
    /// One DDL at a time.
    pub ddl: Mutex<{ rank::DDL }, ()>,
    /// Commits pass; `fsyncLock` closes it.
    pub writes: Arc<Gate>,
    pub write_locks: crate::fsync_lock::WriteLocks,
    /// Payload buffers to be used again: large ones are costly to get from the system.
    buffers: Mutex<{ rank::LEAF }, Vec<Vec<u8>>>,
    pub commits: AtomicU64,
    pub conflicts: AtomicU64,
    /// What was applied of the entries of others.
    pub applied: crate::stats::AppliedCount,
    /// Collections that are out of the catalog but may still be read.
    pub garbage: Mutex<{ rank::GARBAGE }, Vec<Garbage>>,
    /// Up to where the log is in memtables and files. [`Core::last`] may be further: within a transaction over several
    /// entries, and where entries have no effect.
    pub position: Mutex<{ rank::LEAF }, OpTime>,
    /// Batches of commits that have been written, in all runs.
    pub batches: AtomicU64,
}

impl Drop for Core {
    fn drop(&mut self) {
        self.base.db.end_background();
    }
}

/// Data of a dropped collection or index; removed when no view can see it any more.
pub(crate) struct Garbage {
    /// Keeps count of those who can still read it.
    pub holder: Option<Arc<Collection>>,
    pub prefixes: Vec<(Cf, u32)>,
    /// The commit that dropped it. Until that is flushed, a recovery begins before it and needs the data.
    pub index: u64,
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
        let Bookkeeping { at: known, batch, next_ident, next_local_ident, log_knowledge } =
            read_applied(&db)?;
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
            let at = sheaf_log::Position { term: applied.term, index: applied.index, time: applied.time };
            let (log, recovered) = Log::open(log_options, at).map_err(log_open_error)?;
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
        let mut catalog = crate::command::load_catalog(&db)?;
        let journal = log.as_ref().filter(|_| options.journal);
        let oplog = journal.map(|log| OplogCollection::new(log.clone(), options.oplog_bytes));
        if let Some(oplog) = &oplog {
            catalog.put(oplog.collection.clone());
        }
        let base = Arc::new(Base::new(options, db.clone()));
        let published = Arc::new(Published::new(lock, db.clone(), catalog, oplog, applied));
        let mut core = Core {
            flushes: Flushes::new(base.clone(), applied, copies),
            durability: Durability::new(base.clone(), log, log_knowledge, applied),
            base,
            published,
            locks: LockTable::new(),
            pipeline: Pipeline::default(),
            recent: Mutex::default(),
            next_ident: AtomicU32::new(next_ident),
            next_local_ident: AtomicU32::new(next_local_ident),
            me: std::sync::OnceLock::new(),
            builds: crate::build::Builds::default(),
            chain: Mutex::default(),
            majority: crate::majority::Majority::default(),
            others_entries: AtomicU64::new(0),
            ddl_began: AtomicU64::new(0),
            ddl: Mutex::new(()),
            writes: Arc::default(),
            write_locks: Default::default(),
            buffers: Mutex::default(),
            commits: AtomicU64::new(0),
            conflicts: AtomicU64::new(0),
            applied: Default::default(),
            garbage: Mutex::default(),
            position: Mutex::new(applied),
            batches: AtomicU64::new(ahead.map_or(batch, |held| held.batch)),
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
        let _ = self.me.set(Arc::downgrade(self));
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

    /// Whether background work is to end.
    pub fn is_stopping(&self) -> bool {
        self.flushes.is_stopping()
    }

    /// A number for a collection of this name, or for an index of it.
    pub fn new_ident(&self, namespace: &str) -> u32 {
        let next = if self.base.is_replica() && stays_here(namespace) {
            &self.next_local_ident
        } else {
            &self.next_ident
        };
        next.fetch_add(1, Ordering::AcqRel)
    }

    /// An empty buffer for a payload.
    pub fn take_buffer(&self) -> Vec<u8> {
        self.buffers.lock().pop().unwrap_or_default()
    }

    /// Takes a payload's buffer back, to be used again.
    pub fn give_buffer(&self, mut buffer: Vec<u8>) {
        if (1..=BUFFER_BYTES_MAX).contains(&buffer.capacity()) {
            buffer.clear();
            let mut buffers = self.buffers.lock();
            if buffers.len() < BUFFERS_MAX {
                buffers.push(buffer);
            }
        }
    }

    /// Whether data of dropped collections and indexes waits for its removal.
    pub fn has_garbage(&self) -> bool {
        !self.garbage.lock().is_empty()
    }

    /// Removes the data of dropped collections and indexes that nobody can read any more.
    pub fn collect_garbage(&self) {
        let ready: Vec<Garbage> = {
            let mut garbage = self.garbage.lock();
            let flushed = self.flushes.flushed().index;
            let unused = |g: &Garbage| g.holder.as_ref().is_none_or(|holder| Arc::strong_count(holder) == 1);
            let (ready, wait) =
                garbage.drain(..).partition(|garbage| garbage.index <= flushed && unused(garbage));
            *garbage = wait;
            ready
        };
        for garbage in ready {
            if let Err(error) = self.remove_prefixes(&garbage.prefixes) {
                tracing::warn!(%error, "data of a dropped collection stays until the next start");
            }
        }
    }

    /// Deletes everything under these numbers. Needs no log: start-up does it again if it was lost.
    pub fn remove_prefixes(&self, prefixes: &[(Cf, u32)]) -> Result<()> {
        let mut batch = WriteBatch::default();
        for (cf, ident) in prefixes {
            let (from, to) = prefix_range(*ident);
            self.base.db.raw().delete_file_in_range_cf(self.base.db.cf(*cf), from, to).map_err(io_error)?;
            batch.delete_range_cf(self.base.db.cf(*cf), from, to);
            batch.delete_cf(self.base.db.cf(Cf::Catalog), crate::command::garbage_key(*cf, *ident));
        }
        self.base.db.write(batch)
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
