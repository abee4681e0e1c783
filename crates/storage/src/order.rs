//! The order of locks.
//!
//! Whoever holds a lock takes only such as come later in [`rank`]; nobody can then wait in a circle. In this crate's tests,
//! and in programs built with the feature `lock-order`, each thread checks it at every lock and ends the process where it is
//! broken, whether or not anybody waits. Otherwise these are parking_lot's types and nothing else.
//!
//! What can be held without a thread has a place in the order, too, and is checked where it is waited for
//! ([`about_to_wait`]): gates of collections and of `fsyncLock`, the pipeline. Locks of records are waited for by those who
//! hold nothing but passes through gates (see [`crate::locks`]).

/// Ranks, outermost first.
pub mod rank {
    /// `fsyncLock`s, held while one closes the gate of all writes.
    pub const WRITE_LOCKS: u8 = 10;
    /// Gates: of collections in the order of their names, then the one of `fsyncLock`.
    pub const GATES: u8 = 20;
    /// One DDL at a time.
    pub const DDL: u8 = 30;
    /// One flush at a time.
    pub const CHECKPOINTING: u8 = 40;
    /// The pipeline, held still.
    pub const PIPELINE: u8 = 50;
    /// Who waits for the pipeline.
    pub const QUEUE: u8 = 60;
    /// What a leader leaves for one of them.
    pub const SLOT: u8 = 70;
    /// Who may write to an index that is being built.
    pub const TURN: u8 = 80;
    /// A member's state file (server).
    pub const STATE_FILE: u8 = 90;
    /// The replication core (server).
    pub const REPLICATION: u8 = 100;
    /// What the core tells (server): units, role, commit point, waiters.
    pub const TOLD: u8 = 110;
    /// Newest commits, under which they become visible.
    pub const RECENT: u8 = 120;
    /// States that the set has committed.
    pub const MAJORITY: u8 = 130;
    /// Counts of the log's operations.
    pub const OPLOG_COUNTS: u8 = 135;
    /// Position of the newest commit.
    pub const LAST: u8 = 140;
    /// Units that are not known to be durable.
    pub const AWAITING_SYNC: u8 = 160;
    /// Dropped data that waits.
    pub const GARBAGE: u8 = 170;
    /// Who waits for syncs.
    pub const DURABILITY: u8 = 180;
    /// Position of the last flush.
    pub const FLUSHED: u8 = 190;
    /// Writers who wait for room.
    pub const ROOM: u8 = 200;
    /// Anything under which nothing else is locked.
    pub const LEAF: u8 = 250;
}

#[cfg(any(test, feature = "lock-order"))]
mod checked {
    use std::cell::RefCell;
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    thread_local! {
        static HELD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }

    /// A rank that this thread has.
    pub struct Held(u8, std::marker::PhantomData<*const ()>);

