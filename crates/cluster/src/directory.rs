//! What `config.*` says of shards and databases, as far as this process has asked.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use sheaf_bson::{Binary, DocBuf, RawDoc, Timestamp, Value, doc};
use sheaf_client::Message;
use sheaf_errors::{Code, Error, Result};

use crate::address::SetAddress;
use crate::call::Asker;
use crate::clock::Clock;
use crate::collections::{Collections, Figures};
use crate::failure::error_in;
use crate::preference::Preference;
pub use crate::set::GoOn;
use crate::set::{Look, ReplicaSet, shard_not_found};

/// What is believed of the shards without being asked for again.
const FRESH: Duration = Duration::from_secs(30);

/// A shard: a replica set and its name in the cluster.
#[derive(Clone)]
pub struct Shard {
    /// `_id` in `config.shards`.
    pub name: Arc<str>,
    /// The set.
    pub set: Arc<ReplicaSet>,
    /// Whether it is being emptied.
    pub draining: bool,
}

/// When the config servers did not answer, and what became of it.
type Failed = Option<(Instant, Error)>;

type Asking<'d> = parking_lot::MutexGuard<'d, Failed>;

/// How often who waits for another's answer is asked whether it should.
const ASK: Duration = Duration::from_millis(20);

/// For so long nobody asks again after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// How long the config servers may take where what is known serves as well.
pub const QUICK: Duration = Duration::from_millis(500);

/// Where a database lives, and when that was asked for.
#[derive(Clone)]
struct Known {
    shard: Arc<str>,
    read: Instant,
}

/// What is believed of a database without being asked for again: another router may have dropped it, and it may have been made anew
/// elsewhere.
const FRESH_DATABASE: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Shards {
    by_name: BTreeMap<Arc<str>, Shard>,
    /// When each was added (`topologyTime`): one of this name that is removed and added again may be other machines.
    added: BTreeMap<Arc<str>, u64>,
    read: Option<Instant>,
}

/// What `config.*` says of shards and databases, as far as this process has asked.
pub struct Directory {
    /// For its shards, which have it look again.
    itself: Weak<Directory>,
    config: Arc<ReplicaSet>,
    clock: Arc<Clock>,
    shards: RwLock<Arc<Shards>>,
    databases: RwLock<HashMap<String, Known, ahash::RandomState>>,
    /// Counts what was forgotten: who has asked before that must not remember the answer.
    forgotten: AtomicU64,
    /// Held by who asks for the shards: the others take what that finds.
    asking: Mutex<Failed>,
    pub(crate) collections: Collections,
}

/// The name of the config servers where they are a shard, as MongoDB's.
pub const CONFIG_SHARD: &str = "config";

impl Directory {
    /// The directory on this set of config servers.
    pub fn new(config: Arc<ReplicaSet>, clock: Arc<Clock>) -> Arc<Directory> {
        Arc::new_cyclic(|itself| Directory {
            itself: itself.clone(),
            config,
            clock,
            shards: RwLock::default(),
            databases: RwLock::default(),
            forgotten: AtomicU64::new(0),
            asking: Mutex::new(None),
            collections: Collections::default(),
        })
    }

    /// The config servers.
    pub fn config(&self) -> &Arc<ReplicaSet> {
        &self.config
    }

    /// All shards, by name. What is older than half a minute is asked for again.
    ///
    /// Errors: those of asking the config servers, if nothing is known yet.
    pub fn shards(&self, go_on: GoOn<'_>) -> Result<Vec<Shard>> {
        let known = self.shards.read().clone();
        // The first shard may have been added since; afterwards there is always one.
        if known.by_name.is_empty() || known.read.is_none_or(|read| read.elapsed() > FRESH) {
            if known.by_name.is_empty() {
                self.refresh_shards(known.read, go_on)?;
            } else if let Some(asking) = self.asking.try_lock() {
                // What is known serves while nobody answers.
                let _ = self.read_shards(asking, known.read, &in_time(go_on));
            }
        }
        Ok(self.shards.read().by_name.values().cloned().collect())
    }

