//! Locks on keys, and gates that keep DDL and writers apart.
//!
//! Nobody holds one lock while waiting for another: a plain write gives back what it has (committing
//! what it already prepared) before it waits, and a transaction never waits. So there are no deadlocks.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

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

    /// Who has a lock.
    pub fn holder(&self, key: LockKey) -> Option<Owner> {
        self.stripe(key).held.lock().get(&key).map(|held| held.owner)
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
        let began = Instant::now();
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
        sheaf_meter::note_wait(began);
        outcome
    }
}

/// Closed, or about to be.
const WRITER: u64 = 1 << 63;
/// One hold of [`Gate::hold`]; there is room for 127.
const HOLD: u64 = 1 << 56;
const HOLDS: u64 = WRITER - HOLD;
/// One transaction within.
const TRANSACTION: u64 = 1 << 28;
/// One unit within; there is room for 2^28 of both.
const UNIT: u64 = 1;
const UNITS: u64 = TRANSACTION - UNIT;

/// Many may pass (writers of a collection) or one may close it (DDL on the collection).
///
/// Writers are units, whose commits are near, and transactions, which may stay for minutes. What a shard owns of the collection changes
/// under a [`Hold`]: no unit is within meanwhile, and transactions find out when they commit.
#[derive(Default)]
pub(crate) struct Gate {
    /// [`WRITER`] when closed or closing, and the numbers of holds, of transactions and of units within.
    state: AtomicU64,
    mutex: Mutex<{ rank::GATES }, ()>,
    changed: Condvar,
}

/// A pass through a gate, until it is dropped.
pub(crate) struct Pass {
    gate: Arc<Gate>,
    /// [`UNIT`] or [`TRANSACTION`].
    kind: u64,
    lightly: bool,
}

impl Pass {
    fn of(gate: &Arc<Gate>, kind: u64) -> Pass {
        Pass { gate: gate.clone(), kind, lightly: false }
    }

    /// Leaves without the gate's own lock, for one who holds the pipeline: who waits may notice it a moment later.
    pub fn leave_lightly(mut self) {
        self.lightly = true;
    }
}

/// Keeps units out of a collection until it is dropped. Several may do so at the same time: what they change under it has locks of
/// its own.
pub struct Hold {
    gate: Arc<Gate>,
    lightly: bool,
}

impl Hold {
    /// As [`Pass::leave_lightly`].
    pub(crate) fn leave_lightly(mut self) {
        self.lightly = true;
    }

