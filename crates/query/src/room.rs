//! How much the explanation of a failed validator may be.

use std::cell::Cell;

use sheaf_bson::Value;
use sheaf_expr::size_of_value;

/// What an explanation may have in all, in bytes: it is a part of a reply.
pub(crate) const LARGEST: usize = 12 << 20;

/// Room for the values that an explanation repeats, of the document and of the validator.
///
/// A validator of many clauses would repeat a large document for each.
pub(crate) struct Room {
    left: Cell<usize>,
    lacks: Cell<bool>,
    brief: bool,
}

impl Room {
    /// For an explanation that, if `brief`, has neither `specifiedAs` nor the considered values.
    pub fn new(brief: bool) -> Self {
        Room { left: Cell::new(LARGEST), lacks: Cell::new(false), brief }
    }

    /// Whether something of this size is to be told that a brief explanation leaves out.
    pub fn wants(&self, bytes: usize) -> bool {
        !self.brief && self.has(bytes)
    }

    /// Whether there is room for something that every explanation has.
    pub fn has(&self, bytes: usize) -> bool {
        let left = self.left.get().checked_sub(bytes);
        self.left.set(left.unwrap_or(0));
        self.lacks.set(self.lacks.get() || left.is_none());
        left.is_some()
    }

    /// [`Room::has`] for a value.
    pub fn has_value(&self, value: Value<'_>) -> bool {
        self.has(size_of_value(value))
    }

    /// Whether there was no room for something, so that the explanation is not whole.
    pub fn lacks(&self) -> bool {
        self.lacks.get()
    }
}
