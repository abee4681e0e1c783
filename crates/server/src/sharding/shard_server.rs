//! The machine of this member, and how it is told what happens.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sheaf_bson::{RawDoc, Timestamp};
use sheaf_cluster::Directory;
use sheaf_errors::{Code, Error, Result};
use sheaf_front::front::Front;
use sheaf_replica::{Replica, spawn};
use sheaf_shard::{
    Answer, ClusterTime, Executed, LogRecord, ReaderId, Record, ReplyId, Row, Rows, Shard, ShardEffect,
    TransactionId,
};
use sheaf_storage::{Engine, Interrupt, OpTime, Transaction, TransactionRecord};

use super::dropped::Dropped;
use super::identity::Identity;
use super::names::{id_of, record_of, row_of, time_of};
use super::placements::Placements;
use super::slot::Slot;
use super::statistics::Statistics;
use crate::options::ClusterRole;

/// How often the machine is told the time.
const TICK: Duration = Duration::from_millis(100);

/// What the sessions of this server do at the machine's wish.
pub trait OpenTransactions: Send + Sync {
    /// This open transaction is over: what it has done is thrown away, unless it was opened anew since.
    fn discard(&self, id: &TransactionId, opening: u64);

    /// Does something while nothing of a session is executed; not where the session has gone past this number. False, and it is not done:
    /// the session is not in use here.
    ///
    /// Errors: `LockTimeout`, if it does not come to rest; those of `work`.
    fn at_rest(&self, lsid: RawDoc<'_>, number: i64, work: &mut dyn FnMut() -> Result<()>) -> Result<bool>;

    /// The log has the end of a transaction, which may be anybody's. The pipeline is held.
    fn ended(&self, id: &TransactionId, committed: bool);
}

/// What is done when the machine is not locked any more.
pub(super) type Deferred = Vec<ShardEffect>;

/// Where an answer of the machine goes.
pub(super) enum Route {
    /// To a request that waits for it.
    Waiting(Arc<Slot<Answer>>, TransactionId),
    /// To the settler of this very member, which asks about this transaction.
    Own(TransactionId),
}

/// What is under the lock. Nothing else is locked, and nothing is waited for, under it.
#[derive(Default)]
pub(super) struct State {
    /// `None` before this set was told which shard it is.
    pub(super) machine: Option<Shard>,
    /// The term in which the machine thinks that it leads.
    leading: Option<u64>,
    next: u64,
    pub(super) replies: HashMap<ReplyId, Route>,
    /// Who waits until the past at a time is final.
    pub(super) readers: HashMap<ReaderId, Arc<Slot<()>>>,
    /// Transactions that their sessions have handed over, until their entry is applied or refused; without their operations as soon as
    /// somebody is about to append it.
    pub(super) held: HashMap<TransactionId, Option<Box<Transaction>>>,
    figures: Figures,
}

/// What has become of a transaction, as this member's log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is prepared, or about to be.
    InDoubt,
    /// It has committed.
    Committed,
    /// Nothing of it has happened.
    Aborted,
}

/// Prepared transactions, for `serverStatus`: those of now, and those that this process has seen in its log.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// In doubt now.
    pub current: u64,
    /// Prepared.
    pub total: u64,
    /// Of these, committed.
    pub committed: u64,
    /// Of these, aborted.
    pub aborted: u64,
}

/// A member of a shard.
pub struct ShardServer {
    pub(super) front: Arc<Front>,
    pub(super) engine: Engine,
    pub(super) replica: Arc<Replica>,
    pub(super) sessions: Weak<dyn OpenTransactions>,
    role: ClusterRole,
    pub(super) identity: OnceLock<Identity>,
    /// What is counted of moves and stale requests.
    pub statistics: Statistics,
    placements: Arc<Placements>,
    /// How often a database was dropped here.
    drops: AtomicU64,
    /// Databases that were dropped here.
    pub(super) dropped: Dropped,
    pub(super) directory: OnceLock<Arc<Directory>>,
    pub(super) clock: Arc<sheaf_cluster::Clock>,
    /// Messages to other shards that are under way.
    pub(super) sending: AtomicUsize,
    /// The newest ceiling of this member's own, and the term in which it has written that.
    pub(super) own_ceiling: Mutex<Option<(u64, Timestamp)>>,
    pub(super) state: Mutex<State>,
    known: AtomicBool,
    work: mpsc::Sender<Deferred>,
    started: Instant,
}

