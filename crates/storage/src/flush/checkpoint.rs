//! Flushes: when what is committed becomes part of RocksDB's files, and what goes with it.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rocksdb::WriteBatch;
use sheaf_bson::RawDoc;
use sheaf_errors::{Code, Error, Result, bail};

use super::scarce::no_room;
use crate::catalog::Collection;
use crate::core::Core;
use crate::critical::must;
use crate::db::blobs::Reason;
use crate::db::{Cf, Db};
use crate::definitions::LOCAL_IDENTS;
use crate::durability::LogKnowledge;
use crate::hooks::HookPoint;
use crate::keys::catalog_key;
use crate::options::OpTime;

/// Writers are held back for this long at most while a flush waits for the set's majority.
const COMMIT_PATIENCE: Duration = Duration::from_millis(100);

/// And so long it waits before it holds them back, for the majority to come near.
const NEAR_PATIENCE: Duration = Duration::from_millis(200);

/// A flush that does not end for so long is given up; the next one has it to do.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);

/// A flush that RocksDB has begun.
struct Begun {
    at: OpTime,
    /// How many memtables had been sealed with it.
    sealed: u64,
    /// How many flushes had failed before.
    failed: u64,
    /// What it frees of memory.
    bytes: u64,
}

impl Core {
    /// Makes everything committed so far part of RocksDB's files, and lets go of the log that is not needed. A member of a
    /// replica set flushes only what a majority has; if that does not come about in time, nothing is flushed
    /// ([`Core::flush_ahead`] is for when memory has to be freed).
    pub fn checkpoint(&self) -> Result<()> {
        self.try_checkpoint().map(|_| ())
    }

    /// [`Core::checkpoint`]; false if nothing was flushed.
    pub fn try_checkpoint(&self) -> Result<bool> {
        if self.base.is_replica() && self.base.sequencer().is_none() {
            // Recovery cannot know yet what the set keeps of the log's end.
            return Ok(false);
        }
        let _one = self.flushes.take_turn()?;
        self.flush_committed()
    }

    /// [`Core::checkpoint`] where nobody has asked the set: an operator has decided what is kept.
    pub fn flush_whatever_the_set_has(&self) -> Result<()> {
        let _one = self.flushes.take_turn()?;
        self.flush_committed().map(|_| ())
    }

    /// Flushes if the set allows it, and hands over RocksDB and the position that its files hold; they hold still meanwhile.
    pub fn with_flushed<T>(&self, work: impl FnOnce(&Db, OpTime) -> Result<T>) -> Result<T> {
        let _one = self.flushes.take_turn()?;
        self.flush_committed()?;
        if self.flushes.flushing_to.lock().is_some() {
            return Err(Error::new(Code::INTERNAL_ERROR, "an earlier flush has not come to its end"));
        }
        let flushed = self.flushes.flushed();
        work(&self.base.db, flushed)
    }

    fn flush_committed(&self) -> Result<bool> {
        self.durability.sync_for_checkpoint()?;
        self.base.db.values().sync_names()?;
        self.let_go_of_copies();
        self.check_room()?;
        if !self.is_nearly_committed()? {
            return Ok(false);
        }
        let begun = {
            let _still = self.still();
            // What is to be taken back must not be flushed.
            self.durability.check_writable()?;
            if self.commits.is_within_chain() {
                return Ok(false);
            }
            let at = self.published.last();
            if !self.wait_for_commit(at)? {
                return Ok(false);
            }
            // The log before the files, also with what came since it was synced.
            if self.base.is_ordered() {
                self.sync_up_to(at)?;
            }
            self.begin_flush(at)?
        };
        self.open_gate(&begun)?;
        self.end_flush(begun)?;
        // The disk may have been full when it was opened.
        crate::folder::keep_spare_room(&self.base.options.path);
        Ok(true)
    }