    /// Whether it is this gate that is held.
    pub(crate) fn holds(&self, gate: &Arc<Gate>) -> bool {
        Arc::ptr_eq(&self.gate, gate)
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

    /// Passes as a unit; waits while it is closed or held, or about to be.
    pub fn pass(self: &Arc<Self>, block: &Block, interrupt: Interrupt<'_>) -> Result<Pass> {
        about_to_wait(rank::GATES);
        loop {
            if let Some(pass) = self.try_pass() {
                return Ok(pass);
            }
            self.wait_for(block, interrupt, |state| state & (WRITER | HOLDS) == 0)?;
        }
    }

    /// [`Gate::pass`], if nobody has to be waited for.
    pub fn try_pass(self: &Arc<Self>) -> Option<Pass> {
        self.enter(UNIT, WRITER | HOLDS)
    }

    /// Passes as a transaction, which holds do not keep out; waits while it is closed.
    pub fn pass_as_transaction(self: &Arc<Self>, block: &Block, interrupt: Interrupt<'_>) -> Result<Pass> {
        about_to_wait(rank::GATES);
        loop {
            if let Some(pass) = self.enter(TRANSACTION, WRITER) {
                return Ok(pass);
            }
            self.wait_for(block, interrupt, |state| state & WRITER == 0)?;
        }
    }

    /// Passes as a unit, for a transaction that is within and about to commit: nobody has closed it meanwhile. `None` while it is held.
    pub fn try_pass_again(self: &Arc<Self>) -> Option<Pass> {
        self.enter(UNIT, HOLDS)
    }

    fn enter(self: &Arc<Self>, kind: u64, unless: u64) -> Option<Pass> {
        if self.state.fetch_add(kind, Ordering::AcqRel) & unless == 0 {
            return Some(Pass::of(self, kind));
        }
        self.leave(kind, false);
        None
    }

    /// Passes also where it is closed: what the set has ordered waits for nobody. Who has closed it has begun before that, and
    /// will not commit.
    pub fn force(self: &Arc<Self>) -> Pass {
        self.state.fetch_add(UNIT, Ordering::AcqRel);
        Pass::of(self, UNIT)
    }

    /// Closes it, and waits until all have left.
    pub fn close(self: &Arc<Self>, block: &Block, interrupt: Interrupt<'_>) -> Result<Closed> {
        about_to_wait(rank::GATES);
        while !self.change(|state| (state & (WRITER | HOLDS) == 0).then_some(state | WRITER)) {
            self.wait_for(block, interrupt, |state| state & (WRITER | HOLDS) == 0)?;
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

    /// Keeps units out, and waits until those that are within have left; others may hold it, too.
    pub fn hold(self: &Arc<Self>, block: &Block, interrupt: Interrupt<'_>) -> Result<Hold> {
        about_to_wait(rank::GATES);
        let room = |state: u64| state & WRITER == 0 && state & HOLDS < HOLDS;
        while !self.change(|state| room(state).then_some(state + HOLD)) {
            self.wait_for(block, interrupt, room)?;
        }
        let hold = Hold { gate: self.clone(), lightly: false };
        self.wait_for(block, interrupt, |state| state & UNITS == 0)?;
        Ok(hold)
    }

    /// Holds it for what the set has ordered, whoever is within: as [`Gate::force`].
    pub fn force_hold(self: &Arc<Self>) -> Hold {
        self.state.fetch_add(HOLD, Ordering::AcqRel);
        Hold { gate: self.clone(), lightly: false }
    }

    /// Whether it is held, and no unit is within.
    pub fn is_held(&self) -> bool {
        let state = self.state.load(Ordering::Acquire);
        state & HOLDS != 0 && state & UNITS == 0
    }

    /// Waits until nobody holds it.
    pub fn wait_while_held(&self, block: &Block, interrupt: Interrupt<'_>) -> Result<()> {
        about_to_wait(rank::GATES);
        self.wait_for(block, interrupt, |state| state & HOLDS == 0)
    }

    fn change(&self, next: impl Fn(u64) -> Option<u64>) -> bool {
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).is_ok()
    }

    fn wait_for(&self, block: &Block, interrupt: Interrupt<'_>, ready: impl Fn(u64) -> bool) -> Result<()> {
        if ready(self.state.load(Ordering::Acquire)) {
            return Ok(());
        }
        let mut outcome = Ok(());
        let began = Instant::now();
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
        sheaf_meter::note_wait(began);
        outcome
    }

    fn leave(&self, kind: u64, lightly: bool) {
        let before = self.state.fetch_sub(kind, Ordering::AcqRel);
        let within = if kind == UNIT { before & UNITS } else { before & (HOLD - TRANSACTION) };
        must!(within != 0, "one who is not in leaves a gate");
        if before & (WRITER | HOLDS) != 0 {
            self.tell(lightly);
        }
    }

    fn tell(&self, lightly: bool) {
        let _guard = (!lightly).then(|| self.mutex.lock());
        self.changed.notify_all();
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gate.leave(self.kind, self.lightly);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let before = self.gate.state.fetch_sub(HOLD, Ordering::AcqRel);
        must!(before & HOLDS != 0, "a gate is let go that is not held");
        self.gate.tell(self.lightly);
    }
}

impl Drop for Shut {
    fn drop(&mut self) {
        let before = self.0.state.fetch_and(!WRITER, Ordering::AcqRel);
        must!(before & WRITER != 0, "a gate is opened that is not closed");
        self.0.tell(false);
    }
}
