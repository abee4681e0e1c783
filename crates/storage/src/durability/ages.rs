//! How old the log's entries are, by the time that has run: a step of the clock must not remove what is to be kept for hours.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Samples within a retention time.
const SAMPLES: u32 = 64;

/// What is known of the entries' ages.
pub(crate) struct Ages {
    /// When this began, and the cluster time of the last entry then.
    began: (Instant, u64),
    /// Where the log ended at which moment, oldest first; at least one.
    samples: VecDeque<(Instant, u64)>,
}

/// Up to where entries are old enough.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Old {
    /// This entry.
    Index(u64),
    /// The last one before this cluster time.
    Time(u64),
}

impl Ages {
    /// The log ends here, now; what it has of earlier runs is as old as its times say, from its end on.
    pub fn begin(now: Instant, index: u64, time: u64) -> Self {
        Ages { began: (now, time), samples: VecDeque::from([(now, index)]) }
    }

    /// Notes where the log ends now, and says which entries are `retention` old.
    pub fn old(&mut self, now: Instant, index: u64, retention: Duration) -> Old {
        let age = |sample: &(Instant, u64)| now.saturating_duration_since(sample.0);
        if self.samples.back().is_some_and(|newest| age(newest) >= retention / SAMPLES) {
            self.samples.push_back((now, index));
        }
        while self.samples.get(1).is_some_and(|second| age(second) >= retention) {
            self.samples.pop_front();
        }
        let first = self.samples[0];
        if age(&first) >= retention {
            return Old::Index(first.1);
        }
        // Nothing is older than this run, unless of an earlier one.
        let before = retention.saturating_sub(age(&self.began));
        Old::Time((self.began.1 >> 32).saturating_sub(before.as_secs()) << 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_those_of_this_run_and_before_it_those_of_the_times() {
        let began = Instant::now();
        let hour = Duration::from_secs(3600);
        let mut ages = Ages::begin(began, 100, 50_000 << 32);
        assert_eq!(ages.old(began, 100, hour), Old::Time(46_400 << 32));
        assert_eq!(ages.old(began + hour / 2, 150, hour), Old::Time(48_200 << 32));
        assert_eq!(ages.old(began + hour, 200, hour), Old::Index(100));
        assert_eq!(ages.old(began + hour * 3 / 2, 250, hour), Old::Index(150));
        assert_eq!(ages.old(began + hour * 9, 300, hour), Old::Index(250));
        // Kept longer from now on: what is not known to be so old stays.
        assert_eq!(ages.old(began + hour * 9, 300, hour * 20), Old::Time(10_400 << 32));
    }

    #[test]
    fn few_samples_are_kept() {
        let began = Instant::now();
        let hour = Duration::from_secs(3600);
        let mut ages = Ages::begin(began, 0, 0);
        for n in 0..100_000u32 {
            ages.old(began + Duration::from_secs(u64::from(n)), u64::from(n), hour);
        }
        assert!(ages.samples.len() <= SAMPLES as usize + 2, "{}", ages.samples.len());
    }
}
