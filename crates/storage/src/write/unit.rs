//! Plain writes: every document atomic by itself, many of them in one commit.

mod capped;
mod oldest;

use std::sync::Arc;

use rocksdb::WriteBatch;
use sheaf_bson::RawDoc;
use sheaf_errors::{Code, Error, Result};
use sheaf_meter::Held;
use smallvec::SmallVec;

use self::oldest::Oldest;
use crate::catalog::Collection;
use crate::commit::prepared::{Counts, Large, Prepared};
use crate::core::Core;
use crate::critical::must;
use crate::db::Cf;
use crate::db::sink::BatchSink;
use crate::db::values::{Gone, Reference};
use crate::keys::{entry_parts, put_id_key};
use crate::locks::{Closed, Hold, LockKey, Locked, Owner, Pass};
use crate::oplog::Statement;
use crate::options::{Interrupt, OpTime};
use crate::read::view::View;
use crate::sequencer::stays_here;
use crate::write::changes::{Changes, WrittenKeys, record_lock_at};
use crate::write::guard;
use crate::write::sessions;
use crate::write::{
    CreateCollection, DocumentKey, Marks, Op, Write, check_record_key, duplicate_id, refuse_view,
};

/// From so much on what is pending is counted with the operation's memory.
const COUNTED_BYTES: usize = 1 << 20;

/// What is pending is committed when it has come to so many changes of keys. Whoever else commits waits for that long: some ten
/// milliseconds.
const PENDING_CHANGES_MAX: usize = 8 << 10;

/// So many bytes of a payload are committed at a time where there are more: it is written from the processor's cache, into buffers that are used
/// again, and others' commits get in between.
const PAYLOAD_AT_ONCE: usize = 4 << 20;

/// Room in a batch for keys and index entries of a small document.
const SMALL_BATCH_BYTES: usize = 256;

/// Plain writes. Each document is atomic; all go through as one commit when nothing forces an earlier
/// one (a wait for a lock, a document touched twice, size). What is pending when it is dropped is lost.
pub struct WriteUnit<'i> {
    core: Arc<Core>,
    interrupt: Interrupt<'i>,
    owner: Owner,
    payload: Vec<u8>,
    /// Made with the first operation.
    batch: Option<WriteBatch>,
    /// Bytes of documents in the payload to which the batch refers.
    left: u64,
    /// What nothing refers to when that is committed.
    gone: Gone,
    counts: Counts,
    /// Held; given back after each commit.
    locks: Vec<LockKey>,
    /// Locks of what is written but not committed: the database does not show these yet.
    pending: Pending,
    passes: SmallVec<[(Arc<Collection>, Admission); 2]>,
    fsync_pass: Option<Pass>,
    /// Of collections whose placements it writes.
    holds: SmallVec<[Hold; 1]>,
    changes: Changes,
    key: Vec<u8>,
    statement: Option<Statement>,
    /// Other statements whose the next operation is.
    joint: Vec<Statement>,
    last: Option<OpTime>,
    /// The newest record that this unit trims from a capped collection, uncommitted: the next insert trims behind it.
    trimmed: Option<Vec<u8>>,
    /// Stands on what the next insert trims, while the collection's lock is held.
    oldest: Option<Oldest>,
    /// What is pending, if it is much. Keys are in it several times, so it can be a multiple of the message.
    memory: Held,
    /// What the log says of the next operations besides what they do.
    marks: Marks,
    /// What is pending goes neither into the log nor to other members.
    stays: bool,
    /// [`Commits::others`](crate::commit::Commits::others) at the start.
    since: u64,
}

/// Why a unit may write to a collection.
enum Admission {
    /// It is within the gate.
    #[allow(dead_code)]
    Passed(Pass),
    /// Whom it works for has closed the gate for all others.
    #[allow(dead_code)]
    Closed(Closed),
}

/// Collections that a unit may have passed into. A command that writes to many goes out of all where it has become too many.
const PASSES_MAX: usize = 32;

/// Buffers of a unit that the thread's next unit uses again: most commands write one small document.
#[derive(Default)]
struct Scratch {
    changes: Changes,
    key: Vec<u8>,
    locks: Vec<LockKey>,
}

/// After a larger unit the buffers are not worth keeping.
const SCRATCH_LOCKS_MAX: usize = 1024;
const SCRATCH_BYTES_MAX: usize = 1 << 20;

thread_local! {
    static SCRATCH: std::cell::Cell<Option<Scratch>> = const { std::cell::Cell::new(None) };
}

