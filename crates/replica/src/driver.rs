//! The driver of the replication core: its threads and the order of effects. Storage's side of it is [`crate::sequencer`].
//!
//! Two threads belong to it. One applies units that come from other members (and what a primary has not applied with its own
//! commits); the other keeps the core's clock and does what may take time. A primary's own commits are applied by the thread
//! that commits.
//!
//! Seven things happen to a write here, each with its word: a commit is *proposed* to the core ([`Sequencer::propose`]), the
//! core's effects are *performed* ([`Replica::perform`]), which *sends* messages and queues units; a unit is *taken*
//! ([`Sequencer::take`]), *applied* by storage (in the log and visible), then *acknowledged* as such to the core
//! ([`Sequencer::acknowledge`]), and *durable* after a sync.
//!
//! [`Sequencer::propose`]: sheaf_storage::Sequencer::propose
//! [`Sequencer::take`]: sheaf_storage::Sequencer::take
//! [`Sequencer::acknowledge`]: sheaf_storage::Sequencer::acknowledge

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::time::{Duration, Instant};

use sheaf_bson::DocBuf;
use sheaf_errors::{Code, Result, bail};
use sheaf_front::front::Front;
use sheaf_front::log::ids;
use sheaf_repl::{
    Behind, Body, Effect, Envelope, LogBounds, LogPosition, Member, MemberOptions, MemberRole, Persist,
    Recovered, TermRun,
};
use sheaf_storage::critical::stop;
use sheaf_storage::order::{Condvar, Mutex};
use sheaf_storage::{Engine, OpTime};
use tokio::sync::watch;

use crate::asking::answer;
use crate::confirm::Confirmations;
use crate::dialling;
use crate::double;
use crate::figures::Figures;
use crate::initial_sync::InitialSync;
use crate::links::Links;
use crate::locked::Locked;
use crate::memory::Memory;
use crate::process::spawn;
use crate::processors::Processors;
use crate::replica::{Host, Job, Replica};
use crate::secured::Secrets;
use crate::sequencer::to_core;
use crate::state::StateFile;
use crate::strangers::Strangers;

/// Refused messages are named no more often than this.
const REFUSALS_SECS: u64 = 10;

impl Replica {
    /// Starts this member on an open data folder: reads what it knows of itself, takes over the order of commits, and
    /// begins to talk to the others. Called within the runtime.
    pub fn start(
        front: &Arc<Front>,
        host: Weak<dyn Host>,
        dbpath: &Path,
        engine: &Engine,
        set_name: &str,
    ) -> Result<Arc<Replica>> {
        let mut state = StateFile::open(dbpath)?;
        if let Some((config, _)) =
            state.state.config.as_ref().filter(|(config, _)| config.set_name != set_name)
        {
            bail!(
                Code::INCONSISTENT_REPLICA_SET_NAMES,
                "Local replica set configuration document reports set name of {}, but command line reports {set_name}",
                config.set_name
            );
        }
        // Others take what has a lower number for old. A member that has lost its folder must not begin again with 1.
        let wall = front.clock.now_millis().max(0) as u64;
        let before = state.state.incarnation;
        state.state.incarnation = wall.max(before + 1);
        assert!(state.state.incarnation > before, "each start of a member has a higher number");
        state.save()?;
        let mut recovered = recovered(engine, &state)?;
        let confirmations = Confirmations::new(Secrets::of(front));
        if let Some((config, me)) = &mut recovered.config
            && me.is_some_and(|me| double::is_elsewhere(front, config, me, &confirmations))
        {
            // What the folder says stays as it is: it may be asked about again at the next start.
            *me = None;
        }
        let all_committed = recovered.hard_state.commit == recovered.log.last;
        let core = Member::new(
            MemberOptions {
                seed: rand::random(),
                incarnation: state.state.incarnation,
                ..MemberOptions::new(set_name)
            }
            .within(sheaf_front::system::memory_limit()),
            recovered,
        );
        #[expect(clippy::disallowed_methods, reason = "roles come as elections do, fetches as members lag")]
        let (jobs, work) = mpsc::channel();
        let last = engine.last_applied();
        let memory = Memory::of(&front.memory);
        let replica = Arc::new(Replica {
            front: front.clone(),
            host,
            set_name: set_name.to_owned(),
            dbpath: dbpath.to_owned(),
            engine: engine.clone(),
            core: Locked::new(core),
            units: Mutex::default(),
            units_work: Condvar::new(),
            state: Mutex::new(state),
            links: OnceLock::new(),
            kept: Mutex::new(memory.share()),
            memory,
            confirmations,
            strangers: Strangers::default(),
            initial_sync: InitialSync::open(dbpath),
            jobs,
            role: Mutex::default(),
            writable: AtomicBool::new(false),
            readable: AtomicBool::new(false),
            flushable: AtomicU64::new(0),
            others_lack_room: AtomicBool::new(false),
            alone: AtomicBool::new(false),
            commit: Mutex::default(),
            on_commit: OnceLock::new(),
            durable_seq: AtomicU64::new(0),
            applied_seq: AtomicU64::new(0),
            topology: watch::Sender::new(0),
            waiters: Mutex::default(),
            stepped_down: Mutex::default(),
            reconfigured: Mutex::default(),
            lag_millis: AtomicU64::new(0),
            slowed_micros: AtomicU64::new(0),
            figures: Figures::default(),
            refused_at: AtomicU64::new(0),
            started: Instant::now(),
            stopping: AtomicBool::new(false),
        });
        *replica.commit.lock() = replica.with(|core| {
            core.commit_point().at_time(if all_committed { last.time } else { core.commit_time() })
        });
        let (memory, runtime) = (replica.memory.clone(), tokio::runtime::Handle::current());
        let (of, tasks) = (Arc::downgrade(&replica), runtime.clone());
        let links = Links::new(
            &front.parameters.text("peerAddresses"),
            move || memory.share(),
            move |begun| drop(tasks.spawn(dialling::dial(of.clone(), begun))),
        );
        assert!(replica.links.set(links).is_ok(), "a member starts once");
        engine.set_sequencer(replica.clone(), all_committed);
        let applier = replica.clone();
        spawn("sheaf-replica", move || applier.run_applier())?;
        let clock = replica.clone();
        spawn("sheaf-repl-clock", move || {
            let _runtime = runtime.enter();
            clock.run_clock(&work);
        })?;
        Ok(replica)
    }

