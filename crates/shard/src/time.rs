//! Cluster time: what it looks like, and who stamps what with it.

use std::fmt;

use sheaf_bson::Timestamp;
use sheaf_errors::{Code, Error, Result};

/// A cluster time: seconds since 1970 in the upper 32 bits, then microseconds (20 bits) and a counter (11 bits), so that it is a
/// BSON timestamp whose increment is never negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterTime(u64);

const COUNTER_BITS: u32 = 11;
const MICROS_PER_SECOND: u64 = 1_000_000;

impl ClusterTime {
    /// The time before all others.
    pub const ZERO: ClusterTime = ClusterTime(0);

    /// The first time of this microsecond since 1970.
    pub fn from_micros(micros: u64) -> Self {
        let (seconds, rest) = (micros / MICROS_PER_SECOND, micros % MICROS_PER_SECOND);
        ClusterTime(seconds << 32 | rest << COUNTER_BITS)
    }

    /// The time with these bits, as logs and messages carry it.
    pub fn from_bits(bits: u64) -> Self {
        ClusterTime(bits)
    }

    /// The bits: those of a BSON timestamp.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Seconds since 1970.
    pub fn seconds(self) -> u64 {
        self.0 >> 32
    }

    /// Microseconds since 1970, the counter left out.
    pub fn micros(self) -> u64 {
        self.seconds() * MICROS_PER_SECOND + ((self.0 & u64::from(u32::MAX)) >> COUNTER_BITS)
    }

    /// The next time.
    #[must_use]
    pub fn successor(self) -> Self {
        let next = ClusterTime(self.0 + 1);
        // A microsecond that is full passes into the next one, a second's last into the next second.
        if (next.0 & u64::from(u32::MAX)) >> COUNTER_BITS >= MICROS_PER_SECOND {
            return ClusterTime((next.seconds() + 1) << 32);
        }
        next
    }

    /// The time so many milliseconds later.
    #[must_use]
    pub fn plus_millis(self, millis: u64) -> Self {
        ClusterTime::from_micros(self.micros() + millis * 1000)
    }
}

impl fmt::Display for ClusterTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.seconds(), self.0 as u32)
    }
}

impl From<Timestamp> for ClusterTime {
    fn from(time: Timestamp) -> Self {
        ClusterTime(time.0)
    }
}

impl From<ClusterTime> for Timestamp {
    fn from(time: ClusterTime) -> Self {
        Timestamp(time.0)
    }
}

/// A process's cluster clock: the highest time that it has seen or given.
#[derive(Clone, Debug)]
pub struct Clock {
    time: ClusterTime,
    drift_secs_max: u64,
}

/// By how much a time may be ahead of the own wall clock before it is not believed (`maxAcceptableLogicalClockDriftSecs`).
pub const DRIFT_SECS_MAX: u64 = 365 * 24 * 60 * 60;

impl Clock {
    /// A clock that knows of nothing after `time`.
    pub fn new(time: ClusterTime) -> Self {
        Clock { time, drift_secs_max: DRIFT_SECS_MAX }
    }

    /// The same with another limit of belief.
    #[must_use]
    pub fn with_drift_max(mut self, secs: u64) -> Self {
        self.drift_secs_max = secs;
        self
    }

    /// The highest time seen or given.
    pub fn time(&self) -> ClusterTime {
        self.time
    }

    /// A time came with a message: all later stamps are above it. `wall_micros` are microseconds since 1970 by the own wall clock.
    ///
    /// Errors: `ClusterTimeFailsRateLimiter`, if it is too far ahead of the own wall clock to be true.
    pub fn observe(&mut self, time: ClusterTime, wall_micros: u64) -> Result<()> {
        let wall_secs = wall_micros / MICROS_PER_SECOND;
        if time > self.time && time.seconds() > wall_secs.saturating_add(self.drift_secs_max) {
            let text = format!(
                "cluster time {time} is more than {} seconds ahead of this node's clock",
                self.drift_secs_max
            );
            return Err(Error::new(Code::CLUSTER_TIME_FAILS_RATE_LIMITER, text));
        }
        self.time = self.time.max(time);
        Ok(())
    }

    /// A time that is in the own log: it is believed.
    pub fn follow(&mut self, time: ClusterTime) {
        self.time = self.time.max(time);
    }

    /// The time of a state that is read now: the wall clock's, or what was seen if that is later. Nothing stamped later is below.
    pub fn now(&mut self, wall_micros: u64) -> ClusterTime {
        self.time = self.time.max(ClusterTime::from_micros(wall_micros));
        self.time
    }

    /// The stamp of the next entry: above everything seen or given, and not behind the wall clock.
    pub fn stamp(&mut self, wall_micros: u64) -> ClusterTime {
        self.time = self.time.successor().max(ClusterTime::from_micros(wall_micros));
        self.time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_timestamp() {
        let time = ClusterTime::from_micros(1_700_000_000_123_456);
        assert_eq!((time.seconds(), time.micros()), (1_700_000_000, 1_700_000_000_123_456));
        let stamp = Timestamp::from(time);
        assert_eq!((stamp.seconds(), stamp.increment()), (1_700_000_000, 123_456 << 11));
        assert!(stamp.increment() < 1 << 31);
    }

    #[test]
    fn the_last_of_a_second_passes_into_the_next() {
        let mut time = ClusterTime::from_micros(1_700_000_000_999_999);
        for _ in 0..(1 << COUNTER_BITS) - 1 {
            time = time.successor();
            assert_eq!(time.seconds(), 1_700_000_000);
        }
        assert_eq!(time.successor(), ClusterTime::from_micros(1_700_000_001_000_000));
    }

    #[test]
    fn stamps_follow_the_wall_clock_and_never_go_back() {
        let mut clock = Clock::new(ClusterTime::ZERO);
        let first = clock.stamp(5_000_000);
        assert_eq!(first, ClusterTime::from_micros(5_000_000));
        assert_eq!(clock.stamp(4_000_000), first.successor());
        assert!(clock.stamp(6_000_000) > first);
    }

    #[test]
    fn who_has_seen_a_time_stamps_above_it() {
        let mut clock = Clock::new(ClusterTime::ZERO);
        let seen = ClusterTime::from_micros(9_000_000);
        clock.observe(seen, 5_000_000).expect("within the limit");
        assert!(clock.stamp(5_000_001) > seen);
    }

    #[test]
    fn what_is_too_far_ahead_is_not_believed() {
        let mut clock = Clock::new(ClusterTime::ZERO).with_drift_max(10);
        let far = ClusterTime::from_micros(16_000_000);
        let error = clock.observe(far, 5_000_000).expect_err("too far");
        assert_eq!(error.code(), Code::CLUSTER_TIME_FAILS_RATE_LIMITER);
        assert!(clock.time() < far);
        clock.observe(far, 6_000_000).expect("not too far any more");
    }
}
