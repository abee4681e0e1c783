//! The member: what it is made of, and how its core is reached.
//!
//! What it does is in files of its own, one subject each, which add to [`Replica`].

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::time::Instant;

use sheaf_bson::Timestamp;
use sheaf_errors::Result;
use sheaf_front::front::Front;
use sheaf_repl::config::ConfigVersion;
use sheaf_repl::write_concern::WaitOutcome;
use sheaf_repl::{LogPosition, Member, MemberRole, MemberState, Persist, WaiterId};
use sheaf_storage::order::{Condvar, Mutex, rank};
use sheaf_storage::{Engine, OpTime};
use tokio::sync::{oneshot, watch};

use crate::confirm::Confirmations;
use crate::figures::{Buffered, Figures, operations};
use crate::initial_sync::InitialSync;
use crate::links::Links;
use crate::locked::Locked;
use crate::memory::{Memory, Share};
use crate::state::StateFile;
use crate::strangers::Strangers;

/// What the server that a member belongs to does when its office changes.
pub trait Host: Send + Sync {
    /// This member takes writes now. Called on a thread of its own.
    fn stepped_up(&self);

    /// This member takes no more writes.
    fn stepped_down(&self);
}

/// Where the answer to a request goes that the core has taken and not answered yet.
pub(crate) type Asked<T> = Mutex<{ rank::TOLD }, Option<mpsc::Sender<Result<T>>>>;

/// Told of each new commit point, with the core locked.
pub(crate) type CommitListener = Box<dyn Fn(OpTime) + Send + Sync>;

/// What is done without holding the core.
pub(crate) enum Job {
    /// Read entries of the log for the core.
    Fetch { token: u64, low: u64, high: u64, bytes_max: u64 },
    /// Copy the data of another member.
    InitialSync { source: u64, at_least: LogPosition },
    /// The role changed.
    Role { before: MemberRole, now: MemberRole },
}

/// This process as a member of a replica set.
pub struct Replica {
    pub(crate) front: Arc<Front>,
    pub(crate) host: Weak<dyn Host>,
    pub(crate) set_name: String,
    /// The folder of the data.
    pub(crate) dbpath: PathBuf,
    pub(crate) engine: Engine,
    pub(crate) core: Locked,
    /// What the core wants written, in order.
    pub(crate) units: Mutex<{ rank::TOLD }, VecDeque<Persist>>,
    pub(crate) units_work: Condvar,
    pub(crate) state: Mutex<{ rank::STATE_FILE }, StateFile>,
    pub(crate) links: OnceLock<Links>,
    /// The memory that replication takes.
    pub memory: Memory,
    /// Of that, the entries that the core keeps.
    pub(crate) kept: Mutex<{ rank::TOLD }, Share>,
    pub(crate) confirmations: Confirmations,
    pub(crate) strangers: Strangers,
    pub(crate) initial_sync: InitialSync,
    pub(crate) jobs: mpsc::Sender<Job>,
    pub(crate) role: Mutex<{ rank::TOLD }, MemberRole>,
    pub(crate) writable: AtomicBool,
    pub(crate) readable: AtomicBool,
    /// Index up to which flushes may go.
    pub(crate) flushable: AtomicU64,
    /// The configuration has no other member.
    pub(crate) alone: AtomicBool,
    /// Too many others for a majority lack room on their disks.
    pub(crate) others_lack_room: AtomicBool,
    pub(crate) commit: Mutex<{ rank::TOLD }, OpTime>,
    /// Whom to tell of the commit point.
    pub(crate) on_commit: OnceLock<CommitListener>,
    pub(crate) durable_seq: AtomicU64,
    /// The last unit that is in the log and applied.
    pub(crate) applied_seq: AtomicU64,
    pub(crate) topology: watch::Sender<u64>,
    pub(crate) waiters: Mutex<{ rank::TOLD }, HashMap<WaiterId, oneshot::Sender<WaitOutcome>>>,
    pub(crate) stepped_down: Asked<()>,
    pub(crate) reconfigured: Asked<ConfigVersion>,
    /// How far the commit point is behind, for flow control.
    pub(crate) lag_millis: AtomicU64,
    /// How long commits have been held back because of that.
    pub(crate) slowed_micros: AtomicU64,
    /// What `serverStatus` shows.
    pub figures: Figures,
    /// When a refused message was last named, in seconds since the start.
    pub(crate) refused_at: AtomicU64,
    pub(crate) started: Instant,
    pub(crate) stopping: AtomicBool,
}

