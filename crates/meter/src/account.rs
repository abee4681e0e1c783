//! Memory: what each operation has, and what all of them have together.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use sheaf_errors::{Code, Error, Result};

/// Accounts below this are not worth shedding, and are not kept in the list.
const LISTED_BYTES: u64 = 1 << 20;

/// The memory of all operations of a node.
///
/// It counts what can grow with what clients ask for: values that expressions make, rows that wait to be sorted or
/// grouped, buffers of messages, transactions. What has a bound of its own (caches, memtables) is not in it.
pub struct Process {
    limit: u64,
    operation_limit: u64,
    used: AtomicU64,
    ending: AtomicBool,
    /// Accounts that may be worth shedding; who is gone is removed when the list is next walked through.
    listed: Mutex<Vec<Weak<Account>>>,
}

impl Process {
    /// An account for a node whose operations may use `limit` bytes together, and each of them `operation_limit`.
    pub fn new(limit: u64, operation_limit: u64) -> Arc<Self> {
        assert!(limit > 0 && operation_limit > 0, "memory limits {limit} and {operation_limit}");
        Arc::new(Process {
            limit,
            operation_limit: operation_limit.min(limit),
            used: AtomicU64::new(0),
            ending: AtomicBool::new(false),
            listed: Mutex::default(),
        })
    }

    /// An account for a node that may use `bytes` of memory in all, caches included: operations get a fifth of it.
    /// One operation gets half of that, and not more than a gigabyte.
    pub fn share_of(bytes: u64) -> Arc<Self> {
        let limit = (bytes / 5).max(32 << 20);
        Self::new(limit, (limit / 2).min(1 << 30))
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// What all operations may use together.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// What one operation may use.
    pub fn operation_limit(&self) -> u64 {
        self.operation_limit
    }

    /// How much one stage of one operation keeps before it goes on on disk: what the caller would like to keep, and
    /// less where memory is small.
    pub fn spill_bytes(&self, wanted: usize) -> usize {
        wanted.min((self.operation_limit / 4) as usize).max(1 << 20)
    }

    /// The node shuts down: every [`check`](crate::check) fails from now on.
    pub fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Whether the node shuts down.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    fn list(&self, account: &Arc<Account>) {
        let mut listed = self.listed.lock();
        // Amortised: the list is walked through when it has doubled.
        if listed.len() == listed.capacity() {
            listed.retain(|account| account.strong_count() > 0);
        }
        listed.push(Arc::downgrade(account));
    }

    /// Makes room for `asking` by having the largest account end. It is told so; its memory comes back when it ends.
    ///
    /// Errors: `ExceededMemoryLimit`, where `asking` is the largest itself, or memory is over the limit by more than
    /// a quarter and cannot wait for others to end.
    fn make_room(&self, asking: &Account) -> Result<()> {
        let largest = {
            let mut listed = self.listed.lock();
            listed.retain(|account| account.strong_count() > 0);
            listed.iter().filter_map(Weak::upgrade).max_by_key(|account| account.used())
        };
        let Some(largest) = largest else { return Err(self.full()) };
        if std::ptr::eq(&*largest, asking) || largest.used() <= asking.used() {
            asking.shed.store(true, Ordering::Relaxed);
            return Err(shed());
        }
        largest.shed();
        if self.used() > self.limit.saturating_add(self.limit / 4) { Err(self.full()) } else { Ok(()) }
    }

    fn full(&self) -> Error {
        Error::new(
            Code::EXCEEDED_MEMORY_LIMIT,
            format!("The memory for operations, {} bytes, is in use", self.limit),
        )
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Process({} of {})", self.used(), self.limit)
    }
}

fn shed() -> Error {
    Error::new(
        Code::EXCEEDED_MEMORY_LIMIT,
        "The operation was ended because it used the most memory while the memory for operations was full",
    )
}

/// What is called when an account is shed.
type OnShed = Box<dyn Fn() + Send + Sync>;

/// The memory of one operation, one cursor, one transaction or one connection's buffers.
pub struct Account {
    process: Arc<Process>,
    limit: u64,
    used: AtomicU64,
    shed: AtomicBool,
    listed: AtomicBool,
    on_shed: Mutex<Option<OnShed>>,
}

impl Account {
    /// An account with the limit that operations have.
    pub fn new(process: &Arc<Process>) -> Arc<Self> {
        Self::with_limit(process, process.operation_limit)
    }

