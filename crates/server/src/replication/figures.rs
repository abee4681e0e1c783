//! What a member counts of its replication, for `serverStatus`.

use std::time::Instant;

use parking_lot::Mutex;
use sheaf_repl::{Body, Envelope};

use super::Replica;
use crate::metrics::Count;

/// The commit point is far behind when it lags by more than this: half of MongoDB's `flowControlTargetLagSeconds`.
/// Then commits are slowed down.
pub const LAG_ALLOWED_MILLIS: u64 = 5000;

/// Counted since the process began.
#[derive(Default)]
pub struct Figures {
    /// Bytes of messages that brought entries.
    pub network_bytes: Count,
    /// Operations in them.
    pub network_ops: Count,
    /// Times that this member told the primary how far it is.
    pub progress_sent: Count,
    lag: Mutex<Lag>,
}

/// When the commit point was far behind.
#[derive(Clone, Copy, Default)]
pub struct Lag {
    since: Option<Instant>,
    /// How often.
    pub count: u64,
    micros: u64,
}

impl Lag {
    /// Whether it is now.
    pub fn is_lagged(&self) -> bool {
        self.since.is_some()
    }

    /// For how long in all.
    pub fn micros(&self) -> u64 {
        self.micros + self.since.map_or(0, |since| since.elapsed().as_micros() as u64)
    }

    fn observe(&mut self, millis: u64, now: Instant) {
        match (self.since, millis > LAG_ALLOWED_MILLIS) {
            (None, true) => (self.since, self.count) = (Some(now), self.count + 1),
            (Some(since), false) => {
                self.since = None;
                self.micros += now.duration_since(since).as_micros() as u64;
            }
            _ => {}
        }
    }
}

impl Figures {
    /// A message of so many bytes has come.
    pub fn received(&self, envelope: &Envelope, bytes: usize) {
        if envelope.brings_entries() {
            self.network_bytes.add(bytes as u64);
            self.network_ops.add(envelope.payloads().map(operations).sum());
        }
    }

    /// A message is sent.
    pub fn sent(&self, envelope: &Envelope) {
        if matches!(envelope.body, Body::Progress(_)) {
            self.progress_sent.add(1);
        }
    }

    /// The commit point is this far behind now.
    pub fn lags(&self, millis: u64) {
        self.lag.lock().observe(millis, Instant::now());
    }

    /// When the commit point was far behind.
    pub fn lag(&self) -> Lag {
        *self.lag.lock()
    }
}

/// How many oplog documents stand one after another in an entry.
fn operations(payload: &[u8]) -> u64 {
    let (mut rest, mut count) = (payload, 0);
    while let Some(length) = rest.first_chunk::<4>() {
        count += 1;
        let length = u32::from_le_bytes(*length).max(4) as usize;
        rest = rest.get(length..).unwrap_or_default();
    }
    count
}

/// Entries of others that wait to be applied.
#[derive(Clone, Copy, Default)]
pub struct Buffered {
    /// How many operations.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Replica {
    /// What came and was not yet begun to be applied.
    pub fn buffered(&self) -> Buffered {
        let units = self.units.lock();
        let mut buffered = Buffered::default();
        for entry in units.iter().flat_map(|unit| &unit.entries) {
            buffered.count += operations(&entry.payload);
            buffered.bytes += entry.payload.len() as u64;
        }
        buffered
    }

    /// Changes with every rollback, as clients of mongod expect of it.
    pub fn rollback_id(&self) -> i32 {
        self.rollbacks().count as i32 + 1
    }

    /// Replies that wait for other members now.
    pub fn waiting_replies(&self) -> usize {
        self.waiters.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn lag_is_counted_from_where_commits_are_slowed_down() {
        let (mut lag, began) = (Lag::default(), Instant::now());
        let at = |secs| began + Duration::from_secs(secs);
        for (secs, millis) in [(0, 0), (1, 5000), (2, 5001), (3, 9000), (4, 100), (5, 100), (6, 6000), (8, 0)]
        {
            lag.observe(millis, at(secs));
        }
        assert_eq!((lag.count, lag.micros(), lag.is_lagged()), (2, 4_000_000, false));
    }

    #[test]
    fn operations_of_an_entry_are_counted() {
        let one = sheaf_bson::doc! { "op": "n" };
        let both = [one.as_bytes(), sheaf_bson::doc! { "op": "i", "o": { "_id": 1 } }.as_bytes()].concat();
        assert_eq!((operations(&[]), operations(one.as_bytes()), operations(&both)), (0, 1, 2));
        // Nothing that a damaged length says leads astray.
        assert_eq!(operations(&[0, 0, 0, 0, 9, 9]), 1);
    }
}
