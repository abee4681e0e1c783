//! Open cursors: found by id, pinned while in use, closed after ten idle minutes.
//!
//! The registry knows nothing of plans: what it keeps is a [`Cursor`] of the server's role.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rand::RngExt;
use sheaf_auth::UserName;
use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_meter::{Account, Held};

use crate::concern::ReadConcern;
use crate::request::{ApiParams, Request};
use crate::session::LogicalSessionId;

/// A cursor of a role, between two `getMore`s: it holds a position, and no snapshot unless in a transaction.
pub trait Cursor: Send {
    /// Whether `getMore` waits for data when there is none.
    fn is_await_data(&self) -> bool;
}

/// The documents of one reply under construction.
pub struct Batch<'b> {
    /// Where array elements go.
    pub writer: sheaf_bson::ArrayWriter<'b, Vec<u8>>,
    limit: usize,
    max_bytes: usize,
    /// What is counted of it, from [`FREE_BATCH_BYTES`] on.
    held: Option<Held>,
    /// Why it is shorter than it could be, if there was no memory for more.
    cut: Option<Error>,
}

/// Bytes of a batch that are not counted.
const FREE_BATCH_BYTES: usize = 256 << 10;

/// A larger batch is counted in steps of this.
const COUNTED_BYTES: usize = 1 << 20;

/// Bytes of documents that one reply may hold; a first document is sent whatever its size.
pub const MAX_BATCH_BYTES: usize = 16 * 1024 * 1024;

impl<'b> Batch<'b> {
    /// A batch of at most `limit` documents (`None`: as many as fit into 16 MiB).
    pub fn new(writer: sheaf_bson::ArrayWriter<'b, Vec<u8>>, limit: Option<usize>) -> Self {
        let limit = limit.unwrap_or(usize::MAX);
        Batch { writer, limit, max_bytes: MAX_BATCH_BYTES, held: None, cut: None }
    }

    /// Whether the number of documents asked for is reached.
    pub fn is_full(&self) -> bool {
        self.writer.count() >= self.limit
    }

    /// Whether a document of this size still fits; the first one always does. Where memory is short, less does.
    pub fn fits(&mut self, bytes: usize) -> bool {
        let size = self.writer.size() + bytes;
        let first = self.writer.count() == 0;
        if !first && size > self.max_bytes {
            return false;
        }
        if size > FREE_BATCH_BYTES
            && let Err(error) = self.count_memory(size.next_multiple_of(COUNTED_BYTES) as u64)
            && !first
        {
            self.cut = Some(error);
            return false;
        }
        true
    }

    fn count_memory(&mut self, bytes: u64) -> Result<()> {
        match &mut self.held {
            Some(held) => held.set(bytes),
            none => sheaf_meter::reserve(bytes).map(|held| *none = Some(held)),
        }
    }

    /// Why the batch is shorter than it could be, if there was no memory for more: a reply that no other follows is an
    /// error then.
    pub fn cut(&mut self) -> Option<Error> {
        self.cut.take()
    }

    /// Appends a document.
    pub fn push(&mut self, bytes: &[u8]) {
        self.writer.push_raw_document(bytes);
    }

    /// Documents so far.
    pub fn count(&self) -> usize {
        self.writer.count()
    }
}

/// What is known of a cursor besides its contents.
#[derive(Debug)]
pub struct CursorInfo {
    /// The cursor's id: random, positive, never 0.
    pub id: i64,
    /// `db.collection`.
    pub namespace: String,
    /// The session that opened it; only that session may use it.
    pub lsid: Option<LogicalSessionId>,
    /// The user who opened it, where users have to say who they are.
    pub owner: Option<UserName>,
    /// The same as it was when it was looked at last whether the command may be run: at the opening, or by a later `getMore`.
    judged: Mutex<Option<Arc<sheaf_auth::Account>>>,
    /// The transaction that opened it; it dies with it.
    pub txn_number: Option<i64>,
    /// `noCursorTimeout`.
    pub no_timeout: bool,
    /// The command that opened it, for `currentOp` and `$currentOp {idleCursors: true}`.
    pub command: DocBuf,
    /// When it was opened, milliseconds since the epoch.
    pub created_millis: i64,
    /// Stable API parameters of the opening command; `getMore` must repeat them.
    pub api: ApiParams,
    /// `comment` of the opening command as a one-field document, for `getMore` to inherit.
    pub comment: Option<DocBuf>,
    /// What is left of the opening command's `maxTimeMS`, which all its batches share.
    pub time_left: Mutex<Option<Duration>>,
    /// `readConcern` of the opening command, which goes for all batches.
    pub read_concern: ReadConcern,
    /// How long a `getMore` that is parked waits.
    pub await_until: Mutex<Option<Instant>>,
    /// A stream of changes answers as soon as it has told all that happened up to this time.
    pub up_to: AtomicU64,
    /// The memory that the cursor's plan holds from batch to batch; each batch goes on with it.
    pub account: Arc<Account>,
    /// Wakes a `getMore` that is parked.
    pub wake: tokio::sync::Notify,
    killed: AtomicBool,
}