    /// Reads anew which shards there are: another router may just have added one.
    ///
    /// Errors: those of asking the config servers; what was known goes on to be.
    pub fn look_for_shards(&self, go_on: GoOn<'_>) -> Result<()> {
        let before = self.shards.read().read;
        self.refresh_shards(before, go_on)
    }

    /// All sets of the cluster: the shards, and the config servers where they are none.
    ///
    /// Errors: as [`Directory::shards`].
    pub fn sets(&self, go_on: GoOn<'_>) -> Result<Vec<Shard>> {
        let mut all = self.shards(go_on)?;
        if all.iter().all(|shard| &*shard.name != CONFIG_SHARD) {
            all.push(self.config_shard());
        }
        Ok(all)
    }

    /// Where each set is reached, as `getShardMap` tells it. What is known serves while nobody answers.
    ///
    /// Errors: as [`Directory::shards`].
    pub fn shard_map(&self, go_on: GoOn<'_>) -> Result<DocBuf> {
        let _ = self.look_for_shards(go_on);
        let sets: Vec<(Arc<str>, SetAddress)> =
            self.sets(go_on)?.into_iter().map(|set| (set.name, set.set.address())).collect();
        Ok(DocBuf::build(|out| {
            let mut map = out.document("map");
            for (name, address) in &sets {
                map.append(name, &address.to_string());
            }
            drop(map);
            let mut hosts = out.document("hosts");
            for (name, address) in &sets {
                for host in &address.hosts {
                    hosts.append(host, &**name);
                }
            }
            drop(hosts);
            let mut strings = out.document("connStrings");
            for (name, address) in &sets {
                strings.append(&address.to_string(), &**name);
            }
        }))
    }

    /// The config servers as a shard: transactions write there as on any other.
    pub fn config_shard(&self) -> Shard {
        Shard { name: CONFIG_SHARD.into(), set: self.config.clone(), draining: false }
    }

    /// The shard of this name, which is asked for if it is not known; or the config servers.
    ///
    /// Errors: `ShardNotFound`; those of asking.
    pub fn shard(&self, name: &str, go_on: GoOn<'_>) -> Result<Shard> {
        if name == CONFIG_SHARD {
            return Ok(self.config_shard());
        }
        let known = self.shards.read().clone();
        if let Some(shard) = known.by_name.get(name) {
            return Ok(shard.clone());
        }
        self.refresh_shards(known.read, go_on)?;
        self.shards.read().by_name.get(name).cloned().ok_or_else(|| shard_not_found(name))
    }

    /// The shard of this name, if its set is the one at this address of `config.shards`.
    ///
    /// Errors: `ShardNotFound`, also if the shard of this name is another set by now; those of asking.
    pub fn shard_at(&self, name: &str, host: &str, go_on: GoOn<'_>) -> Result<Shard> {
        let shard = self.shard(name, go_on)?;
        let is_it = shard.set.name() == host.parse::<SetAddress>()?.name;
        if is_it { Ok(shard) } else { Err(shard_not_found(name)) }
    }

    /// A set that was the shard of this name: what happened there meanwhile is asked of it.
    ///
    /// Errors: `FailedToParse`; this is no address.
    pub fn removed_shard(&self, name: &str, host: &str) -> Result<Shard> {
        let set = ReplicaSet::new(&host.parse()?, &self.config.membership);
        Ok(Shard { name: name.into(), set, draining: false })
    }

    /// What is believed, in numbers.
    pub fn figures(&self) -> Figures {
        Figures { databases: self.databases.read().len(), ..self.collections.figures() }
    }

    /// Forgets everything that was read.
    pub fn forget(&self) {
        self.forgotten.fetch_add(1, Ordering::SeqCst);
        self.databases.write().clear();
        self.collections.forget(None);
        let mut shards = self.shards.write();
        *shards =
            Arc::new(Shards { by_name: shards.by_name.clone(), added: shards.added.clone(), read: None });
    }

    /// Forgets where a database lives, and its collections.
    pub fn forget_database(&self, db: &str) {
        self.forgotten.fetch_add(1, Ordering::SeqCst);
        self.databases.write().remove(db);
        self.collections.forget(Some(db));
    }

