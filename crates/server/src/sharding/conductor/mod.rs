//! The conductor: the service of the config servers' primary by which what concerns several shards changes: collections become sharded,
//! are changed and dropped, ranges are split, merged and moved.
//!
//! It keeps nothing outside `config.*`. What takes several steps is a document in `config.ddl` that names the phase it has reached;
//! each phase can be done again, and the next primary goes on from there. What it means is told in `docs/design/0024-conductor.md`.

mod balancer;
mod chunks;
mod commit;
mod config_shard;
mod consistency;
mod create_database;
mod ddl;
mod drain;
mod drive;
mod drop;
mod lead;
mod log;
mod measured;
mod move_primary;
mod move_range;
mod plan;
mod ranges;
mod refine;
mod rename;
mod reshard;
mod rounds;
mod settings;
mod settings_rules;
mod shard_collection;
mod shards;
mod spans;
mod watch;
mod window;
mod wishes;
mod zones;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use sheaf_bson::{DocBuf, RawDoc, Timestamp, Value, doc};
use sheaf_cluster::{Clock, ReplicaSet};
use sheaf_errors::{Code, Result, bail};
use sheaf_front::front::Front;
use sheaf_replica::{Replica, spawn};
use sheaf_storage::{Engine, Interrupt};

use super::ShardServer;
use super::moves::Moves;
use super::rows::{self, Change};
use super::turns::Turns;

pub use shard_collection::ShardCollection;

/// How often it looks for what an earlier primary has begun.
const LOOK: Duration = Duration::from_millis(200);

const DATABASES: &str = "config.databases";

/// From one round of the balancer to the next.
const ROUND: Duration = Duration::from_millis(500);

/// The collections of the directory, and the keys of their indexes, all of which are unique.
const COLLECTIONS: [(&str, &[&[&str]]); 12] = [
    (DATABASES, &[]),
    ("config.collections", &[]),
    ("config.chunks", &[&["uuid", "min"], &["uuid", "lastmod"]]),
    ("config.tags", &[&["ns", "min"]]),
    ("config.settings", &[]),
    ("config.changelog", &[]),
    ("config.actionlog", &[]),
    ("config.migrations", &[]),
    ("config.ddl", &[]),
    ("config.shards", &[]),
    ("config.removedShards", &[]),
    ("config.reshardingOperations", &[]),
];

/// The conductor on one of the config servers; it works while that is primary.
pub struct Conductor {
    front: Arc<Front>,
    engine: Engine,
    replica: Arc<Replica>,
    /// The config servers as a shard: their part in transactions.
    sharding: Arc<ShardServer>,
    /// Moves to and from the config servers, where they are a shard for documents, too.
    moves: Arc<Moves>,
    clock: Clock,
    /// The shards' sets, by name, with the addresses that the directory has for them.
    sets: Mutex<HashMap<String, (String, Arc<ReplicaSet>)>>,
    /// One DDL at a time in each database.
    databases: Turns,
    /// Counts steps: what is sent in a step is refused by a shard that has heard of a later one.
    steps: AtomicU32,
    /// The term in which the directory's collections were made.
    prepared: Mutex<Option<u64>>,
    balancer: rounds::Balancer,
    /// What is wanted of operations under way that give collections another key or place.
    wishes: wishes::Wishes,
}

impl Conductor {
    /// The conductor of this config server.
    ///
    /// Errors: a thread cannot be started.
    pub fn start(
        front: &Arc<Front>,
        engine: &Engine,
        replica: &Arc<Replica>,
        sharding: &Arc<ShardServer>,
        moves: &Arc<Moves>,
    ) -> Result<Arc<Conductor>> {
        let conductor = Arc::new(Conductor {
            front: front.clone(),
            engine: engine.clone(),
            replica: replica.clone(),
            sharding: sharding.clone(),
            moves: moves.clone(),
            clock: Clock::default(),
            sets: Mutex::default(),
            databases: Turns::default(),
            steps: AtomicU32::new(0),
            prepared: Mutex::new(None),
            balancer: rounds::Balancer::default(),
            wishes: wishes::Wishes::default(),
        });
        let of = Arc::downgrade(&conductor);
        spawn("sheaf-conductor", move || run(&of))?;
        let of = Arc::downgrade(&conductor);
        spawn("sheaf-balancer", move || keep_balanced(&of))?;
        Ok(conductor)
    }

    /// The term in which this member leads.
    ///
    /// Errors: `NotWritablePrimary`.
    fn term(&self) -> Result<u64> {
        let role = self.replica.role();
        if !role.writable {
            bail!(Code::NOT_WRITABLE_PRIMARY, "not primary");
        }
        Ok(role.term)
    }

