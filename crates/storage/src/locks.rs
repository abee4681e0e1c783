//! Locks on keys, and gates that keep DDL and writers apart.
//!
//! Nobody holds one lock while waiting for another: a plain write gives back what it has (committing
//! what it already prepared) before it waits, and a transaction never waits. So there are no deadlocks.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use ahash::AHashMap;
use sheaf_errors::Result;

use crate::critical::must;
use crate::options::{Block, Interrupt};
use crate::order::{Condvar, Mutex, about_to_wait, rank};

/// How often a waiter looks whether it was interrupted.
const POLL: Duration = Duration::from_millis(20);
const STRIPES: usize = 256;
/// Room for locks that an idle stripe keeps.
const KEPT_MAX: usize = 256;

/// Who holds a lock: a number that is never used twice.
pub(crate) type Owner = u64;

/// What a lock is on: a hash of a prefix and key. A false collision costs a wait, nothing else.
pub(crate) type LockKey = u64;

#[derive(Default)]
struct Stripe {
    held: Mutex<{ rank::LEAF }, AHashMap<LockKey, Held>>,
    released: Condvar,
}

struct Held {
    owner: Owner,
    waiters: u32,
}

/// Locks on record keys and unique index keys.
pub(crate) struct LockTable {
    stripes: Vec<Stripe>,
    hasher: ahash::RandomState,
    next_owner: AtomicU64,
    /// Whether a lock was ever taken away from somebody.
    seized: AtomicBool,
    pub waits: AtomicU64,
}

/// How an attempt to lock ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Locked {
    /// Taken now.
    Taken,
    /// This owner had it already.
    Already,
    /// Somebody else has it.
    Busy,
}

impl LockTable {
    pub fn new() -> Self {
        LockTable {
            stripes: (0..STRIPES).map(|_| Stripe::default()).collect(),
            hasher: ahash::RandomState::new(),
            next_owner: AtomicU64::new(1),
            seized: AtomicBool::new(false),
            waits: AtomicU64::new(0),
        }
    }

    pub fn owner(&self) -> Owner {
        self.next_owner.fetch_add(1, Ordering::Relaxed)
    }

    /// The lock of a whole key (prefix included) in a column family; `space` keeps records and index keys apart.
    pub fn key(&self, space: u8, key: &[u8]) -> LockKey {
        self.hasher.hash_one((space, key))
    }

    fn stripe(&self, key: LockKey) -> &Stripe {
        &self.stripes[key as usize % STRIPES]
    }

    pub fn try_lock(&self, key: LockKey, owner: Owner) -> Locked {
        match self.stripe(key).held.lock().entry(key) {
            Entry::Vacant(free) => {
                free.insert(Held { owner, waiters: 0 });
                Locked::Taken
            }
            Entry::Occupied(held) if held.get().owner == owner => Locked::Already,
            Entry::Occupied(_) => Locked::Busy,
        }
    }

    /// Takes a lock for what the set has ordered. Who has it has begun before that, and will not commit: what others have
    /// ordered since ends it ([`crate::commit::Commits::check_no_others`]). False: this owner had it already.
    pub fn seize(&self, key: LockKey, owner: Owner) -> bool {
        match self.stripe(key).held.lock().entry(key) {
            Entry::Vacant(free) => {
                free.insert(Held { owner, waiters: 0 });
                true
            }
            Entry::Occupied(held) if held.get().owner == owner => false,
            Entry::Occupied(mut held) => {
                self.seized.store(true, Ordering::Release);
                held.get_mut().owner = owner;
                true
            }
        }
    }

    /// Gives back locks of this owner; those that were taken away from it are another's.
    pub fn unlock(&self, keys: &[LockKey], owner: Owner) {
        for key in keys {
            let stripe = self.stripe(*key);
            let removed = {
                let mut held = stripe.held.lock();
                let own = held.get(key).is_some_and(|held| held.owner == owner);
                let removed = if own { held.remove(key) } else { None };
                must!(
                    own || self.seized.load(Ordering::Acquire),
                    "a lock is given back by one who does not hold it"
                );
                // One document can have a million keys. Their room is not kept for the next one like it.
                if held.is_empty() && held.capacity() > KEPT_MAX {
                    held.shrink_to(KEPT_MAX);
                }
                removed
            };
            if removed.is_some_and(|held| held.waiters > 0) {
                stripe.released.notify_all();
            }
        }
    }

