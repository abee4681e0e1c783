//! One request being run: what every role knows of it.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bumpalo::Bump;
use sheaf_auth::UserName;
use sheaf_bson::{DocBuf, DocWriter, RawDoc, Value};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_wire::{Flags, Sequence};

use crate::access::{FIRST_USER, Rights};
use crate::args::{Args, Fields};
use crate::client::{Client, Stop};
use crate::command::{Access, Description};
use crate::concern::{ReadConcern, WriteConcern};
use crate::cursors::CursorInfo;
use crate::dispatch::Entries;
use crate::front::Front;
use crate::generic::GenericArgs;
use crate::message::{Message, Place};
use crate::reply::Reply;
use crate::role::{Found, Role};
use crate::sampling::Sample;
use crate::session::{LogicalSessionId, TxnPart};

/// One request being run: its command, the arguments that every command shares, its limits, and its results besides the
/// reply.
///
/// A request lives on the stack of the connection's task while the command runs (synchronously); it is not `Sync`. `'a` is the
/// life of the message's bytes.
pub struct Request<'a> {
    /// The server.
    pub front: &'a Arc<Front>,
    /// What the server is.
    pub role: &'a dyn Role,
    /// The connection.
    pub client: &'a Arc<Client>,
    /// The command.
    pub command: &'static Description,
    /// The command's place in the role's table.
    pub at: usize,
    /// The name that the client used, which may be an alias.
    pub called: &'a str,
    /// The database that the command runs against.
    pub db: &'a str,
    /// The command as it came (without kind-1 sequences), generic arguments included.
    pub body: RawDoc<'a>,
    /// The same as its client has sent it, which may name a collection by its UUID: no error names it to who may not know.
    pub sent: RawDoc<'a>,
    /// The message's kind-1 sequences.
    pub sequences: &'a [Sequence<'a>],
    /// The arguments that every command shares.
    pub generic: GenericArgs<'a>,
    /// The stable API's parameters.
    pub api: ApiParams,
    /// What it is to its session's transaction.
    pub part: TxnPart,
    /// Whether a command that otherwise reads writes this time.
    pub writes_after_all: bool,
    /// `readConcern`, with what the role fills in.
    pub read_concern: Cell<ReadConcern>,
    /// Memory that lives as long as the request.
    pub arena: Bump,
    /// When it began.
    pub started: Instant,
    /// When `maxTimeMS` runs out.
    pub deadline: Cell<Option<Instant>>,
    /// Whether it runs where it may block the thread.
    pub may_block: bool,
    /// Whether the client sent `exhaustAllowed`.
    pub exhaust: bool,
    /// The reply is one of several to an exhaust request.
    pub exhaust_reply: Cell<bool>,
    /// Whether a fail point lets it run and adds to its answer.
    pub struck: Cell<bool>,
    /// Whether the connection is to be closed for what the command has done: a fail point.
    pub close_after: Cell<bool>,
    /// Those of its updates that were sampled.
    pub sampled: RefCell<Vec<Sample>>,
    /// Events for the audit log that the command has noted so far.
    pub audited: RefCell<Vec<(&'static str, DocBuf, Code)>>,
    /// Bytes of the audit log's room that are promised to them.
    pub audit_room: Cell<u64>,
    /// Figures for the slow log and the profiler.
    pub metrics: OpMetrics,
    /// What its client may do.
    pub rights: Rights,
}

/// What a client asks for, as its command's first fields say.
pub(crate) struct AskedFor<'a> {
    /// The command.
    pub found: Found,
    /// The name that the client used.
    pub called: &'a str,
    /// The database.
    pub db: &'a str,
    /// The stable API's parameters.
    pub api: ApiParams,
    /// What it is to its session's transaction.
    pub part: TxnPart,
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
    /// How often an in-memory sort was needed: once, or in so many of its statements.
    pub sorts: Cell<u64>,
    /// Write conflicts met and retried.
    pub write_conflicts: Cell<u64>,
    /// Index keys that came and went.
    pub keys_inserted: Cell<u64>,
    /// See [`OpMetrics::keys_inserted`].
    pub keys_deleted: Cell<u64>,
    /// `planSummary`, such as `IXSCAN { a: 1 }`.
    pub plan_summary: RefCell<Option<Cow<'static, str>>>,
    /// How its plan was found.
    pub plan_source: Cell<PlanSource>,
    /// Whether its client wants to have the figures in the reply (`includeQueryStatsMetrics`).
    pub tells: Cell<bool>,
    /// Whether something was put on disk for want of memory; known only where it is told.
    pub used_disk: Cell<bool>,
    /// What else is known of its plan.
    pub planned: RefCell<Option<Box<Planned>>>,
    /// The full namespace, if the command works on a collection.
    pub namespace: RefCell<Option<String>>,
    /// What a statement failed with; of several, the last.
    pub failed: RefCell<Option<Error>>,
    /// Whether its statements are told of one by one, and what is shown here are sums.
    pub by_statement: Cell<bool>,
    /// The profiler's entries of its statements.
    pub entries: RefCell<Entries>,
}