    /// Reads `config.shards`, unless somebody has since `before`.
    fn refresh_shards(&self, before: Option<Instant>, go_on: GoOn<'_>) -> Result<()> {
        loop {
            if let Some(asking) = self.asking.try_lock_for(ASK) {
                return self.read_shards(asking, before, go_on);
            }
            go_on()?;
        }
    }

    fn read_shards(&self, mut asking: Asking<'_>, before: Option<Instant>, go_on: GoOn<'_>) -> Result<()> {
        let known = self.shards.read().clone();
        if known.read > before {
            return Ok(());
        }
        if let Some((failed, error)) = &*asking
            && failed.elapsed() < PAUSE
        {
            return Err(error.clone());
        }
        let read = self.read_shards_now(&known, go_on);
        *asking = read.as_ref().err().map(|error| (Instant::now(), error.clone()));
        read
    }

    fn read_shards_now(&self, known: &Shards, go_on: GoOn<'_>) -> Result<()> {
        let (mut by_name, mut added) = (BTreeMap::<Arc<str>, Shard>::new(), BTreeMap::new());
        for entry in self.find("shards", &doc! {}, go_on)? {
            let entry = entry.as_raw();
            let text = |key: &str| entry.get(key).and_then(|value| value.as_str());
            let (Some(name), Some(host)) = (text("_id"), text("host")) else { continue };
            let time = entry.get("topologyTime").map_or(0, |time| match time {
                Value::Timestamp(time) => time.0,
                _ => 0,
            });
            let set = match known.by_name.get(name) {
                Some(shard) if known.added.get(name) == Some(&time) => shard.set.clone(),
                _ if name == CONFIG_SHARD => self.config.clone(),
                _ => {
                    let address = host.parse::<SetAddress>()?;
                    ReplicaSet::of_shard(&address, &self.config.membership, self.look())
                }
            };
            let draining = entry.get("draining").is_some_and(|draining| draining.truthy());
            let name: Arc<str> = name.into();
            added.insert(name.clone(), time);
            by_name.insert(name.clone(), Shard { name, set, draining });
        }
        let stays =
            |shard: &Shard| by_name.get(&shard.name).is_some_and(|now| Arc::ptr_eq(&now.set, &shard.set));
        let left = known.by_name.values().filter(|shard| !stays(shard));
        let left: Vec<Shard> = left.cloned().collect();
        *self.shards.write() = Arc::new(Shards { by_name, added, read: Some(Instant::now()) });
        left.iter().for_each(|shard| self.has_left(shard));
        Ok(())
    }

    /// What a shard does whose members do not answer: it may be no shard any more.
    fn look(&self) -> Look {
        let directory = self.itself.clone();
        Box::new(move |since, go_on| {
            let Some(directory) = directory.upgrade() else { return };
            // If the config servers do not answer, either, the shard is waited for.
            let _ = directory.refresh_shards(Some(since), &in_time(go_on));
        })
    }

    /// A shard is none any more. What was believed of its collections and databases is out of date, and nobody waits for its members.
    fn has_left(&self, shard: &Shard) {
        self.forgotten.fetch_add(1, Ordering::SeqCst);
        self.databases.write().retain(|_, known| known.shard != shard.name);
        self.collections.has_left(&shard.name);
        // The config servers are there for more than being a shard.
        if !Arc::ptr_eq(&shard.set, &self.config) {
            shard.set.leave();
        }
    }

    /// The primary shard of a database, as far as it is known and not to be asked for again; nobody is asked.
    pub fn known_database(&self, db: &str) -> Option<Shard> {
        let is_fresh = |known: &&Known| known.read.elapsed() <= FRESH_DATABASE;
        let name = self.databases.read().get(db).filter(is_fresh)?.shard.clone();
        self.shards.read().by_name.get(&name).cloned()
    }