    impl Held {
        /// Notes what is taken without waiting.
        pub fn note(rank: u8) -> Held {
            let _ = HELD.try_with(|held| held.borrow_mut().push(rank));
            Held(rank, std::marker::PhantomData)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            let _ = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                if let Some(at) = held.iter().rposition(|rank| *rank == self.0) {
                    held.remove(at);
                }
            });
        }
    }

    /// To be called before a wait for something of this rank.
    #[track_caller]
    pub fn about_to_wait(rank: u8) {
        let latest = HELD.try_with(|held| held.borrow().iter().copied().max()).ok().flatten();
        if let Some(latest) = latest.filter(|latest| *latest >= rank) {
            let what = format!("a lock of rank {rank} is wanted while one of rank {latest} is held");
            if cfg!(test) {
                panic!("{what}");
            }
            // A server would catch the panic of a command, and go on as if nothing had been.
            eprintln!("{what}: {}", std::panic::Location::caller());
            std::process::abort();
        }
    }

    /// A mutex with a place in the order.
    #[derive(Default)]
    pub struct Mutex<const RANK: u8, T>(parking_lot::Mutex<T>);

    /// The guard of a [`Mutex`].
    pub struct MutexGuard<'m, const RANK: u8, T> {
        guard: parking_lot::MutexGuard<'m, T>,
        _held: Held,
    }

    impl<const RANK: u8, T> Mutex<RANK, T> {
        /// Not locked.
        pub const fn new(value: T) -> Self {
            Mutex(parking_lot::Mutex::new(value))
        }

        /// Waits and locks.
        #[track_caller]
        pub fn lock(&self) -> MutexGuard<'_, RANK, T> {
            about_to_wait(RANK);
            MutexGuard { guard: self.0.lock(), _held: Held::note(RANK) }
        }

        /// Waits so long at most.
        #[track_caller]
        pub fn try_lock_for(&self, timeout: Duration) -> Option<MutexGuard<'_, RANK, T>> {
            about_to_wait(RANK);
            self.0.try_lock_for(timeout).map(|guard| MutexGuard { guard, _held: Held::note(RANK) })
        }
    }

    impl<const RANK: u8, T> Deref for MutexGuard<'_, RANK, T> {
        type Target = T;
        fn deref(&self) -> &T {
            &self.guard
        }
    }

    impl<const RANK: u8, T> DerefMut for MutexGuard<'_, RANK, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.guard
        }
    }

    /// For guards of [`Mutex`].
    #[derive(Default)]
    pub struct Condvar(parking_lot::Condvar);

    impl Condvar {
        /// Nobody waits.
        pub const fn new() -> Self {
            Condvar(parking_lot::Condvar::new())
        }

        /// Waits until it is notified.
        pub fn wait<const RANK: u8, T>(&self, guard: &mut MutexGuard<'_, RANK, T>) {
            self.0.wait(&mut guard.guard);
        }

        /// [`Condvar::wait`] for so long at most.
        pub fn wait_for<const RANK: u8, T>(&self, guard: &mut MutexGuard<'_, RANK, T>, timeout: Duration) {
            self.0.wait_for(&mut guard.guard, timeout);
        }

        /// Wakes one.
        pub fn notify_one(&self) {
            self.0.notify_one();
        }

        /// Wakes all.
        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

#[cfg(not(any(test, feature = "lock-order")))]
mod unchecked {
    pub use parking_lot::Condvar;

    /// A mutex with a place in the order.
    pub type Mutex<const RANK: u8, T> = parking_lot::Mutex<T>;

    /// The guard of a [`Mutex`].
    pub type MutexGuard<'m, const RANK: u8, T> = parking_lot::MutexGuard<'m, T>;

    /// A rank that this thread has.
    pub struct Held;

    impl Held {
        /// Notes what is taken without waiting.
        #[inline(always)]
        pub fn note(_rank: u8) -> Held {
            Held
        }
    }

    /// To be called before a wait for something of this rank.
    #[inline(always)]
    pub fn about_to_wait(_rank: u8) {}
}

#[cfg(any(test, feature = "lock-order"))]
pub use checked::{Condvar, Held, Mutex, MutexGuard, about_to_wait};
#[cfg(not(any(test, feature = "lock-order")))]
pub use unchecked::{Condvar, Held, Mutex, MutexGuard, about_to_wait};

#[cfg(test)]
mod tests {
    use super::*;

    fn panics(work: impl FnOnce() + std::panic::UnwindSafe) -> bool {
        std::panic::catch_unwind(work).is_err()
    }

    #[test]
    fn a_wrong_order_is_found_though_nobody_waits() {
        let outer: Mutex<{ rank::RECENT }, i32> = Mutex::new(1);
        let inner: Mutex<{ rank::LAST }, i32> = Mutex::new(2);
        let right = || *outer.lock() + *inner.lock();
        assert_eq!(right(), 3);
        assert!(panics(std::panic::AssertUnwindSafe(|| {
            let _inner = inner.lock();
            let _outer = outer.lock();
        })));
        // Twice the same, too, which would wait for ever.
        assert!(panics(std::panic::AssertUnwindSafe(|| {
            let _inner = inner.lock();
            let _again = inner.try_lock_for(std::time::Duration::ZERO);
        })));
        // What was held is not any more, in whatever order it was given back.
        let (first, second) = (outer.lock(), inner.lock());
        drop(first);
        drop(second);
        assert_eq!(right(), 3);
        let held = Held::note(rank::PIPELINE);
        assert!(panics(|| about_to_wait(rank::DDL)));
        drop(held);
        about_to_wait(rank::DDL);
    }
}