impl CursorInfo {
    /// Whether it was looked at already what this user may do, as it is now.
    pub fn was_judged(&self, account: &Arc<sheaf_auth::Account>) -> bool {
        self.judged.lock().as_ref().is_some_and(|judged| Arc::ptr_eq(judged, account))
    }

    /// Whether it is this user's, and none's who had the name before.
    pub fn belongs_to(&self, account: &sheaf_auth::Account) -> bool {
        self.judged
            .lock()
            .as_ref()
            .is_some_and(|judged| judged.user.name == account.user.name && judged.user.id == account.user.id)
    }

    /// The user may go on, as it is now.
    pub fn judge(&self, account: &Arc<sheaf_auth::Account>) {
        *self.judged.lock() = Some(account.clone());
    }

    /// Whether somebody killed the cursor.
    pub fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Relaxed)
    }

    fn kill(&self) {
        self.killed.store(true, Ordering::Relaxed);
        self.wake.notify_one();
    }
}

/// What a cursor takes besides what its plan has counted: the plan itself, names, what is known of it.
const CURSOR_BYTES: u64 = 16 << 10;

struct Slot<C> {
    info: Arc<CursorInfo>,
    /// The account of [`CURSOR_BYTES`] and the like.
    _held: Held,
    /// `None` while an operation uses it.
    cursor: Option<C>,
    opened: Instant,
    last_used: Instant,
    batches: u64,
    returned: u64,
}

/// A cursor between two batches.
pub struct IdleCursor {
    /// What is known of it.
    pub info: Arc<CursorInfo>,
    /// Whether it waits for documents at its end.
    pub awaits: bool,
    /// Time since its last batch.
    pub idle: Duration,
    /// Batches so far.
    pub batches: u64,
    /// Documents that `getMore`s returned.
    pub returned: u64,
}

impl CursorInfo {
    /// A `getMore` on this cursor as logs show it: with the comment of the command that opened it, unless it
    /// has one of its own.
    pub fn get_more(&self, command: RawDoc<'_>) -> DocBuf {
        let mut shown = DocBuf::from(command);
        if let Some(comment) = &self.comment
            && command.get("comment").is_none()
        {
            shown = shown.with("comment", comment.as_raw().get_or_missing("comment"));
        }
        shown
    }
}

/// All open cursors of a server.
pub struct Cursors<C> {
    open: Mutex<HashMap<i64, Slot<C>, ahash::RandomState>>,
    timed_out: AtomicU64,
    total_opened: AtomicU64,
    ended: Ended,
}

/// How many cursors have ended, by what their life was.
#[derive(Default)]
struct Ended {
    /// Those that lived for less than each of [`LIVES`], and those that lived longer.
    lifespans: [AtomicU64; LIVES.len() + 1],
    more_than_one_batch: AtomicU64,
}

/// By how long they live cursors are told apart, in seconds.
const LIVES: [u64; 6] = [1, 5, 15, 30, 60, 600];

/// The names of these lengths of life.
pub const LIFESPANS: [&str; LIVES.len() + 1] = [
    "lessThan1Second",
    "lessThan5Seconds",
    "lessThan15Seconds",
    "lessThan30Seconds",
    "lessThan1Minute",
    "lessThan10Minutes",
    "greaterThanOrEqual10Minutes",
];