    /// Makes the directory's collections, once in each term.
    fn prepare(&self, go_on: Interrupt<'_>) -> Result<()> {
        let term = self.term()?;
        if *self.prepared.lock() == Some(term) {
            return Ok(());
        }
        for (namespace, indexes) in COLLECTIONS {
            rows::ensure(&self.engine, namespace, go_on)?;
            let specs: Vec<DocBuf> = indexes
                .iter()
                .map(|fields| {
                    let name: Vec<String> = fields.iter().map(|field| format!("{field}_1")).collect();
                    DocBuf::build(|spec| {
                        spec.append("v", 2);
                        let mut key = spec.document("key");
                        fields.iter().for_each(|field| _ = key.append(field, 1));
                        drop(key);
                        spec.append("name", &name.join("_")).append("unique", true);
                    })
                })
                .collect();
            let specs: Vec<RawDoc<'_>> = specs.iter().map(DocBuf::as_raw).collect();
            if !specs.is_empty() {
                self.engine.create_indexes(namespace, &specs, go_on)?;
            }
        }
        self.guard_settings(go_on)?;
        *self.prepared.lock() = Some(term);
        Ok(())
    }

    /// Changes the directory, and waits until a majority has the change.
    fn change<T>(&self, go_on: Interrupt<'_>, work: impl FnMut(&mut Change) -> Result<T>) -> Result<T> {
        let term = self.term()?;
        let (value, at) = rows::change(&self.engine, go_on, work)?;
        rows::until_majority(&self.replica, at, term, go_on)?;
        Ok(value)
    }

    /// A document of the directory.
    fn get(&self, namespace: &str, id: Value<'_>) -> Result<Option<DocBuf>> {
        rows::get(&self.engine.view()?, namespace, id)
    }

    /// Documents of the directory.
    fn find(&self, namespace: &str, wanted: impl FnMut(RawDoc<'_>) -> bool) -> Result<Vec<DocBuf>> {
        rows::find(&self.engine.view()?, namespace, wanted)
    }

    /// The primary shard of a database.
    ///
    /// Errors: `NamespaceNotFound`.
    fn primary_shard(&self, db: &str) -> Result<String> {
        let found = self.get(DATABASES, Value::String(db))?;
        let primary = found.as_ref().and_then(|found| found.as_raw().get("primary")?.as_str());
        match primary {
            Some(primary) => Ok(primary.to_owned()),
            None => bail!(Code::NAMESPACE_NOT_FOUND, "database {db} not found"),
        }
    }

    /// A time above all that this member has seen.
    fn now(&self) -> Timestamp {
        self.replica.cluster_time()
    }

    /// What shards compare with what they have heard of before.
    fn step(&self) -> Result<Timestamp> {
        let term = self.term()?;
        Ok(Timestamp::new(term as u32, self.steps.fetch_add(1, Ordering::AcqRel) + 1))
    }

    /// Why a work that nobody waits for is not done any more.
    fn until_end(&self) -> Result<()> {
        if self.front.is_shutting_down() {
            return Err(sheaf_front::front::shutting_down_error());
        }
        self.term().map(|_| ())
    }
}

/// Goes on with what was begun and not brought to its end.
fn run(of: &Weak<Conductor>) {
    loop {
        std::thread::sleep(LOOK);
        let Some(conductor) = of.upgrade() else { return };
        if conductor.front.is_shutting_down() {
            return;
        }
        let go_on = || conductor.until_end();
        if conductor.term().is_err() {
            continue;
        }
        let done = conductor.prepare(&go_on).and_then(|()| conductor.resume(&go_on));
        let done = done.and_then(|()| conductor.end_left_moves(&go_on));
        let done = done.and_then(|()| conductor.cut_logs(&go_on));
        if let Err(error) = done {
            tracing::debug!(%error, "the conductor tries again");
        }
    }
}

/// Moves what is not where it should be.
fn keep_balanced(of: &Weak<Conductor>) {
    let mut watches: HashMap<[u8; 16], watch::Watch> = HashMap::new();
    loop {
        std::thread::sleep(ROUND);
        let Some(conductor) = of.upgrade() else { return };
        if conductor.front.is_shutting_down() {
            return;
        }
        if conductor.term().is_err() {
            watches.clear();
            continue;
        }
        let go_on = || conductor.until_end();
        if let Err(error) = conductor.balance(&mut watches, &go_on) {
            tracing::debug!(%error, "a round of the balancer has failed");
        }
    }
}

/// A collection's UUID, as the directory has it.
fn uuid_of(document: RawDoc<'_>, name: &str) -> Option<[u8; 16]> {
    match document.get(name)? {
        Value::Binary(sheaf_bson::Binary { subtype: 4, bytes }) => bytes.try_into().ok(),
        _ => None,
    }
}

/// A UUID as documents have it.
fn uuid_value(uuid: &[u8; 16]) -> Value<'_> {
    Value::Binary(sheaf_bson::Binary { subtype: 4, bytes: uuid })
}

/// The database of a namespace.
fn db_of(namespace: &str) -> &str {
    namespace.split_once('.').map_or(namespace, |(db, _)| db)
}

/// An entry of `config.collections`.
fn collection_entry(
    namespace: &str,
    uuid: &[u8; 16],
    key: RawDoc<'_>,
    unique: bool,
    collation: Option<RawDoc<'_>>,
    at: (Timestamp, i64),
) -> DocBuf {
    let mut entry = doc! {
        "_id": namespace, "lastmodEpoch": sheaf_front::front::new_object_id(), "lastmod": Value::DateTime(at.1),
        "timestamp": at.0, "uuid": uuid_value(uuid),
        "key": key, "unique": unique, "noBalance": false
    };
    if let Some(collation) = collation {
        entry.append("defaultCollation", collation);
    }
    entry
}
