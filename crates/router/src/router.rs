//! What the connections of a router share.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sheaf_bson::{ClusterTime, Timestamp, Value, doc};
use sheaf_cluster::{Clock, Directory, GoOn, LOCAL_THRESHOLD, ReplicaSet, SetAddress};
use sheaf_errors::{Code, Result, bail};
use sheaf_front::cursors::Cursors;
use sheaf_front::front::{Front, new_object_id};
use sheaf_front::session::Sessions;
use sheaf_server::query_settings::KnownSettings;
use sheaf_server::query_stats::{CACHE_SIZE, QueryStats, RATE_LIMIT};

use crate::accounts::KnownAccounts;
use crate::commit::Settled;
use crate::cursor::RouterCursor;
use crate::decided::Decided;
use crate::gather::Abandoned;
use crate::open_times::OpenTimes;
use crate::session::{OwnSessions, SessionState};
use crate::told::Told;

/// So long before the present all members are expected to have come: shorter than states are kept.
const LATELY: Duration = Duration::from_millis(100);

/// What the connections of a router share.
pub struct Router {
    front: Arc<Front>,
    /// The newest cluster time.
    pub clock: Arc<Clock>,
    /// What is known of shards and databases.
    pub directory: Arc<Directory>,
    /// Open cursors.
    pub cursors: Arc<Cursors<RouterCursor>>,
    /// Sessions and their transactions.
    pub sessions: Sessions<SessionState>,
    /// Users, as the config servers had them last.
    pub(crate) accounts: KnownAccounts,
    /// Sessions for transactions of its own.
    pub(crate) own_sessions: OwnSessions,
    /// Commits that their shards are to be told of.
    pub(crate) settled: Settled,
    /// Commits that their shards are being told of.
    pub(crate) decided: Decided,
    /// The times that open transactions read at.
    pub(crate) open_times: Arc<OpenTimes>,
    /// Commits that are decided, and brought to their ends by nobody's thread.
    pub(crate) finishing: AtomicUsize,
    /// Cursors on shards that are to be closed.
    pub(crate) abandoned: Arc<Abandoned>,
    /// How often a shard has said that this router's view is out of date.
    pub(crate) stale_config: AtomicU64,
    /// What was set for queries of a shape, as the config servers had it last.
    pub(crate) query_settings: KnownSettings,
    /// Figures of what this router was asked.
    pub(crate) query_stats: Arc<QueryStats>,
    /// The parameters of the cluster, and which shards have been told of them.
    pub(crate) parameters_told: Mutex<Told>,
    /// `--localThreshold`, in milliseconds.
    local_threshold: AtomicU64,
}

/// Whoever has the router has its front.
impl Deref for Router {
    type Target = Front;

    fn deref(&self) -> &Front {
        &self.front
    }
}

/// Figures of queries, as far as the parameters let them be made now and later.
fn query_stats(front: &Front) -> Arc<QueryStats> {
    let (stats, memory) = (Arc::new(QueryStats::of_router()), sheaf_front::system::memory_limit());
    stats.configure(&front.parameters, memory);
    let told = stats.clone();
    front.parameters.tell(move |parameters, name| {
        if matches!(name, RATE_LIMIT | CACHE_SIZE) {
            told.configure(parameters, memory);
        }
    });
    stats
}

/// How often a router tells `config.mongos` that it is there.
const PING: Duration = Duration::from_secs(10);

impl Router {
    /// The router behind this front, of the cluster with these config servers.
    pub fn new(front: Arc<Front>, config: &SetAddress) -> Arc<Self> {
        let most = front.parameters.int("maxSessions").max(1) as usize;
        let clock = Arc::<Clock>::default();
        // What `setAuditConfig` has set is asked for as soon as the config servers answer.
        front.audit.iter().for_each(|audit| audit.await_config());
        Arc::new(Router {
            directory: Directory::new(ReplicaSet::new(config, &front.membership), clock.clone()),
            clock,
            cursors: Arc::default(),
            sessions: Sessions::new(&front.memory, most),
            accounts: KnownAccounts::default(),
            own_sessions: OwnSessions::default(),
            settled: Settled::default(),
            decided: Decided::default(),
            open_times: Arc::default(),
            finishing: AtomicUsize::new(0),
            abandoned: Arc::default(),
            stale_config: AtomicU64::new(0),
            query_settings: KnownSettings::default(),
            query_stats: query_stats(&front),
            parameters_told: Mutex::default(),
            local_threshold: AtomicU64::new(LOCAL_THRESHOLD.as_millis() as u64),
            front,
        })
    }

    /// By how much a member that answers may be farther away than the nearest one.
    pub fn local_threshold(&self) -> Duration {
        Duration::from_millis(self.local_threshold.load(Ordering::Relaxed))
    }

