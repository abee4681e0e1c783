//! What an evaluation needs besides the document.

use std::cell::{Cell, RefCell};

use bumpalo::Bump;
use sheaf_bson::{RawDoc, Value};
use sheaf_errors::Result;
use sheaf_meter::Held;
use smallvec::SmallVec;

use crate::context::Slot;

/// The surroundings of an evaluation: the arena in which computed values are built, and the values of the
/// variables. Cheap to create per document.
pub struct Env<'a> {
    arena: &'a Bump,
    now: i64,
    slots: RefCell<SmallVec<[Value<'a>; 4]>>,
    metadata: Cell<RawDoc<'a>>,
    /// When the arena has grown to this, its memory is counted.
    count_at: Cell<usize>,
    held: RefCell<Option<Held>>,
}

/// Arenas are counted in steps of this.
const COUNTED_BYTES: usize = 1 << 20;

impl<'a> Env<'a> {
    /// Surroundings with no variables set and `$$NOW` at the epoch (an expression parsed with a known
    /// `$$NOW` does not look here).
    pub fn new(arena: &'a Bump) -> Self {
        Env {
            arena,
            now: 0,
            slots: RefCell::new(SmallVec::new()),
            metadata: Cell::new(RawDoc::EMPTY),
            count_at: Cell::new(COUNTED_BYTES),
            held: RefCell::new(None),
        }
    }

    /// Sets `$$NOW` for expressions that were parsed before the time was known (validators, views).
    #[must_use]
    pub fn with_now(mut self, now_millis: i64) -> Self {
        self.now = now_millis;
        self
    }

    /// The same surroundings with another arena, for work whose leavings should not stay as long.
    pub(crate) fn with_arena<'b>(&self, arena: &'b Bump) -> Env<'b>
    where
        'a: 'b,
    {
        Env {
            arena,
            now: self.now,
            slots: RefCell::new(self.slots.borrow().iter().copied().collect()),
            metadata: Cell::new(self.metadata.get()),
            count_at: Cell::new(COUNTED_BYTES),
            held: RefCell::new(None),
        }
    }

    /// The arena for computed values.
    pub fn arena(&self) -> &'a Bump {
        self.arena
    }

    /// `$$NOW`, in milliseconds since the epoch.
    pub fn now(&self) -> i64 {
        self.now
    }

    /// The value of a variable; [`Value::Missing`] until it is set.
    pub fn get(&self, slot: Slot) -> Value<'a> {
        self.slots.borrow().get(slot.index()).copied().unwrap_or(Value::Missing)
    }

    /// Gives a variable a value.
    pub fn set(&self, slot: Slot, value: Value<'a>) {
        let mut slots = self.slots.borrow_mut();
        while slots.len() <= slot.index() {
            slots.push(Value::Missing);
        }
        slots[slot.index()] = value;
    }

    /// Sets the document's metadata for `$meta`: a document such as `{textScore: 1.5}`.
    pub fn set_metadata(&self, metadata: RawDoc<'a>) {
        self.metadata.set(metadata);
    }

    /// One piece of the document's metadata.
    pub fn metadata(&self, name: &str) -> Value<'a> {
        self.metadata.get().get_or_missing(name)
    }

    /// Counts work in units of about 50 ns, and the memory that the arena has taken meanwhile.
    ///
    /// Errors: what the meter says; `ExceededMemoryLimit`.
    #[inline]
    pub fn spend(&self, cost: u32) -> Result<()> {
        sheaf_meter::tick(cost)?;
        if self.arena.allocated_bytes() >= self.count_at.get() { self.count_memory() } else { Ok(()) }
    }

    /// [`Env::spend`] for looking at this many bytes once.
    ///
    /// Errors: like [`Env::spend`].
    #[inline]
    pub fn spend_for(&self, bytes: usize) -> Result<()> {
        self.spend(1 + u32::try_from(bytes >> 6).unwrap_or(1 << 20))
    }

    /// Counts what the arena is about to take in one go, before it does.
    ///
    /// Errors: `ExceededMemoryLimit`.
    pub fn expect(&self, bytes: usize) -> Result<()> {
        if bytes < COUNTED_BYTES {
            Ok(())
        } else {
            self.hold(self.arena.allocated_bytes().saturating_add(bytes))
        }
    }

    #[cold]
    fn count_memory(&self) -> Result<()> {
        self.hold(self.arena.allocated_bytes())
    }

    fn hold(&self, bytes: usize) -> Result<()> {
        let mut held = self.held.borrow_mut();
        match &mut *held {
            Some(held) => held.set(bytes as u64)?,
            None => *held = Some(sheaf_meter::reserve(bytes as u64)?),
        }
        self.count_at.set(bytes + COUNTED_BYTES);
        Ok(())
    }

    /// Text built in the arena.
    pub(crate) fn text(&self, text: &str) -> Value<'a> {
        Value::String(self.arena.alloc_str(text))
    }
}

/// How much there is to look at in a value.
pub fn size_of_value(value: Value<'_>) -> usize {
    match value {
        Value::Document(doc) | Value::Array(doc) => doc.len(),
        Value::String(text) | Value::Symbol(text) | Value::JavaScript(text) => text.len(),
        Value::Binary(binary) => binary.bytes.len(),
        _ => 0,
    }
}
