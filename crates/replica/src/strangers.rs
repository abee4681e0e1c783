//! Connections that begin like a member's, of which no member has said yet that they are its own.
//!
//! Anybody can open them. Until one is confirmed it counts as a client's, and there are only so many at a time: the oldest
//! has to go, so that a member that dials while others fill the doors is let in and asked about within a moment.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use sheaf_front::front::Guest;
use tokio::sync::Notify;

/// How many there may be. A set has 50 members at most.
const STRANGERS_MAX: usize = 64;

/// The unconfirmed connections that are open.
#[derive(Default)]
pub struct Strangers {
    inside: Arc<Mutex<VecDeque<Arc<Notify>>>>,
}

impl Strangers {
    /// Lets one more in, which counts as long as the result lives. The oldest goes if there are too many.
    pub fn enter(&self, guest: Guest) -> Stranger {
        let told = Arc::new(Notify::new());
        let mut inside = self.inside.lock();
        if inside.len() >= STRANGERS_MAX
            && let Some(oldest) = inside.pop_front()
        {
            oldest.notify_one();
        }
        inside.push_back(told.clone());
        Stranger { told, inside: self.inside.clone(), _guest: guest }
    }

    /// How many there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.inside.lock().len()
    }
}

/// One unconfirmed connection, which counts as long as this lives.
pub struct Stranger {
    told: Arc<Notify>,
    inside: Arc<Mutex<VecDeque<Arc<Notify>>>>,
    _guest: Guest,
}

impl Stranger {
    /// Told when this connection has to make room.
    pub fn told(&self) -> Arc<Notify> {
        self.told.clone()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.inside.lock().retain(|other| !Arc::ptr_eq(other, &self.told));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_front::front::Front;

    #[tokio::test]
    async fn the_oldest_goes() {
        let front = Front::new(Default::default(), std::iter::empty()).unwrap();
        let strangers = Strangers::default();
        let enter = || strangers.enter(front.guest(front.connect(None, None).unwrap()));
        let first = enter();
        let second = enter();
        drop(second);
        assert_eq!((strangers.len(), front.connection_count()), (1, 1));
        let others: Vec<Stranger> = (0..STRANGERS_MAX).map(|_| enter()).collect();
        first.told().notified().await;
        assert_eq!(strangers.len(), STRANGERS_MAX);
        drop(first);
        drop(others);
        assert_eq!((strangers.len(), front.connection_count()), (0, 0));
    }
}
