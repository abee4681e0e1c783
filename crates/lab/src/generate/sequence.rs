//! New keys for concurrent clients, and how far all of them are certainly there.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Hands out the keys of new documents, and knows below which key every insert has been acknowledged. Reads choose
/// below that limit, so that a document that is not found is a finding and not a race.
#[derive(Debug)]
pub struct Sequence {
    next: AtomicU64,
    limit: AtomicU64,
    ahead: Mutex<BinaryHeap<Reverse<u64>>>,
}

impl Sequence {
    /// The keys below `first` exist.
    pub fn new(first: u64) -> Self {
        Sequence { next: first.into(), limit: first.into(), ahead: Mutex::default() }
    }

    /// A key that nobody had before.
    pub fn take(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The insert of this key was acknowledged (or has failed, and nobody will look for it: see the workload).
    pub fn acknowledge(&self, key: u64) {
        let mut ahead = self.ahead.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        ahead.push(Reverse(key));
        let mut limit = self.limit.load(Ordering::Relaxed);
        while ahead.peek() == Some(&Reverse(limit)) {
            ahead.pop();
            limit += 1;
        }
        self.limit.store(limit, Ordering::Release);
    }

    /// Every key below this was acknowledged.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Acquire)
    }

    /// How many keys were handed out, counted from 0.
    pub fn taken(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_waits_for_the_slowest() {
        let sequence = Sequence::new(10);
        let keys: Vec<u64> = (0..4).map(|_| sequence.take()).collect();
        assert_eq!(keys, [10, 11, 12, 13]);
        sequence.acknowledge(12);
        sequence.acknowledge(11);
        assert_eq!(sequence.limit(), 10);
        sequence.acknowledge(10);
        assert_eq!(sequence.limit(), 13);
        sequence.acknowledge(13);
        assert_eq!((sequence.limit(), sequence.taken()), (14, 14));
    }

    #[test]
    fn threads_get_different_keys() {
        let sequence = Sequence::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| sequence.acknowledge(sequence.take())));
            }
        });
        assert_eq!((sequence.limit(), sequence.taken()), (4000, 4000));
    }
}
