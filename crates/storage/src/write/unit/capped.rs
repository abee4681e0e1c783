//! Inserts into capped collections: at the end, while the oldest records go.
//!
//! As in mongod an insert and the trimming that it makes necessary are one commit, and a document that is refused (a
//! duplicate, an interrupt while waiting) trims nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sheaf_bson::RawDoc;
use sheaf_errors::{Code, Result, bail};

use super::WriteUnit;
use super::oldest::Oldest;
use crate::catalog::Collection;
use crate::db::Cf;
use crate::keys::{PREFIX, capped_key, prefixed};
use crate::locks::LockKey;
use crate::write::Op;
use crate::write::changes::capped_lock;

/// Records that are deleted in one commit where a collection is over its limits already (`collMod` made them smaller).
const EXCESS_STEP: usize = 1000;

/// Records that are to go, with their keys within the collection, oldest first.
type Victims = Vec<(Vec<u8>, Vec<u8>)>;

/// What a capped collection may hold.
#[derive(Clone, Copy)]
struct Limits {
    /// Bytes of documents.
    size: i64,
    /// Documents.
    max: Option<i64>,
}

impl WriteUnit<'_> {
    /// Inserts at the end and deletes at the start, one writer at a time.
    pub(super) fn insert_capped(
        &mut self,
        collection: &Arc<Collection>,
        doc: RawDoc<'_>,
        size: i64,
        max: Option<i64>,
    ) -> Result<()> {
        let limits = Limits { size, max };
        let len = doc.len() as i64;
        if len > size {
            bail!(Code::BAD_VALUE, "object to insert exceeds cappedMaxSize");
        }
        let lock = capped_lock(self.core.commits.locks(), collection);
        while !self.fits(collection, limits, 0, 0)
            && !self.trim(collection, lock, limits, 0, EXCESS_STEP, None)?
        {}
        while !self.trim(collection, lock, limits, len, usize::MAX, Some(doc))? {}
        self.flush_what_is_large()
    }

    /// Deletes the oldest records, at most `most`, until `len` more bytes (and a document, if `doc` is given) fit, and
    /// inserts `doc` in the same commit. Returns false when it has to be done again, because something was waited for
    /// or more than `most` are to go.
    fn trim(
        &mut self,
        collection: &Arc<Collection>,
        lock: LockKey,
        limits: Limits,
        len: i64,
        most: usize,
        doc: Option<RawDoc<'_>>,
    ) -> Result<bool> {
        self.begin_write(collection)?;
        self.lock_all(&[lock])?;
        self.begin_write(collection)?;
        let rid = collection.state.next_key.load(Ordering::Acquire);
        let record_key = capped_key(rid);
        let mut walk = None;
        let Some((victims, enough)) =
            self.victims(collection, &mut walk, limits, len, most, doc.is_some())?
        else {
            // What is to go is pending here: the database shows it after a commit only.
            self.flush()?;
            return Ok(false);
        };
        let mut locks = vec![lock];
        for (key, old) in &victims {
            self.changes.compute(collection, key, Some(RawDoc::new(old)), None, self.core.commits.locks())?;
            locks.extend_from_slice(&self.changes.locks);
        }
        if let Some(doc) = doc {
            self.changes.compute(collection, &record_key, None, Some(doc), self.core.commits.locks())?;
            self.changes.check_long_keys(&self.core.flushes, collection, Op::Insert(doc))?;
            locks.extend_from_slice(&self.changes.locks);
        }
        // A victim is pending already where the unit has written to another capped collection in between.
        if !self.settle(&locks)? || !self.lock_all(&locks)? {
            return Ok(false);
        }
        let changed = walk.as_ref().is_some_and(|walk| walk.version != collection.version());
        if changed && !self.all_there(collection, &victims)? {
            return Ok(false);
        }
        if doc.is_some() {
            self.check_unique(collection, &record_key)?;
        }
        // All or nothing from here: no interrupt, no wait, no commit in between.
        let shield = sheaf_meter::shield();
        self.exchange(collection, &victims, rid, doc)?;
        drop(shield);
        if walk.is_some() {
            self.oldest = walk;
        }
        Ok(enough)
    }

    /// Notes the deletes and the insert for the next commit.
    fn exchange(
        &mut self,
        collection: &Arc<Collection>,
        victims: &Victims,
        rid: u64,
        doc: Option<RawDoc<'_>>,
    ) -> Result<()> {
        // The statement of a retryable write is the insert's.
        let statement = self.statement.take();
        for (key, old) in victims {
            let old = RawDoc::new(old);
            self.changes.compute(collection, key, Some(old), None, self.core.commits.locks())?;
            let rid = key.first_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes));
            self.put(collection, key, Op::Delete(old), rid);
        }
        self.statement = statement;
        if let Some((key, _)) = victims.last() {
            self.trimmed = Some([&collection.ident.to_be_bytes(), key.as_slice()].concat());
        }
        if let Some(doc) = doc {
            let record_key = capped_key(rid);
            self.changes.compute(collection, &record_key, None, Some(doc), self.core.commits.locks())?;
            collection.state.next_key.store(rid + 1, Ordering::Release);
            self.put(collection, &record_key, Op::Insert(doc), Some(rid));
        }
        Ok(())
    }

    /// The oldest committed records that have to go, and whether they are enough; none if the records that are left are
    /// all pending here. `walk` is then what has shown them.
    fn victims(
        &mut self,
        collection: &Arc<Collection>,
        walk: &mut Option<Oldest>,
        limits: Limits,
        len: i64,
        most: usize,
        one_more: bool,
    ) -> Result<Option<(Victims, bool)>> {
        let mut victims = Victims::new();
        let (mut docs, mut bytes) = (i64::from(one_more), len);
        if self.fits(collection, limits, docs, bytes) {
            return Ok(Some((victims, true)));
        }
        let cell = &mut walk.insert(self.oldest(collection)?).cell;
        while !self.fits(collection, limits, docs, bytes) {
            if victims.len() == most {
                return Ok(Some((victims, false)));
            }
            let (Some(key), Some(old)) = (cell.key(), cell.value()) else {
                return Ok(self.payload.is_empty().then_some((victims, true)));
            };
            sheaf_meter::tick(20)?;
            docs -= 1;
            bytes -= old.len() as i64;
            victims.push((key[PREFIX..].to_vec(), old.to_vec()));
            cell.step(|iter| iter.next())?;
        }
        Ok(Some((victims, true)))
    }

    /// Whether the collection, with what is pending here and this much more, is within its limits.
    fn fits(&self, collection: &Collection, limits: Limits, docs: i64, bytes: i64) -> bool {
        let (pending_docs, pending_bytes) = self.counts.of(&collection.state);
        let docs = collection.count() as i64 + pending_docs + docs;
        let bytes = collection.data_bytes() as i64 + pending_bytes + bytes;
        bytes <= limits.size && limits.max.is_none_or(|max| docs <= max)
    }

    /// At the oldest committed record that this unit does not delete already. The collection's lock is held: no other unit
    /// deletes from this end. Whoever takes the walk gives it back when what it showed is noted as deleted.
    fn oldest(&mut self, collection: &Collection) -> Result<Oldest> {
        if let Some(oldest) = self.oldest.take().filter(|oldest| oldest.ident == collection.ident) {
            return Ok(oldest);
        }
        Oldest::after(&self.core.base.db, collection, self.trimmed.as_deref())
    }

    /// Whether records that were read before they were locked are what they were.
    fn all_there(&mut self, collection: &Collection, records: &Victims) -> Result<bool> {
        let mut full = std::mem::take(&mut self.key);
        let mut same = true;
        for (key, old) in records {
            prefixed(collection.ident, key, &mut full);
            same = same && self.core.base.db.get(Cf::Records, &full)?.is_some_and(|now| *now == **old);
        }
        self.key = full;
        Ok(same)
    }
}