impl Ended {
    fn count<C>(&self, slot: &Slot<C>, at: Instant) {
        let lived = at.saturating_duration_since(slot.opened).as_secs();
        let place = LIVES.partition_point(|limit| *limit <= lived);
        self.lifespans[place].fetch_add(1, Ordering::Relaxed);
        if slot.batches > 1 {
            self.more_than_one_batch.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<C> Default for Cursors<C> {
    fn default() -> Self {
        Cursors {
            open: Mutex::default(),
            timed_out: AtomicU64::new(0),
            total_opened: AtomicU64::new(0),
            ended: Ended::default(),
        }
    }
}

/// A cursor in use by one operation; it goes back with [`Pinned::release`], and is closed if that
/// never happens (an error, a panic).
pub struct Pinned<'c, C> {
    registry: &'c Cursors<C>,
    info: Arc<CursorInfo>,
    cursor: Option<C>,
}

/// Figures for `serverStatus.metrics.cursor`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CursorCounts {
    /// Open now.
    pub open: u64,
    /// In use now.
    pub pinned: u64,
    /// Open without timeout.
    pub no_timeout: u64,
    /// Closed because they were idle.
    pub timed_out: u64,
    /// Opened since start.
    pub total_opened: u64,
    /// Ended, by how long they had lived; see [`LIFESPANS`].
    pub lifespans: [u64; LIFESPANS.len()],
    /// Of those that ended, the ones that gave more than one batch.
    pub more_than_one_batch: u64,
}

/// The open cursors of a server, whatever they are made of.
pub trait OpenCursors: Send + Sync {
    /// What is known of a cursor.
    fn info(&self, id: i64) -> Option<Arc<CursorInfo>>;

    /// Closes a cursor on request. `None`: no such cursor; an open one that is in use stops soon.
    fn kill(&self, id: i64) -> Option<()>;

    /// The open cursors that nobody uses at the moment.
    fn idle(&self) -> Vec<IdleCursor>;
}

impl<C: Cursor + 'static> OpenCursors for Cursors<C> {
    fn info(&self, id: i64) -> Option<Arc<CursorInfo>> {
        self.open.lock().get(&id).map(|slot| slot.info.clone())
    }

    fn kill(&self, id: i64) -> Option<()> {
        let mut open = self.open.lock();
        let slot = open.get(&id)?;
        slot.info.kill();
        if slot.cursor.is_some() {
            self.ended.count(slot, Instant::now());
            open.remove(&id);
        }
        Some(())
    }

    fn idle(&self) -> Vec<IdleCursor> {
        let open = self.open.lock();
        let idle = open.values().filter_map(|slot| {
            let cursor = slot.cursor.as_ref()?;
            Some(IdleCursor {
                info: slot.info.clone(),
                awaits: cursor.is_await_data(),
                idle: slot.last_used.elapsed(),
                batches: slot.batches,
                returned: slot.returned,
            })
        });
        idle.collect()
    }
}

/// The cursors of a role that opens none.
pub struct NoCursors;

impl OpenCursors for NoCursors {
    fn info(&self, _: i64) -> Option<Arc<CursorInfo>> {
        None
    }

    fn kill(&self, _: i64) -> Option<()> {
        None
    }

    fn idle(&self) -> Vec<IdleCursor> {
        Vec::new()
    }
}

