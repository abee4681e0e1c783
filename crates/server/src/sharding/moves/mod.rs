//! A shard's part in moves of ranges: the machines of `sheaf_shard::moves` with this member's log, threads, clock and connections.
//!
//! - `donor`: shows documents and what has changed, closes and opens;
//! - `recipient`: asks the donor, writes what it tells;
//! - `statement`: the shard's statement in the transaction that changes the owner;
//! - `batch`: documents and statements on their way;
//! - `scan`: the documents of a range, in order;
//! - `removal`: what has left is removed;
//! - `notes`, `fetched`: what the donor and the recipient remember of a collection that gets another key or place.
//!
//! The machines are under one lock, under which nothing is waited for. What they want done that may wait is done by the thread of the
//! request that has led to it, or by the two threads that each received range has: one asks the donor, one writes.
//! What it all means is told in `docs/design/0022-moves.md`.

pub(super) mod batch;
mod donor;
pub(super) mod fetched;
pub(super) mod notes;
mod recipient;
mod removal;
mod renewing;
mod scan;
mod statement;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_front::front::Front;
use sheaf_replica::{Replica, spawn};
use sheaf_shard::moves::{
    DonorEffect, Donors, MoveAnswer, MoveId, MoveRequest, RecipientEffect, Recipients, receiving_in,
};
use sheaf_shard::{ReplyId, TransactionId};
use sheaf_storage::{Engine, Hold, Interrupt, Touched, Uuid};

use super::marks::{PLACEMENTS, uuid_of};
use super::rows;
use super::slot::Slot;
use super::statistics::Statistics;
use super::{OpenTransactions, ShardServer};
use recipient::Worker;
use statement::Held;
pub use statement::named;

/// How often the machines are told the time.
const TICK: Duration = Duration::from_millis(20);

/// An answer, and what comes with it.
type Told = (MoveAnswer, DocBuf);

/// What may wait, and is done when nothing is locked.
type Deferred = Vec<DonorEffect>;

/// The moves to and from this shard, on one of its members; they are at work while that is primary.
pub struct Moves {
    front: Arc<Front>,
    sessions: Weak<dyn OpenTransactions>,
    sharding: Arc<ShardServer>,
    engine: Engine,
    replica: Arc<Replica>,
    state: Mutex<State>,
    /// The collections whose changes the machine is told of. Whoever holds it may change that.
    watching: Mutex<BTreeSet<Uuid>>,
    /// Transactions of moves that have executed their statement here and are not prepared.
    held: Mutex<HashMap<TransactionId, Held>>,
    /// How far this member has fetched collections.
    pub(super) fetches: Mutex<fetched::Fetches>,
    ended: mpsc::Sender<(TransactionId, bool)>,
    /// Whether anything is moved: only then ends of transactions are of interest.
    active: AtomicBool,
    started: Instant,
}

#[derive(Default)]
struct State {
    /// The term in which the machines think that this member leads.
    leading: Option<u64>,
    next: u64,
    donors: Donors,
    recipients: Recipients<DocBuf>,
    waiting: HashMap<ReplyId, Arc<Slot<Told>>>,
    /// Collections that are closed for a move.
    holds: HashMap<MoveId, Hold>,
    workers: HashMap<MoveId, Worker>,
    /// What changes in collections that get another key or place.
    notes: notes::Notes,
}

impl Moves {
    /// The moves of this member.
    ///
    /// Errors: a thread cannot be started.
    pub fn start(
        front: &Arc<Front>,
        sessions: Weak<dyn OpenTransactions>,
        sharding: &Arc<ShardServer>,
        engine: &Engine,
        replica: &Arc<Replica>,
    ) -> Result<Arc<Moves>> {
        #[expect(clippy::disallowed_methods, reason = "as much as transactions end")]
        let (ended, told) = mpsc::channel();
        let moves = Arc::new(Moves {
            front: front.clone(),
            sessions,
            sharding: sharding.clone(),
            engine: engine.clone(),
            replica: replica.clone(),
            state: Mutex::default(),
            watching: Mutex::default(),
            held: Mutex::default(),
            fetches: Mutex::default(),
            ended,
            active: AtomicBool::new(false),
            started: Instant::now(),
        });
        let of = Arc::downgrade(&moves);
        spawn("sheaf-moves", move || run(&of, &told))?;
        let of = Arc::downgrade(&moves);
        spawn("sheaf-remover", move || removal::run(&of))?;
        Ok(moves)
    }

