//! One operation under way: what handlers may ask for.

use std::cell::{Cell, RefCell, RefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bumpalo::Bump;
use sheaf_bson::{DocBuf, RawDoc, Timestamp, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::ClusterClock;
use sheaf_storage::{Engine, OpTime, Statement, Transaction, View, Write};

use crate::client::{Client, Stop};
use crate::concern::{ReadConcern, ReadLevel, WriteConcern};
use crate::cursors::CursorInfo;
use crate::node::Node;
use crate::parked::Parked;
use crate::session::LogicalSessionId;

/// One command being run: its environment, limits and results besides the reply.
///
/// It lives on the stack of the connection's task while the command runs (synchronously); it is
/// not `Sync`. `'a` is the life of the request's bytes.
pub struct OpContext<'a> {
    pub(crate) node: &'a Arc<Node>,
    pub(crate) client: &'a Arc<Client>,
    pub(crate) db: &'a str,
    pub(crate) body: RawDoc<'a>,
    pub(crate) arena: Bump,
    pub(crate) lsid: Option<LogicalSessionId>,
    pub(crate) txn_number: Option<i64>,
    pub(crate) read_concern: Cell<ReadConcern>,
    /// The state of one moment that is read, for `snapshot` outside a transaction.
    pub(crate) snapshot: RefCell<Option<View>>,
    pub(crate) write_concern: Option<WriteConcern<'a>>,
    pub(crate) comment: Value<'a>,
    pub(crate) api: ApiParams,
    pub(crate) started: Instant,
    pub(crate) deadline: Cell<Option<Instant>>,
    pub(crate) stop: &'a Stop,
    pub(crate) may_block: bool,
    pub(crate) exhaust: bool,
    /// The open transaction that this operation belongs to; back in its session afterwards.
    pub(crate) transaction: RefCell<Option<Transaction>>,
    pub(crate) in_transaction: bool,
    /// How this operation ended its transaction.
    pub(crate) txn_ended: Cell<Option<TxnEnd>>,
    /// Where the transaction had been committed already, for a repeated `commitTransaction`.
    pub(crate) txn_found: Cell<Option<OpTime>>,
    pub(crate) max_time_ms: Option<u64>,
    /// The reply is one of several to an exhaust request.
    pub(crate) exhaust_reply: Cell<bool>,
    /// The reply goes out at this time.
    pub(crate) hold_until: Cell<Option<Instant>>,
    /// The request runs again when this is over; its answer is not sent.
    pub(crate) parked: RefCell<Option<Parked>>,
    /// The newest commit that this operation made or found; what its write concern waits for.
    pub(crate) committed: Cell<Option<OpTime>>,
    /// Whether a retryable write has changed something, and its connection is to be closed for it: a fail point.
    pub(crate) close_after_write: Cell<bool>,
    pub(crate) metrics: OpMetrics,
}

const TRANSACTIONAL_WRITE: &str = "onPrimaryTransactionalWrite";

/// How an operation ended its transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TxnEnd {
    /// Committed at this position.
    Committed(OpTime),
    /// Aborted on request.
    Aborted,
}

/// `apiVersion` and its companions.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct ApiParams {
    /// `apiVersion: "1"` was given.
    pub v1: bool,
    /// `apiStrict`.
    pub strict: bool,
    /// `apiDeprecationErrors`.
    pub deprecation_errors: bool,
}

/// Figures of one operation, for the slow log, the profiler and `top`. Handlers fill them in.
#[derive(Default, Debug)]
pub struct OpMetrics {
    /// Index keys looked at.
    pub keys_examined: Cell<u64>,
    /// Documents looked at.
    pub docs_examined: Cell<u64>,
    /// Documents returned.
    pub returned: Cell<Option<u64>>,
    /// Documents inserted.
    pub inserted: Cell<Option<u64>>,
    /// Documents matched by an update.
    pub matched: Cell<Option<u64>>,
    /// Documents modified.
    pub modified: Cell<Option<u64>>,
    /// Documents deleted.
    pub deleted: Cell<Option<u64>>,
    /// Documents upserted.
    pub upserted: Cell<Option<u64>>,
    /// The cursor that the operation opened or read.
    pub cursor_id: Cell<Option<i64>>,
    /// The cursor that a `getMore` reads.
    pub cursor: RefCell<Option<Arc<CursorInfo>>>,
    /// Whether a cursor is exhausted.
    pub cursor_exhausted: Cell<bool>,
    /// Whether an in-memory sort was needed.
    pub has_sort_stage: Cell<bool>,
    /// Write conflicts met and retried.
    pub write_conflicts: Cell<u64>,
    /// `planSummary`, such as `IXSCAN { a: 1 }`.
    pub plan_summary: RefCell<Option<String>>,
    /// The full namespace, if the command works on a collection.
    pub namespace: RefCell<Option<String>>,
}

