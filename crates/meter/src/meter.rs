//! The meter of one operation after the other.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sheaf_errors::{Code, Error, Result};

use crate::account::{Account, Held, Process};

/// Who may stop an operation: the connection's `killOp` flag, for example.
pub trait Source: Send + Sync {
    /// Errors: what the operation ends with, if it has to end.
    fn check(&self) -> Result<()>;
}

impl<F: Fn() -> Result<()> + Send + Sync> Source for F {
    fn check(&self) -> Result<()> {
        self()
    }
}

/// What an operation may use, and whether it has to stop.
///
/// A connection has one and uses it for one operation after the other ([`Meter::begin`]): an operation that needs no
/// memory worth counting allocates nothing for it.
pub struct Meter {
    source: Arc<dyn Source>,
    process: Arc<Process>,
    /// Nanoseconds since [`epoch`]; [`NEVER`] without a deadline.
    deadline: AtomicU64,
    /// Whether there is an account, so that a new operation need not lock to find none.
    has_account: AtomicBool,
    account: Mutex<Option<Arc<Account>>>,
    /// See [`Meter::set_owner`].
    owner: AtomicU64,
    /// The thread that waits for the operation's turn.
    waiting: Mutex<Option<Thread>>,
}

const NEVER: u64 = u64::MAX;

/// Deadlines are counted from here, so that they fit an atomic.
fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

fn nanos(at: Instant) -> u64 {
    u64::try_from(at.saturating_duration_since(epoch()).as_nanos()).unwrap_or(NEVER - 1)
}

impl Meter {
    /// A meter for operations that `source` may stop.
    pub fn new(process: &Arc<Process>, source: Arc<dyn Source>) -> Arc<Self> {
        epoch();
        Arc::new(Meter {
            source,
            process: process.clone(),
            deadline: AtomicU64::new(NEVER),
            has_account: AtomicBool::new(false),
            account: Mutex::default(),
            owner: AtomicU64::new(0),
            waiting: Mutex::default(),
        })
    }

    /// A meter for work of the node itself, which only its shutdown stops.
    pub fn background(process: &Arc<Process>) -> Arc<Self> {
        Self::new(process, Arc::new(|| Ok(())))
    }

    /// Begins a new operation: its deadline, and an account that is empty. Memory that an earlier operation left behind
    /// in a cursor stays in that operation's account.
    pub fn begin(&self, deadline: Option<Instant>) {
        crate::current::begin_waits();
        self.set_deadline(deadline);
        if self.has_account.swap(false, Ordering::Relaxed) {
            *self.account.lock() = None;
        }
    }

    /// Changes when the operation's time is over.
    pub fn set_deadline(&self, deadline: Option<Instant>) {
        self.deadline.store(deadline.map_or(NEVER, nanos), Ordering::Relaxed);
    }

    /// How much of the operation's time is left; `None` without a deadline.
    pub(crate) fn left(&self) -> Option<Duration> {
        let deadline = self.deadline.load(Ordering::Relaxed);
        (deadline != NEVER).then(|| Duration::from_nanos(deadline.saturating_sub(nanos(Instant::now()))))
    }

    /// While the guard lives, [`Meter::wake`] wakes this thread.
    pub(crate) fn waits(&self) -> Waits<'_> {
        *self.waiting.lock() = Some(std::thread::current());
        Waits(self)
    }

    /// Has the operation look at its source now if it waits for its turn.
    pub fn wake(&self) {
        if let Some(thread) = &*self.waiting.lock() {
            thread.unpark();
        }
    }

    /// Whose its operation is; 0 if that is not known.
    pub fn owner(&self) -> u64 {
        self.owner.load(Ordering::Relaxed)
    }

    /// Says whose its operation is, where each has a share of what there is for all; 0 if that is not known.
    pub fn set_owner(&self, owner: u64) {
        self.owner.store(owner, Ordering::Relaxed);
    }

    /// The memory of all operations.
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// The operation's account.
    pub fn account(&self) -> Arc<Account> {
        let mut account = self.account.lock();
        self.has_account.store(true, Ordering::Relaxed);
        account.get_or_insert_with(|| Account::of_owner(&self.process, self.owner())).clone()
    }

    /// Whether the operation has had much memory at some time.
    pub fn was_large(&self) -> bool {
        self.has_account.load(Ordering::Relaxed)
            && self.account.lock().as_ref().is_some_and(|account| account.was_large())
    }

    /// Goes on with this account: that of the cursor or the transaction which the operation works on.
    pub fn adopt(&self, account: Arc<Account>) {
        self.has_account.store(true, Ordering::Relaxed);
        *self.account.lock() = Some(account);
    }

    /// Takes memory from the operation's account.
    ///
    /// Errors: `ExceededMemoryLimit`.
    pub fn reserve(&self, bytes: u64) -> Result<Held> {
        self.account().reserve(bytes)
    }

    /// Errors: what the source says; `InterruptedAtShutdown`, `MaxTimeMSExpired`, `ExceededMemoryLimit`.
    pub fn check(&self) -> Result<()> {
        self.source.check()?;
        if self.process.is_ending() {
            return Err(Error::new(Code::INTERRUPTED_AT_SHUTDOWN, "interrupted at shutdown"));
        }
        let deadline = self.deadline.load(Ordering::Relaxed);
        if deadline != NEVER && nanos(Instant::now()) >= deadline {
            return Err(Error::new(Code::MAX_TIME_MS_EXPIRED, "operation exceeded time limit"));
        }
        if self.has_account.load(Ordering::Relaxed)
            && let Some(account) = &*self.account.lock()
        {
            account.check()?;
        }
        self.process.look_at_shortage();
        Ok(())
    }
}

/// See [`Meter::waits`].
pub(crate) struct Waits<'m>(&'m Meter);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        *self.0.waiting.lock() = None;
    }
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meter").field("account", &*self.account.lock()).finish_non_exhaustive()
    }
}
