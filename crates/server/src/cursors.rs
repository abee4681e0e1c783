//! Open cursors: found by id, pinned while in use, closed after ten idle minutes.
//!
//! The registry knows nothing of plans: what it keeps is a [`ServerCursor`]. An idle cursor holds a
//! position, not a snapshot (see that trait).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rand::RngExt;
use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_meter::{Account, Held};
use sheaf_storage::View;

use crate::concern::ReadConcern;
use crate::op::OpContext;
use crate::parked::Changes;
use crate::session::LogicalSessionId;

/// A cursor between two `getMore`s.
pub trait ServerCursor: Send {
    /// Appends documents to `batch` until it is full, the cursor is exhausted, or (tailable) nothing
    /// more is there now. Must leave no snapshot open when it returns, unless in a transaction.
    fn fill(&mut self, op: &OpContext<'_>, batch: &mut Batch<'_>) -> Result<Filled>;

    /// For an awaitData cursor that has just given nothing: what it waits for.
    fn waits(&self) -> Option<Changes> {
        None
    }

    /// `postBatchResumeToken` of a change stream.
    fn resume_token(&self) -> Option<DocBuf> {
        None
    }

    /// Whether an empty batch leaves the cursor open.
    fn is_tailable(&self) -> bool {
        false
    }

    /// Whether `getMore` waits for data when there is none.
    fn is_await_data(&self) -> bool {
        false
    }

    /// `planSummary` for `currentOp` and the slow log.
    fn plan_summary(&self) -> String {
        String::new()
    }
}

/// What [`ServerCursor::fill`] left behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filled {
    /// There may be more.
    More,
    /// The cursor is at its end; it will be closed.
    Exhausted,
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
    /// Its id: random, positive, never 0.
    pub id: i64,
    /// `db.collection`.
    pub namespace: String,
    /// The session that opened it; only that session may use it.
    pub lsid: Option<LogicalSessionId>,
    /// The transaction that opened it; it dies with it.
    pub txn_number: Option<i64>,
    /// `noCursorTimeout`.
    pub no_timeout: bool,
    /// The command that opened it, for `currentOp` and `$currentOp {idleCursors: true}`.
    pub command: DocBuf,
    /// When it was opened, milliseconds since the epoch.
    pub created_millis: i64,
    /// Stable API parameters of the opening command; `getMore` must repeat them.
    pub api: crate::op::ApiParams,
    /// `comment` of the opening command as a one-field document, for `getMore` to inherit.
    pub comment: Option<DocBuf>,
    /// What is left of the opening command's `maxTimeMS`, which all its batches share.
    pub time_left: Mutex<Option<Duration>>,
    /// `readConcern` of the opening command, which goes for all batches.
    pub read_concern: ReadConcern,
    /// The state that all batches read, for `snapshot` outside a transaction.
    pub snapshot: Snapshot,
    /// How long a `getMore` that is parked waits.
    pub await_until: Mutex<Option<Instant>>,
    /// The memory that the cursor's plan holds from batch to batch; each batch goes on with it.
    pub account: Arc<Account>,
    /// Wakes a `getMore` that is parked.
    pub wake: tokio::sync::Notify,
    killed: AtomicBool,
}

/// A state that a cursor keeps from batch to batch.
#[derive(Clone, Default)]
pub struct Snapshot(pub Option<View>);

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Snapshot").field(&self.0.as_ref().map(View::time)).finish()
    }
}

impl CursorInfo {
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

struct Slot {
    info: Arc<CursorInfo>,
    /// The account of [`CURSOR_BYTES`] and the like.
    _held: Held,
    /// `None` while an operation uses it.
    cursor: Option<Box<dyn ServerCursor>>,
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

/// All open cursors of the node.
#[derive(Default)]
pub struct Cursors {
    open: Mutex<HashMap<i64, Slot, ahash::RandomState>>,
    timed_out: std::sync::atomic::AtomicU64,
    total_opened: std::sync::atomic::AtomicU64,
}

/// A cursor in use by one operation; it goes back with [`Pinned::release`], and is closed if that
/// never happens (an error, a panic).
pub struct Pinned<'c> {
    registry: &'c Cursors,
    info: Arc<CursorInfo>,
    cursor: Option<Box<dyn ServerCursor>>,
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
}

impl Cursors {
    /// Keeps a cursor for later `getMore`s and gives its id.
    pub fn register(
        &self,
        op: &OpContext<'_>,
        namespace: &str,
        no_timeout: bool,
        cursor: Box<dyn ServerCursor>,
    ) -> i64 {
        let comment = (!op.comment().is_missing()).then(|| DocBuf::new().with("comment", op.comment()));
        let mut open = self.open.lock();
        let id = loop {
            let id: i64 = rand::rng().random_range(1..i64::MAX);
            if !open.contains_key(&id) {
                break id;
            }
        };
        let info = Arc::new(CursorInfo {
            id,
            namespace: namespace.to_owned(),
            lsid: op.lsid(),
            txn_number: op.in_transaction().then(|| op.txn_number()).flatten(),
            no_timeout,
            command: DocBuf::from(op.body()),
            created_millis: op.now_millis(),
            api: op.api(),
            comment,
            time_left: Mutex::new(op.time_left()),
            read_concern: op.read_concern(),
            snapshot: Snapshot(op.snapshot.borrow().clone()),
            await_until: Mutex::new(None),
            account: op.client().meter.account(),
            wake: tokio::sync::Notify::new(),
            killed: AtomicBool::new(false),
        });
        let held = info.account.hold(CURSOR_BYTES + 2 * info.command.as_bytes().len() as u64);
        let slot = Slot {
            info,
            _held: held,
            cursor: Some(cursor),
            last_used: Instant::now(),
            batches: 1,
            returned: 0,
        };
        open.insert(id, slot);
        drop(open);
        // An idle cursor has no operation that could be told to end.
        let node = Arc::downgrade(op.node());
        op.client().meter.account().on_shed(move || {
            if let Some(node) = node.upgrade() {
                node.cursors.kill(id);
            }
        });
        self.total_opened.fetch_add(1, Ordering::Relaxed);
        id
    }