/// Locks of what is written but not committed. Most commands write one document: its few locks need no table.
#[derive(Default)]
struct Pending {
    few: SmallVec<[LockKey; 8]>,
    many: Option<Box<ahash::AHashSet<LockKey>>>,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.few.is_empty()
    }

    fn contains(&self, key: LockKey) -> bool {
        self.few.contains(&key) || self.many.as_ref().is_some_and(|many| many.contains(&key))
    }

    fn extend(&mut self, keys: &[LockKey]) {
        for key in keys {
            if self.few.len() < self.few.inline_size() {
                self.few.push(*key);
            } else {
                self.many.get_or_insert_default().insert(*key);
            }
        }
    }

    fn clear(&mut self) {
        self.few.clear();
        self.many = None;
    }
}

impl<'i> WriteUnit<'i> {
    pub(crate) fn new(core: Arc<Core>, interrupt: Interrupt<'i>) -> Self {
        let Scratch { changes, key, locks } = SCRATCH.take().unwrap_or_default();
        WriteUnit {
            since: core.commits.others(),
            owner: core.commits.locks().owner(),
            payload: core.commits.take_buffer(),
            core,
            interrupt,
            batch: None,
            left: 0,
            gone: Gone::default(),
            counts: Counts::default(),
            locks,
            pending: Pending::default(),
            passes: SmallVec::new(),
            fsync_pass: None,
            holds: SmallVec::new(),
            changes,
            key,
            statement: None,
            joint: Vec::new(),
            last: None,
            trimmed: None,
            oldest: None,
            memory: Held::default(),
            marks: Marks::default(),
            stays: false,
        }
    }

    /// What it writes from now on is a copy of what is on another shard, or the removal of one: no change of anybody's data.
    pub fn set_from_migrate(&mut self) {
        self.marks.from_migrate = true;
    }

    /// Commits what is pending and gives the position of the last commit (of the newest state, if there was none).
    pub fn commit(mut self) -> Result<OpTime> {
        self.flush()?;
        Ok(self.last.unwrap_or_else(|| self.core.published.last()))
    }

    /// Position of this unit's last commit, if it has made one.
    pub fn last_commit(&self) -> Option<OpTime> {
        self.last
    }

    /// Whether something is written but not committed.
    pub fn has_pending(&self) -> bool {
        !self.payload.is_empty()
    }

    /// Commits what is pending and stays usable: later reads see it.
    ///
    /// Errors: those of a commit, for all statements that were pending: none of them is kept.
    pub fn flush(&mut self) -> Result<OpTime> {
        if self.payload.is_empty() {
            self.release();
            return Ok(self.last.unwrap_or_else(|| self.core.published.last()));
        }
        let prepared = Prepared {
            payload: std::mem::take(&mut self.payload),
            chained: false,
            batch: self.batch.take().unwrap_or_default(),
            large: Large::boxed(std::mem::take(&mut self.left), std::mem::take(&mut self.gone)),
            counts: std::mem::take(&mut self.counts),
            locks: self.locks.as_slice().into(),
            publish: None,
            since: Some(self.since),
            above: 0,
            step: None,
        };
        let result = if self.stays { self.core.commit_here(prepared) } else { self.core.commit(prepared) };
        self.core.commits.locks().unlock(&self.locks, self.owner);
        self.locks.clear();
        self.pending.clear();
        self.trimmed = None;
        self.oldest = None;
        self.fsync_pass = None;
        self.memory = Held::default();
        let at = result.map_err(Error::of_several)?;
        self.last = Some(at);
        Ok(at)
    }

    /// Gives back all locks; nothing may be pending.
    fn release(&mut self) {
        self.core.commits.locks().unlock(&self.locks, self.owner);
        self.locks.clear();
        self.pending.clear();
        self.oldest = None;
        self.fsync_pass = None;
    }

    /// Takes these locks, all or none; waits with none held. Returns false when it had to give up what it
    /// held before, so that what was read under it must be read again.
    fn lock_all(&mut self, keys: &[LockKey]) -> Result<bool> {
        let mut kept = true;
        loop {
            let before = self.locks.len();
            let busy = keys.iter().find(|key| match self.core.commits.locks().try_lock(**key, self.owner) {
                Locked::Taken => {
                    self.locks.push(**key);
                    false
                }
                Locked::Already => false,
                Locked::Busy => true,
            });
            let Some(busy) = busy.copied() else { return Ok(kept) };
            let taken = self.locks.split_off(before);
            self.core.commits.locks().unlock(&taken, self.owner);
            // Nobody waits while holding: what is pending goes through first.
            self.flush()?;
            self.release();
            kept = false;
            self.core.commits.locks().wait(busy, &self.core.base.options.block, self.interrupt)?;
        }
    }

