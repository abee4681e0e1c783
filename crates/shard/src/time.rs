//! The cluster clock of a process: what it has seen, and what it stamps.

pub use sheaf_bson::ClusterTime;
use sheaf_errors::{Code, Error, Result};

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
        let wall_secs = ClusterTime::from_micros(wall_micros).seconds();
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
