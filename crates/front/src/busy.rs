//! Which busy connections get a thread of their own.
//!
//! Some for each processor, and only while no more than these are busy: a few clients gain by being woken directly, but
//! many are served faster by the reactor, which takes all the messages that have come since it last looked, without a
//! switch between threads for each.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// For so long after a connection was refused a thread, none gets one.
const CROWDED: Duration = Duration::from_secs(1);

/// Counts the connections that have threads.
pub struct BusyConnections {
    limit: usize,
    processors: usize,
    threads: AtomicUsize,
    start: Instant,
    /// Milliseconds after `start`.
    crowded_until: AtomicU64,
}

impl BusyConnections {
    /// Threads for at most `limit` connections.
    pub fn new(limit: usize) -> Self {
        BusyConnections {
            limit,
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            threads: AtomicUsize::new(0),
            start: Instant::now(),
            crowded_until: AtomicU64::new(0),
        }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Whether there are more busy connections than threads for them. Those that have one give it back.
    pub fn crowded(&self) -> bool {
        // A look at the clock is needed only after there was a crowd.
        let until = self.crowded_until.load(Ordering::Relaxed);
        until != 0 && self.now() < until
    }

    /// Whether there is a processor for each of these threads and one for its client.
    pub fn is_roomy(&self) -> bool {
        self.threads.load(Ordering::Relaxed) * 2 <= self.processors
    }

    /// Asks for a thread; [`BusyConnections::leave`] gives it back.
    pub fn enter(&self) -> bool {
        if !self.crowded() {
            if self.threads.fetch_add(1, Ordering::Relaxed) < self.limit {
                return true;
            }
            self.leave();
        }
        // Whoever asks again keeps the crowd alive.
        self.crowded_until.store(self.now() + CROWDED.as_millis() as u64, Ordering::Relaxed);
        false
    }

    /// A thread is free again.
    pub fn leave(&self) {
        self.threads.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_goes_back_to_the_reactor() {
        let busy = BusyConnections::new(2);
        assert!(busy.enter() && busy.enter());
        assert!(!busy.crowded());
        assert!(!busy.enter());
        assert!(busy.crowded());
        busy.leave();
        busy.leave();
        assert!(!busy.enter(), "the crowd has just been there");
        busy.crowded_until.store(0, Ordering::Relaxed);
        assert!(busy.enter(), "nobody has asked for a while");
    }
}