impl<C: Cursor + 'static> Cursors<C> {
    /// Keeps a cursor for later `getMore`s and gives its id.
    pub fn register(self: &Arc<Self>, op: &Request<'_>, namespace: &str, no_timeout: bool, cursor: C) -> i64 {
        let comment = (!op.comment().is_missing()).then(|| DocBuf::new().with("comment", op.comment()));
        let mut open = self.open.lock();
        let id = loop {
            let id: i64 = rand::rng().random_range(1..i64::MAX);
            if !open.contains_key(&id) {
                break id;
            }
        };
        // The cursor keeps what is left of `maxTimeMS`, and nothing of the time of this command alone.
        let own = op.max_time_ms().is_some() || op.generic.max_time_ms_op_only.is_none();
        let time_left = op.time_left().filter(|_| own);
        let info = Arc::new(CursorInfo {
            id,
            namespace: namespace.to_owned(),
            lsid: op.lsid(),
            owner: op.rights.user().cloned(),
            judged: Mutex::new(op.rights.account().cloned()),
            txn_number: op.in_transaction().then(|| op.txn_number()).flatten(),
            no_timeout,
            command: DocBuf::from(op.body()),
            created_millis: op.now_millis(),
            api: op.api(),
            comment,
            time_left: Mutex::new(time_left),
            read_concern: op.read_concern(),
            await_until: Mutex::new(None),
            up_to: AtomicU64::new(0),
            account: op.client().meter.account(),
            wake: tokio::sync::Notify::new(),
            killed: AtomicBool::new(false),
        });
        let held = info.account.hold(CURSOR_BYTES + 2 * info.command.as_bytes().len() as u64);
        let now = Instant::now();
        let slot = Slot {
            info,
            _held: held,
            cursor: Some(cursor),
            opened: now,
            last_used: now,
            batches: 1,
            returned: 0,
        };
        open.insert(id, slot);
        drop(open);
        // An idle cursor has no operation that could be told to end.
        let registry = Arc::downgrade(self);
        op.client().meter.account().on_shed(move || {
            if let Some(registry) = registry.upgrade() {
                registry.kill(id);
            }
        });
        self.total_opened.fetch_add(1, Ordering::Relaxed);
        id
    }

    /// Takes a cursor for a `getMore` on `namespace`.
    ///
    /// Errors: `CursorNotFound`, `CursorInUse`, `Unauthorized` for another namespace, and
    /// 50736..50741 for another session or transaction.
    pub fn pin(&self, op: &Request<'_>, id: i64, namespace: &str) -> Result<Pinned<'_, C>> {
        let mut open = self.open.lock();
        let Some(slot) = open.get_mut(&id) else {
            bail!(Code::CURSOR_NOT_FOUND, "cursor id {id} not found");
        };
        let Some(_) = &slot.cursor else {
            bail!(Code::CURSOR_IN_USE, "cursor id {id} is already in use");
        };
        let info = slot.info.clone();
        if info.namespace != namespace {
            bail!(
                Code::UNAUTHORIZED,
                "Requested getMore on namespace '{namespace}', but cursor belongs to a different namespace {}",
                info.namespace
            );
        }
        if info.owner.as_ref() != op.rights.user() {
            bail!(Code::UNAUTHORIZED, "cursor id {id} was not created by the authenticated user");
        }
        check_session(&info, op)?;
        let cursor = slot.cursor.take();
        slot.last_used = Instant::now();
        slot.batches += 1;
        drop(open);
        op.client().meter.adopt(info.account.clone());
        let pinned = Pinned { registry: self, info, cursor };
        if let Some(data) = op.front.fail_points.enter("failGetMoreAfterCursorCheckout", |_| true) {
            let code = data.as_raw().get("errorCode").and_then(|code| code.as_exact_i64());
            let code = code.map_or(Code::INTERNAL_ERROR, |code| Code(code as i32));
            bail!(code, "Hit the 'failGetMoreAfterCursorCheckout' failpoint");
        }
        Ok(pinned)
    }

    /// Closes all cursors for which `which` holds (a dropped collection, an ended session or
    /// transaction) and says how many.
    pub fn kill_where(&self, which: impl Fn(&CursorInfo) -> bool) -> usize {
        let mut open = self.open.lock();
        let before = open.len();
        let mut pinned = 0;
        open.retain(|_, slot| {
            if !which(&slot.info) {
                return true;
            }
            slot.info.kill();
            pinned += usize::from(slot.cursor.is_none());
            if slot.cursor.is_some() {
                self.ended.count(slot, Instant::now());
            }
            slot.cursor.is_none()
        });
        before - open.len() + pinned
    }

    /// Closes cursors that have been idle for `timeout`; those of sessions, too, only if `in_sessions`: they die with their
    /// sessions.
    pub fn expire(&self, timeout: Duration, in_sessions: bool) {
        let now = Instant::now();
        let mut open = self.open.lock();
        let before = open.len();
        open.retain(|_, slot| {
            let idle = slot.cursor.is_some() && now.duration_since(slot.last_used) >= timeout;
            let with_session = slot.info.lsid.is_some() && !in_sessions;
            let stays = !idle || slot.info.no_timeout || with_session || slot.info.txn_number.is_some();
            if !stays {
                self.ended.count(slot, now);
            }
            stays
        });
        self.timed_out.fetch_add((before - open.len()) as u64, Ordering::Relaxed);
    }

    /// Figures for `serverStatus`.
    pub fn counts(&self) -> CursorCounts {
        let open = self.open.lock();
        CursorCounts {
            open: open.len() as u64,
            pinned: open.values().filter(|slot| slot.cursor.is_none()).count() as u64,
            no_timeout: open.values().filter(|slot| slot.info.no_timeout).count() as u64,
            timed_out: self.timed_out.load(Ordering::Relaxed),
            total_opened: self.total_opened.load(Ordering::Relaxed),
            lifespans: self.ended.lifespans.each_ref().map(|count| count.load(Ordering::Relaxed)),
            more_than_one_batch: self.ended.more_than_one_batch.load(Ordering::Relaxed),
        }
    }
}