    /// The database shows only what is committed: touching a key of pending changes commits them first.
    fn settle(&mut self, keys: &[LockKey]) -> Result<bool> {
        if self.pending.is_empty() || !keys.iter().any(|key| self.pending.contains(*key)) {
            return Ok(true);
        }
        self.flush()?;
        Ok(false)
    }

    /// Lets the unit write to a collection that whom it works for has closed for all others.
    pub(crate) fn admit(&mut self, collection: &Arc<Collection>, closed: &Closed) {
        must!(closed.closes(&collection.state.gate), "the gate of {} is not closed", collection.namespace);
        self.passes.push((collection.clone(), Admission::Closed(closed.clone())));
    }

    fn begin_write(&mut self, collection: &Collection) -> Result<()> {
        refuse_view(collection)?;
        // What is written past the gate is lost to whoever copies the collection or takes its place.
        must!(
            self.passes.iter().any(|(known, _)| Arc::ptr_eq(&known.state, &collection.state)),
            "{} is written to without a pass through its gate",
            collection.namespace
        );
        if self.core.base.is_replica() {
            let stays = stays_here(&collection.namespace);
            if stays != self.stays {
                self.flush()?;
                self.stays = stays;
            }
        }
        if self.fsync_pass.is_none() {
            self.fsync_pass = Some(self.core.commits.pass(self.interrupt)?);
        }
        Ok(())
    }

    /// Holds the collection whose placement this is, until the unit is done.
    fn hold_placed(&mut self, home: &Collection, document: RawDoc<'_>) -> Result<()> {
        let Some(placed) = guard::placed_by(&self.core.published.peek_catalog(), home, document) else {
            return Ok(());
        };
        if !self.holds.iter().any(|hold| hold.holds(&placed.state.gate)) {
            self.holds.push(guard::hold(&self.core, &placed, self.interrupt)?);
        }
        Ok(())
    }

    fn record(
        &mut self,
        collection: &Arc<Collection>,
        record_key: &[u8],
        op: Op<'_>,
        rid: Option<u64>,
    ) -> Result<()> {
        self.put(collection, record_key, op, rid);
        self.flush_what_is_large()
    }

    /// Notes what [`Changes::compute`] computed last as part of the next commit. Nothing here waits or fails.
    fn put(&mut self, collection: &Arc<Collection>, record_key: &[u8], op: Op<'_>, rid: Option<u64>) {
        if self.payload.capacity() == 0 {
            self.payload = self.core.commits.take_buffer();
        }
        let begin = self.payload.len();
        op.log(&mut self.payload, collection, rid, self.statement.as_ref(), &self.marks);
        let db = &self.core.base.db;
        db.put_gone(&self.changes.record, op.before(), &mut self.gone);
        let left = op.logged_whole().filter(|doc| db.values().takes(*doc));
        let left = left.map(|doc| Reference::find(&self.payload, begin, doc));
        let room = op.after().map_or(0, |doc| doc.len()) + self.changes.record.len() + SMALL_BATCH_BYTES;
        let batch = self.batch.get_or_insert_with(|| WriteBatch::with_capacity_bytes(room));
        let mut sink = BatchSink { db: &self.core.base.db, batch };
        if let Some(statement) = &self.statement {
            sessions::put_statement(statement, &collection.namespace, &mut sink);
        }
        for statement in self.joint.drain(..) {
            crate::oplog::note_statement(&mut self.payload, &collection.namespace, &statement);
            sessions::put_statement(&statement, &collection.namespace, &mut sink);
        }
        let reference = left.as_ref().map(Reference::bytes);
        let stored = match &reference {
            Some(reference) => Some(&reference[..]),
            None => op.after().map(|doc| doc.as_bytes()),
        };
        self.changes.emit(collection, record_key, stored, &mut sink);
        self.left += left.map_or(0, |left| u64::from(left.length));
        self.changes.count_id(collection, op);
        self.pending.extend(&self.changes.locks);
        self.counts.add(&collection.state, op.counts());
    }

    /// Commits what is pending where it is much, would keep others waiting, or has no memory.
    fn flush_what_is_large(&mut self) -> Result<()> {
        let (changes, bytes) =
            self.batch.as_ref().map_or((0, 0), |batch| (batch.len(), batch.size_in_bytes()));
        let pending = self.payload.len() + bytes;
        if changes >= PENDING_CHANGES_MAX
            || self.payload.len() >= PAYLOAD_AT_ONCE
            || pending > COUNTED_BYTES && (!self.count(pending) || pending > self.core.base.pending_bytes)
        {
            self.flush()?;
        }
        Ok(())
    }