impl ShardServer {
    /// The machine's driver on a member of a set that was started as a shard's, which begins when the set is told which shard it is; or of
    /// the config servers, where it begins when the set is initiated.
    ///
    /// Errors: a thread cannot be started.
    pub fn start(
        front: &Arc<Front>,
        engine: &Engine,
        replica: &Arc<Replica>,
        sessions: Weak<dyn OpenTransactions>,
        role: ClusterRole,
    ) -> Result<Arc<ShardServer>> {
        #[expect(clippy::disallowed_methods, reason = "as much as transactions are under way")]
        let (sender, work) = mpsc::channel();
        let server = Arc::new(ShardServer {
            front: front.clone(),
            engine: engine.clone(),
            replica: replica.clone(),
            sessions,
            role,
            identity: OnceLock::new(),
            statistics: Statistics::default(),
            placements: Arc::default(),
            drops: AtomicU64::new(0),
            dropped: Dropped::default(),
            directory: OnceLock::new(),
            clock: Arc::default(),
            sending: AtomicUsize::new(0),
            own_ceiling: Mutex::default(),
            state: Mutex::default(),
            known: AtomicBool::new(false),
            work: sender,
            started: Instant::now(),
        });
        // Nothing that this member stamps is below a time that its predecessors may have shown.
        replica.observe_ceiling(engine.ceiling());
        let told = Arc::downgrade(&server);
        engine.on_transaction_record(Arc::new(move |at, record| {
            if let Some(server) = told.upgrade() {
                server.applied(at, record);
            }
        }));
        let told = Arc::downgrade(&server);
        replica.on_commit_point(Box::new(move |at| {
            if let Some(server) = told.upgrade() {
                server.committed(at);
            }
        }));
        let of = Arc::downgrade(&server);
        spawn("sheaf-shard", move || run(&of, &work))?;
        Ok(server)
    }

    /// Whether this member knows which shard it is; looks for it if not.
    pub(super) fn is_known(&self) -> Result<bool> {
        if self.known.load(Ordering::Acquire) {
            return Ok(true);
        }
        let identity = match self.role {
            ClusterRole::Shard => Identity::read(&self.engine)?,
            ClusterRole::Config => Identity::of_config_servers(&self.replica),
        };
        let Some(identity) = identity else { return Ok(false) };
        // Records that are applied meanwhile wait for the lock, and are told again: that changes nothing.
        let mut state = self.state.lock();
        if state.machine.is_none() {
            let lone = self.engine.lone_commits()?;
            let OpTime { index: last, time, .. } = self.engine.last_applied();
            // When these have committed is not on record: not later than now.
            let committed = || Row::Committed {
                at: time_of(Timestamp(time)),
                participants: [identity.shard.clone()].into(),
                settled: true,
            };
            let lone = lone.iter().map(|key| (id_of(key), committed()));
            let rows = self.engine.transaction_rows();
            let rows = rows.iter().map(|(key, row)| (id_of(key), row_of(row)));
            let rows = Rows::new(lone.chain(rows), last);
            let ceiling = time_of(self.engine.ceiling());
            state.machine = Some(Shard::new(identity.shard.clone(), rows, ceiling, last));
            self.identity.get_or_init(|| identity);
            self.known.store(true, Ordering::Release);
        }
        Ok(true)
    }

