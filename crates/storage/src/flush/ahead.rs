//! Flushes ahead of the set's commit point, and the way back behind them.
//!
//! As a rule RocksDB's files hold nothing that a majority of the set has not: a rollback throws memtables away, cuts the log
//! and applies it again from the last flush. Where the commit point stands still for long (a primary with an arbiter, whose
//! secondary is away) memory would be full soon, and every write would wait. So before something is flushed that may have
//! to be taken back, what the files hold by then is kept beside them: a *stable copy*, hard links of RocksDB's tables,
//! which cost no time and, until compaction has replaced the tables, no room.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use rocksdb::checkpoint::Checkpoint;
use sheaf_errors::{Code, Result, bail};
use sheaf_log::Log;

use super::Flushes;
use super::stable::{self, FOLDER, name_of};
use crate::db::io_error;
use crate::folder::{file_error, remove, sync};
use crate::hooks::HookPoint;
use crate::options::OpTime;

/// Ends the names of copies that are being removed.
const OLD: &str = "old";
/// One that is committed, and one that waits to be.
const COPIES_MAX: usize = 2;

impl Flushes {
    /// Up to where everything that the folder holds, in its data or in a copy, is committed; a rollback need not, and
    /// cannot, go back behind it.
    pub fn stable(&self) -> OpTime {
        // In this order: whoever flushes ahead has made a copy before, and copies go when what is flushed is committed.
        let flushed = self.flushed();
        self.copies.oldest().unwrap_or(flushed)
    }

    /// The oldest copy and its folder, if the data are ahead of the commit point.
    pub fn stable_copy(&self) -> Option<(OpTime, PathBuf)> {
        let at = self.copies.oldest()?;
        Some((at, self.path_of(at)))
    }

    fn path_of(&self, at: OpTime) -> PathBuf {
        self.base.options.path.join(FOLDER).join(name_of(at))
    }

    /// Up to where entries may be in RocksDB's files: a flush that was begun may end at any time.
    fn files_reach(&self) -> u64 {
        let under_way = self.flushing_to.lock().map_or(0, |to| to.index);
        under_way.max(self.flushed().index).max(self.copies.let_through.load(Ordering::Acquire))
    }

    /// Whether RocksDB may flush, for reasons of its own, entries up to here that the set has not committed.
    pub(crate) fn may_flush_ahead(&self, index: u64) -> bool {
        let copies = self.copies.at.lock();
        let may = !copies.is_empty() && !self.copies.closed.load(Ordering::Acquire);
        if may {
            self.copies.let_through.fetch_max(index, Ordering::AcqRel);
        }
        may
    }

    /// Keeps what the files hold now, as far as there is no such copy yet. Flushes stand still meanwhile.
    pub(crate) fn keep_copy(&self) -> Result<()> {
        let flushed = self.flushed();
        let first;
        {
            let copies = self.copies.at.lock();
            if copies.len() >= COPIES_MAX || copies.last().is_some_and(|last| last.index >= flushed.index) {
                return Ok(());
            }
            // A later copy is to hold exactly what its name says: perhaps nothing of what follows is kept.
            first = copies.is_empty();
        }
        let exact = || first || self.files_reach() == flushed.index;
        if !exact() {
            return Ok(());
        }
        let home = self.base.options.path.join(FOLDER);
        fs::create_dir_all(&home).map_err(|e| file_error("creating", &home, &e))?;
        let path = self.path_of(flushed);
        // Of an attempt whose end failed.
        remove(&path)?;
        if let Err(error) = self.make_copy(&home, &path) {
            // As long as it is there the log must reach back to it.
            if remove(&path).is_err() {
                self.copies.at.lock().push(flushed);
            }
            return Err(error);
        }
        if !exact() {
            // RocksDB has flushed by itself meanwhile.
            return remove(&path);
        }
        self.copies.at.lock().push(flushed);
        self.base.hooks.call(HookPoint::StableCopy)
    }