impl<'a> OpContext<'a> {
    /// The server.
    pub fn node(&self) -> &'a Arc<Node> {
        self.node
    }

    /// The connection.
    pub fn client(&self) -> &'a Arc<Client> {
        self.client
    }

    /// The database that the command runs against.
    pub fn db(&self) -> &'a str {
        self.db
    }

    /// The command as it came (body without kind-1 sequences), generic arguments included.
    pub fn body(&self) -> RawDoc<'a> {
        self.body
    }

    /// The storage engine.
    pub fn engine(&self) -> &'a Engine {
        self.node.engine()
    }

    /// `db.collection`.
    pub fn namespace(&self, collection: &str) -> String {
        let mut namespace = String::with_capacity(self.db.len() + 1 + collection.len());
        namespace.push_str(self.db);
        namespace.push('.');
        namespace.push_str(collection);
        namespace
    }

    /// Whether the operation belongs to a multi-document transaction.
    pub fn in_transaction(&self) -> bool {
        self.in_transaction
    }

    /// The open transaction, to read and write in; `None` outside of one.
    pub fn transaction(&self) -> Option<RefMut<'_, Transaction>> {
        RefMut::filter_map(self.transaction.borrow_mut(), Option::as_mut).ok()
    }

    /// The state to read: the transaction's own, the one that a majority has, or the newest, as the read concern says.
    pub fn view(&self) -> Result<View> {
        if let Some(mut transaction) = self.transaction() {
            return transaction.view();
        }
        if let Some(snapshot) = &*self.snapshot.borrow() {
            return Ok(snapshot.clone());
        }
        if !self.reads_majority() {
            return self.engine().view();
        }
        match self.engine().majority_view() {
            Some(view) => Ok(view),
            None => bail!(
                Code::READ_CONCERN_MAJORITY_NOT_AVAILABLE_YET,
                "Read concern majority reads are currently not possible."
            ),
        }
    }

    /// Whether only what a majority of the set has may be read; alone, a node is the majority.
    pub fn reads_majority(&self) -> bool {
        self.node.replica().is_some()
            && matches!(self.read_concern.get().level, Some(ReadLevel::Majority | ReadLevel::Snapshot))
    }

    /// The time of the snapshot that is read, for the reply.
    pub fn at_cluster_time(&self) -> Option<Timestamp> {
        self.snapshot.borrow().as_ref().map(View::time)
    }

    /// Tells dispatch of a commit that this command made (or, for a retried write, found), so that
    /// its write concern is waited for.
    pub fn note_commit(&self, position: OpTime) {
        let newest = self.committed.get().map_or(position, |before| before.max(position));
        self.committed.set(Some(newest));
    }

    /// Whether the command is a retryable write: `txnNumber` without a transaction.
    pub fn is_retryable_write(&self) -> bool {
        self.txn_number.is_some() && !self.in_transaction
    }

    /// The statement to name to storage for a retryable write; `None` for a plain one.
    pub fn statement(&self, stmt_id: i32, result: Option<DocBuf>) -> Option<Statement> {
        match (self.is_retryable_write(), self.lsid, self.txn_number) {
            (true, Some(lsid), Some(txn_number)) => {
                Some(Statement { lsid: lsid.document(), txn_number, stmt_id, result })
            }
            _ => None,
        }
    }

    /// Where the fail point `onPrimaryTransactionalWrite` strikes a statement that must not be reflected.
    ///
    /// Errors: the code that its data name.
    pub fn before_retryable_write(&self) -> Result<()> {
        if !self.node.fail_points.any() || !self.is_retryable_write() {
            return Ok(());
        }
        let code =
            |data: RawDoc<'_>| data.get("failBeforeCommitExceptionCode").and_then(|code| code.as_exact_i64());
        let struck = self.node.fail_points.enter(TRANSACTIONAL_WRITE, |data| code(data).is_some());
        let Some(data) = struck else { return Ok(()) };
        self.close_for(data.as_raw());
        let code = Code(code(data.as_raw()).unwrap_or(1) as i32);
        bail!(code, "Failing write due to failpoint. The write must not be reflected.")
    }

    /// Where it strikes one that is.
    pub fn after_retryable_write(&self) {
        if self.node.fail_points.any() && self.is_retryable_write() {
            let reflected = |data: RawDoc<'_>| data.get("failBeforeCommitExceptionCode").is_none();
            if let Some(data) = self.node.fail_points.enter(TRANSACTIONAL_WRITE, reflected) {
                self.close_for(data.as_raw());
            }
        }
    }

    fn close_for(&self, data: RawDoc<'_>) {
        if data.get("closeConnection").is_none_or(|close| close.truthy()) {
            self.close_after_write.set(true);
        }
    }

    /// What a retryable statement was answered with, if it has been executed before.
    pub fn executed_statement(&self, stmt_id: i32) -> Result<Option<DocBuf>> {
        match (self.is_retryable_write(), self.lsid, self.txn_number) {
            (true, Some(lsid), Some(txn_number)) => {
                let found = self.engine().statement_result(lsid.document().as_raw(), txn_number, stmt_id)?;
                self.node.metrics.txn.retried_statements.add(u64::from(found.is_some()));
                Ok(found)
            }
            _ => Ok(None),
        }
    }

    /// What storage and long loops ask whether to go on: like [`OpContext::check_interrupt`], but
    /// `Copy` and `Sync`: `let stop = op.interrupter(); engine.write(&|| stop.check())`.
    pub fn interrupter(&self) -> Interrupter<'a> {
        Interrupter { node: self.node, stop: self.stop, deadline: self.deadline.get() }
    }

    /// What shows `$$CLUSTER_TIME`; `None` outside a replica set.
    pub fn cluster_clock(&self) -> Option<Arc<dyn ClusterClock>> {
        self.node.replica().map(|replica| replica.clone() as Arc<dyn ClusterClock>)
    }

    /// Memory that lives as long as the operation.
    pub fn arena(&self) -> &Bump {
        &self.arena
    }

    /// The session, if the client named one.
    pub fn lsid(&self) -> Option<LogicalSessionId> {
        self.lsid
    }

    /// `txnNumber`: of a transaction, or of a retryable write if no transaction is open.
    pub fn txn_number(&self) -> Option<i64> {
        self.txn_number
    }

    /// `readConcern` (of the transaction, inside one).
    pub fn read_concern(&self) -> ReadConcern {
        self.read_concern.get()
    }

    /// `writeConcern`, as the client gave it.
    pub fn write_concern(&self) -> Option<WriteConcern<'a>> {
        self.write_concern
    }

    /// `comment`: any value, or missing.
    pub fn comment(&self) -> Value<'a> {
        self.comment
    }

    /// The stable API's parameters.
    pub fn api(&self) -> ApiParams {
        self.api
    }

    /// When the operation began.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Milliseconds since the epoch: `$$NOW`, constant for the operation.
    pub fn now_millis(&self) -> i64 {
        self.node.clock.now_millis()
    }

    /// Figures for the slow log and the profiler.
    pub fn metrics(&self) -> &OpMetrics {
        &self.metrics
    }

    /// When `maxTimeMS` runs out.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline.get()
    }

    /// Time left of `maxTimeMS`; `None` without a limit.
    pub fn time_left(&self) -> Option<Duration> {
        self.deadline.get().map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Shortens the deadline, as an awaitData cursor's `maxTimeMS` does for its own wait.
    pub fn set_deadline(&self, deadline: Option<Instant>) {
        self.deadline.set(deadline);
        self.client.meter.set_deadline(deadline);
    }

    /// `maxTimeMS` as it came; `getMore` alone has to look at it.
    pub fn max_time_ms(&self) -> Option<u64> {
        self.max_time_ms
    }

    /// Marks the reply as one of several: the same request runs again after it. Only for requests
    /// with [`OpContext::exhaust_allowed`].
    pub fn set_exhaust_reply(&self) {
        self.exhaust_reply.set(self.exhaust);
    }

    /// Throws the reply away and runs the same request again after a wait that holds no thread.
    pub fn park(&self, parked: Parked) {
        self.parked.replace(Some(parked));
    }

    /// Keeps the finished reply back for this long, without holding a thread.
    pub fn hold_reply(&self, time: Duration) {
        self.hold_until.set(Some(Instant::now() + time));
    }

    /// Whether the client sent `exhaustAllowed`.
    pub fn exhaust_allowed(&self) -> bool {
        self.exhaust
    }

    /// Stops the operation if somebody killed it, its time is over, or the server is going down.
    /// Loops over documents call it every hundred or so; it costs two atomic reads and a clock.
    ///
    /// Errors: `Interrupted`, `MaxTimeMSExpired`, `InterruptedAtShutdown`.
    pub fn check_interrupt(&self) -> Result<()> {
        self.interrupter().check()
    }

    /// Runs something that may wait or take long, without holding up other connections of the
    /// same thread.
    pub fn blocking<T>(&self, work: impl FnOnce() -> T) -> T {
        if self.may_block { work() } else { tokio::task::block_in_place(work) }
    }
}