    /// What the command of this name asks about a move, and its answer.
    ///
    /// Errors: `NotWritablePrimary`; those of parsing, of reading, of `go_on`.
    pub fn request(
        self: &Arc<Self>,
        command: &str,
        body: RawDoc<'_>,
        go_on: Interrupt<'_>,
    ) -> Result<DocBuf> {
        let request = MoveRequest::parse(command, body)?;
        self.take_office()?;
        let slot = Slot::new();
        let (to, deferred) = match &request {
            MoveRequest::Donate { the_move, .. } => {
                rows::ensure(&self.engine, PLACEMENTS, go_on)?;
                // It is watched before anything is shown, and while the machine does not know of it nobody stops watching.
                let mut watching = self.watching.lock();
                self.watch(&mut watching, |all| _ = all.insert(Uuid::from_bytes(the_move.uuid)));
                self.tell(|state| {
                    let to = self.ask(state, &slot, request.clone());
                    if state.donors.moves().any(|of| of.id == the_move.id) {
                        self.sharding.statistics.donates(the_move.id);
                    }
                    to
                })
            }
            _ => self.tell(|state| self.ask(state, &slot, request)),
        };
        self.perform(deferred);
        let answer = slot.wait(go_on);
        self.state.lock().waiting.remove(&to);
        let (answer, mut fields) = answer?;
        fields.edit(|out| answer.append(out));
        Ok(fields)
    }

    fn ask(&self, state: &mut State, slot: &Arc<Slot<Told>>, request: MoveRequest) -> ReplyId {
        state.next += 1;
        let to = ReplyId(state.next);
        state.waiting.insert(to, slot.clone());
        match request {
            MoveRequest::Receive { .. } | MoveRequest::Finish { .. } | MoveRequest::GiveUp { .. } => {
                let before = state.recipients.moves().count();
                state.recipients.handle(to, request);
                if state.recipients.moves().count() > before {
                    Statistics::count(&self.sharding.statistics.received);
                }
            }
            MoveRequest::Donate { .. } | MoveRequest::Copy { .. } | MoveRequest::Changes { .. } => {
                state.donors.handle(to, request, |of| self.owns(of), |_| self.recorded_sessions());
            }
        }
        to
    }

    /// Has the engine tell of changes in other collections than before.
    fn watch(self: &Arc<Self>, watching: &mut BTreeSet<Uuid>, change: impl FnOnce(&mut BTreeSet<Uuid>)) {
        let before = watching.clone();
        change(watching);
        if *watching == before {
            return;
        }
        let of = Arc::downgrade(self);
        let watcher = move |touched: Vec<Touched>| {
            let Some(moves) = of.upgrade() else { return };
            let State { donors, notes, .. } = &mut *moves.state.lock();
            for touched in &touched {
                match touched {
                    Touched::Record { collection, key } => {
                        donors.changed(collection.as_bytes(), key);
                        notes.changed(collection, key);
                    }
                    Touched::Session(lsid) => {
                        donors.session_changed(lsid);
                        notes.session_changed(lsid);
                    }
                }
            }
        };
        let all: Vec<Uuid> = watching.iter().copied().collect();
        self.engine.watch(&all, (!all.is_empty()).then(|| Arc::new(watcher) as _));
    }

    /// Tells the machines something. Gives what they want done that may wait.
    fn tell<T>(self: &Arc<Self>, work: impl FnOnce(&mut State) -> T) -> (T, Deferred) {
        let mut opened = Vec::new();
        let state = &mut *self.state.lock();
        let value = work(state);
        let mut deferred = Deferred::new();
        loop {
            let (own, others) = (state.donors.poll(), state.recipients.poll());
            if own.is_empty() && others.is_empty() {
                break;
            }
            for effect in own {
                match effect {
                    DonorEffect::Reply { to, answer } => answer_to(state, to, Ok((answer, DocBuf::new()))),
                    DonorEffect::NotPrimary { to } => answer_to(state, to, Err(not_primary())),
                    DonorEffect::Reopen(the_move) => {
                        self.sharding.statistics.opens(the_move.id);
                        opened.extend(state.holds.remove(&the_move.id));
                    }
                    effect => deferred.push(effect),
                }
            }
            for effect in others {
                match effect {
                    RecipientEffect::Reply { to, answer } => {
                        answer_to(state, to, Ok((answer, DocBuf::new())));
                    }
                    RecipientEffect::NotPrimary { to } => answer_to(state, to, Err(not_primary())),
                    RecipientEffect::Abandon(id) => deferred.push(DonorEffect::Abandon(id)),
                    effect => self.work(state, effect),
                }
            }
        }
        let active = state.donors.moves().next().is_some() || state.recipients.moves().next().is_some();
        self.active.store(active, Ordering::Release);
        (value, deferred)
    }

    /// Tells the machines something, and does what they want done.
    fn now(self: &Arc<Self>, work: impl FnOnce(&mut State)) {
        let ((), deferred) = self.tell(work);
        self.perform(deferred);
    }

