//! The server as a whole: the front, and what a mongod has besides.

use std::ops::Deref;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use sheaf_aggregate::STAGES;
use sheaf_bson::DocBuf;
use sheaf_client::pool::Pool;
use sheaf_errors::Result;
use sheaf_exec::write::open_buckets::OpenBuckets;
pub use sheaf_front::front::{Clock, Front, Guest, hostname, new_object_id, shutting_down_error};
use sheaf_front::metrics::Count;
use sheaf_storage::{Catalog, Engine, OpTime};

use crate::accounts::KnownAccounts;
use crate::compaction::AutoCompact;
use crate::cursors::Cursors;
use crate::default_concerns::{Current, Defaults};
use crate::feature_version;
use crate::options::{ClusterRole, MongodOptions};
use crate::query_settings::KnownSettings;
use crate::query_stats::{self, QueryStats};
use crate::quiesce::Quiesce;
use crate::replication::Replica;
use crate::session::{LogicalSessionId, Session, Sessions};
use crate::sharding::conductor::Conductor;
use crate::sharding::moves::Moves;
use crate::sharding::turns::Turns;
use crate::sharding::{OpenTransactions, ShardServer};

/// For how long a member of a cluster keeps the state after each entry: others are read as of a time some moments after it was chosen.
const STATES_KEPT: Duration = Duration::from_millis(500);

/// A mongod: what its connections share.
pub struct Node {
    front: Arc<Front>,
    /// How the server was started, besides what the front has to know.
    pub options: MongodOptions,
    /// Open cursors.
    pub cursors: Arc<Cursors>,
    /// Logical sessions and their transactions.
    pub sessions: Sessions,
    /// Operations that wait within storage now: for a lock (writes all of them, as reads take no
    /// locks), or for a validation or compaction of their own.
    pub lock_waiters: AtomicI64,
    /// Users, as they were read last.
    pub(crate) accounts: KnownAccounts,
    /// The default read and write concern.
    defaults: Defaults,
    /// Counts how often this node began or ceased to be primary: what sessions know from before is asked for again.
    pub role_changes: AtomicU64,
    /// Figures of queries by their shapes.
    pub query_stats: Arc<QueryStats>,
    /// Settings for queries, as they were read last.
    pub query_settings: KnownSettings,
    /// Whoever changes a view holds this until the document that describes it has followed.
    pub views_turn: Mutex<()>,
    /// How often each stage was asked for, in the order of [`STAGES`].
    pub stage_counts: Box<[Count]>,
    /// Where the next measurements of time-series collections go.
    pub open_buckets: Arc<OpenBuckets>,
    /// What is compacted in the background.
    pub auto_compact: AutoCompact,
    /// Connections to other servers, as a client's.
    pub peers: Pool,
    /// Whether this member sends its clients to others, because it ends.
    pub quiesce: Quiesce,
    engine: OnceLock<Engine>,
    replica: OnceLock<Arc<Replica>>,
    sharding: OnceLock<Arc<ShardServer>>,
    conductor: OnceLock<Arc<Conductor>>,
    /// Moves to and from this shard.
    moves: OnceLock<Arc<Moves>>,
    /// Of those who change a collection for the conductor, one does at a time.
    pub ddl_turns: Turns,
}

/// Whoever has the node has its front.
impl Deref for Node {
    type Target = Front;

    fn deref(&self) -> &Front {
        &self.front
    }
}

impl Node {
    /// What every server has.
    pub fn front(&self) -> &Arc<Front> {
        &self.front
    }

    /// A new node behind this front; see [`Mongod::new`](crate::mongod::Mongod::new).
    pub(crate) fn new(front: Arc<Front>, options: MongodOptions) -> Arc<Self> {
        let most = front.parameters.int("maxSessions").max(1) as usize;
        Arc::new(Node {
            options,
            cursors: Arc::default(),
            sessions: Sessions::new(&front.memory, most),
            stage_counts: STAGES.iter().map(|_| Count::default()).collect(),
            open_buckets: Arc::new(OpenBuckets::counted(&front.memory)),
            front,
            lock_waiters: AtomicI64::new(0),
            accounts: KnownAccounts::default(),
            defaults: Defaults::default(),
            role_changes: AtomicU64::new(0),
            query_stats: Arc::default(),
            query_settings: KnownSettings::default(),
            views_turn: Mutex::default(),
            auto_compact: AutoCompact::default(),
            peers: Pool::default(),
            quiesce: Quiesce::default(),
            engine: OnceLock::new(),
            replica: OnceLock::new(),
            sharding: OnceLock::new(),
            conductor: OnceLock::new(),
            moves: OnceLock::new(),
            ddl_turns: Turns::default(),
        })
    }