    /// Tells the machine something. What it wants done besides answers is given back; nothing, as long as there is no machine.
    pub(super) fn tell<T>(
        &self,
        work: impl FnOnce(&mut Shard, &mut Entrance<'_>) -> T,
    ) -> Option<(T, Deferred)> {
        let State { machine, leading, next, replies, readers, held, .. } = &mut *self.state.lock();
        let machine = machine.as_mut()?;
        let mut entrance = Entrance { leading, next, replies, readers, held };
        if entrance.leading.is_some() && *entrance.leading != self.term() {
            *entrance.leading = None;
            machine.lost_primary();
            entrance.replies.drain().for_each(|(_, route)| route.refuse(not_primary()));
            entrance.readers.drain().for_each(|(_, slot)| slot.give(Err(not_primary())));
        }
        let value = work(machine, &mut entrance);
        let deferred = entrance.answer(machine, self.identity.get().map(|identity| &identity.shard));
        Some((value, deferred))
    }

    /// Whether this member has written this ceiling in the office that it has now.
    fn is_own_ceiling(&self, time: Timestamp) -> bool {
        let own = *self.own_ceiling.lock();
        own.is_some_and(|(term, ceiling)| ceiling == time && self.term() == Some(term))
    }

    /// The term in which this member takes writes.
    pub(super) fn term(&self) -> Option<u64> {
        let role = self.replica.role();
        role.writable.then_some(role.term)
    }

    /// Tells the machine of an office that it does not know of. The core is asked, so whoever calls has not locked it.
    fn take_office(&self) {
        let Some(term) = self.term() else { return };
        if self.state.lock().leading == Some(term) {
            return;
        }
        let last = self.replica.last_index();
        let taken = self.tell(|machine, entrance| {
            if entrance.leading.is_none() && self.term() == Some(term) {
                *entrance.leading = Some(term);
                machine.became_primary(term, last);
            }
        });
        if let Some(((), deferred)) = taken
            && !deferred.is_empty()
        {
            let _ = self.work.send(deferred);
        }
    }

    /// Brings the machine into the office that this member has. Of entries without a record it hears when a majority has them, and members
    /// that stay away would keep it waiting for those before its office; so it is told what is applied here. The pipeline is waited for.
    pub(super) fn lead(&self) {
        self.take_office();
        let is_waiting = |machine: &Shard| machine.is_taking_office();
        if !self.state.lock().machine.as_ref().is_some_and(is_waiting) {
            return;
        }
        let OpTime { index, time, .. } = self.engine.last_told();
        self.later(|machine| {
            // Unless the office is lost, and what was applied perhaps taken back.
            if machine.is_taking_office() {
                machine.applied(index, time_of(Timestamp(time)), None);
            }
        });
    }

    /// Entries up to here are on a majority, and applied here; the listener was told of their records.
    fn committed(&self, at: OpTime) {
        self.later(|machine| {
            machine.applied(at.index, time_of(Timestamp(at.time)), None);
            machine.majority(at.index);
        });
    }

    /// Tells the machine something where nothing may be waited for.
    pub(super) fn later(&self, work: impl FnOnce(&mut Shard)) {
        if let Some(((), deferred)) = self.tell(|machine, _| work(machine))
            && !deferred.is_empty()
        {
            // Once the process ends nobody does it.
            let _ = self.work.send(deferred);
        }
    }

    /// Tells the machine something, and does what it wants done.
    pub(super) fn now<T>(
        self: &Arc<Self>,
        go_on: Interrupt<'_>,
        work: impl FnOnce(&mut Shard, &mut Entrance<'_>) -> T,
    ) -> Option<T> {
        self.lead();
        let (value, deferred) = self.tell(work)?;
        self.perform(deferred, go_on);
        Some(value)
    }

    /// An entry with a record is applied. The pipeline is held.
    fn applied(&self, at: OpTime, record: &TransactionRecord) {
        match record {
            TransactionRecord::Commit { at: time, .. } => self.replica.observe_time(*time),
            // Others may have shown what is below it. What this one shows it has observed itself; its stamps stay with the time of day.
            TransactionRecord::Ceiling(time) if !self.is_own_ceiling(*time) => {
                self.replica.observe_ceiling(*time);
            }
            _ => {}
        }
        if let TransactionRecord::SessionsEnded { lsids } = record {
            let lsids: Vec<Arc<[u8]>> = lsids.iter().map(|lsid| lsid.as_bytes().into()).collect();
            return self.later(|machine| machine.sessions_ended(&lsids));
        }
        let Some(record) = record_of(record) else { return };
        self.count(&record);
        if let LogRecord::Transaction(Record::Commit { id, .. } | Record::Abort { id }) = &record
            && let Some(sessions) = self.sessions.upgrade()
        {
            sessions.ended(id, matches!(&record, LogRecord::Transaction(Record::Commit { .. })));
        }
        self.later(|machine| {
            machine.applied(at.index, time_of(Timestamp(at.time)), Some(&record));
        });
    }

    fn count(&self, record: &LogRecord) {
        use sheaf_shard::Record;
        let LogRecord::Transaction(record) = record else { return };
        let state = &mut *self.state.lock();
        let (figures, Some(machine)) = (&mut state.figures, &state.machine) else { return };
        let is_prepared = |id| matches!(machine.rows().get(id), Some(Row::Prepared { .. }));
        match record {
            Record::Prepare { .. } => figures.total += 1,
            Record::Commit { id, .. } if is_prepared(id) => figures.committed += 1,
            Record::Abort { id } if is_prepared(id) => figures.aborted += 1,
            _ => {}
        }
    }

    /// What `serverStatus` shows of prepared transactions.
    pub fn figures(&self) -> Figures {
        let state = self.state.lock();
        let rows = state.machine.iter().flat_map(|machine| machine.rows().iter());
        let current = rows.filter(|(_, row)| matches!(row, Row::Prepared { .. })).count() as u64;
        Figures { current, ..state.figures }
    }

    /// This member's office has changed.
    pub fn role_changed(&self) {
        self.take_office();
        self.later(|_| ());
    }

    fn tick(self: &Arc<Self>) {
        match self.is_known() {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                tracing::warn!(%error, "which shard this is cannot be read");
                return;
            }
        }
        let now = time_of(self.replica.cluster_time());
        let millis = self.started.elapsed().as_millis() as u64;
        let commit = self.replica.commit_point().index;
        self.now(&|| self.until_end(), |machine, _| {
            machine.majority(commit);
            machine.tick(millis, now);
        });
    }

    pub(super) fn until_end(&self) -> Result<()> {
        if self.front.is_shutting_down() { Err(sheaf_front::front::shutting_down_error()) } else { Ok(()) }
    }

    /// What this shard owns of sharded collections.
    pub fn placements(&self) -> &Arc<Placements> {
        &self.placements
    }

    /// How often a database was dropped here, or is about to be.
    pub fn drops(&self) -> u64 {
        self.drops.load(Ordering::SeqCst)
    }

    /// Whether databases were dropped here that some router may still believe to be here.
    pub fn has_dropped(&self) -> bool {
        self.dropped.any()
    }

    /// A database is about to be dropped: collections are not made in it by what was known before.
    pub fn note_drop(&self, db: &str) {
        self.dropped.note(db);
        self.note_leave();
    }

    /// A database is about to leave, or to come: collections are not made in it by what was known before.
    pub fn note_leave(&self) {
        self.drops.fetch_add(1, Ordering::SeqCst);
    }

    /// The shard's name in its cluster, if the set was added to one.
    pub fn shard_name(&self) -> Option<&str> {
        self.identity().ok().flatten().map(|identity| identity.shard.as_str())
    }

    /// Where the cluster's directory is, if the set was added to a cluster.
    pub fn config_servers(&self) -> Option<String> {
        self.identity().ok().flatten().map(|identity| identity.config.to_string())
    }

    /// Which shard this is, from the moment on in which `addShard` has told it: who waited for the next tick would believe for so long
    /// that everything lives here.
    ///
    /// Errors: those of reading it.
    pub(super) fn identity(&self) -> Result<Option<&Identity>> {
        Ok(if self.is_known()? { self.identity.get() } else { None })
    }

    // Statements in sessions.

    /// A statement of a transaction is about to be executed, after what has been (`None`: it is the first, and its snapshot is taken).
    /// Gives what has been executed with it.
    ///
    /// Errors: `NoSuchTransaction`, `TransactionTooOld`, `TransactionCommitted`, `NotWritablePrimary`.
    pub fn execute(self: &Arc<Self>, id: &TransactionId, after: Option<Executed>) -> Result<Executed> {
        if !self.is_known()? {
            return Ok(Executed::default());
        }
        let last = self.engine.last_applied();
        let executed = self.now(&|| self.until_end(), |machine, _| {
            seen(machine, last);
            machine.execute(id, after)
        });
        executed.unwrap_or_else(|| Ok(Executed::default()))
    }

    /// Whether a transaction that has executed just this is still open. It ends when somebody asks whether it has prepared.
    pub fn is_open(&self, id: &TransactionId, executed: Executed) -> bool {
        let state = self.state.lock();
        state.machine.as_ref().is_none_or(|machine| machine.is_open(id, executed))
    }

    /// An open transaction is over without a trace.
    pub fn abandon(self: &Arc<Self>, id: &TransactionId) {
        self.later(|machine| machine.abandon(id));
    }

    /// Whether the log, as far as it is applied, has the commit of a transaction at this time.
    pub fn has_committed(&self, id: &TransactionId, at: ClusterTime) -> bool {
        let state = self.state.lock();
        let row = state.machine.as_ref().and_then(|machine| machine.rows().get(id));
        matches!(row, Some(Row::Committed { at: known, .. }) if *known == at)
    }

    /// What has become of a transaction that was handed over.
    pub fn fate(&self, id: &TransactionId) -> Fate {
        let state = self.state.lock();
        if state.held.contains_key(id) {
            return Fate::InDoubt;
        }
        match state.machine.as_ref().and_then(|machine| machine.rows().get(id)) {
            Some(Row::Prepared { .. }) => Fate::InDoubt,
            Some(Row::Committed { .. }) => Fate::Committed,
            Some(Row::Aborted) | None => Fate::Aborted,
        }
    }
}

/// What an input of the machine may use besides it.
pub(super) struct Entrance<'s> {
    leading: &'s mut Option<u64>,
    next: &'s mut u64,
    pub(super) replies: &'s mut HashMap<ReplyId, Route>,
    pub(super) readers: &'s mut HashMap<ReaderId, Arc<Slot<()>>>,
    pub(super) held: &'s mut HashMap<TransactionId, Option<Box<Transaction>>>,
}