    fn perform(self: &Arc<Self>, deferred: Deferred) {
        for effect in deferred {
            match effect {
                DonorEffect::Copy { to, the_move, after } => {
                    let told = self.copy(&the_move, after.as_deref());
                    answer_to(&mut self.state.lock(), to, told);
                }
                DonorEffect::Changes { to, the_move, changes, upto, left, closing } => {
                    let told = self.changes(&the_move, &changes, (upto, left, closing));
                    answer_to(&mut self.state.lock(), to, told);
                }
                DonorEffect::Close(the_move) => self.close(&the_move),
                DonorEffect::Abandon(id) => self.abandon(&id),
                DonorEffect::Reply { .. } | DonorEffect::NotPrimary { .. } | DonorEffect::Reopen(_) => {
                    unreachable!("these are done under the lock")
                }
            }
        }
    }

    /// Tells the machines of this member's office, if they do not know of it.
    ///
    /// Errors: `NotWritablePrimary`.
    pub(super) fn take_office(self: &Arc<Self>) -> Result<()> {
        let term = self.term();
        if self.state.lock().leading == term {
            return term.map(|_| ()).ok_or_else(not_primary);
        }
        let mut marked = Vec::new();
        if term.is_some() {
            for placement in rows::find(&self.engine.view()?, PLACEMENTS, |_| true)? {
                let uuid = uuid_of(placement.as_raw());
                let Some(uuid) = uuid else { bail!(Code::BAD_VALUE, "a placement names no collection") };
                marked.extend(receiving_in(placement.as_raw())?.into_iter().map(|id| (uuid, id)));
            }
        }
        let held = std::mem::take(&mut *self.held.lock());
        drop(held);
        self.now(|state| {
            if state.leading == term {
                return;
            }
            state.leading = term;
            state.donors.lost_primary();
            state.recipients.lost_primary();
            state.workers.clear();
            state.notes.clear();
            for (_, slot) in state.waiting.drain() {
                slot.give(Err(not_primary()));
            }
            if let Some(term) = term {
                state.donors.became_primary(term);
                state.recipients.became_primary(term, marked);
            }
        });
        term.map(|_| ()).ok_or_else(not_primary)
    }

    pub(super) fn term(&self) -> Option<u64> {
        let role = self.replica.role();
        role.writable.then_some(role.term)
    }

    /// Why work that nobody waits for is not done any more.
    pub(super) fn until_end(&self) -> Result<()> {
        self.sharding.until_end()?;
        if self.term().is_some() { Ok(()) } else { Err(not_primary()) }
    }

    /// A transaction has come to its end here, prepared or not; whoever tells it may hold anything.
    pub fn note_end(&self, id: &TransactionId, committed: bool) {
        if self.active.load(Ordering::Acquire) {
            // Once the process ends nobody wants to know.
            let _ = self.ended.send((id.clone(), committed));
        }
    }

    fn tick(self: &Arc<Self>) {
        if self.take_office().is_err() {
            return;
        }
        let millis = self.started.elapsed().as_millis() as u64;
        self.now(|state| {
            state.donors.tick(millis);
            state.recipients.tick(millis);
            let running: BTreeSet<MoveId> = state.recipients.moves().map(|(id, _)| id).collect();
            state.workers.retain(|id, _| running.contains(id));
            let donated: BTreeSet<MoveId> = state.donors.moves().map(|of| of.id).collect();
            self.sharding.statistics.runs(|id| donated.contains(id));
        });
        let mut watching = self.watching.lock();
        if !watching.is_empty() {
            let donated = self.donated();
            self.watch(&mut watching, |all| *all = donated);
        }
    }
}

impl Moves {
    /// The collections whose changes are noted.
    fn donated(&self) -> BTreeSet<Uuid> {
        let state = self.state.lock();
        let ranges = state.donors.moves().map(|of| Uuid::from_bytes(of.uuid));
        ranges.chain(state.notes.collections()).collect()
    }
}

/// Gives an answer to whoever waits for it.
fn answer_to(state: &mut State, to: ReplyId, answer: Result<Told>) {
    if let Some(slot) = state.waiting.remove(&to) {
        slot.give(answer);
    }
}

pub(super) fn not_primary() -> Error {
    Error::new(Code::NOT_WRITABLE_PRIMARY, "not primary")
}

/// Tells the machines the time, and of ends of transactions.
fn run(of: &Weak<Moves>, ended: &mpsc::Receiver<(TransactionId, bool)>) {
    let mut next = Instant::now() + TICK;
    loop {
        let come = ended.recv_timeout(next.saturating_duration_since(Instant::now()));
        let Some(moves) = of.upgrade() else { return };
        match come {
            Ok((id, committed)) => moves.now(|state| {
                let before: Vec<MoveId> = state.donors.moves().map(|of| of.id).collect();
                state.donors.ended(&id, committed);
                let runs = |id: &MoveId| state.donors.moves().any(|of| of.id == *id);
                before
                    .into_iter()
                    .filter(|id| !runs(id))
                    .for_each(|id| moves.sharding.statistics.commits(id));
                state.recipients.ended(&id, committed);
            }),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if moves.sharding.until_end().is_err() {
            return;
        }
        if Instant::now() >= next {
            next = Instant::now() + TICK;
            moves.tick();
        }
    }
}