    /// Refuses to open a set's data alone: what was written then would stand in the log where the set has something else.
    ///
    /// Errors: `IllegalOperation`.
    pub fn check_alone(folder: &std::path::Path) -> Result<()> {
        if let Some((config, _)) = StateFile::open(folder)?.state.config {
            bail!(
                Code::ILLEGAL_OPERATION,
                "the data folder belongs to a member of the replica set {0}: start the server with --replSet {0}",
                config.set_name
            );
        }
        Ok(())
    }

    /// How many members the set has whose data this is; 0 if it is none's.
    ///
    /// Errors: its state cannot be read.
    pub fn members(folder: &std::path::Path) -> Result<usize> {
        Ok(StateFile::open(folder)?.state.config.map_or(0, |(config, _)| config.members.len()))
    }

    /// Ends the driver's threads.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.units_work.notify_all();
    }

    /// Messages have come from the member at this address.
    pub fn receive(&self, from: &Arc<str>, messages: impl Iterator<Item = Envelope>) {
        let starved = self.front.fail_points.enter("stopReplProducer", |_| true).is_some();
        let clock = self.started.elapsed().as_millis() as u64;
        self.with_unhurried(|core| {
            core.observe_clock(clock);
            for envelope in messages {
                if (starved && envelope.brings_entries()) || self.memory.refuses(core, &envelope) {
                    continue;
                }
                // Data of its own, from a time as a standalone, is no part of another set.
                let foreign = core.config().is_none() && core.log().last > 0;
                if let (Some(index), Some(links)) = (envelope.acknowledged(), self.links.get()) {
                    links.answered(from, index);
                }
                if !(foreign && matches!(envelope.body, Body::Config(_))) {
                    core.step(from, envelope);
                }
            }
        });
    }

    /// The connection to the member at this address broke, or is refused, or has ended at a proof that one of both does not take.
    pub fn connection_lost(&self, host: &str, unproved: bool) {
        self.with(|core| {
            let member = core.config().and_then(|config| config.member_at(host)).map(|member| member.id);
            if let Some(id) = member {
                match unproved {
                    true => core.not_believed(id),
                    false => core.connection_lost(id),
                }
            }
        });
    }

    /// Performs the core's effects, in order, and wakes the thread that applies units if there are more. Those that were there
    /// before it knows of, or they are somebody's own, who is about to take them.
    pub(super) fn perform(&self, core: &mut Member) {
        if self.perform_effects(core) {
            self.units_work.notify_one();
        }
    }

    /// Performs the core's effects, for a thread that applies the units itself. Returns whether these bring units.
    pub(super) fn perform_effects(&self, core: &mut Member) -> bool {
        let mut brings_units = false;
        for effect in core.poll() {
            match effect {
                Effect::Send { host, envelope } => {
                    self.figures.sent(&envelope);
                    if let Some(links) = self.links.get() {
                        links.send(&host, envelope, || core.is_address(&host));
                    }
                }
                Effect::Persist(unit) => {
                    self.queue_unit(unit);
                    brings_units = true;
                }
                Effect::CommitPoint(at) => {
                    self.note_commit(at.at_time(core.commit_time()));
                }
                Effect::Role(role) => {
                    let before = self.role();
                    self.set_role(role);
                    self.order(Job::Role { before, now: role });
                }
                Effect::Resolved { waiter, outcome } => {
                    if let Some(sender) = self.waiters.lock().remove(&waiter) {
                        let _ = sender.send(outcome);
                    }
                }
                Effect::Fetch { token, low, high, bytes_max } => {
                    self.order(Job::Fetch { token, low, high, bytes_max });
                }
                Effect::InitialSync { source, at_least } => {
                    self.order(Job::InitialSync { source, at_least });
                }
                Effect::Refused { host, from, what } => self.refused(&host, from, &what),
                Effect::SteppedDown(result) => answer(&self.stepped_down, result),
                Effect::Reconfigured(result) => answer(&self.reconfigured, result),
            }
        }
        let flushable = core.commit_point().index.min(core.positions().durable.index);
        self.flushable.store(flushable, Ordering::Release);
        let alone = core.config().is_some_and(|config| config.members.len() == 1);
        self.alone.store(alone, Ordering::Release);
        self.kept.lock().set(core.kept_bytes());
        brings_units
    }

    /// Puts a unit behind those that wait to be applied.
    fn queue_unit(&self, unit: Persist) {
        let mut units = self.units.lock();
        let newest = units.back().map_or(unit.seq - 1, |newest| newest.seq);
        assert_eq!(unit.seq, newest + 1, "the core numbers its units without gaps");
        assert!(unit.seq > self.applied_seq.load(Ordering::Acquire), "unit {} is applied already", unit.seq);
        units.push_back(unit);
    }

    fn note_commit(&self, at: OpTime) {
        let before = std::mem::replace(&mut *self.commit.lock(), at);
        assert!(
            before.index < at.index && before.term <= at.term,
            "the commit point {before:?} becomes {at:?}"
        );
        self.engine.committed(at.index);
        if let Some(told) = self.on_commit.get() {
            told(at);
        }
    }

    /// Hands work to the thread that may take its time. It ends with this member, and what is asked of it then is not missed.
    fn order(&self, job: Job) {
        let sent = self.jobs.send(job);
        assert!(sent.is_ok() || self.is_stopping(), "the clock's thread has ended before its member");
    }

    /// Says what was not believed, once in a while.
    fn refused(&self, host: &str, from: u64, what: &str) {
        let now = self.started.elapsed().as_secs() + REFUSALS_SECS;
        let last = self.refused_at.load(Ordering::Relaxed);
        if now < last + REFUSALS_SECS
            || self.refused_at.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        let attributes = sheaf_bson::doc! { "host": host, "member": from as i64, "why": what };
        let text = "A message of a member is refused";
        sheaf_front::log::warning("REPL", ids::MEMBER_REFUSED, "ReplCoord", text, Some(attributes));
    }

    /// Applies the units that no commit of this member applies. What the disk has no room for is waited for in there; any other
    /// error is for good, and a member that went on with it would hold its place in the set and never do anything again.
    fn run_applier(&self) {
        while !self.is_stopping() && !self.engine.is_stopping() {
            {
                let mut units = self.units.lock();
                if units.is_empty() {
                    self.units_work.wait_for(&mut units, Duration::from_millis(500));
                }
                if units.is_empty() {
                    continue;
                }
            }
            match self.engine.apply_units() {
                // The set's commit point waits for this member's disk.
                Ok(true) if self.units.lock().is_empty() => self.engine.sync_for_others(),
                Ok(true) => self.engine.ask_for_sync(),
                Ok(false) => {}
                // It is applied by the next start.
                Err(_) if self.engine.is_stopping() => return,
                Err(error) => {
                    stop(&format!("what the set has ordered cannot be taken: {}", error.message()));
                }
            }
        }
    }

    /// Keeps the core's clock, and does what takes time.
    fn run_clock(self: &Arc<Self>, jobs: &mpsc::Receiver<Job>) {
        let mut next = Instant::now();
        let mut processors = Processors::default();
        while !self.is_stopping() {
            let now = Instant::now();
            if now >= next {
                if let Some(links) = self.links.get() {
                    links.be_sparing(processors.are_short(now));
                }
                let wall = self.front.clock.now_millis().max(0) as u64 / 1000;
                let (mut stopped, mut refused) = (None, false);
                let pause = self.with(|core| {
                    core.be_sparing(self.memory.is_short());
                    core.tick(self.started.elapsed().as_millis() as u64, wall);
                    let lag = core.commit_lag().1;
                    self.lag_millis.store(lag, Ordering::Relaxed);
                    self.others_lack_room.store(core.others_lack_room(), Ordering::Release);
                    let stands = self.figures.lags(lag, core.commit_point().index) && core.is_writable();
                    stopped = stands.then(|| core.behind());
                    refused = core.is_refused();
                    core.tick_millis()
                });
                if refused {
                    self.keep_early();
                }
                next = now + Duration::from_millis(pause.clamp(5, 50));
                if let Some(behind) = stopped {
                    let text = "Flow control is engaged and the sustainer point is not moving. Please check the health of all \
                                secondaries.";
                    sheaf_front::log::warning(
                        "STORAGE",
                        sheaf_front::log::ids::FLOW_CONTROL_STANDS,
                        "ReplCoord",
                        text,
                        Some(who_is_behind(&behind)),
                    );
                }
            }
            match jobs.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(job) => self.work(job),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => unreachable!("this member holds the sender"),
            }
        }
    }

    fn work(self: &Arc<Self>, job: Job) {
        match job {
            Job::Fetch { token, low, high, bytes_max } => {
                // The core asks again for what does not come.
                let entries = self.engine.log_entries(low, high, bytes_max).unwrap_or_else(|error| {
                    tracing::error!(%error, low, high, "entries for another member cannot be read");
                    Vec::new()
                });
                let entries = entries.into_iter().map(to_core).collect();
                self.with(|core| core.fetched(token, entries));
            }
            Job::InitialSync { source, at_least } => {
                if let Err(error) = self.begin_initial_sync(source, at_least) {
                    tracing::error!(%error, "initial sync cannot begin");
                    self.with(Member::initial_sync_failed);
                }
            }
            Job::Role { before, now } => self.role_changed(before, now),
        }
    }

    fn role_changed(self: &Arc<Self>, before: MemberRole, now: MemberRole) {
        let Some(host) = self.host.upgrade() else { return };
        if before.state != now.state {
            let attributes = sheaf_bson::doc! {
                "newState": now.state.name(), "oldState": before.state.name(), "term": now.term as i64
            };
            sheaf_front::log::info(
                "REPL",
                sheaf_front::log::ids::MEMBER_STATE_CHANGED,
                "ReplCoord",
                "Replica set state transition",
                Some(attributes),
            );
        }
        if before.writable && !now.writable {
            host.stepped_down();
        }
        if !before.writable && now.writable {
            let replica = self.clone();
            let stepping_up = spawn("sheaf-step-up", move || {
                if let Err(error) = replica.engine.abort_orphaned_builds() {
                    tracing::warn!(%error, "index builds of an earlier primary stay for now");
                }
                host.stepped_up();
            });
            if let Err(error) = stepping_up {
                tracing::error!(%error, "a new primary's first work is not done");
            }
        }
    }
}

