//! Logical sessions: identifiers, their life of thirty minutes, the transactions that they carry.

mod ending;
mod id;
mod state;

pub use ending::Leftovers;
pub use id::{LogicalSessionId, subtype_name};
pub use state::{Role, SessionState, TxnState};

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use sheaf_errors::{Code, Result, bail};

/// One logical session.
pub struct Session {
    /// Its identifier.
    pub id: LogicalSessionId,
    /// When it was last used, in milliseconds of [`Node::uptime_millis`](crate::node::Node::uptime_millis): a step of the
    /// clock ends no session. Use is also that an operation of it goes on.
    pub last_used: AtomicU64,
    /// The use that `config.system.sessions` was told of last.
    pub noted: AtomicU64,
    /// Its transaction or retryable writes. Held by an operation with a `txnNumber` while it runs,
    /// so that such operations of one session come one after another.
    pub state: Mutex<SessionState>,
}

impl Session {
    fn new(id: LogicalSessionId, now: u64) -> Self {
        Session {
            id,
            last_used: AtomicU64::new(now),
            noted: AtomicU64::new(u64::MAX),
            state: Mutex::new(SessionState::default()),
        }
    }
}

/// All sessions of the node.
#[derive(Default)]
pub struct Sessions {
    live: Mutex<HashMap<LogicalSessionId, Arc<Session>, ahash::RandomState>>,
}

impl Sessions {
    /// The session of this id, made if there is none; counts as use.
    ///
    /// Errors: `TooManyLogicalSessions` if there are `most` already.
    pub fn touch(&self, id: LogicalSessionId, now: u64, most: usize) -> Result<Arc<Session>> {
        let mut live = self.live.lock();
        if let Some(session) = live.get(&id) {
            session.last_used.fetch_max(now, Ordering::Relaxed);
            return Ok(session.clone());
        }
        if live.len() >= most {
            bail!(Code::TOO_MANY_LOGICAL_SESSIONS, "Unable to add session into the cache");
        }
        let session = Arc::new(Session::new(id, now));
        live.insert(id, session.clone());
        Ok(session)
    }

    /// Makes a session that only storage knows, so that its records can be removed while nobody can use it. `None`: it is
    /// in use after all.
    pub fn recall(&self, id: LogicalSessionId, now: u64) -> Option<Arc<Session>> {
        let mut live = self.live.lock();
        if live.contains_key(&id) {
            return None;
        }
        let session = Arc::new(Session::new(id, now));
        live.insert(id, session.clone());
        Some(session)
    }

    /// The session of this id, if it is known.
    pub fn get(&self, id: LogicalSessionId) -> Option<Arc<Session>> {
        self.live.lock().get(&id).cloned()
    }

    /// Forgets these sessions, except those that somebody else holds: an operation of it has come meanwhile, and must not
    /// run beside those that come after it.
    pub fn remove_unused(&self, sessions: &[&Arc<Session>]) {
        let mut live = self.live.lock();
        for session in sessions {
            // The list's own, and the one in the map.
            if Arc::strong_count(session) <= 2 {
                live.remove(&session.id);
            }
        }
    }

    /// All sessions.
    pub fn list(&self) -> Vec<Arc<Session>> {
        self.live.lock().values().cloned().collect()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.live.lock().len()
    }
}
