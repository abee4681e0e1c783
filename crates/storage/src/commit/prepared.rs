//! A unit that is ready to be ordered: what a writer hands to the pipeline.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rocksdb::WriteBatch;
use smallvec::SmallVec;

use crate::catalog::{Catalog, CollectionState};
use crate::commit::step::Step;
use crate::db::values::Gone;
use crate::locks::LockKey;

/// The largest unit: what log and links carry in one entry with room to spare. Plain writes are committed when at most 32 MB have
/// come together, so that one operation more with all that it may bring (the document before and after, what a retry is
/// answered with) stays below; transactions are chains of smaller entries.
pub(crate) const UNIT_BYTES_MAX: usize = 112 << 20;

/// Per collection: documents and bytes more (or less).
#[derive(Clone, Default)]
pub(crate) struct Counts {
    all: SmallVec<[(Arc<CollectionState>, i64, i64); 2]>,
    /// Where each is, by its address, once they are many: `dropDatabase` can be about a hundred thousand.
    places: Option<Box<ahash::AHashMap<usize, usize>>>,
}

/// What a deletion takes in the log, and the document's entries in indexes.
const BESIDE_A_DOCUMENT: u64 = 100;

/// From here on collections are looked up by their addresses.
const COUNTS_FEW: usize = 16;

impl Counts {
    fn place(&self, state: &Arc<CollectionState>) -> Option<usize> {
        if self.all.len() < COUNTS_FEW {
            return self.all.iter().position(|(known, ..)| Arc::ptr_eq(known, state));
        }
        self.places.as_ref()?.get(&(Arc::as_ptr(state) as usize)).copied()
    }

    pub fn add(&mut self, state: &Arc<CollectionState>, (docs, bytes): (i64, i64)) {
        if let Some(at) = self.place(state) {
            self.all[at].1 += docs;
            self.all[at].2 += bytes;
            return;
        }
        self.all.push((state.clone(), docs, bytes));
        if self.all.len() >= COUNTS_FEW {
            let from = if self.all.len() == COUNTS_FEW { 0 } else { self.all.len() - 1 };
            let places = self.places.get_or_insert_default();
            for (at, (state, ..)) in self.all.iter().enumerate().skip(from) {
                places.insert(Arc::as_ptr(state) as usize, at);
            }
        }
    }

    /// What is counted of one collection.
    pub fn of(&self, state: &Arc<CollectionState>) -> (i64, i64) {
        self.place(state).map_or((0, 0), |at| (self.all[at].1, self.all[at].2))
    }

    /// Whether there are fewer documents than before.
    pub fn lessens(&self) -> bool {
        self.all.iter().map(|(_, docs, _)| docs).sum::<i64>() < 0
    }

    /// Notes the time of the commit; before it is visible.
    pub fn stamp(&self, time: u64) {
        self.all.iter().for_each(|(state, ..)| state.last_commit.store(time, Ordering::Release));
    }

    /// Gives about how many bytes are not wanted any more.
    pub fn publish(&self) -> u64 {
        let mut gone = 0;
        for (state, docs, bytes) in &self.all {
            state.published(*docs, *bytes);
            gone += bytes.min(&0).unsigned_abs() + docs.min(&0).unsigned_abs() * BESIDE_A_DOCUMENT;
        }
        gone
    }
}

/// Locks of what a unit has written.
pub(crate) type Written = SmallVec<[LockKey; 4]>;

/// What DDL changes when its commit is applied.
pub(crate) type Publish = Box<dyn FnOnce(&Catalog) -> Catalog + Send>;

/// See [`Prepared::large`].
pub(crate) struct Large {
    /// Bytes of documents of which the batch has references to the payload: they are to be left in the log.
    pub left: u64,
    /// What nothing refers to when it is applied.
    pub gone: Gone,
}

impl Large {
    /// If there is any.
    pub fn boxed(left: u64, gone: Gone) -> Option<Box<Large>> {
        (left > 0 || !gone.is_empty()).then(|| Box::new(Large { left, gone }))
    }
}

/// A unit that is ready to be ordered.
#[derive(Default)]
pub(crate) struct Prepared {
    /// Oplog documents.
    pub payload: Vec<u8>,
    /// Whether these are a chain, each an entry of its own; see [`crate::commit::chain`].
    pub chained: bool,
    pub batch: WriteBatch,
    /// What it does to large documents that are, or are to be, in the log's files.
    pub large: Option<Box<Large>>,
    pub counts: Counts,
    /// Everything it wrote, for transactions that look for conflicts.
    pub locks: Written,
    /// Changes the catalog, between apply and publish.
    pub publish: Option<Publish>,
    /// [`Commits::others`](crate::commit::Commits::others) when its preparation began. `None`: it depends on no state.
    pub since: Option<u64>,
    /// Its time is above this one, whatever the clock says.
    pub above: u64,
    /// What it says about a transaction over shards.
    pub step: Option<Box<Step>>,
}

impl Prepared {
    /// Whether it must not be refused for want of room: see [`Step::frees`].
    pub fn frees(&self) -> bool {
        self.step.as_ref().is_some_and(|step| step.frees())
    }

    /// About how many bytes it takes on the disk, in the log and when it is flushed. `None`: it changes the catalog, or takes documents away, and must
    /// not be refused for want of room. (An update that makes a document smaller writes it whole.)
    pub fn adds(&self) -> Option<u64> {
        (!self.is_spared() && !self.counts.lessens()).then(|| self.bytes_on_disk())
    }

    /// The same of what takes documents away: it takes room as well until it is merged with what it deletes. `None`: it does something else.
    pub fn deletes(&self) -> Option<u64> {
        (!self.is_spared() && self.counts.lessens()).then(|| self.bytes_on_disk())
    }

    fn is_spared(&self) -> bool {
        self.publish.is_some() || self.frees()
    }

    fn bytes_on_disk(&self) -> u64 {
        self.payload.len() as u64 * 2
    }
}