/// How a plan was found.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum PlanSource {
    /// There was no other, or there is none.
    #[default]
    Only,
    /// It was remembered.
    Cache,
    /// Several were tried.
    Trial,
}

/// What is known of a plan where somebody has asked for it: where an operation is profiled, and as far as it was found out anyway.
#[derive(Default, Debug)]
pub struct Planned {
    /// How long the operation had gone on when it had its plan, in microseconds.
    pub micros: Option<u64>,
    /// `execStats`: the plan's stages with their figures.
    pub stages: Option<DocBuf>,
    /// The names of its shape.
    pub names: Option<PlanNames>,
}

/// By what names the plan cache knows a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanNames {
    /// `planCacheShapeHash`, which has been `queryHash` before.
    pub shape: String,
    /// `planCacheKey`: the shape with the indexes that there are.
    pub key: String,
}

impl OpMetrics {
    /// Notes something of the plan.
    pub fn plan(&self, note: impl FnOnce(&mut Planned)) {
        note(self.planned.borrow_mut().get_or_insert_default());
    }

    /// Adds the keys and documents that a run has looked at, by what it said before a batch and after it.
    pub fn examined(&self, before: (u64, u64), after: (u64, u64)) {
        // A stage that opens its input anew forgets what the old one has read.
        self.keys_examined.set(self.keys_examined.get() + after.0.saturating_sub(before.0));
        self.docs_examined.set(self.docs_examined.get() + after.1.saturating_sub(before.1));
    }
}

impl<'a> Request<'a> {
    /// The command's own arguments.
    ///
    /// Errors: those of document sequences that don't fit; those of [`Request::check_interrupt`].
    pub fn args(&self, fields: Fields<'a>) -> Result<Args<'a>> {
        if self.front.fail_points.any() || self.struck.get() {
            // `maxTimeAlwaysTimeOut` strikes commands that are too short to look at the clock, too, and what a fail
            // point held back until its time was over must not take effect any more.
            self.check_interrupt()?;
        }
        Args::new(self.command.name, self.body, fields, self.sequences)
    }

    /// A command that came from a client, before anything is known of the client. Every field is set here, in place: a request is large.
    #[inline(always)]
    pub(crate) fn new(
        role: &'a dyn Role,
        client: &'a Arc<Client>,
        asked: AskedFor<'a>,
        (message, sent): (&Message<'a>, RawDoc<'a>),
        generic: GenericArgs<'a>,
        started: Instant,
    ) -> Request<'a> {
        let AskedFor { found, called, db, api, part } = asked;
        Request {
            front: role.front(),
            role,
            client,
            command: found.command,
            at: found.at,
            called,
            db,
            body: message.body,
            sent,
            sequences: message.sequences,
            read_concern: Cell::new(generic.read_concern.unwrap_or_default()),
            generic,
            api,
            part,
            writes_after_all: found.command.spec.access.writes_after_all(message.body),
            arena: Bump::new(),
            started,
            deadline: Cell::new(None),
            may_block: found.command.spec.threads.may_block() || message.place != Place::Reactor,
            exhaust: message.flags.exhaust_allowed(),
            exhaust_reply: Cell::new(false),
            struck: Cell::new(false),
            close_after: Cell::new(false),
            sampled: RefCell::default(),
            audited: RefCell::default(),
            audit_room: Cell::default(),
            metrics: OpMetrics::default(),
            rights: Rights::everything(),
        }
    }

    /// A command that this one runs as a part of itself, for the same client and in the same time. Concerns, session and transaction are
    /// those of the whole.
    pub fn inner<'b>(&'b self, found: Found, called: &'b str, db: &'b str, body: RawDoc<'b>) -> Request<'b> {
        let asked = AskedFor { found, called, db, api: ApiParams::default(), part: TxnPart::Plain };
        let message =
            Message { body, sequences: &[], flags: Flags::default(), query_db: None, place: Place::Thread };
        let generic = GenericArgs { db: Some(db), ..GenericArgs::default() };
        Request {
            writes_after_all: false,
            deadline: Cell::new(self.deadline.get()),
            may_block: self.may_block,
            rights: self.rights.clone(),
            ..Request::new(self.role, self.client, asked, (&message, body), generic, self.started)
        }
    }

    /// `db.collection`.
    pub fn namespace(&self, collection: &str) -> String {
        let mut namespace = String::with_capacity(self.db.len() + 1 + collection.len());
        namespace.push_str(self.db);
        namespace.push('.');
        namespace.push_str(collection);
        namespace
    }

