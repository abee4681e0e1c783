//! Which plans were chosen: storage keeps it for those who plan, so that each engine has its own.

use std::collections::HashMap;

use uuid::Uuid;

use crate::order::{Mutex, rank};

/// Shapes remembered; beyond it everything is forgotten at once, which costs one trial each.
const MAX_ENTRIES: usize = 5000;

struct Entry {
    /// The catalog's version: any DDL makes the entry stale.
    version: u64,
    choice: Box<str>,
}

/// The plans chosen for queries' shapes, by collection and the shape's hash. What a choice says is the planner's matter.
#[derive(Default)]
pub struct ChosenPlans {
    entries: Mutex<{ rank::LEAF }, HashMap<(Uuid, u64), Entry, ahash::RandomState>>,
}

impl ChosenPlans {
    /// The plan that was chosen for this shape, if the catalog is still of that version.
    pub fn get(&self, collection: Uuid, shape: u64, version: u64) -> Option<Box<str>> {
        let entries = self.entries.lock();
        let entry = entries.get(&(collection, shape)).filter(|entry| entry.version == version)?;
        Some(entry.choice.clone())
    }

    /// Remembers a choice.
    pub fn set(&self, collection: Uuid, shape: u64, version: u64, choice: &str) {
        let mut entries = self.entries.lock();
        if entries.len() >= MAX_ENTRIES {
            entries.clear();
        }
        entries.insert((collection, shape), Entry { version, choice: choice.into() });
    }

    /// Forgets a collection's plans.
    pub fn forget(&self, collection: Uuid) {
        self.entries.lock().retain(|(of, _), _| *of != collection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_of_a_collection_a_shape_and_a_version() {
        let (plans, a, b) = (ChosenPlans::default(), Uuid::from_u128(1), Uuid::from_u128(2));
        plans.set(a, 7, 3, "x");
        plans.set(b, 7, 3, "y");
        assert_eq!(plans.get(a, 7, 3).as_deref(), Some("x"));
        assert_eq!((plans.get(a, 7, 4), plans.get(a, 8, 3)), (None, None));
        plans.forget(a);
        assert_eq!((plans.get(a, 7, 3), plans.get(b, 7, 3).as_deref()), (None, Some("y")));
    }

    #[test]
    fn they_are_bounded() {
        let plans = ChosenPlans::default();
        for shape in 0..3 * MAX_ENTRIES as u64 {
            plans.set(Uuid::nil(), shape, 1, "x");
            assert!(plans.entries.lock().len() <= MAX_ENTRIES);
        }
    }
}