    /// An account with a limit of its own.
    pub fn with_limit(process: &Arc<Process>, limit: u64) -> Arc<Self> {
        Arc::new(Account {
            process: process.clone(),
            limit,
            used: AtomicU64::new(0),
            shed: AtomicBool::new(false),
            listed: AtomicBool::new(false),
            on_shed: Mutex::default(),
        })
    }

    /// Sets what is done when this account is chosen to make room, for memory that nobody is working on at the moment:
    /// an idle cursor is killed, a connection closed. It is called from other operations' threads and must be quick.
    pub fn on_shed(&self, work: impl Fn() + Send + Sync + 'static) {
        *self.on_shed.lock() = Some(Box::new(work));
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether its owner has to end, to make room.
    pub fn is_shed(&self) -> bool {
        self.shed.load(Ordering::Relaxed)
    }

    /// Errors: `ExceededMemoryLimit` if this account was chosen to make room.
    pub fn check(&self) -> Result<()> {
        if self.is_shed() { Err(shed()) } else { Ok(()) }
    }

    fn shed(&self) {
        if !self.shed.swap(true, Ordering::Relaxed)
            && let Some(work) = &*self.on_shed.lock()
        {
            work();
        }
    }

    /// Takes `bytes` from this account and the process.
    ///
    /// Errors: `ExceededMemoryLimit`; nothing is taken then.
    pub fn reserve(self: &Arc<Self>, bytes: u64) -> Result<Held> {
        let mut held = Held { account: Some(self.clone()), bytes: 0 };
        held.grow(bytes)?;
        Ok(held)
    }

    fn take(self: &Arc<Self>, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.check()?;
        let used = self.used.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let total = self.process.used.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let done = if used > self.limit {
            Err(Error::new(
                Code::EXCEEDED_MEMORY_LIMIT,
                format!(
                    "The operation would use {used} bytes of memory, more than the limit of {}",
                    self.limit
                ),
            ))
        } else {
            if used >= LISTED_BYTES && !self.listed.swap(true, Ordering::Relaxed) {
                self.process.list(self);
            }
            if total > self.process.limit { self.process.make_room(self) } else { Ok(()) }
        };
        if done.is_err() {
            self.give_back(bytes);
        }
        done
    }

    fn give_back(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        let total = self.process.used.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes && total >= bytes, "gave back {bytes} bytes of {before}, in all {total}");
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let left = self.used();
        assert!(left == 0 || std::thread::panicking(), "an account ends with {left} bytes in use");
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Account({} of {})", self.used(), self.limit)
    }
}

/// Memory that is taken from an account until this is dropped.
///
/// It keeps the account that it was made with, so it may live in a cursor from one batch to the next. One that was made
/// outside any operation counts nothing.
#[derive(Default, Debug)]
pub struct Held {
    account: Option<Arc<Account>>,
    bytes: u64,
}

impl Held {
    pub(crate) fn none() -> Self {
        Held::default()
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes `bytes` more.
    ///
    /// Errors: `ExceededMemoryLimit`; what it held before it still holds.
    pub fn grow(&mut self, bytes: u64) -> Result<()> {
        if let Some(account) = &self.account {
            account.take(bytes)?;
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Gives `bytes` back, or all if it holds less.
    pub fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        if let Some(account) = &self.account {
            account.give_back(bytes);
        }
    }

    /// Holds exactly `bytes` from now on.
    ///
    /// Errors: `ExceededMemoryLimit`; then it holds what it held before.
    pub fn set(&mut self, bytes: u64) -> Result<()> {
        if bytes > self.bytes {
            self.grow(bytes - self.bytes)
        } else {
            self.shrink(self.bytes - bytes);
            Ok(())
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}