impl Replica {
    /// Locks the core, asks or tells it something, and performs the effects of that.
    pub fn with<T>(&self, work: impl FnOnce(&mut Member) -> T) -> T {
        let value = self.tell(work);
        self.flush_links();
        value
    }

    /// Like [`Replica::with`]; a primary's entries, and its word of the commit point, may go out a moment later.
    pub(crate) fn with_unhurried<T>(&self, work: impl FnOnce(&mut Member) -> T) -> T {
        let value = self.tell(work);
        if let Some(links) = self.links.get() {
            links.flush_soon();
        }
        value
    }

    /// What the core wants sent waits in the links afterwards.
    pub(crate) fn tell<T>(&self, work: impl FnOnce(&mut Member) -> T) -> T {
        let mut core = self.core.lock();
        let value = work(&mut core);
        self.perform(&mut core);
        value
    }

    /// Whether [`Replica::stop`] was called.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Sends what the core wanted sent; the core is not locked.
    pub(crate) fn flush_links(&self) {
        if let Some(links) = self.links.get() {
            links.flush();
        }
    }

    /// Counts the changes of role and configuration.
    pub(crate) fn topology_version(&self) -> u64 {
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

    /// Index of the last entry of the log, also of one that was only proposed.
    pub fn last_index(&self) -> u64 {
        self.core.lock().log().last
    }

    /// Has each new commit point told from now on, in order; once. The core is locked then, so whoever is told takes no lock under
    /// which somebody asks this member.
    pub fn on_commit_point(&self, told: Box<dyn Fn(OpTime) + Send + Sync>) {
        assert!(self.on_commit.set(told).is_ok(), "one listens to the commit point");
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

    /// Nothing may be stamped below this time as soon as this member is primary ([`observe_ceiling`](sheaf_repl::Member::observe_ceiling)).
    pub fn observe_ceiling(&self, time: Timestamp) {
        self.core.lock().observe_ceiling(time.0);
    }

    /// Draws the line between what is stamped up to a time (`None`: up to `now`, or what is known if that is later) and what comes.
    /// Gives the time, and the index of the last entry that may be on its near side; entries that are proposed from now on are
    /// above it.
    pub fn draw_line(&self, at: Option<Timestamp>, now: Timestamp) -> (Timestamp, u64) {
        let mut core = self.core.lock();
        let known = core.cluster_time();
        let time = at.unwrap_or(now.max(Timestamp(known)));
        if time.0 > known {
            core.observe_time(time.0);
        }
        (time, core.log().last)
    }

    /// How far the commit point is behind in milliseconds, and for how many microseconds commits were held back in all.
    pub fn flow_control(&self) -> (u64, u64) {
        (self.lag_millis.load(Ordering::Relaxed), self.slowed_micros.load(Ordering::Relaxed))
    }

    /// How long this member runs.
    pub fn uptime(&self) -> std::time::Duration {
        self.started.elapsed()
    }

    pub(crate) fn set_role(&self, role: MemberRole) {
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

    /// The set's name.
    pub fn set_name(&self) -> &str {
        &self.set_name
    }

    /// What came and was not yet begun to be applied.
    pub fn buffered(&self) -> Buffered {
        let units = self.units.lock();
        let mut buffered = Buffered::default();
        for entry in units.iter().flat_map(|unit| &unit.entries) {
            buffered.count += operations(&entry.payload);
            buffered.bytes += entry.payload.len() as u64;
        }
        buffered
    }

    /// Replies that wait for other members now.
    pub fn waiting_replies(&self) -> usize {
        self.waiters.lock().len()
    }
}

impl sheaf_expr::ClusterClock for Replica {
    fn cluster_time(&self) -> Timestamp {
        Replica::cluster_time(self)
    }
}
