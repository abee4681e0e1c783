//! Logical sessions: their identifiers, and which there are. What a session carries from one operation to the next, its
//! transaction and its retryable writes, is the [role](crate::role::Role)'s.

mod id;
pub mod statements;

pub use id::{LogicalSessionId, NOBODY, digest};

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use sheaf_errors::{Code, Error, Result};
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

/// What a role does with the sessions of its clients, as the commands of sessions ask for it.
pub trait SessionRegistry: Send + Sync {
    /// Uses the session of this id, which is made if there is none.
    ///
    /// Errors: `TooManyLogicalSessions`.
    fn touch(&self, id: LogicalSessionId) -> Result<()>;

    /// Those that belong to somebody who is meant, by digest, or to nobody, if that is.
    fn those(&self, of: &dyn Fn(Option<&[u8; 32]>) -> bool) -> Vec<LogicalSessionId>;

    /// Has other servers end what sessions of these users have open there, whoever has asked them for that.
    ///
    /// Errors: those of the way there, and of `check`.
    fn kill_elsewhere(&self, _owners: &[[u8; 32]], _check: &dyn Fn() -> Result<()>) -> Result<()> {
        Ok(())
    }

    /// Ends sessions at their clients' wish.
    fn end(&self, ids: &[LogicalSessionId]);

    /// Ends what these sessions, or all of them, have open: transactions, cursors. Their operations are stopped already.
    /// `spared` is that of whoever asks; `check` is asked again and again whether to go on.
    ///
    /// Errors: those of `check`.
    fn kill(
        &self,
        meant: Option<&[LogicalSessionId]>,
        spared: Option<LogicalSessionId>,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<()>;
}

/// The sessions of a role where they carry nothing from one operation to the next.
pub struct NoSessions;

impl SessionRegistry for NoSessions {
    fn touch(&self, _: LogicalSessionId) -> Result<()> {
        Ok(())
    }

    fn those(&self, _: &dyn Fn(Option<&[u8; 32]>) -> bool) -> Vec<LogicalSessionId> {
        Vec::new()
    }

    fn end(&self, _: &[LogicalSessionId]) {}

    fn kill(
        &self,
        _: Option<&[LogicalSessionId]>,
        _: Option<LogicalSessionId>,
        _: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        Ok(())
    }
}

/// What a session carries from one operation to the next.
pub trait Carried: Default {
    /// Whether nobody misses anything if the session is forgotten and made anew.
    fn is_nothing(&self) -> bool;
}

/// One logical session; `S` is what it carries.
pub struct Session<S> {
    /// The session's identifier.
    pub id: LogicalSessionId,
    /// When it was last used, in milliseconds of [`Front::uptime_millis`](crate::front::Front::uptime_millis): a step of the
    /// clock ends no session. Use is also that an operation of it goes on.
    pub last_used: AtomicU64,
    /// The use that `config.system.sessions` was told of last.
    pub noted: AtomicU64,
    /// The session's transaction or retryable writes. Held by an operation with a `txnNumber` while it runs,
    /// so that such operations of one session come one after another.
    pub state: Mutex<S>,
}

impl<S: Carried> Session<S> {
    fn new(id: LogicalSessionId, now: u64) -> Self {
        Session {
            id,
            last_used: AtomicU64::new(now),
            noted: AtomicU64::new(u64::MAX),
            state: Mutex::default(),
        }
    }
}

impl<S> Session<S> {
    /// Whether it had not been used, at `now`, for this long.
    pub fn is_idle(&self, now: u64, timeout: Duration) -> bool {
        let used = self.last_used.load(Ordering::Relaxed);
        used <= now && u128::from(now - used) >= timeout.as_millis()
    }
}

/// The sessions in a row, so that they can be looked at in pieces, and where in it each one is.
struct Live<S> {
    sessions: Vec<Arc<Session<S>>>,
    places: HashMap<LogicalSessionId, usize, ahash::RandomState>,
    /// How many each user has; those of nobody are one's own.
    owned: HashMap<Option<[u8; 32]>, usize, ahash::RandomState>,
    /// Where somebody was looked for last who can be forgotten.
    hand: usize,
}

impl<S> Live<S> {
    fn get(&self, id: LogicalSessionId) -> Option<&Arc<Session<S>>> {
        self.places.get(&id).map(|at| &self.sessions[*at])
    }

