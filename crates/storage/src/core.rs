//! What all parts of an open engine share, how it opens and closes, and its background work.

use std::fs::{self, File};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rocksdb::WriteBatch;
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_log::Log;

use crate::base::Base;
use crate::catalog::Collection;
use crate::checkpoint::{Bookkeeping, read_applied};
use crate::critical::Critical;
use crate::db::{Cf, Db, io_error};
use crate::durability::Durability;
use crate::folder::{self, folder_error};
use crate::keys::prefix_range;
use crate::locks::{Gate, LockTable};
use crate::oplog_reader::OplogCollection;
use crate::options::{OpTime, Options};
use crate::order::{Condvar, Mutex, rank};
use crate::pipeline::Pipeline;
use crate::position::Position;
use crate::published::Published;
use crate::sequencer::stays_here;
use crate::transaction::Recent;

/// Buffers kept, and the largest one that is.
const BUFFERS_MAX: usize = 4;
const BUFFER_BYTES_MAX: usize = 8 << 20;

/// Dropped data that waits for a flush gets one after this time.
const GARBAGE_PATIENCE: Duration = Duration::from_secs(5);

/// A flush that has failed is tried again after the shorter of these times, then less and less often.
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Numbers of collections and indexes that stay on a member of a replica set begin here.
pub(crate) const LOCAL_IDENTS: u32 = 1 << 30;

/// A member that follows waits no longer than this for a flush before it goes on.
const FOLLOWER_PATIENCE: Duration = Duration::from_millis(100);

/// With full memory the commit point may be behind for so long, or until half as much has come again, before a flush goes
/// ahead of it.
const AHEAD_PATIENCE: Duration = Duration::from_secs(1);

pub(crate) struct Core {
    pub base: Arc<Base>,
    /// What readers see.
    pub published: Arc<Published>,
    pub locks: LockTable,
    pub pipeline: Pipeline,
    pub durability: Durability,
    pub recent: Mutex<{ rank::RECENT }, Recent>,
    /// Position of the newest commit that is in RocksDB's files.
    pub flushed: Mutex<{ rank::FLUSHED }, OpTime>,
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
    /// Bytes of batches since the last flush began.
    pub unflushed: AtomicU64,
    /// The same of what a flush is writing: it is in memory until it is on disk.
    pub flushing: AtomicU64,
    /// Bytes of the smallest and largest keys of table files, as the last flush has found them.
    pub file_key_bytes: AtomicU64,
    /// Payload buffers to be used again: large ones are costly to get from the system.
    buffers: Mutex<{ rank::LEAF }, Vec<Vec<u8>>>,
    pub commits: AtomicU64,
    pub flushes: AtomicU64,
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
    /// Index up to which files may hold the log's operations: a checkpoint has asked the log and the set.
    pub flush_allowed: AtomicU64,
    /// How many memtables had been sealed with the last flush that a checkpoint has ordered.
    pub ordered_seals: AtomicU64,
    /// A flush up to here has begun and is not known to be on disk.
    pub flushing_to: Mutex<{ rank::LEAF }, Option<OpTime>>,
    /// What the files held before they were flushed ahead of the commit point.
    pub copies: crate::stable::StableCopies,
    pub checkpointing: Mutex<{ rank::CHECKPOINTING }, ()>,
    keeper: Mutex<{ rank::LEAF }, Keeper>,
    keeper_work: Condvar,
    pub flushed_room: Condvar,
    room: Mutex<{ rank::ROOM }, ()>,
    /// Why the last flush failed, until one succeeds.
    flush_error: Mutex<{ rank::LEAF }, Option<Error>>,
}

#[derive(Default)]
struct Keeper {
    running: bool,
    stop: bool,
    asked: bool,
}

