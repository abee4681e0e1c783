//! Flushes: when what is committed becomes part of RocksDB's files, and what goes with it.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rocksdb::WriteBatch;
use sheaf_bson::RawDoc;
use sheaf_errors::{Code, Error, Result};

use crate::ages::Old;
use crate::catalog::whole;
use crate::core::{Core, LOCAL_IDENTS};
use crate::db::{Cf, Db};
use crate::hooks::HookPoint;
use crate::keys::catalog_key;
use crate::log_tail::LogKnowledge;
use crate::options::OpTime;

/// Writers are held back for this long at most while a flush waits for the set's majority.
const COMMIT_PATIENCE: Duration = Duration::from_millis(100);

/// And so long it waits before it holds them back, for the majority to come near.
const NEAR_PATIENCE: Duration = Duration::from_millis(200);

/// A flush that takes longer than this may be waiting for room on the disk.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);

impl Core {
    /// Makes everything committed so far part of RocksDB's files, and lets go of the log that is not needed. A member of a
    /// replica set flushes only what a majority has; if that does not come about in time, nothing is flushed.
    pub fn checkpoint(&self) -> Result<()> {
        self.try_checkpoint().map(|_| ())
    }

    /// [`Core::checkpoint`]; false if nothing was flushed.
    pub fn try_checkpoint(&self) -> Result<bool> {
        if self.is_replica() && self.sequencer.get().is_none() {
            // Recovery cannot know yet what the set keeps of the log's end.
            return Ok(false);
        }
        let _one = self.checkpointing.lock();
        self.flush_committed()
    }

    /// Flushes if the set allows it, and hands over RocksDB and the position that its files hold; they hold still meanwhile.
    pub fn with_flushed<T>(&self, work: impl FnOnce(&Db, OpTime) -> Result<T>) -> Result<T> {
        let _one = self.checkpointing.lock();
        self.flush_committed()?;
        if self.flushing.load(Ordering::Acquire) {
            return Err(Error::new(Code::INTERNAL_ERROR, "an earlier flush has not come to its end"));
        }
        let flushed = *self.flushed.lock();
        work(&self.db, flushed)
    }

    fn flush_committed(&self) -> Result<bool> {
        self.sync_for_checkpoint()?;
        if !self.is_nearly_committed() {
            return Ok(false);
        }
        let at = {
            let _still = self.still();
            // What is to be taken back must not be flushed.
            self.check_writable()?;
            if self.is_within_chain() {
                return Ok(false);
            }
            let at = *self.last.lock();
            if !self.wait_for_commit(at)? {
                return Ok(false);
            }
            let mut batch = WriteBatch::default();
            self.put_bookkeeping(at, &mut batch);
            self.db.write(batch)?;
            // Returns when new memtables have taken over; the rest happens in the background.
            self.flushing.store(true, Ordering::Release);
            self.db.flush(false)?;
            self.unflushed.store(0, Ordering::Relaxed);
            at
        };
        self.wait_for_flush()?;
        *self.flushed.lock() = at;
        self.flushing.store(false, Ordering::Release);
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.flushed_room.notify_all();
        self.tell(None, false);
        if let Some(log) = &self.log {
            let unneeded = at.index.min(self.old_enough(log)).min(self.log_pins.unneeded());
            let began = Instant::now();
            if log.retain(unneeded).map_err(|e| Error::new(Code::INTERNAL_ERROR, e.to_string()))? > 0 {
                self.truncations.0.fetch_add(1, Ordering::Relaxed);
                self.truncations.1.fetch_add(began.elapsed().as_micros() as u64, Ordering::Relaxed);
            }
            if let Some(sequencer) = self.sequencer.get() {
                sequencer.compacted(log.stats().first_index.saturating_sub(1).min(at.index));
            }
        }
        Ok(true)
    }

