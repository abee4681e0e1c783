//! One operation under way: what handlers may ask for.

use std::cell::{Cell, RefCell, RefMut};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use sheaf_bson::{DocBuf, RawDoc, Timestamp};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::plan::settings::Settings;
use sheaf_exec::run::Chosen;
use sheaf_expr::{ClusterClock, SystemVariables};
use sheaf_front::generic::ShardVersion;
pub use sheaf_front::request::{ApiParams, Interrupter};
use sheaf_front::request::{PlanSource, Request};
use sheaf_front::role::Wait;
use sheaf_rows::Sorted;
use sheaf_shard::Executed;
use sheaf_storage::{Catalog, Engine, OpTime, Statement, Transaction, View, Write};

use crate::concern::ReadLevel;
use crate::cursors::{Open, ServerCursor};
use crate::node::Node;
use crate::parked::{Parked, Waits, parked};
use crate::session::LogicalSessionId;
use crate::sharding::{HomeAsked, Writing};
use crate::stored_functions;

/// One command being run: its environment, limits and results besides the reply.
///
/// An operation lives on the stack of the connection's task while the command runs (synchronously); it is
/// not `Sync`. `'a` is the life of the request's bytes.
pub struct Operation<'a> {
    /// What every role knows of it.
    pub(crate) request: &'a Request<'a>,
    pub(crate) node: &'a Arc<Node>,
    /// The state of one moment that is read, for `snapshot` outside a transaction.
    pub(crate) snapshot: RefCell<Option<View>>,
    /// The open transaction that this operation belongs to; back in its session afterwards.
    pub(crate) transaction: RefCell<Option<Transaction>>,
    /// What was executed of the transaction on this shard, this statement too.
    pub(crate) executed: Cell<Executed>,
    /// How this operation ended its transaction.
    pub(crate) txn_ended: Cell<Option<TxnEnd>>,
    /// Where the transaction had been committed already, for a repeated `commitTransaction`.
    pub(crate) txn_found: Cell<Option<OpTime>>,
    /// The request runs again when this is over; its answer is not sent.
    pub(crate) parked: RefCell<Option<Parked>>,
    /// What the command itself has the reply wait for.
    pub(crate) later: RefCell<Option<Box<dyn Wait>>>,
    /// The newest commit that this operation made or found; what its write concern waits for.
    pub(crate) committed: Cell<Option<OpTime>>,
    /// Versions of several namespaces, of a command that names them in a list.
    pub(crate) shard_versions: RefCell<Vec<(String, ShardVersion)>>,
    /// Where the directory has databases, asked before anything was written.
    pub(crate) homes: RefCell<Vec<HomeAsked>>,
    /// What was set for queries of the command's shape.
    pub(crate) settings: RefCell<Option<Arc<Settings>>>,
    /// Whether an error that the answer lists ends the transaction, as one of the command's own would.
    pub(crate) has_failed: Cell<bool>,
    /// What the statement under way does.
    pub(crate) writing: Cell<Writing>,
}

impl<'a> Deref for Operation<'a> {
    type Target = Request<'a>;

    fn deref(&self) -> &Request<'a> {
        self.request
    }
}