/// What loops do between two checks, in the meter's units: a hundred documents or so.
const WORK_BETWEEN_CHECKS: u32 = 256;

/// Whether an operation must stop; see [`OpContext::interrupter`].
#[derive(Clone, Copy)]
pub struct Interrupter<'a> {
    node: &'a Node,
    stop: &'a Stop,
    deadline: Option<Instant>,
}

impl<'a> Interrupter<'a> {
    /// For code that keeps its own handles on the node and the client.
    pub fn new(node: &'a Node, stop: &'a Stop, deadline: Option<Instant>) -> Self {
        Interrupter { node, stop, deadline }
    }

    /// Errors: `Interrupted`, `InterruptedDueToReplStateChange`, `InterruptedAtShutdown`, `MaxTimeMSExpired`.
    pub fn check(&self) -> Result<()> {
        // Who asks here and nowhere else is told as well when it is time to leave the reactor.
        sheaf_meter::tick(WORK_BETWEEN_CHECKS)?;
        self.stop.check()?;
        if self.node.is_shutting_down() {
            bail!(Code::INTERRUPTED_AT_SHUTDOWN, "interrupted at shutdown");
        }
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            bail!(Code::MAX_TIME_MS_EXPIRED, "operation exceeded time limit");
        }
        Ok(())
    }
}
