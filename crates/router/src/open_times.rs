//! The times that open transactions read at: states that shards are to keep.
//!
//! A shard keeps all its states for half a second. A transaction that goes to it later needs the state of its time still; so the shards
//! are told of the times of those that have been open for a while, again and again until they are over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sheaf_bson::Timestamp;

/// After how long shards are told of a time.
const OPEN_LONG: Duration = Duration::from_millis(200);

/// How often they are told again.
const AGAIN: Duration = Duration::from_secs(1);

/// The times that open transactions read at.
#[derive(Default)]
pub struct OpenTimes(Mutex<BTreeMap<Timestamp, Open>>);

struct Open {
    transactions: usize,
    /// When the shards are to be told.
    due: Instant,
}

/// The time of an open transaction, until it is over.
pub struct OpenTime {
    of: Arc<OpenTimes>,
    at: Timestamp,
}

impl Drop for OpenTime {
    fn drop(&mut self) {
        let mut times = self.of.0.lock();
        if let Some(open) = times.get_mut(&self.at) {
            open.transactions -= 1;
            if open.transactions == 0 {
                times.remove(&self.at);
            }
        }
    }
}

impl OpenTimes {
    /// A transaction reads at this time from now on.
    pub fn open(self: &Arc<Self>, at: Timestamp) -> OpenTime {
        let mut times = self.0.lock();
        let new = || Open { transactions: 0, due: Instant::now() + OPEN_LONG };
        times.entry(at).or_insert_with(new).transactions += 1;
        drop(times);
        OpenTime { of: self.clone(), at }
    }

    /// What shards are to be told of now.
    pub fn due(&self) -> Vec<Timestamp> {
        let now = Instant::now();
        let mut times = self.0.lock();
        let due = times.iter_mut().filter(|(_, open)| open.due <= now);
        due.map(|(at, open)| {
            open.due = now + AGAIN;
            *at
        })
        .collect()
    }
}
