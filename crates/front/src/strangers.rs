//! Clients of which nobody knows yet who they are, where clients must prove it: what they may send, how many there may be, and how
//! often they may be wrong.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The longest message of one.
pub const MESSAGE_BYTES: usize = 16 * 1024;

/// How long one may take to say its first word.
pub const FIRST_WORD: Duration = Duration::from_secs(30);

/// Of all connections, one in so many is kept for those who have logged in.
const ROOM_SHARE: usize = 5;

/// So many failures of an address within a minute after the last one cost nothing...
const FREE_FAILURES: u32 = 16;
/// ...each further one doubles this...
const FIRST_DELAY: Duration = Duration::from_millis(50);
/// ...up to this.
const LONGEST_DELAY: Duration = Duration::from_secs(3);

/// Failures are forgotten when an address has had none for so long.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Addresses that are remembered; with one more it begins anew with those that are still of interest.
const ADDRESSES: usize = 10_000;

/// The clients that nobody knows yet.
#[derive(Default)]
pub struct Strangers {
    count: AtomicUsize,
    failures: Mutex<HashMap<IpAddr, (u32, Instant), ahash::RandomState>>,
}

impl Strangers {
    /// Whether one more may come, of so many connections.
    pub fn have_room(&self, connections: usize) -> bool {
        self.count.load(Ordering::Relaxed) < connections - connections / ROOM_SHARE
    }

    /// One has come, or has logged out.
    pub fn add(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// One has gone, or is known from now on.
    pub fn remove(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// A proof from this address was wrong: for how long its answer is held back.
    pub fn failed(&self, from: IpAddr) -> Duration {
        let now = Instant::now();
        let mut failures = self.failures.lock();
        if failures.len() >= ADDRESSES {
            failures.retain(|_, (_, last)| now.duration_since(*last) < REMEMBERED);
            if failures.len() >= ADDRESSES {
                failures.clear();
            }
        }
        let (count, last) = failures.entry(from).or_insert((0, now));
        if now.duration_since(*last) >= REMEMBERED {
            *count = 0;
        }
        (*count, *last) = (count.saturating_add(1), now);
        match count.checked_sub(FREE_FAILURES + 1) {
            None => Duration::ZERO,
            Some(more) => (FIRST_DELAY * (1 << more.min(10))).min(LONGEST_DELAY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_room_is_kept_for_those_who_are_known() {
        let strangers = Strangers::default();
        (0..8).for_each(|_| strangers.add());
        assert!(!strangers.have_room(10) && strangers.have_room(11));
        strangers.remove();
        assert!(strangers.have_room(10));
        assert!(Strangers::default().have_room(1));
    }

    #[test]
    fn who_fails_often_waits_longer_each_time() {
        let strangers = Strangers::default();
        let (one, other) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let delays: Vec<Duration> = (0..30).map(|_| strangers.failed(one)).collect();
        assert!(delays[..16].iter().all(Duration::is_zero) && delays[16] == FIRST_DELAY);
        assert!(delays.is_sorted() && delays[29] == LONGEST_DELAY);
        assert!(strangers.failed(other).is_zero());
    }
}