    /// Takes a cursor for a `getMore` on `namespace`.
    ///
    /// Errors: `CursorNotFound`, `CursorInUse`, `Unauthorized` for another namespace, and
    /// 50736..50741 for another session or transaction.
    pub fn pin(&self, op: &OpContext<'_>, id: i64, namespace: &str) -> Result<Pinned<'_>> {
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
        check_session(&info, op)?;
        let cursor = slot.cursor.take();
        slot.last_used = Instant::now();
        slot.batches += 1;
        drop(open);
        op.client().meter.adopt(info.account.clone());
        let pinned = Pinned { registry: self, info, cursor };
        if let Some(data) = op.node().fail_points.enter("failGetMoreAfterCursorCheckout", |_| true) {
            let code = data.as_raw().get("errorCode").and_then(|code| code.as_exact_i64());
            let code = code.map_or(Code::INTERNAL_ERROR, |code| Code(code as i32));
            bail!(code, "Hit the 'failGetMoreAfterCursorCheckout' failpoint");
        }
        Ok(pinned)
    }

    /// Closes a cursor on request. `None`: no such cursor; an open one that is in use stops soon.
    pub fn kill(&self, id: i64) -> Option<()> {
        let mut open = self.open.lock();
        let slot = open.get(&id)?;
        slot.info.kill();
        if slot.cursor.is_some() {
            open.remove(&id);
        }
        Some(())
    }

    /// What is known of a cursor.
    pub fn info(&self, id: i64) -> Option<Arc<CursorInfo>> {
        self.open.lock().get(&id).map(|slot| slot.info.clone())
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
            !idle || slot.info.no_timeout || with_session || slot.info.txn_number.is_some()
        });
        self.timed_out.fetch_add((before - open.len()) as u64, Ordering::Relaxed);
    }

    /// The open cursors that nobody uses at the moment.
    pub fn idle(&self) -> Vec<IdleCursor> {
        let open = self.open.lock();
        let idle = open.values().filter_map(|slot| {
            let cursor = slot.cursor.as_deref()?;
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

    /// Figures for `serverStatus`.
    pub fn counts(&self) -> CursorCounts {
        let open = self.open.lock();
        CursorCounts {
            open: open.len() as u64,
            pinned: open.values().filter(|slot| slot.cursor.is_none()).count() as u64,
            no_timeout: open.values().filter(|slot| slot.info.no_timeout).count() as u64,
            timed_out: self.timed_out.load(Ordering::Relaxed),
            total_opened: self.total_opened.load(Ordering::Relaxed),
        }
    }

    fn put_back(&self, id: i64, cursor: Option<Box<dyn ServerCursor>>, returned: u64) {
        let mut open = self.open.lock();
        match (cursor, open.get_mut(&id)) {
            (Some(cursor), Some(slot)) if !slot.info.killed.load(Ordering::Relaxed) => {
                slot.cursor = Some(cursor);
                slot.last_used = Instant::now();
                slot.returned += returned;
            }
            _ => {
                open.remove(&id);
            }
        }
    }
}

impl Pinned<'_> {
    /// What is known of the cursor.
    pub fn info(&self) -> &Arc<CursorInfo> {
        &self.info
    }

    /// The cursor itself.
    pub fn cursor(&mut self) -> &mut dyn ServerCursor {
        self.cursor.as_deref_mut().expect("a pinned cursor is there until it is released")
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

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        if self.cursor.is_some() {
            self.registry.put_back(self.info.id, None, 0);
        }
    }
}

/// A cursor belongs to the session and transaction that opened it.
fn check_session(info: &CursorInfo, op: &OpContext<'_>) -> Result<()> {
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

fn session_text(op: &OpContext<'_>) -> String {
    op.lsid().map_or_else(String::new, |lsid| uuid::Uuid::from_bytes(lsid.id).to_string())
}