    fn add(&mut self, session: Arc<Session<S>>) {
        self.places.insert(session.id, self.sessions.len());
        *self.owned.entry(session.id.uid).or_default() += 1;
        self.sessions.push(session);
    }

    /// The last one takes the place of the one that goes.
    fn remove(&mut self, id: LogicalSessionId) -> bool {
        let Some(at) = self.places.remove(&id) else { return false };
        self.sessions.swap_remove(at);
        if let Entry::Occupied(mut owned) = self.owned.entry(id.uid) {
            *owned.get_mut() -= 1;
            if *owned.get() == 0 {
                owned.remove();
            }
        }
        if let Some(moved) = self.sessions.get(at) {
            self.places.insert(moved.id, at);
        }
        true
    }
}

impl<S: Carried> Live<S> {
    /// A session that can be forgotten for one of this user: it carries nothing, is in no use, and is of the user that has most, which must be
    /// more than this one's. It is looked for among the next thousand only, of which most are that user's where it is to blame.
    fn least_needed(&mut self, user: Option<[u8; 32]>) -> Option<LogicalSessionId> {
        let (greedy, most) = self.owned.iter().max_by_key(|(_, owned)| **owned)?;
        if *most <= self.owned.get(&user).copied().unwrap_or(0) + 1 {
            return None;
        }
        let count = self.sessions.len();
        for step in 0..PIECE.min(count) {
            let session = &self.sessions[(self.hand + step) % count];
            // Whoever uses it holds it as well as this row.
            if session.id.uid == *greedy
                && Arc::strong_count(session) == 1
                && session.state.try_lock().is_some_and(|state| state.is_nothing())
            {
                self.hand = (self.hand + step) % count;
                return Some(session.id);
            }
        }
        self.hand = (self.hand + PIECE) % count;
        None
    }
}

/// What a session takes: itself with its counts, and its places in row, map and the set of open ones, which have room for twice
/// as many now and then.
const fn session_bytes<S>() -> u64 {
    let places = size_of::<Arc<Session<S>>>()
        + size_of::<(LogicalSessionId, usize)>()
        + size_of::<LogicalSessionId>()
        + size_of::<usize>();
    (size_of::<Session<S>>() + 2 * places) as u64
}

/// So many sessions are looked at with the lock held...
const PIECE: usize = 1024;

/// ...and so many such pieces at a time, where there is no hurry.
const PIECES: usize = 16;

/// Sessions get so much of the memory for operations, as a divisor: anybody can make many. Where there are too many, those of the user that has
/// most make room for others.
const SESSIONS_SHARE: u64 = 4;

/// A user may have all sessions but for a part of this size, as a divisor: those that carry a transaction or numbers of writes make no room,
/// and others are to get in beside somebody who makes as many as there may be.
const OTHERS_PART: usize = 10;

/// All sessions of a server.
pub struct Sessions<S> {
    live: Mutex<Live<S>>,
    /// Those that may have an open transaction. Locked before `live`, and after a session's state.
    open: Mutex<HashSet<LogicalSessionId, ahash::RandomState>>,
    /// The next look at all of them, a part at a time, begins below this place.
    below: AtomicUsize,
    most: usize,
    bytes: Part,
}

impl<S: Carried> Sessions<S> {
    /// None yet; `most` of them at most, and fewer where memory is small.
    pub fn new(memory: &Arc<Process>, most: usize) -> Self {
        let room =
            usize::try_from(memory.limit() / SESSIONS_SHARE / session_bytes::<S>()).unwrap_or(usize::MAX);
        Sessions {
            live: Mutex::new(Live {
                sessions: Vec::new(),
                places: HashMap::default(),
                owned: HashMap::default(),
                hand: 0,
            }),
            open: Mutex::default(),
            below: AtomicUsize::new(0),
            most: most.min(room),
            bytes: Part::of(memory),
        }
    }

