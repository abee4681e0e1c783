//! How fast connections may be established, where `ingressConnectionEstablishmentRateLimiterEnabled` limits it: each takes
//! a token from a bucket that fills at a steady rate. Who finds none waits in a queue, and who finds that full is turned away.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::metrics::Count;
use crate::params::Parameters;

/// Parameter: whether there is a limit.
const ENABLED: &str = "ingressConnectionEstablishmentRateLimiterEnabled";
/// Parameter: tokens a second.
const RATE: &str = "ingressConnectionEstablishmentRatePerSec";
/// Parameter: for so many seconds tokens are saved up.
const BURST: &str = "ingressConnectionEstablishmentBurstCapacitySecs";
/// Parameter: so many may wait.
const DEPTH: &str = "ingressConnectionEstablishmentMaxQueueDepth";

/// Who waits looks so often whether there still is a limit.
const LOOK: Duration = Duration::from_millis(100);

/// The limit of new connections, and what it has come to.
#[derive(Default)]
pub struct Establishment {
    bucket: Mutex<Option<Bucket>>,
    waiting: AtomicUsize,
    /// Connections that were turned away.
    pub rejected: Count,
}

/// Tokens, saved up or promised.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bucket {
    /// Below zero: so many are promised to those who wait.
    tokens: f64,
    filled: Instant,
    /// The rate and the most tokens, as they were when it was filled last.
    rate: f64,
    most: f64,
}

impl Bucket {
    fn new(now: Instant, rate: f64, burst: f64) -> Bucket {
        let most = (rate * burst).max(1.0);
        Bucket { tokens: most, filled: now, rate, most }
    }

    /// Takes a token: for how long it is not there yet. `None`: it is not, and `may_wait` says that waiting is no way.
    fn take(&mut self, now: Instant, rate: f64, burst: f64, may_wait: bool) -> Option<Duration> {
        let most = (rate * burst).max(1.0);
        if (self.rate, self.most) != (rate, most) {
            // A changed limit begins with a full bucket.
            *self = Bucket::new(now, rate, burst);
        }
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + passed * rate).min(most);
        self.filled = now;
        if self.tokens < 1.0 && !may_wait {
            return None;
        }
        self.tokens -= 1.0;
        Some(Duration::try_from_secs_f64((-self.tokens).max(0.0) / rate).unwrap_or(Duration::MAX))
    }
}

impl Establishment {
    /// How many connections wait for their turn.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Waits until a new connection may go on; false if it may not.
    pub async fn enter(&self, parameters: &Parameters) -> bool {
        if !parameters.bool(ENABLED) {
            *self.bucket.lock() = None;
            return true;
        }
        let Some(wait) = self.take(parameters, Instant::now()) else {
            self.rejected.add(1);
            return false;
        };
        if wait.is_zero() {
            return true;
        }
        let began = Instant::now();
        // When the limit is lifted, those who wait go on.
        while parameters.bool(ENABLED) && began.elapsed() < wait {
            tokio::time::sleep((wait - began.elapsed()).min(LOOK)).await;
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// Takes a token, or a place in the queue: for how long to wait.
    fn take(&self, parameters: &Parameters, now: Instant) -> Option<Duration> {
        let (rate, burst) = (parameters.double(RATE), parameters.double(BURST));
        let depth = parameters.int(DEPTH).max(0) as usize;
        let mut bucket = self.bucket.lock();
        let bucket = bucket.get_or_insert_with(|| Bucket::new(now, rate, burst));
        // Places are taken under the bucket's lock, and given back without it.
        let wait = bucket.take(now, rate, burst, self.waiting() < depth)?;
        if !wait.is_zero() {
            self.waiting.fetch_add(1, Ordering::Relaxed);
        }
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::Value;

    use super::*;

    #[test]
    fn tokens_are_saved_up_for_as_long_as_said() {
        let now = Instant::now();
        let mut bucket = Bucket::new(now, 10.0, 2.0);
        for _ in 0..20 {
            assert_eq!(bucket.take(now, 10.0, 2.0, false), Some(Duration::ZERO));
        }
        assert_eq!(bucket.take(now, 10.0, 2.0, false), None);
        let later = now + Duration::from_millis(110);
        assert_eq!(bucket.take(later, 10.0, 2.0, false), Some(Duration::ZERO));
        assert_eq!(bucket.take(later, 10.0, 2.0, false), None);
        let much_later = later + Duration::from_secs(3600);
        let taken = (0..100).filter(|_| bucket.take(much_later, 10.0, 2.0, false).is_some()).count();
        assert_eq!(taken, 20);
    }

    #[test]
    fn who_waits_has_a_token_of_its_own() {
        let now = Instant::now();
        let mut bucket = Bucket::new(now, 4.0, 0.25);
        assert_eq!(bucket.take(now, 4.0, 0.25, true), Some(Duration::ZERO));
        assert_eq!(bucket.take(now, 4.0, 0.25, true), Some(Duration::from_millis(250)));
        assert_eq!(bucket.take(now, 4.0, 0.25, true), Some(Duration::from_millis(500)));
        // What was promised is not given to others.
        assert_eq!(bucket.take(now + Duration::from_millis(500), 4.0, 0.25, false), None);
    }

    #[test]
    fn a_changed_limit_holds_at_once() {
        let now = Instant::now();
        let mut bucket = Bucket::new(now, f64::from(i32::MAX), f64::MAX);
        assert_eq!(bucket.take(now, f64::from(i32::MAX), f64::MAX, false), Some(Duration::ZERO));
        assert_eq!(bucket.take(now, 1.0, 1.0, false), Some(Duration::ZERO));
        assert_eq!(bucket.take(now, 1.0, 1.0, false), None);
    }

    #[tokio::test]
    async fn the_parameters_decide() {
        let parameters = Parameters::default();
        let limit = Establishment::default();
        for _ in 0..10 {
            assert!(limit.enter(&parameters).await, "there is no limit");
        }
        // A token in a very long time: no machine is so slow that it sees a second one.
        for (name, value) in [(RATE, 1.0), (BURST, 1.0), (DEPTH, 0.0)] {
            parameters.set(name, Value::Double(value)).unwrap();
        }
        parameters.set(ENABLED, Value::Bool(true)).unwrap();
        let now = Instant::now();
        assert_eq!(limit.take(&parameters, now), Some(Duration::ZERO));
        assert_eq!(limit.take(&parameters, now), None);
        parameters.set(DEPTH, Value::Int32(1)).unwrap();
        assert_eq!(limit.take(&parameters, now), Some(Duration::from_secs(1)));
        assert_eq!(limit.waiting(), 1);
        assert_eq!(limit.take(&parameters, now), None);
        parameters.set(ENABLED, Value::Bool(false)).unwrap();
        assert!(limit.enter(&parameters).await, "the limit is lifted");
    }
}
