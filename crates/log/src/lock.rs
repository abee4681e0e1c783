//! Locks that a panic of whoever has one does not take from the others.

use std::sync::{Mutex, MutexGuard};

/// Locks, also after somebody panicked with the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
