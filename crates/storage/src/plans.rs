//! Which plans were chosen, and which indexes they may use: storage keeps it for those who plan, so that each engine has its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use sheaf_bson::DocBuf;
use uuid::Uuid;

use crate::order::{Mutex, rank};

/// Shapes remembered; beyond it everything is forgotten at once, which costs one trial each.
const MAX_ENTRIES: usize = 5000;

/// Bytes of what is shown of them; the same holds beyond: a shape has names of any length.
const MAX_ENTRY_BYTES: usize = 16 << 20;

/// What an index filter takes besides its document.
const FILTER_BYTES: u64 = 256;

struct Entry {
    /// The catalog's version: any DDL makes the entry stale.
    version: u64,
    choice: Box<str>,
    /// As `$planCacheStats` shows it.
    shown: DocBuf,
}

/// Plans by collection and shape, and the bytes of what is shown of them.
#[derive(Default)]
struct Remembered {
    entries: HashMap<(Uuid, u64), Entry, ahash::RandomState>,
    bytes: usize,
}

impl Remembered {
    fn insert(&mut self, key: (Uuid, u64), entry: Entry) {
        let bytes = entry.shown.as_bytes().len();
        if self.entries.len() >= MAX_ENTRIES || self.bytes + bytes > MAX_ENTRY_BYTES {
            *self = Remembered::default();
        }
        self.bytes += bytes;
        if let Some(before) = self.entries.insert(key, entry) {
            self.bytes -= before.shown.as_bytes().len();
        }
    }

    fn forget(&mut self, concerned: impl Fn(&(Uuid, u64)) -> bool) {
        self.entries.retain(|key, entry| {
            let goes = concerned(key);
            if goes {
                self.bytes -= entry.shown.as_bytes().len();
            }
            !goes
        });
    }
}

/// The plans chosen for queries' shapes, by collection and the shape's hash. What a choice says is the planner's matter.
#[derive(Default)]
pub struct ChosenPlans {
    entries: Mutex<{ rank::LEAF }, Remembered>,
    /// Index filters, as `planCacheListFilters` shows them.
    filters: Mutex<{ rank::LEAF }, HashMap<(Uuid, u64), Arc<DocBuf>, ahash::RandomState>>,
    /// How many of these there are: where there are none, nobody has to look.
    filter_count: AtomicUsize,
    /// Queries of several plans for which one was remembered, and those for which none was.
    hits: AtomicU64,
    misses: AtomicU64,
    /// Scans of whole collections: all, and those of cursors that are not tailable.
    scans: (AtomicU64, AtomicU64),
}

/// Figures of what is remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanFigures {
    /// Shapes.
    pub shapes: usize,
    /// Bytes that they take.
    pub bytes: usize,
    /// Queries of several plans for which one was remembered.
    pub hits: u64,
    /// Those for which none was.
    pub misses: u64,
    /// Scans of whole collections.
    pub scans: u64,
    /// Those of cursors that are not tailable.
    pub scans_not_tailable: u64,
}

impl ChosenPlans {
    /// The plan that was chosen for this shape, if the catalog is still of that version.
    pub fn get(&self, collection: Uuid, shape: u64, version: u64) -> Option<Box<str>> {
        let remembered = self.entries.lock();
        let entry = remembered.entries.get(&(collection, shape)).filter(|entry| entry.version == version)?;
        Some(entry.choice.clone())
    }

    /// Remembers a choice.
    pub fn set(&self, collection: Uuid, shape: u64, version: u64, choice: &str, shown: DocBuf) {
        let entry = Entry { version, choice: choice.into(), shown };
        self.entries.lock().insert((collection, shape), entry);
    }

