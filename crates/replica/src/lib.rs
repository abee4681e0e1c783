//! A member of a replica set: the replication core (`sheaf-repl`) with sockets, threads, a clock and a disk.
//!
//! - [`Replica`] is what the rest of the server sees.
//! - `driver` performs the effects of the core, and orders the commits of storage.
//! - `links` are the connections to other members, `receiving` those from them, `confirm` how they know each other; `state`
//!   is what must never be forgotten.
//! - `errors` is what is done about errors.
//! - `rollback` keeps writes that the set has not kept; `initial_sync` copies another member's data.
//!
//! Locks, outermost first: storage's pipeline, the state file, the core, what it tells ([`sheaf_storage::order`]). The core's
//! effects are performed under its lock, in order, and none of them waits.

mod confirm;
pub mod driver;
mod errors;
pub mod figures;
pub mod initial_sync;
pub mod links;
mod locked;
pub mod memory;
pub mod receiving;
pub mod rollback;
mod state;
mod strangers;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::time::Instant;

use sheaf_bson::{DocBuf, Timestamp};
use sheaf_errors::{Code, Error, Result};
use sheaf_front::front::Front;
use sheaf_repl::config::{ConfigVersion, ReplSetConfig};
use sheaf_repl::write_concern::{WaitOutcome, WriteConcern};
use sheaf_repl::{Member, MemberRole, MemberState, Persist, WaiterId};
use sheaf_storage::order::{Condvar, Mutex, rank};
use sheaf_storage::{Engine, Interrupt, OpTime};
use tokio::sync::{oneshot, watch};

use links::Links;
use locked::Locked;
use state::StateFile;

/// What the server that a member belongs to does when its office changes.
pub trait Host: Send + Sync {
    /// This member takes writes now. Called on a thread of its own.
    fn stepped_up(&self);

    /// This member takes no more writes.
    fn stepped_down(&self);
}

/// Where the answer to a request goes that the core has taken and not answered yet.
type Asked<T> = Mutex<{ rank::TOLD }, Option<mpsc::Sender<Result<T>>>>;

/// This process as a member of a replica set.
pub struct Replica {
    front: Arc<Front>,
    host: Weak<dyn Host>,
    /// The folder of the data.
    dbpath: PathBuf,
    engine: Engine,
    core: Locked,
    /// What the core wants written, in order.
    units: Mutex<{ rank::TOLD }, VecDeque<Persist>>,
    units_work: Condvar,
    state: Mutex<{ rank::STATE_FILE }, StateFile>,
    links: OnceLock<Links>,
    /// The memory that replication takes.
    pub memory: memory::Memory,
    /// Of that, the entries that the core keeps.
    kept: Mutex<{ rank::TOLD }, memory::Share>,
    confirmations: confirm::Confirmations,
    strangers: strangers::Strangers,
    initial_sync: initial_sync::InitialSync,
    jobs: mpsc::Sender<driver::Job>,
    role: Mutex<{ rank::TOLD }, MemberRole>,
    writable: AtomicBool,
    readable: AtomicBool,
    /// Index up to which flushes may go.
    flushable: AtomicU64,
    commit: Mutex<{ rank::TOLD }, OpTime>,
    durable_seq: AtomicU64,
    /// The last unit that is in the log and applied.
    applied_seq: AtomicU64,
    topology: watch::Sender<u64>,
    waiters: Mutex<{ rank::TOLD }, HashMap<WaiterId, oneshot::Sender<WaitOutcome>>>,
    stepped_down: Asked<()>,
    reconfigured: Asked<ConfigVersion>,
    /// How far the commit point is behind, for flow control.
    lag_millis: AtomicU64,
    /// How long commits have been held back because of that.
    slowed_micros: AtomicU64,
    /// What `serverStatus` shows.
    pub figures: figures::Figures,
    /// When a refused message was last named, in seconds since the start.
    refused_at: AtomicU64,
    started: Instant,
    stopping: AtomicBool,
}

impl Replica {
    /// Locks the core, asks or tells it something, and performs the effects of that.
    pub fn with<T>(&self, work: impl FnOnce(&mut Member) -> T) -> T {
        let value = self.tell(work);
        self.flush_links();
        value
    }

    /// Like [`Replica::with`]; a primary's entries may go out a moment later.
    fn with_unhurried<T>(&self, work: impl FnOnce(&mut Member) -> T) -> T {
        let value = self.tell(work);
        if let Some(links) = self.links.get() {
            links.flush_soon();
        }
        value
    }

    /// What the core wants sent waits in the links afterwards.
    fn tell<T>(&self, work: impl FnOnce(&mut Member) -> T) -> T {
        let mut core = self.core.lock();
        let value = work(&mut core);
        self.perform(&mut core);
        value
    }

    /// Whether [`Replica::stop`] was called.
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Sends what the core wanted sent; the core is not locked.
    fn flush_links(&self) {
        if let Some(links) = self.links.get() {
            links.flush();
        }
    }