    /// RocksDB's files should not get ahead of the log: change streams would miss entries.
    fn sync_for_checkpoint(&self) -> Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        log.sync().map_err(|error| {
            self.fail(&error.to_string());
            Error::new(Code::LOG_WRITE_FAILED, error.to_string())
        })?;
        self.tell(None, false);
        self.report_durable();
        Ok(())
    }

    /// Whether a majority has what is applied now, after a while in which commits go on. Where it is further behind, to hold the
    /// pipeline would be in vain, and, done again and again, would keep this member from catching up or from letting others do so.
    fn is_nearly_committed(&self) -> bool {
        let Some(sequencer) = self.sequencer.get() else { return true };
        let at = self.last.lock().index;
        let began = Instant::now();
        while sequencer.commit_index() < at {
            if began.elapsed() > NEAR_PATIENCE {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Waits, the pipeline held, until a majority has everything that is applied here. False: it takes too long.
    fn wait_for_commit(&self, at: OpTime) -> Result<bool> {
        let Some(sequencer) = self.sequencer.get() else { return Ok(true) };
        self.sync_for_checkpoint()?;
        let began = Instant::now();
        while sequencer.commit_index() < at.index {
            if began.elapsed() > COMMIT_PATIENCE {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(true)
    }

    /// What a flush must contain besides the data: the position, and counters and multikey bits of
    /// changed collections. Commits do not carry them; the flush is where they must agree with the data.
    fn put_bookkeeping(&self, at: OpTime, batch: &mut WriteBatch) {
        let cf = self.db.cf(Cf::Catalog);
        let next = self.next_ident.load(Ordering::Acquire);
        let next_local = self.next_local_ident.load(Ordering::Acquire);
        let mut applied = sheaf_bson::doc! {
            "term": at.term as i64, "index": at.index as i64, "time": at.time as i64, "nextIdent": i64::from(next),
            "nextLocalIdent": i64::from(next_local)
        };
        let first = self.log.as_ref().map_or(1, |log| log.stats().first_index);
        applied.edit(|doc| {
            let mut terms = doc.array("terms");
            for (first, term) in self.log_knowledge.runs(first, at.index) {
                terms.push(first as i64);
                terms.push(term as i64);
            }
        });
        batch.put_cf(cf, catalog_key::APPLIED, applied.as_bytes());
        for collection in self.catalog.load().all() {
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

    /// Index up to which entries are old enough to be removed.
    fn old_enough(&self, log: &sheaf_log::Log) -> u64 {
        let retention = self.tuning.oplog_retention();
        if retention.is_zero() {
            return u64::MAX;
        }
        let last = self.last.lock().index;
        let old = match &mut *self.ages.lock() {
            Some(ages) => ages.old(Instant::now(), last, retention),
            None => Old::Index(0),
        };
        match old {
            Old::Index(index) => index,
            // A log that cannot be read keeps what it has.
            Old::Time(time) => log.read_from_time(time).map_or(0, |reader| reader.index().saturating_sub(1)),
        }
    }

    /// Errors: `OutOfDiskSpace` when the disk has no room for what is to be written. RocksDB then keeps the
    /// memtables and tries again by itself once there is room, and says nothing meanwhile.
    fn wait_for_flush(&self) -> Result<()> {
        let began = Instant::now();
        let mut pause = Duration::from_micros(200);
        let stuck = || self.hooks.call(HookPoint::Flush).is_err();
        while self.db.property("rocksdb.num-immutable-mem-table") > 0 || stuck() {
            if self.db.property("rocksdb.background-errors") > 0 {
                self.fail("writing memtables to disk failed");
                return self.check_writable();
            }
            if began.elapsed() > FLUSH_PATIENCE && (stuck() || self.lacks_room()) {
                return Err(Error::new(
                    Code::OUT_OF_DISK_SPACE,
                    "no room on the disk for flushing memtables",
                ));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Whether the disk has less room than the memtables may need.
    fn lacks_room(&self) -> bool {
        let needed = self.db.property("rocksdb.size-all-mem-tables");
        fs4::available_space(&self.options.path).is_ok_and(|room| room < needed)
    }
}

/// The position of the last flush, the next free numbers, and what is known of the log.
pub(crate) fn read_applied(db: &Db) -> Result<(OpTime, u32, u32, LogKnowledge)> {
    let Some(bytes) = db.get(Cf::Catalog, catalog_key::APPLIED)? else {
        return Ok((OpTime { term: 1, index: 0, time: 0 }, 1, LOCAL_IDENTS, LogKnowledge::default()));
    };
    let doc = RawDoc::new(&bytes);
    let number = |name: &str| doc.get(name).and_then(whole).unwrap_or(0);
    let at =
        OpTime { term: number("term") as u64, index: number("index") as u64, time: number("time") as u64 };
    let next_local = (number("nextLocalIdent") as u32).max(LOCAL_IDENTS);
    Ok((at, number("nextIdent").max(1) as u32, next_local, LogKnowledge::read(doc)))
}
