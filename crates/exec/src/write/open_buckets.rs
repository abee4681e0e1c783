//! The buckets of time-series collections to which measurements are being added.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use sheaf_bson::{DocBuf, DocWriter, ObjectId};
use sheaf_meter::{Part, Process};
use sheaf_storage::{Collection, Uuid};
use sheaf_timeseries::{Bucket, Refusal};

/// More open buckets than these are not remembered.
const MAX_OPEN: usize = 20_000;
/// Nor is more memory than this spent on their columns.
const MAX_OPEN_BYTES: usize = 64 * 1024 * 1024;

/// The buckets to which measurements are added, by collection and meta value. What it says is a hint: the bucket itself is
/// read, and locked, before anything is added.
#[derive(Default)]
pub struct OpenBuckets {
    open: Mutex<Open>,
    /// Counts their memory; nobody does outside a server.
    memory: Option<Part>,
}

#[derive(Default)]
struct Open {
    buckets: HashMap<(Uuid, Vec<u8>), OpenBucket>,
    /// Of all parts.
    bytes: usize,
    counters: HashMap<Uuid, Counters>,
}

/// What one filling of a bucket came to.
#[derive(Default)]
pub(super) struct Tally {
    /// The bucket that was open had to be taken apart.
    pub(super) reopened: bool,
    /// Why it took nothing.
    pub(super) refusal: Option<Refusal>,
    /// Whether the filled one is new.
    pub(super) is_new: bool,
    /// What came into that.
    pub(super) measurements: usize,
}

/// What was done to a collection's buckets since the server started.
#[derive(Clone, Copy, Default)]
struct Counters {
    inserts: u64,
    updates: u64,
    opened: u64,
    reopened: u64,
    full: u64,
    large: u64,
    later: u64,
    earlier: u64,
    dropped: u64,
    measurements: u64,
}

impl Counters {
    fn add(&mut self, tally: &Tally) {
        let inserted = u64::from(tally.is_new);
        self.inserts += inserted;
        self.updates += 1 - inserted;
        self.opened += u64::from(tally.is_new && tally.refusal.is_none());
        self.reopened += u64::from(tally.reopened);
        self.measurements += tally.measurements as u64;
        match tally.refusal {
            Some(Refusal::Count) => self.full += 1,
            Some(Refusal::Size) => self.large += 1,
            Some(Refusal::TimeForward) => self.later += 1,
            Some(Refusal::TimeBackward) => self.earlier += 1,
            None => {}
        }
    }
}

/// An open bucket.
struct OpenBucket {
    id: ObjectId,
    parts: Option<Box<Parts>>,
}

/// A bucket in parts, and what was stored of it: while that is so, nothing needs to be taken apart.
pub(super) struct Parts {
    pub(super) stored: DocBuf,
    pub(super) bucket: Bucket,
}

impl Parts {
    fn bytes(&self) -> usize {
        // Bounds are values with an allocation each.
        size_of::<Parts>() + self.stored.as_bytes().len() * 2 + self.bucket.memory()
    }
}

impl OpenBuckets {
    /// None yet; their memory is counted with this process's.
    pub fn counted(process: &Arc<Process>) -> Self {
        OpenBuckets { open: Mutex::default(), memory: Some(Part::of(process)) }
    }

    /// What the parts take has become another.
    fn count(&self, before: usize, now: usize) {
        if let Some(memory) = &self.memory {
            memory.change(before as u64, now as u64);
        }
    }

    /// The bucket of a meta value. Its parts are for the caller alone, who gives them back by `note`.
    pub(super) fn of(
        &self,
        collection: &Collection,
        meta: &DocBuf,
    ) -> Option<(ObjectId, Option<Box<Parts>>)> {
        let mut guard = self.open.lock();
        let open = &mut *guard;
        let found = open.buckets.get_mut(&(collection.uuid, meta.as_bytes().to_vec()))?;
        let (id, parts) = (found.id, found.parts.take());
        let before = open.bytes;
        open.bytes -= parts.as_ref().map_or(0, |parts| parts.bytes());
        self.count(before, open.bytes);
        Some((id, parts))
    }

    /// Keeps the bucket of a meta value, and counts what was done.
    pub(super) fn note(&self, collection: &Collection, meta: &DocBuf, parts: Parts, tally: &Tally) {
        let mut guard = self.open.lock();
        let open = &mut *guard;
        let bytes_before = open.bytes;
        if open.counters.len() >= MAX_OPEN {
            open.counters.clear();
        }
        let counters = open.counters.entry(collection.uuid).or_default();
        counters.add(tally);
        if open.buckets.len() >= MAX_OPEN {
            open.buckets.clear();
            open.bytes = 0;
        }
        if open.bytes + parts.bytes() > MAX_OPEN_BYTES {
            counters.dropped += open.buckets.len() as u64;
            open.buckets.values_mut().for_each(|open| open.parts = None);
            open.bytes = 0;
        }
        open.bytes += parts.bytes();
        let bucket = OpenBucket { id: parts.bucket.id(), parts: Some(Box::new(parts)) };
        let before = open.buckets.insert((collection.uuid, meta.as_bytes().to_vec()), bucket);
        let before = before.and_then(|before| before.parts).map_or(0, |parts| parts.bytes());
        open.bytes -= before;
        self.count(bytes_before, open.bytes);
    }

    /// Appends the figures of a collection of buckets under the names that `collStats` has for them.
    pub fn write_counters(&self, buckets: &Collection, out: &mut DocWriter<'_, Vec<u8>>) {
        let counters = self.open.lock().counters.get(&buckets.uuid).copied().unwrap_or_default();
        let commits = counters.inserts + counters.updates;
        for (name, count) in [
            ("numBucketInserts", counters.inserts),
            ("numBucketUpdates", counters.updates),
            ("numBucketsOpenedDueToMetadata", counters.opened),
            ("numBucketsClosedDueToCount", counters.full),
            ("numBucketsClosedDueToSchemaChange", 0),
            ("numBucketsClosedDueToSize", counters.large),
            ("numBucketsClosedDueToTimeForward", counters.later),
            ("numBucketsClosedDueToMemoryThreshold", 0),
            ("numCommits", commits),
            ("numWaits", 0),
            ("numMeasurementsCommitted", counters.measurements),
            ("avgNumMeasurementsPerCommit", counters.measurements.checked_div(commits).unwrap_or(0)),
            ("numBucketsClosedDueToReopening", 0),
            ("numBucketsArchivedDueToMemoryThreshold", counters.dropped),
            ("numBucketsArchivedDueToTimeBackward", counters.earlier),
            ("numBucketsReopened", counters.reopened),
        ] {
            out.append(name, count as i64);
        }
    }
}

impl Drop for OpenBuckets {
    fn drop(&mut self) {
        let bytes = self.open.get_mut().bytes;
        self.count(bytes, 0);
    }
}