    fn make_copy(&self, home: &Path, path: &Path) -> Result<()> {
        self.base.hooks.call(HookPoint::StableCopy)?;
        let checkpoint = Checkpoint::new(self.base.db.raw()).map_err(io_error)?;
        // The highest figure means: flush nothing.
        checkpoint.create_checkpoint_with_log_size(path, u64::MAX).map_err(io_error)?;
        self.base.db.values().link_into(path)?;
        self.base.hooks.call(HookPoint::StableCopy)?;
        sync(home)?;
        sync(&self.base.options.path)
    }

    /// Lets go of the copies that the commit point has made needless. Flushes stand still meanwhile.
    pub(crate) fn forget_copies(&self) -> Result<()> {
        {
            let copies = self.copies.at.lock();
            if copies.is_empty() {
                return Ok(());
            }
            self.copies.closed.store(true, Ordering::Release);
        }
        let forgotten = self.forget_needless();
        self.copies.closed.store(false, Ordering::Release);
        forgotten
    }

    fn forget_needless(&self) -> Result<()> {
        let Some(sequencer) = self.base.sequencer() else { return Ok(()) };
        let commit = sequencer.commit_index();
        let reach = self.files_reach();
        let needless: Vec<OpTime> = {
            let copies = self.copies.at.lock();
            let newest = copies.iter().rposition(|at| at.index <= commit).unwrap_or(0);
            let keep = if reach <= commit { copies.len() } else { newest };
            copies[..keep].to_vec()
        };
        for at in needless {
            self.base.hooks.call(HookPoint::StableCopy)?;
            let path = self.path_of(at);
            let old = path.with_file_name(format!("{}.{OLD}", name_of(at)));
            remove(&old)?;
            fs::rename(&path, &old).map_err(|e| file_error("moving", &path, &e))?;
            sync(&self.base.options.path.join(FOLDER))?;
            self.base.hooks.call(HookPoint::StableCopy)?;
            // From here on the log behind it may go.
            self.copies.at.lock().retain(|kept| *kept != at);
            remove(&old)?;
            let left = self.copies.at.lock().len();
            let (copy, commit_point) = (at.index, commit);
            tracing::info!(
                copy,
                commit_point,
                left,
                "removed a stable copy: the set has committed what follows it"
            );
            if left == 0 {
                self.copies.told.store(0, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Says that the log grows, the first time and whenever it has doubled.
    pub(crate) fn tell_of_growth(&self, log: &Log, last: u64) {
        let Some(oldest) = self.copies.oldest() else { return };
        let bytes = log.stats().bytes;
        let told = self.copies.told.load(Ordering::Relaxed);
        if told > 0 && bytes < told.saturating_mul(2) {
            return;
        }
        self.copies.told.store(bytes, Ordering::Relaxed);
        let commit_point = self.base.sequencer().map_or(0, |sequencer| sequencer.commit_index());
        tracing::warn!(
            commit_point,
            uncommitted = last.saturating_sub(commit_point),
            log_megabytes = bytes >> 20,
            log_kept_from = oldest.index,
            oplog_megabytes = log.retain_bytes() >> 20,
            "the set's commit point stands still: what is not committed is flushed, and the log and the tables of the last \
             committed flush are kept until a majority of the members with data is back"
        );
    }

    /// Before the log's end after `keep` is cut: where RocksDB's files will be. If they are ahead of it now, a copy takes their
    /// place at the next start.
    ///
    /// Errors: `UnrecoverableRollbackError` if there is none that is old enough.
    pub(crate) fn base_for(&self, keep: u64) -> Result<OpTime> {
        let reach = self.files_reach();
        if keep >= reach {
            return Ok(self.flushed());
        }
        // Not a newer one: it may hold what is kept now and taken back later, and then nothing would be left to go back to.
        let Some(copy) = self.copies.oldest().filter(|oldest| oldest.index <= keep) else {
            bail!(
                Code::UNRECOVERABLE_ROLLBACK_ERROR,
                "entries up to {reach} are in the data files, so the log cannot be cut after {keep}"
            );
        };
        stable::choose(&self.base.options.path, copy)?;
        self.base.hooks.call(HookPoint::StableCopy)?;
        Ok(copy)
    }
}