    /// Flushes without waiting for the set's majority. A copy of what the files hold until then stays beside them for as long
    /// as a rollback may need it; see [`super::stable`]. In the middle of a transaction of several entries nothing is flushed.
    pub fn flush_ahead(&self) -> Result<()> {
        let _one = self.flushes.take_turn()?;
        self.durability.sync_for_checkpoint()?;
        self.check_room()?;
        self.let_go_of_copies();
        self.flushes.keep_copy()?;
        let begun = {
            let _still = self.still();
            self.durability.check_writable()?;
            if self.commits.is_within_chain() {
                return Ok(());
            }
            // The log before the files, also with what came meanwhile.
            self.durability.sync_for_checkpoint()?;
            let at = self.published.last();
            self.begin_flush(at)?
        };
        self.open_gate(&begun)?;
        self.end_flush(begun)?;
        self.commits.majority().thin_candidates();
        Ok(())
    }

    /// Has the log last up to here.
    fn sync_up_to(&self, at: OpTime) -> Result<()> {
        if self.durability.durable_index() >= at.index {
            Ok(())
        } else {
            self.durability.sync_for_checkpoint()
        }
    }

    /// Has the log last, and the names of its files, as far as a flush that has begun needs it: others go on meanwhile, RocksDB's thread waits at the
    /// gate. What comes there before anything else is sealed holds nothing behind that, whatever is committed meanwhile.
    fn open_gate(&self, begun: &Begun) -> Result<()> {
        let at = begun.at;
        let lasts = self.base.db.values().sync_names().and_then(|()| {
            let needed = self.flushes.allowed.load(Ordering::Acquire) < at.index;
            if needed { self.sync_up_to(at) } else { Ok(()) }
        });
        if lasts.is_ok() {
            self.flushes.allowed.fetch_max(at.index, Ordering::AcqRel);
            self.flushes.ordered_seals.store(begun.sealed, Ordering::Release);
        } else {
            self.flushes.flush_over(begun.bytes, false);
        }
        self.flushes.ordering.store(false, Ordering::Release);
        lasts
    }

    /// Has RocksDB switch memtables, and wait at the gate before it writes them. The pipeline is held.
    fn begin_flush(&self, at: OpTime) -> Result<Begun> {
        must!(
            at == self.published.last(),
            "a flush up to {at:?}, and the newest commit is {:?}",
            self.published.last()
        );
        let failed = self.base.db.events().failed_flushes();
        let mut batch = WriteBatch::default();
        self.put_bookkeeping(at, &mut batch);
        self.base.db.values().put_changed(self.base.db.cf(Cf::Catalog), &mut batch);
        self.base.db.write(batch)?;
        *self.flushes.flushing_to.lock() = Some(at);
        if self.durability.log().is_none() || self.durability.durable_index() >= at.index {
            // Whatever becomes of the log's end from here on.
            self.flushes.allowed.fetch_max(at.index, Ordering::AcqRel);
        }
        self.flushes.ordering.store(true, Ordering::Release);
        // Returns when new memtables have taken over; the rest happens in the background.
        if let Err(error) = self.base.db.flush() {
            self.flushes.ordering.store(false, Ordering::Release);
            return Err(error);
        }
        let sealed = self.base.db.events().sealed();
        let bytes = self.flushes.move_to_flush();
        Ok(Begun { at, sealed, failed, bytes })
    }

    /// Waits until what was begun is on disk, and lets go of what is not needed any more.
    fn end_flush(&self, Begun { at, failed, bytes, .. }: Begun) -> Result<()> {
        let waited = self.wait_for_flush(failed);
        self.flushes.flush_over(bytes, waited.is_ok());
        waited?;
        self.base.hooks.call(HookPoint::Flushed)?;
        self.flushes.file_key_bytes.store(self.base.db.file_key_bytes(), Ordering::Relaxed);
        self.flushes.ended(at);
        self.durability.flushed(at.index);
        self.durability.tell(None, false);
        self.tune_blobs(self.flushes.why_blobs_move());
        self.let_go_of_copies();
        self.retain_log()
    }