    /// Counts what is pending. False: there is no memory for it.
    #[cold]
    fn count(&mut self, pending: usize) -> bool {
        if self.memory.bytes() == 0 {
            // It belongs to whoever writes now.
            match sheaf_meter::reserve(pending as u64) {
                Ok(memory) => self.memory = memory,
                Err(_) => return false,
            }
        }
        self.memory.set(pending as u64).is_ok()
    }

    fn check_unique(&mut self, collection: &Collection, record_key: &[u8]) -> Result<()> {
        let core = &self.core;
        // What could change has its locks taken: one view is as good as a new one for each key.
        let mut view = None;
        self.changes.check_unique(collection, |unique| {
            if !unique.index.unique {
                return unique.taken(view.get_or_insert_with(|| View::newest(&core.published)), record_key);
            }
            let found = core.base.db.get(Cf::Indexes, unique.entry)?;
            Ok(found.is_some_and(|found| entry_parts(true, unique.entry, &found).record_key != record_key))
        })
    }

    fn insert_normal(&mut self, collection: &Arc<Collection>, doc: RawDoc<'_>) -> Result<()> {
        let mut record_key = std::mem::take(&mut self.key);
        record_key.clear();
        let result = self.insert_at(collection, doc, &mut record_key);
        self.key = record_key;
        result
    }

    fn insert_at(
        &mut self,
        collection: &Arc<Collection>,
        doc: RawDoc<'_>,
        record_key: &mut Vec<u8>,
    ) -> Result<()> {
        put_id_key(doc.get_or_missing("_id"), record_key)?;
        check_record_key(collection, record_key)?;
        self.hold_placed(collection, doc)?;
        self.begin_write(collection)?;
        self.changes.compute(collection, record_key, None, Some(doc), self.core.commits.locks())?;
        self.changes.check_long_keys(&self.core.flushes, collection, Op::Insert(doc))?;
        let locks = std::mem::take(&mut self.changes.locks);
        self.settle(&locks)?;
        self.lock_all(&locks)?;
        self.changes.locks = locks;
        self.begin_write(collection)?;
        if self.core.base.db.get_unresolved(Cf::Records, &self.changes.record)?.is_some() {
            return Err(duplicate_id(collection, doc));
        }
        self.check_unique(collection, record_key)?;
        self.record(collection, record_key, Op::Insert(doc), None)
    }
}

/// The number of a capped collection's record, for the oplog.
pub(crate) fn rid_of(collection: &Collection, key: &[u8]) -> Option<u64> {
    collection.capped.and_then(|_| key.first_chunk::<8>()).map(|bytes| u64::from_be_bytes(*bytes))
}