    /// Counts that a plan was looked for, and whether one was remembered.
    pub fn count_lookup(&self, found: bool) {
        let count = if found { &self.hits } else { &self.misses };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts scans of whole collections.
    pub fn count_scans(&self, scans: u64, tailable: bool) {
        self.scans.0.fetch_add(scans, Ordering::Relaxed);
        if !tailable {
            self.scans.1.fetch_add(scans, Ordering::Relaxed);
        }
    }

    /// What is remembered, and how often that was of use.
    pub fn figures(&self) -> PlanFigures {
        let remembered = self.entries.lock();
        let choices: usize = remembered.entries.values().map(|entry| entry.choice.len()).sum();
        PlanFigures {
            shapes: remembered.entries.len(),
            bytes: remembered.bytes + choices,
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            scans: self.scans.0.load(Ordering::Relaxed),
            scans_not_tailable: self.scans.1.load(Ordering::Relaxed),
        }
    }

    /// What `$planCacheStats` shows of a collection's plans, if the catalog is still of that version.
    pub fn shown(&self, collection: Uuid, version: u64) -> Vec<DocBuf> {
        let remembered = self.entries.lock();
        let of = remembered
            .entries
            .iter()
            .filter(|((of, _), entry)| *of == collection && entry.version == version);
        let mut shown: Vec<_> = of.map(|((_, shape), entry)| (*shape, entry.shown.clone())).collect();
        shown.sort_by_key(|(shape, _)| *shape);
        shown.into_iter().map(|(_, shown)| shown).collect()
    }

    /// Forgets a collection's plans.
    pub fn forget(&self, collection: Uuid) {
        self.entries.lock().forget(|(of, _)| *of == collection);
    }

    /// Forgets all plans: what they may use has changed.
    pub fn forget_all(&self) {
        *self.entries.lock() = Remembered::default();
    }

    /// Forgets the plan of one shape.
    pub fn forget_shape(&self, collection: Uuid, shape: u64) {
        let mut remembered = self.entries.lock();
        if let Some(entry) = remembered.entries.remove(&(collection, shape)) {
            remembered.bytes -= entry.shown.as_bytes().len();
        }
    }

    /// Whether there is any index filter.
    pub fn has_filters(&self) -> bool {
        self.filter_count.load(Ordering::Relaxed) > 0
    }

    /// The index filter of a shape.
    pub fn filter(&self, collection: Uuid, shape: u64) -> Option<Arc<DocBuf>> {
        self.filters.lock().get(&(collection, shape)).cloned()
    }

    /// The index filters of a collection.
    pub fn filters(&self, collection: Uuid) -> Vec<Arc<DocBuf>> {
        let filters = self.filters.lock();
        let of = filters.iter().filter(|((of, _), _)| *of == collection);
        let mut listed: Vec<_> = of.map(|((_, shape), filter)| (*shape, filter.clone())).collect();
        listed.sort_by_key(|(shape, _)| *shape);
        listed.into_iter().map(|(_, filter)| filter).collect()
    }

    /// Sets a shape's index filter; the plan that was chosen without it is forgotten. Those of collections that do not exist any
    /// more go. If all would take more than `limit` bytes, nothing is set, and so many are the error.
    pub fn set_filter(
        &self,
        collection: Uuid,
        shape: u64,
        filter: DocBuf,
        limit: u64,
        exists: impl Fn(&Uuid) -> bool,
    ) -> Result<(), u64> {
        let taken = |filter: &DocBuf| filter.as_bytes().len() as u64 + FILTER_BYTES;
        {
            let mut filters = self.filters.lock();
            filters.retain(|(of, _), _| exists(of));
            let others = filters.iter().filter(|(key, _)| **key != (collection, shape));
            let bytes = taken(&filter) + others.map(|(_, other)| taken(other)).sum::<u64>();
            if bytes > limit {
                return Err(bytes);
            }
            filters.insert((collection, shape), Arc::new(filter));
            self.filter_count.store(filters.len(), Ordering::Relaxed);
        }
        self.forget_shape(collection, shape);
        Ok(())
    }

    /// Takes a collection's index filters back, or that of one shape; the plans that were chosen under them are forgotten.
    pub fn clear_filters(&self, collection: Uuid, shape: Option<u64>) {
        let concerns = |(of, one): &(Uuid, u64)| *of == collection && shape.is_none_or(|shape| *one == shape);
        {
            let mut filters = self.filters.lock();
            filters.retain(|key, _| !concerns(key));
            self.filter_count.store(filters.len(), Ordering::Relaxed);
        }
        self.entries.lock().forget(concerns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_of_a_collection_a_shape_and_a_version() {
        let (plans, a, b) = (ChosenPlans::default(), Uuid::from_u128(1), Uuid::from_u128(2));
        plans.set(a, 7, 3, "x", DocBuf::new());
        plans.set(b, 7, 3, "y", DocBuf::new());
        assert_eq!(plans.get(a, 7, 3).as_deref(), Some("x"));
        assert_eq!((plans.get(a, 7, 4), plans.get(a, 8, 3)), (None, None));
        plans.forget(a);
        assert_eq!((plans.get(a, 7, 3), plans.get(b, 7, 3).as_deref()), (None, Some("y")));
    }

    #[test]
    fn filters_are_of_a_collection_and_a_shape() {
        let (plans, a, b) = (ChosenPlans::default(), Uuid::from_u128(1), Uuid::from_u128(2));
        assert!(!plans.has_filters());
        plans.set(a, 7, 3, "x", DocBuf::new());
        plans.set_filter(a, 7, DocBuf::new().with("n", 1), u64::MAX, |_| true).unwrap();
        plans.set_filter(a, 8, DocBuf::new().with("n", 2), u64::MAX, |_| true).unwrap();
        plans.set_filter(b, 7, DocBuf::new().with("n", 3), u64::MAX, |_| true).unwrap();
        assert_eq!(plans.get(a, 7, 3), None, "it was chosen without the filter");
        assert_eq!((plans.filters(a).len(), plans.filters(b).len()), (2, 1));
        plans.clear_filters(a, Some(7));
        assert_eq!((plans.filter(a, 7).is_none(), plans.filter(a, 8).is_some()), (true, true));
        plans.set_filter(b, 9, DocBuf::new(), u64::MAX, |of| *of == b).unwrap();
        assert_eq!((plans.filters(a).len(), plans.filters(b).len()), (0, 2));
        plans.clear_filters(b, None);
        assert!(!plans.has_filters());
    }

    #[test]
    fn they_are_bounded() {
        let plans = ChosenPlans::default();
        for shape in 0..3 * MAX_ENTRIES as u64 {
            plans.set(Uuid::nil(), shape, 1, "x", DocBuf::new());
            assert!(plans.entries.lock().entries.len() <= MAX_ENTRIES);
        }
        let large = DocBuf::new().with("name", "x".repeat(1 << 20).as_str());
        for shape in 0..40 {
            plans.set(Uuid::nil(), shape, 1, "x", large.clone());
            assert!(plans.entries.lock().bytes <= MAX_ENTRY_BYTES);
        }
        plans.forget(Uuid::nil());
        assert_eq!(plans.entries.lock().bytes, 0);
        let limit = 10 << 20;
        let set = |shape| plans.set_filter(Uuid::nil(), shape, large.clone(), limit, |_| true).is_ok();
        assert_eq!((0..20).filter(|shape| set(*shape)).count(), 9);
        assert!(set(3) && !set(20), "one takes the place of another of its shape");
    }
}