    /// [`Flushes::forget_copies`](super::Flushes::forget_copies). What stays behind costs room and keeps the log long; a flush does not fail for it.
    fn let_go_of_copies(&self) {
        if let Err(error) = self.flushes.forget_copies() {
            tracing::warn!(%error, "a stable copy cannot be removed");
        }
    }

    /// Removes copies and entries of the log that the commit point has made needless since the last flush.
    pub fn catch_up_with_commits(&self) -> Result<()> {
        let Some(before) = self.flushes.copies.oldest() else { return Ok(()) };
        let _one = self.flushes.take_turn()?;
        self.flushes.forget_copies()?;
        if self.flushes.copies.oldest() == Some(before) { Ok(()) } else { self.retain_log() }
    }

    /// Removes the log's beginning, as far as nobody needs it, between flushes.
    pub fn thin_log(&self) -> Result<()> {
        let _one = self.flushes.take_turn()?;
        self.retain_log()
    }

    /// Removes the log's beginning as far as nobody needs it.
    fn retain_log(&self) -> Result<()> {
        self.durability.retain_log(self.flushes.stable().index, self.published.last().index)?;
        if let Some(log) = self.durability.log() {
            self.flushes.tell_of_growth(log, self.published.last().index);
        }
        Ok(())
    }

    /// Whether a majority has what is applied now, after a while in which commits go on. Where it is further behind, to hold the
    /// pipeline would be in vain, and, done again and again, would keep this member from catching up or from letting others do so.
    fn is_nearly_committed(&self) -> Result<bool> {
        let Some(sequencer) = self.base.sequencer() else { return Ok(true) };
        let at = self.published.last().index;
        let began = Instant::now();
        while sequencer.commit_index() < at {
            if began.elapsed() > NEAR_PATIENCE {
                return Ok(false);
            }
            sheaf_meter::check()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(true)
    }

    /// Waits, the pipeline held, until a majority has everything that is applied here. False: it takes too long.
    fn wait_for_commit(&self, at: OpTime) -> Result<bool> {
        let Some(sequencer) = self.base.sequencer() else { return Ok(true) };
        self.durability.sync_for_checkpoint()?;
        let began = Instant::now();
        while sequencer.commit_index() < at.index {
            if began.elapsed() > COMMIT_PATIENCE {
                return Ok(false);
            }
            sheaf_meter::check()?;
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(true)
    }

    /// What a flush must contain besides the data: the position, and counters and multikey bits of
    /// changed collections. Commits do not carry them; the flush is where they must agree with the data.
    fn put_bookkeeping(&self, at: OpTime, batch: &mut WriteBatch) {
        let cf = self.base.db.cf(Cf::Catalog);
        let (next, next_local) = self.definitions.next_idents();
        let mut applied = sheaf_bson::doc! {
            "term": at.term as i64, "index": at.index as i64, "time": at.time as i64, "nextIdent": i64::from(next),
            "nextLocalIdent": i64::from(next_local), "batch": self.commits.position().batch as i64
        };
        let first = self.durability.log().map_or(1, |log| log.stats().first_index);
        applied.edit(|doc| {
            let mut terms = doc.array("terms");
            for (first, term) in self.durability.knowledge().runs(first, at.index) {
                terms.push(first as i64);
                terms.push(term as i64);
            }
        });
        batch.put_cf(cf, catalog_key::APPLIED, applied.as_bytes());
        for collection in self.published.peek_catalog().all() {
            if !collection.state.dirty.swap(false, Ordering::AcqRel) {
                continue;
            }
            let mut counters = [0; 16];
            counters[..8].copy_from_slice(&collection.state.docs.load(Ordering::Acquire).to_le_bytes());
            counters[8..].copy_from_slice(&collection.state.bytes.load(Ordering::Acquire).to_le_bytes());
            batch.put_cf(cf, catalog_key::of(catalog_key::COUNTERS, collection.ident), counters);
            for index in collection.indexes.iter().filter(|index| index.multikey()) {
                let masks: Vec<u8> =
                    index.multikey.masks().iter().flat_map(|mask| mask.to_le_bytes()).collect();
                batch.put_cf(cf, catalog_key::of(catalog_key::MULTIKEY, index.ident), masks);
            }
        }
    }

    /// Errors: the flush has failed or cannot end. What it should have written is still in memtables, and is part of the
    /// next one.
    fn wait_for_flush(&self, failed: u64) -> Result<()> {
        let began = Instant::now();
        let mut pause = Duration::from_micros(200);
        let stuck = || self.base.hooks.call(HookPoint::Flush).is_err();
        while stuck() || !self.base.db.flush_ended(failed)? {
            if began.elapsed() > FLUSH_PATIENCE && stuck() {
                return Err(no_room());
            }
            // Before it stands one that RocksDB has begun by itself, with what the set has not committed. It may never.
            if self.is_stopping() && self.base.db.events().is_held() && began.elapsed() > FLUSH_PATIENCE {
                return Err(Error::new(
                    Code::INTERRUPTED_AT_SHUTDOWN,
                    "a flush waits for the set's majority",
                ));
            }
            // Whoever flushes next waits for this one, too.
            sheaf_meter::check()?;
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Compacts a collection's records and indexes now. RocksDB flushes before that what memtables have of them, and with it
    /// all memtables; what a checkpoint has just flushed need not be waited for then.
    pub fn compact(&self, collection: &Collection) -> Result<()> {
        if !self.try_checkpoint()? {
            bail!(
                Code::OPERATION_FAILED,
                "compact: the set's majority does not have what this member has, so it cannot be flushed yet"
            );
        }
        let db = &self.base.db;
        self.tune_blobs(Reason::Asked);
        db.compact_prefix(Cf::Records, collection.ident);
        collection.indexes.iter().for_each(|index| db.compact_prefix(Cf::Indexes, index.ident));
        // If something was flushed meanwhile, counters follow.
        self.checkpoint()
    }

    /// [`Db::tune_blobs`]. It may fail where the disk is full; files are only larger for it.
    fn tune_blobs(&self, reason: Reason) {
        if let Err(error) = self.base.db.tune_blobs(reason) {
            tracing::warn!(%error, "whether large values are moved cannot be changed");
        }
    }
}

/// What the last checkpoint has written of itself.
pub(crate) struct Bookkeeping {
    /// Its position.
    pub at: OpTime,
    /// Number of the last batch before it.
    pub batch: u64,
    /// The next free numbers: everywhere, and on this member only.
    pub idents: (u32, u32),
    pub log_knowledge: LogKnowledge,
}

/// The bookkeeping of the last checkpoint.
pub(crate) fn read_applied(db: &Db) -> Result<Bookkeeping> {
    let Some(bytes) = db.get(Cf::Catalog, catalog_key::APPLIED)? else {
        return Ok(Bookkeeping {
            at: OpTime { term: 1, index: 0, time: 0 },
            batch: 0,
            idents: (1, LOCAL_IDENTS),
            log_knowledge: LogKnowledge::default(),
        });
    };
    let doc = RawDoc::new(&bytes);
    let known = |name: &str| doc.get(name).and_then(|v| v.as_exact_i64());
    let (Some(term), Some(index), Some(time), Some(next)) =
        (known("term"), known("index"), known("time"), known("nextIdent"))
    else {
        // Taken for nothing, the whole log would be applied again, and numbers would be given twice.
        bail!(Code::INTERNAL_ERROR, "the last checkpoint's bookkeeping cannot be read: {doc:?}");
    };
    let number = |name: &str| known(name).unwrap_or(0);
    let at = OpTime { term: term as u64, index: index as u64, time: time as u64 };
    Ok(Bookkeeping {
        at,
        batch: number("batch") as u64,
        idents: (next.max(1) as u32, (number("nextLocalIdent") as u32).max(LOCAL_IDENTS)),
        log_knowledge: LogKnowledge::read(doc),
    })
}