impl Entrance<'_> {
    /// The name of a new request.
    pub(super) fn number(&mut self) -> ReplyId {
        *self.next += 1;
        ReplyId(*self.next)
    }

    /// Gives the machine's answers to whoever waits, and the rest back.
    fn answer(&mut self, machine: &mut Shard, me: Option<&sheaf_shard::ShardId>) -> Deferred {
        let mut deferred = Deferred::new();
        loop {
            let effects = machine.poll();
            if effects.is_empty() {
                return deferred;
            }
            for effect in effects {
                match effect {
                    ShardEffect::Reply { to, answer } => match self.replies.remove(&to) {
                        Some(Route::Waiting(slot, _)) => slot.give(Ok(answer)),
                        Some(Route::Own(id)) => {
                            if let Some(me) = me {
                                machine.answered(me, &id, answer);
                            }
                        }
                        None => {}
                    },
                    ShardEffect::NotPrimary { to } => {
                        if let Some(route) = self.replies.remove(&to) {
                            route.refuse(not_primary());
                        }
                    }
                    ShardEffect::Ready(reader) => {
                        if let Some(slot) = self.readers.remove(&reader) {
                            slot.give(Ok(()));
                        }
                    }
                    effect => deferred.push(effect),
                }
            }
        }
    }
}

