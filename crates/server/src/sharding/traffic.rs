//! What is written to a sharded collection of this shard, for the balancer.
//!
//! A writer adds its bytes to one number; each time that passes a multiple of [`STRIDE`] its key is kept. So recent keys are a sample by
//! bytes, whatever the rate, and most writes cost an addition.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use sheaf_bson::RawDoc;
use sheaf_shard::placement::{Key, KeyPattern};

/// So many written bytes have one key in the sample.
const STRIDE: u64 = 8 << 10;

/// So many recent keys are kept.
const RECENT: usize = 1024;

/// What is written to a collection here since this member has known of it.
#[derive(Debug, Default)]
pub struct Traffic {
    written: AtomicU64,
    recent: Mutex<Recent>,
}

/// The keys that were kept last.
#[derive(Debug, Default)]
struct Recent {
    /// How many were ever kept.
    count: u64,
    keys: VecDeque<Key>,
}

impl Traffic {
    /// Bytes ever written, how many keys were ever kept, and the last of them.
    pub fn told(&self) -> (u64, u64, Vec<Key>) {
        let recent = self.recent.lock();
        (self.written.load(Ordering::Relaxed), recent.count, recent.keys.iter().cloned().collect())
    }

    /// A document of so many bytes has been written.
    pub fn note(&self, pattern: &KeyPattern, document: RawDoc<'_>) {
        let bytes = document.as_bytes().len() as u64;
        let before = self.written.fetch_add(bytes, Ordering::Relaxed);
        if before / STRIDE == (before + bytes) / STRIDE {
            return;
        }
        // Who keeps a key just now does it for both.
        let Some(mut recent) = self.recent.try_lock() else { return };
        if let Ok(key) = pattern.key_of(document) {
            recent.count += 1;
            if recent.keys.len() >= RECENT {
                recent.keys.pop_front();
            }
            recent.keys.push_back(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::doc;

    use super::*;

    fn pattern() -> KeyPattern {
        KeyPattern::parse(doc! { "a": 1 }.as_raw()).unwrap()
    }

    #[test]
    fn recent_keys_are_the_newest_by_bytes() {
        let traffic = Traffic::default();
        let pad = "x".repeat(1000);
        for n in 0..100_000i32 {
            traffic.note(&pattern(), doc! { "a": n, "pad": &pad }.as_raw());
        }
        let recent = traffic.recent.lock();
        assert_eq!(recent.keys.len(), RECENT);
        let lowest =
            recent.keys.iter().map(|key| key.document().get("a").unwrap().as_exact_i64().unwrap()).min();
        assert!(lowest.unwrap() > 90_000, "{lowest:?}");
        assert!(recent.count > 10_000 && recent.count < 14_000, "{}", recent.count);
    }
}