    /// The primary shard of a database. `None`: there is no such database.
    ///
    /// Errors: those of asking the config servers.
    pub fn database(&self, db: &str, go_on: GoOn<'_>) -> Result<Option<Shard>> {
        let known = self.databases.read().get(db).cloned();
        let Some(known) = known else { return self.read_database(db, go_on) };
        if known.read.elapsed() <= FRESH_DATABASE {
            return self.shard(&known.shard, go_on).map(Some);
        }
        // One asks again, the others go on with what is known meanwhile; and so do all where nobody answers.
        if let Some(entry) = self.databases.write().get_mut(db) {
            entry.read = Instant::now();
        }
        match self.read_database(db, &in_time(go_on)) {
            Err(_) => {
                go_on()?;
                self.shard(&known.shard, go_on).map(Some)
            }
            read => read,
        }
    }

    /// Asks the config servers for a database's primary shard, and remembers it.
    fn read_database(&self, db: &str, go_on: GoOn<'_>) -> Result<Option<Shard>> {
        let forgotten = self.forgotten.load(Ordering::SeqCst);
        let found = self.find("databases", &doc! { "_id": db }, go_on)?;
        let Some(primary) = found.first().and_then(|entry| entry.as_raw().get("primary")?.as_str()) else {
            self.databases.write().remove(db);
            return Ok(None);
        };
        let shard = self.shard(primary, go_on)?;
        let mut databases = self.databases.write();
        if self.forgotten.load(Ordering::SeqCst) == forgotten {
            databases.insert(db.to_owned(), Known { shard: shard.name.clone(), read: Instant::now() });
        }
        Ok(Some(shard))
    }

    /// The primary shard of a database, as far as is known; it is made on the shard that has the fewest if there is none.
    ///
    /// Errors: `ShardNotFound` without shards; `DatabaseDifferCase`; those of the config servers.
    pub fn make_database(&self, db: &str, go_on: GoOn<'_>) -> Result<Shard> {
        match self.database(db, go_on)? {
            Some(shard) => Ok(shard),
            None => self.enter_database(db, None, go_on),
        }
    }

    /// The primary shard of a database, as the config servers have it now; it is made on the shard that has the fewest, or on `wanted`, if
    /// there is none.
    ///
    /// Errors: those of [`Directory::make_database`]; `NamespaceExists` if it lives on another shard than `wanted`.
    pub fn enter_database(&self, db: &str, wanted: Option<&str>, go_on: GoOn<'_>) -> Result<Shard> {
        let mut command = doc! { "_configsvrCreateDatabase": db };
        if let Some(name) = wanted {
            command.append("primaryShardId", &*self.shard(name, go_on)?.name);
        }
        // Asked for twice it is made once.
        self.run("admin", &command, true, go_on)?;
        let Some(shard) = self.read_database(db, go_on)? else {
            return Err(Error::new(Code::NAMESPACE_NOT_FOUND, format!("database {db} not found")));
        };
        right_one(db, shard, wanted)
    }

    /// Enters a database that lives on this shard, unless there is one of this name.
    ///
    /// Errors: `DatabaseDifferCase`; those of the config servers.
    pub fn adopt_database(&self, db: &str, primary: &str, go_on: GoOn<'_>) -> Result<()> {
        let now = self.clock.now().unwrap_or(Timestamp(1 << 32));
        let uuid = *uuid::Uuid::new_v4().as_bytes();
        let entry = doc! {
            "_id": db,
            "primary": primary,
            "version": {
                "uuid": Value::Binary(Binary { subtype: 4, bytes: &uuid }),
                "timestamp": Value::Timestamp(now),
                "lastMod": 1
            }
        };
        self.check_case(db, go_on)?;
        match self.write(&doc! { "insert": "databases", "documents": [entry.as_raw()] }, go_on) {
            // Another router was faster.
            Err(error) if error.code() == Code::DUPLICATE_KEY => Ok(()),
            other => other,
        }
    }

    /// Two databases must not differ by case alone.
    fn check_case(&self, db: &str, go_on: GoOn<'_>) -> Result<()> {
        for entry in self.find("databases", &doc! {}, go_on)? {
            let name = entry.as_raw().get("_id").and_then(|name| name.as_str()).unwrap_or_default();
            if name != db && name.eq_ignore_ascii_case(db) {
                let text = format!(
                    "can't have 2 databases that just differ on case  have: {name} want to add: {db}"
                );
                return Err(Error::new(Code::DATABASE_DIFFER_CASE, text));
            }
        }
        Ok(())
    }