impl Route {
    pub(super) fn id(&self) -> &TransactionId {
        match self {
            Route::Waiting(_, id) | Route::Own(id) => id,
        }
    }

    /// There will be no answer. The settler asks again by itself.
    pub(super) fn refuse(self, error: Error) {
        if let Route::Waiting(slot, _) = self {
            slot.give(Err(error));
        }
    }
}

/// What is visible now: a transaction that begins may read so far. Before it leads, the machine counts on having been told of all
/// records up to there, and those of the newest entries may be on their way.
pub(super) fn seen(machine: &mut Shard, last: OpTime) {
    if machine.is_leading() {
        machine.applied(last.index, time_of(Timestamp(last.time)), None);
    }
}

pub(super) fn not_primary() -> Error {
    Error::new(Code::NOT_WRITABLE_PRIMARY, "not primary")
}

/// Does what the machine wants done where nobody could wait for it, and tells it the time.
fn run(of: &Weak<ShardServer>, work: &mpsc::Receiver<Deferred>) {
    let mut next = Instant::now() + TICK;
    loop {
        let come = work.recv_timeout(next.saturating_duration_since(Instant::now()));
        let Some(server) = of.upgrade() else { return };
        match come {
            Ok(deferred) => server.perform(deferred, &|| server.until_end()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if server.front.is_shutting_down() {
            return;
        }
        if Instant::now() >= next {
            next = Instant::now() + TICK;
            server.tick();
        }
    }
}