impl<C> Cursors<C> {
    fn put_back(&self, id: i64, cursor: Option<C>, returned: u64) {
        let mut open = self.open.lock();
        match (cursor, open.get_mut(&id)) {
            (Some(cursor), Some(slot)) if !slot.info.killed.load(Ordering::Relaxed) => {
                slot.cursor = Some(cursor);
                slot.last_used = Instant::now();
                slot.returned += returned;
            }
            _ => {
                if let Some(slot) = open.remove(&id) {
                    // When its last batch began: nobody reads the clock for this alone.
                    self.ended.count(&slot, slot.last_used);
                }
            }
        }
    }
}

impl<C> Pinned<'_, C> {
    /// What is known of the cursor.
    pub fn info(&self) -> &Arc<CursorInfo> {
        &self.info
    }

    /// The cursor itself.
    pub fn cursor(&mut self) -> &mut C {
        self.cursor.as_mut().expect("a pinned cursor is there until it is released")
    }

    /// Whether somebody killed the cursor while it was in use.
    pub fn is_killed(&self) -> bool {
        self.info.is_killed()
    }

    /// Puts the cursor back for the next `getMore`.
    pub fn release(mut self, returned: usize) {
        let cursor = self.cursor.take();
        self.registry.put_back(self.info.id, cursor, returned as u64);
    }
}

impl<C> Drop for Pinned<'_, C> {
    fn drop(&mut self) {
        if self.cursor.is_some() {
            self.registry.put_back(self.info.id, None, 0);
        }
    }
}

/// A cursor belongs to the session and transaction that opened it.
fn check_session(info: &CursorInfo, op: &Request<'_>) -> Result<()> {
    let id = info.id;
    match (info.lsid, op.lsid()) {
        (None, Some(_)) => bail!(
            50736,
            "Cannot run getMore on cursor {id}, which was not created in a session, in session {}",
            session_text(op)
        ),
        (Some(_), None) => {
            bail!(50737, "Cannot run getMore on cursor {id}, which was created in a session, without an lsid")
        }
        (Some(a), Some(b)) if a != b => bail!(
            50738,
            "Cannot run getMore on cursor {id}, which was created in another session, in session {}",
            session_text(op)
        ),
        _ => {}
    }
    let here = op.in_transaction().then(|| op.txn_number()).flatten();
    match (info.txn_number, here) {
        (None, Some(_)) => bail!(
            50739,
            "Cannot run getMore on cursor {id}, which was not created in a transaction, in transaction {}",
            here.unwrap_or(0)
        ),
        (Some(_), None) => bail!(
            50740,
            "Cannot run getMore on cursor {id}, which was created in a transaction, without a txnNumber"
        ),
        (Some(a), Some(b)) if a != b => bail!(
            50741,
            "Cannot run getMore on cursor {id}, which was created in transaction {a}, in transaction {b}"
        ),
        _ => Ok(()),
    }
}

fn session_text(op: &Request<'_>) -> String {
    op.lsid().map_or_else(String::new, |lsid| uuid::Uuid::from_bytes(lsid.id).to_string())
}
