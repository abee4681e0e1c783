//! Whether the client of a long operation is still there.
//!
//! While a connection runs an operation nobody reads from its socket, so nobody would hear that the other side has closed it.
//! An operation that goes on for long looks by itself, at the places where it asks whether it has to stop. It also leaves
//! the reactor once more, for the rare case that nobody was there to take over when it did so first.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{LazyLock, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::stream::Socket;

/// How often it looks, the first time after so long as well.
const PERIOD: Duration = Duration::from_millis(100);

/// Times are counted from here, so that they fit an atomic.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A connection whose client may have gone.
pub trait Watched: Send + Sync {
    /// Whether it has.
    fn is_gone(&self) -> bool;
}

impl<S: Socket> Watched for Mutex<S> {
    fn is_gone(&self) -> bool {
        // Who has it locked hears of the end by itself.
        self.try_lock().is_some_and(|socket| socket.is_gone())
    }
}

/// When a connection is looked at.
#[derive(Default)]
pub struct Watch {
    peer: OnceLock<Weak<dyn Watched>>,
    /// Milliseconds after [`EPOCH`] and one; 0 for never.
    next: AtomicU64,
    /// Whether the operation under way ends with its client.
    ends: AtomicBool,
}

fn millis(at: Instant) -> u64 {
    at.saturating_duration_since(*EPOCH).as_millis() as u64 + 1
}

impl Watch {
    /// Hands over the connection.
    pub fn on(&self, peer: Weak<dyn Watched>) {
        let _ = self.peer.set(peer);
    }

    /// An operation began at this time, and `ends` with its client or not.
    pub fn begin(&self, began: Instant, ends: bool) {
        self.ends.store(ends, Ordering::Relaxed);
        self.next.store(millis(began + PERIOD), Ordering::Relaxed);
    }

    /// Whether the client has gone, as far as its connection tells now.
    pub fn has_gone(&self) -> bool {
        self.peer.get().and_then(Weak::upgrade).is_some_and(|peer| peer.is_gone())
    }

    /// Whether it is over because the client has gone. It costs a look at the clock, and every now and then one at the
    /// socket.
    pub fn is_over(&self) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        if next == 0 {
            return false;
        }
        let now = Instant::now();
        if millis(now) < next {
            return false;
        }
        // One of the threads that work for the operation looks.
        let later = millis(now + PERIOD);
        if self.next.compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return false;
        }
        crate::reactor::leave();
        self.ends.load(Ordering::Relaxed) && self.has_gone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    struct Peer(AtomicBool);

    impl Watched for Peer {
        fn is_gone(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn only_what_goes_on_for_long_looks_and_only_if_it_is_to_end() {
        let peer = Arc::new(Peer(AtomicBool::new(true)));
        let watched: Arc<dyn Watched> = peer.clone();
        let watch = Watch::default();
        let long_ago = Instant::now();
        LazyLock::force(&EPOCH);
        assert!(!watch.is_over());
        watch.on(Arc::downgrade(&watched));
        watch.begin(Instant::now() + Duration::from_secs(3600), true);
        assert!(!watch.is_over(), "it has just begun");
        std::thread::sleep(PERIOD + Duration::from_millis(5));
        watch.begin(long_ago, true);
        assert!(watch.is_over());
        watch.begin(long_ago, false);
        assert!(!watch.is_over());
        watch.begin(long_ago, true);
        peer.0.store(false, Ordering::Relaxed);
        assert!(!watch.is_over());
        drop((peer, watched));
        watch.begin(long_ago, true);
        assert!(!watch.is_over(), "nobody is there to be asked");
    }
}
