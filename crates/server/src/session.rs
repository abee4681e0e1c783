//! Logical sessions: identifiers, their life of thirty minutes, the transactions that they carry.

mod id;
mod state;

pub use id::{LogicalSessionId, subtype_name};
pub use state::{Role, SessionState, TxnState};

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;
use sheaf_errors::{Code, Result, bail};

/// One logical session.
pub struct Session {
    /// Its identifier.
    pub id: LogicalSessionId,
    /// When it was last used, milliseconds since the epoch.
    pub last_used: AtomicI64,
    /// Its transaction or retryable writes. Held by an operation with a `txnNumber` while it runs,
    /// so that such operations of one session come one after another.
    pub state: Mutex<SessionState>,
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
    pub fn touch(&self, id: LogicalSessionId, now_millis: i64, most: usize) -> Result<Arc<Session>> {
        let mut live = self.live.lock();
        if let Some(session) = live.get(&id) {
            session.last_used.store(now_millis, Ordering::Relaxed);
            return Ok(session.clone());
        }
        if live.len() >= most {
            bail!(Code::TOO_MANY_LOGICAL_SESSIONS, "Unable to add session into the cache");
        }
        let session = Arc::new(Session {
            id,
            last_used: AtomicI64::new(now_millis),
            state: Mutex::new(SessionState::default()),
        });
        live.insert(id, session.clone());
        Ok(session)
    }

    /// The session of this id, if it is known.
    pub fn get(&self, id: LogicalSessionId) -> Option<Arc<Session>> {
        self.live.lock().get(&id).cloned()
    }

    /// Forgets a session.
    pub fn remove(&self, id: LogicalSessionId) -> Option<Arc<Session>> {
        self.live.lock().remove(&id)
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
