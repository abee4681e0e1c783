//! What a member counts of its replication, for `serverStatus`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sheaf_front::metrics::Count;
use sheaf_repl::{Body, Envelope};

/// The commit point is far behind when it lags by more than this: half of MongoDB's `flowControlTargetLagSeconds`.
/// Then commits are slowed down.
pub const LAG_ALLOWED_MILLIS: u64 = 5000;

/// Figures of replication, counted since the process began.
#[derive(Default)]
pub struct Figures {
    /// Bytes of messages that brought entries.
    pub network_bytes: Count,
    /// Operations in them.
    pub network_ops: Count,
    /// Times that this member told the primary how far it is.
    pub progress_sent: Count,
    lag: Mutex<Lag>,
    still: AtomicBool,
}

/// When the commit point was far behind.
#[derive(Clone, Copy, Default)]
pub struct Lag {
    since: Option<Instant>,
    /// How often the commit point came to be far behind.
    pub count: u64,
    micros: u64,
    /// The commit point, and since when it is there.
    commit: Option<(u64, Instant)>,
}

impl Lag {
    /// Whether the commit point is far behind and has not moved for as long: who could move it is away.
    pub fn stands_still(&self, now: Instant) -> bool {
        let allowed = Duration::from_millis(LAG_ALLOWED_MILLIS);
        self.is_lagged() && self.commit.is_some_and(|(_, since)| now.duration_since(since) > allowed)
    }

    /// Whether the commit point is far behind now.
    pub fn is_lagged(&self) -> bool {
        self.since.is_some()
    }

    /// Microseconds for which the commit point was far behind in all.
    pub fn micros(&self) -> u64 {
        self.micros + self.since.map_or(0, |since| since.elapsed().as_micros() as u64)
    }

    fn observe(&mut self, millis: u64, commit: u64, now: Instant) {
        if self.commit.is_none_or(|(before, _)| before != commit) {
            self.commit = Some((commit, now));
        }
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

    /// The commit point is this far behind now. Returns whether it has just come to stand still.
    pub fn lags(&self, millis: u64, commit: u64) -> bool {
        let (mut lag, now) = (self.lag.lock(), Instant::now());
        lag.observe(millis, commit, now);
        let still = lag.stands_still(now);
        !self.still.swap(still, Ordering::Relaxed) && still
    }

    /// Whether the commit point is far behind and does not move.
    pub fn stands_still(&self) -> bool {
        self.still.load(Ordering::Relaxed)
    }

    /// When the commit point was far behind.
    pub fn lag(&self) -> Lag {
        *self.lag.lock()
    }
}

/// How many oplog documents stand one after another in an entry.
pub fn operations(payload: &[u8]) -> u64 {
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
    /// The bytes of these operations.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_is_counted_from_where_commits_are_slowed_down() {
        let (mut lag, began) = (Lag::default(), Instant::now());
        let at = |secs| began + Duration::from_secs(secs);
        for (secs, millis) in [(0, 0), (1, 5000), (2, 5001), (3, 9000), (4, 100), (5, 100), (6, 6000), (8, 0)]
        {
            lag.observe(millis, secs, at(secs));
        }
        assert_eq!((lag.count, lag.micros(), lag.is_lagged()), (2, 4_000_000, false));
    }

    #[test]
    fn a_commit_point_that_does_not_move_stands_still() {
        let (mut lag, began) = (Lag::default(), Instant::now());
        let at = |secs| began + Duration::from_secs(secs);
        // It follows far behind; then nobody moves it any more; then somebody is back.
        for (secs, millis, commit, still) in [
            (0, 0, 7, false),
            (20, 100, 7, false),
            (26, 6000, 7, true),
            (27, 7000, 8, false),
            (32, 12_000, 8, false),
            (33, 13_000, 8, true),
            (34, 14_000, 9, false),
            (50, 0, 20, false),
        ] {
            lag.observe(millis, commit, at(secs));
            assert_eq!(lag.stands_still(at(secs)), still, "{secs}");
        }
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