/// How a plan was found, in the words of the front.
pub fn source(chosen: Chosen) -> PlanSource {
    match chosen {
        Chosen::Only => PlanSource::Only,
        Chosen::Remembered => PlanSource::Cache,
        Chosen::Tried => PlanSource::Trial,
    }
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

impl<'a> Operation<'a> {
    /// The operation of a request.
    pub(crate) fn new(request: &'a Request<'a>, node: &'a Arc<Node>) -> Self {
        Operation {
            request,
            node,
            snapshot: RefCell::new(None),
            transaction: RefCell::new(None),
            executed: Cell::default(),
            txn_ended: Cell::new(None),
            txn_found: Cell::new(None),
            parked: RefCell::new(None),
            later: RefCell::new(None),
            committed: Cell::new(None),
            shard_versions: RefCell::default(),
            homes: RefCell::default(),
            settings: RefCell::default(),
            has_failed: Cell::default(),
            writing: Cell::default(),
        }
    }

    /// The server.
    pub fn node(&self) -> &'a Arc<Node> {
        self.node
    }

    /// The storage engine.
    pub fn engine(&self) -> &'a Engine {
        self.node.engine()
    }

    /// The collections as they are now.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.node.catalog()
    }

    /// The newest entry that readers see.
    pub fn last_applied(&self) -> OpTime {
        self.node.last_applied()
    }

    /// The open transaction, to read and write in; `None` outside of one.
    pub fn transaction(&self) -> Option<RefMut<'_, Transaction>> {
        RefMut::filter_map(self.transaction.borrow_mut(), Option::as_mut).ok()
    }

    /// The state to read: the transaction's own, the one that a majority has, or the newest, as the read concern says.
    ///
    /// Errors: `StaleConfig`, if this shard owns something else in it than the router of the request knows.
    pub fn view(&self) -> Result<View> {
        let view = self.state_to_read()?;
        self.check_version_of(&view)?;
        Ok(view)
    }

    fn state_to_read(&self) -> Result<View> {
        if let Some(mut transaction) = self.transaction() {
            return transaction.view();
        }
        if let Some(snapshot) = &*self.snapshot.borrow() {
            return Ok(snapshot.clone());
        }
        if !self.reads_majority() {
            return if self.awaits_decisions() { self.engine().decided_view() } else { self.engine().view() };
        }
        match self.engine().majority_view() {
            Some(view) => Ok(view),
            None => bail!(
                Code::READ_CONCERN_MAJORITY_NOT_AVAILABLE_YET,
                "Read concern majority reads are currently not possible."
            ),
        }
    }

    /// Whether who meets what is prepared over several shards waits for the decision. On a secondary that may take long, so only those
    /// wait there who have seen a time.
    pub fn awaits_decisions(&self) -> bool {
        let concern = self.read_concern.get();
        concern.level != Some(ReadLevel::Available)
            && (concern.after_cluster_time.is_some()
                || self.node.replica().is_some_and(|replica| replica.is_writable()))
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

    /// Counts what was sorted.
    pub fn count_sorted(&self, sorted: Sorted) {
        let counts = &self.front.metrics.sorted;
        counts.bytes.add(sorted.bytes);
        counts.rows.add(sorted.rows);
        counts.spills.add(sorted.spills);
    }

    /// Whether what it does is to be told at length.
    pub fn is_profiled(&self) -> bool {
        self.is_profiled_in(self.db())
    }

    /// Notes the plan that it has found. How long that took is measured where somebody wants to know it, and where plans had to be tried.
    pub fn note_plan(&self, summary: String, chosen: Chosen) {
        let metrics = self.metrics();
        metrics.plan_summary.replace(Some(summary.into()));
        metrics.plan_source.set(source(chosen));
        if chosen == Chosen::Tried || self.is_profiled() {
            let micros = self.started.elapsed().as_micros() as u64;
            metrics.plan(|planned| planned.micros = Some(micros));
        }
    }

    /// Keeps a cursor for later `getMore`s and gives its id.
    pub fn keep(&self, namespace: &str, no_timeout: bool, cursor: Box<dyn ServerCursor>) -> i64 {
        let open = Open { cursor, snapshot: self.snapshot.borrow().clone() };
        self.node.cursors.register(self, namespace, no_timeout, open)
    }

    /// Tells dispatch of a commit that this command made (or, for a retried write, found), so that
    /// its write concern is waited for.
    pub fn note_commit(&self, position: OpTime) {
        let newest = self.committed.get().map_or(position, |before| before.max(position));
        self.committed.set(Some(newest));
    }

    /// Notes the newest commit: the command has found what it wanted done already, by whomever.
    pub fn note_newest_commit(&self) {
        self.note_commit(self.last_applied());
    }

    /// The retryable write whose statements these are: the operation itself, or the one that its transaction, a router's own, stands
    /// for.
    fn retryable(&self) -> Option<(LogicalSessionId, i64)> {
        if self.in_transaction() {
            return self.generic.retry_of.map(|of| (of.lsid, of.txn_number));
        }
        self.lsid().zip(self.txn_number())
    }

    /// Whether statements are recorded, so that each happens once.
    pub fn records_statements(&self) -> bool {
        self.retryable().is_some()
    }

    /// The statement to name to storage for a retryable write; `None` for a plain one.
    pub fn statement(&self, stmt_id: i32, result: Option<DocBuf>) -> Option<Statement> {
        let (lsid, txn_number) = self.retryable()?;
        let given = self.generic.retry_of.and_then(|of| of.result).map(DocBuf::from);
        Some(Statement { lsid: lsid.document(), txn_number, stmt_id, result: given.or(result) })
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
            self.close_after.set(true);
        }
    }

    /// What a retryable statement was answered with, if it has been executed before.
    pub fn executed_statement(&self, stmt_id: i32) -> Result<Option<DocBuf>> {
        match self.retryable() {
            Some((lsid, txn_number)) => {
                let found = self.engine().statement_result(lsid.document().as_raw(), txn_number, stmt_id)?;
                self.node.metrics.txn.retried_statements.add(u64::from(found.is_some()));
                Ok(found)
            }
            _ => Ok(None),
        }
    }

    /// The server's own variables: `$$CLUSTER_TIME` in a replica set, `$$USER_ROLES`.
    pub fn system_variables(&self) -> SystemVariables {
        let cluster_clock = self.node.replica().map(|replica| replica.clone() as Arc<dyn ClusterClock>);
        SystemVariables {
            cluster_clock,
            user_roles: self.request.user_roles(),
            stored: Some(stored_functions::of(self.engine().clone(), self.db())),
        }
    }

    /// Has the reply wait for this, besides nothing else.
    pub fn answer_later(&self, wait: Box<dyn Wait>) {
        self.later.replace(Some(wait));
    }

    /// Somebody waits for what is applied here to be on a majority. Decisions on transactions over shards ask for no sync of their own.
    pub fn want_majority(&self) {
        let replica =
            self.node.replica().filter(|replica| self.node.is_in_cluster() && replica.is_writable());
        let last = self.engine().last_applied();
        if let Some(replica) = replica.filter(|replica| replica.commit_point().index < last.index) {
            replica.hurry(last);
        }
    }

    /// Throws the reply away and runs the same request again after a wait that holds no thread.
    pub fn park(&self, until: Instant, waits: Waits) {
        self.parked.replace(Some(parked(self.node, Some(until), waits)));
    }
}