    /// Whether it belongs to a multi-document transaction.
    pub fn in_transaction(&self) -> bool {
        self.part.in_transaction()
    }

    /// Whether it is a retryable write: `txnNumber` without a transaction.
    pub fn is_retryable_write(&self) -> bool {
        self.generic.txn_number.is_some() && !self.in_transaction()
    }

    /// Whether it only reads. Then it ends when its client has gone, as in MongoDB, and takes turns with others. What an
    /// aggregation writes is written to the end.
    pub fn only_reads(&self) -> bool {
        self.command.spec.ends_with_client && !self.writes_after_all
    }

    /// Whether it ends when its client has gone. What a router asks for does so too where it writes documents: the router ends its connection
    /// when its own operation is killed or out of time, and tells whoever waits for it; what is left undone is its client's to repeat.
    pub fn ends_with_client(&self) -> bool {
        let writes =
            matches!(self.command.name, "insert" | "update" | "delete" | "findAndModify" | "bulkWrite");
        self.only_reads() || (writes && self.generic.shard_version.is_some())
    }

    /// Writes the figures into the cursor of a reply, where its client wants them. What nobody measures is not among them.
    pub fn write_metrics(&self, out: &mut DocWriter<'_, Vec<u8>>) {
        let metrics = &self.metrics;
        if !metrics.tells.get() {
            return;
        }
        let working = self.started.elapsed().saturating_sub(sheaf_meter::waited());
        out.document("metrics")
            .append("keysExamined", metrics.keys_examined.get() as i64)
            .append("docsExamined", metrics.docs_examined.get() as i64)
            .append("workingTimeMillis", working.as_millis() as i64)
            .append("hasSortStage", metrics.sorts.get() > 0)
            .append("usedDisk", metrics.used_disk.get())
            .append("fromMultiPlanner", metrics.plan_source.get() == PlanSource::Trial)
            .append("fromPlanCache", metrics.plan_source.get() == PlanSource::Cache);
    }

    /// Whether the profiler may keep an entry of an operation on this database: then more is measured.
    pub fn is_profiled_in(&self, db: &str) -> bool {
        self.front
            .profiling
            .active(db)
            .is_some_and(|settings| settings.level > 0 || settings.filter.is_some())
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

    /// Memory that lives as long as the operation.
    pub fn arena(&self) -> &Bump {
        &self.arena
    }

    /// The session that a client names so: its own, if it does not say whose. Servers say whose; nobody does where nobody is asked.
    pub fn session(&self, id: LogicalSessionId) -> LogicalSessionId {
        match self.rights.account() {
            Some(account) => id.or_of(account.digest()),
            None if self.front.access.enabled && self.rights.are_everything() => id,
            None => LogicalSessionId::new(id.id),
        }
    }

    /// Those of these sessions that are not another user's, of which nothing is told.
    pub fn own_sessions(&self, ids: Vec<LogicalSessionId>) -> impl Iterator<Item = LogicalSessionId> {
        let own = self.rights.account().map(|account| account.digest());
        ids.into_iter().map(|id| self.session(id)).filter(move |id| own.is_none() || id.uid == own)
    }

    /// The session, if the client named one.
    pub fn lsid(&self) -> Option<LogicalSessionId> {
        self.generic.lsid
    }

    /// `txnNumber`: of a transaction, or of a retryable write if no transaction is open.
    pub fn txn_number(&self) -> Option<i64> {
        self.generic.txn_number
    }

    /// `readConcern` (of the transaction, inside one).
    pub fn read_concern(&self) -> ReadConcern {
        self.read_concern.get()
    }

    /// `writeConcern`, as the client gave it.
    pub fn write_concern(&self) -> Option<WriteConcern<'a>> {
        self.generic.write_concern
    }

