//! Logical sessions: their identifiers, and which there are. What a session carries from one operation to the next, its
//! transaction and its retryable writes, is the [role](crate::role::Role)'s.

mod id;

pub use id::{LogicalSessionId, subtype_name};

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use sheaf_errors::{Code, Result, bail};
use sheaf_meter::{Part, Process};

/// What an operation is to the transaction of its session, as its arguments say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TxnPart {
    /// Nothing that concerns transactions.
    Plain,
    /// A statement of a retryable write.
    RetryableWrite,
    /// The first operation of a transaction.
    Start,
    /// A later one.
    Continue,
    /// `commitTransaction`.
    Commit,
    /// `abortTransaction`.
    Abort,
}

impl TxnPart {
    /// Whether the operation belongs to a multi-document transaction.
    pub fn in_transaction(self) -> bool {
        !matches!(self, TxnPart::Plain | TxnPart::RetryableWrite)
    }

    /// Whether the operation ends the transaction.
    pub fn ends(self) -> bool {
        matches!(self, TxnPart::Commit | TxnPart::Abort)
    }
}

/// One logical session; `S` is what it carries.
pub struct Session<S> {
    /// Its identifier.
    pub id: LogicalSessionId,
    /// When it was last used, in milliseconds of [`Front::uptime_millis`](crate::front::Front::uptime_millis): a step of the
    /// clock ends no session. Use is also that an operation of it goes on.
    pub last_used: AtomicU64,
    /// The use that `config.system.sessions` was told of last.
    pub noted: AtomicU64,
    /// Its transaction or retryable writes. Held by an operation with a `txnNumber` while it runs,
    /// so that such operations of one session come one after another.
    pub state: Mutex<S>,
}

impl<S: Default> Session<S> {
    fn new(id: LogicalSessionId, now: u64) -> Self {
        Session {
            id,
            last_used: AtomicU64::new(now),
            noted: AtomicU64::new(u64::MAX),
            state: Mutex::default(),
        }
    }
}

type Live<S> = HashMap<LogicalSessionId, Arc<Session<S>>, ahash::RandomState>;

/// What a session takes: itself with its counts, and its place in the map, which has room for twice as many now and then.
const fn session_bytes<S>() -> u64 {
    (size_of::<Session<S>>() + 2 * size_of::<usize>() + 2 * size_of::<(LogicalSessionId, Arc<Session<S>>)>())
        as u64
}

/// Sessions get so much of the memory for operations, as a divisor: anybody can make as many as he likes.
const SESSIONS_SHARE: u64 = 4;

/// All sessions of a server.
pub struct Sessions<S> {
    live: Mutex<Live<S>>,
    most: usize,
    bytes: Part,
}

impl<S: Default> Sessions<S> {
    /// None yet; `most` of them at most, and fewer where memory is small.
    pub fn new(memory: &Arc<Process>, most: usize) -> Self {
        let room =
            usize::try_from(memory.limit() / SESSIONS_SHARE / session_bytes::<S>()).unwrap_or(usize::MAX);
        Sessions { live: Mutex::default(), most: most.min(room), bytes: Part::of(memory) }
    }

    /// The session of this id, made if there is none; counts as use.
    ///
    /// Errors: `TooManyLogicalSessions` if there are as many as may be.
    pub fn touch(&self, id: LogicalSessionId, now: u64) -> Result<Arc<Session<S>>> {
        let mut live = self.live.lock();
        if let Some(session) = live.get(&id) {
            session.last_used.fetch_max(now, Ordering::Relaxed);
            return Ok(session.clone());
        }
        if live.len() >= self.most {
            bail!(Code::TOO_MANY_LOGICAL_SESSIONS, "Unable to add session into the cache");
        }
        Ok(self.add(&mut live, id, now))
    }

    /// Makes a session that only storage knows, so that its records can be removed while nobody can use it. `None`: it is
    /// in use after all.
    pub fn recall(&self, id: LogicalSessionId, now: u64) -> Option<Arc<Session<S>>> {
        let mut live = self.live.lock();
        (!live.contains_key(&id)).then(|| self.add(&mut live, id, now))
    }

    fn add(&self, live: &mut Live<S>, id: LogicalSessionId, now: u64) -> Arc<Session<S>> {
        let session = Arc::new(Session::new(id, now));
        live.insert(id, session.clone());
        self.bytes.change(0, session_bytes::<S>());
        session
    }

    /// The session of this id, if it is known.
    pub fn get(&self, id: LogicalSessionId) -> Option<Arc<Session<S>>> {
        self.live.lock().get(&id).cloned()
    }

    /// Forgets these sessions, except those that somebody else holds: an operation of it has come meanwhile, and must not
    /// run beside those that come after it.
    pub fn remove_unused(&self, sessions: &[&Arc<Session<S>>]) {
        let mut live = self.live.lock();
        for session in sessions {
            // The list's own, and the one in the map.
            if Arc::strong_count(session) <= 2 && live.remove(&session.id).is_some() {
                self.bytes.change(session_bytes::<S>(), 0);
            }
        }
    }

    /// All sessions.
    pub fn list(&self) -> Vec<Arc<Session<S>>> {
        self.live.lock().values().cloned().collect()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.live.lock().len()
    }

    /// What they take.
    pub fn bytes(&self) -> u64 {
        self.bytes.used()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Carried = [u64; 16];

    fn id(n: u64) -> LogicalSessionId {
        LogicalSessionId { id: u128::from(n).to_be_bytes() }
    }

    #[test]
    fn sessions_have_their_part_of_the_memory_and_no_more() {
        let memory = Process::new(1 << 20, 1 << 20);
        let sessions = Sessions::<Carried>::new(&memory, 1_000_000);
        let refused = (0..1_000_000).find_map(|n| sessions.touch(id(n), 0).err()).expect("one is too many");
        assert_eq!(refused.code(), Code::TOO_MANY_LOGICAL_SESSIONS);
        let count = sessions.count();
        assert!((500..5000).contains(&count), "{count}");
        assert_eq!(
            (memory.used(), sessions.bytes()),
            (count as u64 * session_bytes::<Carried>(), memory.used())
        );
        assert!(memory.used() <= memory.limit() / SESSIONS_SHARE);
        // Those that are known go on, and what ends makes room.
        let first = sessions.touch(id(0), 1).unwrap();
        sessions.remove_unused(&[&first]);
        sessions.remove_unused(&[&first]);
        assert_eq!(memory.used(), (count as u64 - 1) * session_bytes::<Carried>());
        let new = sessions.touch(id(u64::MAX), 1).unwrap();
        assert!(sessions.touch(id(0), 1).is_err());
        drop((first, new));
        let all = sessions.list();
        sessions.remove_unused(&all.iter().collect::<Vec<_>>());
        assert_eq!((sessions.count(), memory.used()), (0, 0));
    }

    #[test]
    fn where_memory_is_large_the_number_is_what_was_asked_for() {
        let sessions = Sessions::<Carried>::new(&Process::share_of(4 << 30), 1_000_000);
        assert_eq!(sessions.most, 1_000_000);
        assert_eq!(Sessions::<Carried>::new(&Process::share_of(64 << 20), 3).most, 3);
    }
}
