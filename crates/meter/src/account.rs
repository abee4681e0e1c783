//! Memory: what each operation has, and what all of them have together.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use sheaf_errors::{Code, Error, Result};

use crate::pressure::Pressure;
use crate::turns::Turns;

/// Accounts below this are not worth shedding, and are not kept in the list, unless nobody works for them (cursors).
const LISTED_BYTES: u64 = 256 << 10;

/// Who has no more than this is not refused for others' sake while there is any room.
const SMALL_BYTES: u64 = 1 << 20;

/// The memory of all that clients do on a node.
///
/// It counts what can grow with what clients ask for: values that expressions make, rows that wait to be sorted or
/// grouped, messages under way, replies under construction, cursors, transactions. What has a bound of its own (caches,
/// memtables) is not in it.
pub struct Process {
    limit: u64,
    operation_limit: u64,
    used: AtomicU64,
    /// What the process has in fact, however it is counted: a [`Pressure`].
    pressure: AtomicU8,
    /// What a thread does about what it keeps for itself while memory is short.
    tidy: OnceLock<fn(Pressure)>,
    ending: AtomicBool,
    /// Who computes, of those whose operations are long.
    turns: Turns,
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
            pressure: AtomicU8::new(Pressure::None as u8),
            tidy: OnceLock::new(),
            ending: AtomicBool::new(false),
            turns: Turns::of_processors(),
            listed: Mutex::default(),
        })
    }

    /// An account for a node that may use `bytes` of memory in all, caches included: operations and messages get three
    /// tenths of it together, one operation a third of that, and not more than a gigabyte.
    pub fn share_of(bytes: u64) -> Arc<Self> {
        let limit = (bytes / 10 * 3).max(48 << 20);
        Self::new(limit, (limit / 3).min(1 << 30))
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

    pub(crate) fn turns(&self) -> &Turns {
        &self.turns
    }

    /// (long operations that compute, long operations that wait for their turn)
    pub fn turn_figures(&self) -> (usize, usize) {
        self.turns.figures()
    }

    /// How short memory is in fact.
    pub fn pressure(&self) -> Pressure {
        Pressure::from(self.pressure.load(Ordering::Relaxed))
    }

    /// Notes how short memory is in fact.
    pub fn set_pressure(&self, pressure: Pressure) {
        self.pressure.store(pressure as u8, Ordering::Relaxed);
    }

    /// Sets what threads do while memory is short, each now and then: they give back what their allocator keeps for them.
    /// Once.
    pub fn on_shortage(&self, tidy: fn(Pressure)) {
        let _ = self.tidy.set(tidy);
    }

    pub(crate) fn look_at_shortage(&self) {
        let pressure = self.pressure();
        if pressure >= Pressure::High
            && let Some(tidy) = self.tidy.get()
        {
            tidy(pressure);
        }
    }

    fn take_off(&self, bytes: u64) {
        take_off(&self.used, bytes);
    }

    fn list(&self, account: &Arc<Account>) {
        let mut listed = self.listed.lock();
        // Amortised: the list is walked through when it has doubled.
        if listed.len() == listed.capacity() {
            listed.retain(|account| account.strong_count() > 0);
        }
        listed.push(Arc::downgrade(account));
    }

    /// Has the largest accounts of those end who have most together, until what ends has so many bytes; says how many were told to, and
    /// how much they have. Their memory comes back when they end: at once, where nobody works for them.
    pub fn shed(&self, bytes: u64) -> (usize, u64) {
        self.shed_others(bytes, None, false)
    }

    /// `asking` is spared, or comes after others of its owner that have about as much: it is at work, they may not be.
    fn shed_others(&self, bytes: u64, asking: Option<&Account>, spared: bool) -> (usize, u64) {
        let accounts: Vec<Arc<Account>> = {
            let mut listed = self.listed.lock();
            listed.retain(|account| account.strong_count() > 0);
            listed.iter().filter_map(Weak::upgrade).collect()
        };
        let is_asking = |account: &Arc<Account>| asking.is_some_and(|one| std::ptr::eq(one, &**account));
        let mut coming = 0;
        let mut owners = HashMap::<u64, OfOwner>::new();
        for account in accounts {
            // By what they have now: it changes while they are sorted.
            let used = account.may_come();
            if account.is_shed() {
                coming += used;
            } else if used > 0 && !(spared && is_asking(&account)) {
                owners.entry(account.owner).or_default().add(used, account);
            }
        }
        let order = |(used, account): &(u64, Arc<Account>)| (used.ilog2(), !is_asking(account), *used);
        owners.values_mut().for_each(|own| own.accounts.sort_by_key(order));
        let (mut count, mut shed) = (0, 0);
        while coming < bytes
            && let Some(most) = owners.values_mut().max_by_key(|own| own.bytes)
            && let Some((used, account)) = most.accounts.pop()
        {
            most.bytes -= used;
            account.shed();
            coming += used;
            count += 1;
            shed += used;
        }
        (count, shed)
    }

    /// Makes room for `asking`, with which `total` bytes are in use, by having others end, those first who have most.
    ///
    /// Errors: `ExceededMemoryLimit`, where `asking` is among these itself, or memory is over the limit by more than
    /// a quarter and cannot wait for others to end.
    fn make_room(&self, asking: &Account, total: u64) -> Result<()> {
        let small = asking.used() <= SMALL_BYTES;
        self.shed_others(total - self.limit.min(total), Some(asking), small);
        asking.check()?;
        let beyond = if small { self.limit / 2 } else { self.limit / 4 };
        if self.used() > self.limit.saturating_add(beyond) { Err(self.full()) } else { Ok(()) }
    }

    /// Takes `bytes` if they are free: nobody gives up any for it, before or after, and it is no operation's own limit that counts. Of more than a half
    /// of what operations have, that half is taken.
    pub(crate) fn take_free(self: &Arc<Self>, bytes: u64) -> Option<Held> {
        let bytes = bytes.min(self.limit / 2);
        let fits = |used: u64| used.checked_add(bytes).filter(|total| *total <= self.limit);
        if self.pressure() == Pressure::Critical
            || self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_err()
        {
            return None;
        }
        let own = Account::with_limit(self, self.limit);
        own.used.fetch_add(bytes, Ordering::Relaxed);
        Some(Held { account: Some(own), bytes })
    }

    pub(crate) fn full(&self) -> Error {
        Error::new(
            Code::EXCEEDED_MEMORY_LIMIT,
            format!("The memory for operations, {} bytes, is in use", self.limit),
        )
    }
}

