//! How quick the disk is, as syncs have shown.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::lock::lock;

/// Smaller syncs tell nothing of the disk's rate.
const TELLING_BYTES: u64 = 4 << 20;

/// A sync takes at least so much of its time for the bytes, however long syncs of few take.
const LEAST_PART: f64 = 0.125;

/// What is believed to be the shortest sync becomes so much longer with each.
const FADES: f64 = 1.02;

/// The disk's rate.
#[derive(Default)]
pub(crate) struct Rate {
    state: Mutex<State>,
    /// As it is asked for: 0 before the first sync that tells.
    bytes_a_second: AtomicU64,
}

#[derive(Default)]
struct State {
    /// What a sync takes however little it writes: the shortest of the last ones.
    shortest: Option<f64>,
    /// What a byte takes beyond that, averaged over the last syncs. `None` before the first that tells.
    seconds_a_byte: Option<f64>,
}

impl Rate {
    /// A sync has written so many bytes that none had before, in so long.
    pub fn note(&self, bytes: u64, took: Duration) {
        let took = took.as_secs_f64();
        let mut state = lock(&self.state);
        let shortest = state.shortest.map_or(took, |before| took.min(before * FADES));
        state.shortest = Some(shortest);
        if bytes < TELLING_BYTES {
            return;
        }
        let this = (took - shortest).max(took * LEAST_PART) / bytes as f64;
        let seconds = state.seconds_a_byte.map_or(this, |before| (before + this) / 2.0);
        state.seconds_a_byte = Some(seconds);
        self.bytes_a_second.store((1.0 / seconds) as u64, Ordering::Relaxed);
    }

    /// How many bytes a sync writes in so long; `None`: none has told.
    pub fn bytes_in(&self, time: Duration) -> Option<u64> {
        let rate = self.bytes_a_second.load(Ordering::Relaxed);
        (rate > 0).then_some((time.as_secs_f64() * rate as f64) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    #[test]
    fn a_rate_is_learnt_from_what_is_large() {
        let rate = Rate::default();
        let millis = Duration::from_millis;
        rate.note(MB, millis(10));
        assert_eq!(rate.bytes_in(millis(250)), None, "a small sync tells nothing of it");
        // 10 ms for the sync, and 400 MB a second.
        for _ in 0..20 {
            rate.note(40 * MB, millis(110));
            rate.note(MB / 64, millis(10));
        }
        let bytes = rate.bytes_in(millis(250)).unwrap();
        assert!((95 * MB..105 * MB).contains(&bytes), "{bytes}");
        // One that found nearly everything written makes no disk of 40 GB a second of it.
        rate.note(40 * MB, millis(1));
        let bytes = rate.bytes_in(millis(250)).unwrap();
        assert!(bytes < 210 * MB, "{bytes}");
        // 20 MB a second from now on.
        for _ in 0..20 {
            rate.note(10 * MB, millis(500));
        }
        let bytes = rate.bytes_in(millis(250)).unwrap();
        assert!((4 * MB..6 * MB).contains(&bytes), "{bytes}");
    }
}