impl Keeper {
    fn works(&self) -> bool {
        self.running && !self.stop
    }
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
        crate::stable::finish_rollback(&options.path)?;
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
        let copies = crate::stable::StableCopies::open(&options.path, applied)?;
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
            file_key_bytes: AtomicU64::new(db.file_key_bytes()),
            durability: Durability::new(base.clone(), log, log_knowledge, applied),
            base,
            published,
            locks: LockTable::new(),
            pipeline: Pipeline::default(),
            recent: Mutex::default(),
            flushed: Mutex::new(applied),
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
            unflushed: AtomicU64::new(0),
            flushing: AtomicU64::new(0),
            buffers: Mutex::default(),
            commits: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            conflicts: AtomicU64::new(0),
            applied: Default::default(),
            garbage: Mutex::default(),
            position: Mutex::new(applied),
            batches: AtomicU64::new(ahead.map_or(batch, |held| held.batch)),
            flush_allowed: AtomicU64::new(0),
            ordered_seals: AtomicU64::new(0),
            flushing_to: Mutex::default(),
            copies,
            checkpointing: Mutex::new(()),
            keeper: Mutex::default(),
            keeper_work: Condvar::new(),
            flushed_room: Condvar::new(),
            room: Mutex::new(()),
            flush_error: Mutex::default(),
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
        self.keeper.lock().running = true;
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
        self.keeper.lock().stop = true;
        self.keeper_work.notify_all();
        self.flushed_room.notify_all();
    }

    /// Whether background work is to end.
    pub fn is_stopping(&self) -> bool {
        self.keeper.lock().stop
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

    /// Writers that are faster than the disk wait here, so that memtables keep to their memory.
    ///
    /// Errors: what ends the operation (killed, `maxTimeMS`, shutdown); `OutOfDiskSpace` if there is no room for a flush.
    pub fn wait_for_room(&self) -> Result<()> {
        if self.base.db.events().is_stopped() {
            return Err(self.stopped());
        }
        let limit = self.base.options.memtable_bytes();
        let used = self.unflushed.load(Ordering::Relaxed);
        if used >= limit {
            self.ask_for_flush();
        }
        if used + self.flushing.load(Ordering::Relaxed) < limit * 2 {
            return Ok(());
        }
        let mut outcome = Ok(());
        (self.base.options.block)(&mut || {
            while self.lacks_memory(limit) && outcome.is_ok() {
                outcome = match self.flush_error.lock().clone() {
                    Some(error) => Err(error),
                    None => sheaf_meter::check(),
                };
                self.flushed_room.wait_for(&mut self.room.lock(), Duration::from_millis(20));
            }
        });
        outcome
    }

    fn lacks_memory(&self, limit: u64) -> bool {
        self.in_memtables() >= limit * 2
            && !self.durability.is_failed()
            // The commit of a primary that has lost its office would be refused anyway.
            && self.base.sequencer().is_none_or(|sequencer| sequencer.takes_writes())
            && self.keeper.lock().works()
    }

    /// Bytes of batches that memtables hold, those included that are being flushed.
    fn in_memtables(&self) -> u64 {
        self.unflushed.load(Ordering::Relaxed) + self.flushing.load(Ordering::Relaxed)
    }

    /// The error of writes after RocksDB has stopped.
    fn stopped(&self) -> Error {
        let why = self.base.db.events().last_error();
        let code =
            if self.base.db.events().may_go_on() { Code::OUT_OF_DISK_SPACE } else { Code::LOG_WRITE_FAILED };
        Error::new(code, format!("storage accepts no writes until it is opened anew: {why}"))
    }

    /// After a failed write: what is in the log, and is not in memtables, a restart will apply. If one is to come, nobody
    /// must act on the state in between.
    pub fn wait_for_restart(&self) {
        let comes = || self.base.db.events().may_go_on() && self.base.options.reopen.is_some();
        (self.base.options.block)(&mut || {
            while comes() && !self.is_stopping() && !self.durability.is_failed() {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
    }

    /// Has the folder opened anew, where RocksDB has stopped for want of room (or the like) and there is room again.
    fn restart_if_stopped(&self) {
        if let Some(reopen) = &self.base.options.reopen
            && self.base.db.events().may_go_on()
            && !self.durability.is_failed()
            && self.check_room().is_ok()
        {
            reopen(&self.base.db.events().last_error());
        }
    }

    /// [`Core::wait_for_room`] for a member that follows: it is held back a little where flushes do not keep up, but never
    /// for long. What it has may never be committed, and the unit that takes it back must come through.
    pub fn make_room(&self) {
        let limit = self.base.options.memtable_bytes();
        let used = self.unflushed.load(Ordering::Relaxed);
        if used >= limit {
            self.ask_for_flush();
        }
        if self.is_crowded() && self.keeper.lock().works() {
            self.flushed_room.wait_for(&mut self.room.lock(), FOLLOWER_PATIENCE);
        }
    }

    /// Whether memtables hold as much as they may, with those that are being flushed.
    pub fn is_crowded(&self) -> bool {
        self.in_memtables() >= self.base.options.memtable_bytes() * 2
    }

    pub fn ask_for_flush(&self) {
        let mut keeper = self.keeper.lock();
        if !keeper.asked {
            keeper.asked = true;
            self.keeper_work.notify_one();
        }
    }

    fn run_keeper(&self) {
        let mut last_flush = Instant::now();
        // What an earlier run has left is to go soon: a server that crashes again and again must not gather it.
        let mut patience = Duration::ZERO;
        let mut failures = self.base.db.events().failed_flushes();
        let mut retry = RETRY_MIN;
        let mut full_since = None;
        loop {
            {
                let mut keeper = self.keeper.lock();
                if !keeper.asked && !keeper.stop {
                    self.keeper_work.wait_for(&mut keeper, Duration::from_millis(500));
                }
                if keeper.stop {
                    return;
                }
                keeper.asked = false;
            }
            self.restart_if_stopped();
            self.collect_garbage();
            if let Err(error) = self.catch_up_with_commits() {
                tracing::warn!(%error, "a stable copy cannot be removed");
            }
            let unflushed = self.unflushed.load(Ordering::Relaxed);
            let delay = self.base.tuning.sync_delay();
            let old = !delay.is_zero() && last_flush.elapsed() >= delay;
            let garbage = last_flush.elapsed() >= patience && !self.garbage.lock().is_empty();
            patience = GARBAGE_PATIENCE;
            // One that has failed, whoever asked for it, is done again.
            let failed =
                self.base.db.events().failed_flushes() != failures || self.flush_error.lock().is_some();
            if failed
                || unflushed >= self.base.options.memtable_bytes()
                || ((old || garbage) && unflushed > 0)
            {
                failures = self.base.db.events().failed_flushes();
                let error = self.flush_for_room(&mut full_since).err();
                if let Some(error) = &error {
                    let first = self.flush_error.lock().is_none();
                    if first {
                        tracing::error!(%error, "flushing memtables failed; trying again");
                    }
                    // Once, and then less and less often: each time leaves a memtable behind.
                    retry = if first { RETRY_MIN } else { (retry * 2).min(RETRY_MAX) };
                    self.keeper_pause(retry);
                }
                *self.flush_error.lock() = error;
                last_flush = Instant::now();
            } else if old {
                last_flush = Instant::now();
            }
        }
    }

    /// Flushes what is committed; where memory is full and the commit point has been behind for a while, also what is not.
    fn flush_for_room(&self, full_since: &mut Option<Instant>) -> Result<()> {
        let limit = self.base.options.memtable_bytes();
        let used = || self.unflushed.load(Ordering::Relaxed);
        if self.try_checkpoint()? || !self.base.is_ordered() || used() < limit {
            *full_since = None;
            return Ok(());
        }
        let since = *full_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= AHEAD_PATIENCE || used() >= limit / 2 * 3 {
            self.flush_ahead()?;
            *full_since = None;
        }
        Ok(())
    }

    /// Waits, unless background work is to end.
    fn keeper_pause(&self, pause: Duration) {
        let began = Instant::now();
        let mut keeper = self.keeper.lock();
        while !keeper.stop && began.elapsed() < pause {
            self.keeper_work.wait_for(&mut keeper, pause.saturating_sub(began.elapsed()));
        }
    }

    /// Removes the data of dropped collections and indexes that nobody can read any more.
    pub fn collect_garbage(&self) {
        let ready: Vec<Garbage> = {
            let mut garbage = self.garbage.lock();
            let flushed = self.flushed.lock().index;
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