/// What one owner has that may be shed.
#[derive(Default)]
struct OfOwner {
    bytes: u64,
    accounts: Vec<(u64, Arc<Account>)>,
}

impl OfOwner {
    fn add(&mut self, used: u64, account: Arc<Account>) {
        self.bytes += used;
        self.accounts.push((used, account));
    }
}

fn take_off(used: &AtomicU64, bytes: u64) {
    let all = used.fetch_sub(bytes, Ordering::Relaxed);
    assert!(all >= bytes, "gave back {bytes} bytes of {all} in all");
}

/// What is counted with the process for something that belongs to no account: messages under way, sessions.
pub struct Part {
    process: Arc<Process>,
    used: AtomicU64,
}

impl Part {
    /// Nothing yet.
    pub fn of(process: &Arc<Process>) -> Self {
        Part { process: process.clone(), used: AtomicU64::new(0) }
    }

    /// What it is a part of.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// One of those that it counts has so many bytes now, and had so many before.
    pub fn change(&self, before: u64, now: u64) {
        for used in [&self.used, &self.process.used] {
            if now >= before {
                used.fetch_add(now - before, Ordering::Relaxed);
            } else {
                take_off(used, before - now);
            }
        }
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
    /// Whose it is; 0 if that is not known.
    owner: u64,
    used: AtomicU64,
    /// What of it does not come back when its owner ends.
    lost: AtomicU64,
    shed: AtomicBool,
    listed: AtomicBool,
    on_shed: Mutex<Option<OnShed>>,
}

impl Account {
    /// An account with the limit that operations have.
    pub fn new(process: &Arc<Process>) -> Arc<Self> {
        Self::with_limit(process, process.operation_limit)
    }

    /// The same for somebody's operation: who has most, all accounts together, is the first to be shed.
    pub(crate) fn of_owner(process: &Arc<Process>, owner: u64) -> Arc<Self> {
        Self::make(process, process.operation_limit, owner)
    }

    /// An account with a limit of its own.
    pub fn with_limit(process: &Arc<Process>, limit: u64) -> Arc<Self> {
        Self::make(process, limit, 0)
    }

    fn make(process: &Arc<Process>, limit: u64, owner: u64) -> Arc<Self> {
        Arc::new(Account {
            process: process.clone(),
            limit,
            owner,
            used: AtomicU64::new(0),
            lost: AtomicU64::new(0),
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

    /// So many of its bytes stay in use when its operation ends, until they are [found](Self::found).
    pub fn lose(&self, bytes: u64) {
        self.lost.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that were lost will be given back.
    pub fn found(&self, bytes: u64) {
        take_off(&self.lost, bytes);
    }

    /// What comes back when its owner ends.
    fn may_come(&self) -> u64 {
        self.used().saturating_sub(self.lost.load(Ordering::Relaxed))
    }

    /// Whether it has had so much at some time that it is worth mentioning.
    pub fn was_large(&self) -> bool {
        self.listed.load(Ordering::Relaxed)
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
            if used >= LISTED_BYTES {
                self.list();
            }
            if used > SMALL_BYTES && self.process.pressure() == Pressure::Critical {
                Err(self.process.full())
            } else if total > self.process.limit {
                self.process.make_room(self, total)
            } else {
                Ok(())
            }
        };
        if done.is_err() {
            self.give_back(bytes);
        }
        done
    }

    /// Counts `bytes` that are there already, whatever the limits say. Who asks for more next makes room.
    pub fn hold(self: &Arc<Self>, bytes: u64) -> Held {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        self.process.used.fetch_add(bytes, Ordering::Relaxed);
        self.list();
        Held { account: Some(self.clone()), bytes }
    }

    fn list(self: &Arc<Self>) {
        if !self.listed.load(Ordering::Relaxed) && !self.listed.swap(true, Ordering::Relaxed) {
            self.process.list(self);
        }
    }

    fn give_back(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "gave back {bytes} bytes of {before}");
        self.process.take_off(bytes);
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
    pub(crate) const fn none() -> Self {
        Held { account: None, bytes: 0 }
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Of which account.
    pub fn account(&self) -> Option<&Arc<Account>> {
        self.account.as_ref()
    }

    /// Takes `bytes` from the same account, whoever asks now: for what is made later and lives as long.
    ///
    /// Errors: `ExceededMemoryLimit`.
    pub fn beside(&self, bytes: u64) -> Result<Held> {
        let mut held = Held { account: self.account.clone(), bytes: 0 };
        held.grow(bytes)?;
        Ok(held)
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