    /// The session of this id, made if there is none; counts as use.
    ///
    /// Errors: `TooManyLogicalSessions` if there are as many as may be.
    pub fn touch(&self, id: LogicalSessionId, now: u64) -> Result<Arc<Session<S>>> {
        let mut live = self.live.lock();
        if let Some(session) = live.get(id) {
            session.last_used.fetch_max(now, Ordering::Relaxed);
            return Ok(session.clone());
        }
        let full =
            || Error::new(Code::TOO_MANY_LOGICAL_SESSIONS, "Unable to add session into the cache".to_owned());
        let own = live.owned.get(&id.uid).copied().unwrap_or(0);
        // Those of nobody are all, where nobody logs in.
        if id.uid.is_some() && own >= self.most - self.most / OTHERS_PART {
            return Err(full());
        }
        if live.sessions.len() >= self.most {
            let least = live.least_needed(id.uid).ok_or_else(full)?;
            live.remove(least);
            self.bytes.change(session_bytes::<S>(), 0);
        }
        Ok(self.add(&mut live, id, now))
    }

    /// Makes a session that only storage knows, so that its records can be removed while nobody can use it. `None`: it is
    /// in use after all.
    pub fn recall(&self, id: LogicalSessionId, now: u64) -> Option<Arc<Session<S>>> {
        let mut live = self.live.lock();
        live.get(id).is_none().then(|| self.add(&mut live, id, now))
    }

    fn add(&self, live: &mut Live<S>, id: LogicalSessionId, now: u64) -> Arc<Session<S>> {
        let session = Arc::new(Session::new(id, now));
        live.add(session.clone());
        self.bytes.change(0, session_bytes::<S>());
        session
    }

    /// The session of this id, if it is known.
    pub fn get(&self, id: LogicalSessionId) -> Option<Arc<Session<S>>> {
        self.live.lock().get(id).cloned()
    }

    /// Forgets these sessions, except those that somebody else holds: an operation of it has come meanwhile, and must not
    /// run beside those that come after it.
    pub fn remove_unused(&self, sessions: &[&Arc<Session<S>>]) {
        let mut live = self.live.lock();
        for session in sessions {
            // The list's own, and the one in the row.
            if Arc::strong_count(session) <= 2 && live.remove(session.id) {
                self.bytes.change(session_bytes::<S>(), 0);
            }
        }
    }

    /// All sessions for which `which` holds, of those that are there at the beginning. Nobody waits until all have been
    /// looked at; one may be there twice, if others end meanwhile.
    pub fn those(&self, which: impl Fn(&Session<S>) -> bool) -> Vec<Arc<Session<S>>> {
        let (mut found, mut below) = (Vec::new(), usize::MAX);
        while below > 0 {
            below = self.look_below(below, &which, &mut found);
        }
        found
    }

    /// All sessions, as [`Sessions::those`] finds them.
    pub fn list(&self) -> Vec<Arc<Session<S>>> {
        self.those(|_| true)
    }

    /// Those for which `which` holds among the next sixteen thousand or so: whoever calls it again and again has looked at
    /// all of them in the end, without ever having to wait for a million.
    pub fn those_of_the_next(&self, which: impl Fn(&Session<S>) -> bool) -> Vec<Arc<Session<S>>> {
        let (mut found, mut below) = (Vec::new(), self.below.load(Ordering::Relaxed));
        if below == 0 {
            below = usize::MAX;
        }
        for _ in 0..PIECES {
            below = self.look_below(below, &which, &mut found);
            if below == 0 {
                break;
            }
        }
        self.below.store(below, Ordering::Relaxed);
        found
    }