    /// Hands over the open storage engine; once, before the first connection is accepted.
    pub fn set_engine(&self, engine: Engine) {
        let told = engine.clone();
        let stats = self.query_stats.clone();
        let memory = sheaf_front::system::memory_limit();
        stats.configure(&self.parameters, memory);
        self.parameters.tell(move |parameters, name| match name {
            query_stats::RATE_LIMIT | query_stats::CACHE_SIZE => stats.configure(parameters, memory),
            "journalCommitInterval" => {
                let millis = parameters.int(name).max(1) as u64;
                told.set_journal_commit_interval(Duration::from_millis(millis));
            }
            "syncdelay" => told.set_sync_delay(Duration::from_secs_f64(parameters.double(name).max(0.0))),
            _ => {}
        });
        let kept = engine.clone();
        self.parameters.feature_version_from(move || feature_version::of(&kept));
        assert!(self.engine.set(engine).is_ok(), "the engine is set once");
    }

    /// The storage engine; it is open before the first connection is accepted.
    pub fn engine(&self) -> &Engine {
        self.engine.get().expect("the engine is open before connections are accepted")
    }

    /// Waits until the storage engine is open; for what members do by themselves, which may be earlier.
    pub fn wait_for_engine(&self) {
        self.engine.wait();
    }

    /// The collections as they are now.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.engine().catalog()
    }

    /// The newest entry that readers see.
    pub fn last_applied(&self) -> OpTime {
        self.engine().last_applied()
    }

    /// Takes part in the set of this name; the engine is open.
    ///
    /// Errors: what the folder holds is another set's, or cannot be read.
    pub fn join(self: &Arc<Self>, engine: &Engine, set_name: &str) -> Result<()> {
        let host: Weak<Self> = Arc::downgrade(self);
        let replica = Replica::start(&self.front, host, &self.options.dbpath, engine, set_name)?;
        if self.is_in_cluster() {
            engine.keep_states(STATES_KEPT);
        }
        if let Some(role) = self.options.cluster_role {
            let sessions: Weak<Self> = Arc::downgrade(self);
            let sessions: Weak<dyn OpenTransactions> = sessions;
            let sharding = ShardServer::start(&self.front, engine, &replica, sessions.clone(), role)?;
            // The config servers may become a shard, and must be able to end what they have begun as one.
            let moves = Moves::start(&self.front, sessions, &sharding, engine, &replica)?;
            if role == ClusterRole::Config {
                let conductor = Conductor::start(&self.front, engine, &replica, &sharding, &moves)?;
                assert!(self.conductor.set(conductor).is_ok(), "the conductor is set once");
            }
            assert!(self.moves.set(moves).is_ok(), "the moves are set once");
            assert!(self.sharding.set(sharding).is_ok(), "a shard's machine is set once");
        }
        assert!(self.replica.set(replica).is_ok(), "replication is set once");
        Ok(())
    }

    /// This node as a member of a replica set; `None` alone.
    pub fn replica(&self) -> Option<&Arc<Replica>> {
        self.replica.get()
    }

    /// Whether this node belongs to a sharded cluster.
    pub fn is_in_cluster(&self) -> bool {
        self.options.cluster_role.is_some()
    }

    /// The moves of ranges to and from this shard; `None` on all that belong to no cluster.
    pub fn moves(&self) -> Option<&Arc<Moves>> {
        self.moves.get()
    }

    /// This node as a member of a shard, or of the config servers, on which transactions are written as on a shard; `None` for all
    /// others.
    pub fn sharding(&self) -> Option<&Arc<ShardServer>> {
        self.sharding.get()
    }

    /// The conductor, on a config server.
    pub fn conductor(&self) -> Option<&Arc<Conductor>> {
        self.conductor.get()
    }

    /// Operations that give a collection another key or place, in which this server has a part.
    pub fn resharding_operations(&self) -> Vec<DocBuf> {
        let of_shard = self.moves().map(|moves| moves.resharding_operations());
        let of_conductor = self.conductor().map(|conductor| conductor.resharding_operations());
        of_shard.into_iter().chain(of_conductor).flatten().collect()
    }

    /// The default read and write concern in force now.
    pub fn default_concerns(&self) -> Arc<Current> {
        self.defaults.current(self.engine(), self.replica())
    }

    /// Whether this node writes by itself (expired documents, sessions, its own collections): alone, or as primary.
    pub fn is_writable(&self) -> bool {
        self.replica().is_none_or(|replica| replica.is_writable())
    }

    /// The session of this id, made if there is none; counts as use.
    ///
    /// Errors: `TooManyLogicalSessions`.
    pub fn session(&self, id: LogicalSessionId) -> Result<Arc<Session>> {
        self.sessions.touch(id, self.uptime_millis())
    }

    /// When a session was last used, by the time of day as it is now.
    pub fn last_use_millis(&self, session: &Session) -> i64 {
        let idle = self.uptime_millis().saturating_sub(session.last_used.load(Ordering::Relaxed));
        self.clock.now_millis() - idle as i64
    }
}
