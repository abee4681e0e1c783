//! What commands want of operations under way that give collections another key or place.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// What is wanted of operations under way, by namespace.
#[derive(Default)]
pub(super) struct Wishes(pub Mutex<BTreeMap<String, Wish>>);

/// What a command wants of an operation under way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    /// It is to be given up.
    Abort,
    /// It is to be brought to its end, however much is left.
    Commit,
}

impl Wishes {
    /// What is wanted of the one about this collection.
    pub fn of(&self, namespace: &str) -> Option<Wish> {
        self.0.lock().get(namespace).copied()
    }

    /// It is over.
    pub fn forget(&self, namespace: &str) {
        self.0.lock().remove(namespace);
    }
}
