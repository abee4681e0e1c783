//! What has been committed lately, for transactions that look for conflicts.

use std::collections::{BTreeMap, VecDeque};

use ahash::AHashMap;

use crate::critical::{impossible, must};
use crate::locks::LockKey;

/// What has been committed since the oldest open transaction began; empty while none is open.
#[derive(Default)]
pub(crate) struct Recent {
    sequence: u64,
    /// Starts of open transactions, counted.
    open: BTreeMap<u64, usize>,
    /// By what, and as of which time, where that is not its entry's.
    written: AHashMap<LockKey, (u64, u64)>,
    /// Of what came later, nothing is missing.
    complete_from: u64,
    order: VecDeque<(u64, Box<[LockKey]>)>,
}

impl Recent {
    /// How many units have become visible.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// A unit is about to become visible. It is committed as of that time, if it was prepared before.
    pub fn committed(&mut self, locks: &[LockKey], as_of: u64) {
        self.sequence += 1;
        if self.open.is_empty() {
            self.complete_from = self.sequence;
        } else if !locks.is_empty() {
            self.written.extend(locks.iter().map(|lock| (*lock, (self.sequence, as_of))));
            self.order.push_back((self.sequence, locks.into()));
        }
    }

    /// A transaction begins, with a snapshot that shows all that is committed.
    pub fn begin(&mut self) -> u64 {
        *self.open.entry(self.sequence).or_default() += 1;
        self.sequence
    }

    /// A transaction begins, with a snapshot of an earlier moment. False: it is not known any more what came since.
    pub fn begin_at(&mut self, start: u64) -> bool {
        must!(start <= self.sequence, "a transaction begins at {start}, after commit {}", self.sequence);
        let known = start >= self.complete_from;
        if known {
            *self.open.entry(start).or_default() += 1;
        }
        known
    }

    /// A transaction that began there is over.
    pub fn end(&mut self, start: u64) {
        must!(start <= self.sequence, "a transaction began at {start}, after commit {}", self.sequence);
        let Some(count) = self.open.get_mut(&start) else {
            impossible!("a transaction that began at {start} ends, and is not among the open ones")
        };
        *count -= 1;
        if *count == 0 {
            self.open.remove(&start);
        }
        let oldest = self.open.first_key_value().map_or(u64::MAX, |(start, _)| *start);
        while self.order.front().is_some_and(|(sequence, _)| *sequence <= oldest) {
            if let Some((sequence, locks)) = self.order.pop_front() {
                self.complete_from = sequence;
                for lock in locks.iter() {
                    if self.written.get(lock).is_some_and(|(by, _)| *by == sequence) {
                        self.written.remove(lock);
                    }
                }
            }
        }
    }

    /// Whether somebody has written this since a transaction began there that does not see it at the time that it reads at.
    pub fn written_since(&self, lock: LockKey, start: u64, read_at: u64) -> bool {
        let seen = |as_of: u64| (1..=read_at).contains(&as_of);
        self.written.get(&lock).is_some_and(|(sequence, as_of)| *sequence > start && !seen(*as_of))
    }

    /// How many transactions are open.
    pub fn open_count(&self) -> u64 {
        self.open.values().map(|count| *count as u64).sum()
    }
}