impl Write for WriteUnit<'_> {
    fn view(&mut self) -> Result<View> {
        self.flush()?;
        Ok(self.core.decided_view())
    }

    fn collection(&mut self, namespace: &str) -> Result<Option<Arc<Collection>>> {
        if let Some((collection, _)) = self.passes.iter().find(|(c, _)| c.namespace == namespace) {
            return Ok(Some(collection.clone()));
        }
        if self.passes.len() >= PASSES_MAX {
            self.flush()?;
            self.passes.clear();
        }
        loop {
            let catalog = self.core.published.catalog();
            let Some(collection) = catalog.collection(namespace) else { return Ok(None) };
            let pass = match collection.state.gate.try_pass() {
                Some(pass) => pass,
                None => {
                    // DDL may be waiting for what this unit holds.
                    self.flush()?;
                    self.passes.clear();
                    collection.state.gate.pass(&self.core.base.options.block, self.interrupt)?
                }
            };
            let now = self.core.published.peek_catalog();
            if now.collection(namespace).is_some_and(|current| Arc::ptr_eq(current, collection)) {
                self.passes.push((collection.clone(), Admission::Passed(pass)));
                return Ok(Some(collection.clone()));
            }
        }
    }

    fn set_down(&mut self) -> Result<bool> {
        self.flush()?;
        self.passes.retain(|(_, admission)| matches!(admission, Admission::Closed(_)));
        Ok(self.passes.is_empty() && self.holds.is_empty())
    }

    fn take_up(&mut self, collection: &Arc<Collection>) -> Result<Arc<Collection>> {
        let now = self.collection(&collection.namespace)?;
        let same = now.filter(|now| now.uuid == collection.uuid && now.ident == collection.ident);
        same.ok_or_else(|| {
            Error::new(Code::QUERY_PLAN_KILLED, format!("collection dropped. UUID {}", collection.uuid))
        })
    }

    fn read_for_update(&mut self, collection: &Arc<Collection>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.begin_write(collection)?;
        let mut full = std::mem::take(&mut self.key);
        crate::keys::prefixed(collection.ident, key, &mut full);
        let lock = record_lock_at(self.core.commits.locks(), &full);
        self.settle(&[lock])?;
        self.lock_all(&[lock])?;
        let found = self.core.base.db.get(Cf::Records, &full).map(|found| found.map(|doc| doc.to_vec()));
        self.key = full;
        found
    }

    fn insert(&mut self, collection: &Arc<Collection>, doc: RawDoc<'_>) -> Result<()> {
        sheaf_meter::tick_for(doc.len())?;
        crate::write::check_inserted_depth(doc)?;
        match collection.capped {
            Some(capped) => self.insert_capped(collection, doc, capped.size, capped.max),
            None => self.insert_normal(collection, doc),
        }
    }

    fn update(
        &mut self,
        collection: &Arc<Collection>,
        key: &[u8],
        old: RawDoc<'_>,
        new: RawDoc<'_>,
        diff: Option<RawDoc<'_>>,
    ) -> Result<()> {
        sheaf_meter::tick_for(old.len() + new.len())?;
        crate::write::check_updated_depth(new)?;
        self.change(collection, key, Op::Update { old, new, diff })
    }

    fn delete(&mut self, collection: &Arc<Collection>, key: &[u8], old: RawDoc<'_>) -> Result<()> {
        self.change(collection, key, Op::Delete(old))
    }

    fn create_collection(&mut self, namespace: &str, spec: CreateCollection) -> Result<()> {
        self.flush()?;
        self.last = Some(self.core.create_collections(&[(namespace, &spec)], self.interrupt)?);
        Ok(())
    }

    fn retries_conflicts(&self) -> bool {
        true
    }

    fn reserve(&mut self, bytes: usize) {
        let bytes = bytes.min(self.core.base.pending_bytes / 2).min(PAYLOAD_AT_ONCE);
        let room = bytes + bytes / 8 + SMALL_BATCH_BYTES;
        self.payload.reserve(room);
        if self.batch.is_none() {
            self.batch = Some(WriteBatch::with_capacity_bytes(room));
        }
    }

    fn statement(&mut self, statement: Option<Statement>) {
        self.statement = statement;
    }

    fn joint_statements(&mut self, statements: Vec<Statement>) -> Result<()> {
        self.joint = statements;
        Ok(())
    }

    fn document_key(&mut self, key: Option<Arc<DocumentKey>>) {
        self.marks.key = key;
    }

    fn written_keys(&self) -> WrittenKeys {
        self.changes.written
    }
}

impl WriteUnit<'_> {
    /// An update or delete of a record that is locked and was read.
    fn change(&mut self, collection: &Arc<Collection>, key: &[u8], op: Op<'_>) -> Result<()> {
        if let Some(document) = op.before() {
            self.hold_placed(collection, document)?;
        }
        self.begin_write(collection)?;
        self.changes.compute(collection, key, op.before(), op.after(), self.core.commits.locks())?;
        self.changes.check_long_keys(&self.core.flushes, collection, op)?;
        let locks = std::mem::take(&mut self.changes.locks);
        let settled = self.settle(&locks)?;
        let kept = self.lock_all(&locks)?;
        self.changes.locks = locks;
        self.begin_write(collection)?;
        if !(settled && kept) {
            // The record's lock had to be given up for a while: somebody may have used it.
            let now = self.core.base.db.get(Cf::Records, &self.changes.record)?;
            if now.is_none_or(|now| op.before().is_none_or(|old| *now != *old.as_bytes())) {
                return Err(crate::write::write_conflict());
            }
        }
        self.check_unique(collection, key)?;
        self.record(collection, key, op, rid_of(collection, key))
    }
}

impl Drop for WriteUnit<'_> {
    fn drop(&mut self) {
        self.core.commits.locks().unlock(&self.locks, self.owner);
        self.locks.clear();
        if self.locks.capacity() <= SCRATCH_LOCKS_MAX && self.changes.capacity() <= SCRATCH_BYTES_MAX {
            SCRATCH.set(Some(Scratch {
                changes: std::mem::take(&mut self.changes),
                key: std::mem::take(&mut self.key),
                locks: std::mem::take(&mut self.locks),
            }));
        }
    }
}