    /// Looks at the last sessions below a place, and says where the next ones are. What ends meanwhile makes another one,
    /// from further up, change its place, so who goes down misses none.
    fn look_below(
        &self,
        below: usize,
        which: &impl Fn(&Session<S>) -> bool,
        found: &mut Vec<Arc<Session<S>>>,
    ) -> usize {
        let live = self.live.lock();
        let end = below.min(live.sessions.len());
        let begin = end.saturating_sub(PIECE);
        found.extend(live.sessions[begin..end].iter().filter(|session| which(session)).cloned());
        begin
    }

    /// A transaction begins in this session, whose state is held.
    pub fn opened(&self, id: LogicalSessionId) {
        self.open.lock().insert(id);
    }

    /// Does something with the state of each session that may have an open transaction, unless an operation has it at the
    /// moment. `is_open` says whether it has.
    pub fn each_open(
        &self,
        is_open: impl Fn(&S) -> bool,
        mut work: impl FnMut(&Session<S>, MutexGuard<'_, S>),
    ) {
        let open: Vec<_> = self.open.lock().iter().copied().collect();
        for id in open {
            let Some(session) = self.get(id) else {
                let mut open = self.open.lock();
                // It may be back.
                if self.get(id).is_none() {
                    open.remove(&id);
                }
                continue;
            };
            let Some(state) = session.state.try_lock() else { continue };
            if !is_open(&state) {
                self.open.lock().remove(&id);
            }
            work(&session, state);
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.live.lock().sessions.len()
    }

    /// What they take.
    pub fn bytes(&self) -> u64 {
        self.bytes.used()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Much([u64; 16]);

    impl Carried for Much {
        fn is_nothing(&self) -> bool {
            self.0[0] == 0
        }
    }

    impl Carried for bool {
        fn is_nothing(&self) -> bool {
            !self
        }
    }

    fn id(n: u64) -> LogicalSessionId {
        LogicalSessionId::new(u128::from(n).to_be_bytes())
    }

    #[test]
    fn sessions_have_their_part_of_the_memory_and_no_more() {
        let memory = Process::new(1 << 20, 1 << 20);
        let sessions = Sessions::<Much>::new(&memory, 1_000_000);
        let refused = (0..1_000_000).find_map(|n| sessions.touch(id(n), 0).err()).expect("one is too many");
        assert_eq!(refused.code(), Code::TOO_MANY_LOGICAL_SESSIONS);
        let count = sessions.count();
        assert!((500..5000).contains(&count), "{count}");
        assert_eq!(
            (memory.used(), sessions.bytes()),
            (count as u64 * session_bytes::<Much>(), memory.used())
        );
        assert!(memory.used() <= memory.limit() / SESSIONS_SHARE);
        // Those that are known go on, and what ends makes room.
        let first = sessions.touch(id(0), 1).unwrap();
        sessions.remove_unused(&[&first]);
        sessions.remove_unused(&[&first]);
        assert_eq!(memory.used(), (count as u64 - 1) * session_bytes::<Much>());
        let new = sessions.touch(id(u64::MAX), 1).unwrap();
        assert!(sessions.touch(id(0), 1).is_err());
        drop((first, new));
        let all = sessions.list();
        sessions.remove_unused(&all.iter().collect::<Vec<_>>());
        assert_eq!((sessions.count(), memory.used()), (0, 0));
    }

    #[test]
    fn who_has_most_sessions_makes_room_for_others() {
        let sessions = Sessions::<bool>::new(&Process::share_of(64 << 20), 8);
        let of = |user: u8, n: u64| LogicalSessionId { uid: Some([user; 32]), ..id(n) };
        for n in 0..8 {
            drop(sessions.touch(of(1, n), 0).unwrap());
        }
        assert!(sessions.touch(of(1, 8), 1).is_err());
        // What carries something stays, and what is in use.
        *sessions.get(of(1, 0)).unwrap().state.lock() = true;
        let used = sessions.get(of(1, 1)).unwrap();
        for n in 0..4 {
            drop(sessions.touch(of(2, n), 1).unwrap());
        }
        assert!(sessions.get(of(1, 0)).is_some() && sessions.get(of(1, 1)).is_some());
        assert!((0..4).all(|n| sessions.get(of(2, n)).is_some()) && sessions.count() == 8);
        // Both have as many now, and nobody makes room for one of them; for a third one does.
        assert!(sessions.touch(of(2, 4), 1).is_err() && sessions.touch(of(1, 9), 1).is_err());
        assert!(sessions.touch(of(3, 0), 1).is_ok() && sessions.count() == 8);
        assert_eq!(sessions.bytes(), 8 * session_bytes::<bool>());
        drop(used);
    }

    #[test]
    fn nobody_takes_all_sessions_with_what_they_carry() {
        let sessions = Sessions::<bool>::new(&Process::share_of(64 << 20), 20);
        let of = |user: u8, n: u64| LogicalSessionId { uid: Some([user; 32]), ..id(n) };
        let carrying = |user, n| sessions.touch(of(user, n), 0).map(|session| *session.state.lock() = true);
        assert_eq!((0..20).filter(|n| carrying(1, *n).is_ok()).count(), 18);
        // Those that are known go on, and others find room.
        assert!(carrying(1, 0).is_ok() && carrying(2, 0).is_ok() && carrying(2, 1).is_ok());
        assert!(carrying(2, 2).is_err());
    }

    #[test]
    fn where_memory_is_large_the_number_is_what_was_asked_for() {
        let sessions = Sessions::<Much>::new(&Process::share_of(8 << 30), 1_000_000);
        assert_eq!(sessions.most, 1_000_000);
        assert_eq!(Sessions::<Much>::new(&Process::share_of(64 << 20), 3).most, 3);
    }

    fn many(count: u64) -> Sessions<bool> {
        let sessions = Sessions::new(&Process::share_of(4 << 30), 1_000_000);
        (0..count).for_each(|n| drop(sessions.touch(id(n), n).unwrap()));
        sessions
    }

    #[test]
    fn looks_at_a_part_come_to_all() {
        let count = 3 * (PIECE * PIECES) as u64 + 77;
        let sessions = many(count);
        let odd = |session: &Session<bool>| session.last_used.load(Ordering::Relaxed) % 2 == 1;
        let mut seen = HashSet::new();
        for look in 0..5 {
            // Whoever has been looked at goes, so that others change their places.
            let found = sessions.those_of_the_next(odd);
            assert!(found.len() <= PIECE * PIECES, "{}", found.len());
            seen.extend(found.iter().map(|session| session.id));
            sessions.remove_unused(&found.iter().collect::<Vec<_>>());
            assert_eq!(look >= 3, seen.len() as u64 == count / 2, "{look}: {}", seen.len());
        }
        assert_eq!(sessions.count() as u64, count - count / 2);
        let left = sessions.list();
        assert_eq!(left.len(), sessions.count());
        let known = |session: &Arc<Session<bool>>| Arc::ptr_eq(session, &sessions.get(session.id).unwrap());
        assert!(left.iter().all(|session| !odd(session) && known(session)));
    }

    #[test]
    fn open_transactions_are_found_among_many_sessions() {
        let sessions = many(100_000);
        let open = sessions.get(id(77)).unwrap();
        let begin = |session: &Session<bool>| {
            let mut state = session.state.lock();
            *state = true;
            sessions.opened(session.id);
        };
        let seen = || {
            let mut seen = Vec::new();
            sessions.each_open(|state| *state, |session, _| seen.push(session.id));
            seen
        };
        begin(&open);
        sessions.opened(id(78));
        sessions.opened(id(200_000));
        assert_eq!(seen().len(), 2, "one that is open, and one that may be");
        assert_eq!(seen(), [id(77)]);
        // One that is in use is looked at later.
        let state = open.state.lock();
        assert_eq!(seen(), []);
        drop(state);
        *open.state.lock() = false;
        assert_eq!(seen(), [id(77)]);
        assert_eq!(seen(), []);
        begin(&open);
        assert_eq!(seen(), [id(77)]);
    }
}