    /// Waits until the key looks free. The caller must hold nothing, and tries again afterwards.
    pub fn wait(&self, key: LockKey, block: &Block, interrupt: Interrupt<'_>) -> Result<()> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        let stripe = self.stripe(key);
        // Most holders are in the middle of a commit that takes microseconds.
        for _ in 0..100 {
            if !stripe.held.lock().contains_key(&key) {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let mut outcome = Ok(());
        block(&mut || {
            loop {
                outcome = interrupt();
                if outcome.is_err() {
                    return;
                }
                let mut held = stripe.held.lock();
                let Some(entry) = held.get_mut(&key) else { return };
                entry.waiters += 1;
                stripe.released.wait_for(&mut held, POLL);
                match held.get_mut(&key) {
                    // If it is held by somebody new, the count may be theirs: then it only wakes once too often.
                    Some(entry) => entry.waiters = entry.waiters.saturating_sub(1),
                    None => return,
                }
            }
        });
        outcome
    }
}

const WRITER: usize = 1 << (usize::BITS - 1);

/// Many may pass (writers of a collection) or one may close it (DDL on the collection).
#[derive(Default)]
pub(crate) struct Gate {
    /// Number of passes, and [`WRITER`] when closed or closing.
    state: AtomicUsize,
    mutex: Mutex<{ rank::GATES }, ()>,
    changed: Condvar,
}

/// A pass through a gate, until it is dropped.
pub(crate) struct Pass {
    gate: Arc<Gate>,
    lightly: bool,
}

impl Pass {
    fn of(gate: &Arc<Gate>) -> Pass {
        Pass { gate: gate.clone(), lightly: false }
    }

    /// Leaves without the gate's own lock, for one who holds the pipeline: who waits may notice it a moment later.
    pub fn leave_lightly(mut self) {
        self.lightly = true;
    }
}

/// A closed gate, until the last clone is dropped: the proof that nobody writes meanwhile.
#[derive(Clone)]
pub(crate) struct Closed(Arc<Shut>);

/// Opens the gate when it goes.
struct Shut(Arc<Gate>);

impl Closed {
    fn of(gate: &Arc<Gate>) -> Closed {
        Closed(Arc::new(Shut(gate.clone())))
    }

    /// Which gate it is, as [`Gate::address`].
    pub fn address(&self) -> usize {
        self.0.0.address()
    }

    /// Whether it is this gate that is closed.
    pub fn closes(&self, gate: &Arc<Gate>) -> bool {
        Arc::ptr_eq(&self.0.0, gate)
    }
}

impl Gate {
    /// What tells it from others, as long as it lives.
    pub fn address(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self) as usize
    }

    /// Passes; waits while it is closed or being closed.
    pub fn pass(self: &Arc<Self>, block: &Block, interrupt: Interrupt<'_>) -> Result<Pass> {
        about_to_wait(rank::GATES);
        loop {
            if let Some(pass) = self.try_pass() {
                return Ok(pass);
            }
            self.wait_for(block, interrupt, |state| state & WRITER == 0)?;
        }
    }

    pub fn try_pass(self: &Arc<Self>) -> Option<Pass> {
        if self.state.fetch_add(1, Ordering::AcqRel) & WRITER == 0 {
            return Some(Pass::of(self));
        }
        self.leave(false);
        None
    }

    /// Passes also where it is closed: what the set has ordered waits for nobody. Who has closed it has begun before that, and
    /// will not commit.
    pub fn force(self: &Arc<Self>) -> Pass {
        self.state.fetch_add(1, Ordering::AcqRel);
        Pass::of(self)
    }

    /// Closes it, and waits until all have left.
    pub fn close(self: &Arc<Self>, block: &Block, interrupt: Interrupt<'_>) -> Result<Closed> {
        about_to_wait(rank::GATES);
        while self.state.fetch_or(WRITER, Ordering::AcqRel) & WRITER != 0 {
            self.wait_for(block, interrupt, |state| state & WRITER == 0)?;
        }
        let closed = Closed::of(self);
        self.wait_for(block, interrupt, |state| state == WRITER)?;
        Ok(closed)
    }

    /// Closes it if nobody is within and nobody else has closed it.
    pub fn try_close(self: &Arc<Self>) -> Option<Closed> {
        let shut = self.state.compare_exchange(0, WRITER, Ordering::AcqRel, Ordering::Acquire);
        shut.is_ok().then(|| Closed::of(self))
    }

    fn wait_for(&self, block: &Block, interrupt: Interrupt<'_>, ready: impl Fn(usize) -> bool) -> Result<()> {
        if ready(self.state.load(Ordering::Acquire)) {
            return Ok(());
        }
        let mut outcome = Ok(());
        block(&mut || {
            let mut guard = self.mutex.lock();
            while !ready(self.state.load(Ordering::Acquire)) {
                outcome = interrupt();
                if outcome.is_err() {
                    return;
                }
                self.changed.wait_for(&mut guard, POLL);
            }
        });
        outcome
    }

    fn leave(&self, lightly: bool) {
        let before = self.state.fetch_sub(1, Ordering::AcqRel);
        must!(before & !WRITER != 0, "one who is not in leaves a gate");
        if before & WRITER != 0 {
            let _guard = (!lightly).then(|| self.mutex.lock());
            self.changed.notify_all();
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gate.leave(self.lightly);
    }
}

impl Drop for Shut {
    fn drop(&mut self) {
        let before = self.0.state.fetch_and(!WRITER, Ordering::AcqRel);
        must!(before & WRITER != 0, "a gate is opened that is not closed");
        let _guard = self.0.mutex.lock();
        self.0.changed.notify_all();
    }
}