    /// Sets that.
    pub fn set_local_threshold(&self, threshold: Duration) {
        self.local_threshold.store(threshold.as_millis() as u64, Ordering::Relaxed);
    }

    /// What every server has.
    pub fn front(&self) -> &Arc<Front> {
        &self.front
    }

    /// The present as a cluster time: the time of day, or what this router has heard of if that is later. Whoever is told of it stamps
    /// above it.
    pub fn present(&self) -> Timestamp {
        let day = Timestamp::from(ClusterTime::from_micros(self.front.clock.now_micros()));
        let present = self.clock.now().map_or(day, |heard| heard.max(day));
        self.clock.reach(present);
        present
    }

    /// The newest time that this router has heard of; or a moment ago, if it has not heard of anything for longer than states are kept.
    pub fn lately(&self) -> Timestamp {
        let before = self.front.clock.now_micros().saturating_sub(LATELY.as_micros() as _);
        let day = Timestamp::from(ClusterTime::from_micros(before));
        let lately = self.clock.now().map_or(day, |heard| heard.max(day));
        self.clock.reach(lately);
        lately
    }

    /// Makes sure that the cluster has an identity, and gives it; the first router of a cluster makes it.
    ///
    /// Errors: those of asking the config servers.
    pub fn cluster_id(&self, go_on: GoOn<'_>) -> Result<sheaf_bson::ObjectId> {
        for _ in 0..2 {
            let version = self.directory.find("version", &doc! {}, go_on)?;
            if let Some(Value::ObjectId(id)) =
                version.first().and_then(|version| version.as_raw().get("clusterId"))
            {
                return Ok(id);
            }
            let version = doc! { "_id": 1, "clusterId": new_object_id() };
            match self.directory.write(&doc! { "insert": "version", "documents": [version.as_raw()] }, go_on)
            {
                // Another router was faster.
                Err(error) if error.code() == Code::DUPLICATE_KEY => {}
                other => other?,
            }
        }
        bail!(Code::INTERNAL_ERROR, "config.version has no clusterId")
    }

    /// Tells `config.mongos` now and then that this router is there, until shutdown.
    pub async fn keep_telling(self: Arc<Self>) {
        while !self.is_shutting_down() {
            let router = self.clone();
            let told = tokio::task::spawn_blocking(move || router.tell());
            // What could not be told is told next time.
            let _ = told.await;
            tokio::select! {
                () = tokio::time::sleep(PING) => {}
                () = self.until_shutdown() => {}
            }
        }
    }

    fn tell(&self) -> Result<()> {
        let go_on = || match self.is_shutting_down() {
            true => Err(sheaf_front::front::shutting_down_error()),
            false => Ok(()),
        };
        self.cluster_id(&go_on)?;
        let ping = doc! {
            "$set": {
                "advisoryHostFQDNs": Value::Array(sheaf_bson::ArrayBuf::new().as_raw()),
                "created": Value::DateTime(self.clock_millis() - self.uptime_millis() as i64),
                "mongoVersion": sheaf_front::version::COMPATIBLE,
                "ping": Value::DateTime(self.clock_millis()),
                "up": self.started.elapsed().as_secs() as i64,
                "waiting": true
            }
        };
        let update = doc! { "q": { "_id": &self.host_and_port() }, "u": ping.as_raw(), "upsert": true };
        self.directory.write(&doc! { "update": "mongos", "updates": [update.as_raw()] }, &go_on)?;
        self.take_over_parameters(None, &go_on)
    }

    pub(crate) fn clock_millis(&self) -> i64 {
        self.front.clock.now_millis()
    }

    /// Forgets sessions that have not been used for as long as shards keep them.
    fn forget_idle_sessions(&self) {
        let minutes = self.parameters.int("localLogicalSessionTimeoutMinutes").max(1) as u64;
        let timeout = Duration::from_secs(60 * minutes);
        let now = self.uptime_millis();
        let idle = self.sessions.those_of_the_next(|session| session.is_idle(now, timeout));
        self.sessions.remove_unused(&idle.iter().collect::<Vec<_>>());
    }

    /// Closes what nobody uses any more.
    pub async fn reap(self: Arc<Self>) {
        const EVERY: Duration = Duration::from_secs(1);
        while !self.is_shutting_down() {
            let timeout = Duration::from_millis(self.parameters.int("cursorTimeoutMillis").max(0) as u64);
            self.cursors.expire(timeout, false);
            self.forget_idle_sessions();
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                () = self.abandoned.wait() => {
                    let router = self.clone();
                    let told = tokio::task::spawn_blocking(move || router.abandoned.kill(&router.clock));
                    // Whoever was not told closes them in time.
                    let _ = told.await;
                }
                () = self.until_shutdown() => {}
            }
        }
    }
}