    /// The addresses under which this member knows the one of this `_id`.
    fn addresses_of(&self, id: u64) -> Vec<std::sync::Arc<str>> {
        self.core.lock().addresses_of(id).collect()
    }

    /// Counts the changes of role and configuration.
    fn topology_version(&self) -> u64 {
        *self.topology.borrow()
    }

    /// What this member is.
    pub fn role(&self) -> MemberRole {
        *self.role.lock()
    }

    /// Whether this member takes writes.
    pub fn is_writable(&self) -> bool {
        self.writable.load(Ordering::Acquire)
    }

    /// Whether this member can be read: primary or secondary.
    pub fn is_readable(&self) -> bool {
        self.readable.load(Ordering::Acquire)
    }

    /// Counts the changes of role and configuration; for hellos that wait for one.
    pub fn topology(&self) -> watch::Receiver<u64> {
        self.topology.subscribe()
    }

    /// The newest commit that a majority has and that is applied here.
    pub fn commit_point(&self) -> OpTime {
        *self.commit.lock()
    }

    /// The highest cluster time that this member knows.
    pub fn cluster_time(&self) -> Timestamp {
        Timestamp(self.core.lock().cluster_time())
    }

    /// A client or member has shown a cluster time.
    pub fn observe_time(&self, time: Timestamp) {
        let mut core = self.core.lock();
        if time.0 > core.cluster_time() {
            core.observe_time(time.0);
        }
    }

    /// Waits until everything up to `at` fulfils the write concern, or this member is no longer primary. There is no
    /// limit here; dropping the future gives up, which callers do who are `limited`.
    ///
    /// Errors: `NotWritablePrimary`, `UnsatisfiableWriteConcern`, `UnknownReplWriteConcern`.
    pub async fn wait(&self, at: OpTime, concern: WriteConcern, limited: bool) -> Result<WaitOutcome> {
        let disk = concern.journal || concern.w == sheaf_repl::write_concern::W::Majority;
        let (waiter, receiver) = self.waiting(|core| core.wait(at.position(), concern))?;
        // A majority may need this member's own disk. A lone waiter syncs by itself, while the messages travel; not one
        // that would wait for the disk past its time.
        if disk && !limited {
            self.engine.on_durable(at.index, Box::new(|_| ()));
        } else if disk {
            self.engine.ask_for_sync();
        }
        self.resolved(waiter, receiver).await
    }

    /// Waits until it is sure that this member was primary after this call; see [`Member::read_barrier`].
    ///
    /// Errors: `NotWritablePrimary`.
    pub async fn read_barrier(&self) -> Result<WaitOutcome> {
        let (waiter, receiver) = self.waiting(Member::read_barrier)?;
        self.engine.ask_for_sync();
        self.resolved(waiter, receiver).await
    }

    fn waiting(
        &self,
        wait: impl FnOnce(&mut Member) -> Result<WaiterId>,
    ) -> Result<(WaiterId, oneshot::Receiver<WaitOutcome>)> {
        let (sender, receiver) = oneshot::channel();
        let mut core = self.core.lock();
        let waiter = wait(&mut core)?;
        let before = self.waiters.lock().insert(waiter, sender);
        assert!(before.is_none(), "{waiter:?} is waited for twice");
        self.perform(&mut core);
        drop(core);
        self.flush_links();
        Ok((waiter, receiver))
    }

    async fn resolved(
        &self,
        waiter: WaiterId,
        receiver: oneshot::Receiver<WaitOutcome>,
    ) -> Result<WaitOutcome> {
        let given_up = GivenUp(self, waiter);
        let outcome = receiver.await;
        std::mem::forget(given_up);
        outcome.map_err(|_| sheaf_front::front::shutting_down_error())
    }

    /// Makes this member the first of a set; returns when the configuration is durable.
    ///
    /// Errors: `AlreadyInitialized`, `InvalidReplicaSetConfig` and kin.
    pub fn initiate(&self, config: ReplSetConfig, me: u64) -> Result<()> {
        // What a standalone has written to `local` is in the log, from which a set does not take it.
        self.engine.checkpoint()?;
        self.ask_and_wait(&self.reconfigured, |core| core.initiate(config, me)).map(|_| ())
    }

    /// Changes the configuration; returns when it is installed here.
    pub fn reconfig(&self, config: ReplSetConfig, force: bool, me: Option<u64>) -> Result<ConfigVersion> {
        self.ask_and_wait(&self.reconfigured, |core| core.reconfig(config, force, me))
    }

    /// Hands the lead over; see [`Member::step_down`].
    pub fn step_down(&self, catch_up_millis: u64, period_millis: u64, force: bool) -> Result<()> {
        self.ask_and_wait(&self.stepped_down, |core| core.step_down(catch_up_millis, period_millis, force))
    }

    /// Asks the core for something that takes a while, and waits for its answer, which the driver sends to `place`.
    fn ask_and_wait<T>(&self, place: &Asked<T>, ask: impl FnOnce(&mut Member) -> Result<()>) -> Result<T> {
        #[expect(clippy::disallowed_methods, reason = "one answer is sent")]
        let (sender, receiver) = mpsc::channel();
        {
            let mut core = self.core.lock();
            ask(&mut core)?;
            let before = place.lock().replace(sender);
            assert!(before.is_none(), "the core has taken a second request before the first one's answer");
            self.perform(&mut core);
        }
        self.flush_links();
        receiver.recv().expect("the core answers each request that it has taken")
    }