    /// The documents of `config.<collection>` that match.
    ///
    /// Errors: those of asking the config servers.
    pub fn find(&self, collection: &str, filter: &DocBuf, go_on: GoOn<'_>) -> Result<Vec<DocBuf>> {
        let command = doc! {
            "find": collection, "filter": filter.as_raw(), "batchSize": i32::MAX,
            "readConcern": { "level": "majority" }
        };
        let reply = self.run("config", &command, true, go_on)?;
        Ok(first_batch(reply.as_raw()))
    }

    /// Writes to `config.*` with majority, as a command against `config`.
    ///
    /// Errors: the first of its write errors; those of asking.
    pub fn write(&self, command: &DocBuf, go_on: GoOn<'_>) -> Result<()> {
        let command = DocBuf::from(command.as_raw()).with("writeConcern", doc! { "w": "majority" }.as_raw());
        let reply = self.run("config", &command, false, go_on)?;
        write_error(reply.as_raw()).map_or(Ok(()), Err)
    }

    /// Has the config servers' primary run a command, and gives its reply.
    ///
    /// Errors: that of the reply; those of asking.
    pub fn run(&self, db: &str, command: &DocBuf, again: bool, go_on: GoOn<'_>) -> Result<DocBuf> {
        run(&self.config, &self.clock, db, command, again, go_on)
    }
}

/// Goes on for [`QUICK`] at the longest.
fn in_time(go_on: GoOn<'_>) -> impl Fn() -> Result<()> {
    no_longer_than(QUICK, go_on)
}

/// Goes on for so long, and then ends with `NetworkTimeout`: for what can be done without.
pub fn no_longer_than(most: Duration, go_on: GoOn<'_>) -> impl Fn() -> Result<()> {
    let began = Instant::now();
    move || match began.elapsed() < most {
        true => go_on(),
        false => Err(Error::new(Code::NETWORK_TIMEOUT, "no answer in time")),
    }
}

/// Has a set's primary run a command, and gives its reply.
///
/// Errors: that of the reply; those of asking.
pub fn run(
    set: &Arc<ReplicaSet>,
    clock: &Clock,
    db: &str,
    command: &DocBuf,
    again: bool,
    go_on: GoOn<'_>,
) -> Result<DocBuf> {
    let mut message = Message::new();
    message.begin(0, |body| {
        body.append_all(command.as_raw());
        clock.append(body, None);
        body.append("$db", db);
    });
    let answer = set.ask(&mut message, &Asker { preference: Preference::default(), again, go_on })?;
    clock.see(answer.reply());
    match error_in(answer.reply()) {
        Some(error) => Err(error),
        None => Ok(answer.into_reply()),
    }
}

/// The documents of a cursor's first batch.
pub fn first_batch(reply: RawDoc<'_>) -> Vec<DocBuf> {
    let batch = reply.get("cursor").and_then(|cursor| cursor.as_doc()?.get("firstBatch")?.as_array());
    let entries = batch.into_iter().flat_map(|batch| batch.values());
    entries.filter_map(|entry| entry.as_doc().map(DocBuf::from)).collect()
}

/// The first error of single writes, or of the write concern.
fn write_error(reply: RawDoc<'_>) -> Option<Error> {
    let errors = reply.get("writeErrors").and_then(|errors| errors.as_array());
    let first = errors.and_then(|errors| errors.values().next()?.as_doc());
    let error = first.or_else(|| reply.get("writeConcernError")?.as_doc())?;
    let code = error.get("code").and_then(|code| code.as_exact_i64()).unwrap_or(1) as i32;
    Some(Error::new(Code(code), error.get("errmsg").and_then(|text| text.as_str()).unwrap_or_default()))
}

fn right_one(db: &str, shard: Shard, wanted: Option<&str>) -> Result<Shard> {
    match wanted {
        Some(wanted) if wanted != &*shard.name => {
            let text = format!(
                "database already created on a primary which is different from {wanted}: {db} is on {}",
                shard.name
            );
            Err(Error::new(Code::NAMESPACE_EXISTS, text))
        }
        _ => Ok(shard),
    }
}
