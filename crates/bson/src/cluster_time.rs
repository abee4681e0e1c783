//! Cluster time: the form of the times that logs and messages carry.

use std::fmt;

use crate::Timestamp;

/// A cluster time: seconds since 1970 in the upper 32 bits, then microseconds (20 bits) and a counter (11 bits), so that it is a
/// BSON timestamp whose increment is never negative.
///
/// Only the order means anything. Times of another making (an ordinal within the second, or what a client has made up) are as
/// good: [`ClusterTime::successor`] is above them.
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
    fn times_of_another_making_have_a_later_one() {
        for increment in [0, 1, 57, (1 << 31) - 1, 1 << 31, u32::MAX - 1, u32::MAX] {
            let before = ClusterTime::from(Timestamp::new(1_700_000_000, increment));
            let after = before.successor();
            assert!(after > before, "{before}, then {after}");
            assert!(after.micros() < 1_700_000_002_000_000 && Timestamp::from(after).increment() < 1 << 31);
        }
    }
}