    /// Before this process ends: the lead goes to another member, if there is one that can have it within this time.
    pub fn hand_over(&self, millis: u64) {
        if self.is_writable() {
            // Without a successor it simply ends.
            let _ = self.ask_and_wait(&self.stepped_down, |core| core.hand_over(millis));
        }
    }

    /// Which member of the configuration this process is.
    pub fn find_me(&self, config: &ReplSetConfig) -> Option<u64> {
        let own = self.front.member_address();
        let port = self.front.port.load(Ordering::Relaxed);
        let exactly = config.members.iter().find(|member| *member.host == *own);
        let here = || {
            config.members.iter().find(|member| {
                let Some((host, its_port)) = member.host.rsplit_once(':') else { return false };
                its_port.parse() == Ok(port) && is_this_machine(host)
            })
        };
        exactly.or_else(here).map(|member| member.id)
    }

    /// Writes an entry without effect on data, `{op: "n", o: ...}`.
    ///
    /// Errors: `NotWritablePrimary`.
    pub fn write_noop(&self, o: &DocBuf, interrupt: Interrupt<'_>) -> Result<OpTime> {
        self.engine.write_noop(o.as_raw(), interrupt)
    }

    /// Waits until everything up to this cluster time is applied here; the caller sets the limit.
    pub async fn wait_for_time(&self, time: Timestamp) {
        loop {
            let Some(log) = self.engine.catalog().oplog().cloned() else { return };
            let seen = log.version();
            if self.engine.last_applied().time >= time.0 {
                return;
            }
            std::future::poll_fn(|cx| match log.on_change(seen, cx.waker().clone()) {
                true => std::task::Poll::Ready(()),
                false if log.version() > seen => std::task::Poll::Ready(()),
                false => std::task::Poll::Pending,
            })
            .await;
        }
    }

    /// How far the commit point is behind in milliseconds, and for how many microseconds commits were held back in all.
    pub fn flow_control(&self) -> (u64, u64) {
        (self.lag_millis.load(Ordering::Relaxed), self.slowed_micros.load(Ordering::Relaxed))
    }

    /// How long this member runs.
    pub fn uptime(&self) -> std::time::Duration {
        self.started.elapsed()
    }

    /// The address under which others know this member.
    pub fn own_address(&self) -> String {
        let core = self.core.lock();
        let own = core.config().zip(core.id()).and_then(|(config, me)| config.member(me));
        let own = own.map(|member| member.host.to_string());
        drop(core);
        own.unwrap_or_else(|| self.front.member_address())
    }

    /// This member's `_id`; `None` while it is in no configuration.
    fn own_id(&self) -> Option<u64> {
        self.core.lock().id()
    }

    /// Whether this process has given its link to the member `to` this number. Who is in no configuration, or not in this
    /// member's, is told of any number: he has been removed, or is about to become a member.
    fn has_link(&self, nonce: confirm::Nonce, to: Option<u64>) -> bool {
        let Some(links) = self.links.get() else { return false };
        let hosts = to.map(|id| self.addresses_of(id)).unwrap_or_default();
        match &hosts[..] {
            [] => links.has(nonce),
            hosts => hosts.iter().any(|host| links.nonce_for(host) == Some(nonce)),
        }
    }

    /// Whether the configuration, or one that is coming, has a member at this address.
    fn is_address(&self, host: &str) -> bool {
        self.core.lock().is_address(host)
    }

    /// Where to dial for an address of the configuration.
    pub fn dialled(&self, host: &str) -> String {
        self.links.get().map_or_else(|| host.to_owned(), |links| links.address(host))
    }

    fn set_role(&self, role: MemberRole) {
        let readable = matches!(role.state, MemberState::Primary | MemberState::Secondary);
        self.readable.store(readable, Ordering::Release);
        self.writable.store(role.writable, Ordering::Release);
        *self.role.lock() = role;
        self.topology.send_if_modified(|counter| {
            let changed = *counter != role.topology_version;
            *counter = role.topology_version;
            changed
        });
    }
}

/// A wait whose future was dropped.
struct GivenUp<'r>(&'r Replica, WaiterId);

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        self.0.waiters.lock().remove(&self.1);
        self.0.with(|core| core.cancel_wait(self.1));
    }
}

fn is_this_machine(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    matches!(host, "localhost" | "::1") || host.starts_with("127.") || host == sheaf_front::front::hostname()
}

/// The error of a member that has no configuration yet.
pub fn not_yet_initialized() -> Error {
    Error::new(Code::NOT_YET_INITIALIZED, "no replset config has been received")
}
impl sheaf_expr::ClusterClock for Replica {
    fn cluster_time(&self) -> Timestamp {
        Replica::cluster_time(self)
    }
}