    /// For whom a member asks, if it is a router that has said so.
    fn asked_for(&self) -> Option<RawDoc<'a>> {
        self.generic.asked_for.filter(|_| self.rights.are_members())
    }

    /// Whether it may be done only as long as there is no user: here or through a router somebody has come who makes the first one.
    pub fn is_of_the_first_user(&self) -> bool {
        let says = |asked_for: RawDoc<'_>| asked_for.get(FIRST_USER).is_some_and(|says| says.truthy());
        self.rights.are_of_the_first_user() || self.asked_for().is_some_and(says)
    }

    /// Whose doing it is, where a router asks for its client.
    pub fn user_asked_for(&self) -> Option<UserName> {
        UserName::read(self.asked_for()?.get("$impersonatedUser")?.as_doc()?)
    }

    /// A number for whose doing it is, where each has a share of something; 0 where nobody is asked who he is.
    pub fn owner(&self) -> u64 {
        if let Some(asked_for) = self.asked_for() {
            let user = asked_for.get("$impersonatedUser").and_then(|user| user.as_doc());
            return user
                .map_or(0, |user| ahash::RandomState::with_seeds(1, 2, 3, 4).hash_one(user.as_bytes()));
        }
        let digest = self.rights.account().map(|account| account.digest());
        digest.and_then(|digest| digest.first_chunk().copied()).map_or(0, u64::from_le_bytes)
    }

    /// The roles of whose doing it is, as `$$USER_ROLES` shows them.
    pub fn user_roles(&self) -> Option<Arc<DocBuf>> {
        match self.asked_for() {
            Some(asked_for) => {
                let roles = asked_for.get("$impersonatedRoles").and_then(|roles| roles.as_array())?;
                Some(Arc::new(DocBuf::from(roles)))
            }
            None => self.rights.user_roles(),
        }
    }

    /// `comment`: any value, or missing.
    pub fn comment(&self) -> Value<'a> {
        self.generic.comment.unwrap_or(Value::Missing)
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
        self.front.clock.now_millis()
    }

    /// The number of the sample that the update at this place is, if it was sampled.
    pub fn sample_at(&self, at: usize) -> Option<[u8; 16]> {
        self.sampled.borrow().iter().find(|sample| sample.at == at).map(|sample| sample.id)
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
        self.generic.max_time_ms
    }

    /// Marks the reply as one of several: the same request runs again after it. Only for requests
    /// with [`Request::exhaust_allowed`].
    pub fn set_exhaust_reply(&self) {
        self.exhaust_reply.set(self.exhaust);
    }

    /// Whether the client sent `exhaustAllowed`.
    pub fn exhaust_allowed(&self) -> bool {
        self.exhaust
    }

    /// What storage and long loops ask whether to go on: like [`Request::check_interrupt`], but
    /// `Copy` and `Sync`: `let stop = op.interrupter(); engine.write(&|| stop.check())`.
    pub fn interrupter(&self) -> Interrupter<'a> {
        Interrupter { front: self.front, stop: &self.client.stop, deadline: self.deadline.get() }
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

    /// Runs the command's handler: it is counted among those that are active, and a panic in it becomes an error of this
    /// one command.
    pub fn handle(&self, handler: impl FnOnce() -> Result<Reply>) -> Result<Reply> {
        let _active = Active::begin(self.front, self.command.spec.access);
        crate::log::set_connection(self.client.id);
        let panic = match catch_unwind(AssertUnwindSafe(handler)) {
            Ok(result) => return result,
            Err(panic) => panic,
        };
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("unknown panic");
        self.front.metrics.asserts_regular.add(1);
        let attributes = sheaf_bson::doc! { "command": self.command.name, "error": text };
        let (context, id) = (self.client.context(), crate::log::ids::COMMAND_PANICKED);
        crate::log::error("COMMAND", id, &context, "Command panicked", Some(attributes));
        bail!(Code::INTERNAL_ERROR, "internal error in command {}: {text}", self.command.name)
    }
}

/// Counts running reads and writes for `globalLock.activeClients`.
struct Active<'n>(Option<&'n AtomicU64>);

impl<'n> Active<'n> {
    fn begin(front: &'n Front, access: Access) -> Self {
        let gauge = match access {
            Access::None => None,
            Access::Read | Access::ReadOrWrite(_) => Some(&front.metrics.active_reads),
            Access::Write => Some(&front.metrics.active_writes),
        };
        if let Some(gauge) = gauge {
            gauge.fetch_add(1, Ordering::Relaxed);
        }
        Active(gauge)
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        if let Some(gauge) = self.0 {
            gauge.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// What loops do between two checks, in the meter's units: a hundred documents or so.
const WORK_BETWEEN_CHECKS: u32 = 256;

/// Whether an operation must stop; see [`Request::interrupter`].
#[derive(Clone, Copy)]
pub struct Interrupter<'a> {
    front: &'a Front,
    stop: &'a Stop,
    deadline: Option<Instant>,
}

impl<'a> Interrupter<'a> {
    /// For code that keeps its own handles on the server and the client.
    pub fn new(front: &'a Front, stop: &'a Stop, deadline: Option<Instant>) -> Self {
        Interrupter { front, stop, deadline }
    }

    /// Errors: `Interrupted`, `InterruptedDueToReplStateChange`, `InterruptedAtShutdown`, `MaxTimeMSExpired`.
    pub fn check(&self) -> Result<()> {
        // Who asks here and nowhere else is told as well when it is time to leave the reactor.
        sheaf_meter::tick(WORK_BETWEEN_CHECKS)?;
        self.stop.check()?;
        if self.front.is_shutting_down() {
            bail!(Code::INTERRUPTED_AT_SHUTDOWN, "interrupted at shutdown");
        }
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            bail!(Code::MAX_TIME_MS_EXPIRED, "operation exceeded time limit");
        }
        Ok(())
    }
}
