//! Which plans were chosen, and which indexes they may use: storage keeps it for those who plan, so that each engine has its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sheaf_bson::DocBuf;
use uuid::Uuid;

use crate::order::{Mutex, rank};

/// Shapes remembered; beyond it everything is forgotten at once, which costs one trial each.
const MAX_ENTRIES: usize = 5000;

struct Entry {
    /// The catalog's version: any DDL makes the entry stale.
    version: u64,
    choice: Box<str>,
    /// As `$planCacheStats` shows it.
    shown: DocBuf,
}

/// The plans chosen for queries' shapes, by collection and the shape's hash. What a choice says is the planner's matter.
#[derive(Default)]
pub struct ChosenPlans {
    entries: Mutex<{ rank::LEAF }, HashMap<(Uuid, u64), Entry, ahash::RandomState>>,
    /// Index filters, as `planCacheListFilters` shows them.
    filters: Mutex<{ rank::LEAF }, HashMap<(Uuid, u64), Arc<DocBuf>, ahash::RandomState>>,
    /// How many of these there are: where there are none, nobody has to look.
    filter_count: AtomicUsize,
}

impl ChosenPlans {
    /// The plan that was chosen for this shape, if the catalog is still of that version.
    pub fn get(&self, collection: Uuid, shape: u64, version: u64) -> Option<Box<str>> {
        let entries = self.entries.lock();
        let entry = entries.get(&(collection, shape)).filter(|entry| entry.version == version)?;
        Some(entry.choice.clone())
    }

    /// Remembers a choice.
    pub fn set(&self, collection: Uuid, shape: u64, version: u64, choice: &str, shown: DocBuf) {
        let mut entries = self.entries.lock();
        if entries.len() >= MAX_ENTRIES {
            entries.clear();
        }
        entries.insert((collection, shape), Entry { version, choice: choice.into(), shown });
    }

    /// What `$planCacheStats` shows of a collection's plans, if the catalog is still of that version.
    pub fn shown(&self, collection: Uuid, version: u64) -> Vec<DocBuf> {
        let entries = self.entries.lock();
        let of = entries.iter().filter(|((of, _), entry)| *of == collection && entry.version == version);
        let mut shown: Vec<_> = of.map(|((_, shape), entry)| (*shape, entry.shown.clone())).collect();
        shown.sort_by_key(|(shape, _)| *shape);
        shown.into_iter().map(|(_, shown)| shown).collect()
    }

    /// Forgets a collection's plans.
    pub fn forget(&self, collection: Uuid) {
        self.entries.lock().retain(|(of, _), _| *of != collection);
    }

    /// Forgets all plans: what they may use has changed.
    pub fn forget_all(&self) {
        self.entries.lock().clear();
    }

    /// Forgets the plan of one shape.
    pub fn forget_shape(&self, collection: Uuid, shape: u64) {
        self.entries.lock().remove(&(collection, shape));
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
    /// more go.
    pub fn set_filter(&self, collection: Uuid, shape: u64, filter: DocBuf, exists: impl Fn(&Uuid) -> bool) {
        {
            let mut filters = self.filters.lock();
            filters.retain(|(of, _), _| exists(of));
            filters.insert((collection, shape), Arc::new(filter));
            self.filter_count.store(filters.len(), Ordering::Relaxed);
        }
        self.forget_shape(collection, shape);
    }

    /// Takes a collection's index filters back, or that of one shape; the plans that were chosen under them are forgotten.
    pub fn clear_filters(&self, collection: Uuid, shape: Option<u64>) {
        let concerns = |(of, one): &(Uuid, u64)| *of == collection && shape.is_none_or(|shape| *one == shape);
        {
            let mut filters = self.filters.lock();
            filters.retain(|key, _| !concerns(key));
            self.filter_count.store(filters.len(), Ordering::Relaxed);
        }
        self.entries.lock().retain(|key, _| !concerns(key));
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
        plans.set_filter(a, 7, DocBuf::new().with("n", 1), |_| true);
        plans.set_filter(a, 8, DocBuf::new().with("n", 2), |_| true);
        plans.set_filter(b, 7, DocBuf::new().with("n", 3), |_| true);
        assert_eq!(plans.get(a, 7, 3), None, "it was chosen without the filter");
        assert_eq!((plans.filters(a).len(), plans.filters(b).len()), (2, 1));
        plans.clear_filters(a, Some(7));
        assert_eq!((plans.filter(a, 7).is_none(), plans.filter(a, 8).is_some()), (true, true));
        plans.set_filter(b, 9, DocBuf::new(), |of| *of == b);
        assert_eq!((plans.filters(a).len(), plans.filters(b).len()), (0, 2));
        plans.clear_filters(b, None);
        assert!(!plans.has_filters());
    }

    #[test]
    fn they_are_bounded() {
        let plans = ChosenPlans::default();
        for shape in 0..3 * MAX_ENTRIES as u64 {
            plans.set(Uuid::nil(), shape, 1, "x", DocBuf::new());
            assert!(plans.entries.lock().len() <= MAX_ENTRIES);
        }
    }
}