/// What the core is to know of the disk. The log is synced and applied.
fn recovered(engine: &Engine, state: &StateFile) -> Result<Recovered> {
    let tail = engine.log_tail()?;
    let known = &state.state;
    let mut hard_state = known.hard_state;
    // A standalone's log is committed as a whole.
    let committed = if known.config.is_some() { tail.committed } else { tail.last.index };
    hard_state.commit = hard_state.commit.min(tail.last.index).max(committed);
    if tail.last.term > hard_state.term {
        (hard_state.term, hard_state.vote) = (tail.last.term, None);
    }
    Ok(Recovered {
        hard_state,
        log: LogBounds {
            start: LogPosition::new(tail.start.0, tail.start.1),
            last: tail.last.index,
            runs: tail.runs.iter().map(|(first, term)| TermRun { first: *first, term: *term }).collect(),
            last_time: tail.last.time,
        },
        times: tail.times,
        config: known.config.clone(),
    })
}

/// `{members: [{host, state, lagSecs}]}`
fn who_is_behind(behind: &[Behind]) -> DocBuf {
    DocBuf::build(|doc| {
        let mut members = doc.array("members");
        for member in behind {
            let mut doc = members.document();
            doc.append("host", &*member.host).append("state", member.state.name());
            doc.append("lagSecs", member.seconds as i64);
        }
    })
}
