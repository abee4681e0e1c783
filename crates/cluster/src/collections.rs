//! Sharded collections as `config.collections` and `config.chunks` describe them, as far as this process has asked.
//!
//! What is believed of a collection is believed until a shard says that it is out of date; that a collection is not sharded is
//! remembered likewise. One operation asks for a namespace at a time, the others wait for what it finds.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use sheaf_bson::{Binary, DocBuf, RawDoc, Timestamp, Value, doc};
use sheaf_errors::{Code, Error, Result};
use sheaf_shard::placement::{Chunk, Key, KeyPattern, Owned, RoutingTable, Version};
use sheaf_shard::{ClusterTime, ShardId};
use sheaf_timeseries::TimeseriesOptions;

use crate::directory::{Directory, GoOn};

/// A sharded collection as the directory describes it.
#[derive(Debug)]
pub struct Sharded {
    /// `<database>.<collection>`.
    pub ns: Arc<str>,
    /// The collection's UUID.
    pub uuid: [u8; 16],
    /// When it came to have this shard key.
    pub timestamp: Timestamp,
    /// Whether the shard key is unique.
    pub unique: bool,
    /// Whether it is not sharded, but has a place of its own, in one piece.
    pub unsplittable: bool,
    /// The collation of queries that name none, where it is not the simple one.
    pub default_collation: Option<DocBuf>,
    /// What it is, where its documents are buckets of measurements.
    pub timeseries: Option<TimeseriesOptions>,
    /// Who owns what.
    pub table: RoutingTable,
}

impl Sharded {
    /// The shard key.
    pub fn pattern(&self) -> &KeyPattern {
        self.table.pattern()
    }

    /// The version that requests to this shard carry.
    pub fn version_of(&self, shard: &str) -> Version {
        self.table.version_of(&ShardId::new(shard))
    }
}

/// What this process believes of a namespace.
#[derive(Debug, Default)]
pub struct Believed {
    /// The sharded collection of this name, if there is one.
    pub sharded: Option<Arc<Sharded>>,
    stale: AtomicBool,
}

/// So many collections that are not sharded are remembered.
const PLAIN_MAX: usize = 100_000;

/// So many chunks are read at a time.
const PAGE: i64 = 20_000;

/// A page that has more may have been cut by the size of replies.
const PAGE_BYTES: usize = 8 << 20;

/// How often a directory is read again that changes while it is read.
const ATTEMPTS: u32 = 8;

/// How often who waits for another's answer is asked whether it should.
const ASK: Duration = Duration::from_millis(20);

/// All that is believed of namespaces.
#[derive(Default)]
pub(crate) struct Collections {
    known: RwLock<HashMap<String, Arc<Believed>, ahash::RandomState>>,
    /// Namespaces that somebody asks for right now.
    asking: Mutex<HashMap<String, Arc<Mutex<()>>>>,
    /// Counts what was forgotten: who has asked before that must not remember the answer.
    forgotten: AtomicU64,
    read_in_part: AtomicU64,
    read_in_full: AtomicU64,
    failed: AtomicU64,
}

/// What a process believes of the cluster, in numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Databases whose primary shard is known.
    pub databases: usize,
    /// Sharded collections that are known.
    pub collections: usize,
    /// How often only what has changed of a collection was asked for.
    pub read_in_part: u64,
    /// How often all of a collection's chunks were asked for.
    pub read_in_full: u64,
    /// How often a collection could not be read.
    pub failed: u64,
}

impl Collections {
    pub(crate) fn figures(&self) -> Figures {
        Figures {
            databases: 0,
            collections: self.known.read().values().filter(|known| known.sharded.is_some()).count(),
            read_in_part: self.read_in_part.load(Ordering::Relaxed),
            read_in_full: self.read_in_full.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
        }
    }

    fn fresh(&self, ns: &str) -> Option<Arc<Believed>> {
        let known = self.known.read().get(ns).cloned();
        known.filter(|believed| !believed.stale.load(Ordering::Acquire))
    }

    fn remember(&self, ns: &str, believed: &Arc<Believed>, forgotten: u64) {
        let mut known = self.known.write();
        if self.forgotten.load(Ordering::SeqCst) != forgotten {
            return;
        }
        if known.len() >= PLAIN_MAX && believed.sharded.is_none() {
            known.retain(|_, believed| believed.sharded.is_some());
        }
        known.insert(ns.to_owned(), believed.clone());
    }

    /// What says that this shard has something is out of date.
    pub(crate) fn has_left(&self, shard: &str) {
        let shard = ShardId::new(shard);
        for believed in self.known.read().values() {
            let has = |sharded: &Arc<Sharded>| sharded.table.shards().any(|owner| *owner == shard);
            if believed.sharded.as_ref().is_some_and(has) {
                believed.stale.store(true, Ordering::Release);
            }
        }
    }

    /// Forgets everything, or what is in this database.
    pub(crate) fn forget(&self, db: Option<&str>) {
        let mut known = self.known.write();
        self.forgotten.fetch_add(1, Ordering::SeqCst);
        match db {
            None => known.clear(),
            Some(db) => known.retain(|ns, _| ns.split_once('.').is_none_or(|(of, _)| of != db)),
        }
    }
}

impl Directory {
    /// What is believed of a namespace; it is asked for if nothing is, or if that was found to be out of date.
    ///
    /// Errors: `ConflictingOperationInProgress`, if it cannot be read for all the changes; those of asking the config servers.
    pub fn collection(&self, ns: &str, go_on: GoOn<'_>) -> Result<Arc<Believed>> {
        if let Some(believed) = self.collections.fresh(ns) {
            return Ok(believed);
        }
        let turn = self.collections.asking.lock().entry(ns.to_owned()).or_default().clone();
        let asked = self.ask_in_turn(ns, &turn, go_on);
        let mut asking = self.collections.asking.lock();
        // The map's own and this one: nobody else waits.
        if Arc::strong_count(&turn) <= 2 {
            asking.remove(ns);
        }
        asked
    }

    fn ask_in_turn(&self, ns: &str, turn: &Mutex<()>, go_on: GoOn<'_>) -> Result<Arc<Believed>> {
        let _turn = loop {
            match turn.try_lock_for(ASK) {
                Some(turn) => break turn,
                None => go_on()?,
            }
        };
        if let Some(believed) = self.collections.fresh(ns) {
            return Ok(believed);
        }
        let forgotten = self.collections.forgotten.load(Ordering::SeqCst);
        let before = self.collections.known.read().get(ns).and_then(|known| known.sharded.clone());
        let read = self.read_collection(ns, before, go_on);
        if read.is_err() {
            self.collections.failed.fetch_add(1, Ordering::Relaxed);
        }
        let sharded = read?;
        let believed = Arc::new(Believed { sharded, stale: AtomicBool::new(false) });
        self.collections.remember(ns, &believed, forgotten);
        Ok(believed)
    }

    /// What is believed of a namespace, if anything is; nobody is asked.
    pub fn known_collection(&self, ns: &str) -> Option<Arc<Believed>> {
        self.collections.fresh(ns)
    }

    /// A shard has said that this is out of date: whoever needs it next asks. What others have found since stays.
    pub fn stale(&self, believed: &Believed) {
        believed.stale.store(true, Ordering::Release);
    }

    fn read_collection(
        &self,
        ns: &str,
        before: Option<Arc<Sharded>>,
        go_on: GoOn<'_>,
    ) -> Result<Option<Arc<Sharded>>> {
        let mut before = before;
        let mut attempt = 0;
        loop {
            let found = self.find("collections", &doc! { "_id": ns }, go_on)?;
            let Some(entry) = found.first().map(|entry| entry.as_raw()) else { return Ok(None) };
            // A collection that lies on one shard, but not on its database's, has an entry too.
            let base = before.take().filter(|before| is_same(entry, before));
            match self.read_table(ns, entry, base, go_on) {
                Err(error)
                    if error.code() == Code::CONFLICTING_OPERATION_IN_PROGRESS && attempt < ATTEMPTS =>
                {
                    go_on()?;
                    std::thread::sleep(Duration::from_millis(5 << attempt.min(5)));
                    attempt += 1;
                }
                read => return read.map(Some),
            }
        }
    }

    fn read_table(
        &self,
        ns: &str,
        entry: RawDoc<'_>,
        base: Option<Arc<Sharded>>,
        go_on: GoOn<'_>,
    ) -> Result<Arc<Sharded>> {
        let described = Described::parse(ns, entry)?;
        let since = base.as_ref().map(|base| base.table.version().lastmod);
        let reads =
            if base.is_some() { &self.collections.read_in_part } else { &self.collections.read_in_full };
        reads.fetch_add(1, Ordering::Relaxed);
        let chunks = self.chunks_since(&described, since, go_on)?;
        let table = match &base {
            Some(base) if chunks.is_empty() => return Ok(base.clone()),
            Some(base) => base.table.changed(chunks)?,
            None => RoutingTable::new(described.pattern, described.uuid, chunks)?,
        };
        Ok(Arc::new(Sharded {
            ns: ns.into(),
            uuid: described.uuid,
            timestamp: described.timestamp,
            unique: described.unique,
            unsplittable: described.unsplittable,
            default_collation: described.default_collation,
            timeseries: described.timeseries,
            table,
        }))
    }

    /// The chunks that have changed after this version; all without one.
    ///
    /// They are read in the order of their changes, a page at a time: what changes meanwhile comes again with a later page, so that
    /// together they are what the last page's snapshot has.
    fn chunks_since(
        &self,
        described: &Described,
        since: Option<Timestamp>,
        go_on: GoOn<'_>,
    ) -> Result<Vec<Chunk>> {
        let uuid = Value::Binary(Binary { subtype: 4, bytes: &described.uuid });
        let mut last = since;
        let mut newest = Newest::default();
        loop {
            let lastmod = last.map(|last| doc! { "$gt": Value::Timestamp(last) });
            let filter = match &lastmod {
                Some(lastmod) => doc! { "uuid": uuid, "lastmod": lastmod.as_raw() },
                None => doc! { "uuid": uuid },
            };
            let command = doc! {
                "find": "chunks", "filter": filter.as_raw(), "sort": { "lastmod": 1 }, "limit": PAGE,
                "batchSize": PAGE, "singleBatch": true, "readConcern": { "level": "majority" }
            };
            let page = crate::directory::first_batch(self.run("config", &command, true, go_on)?.as_raw());
            let bytes: usize = page.iter().map(|chunk| chunk.as_raw().len()).sum();
            for chunk in &page {
                let chunk = fitting(&described.pattern, chunk.as_raw())?;
                last = last.max(Some(chunk.lastmod));
                newest.take(chunk);
            }
            if page.is_empty() || ((page.len() as i64) < PAGE && bytes < PAGE_BYTES) {
                return Ok(newest.0.into_values().collect());
            }
        }
    }
}

/// Chunks by their lowest key, of which those that come later take the place of all that they overlap.
#[derive(Default)]
struct Newest(BTreeMap<Key, Chunk>);

impl Newest {
    fn take(&mut self, chunk: Chunk) {
        let before = self.0.range(..&chunk.min).next_back();
        let mut replaced: Vec<Key> = before
            .filter(|(_, before)| before.max > chunk.min)
            .map(|(min, _)| min.clone())
            .into_iter()
            .collect();
        replaced.extend(self.0.range(&chunk.min..&chunk.max).map(|(min, _)| min.clone()));
        replaced.iter().for_each(|min| _ = self.0.remove(min));
        self.0.insert(chunk.min.clone(), chunk);
    }
}

/// An entry of `config.collections`.
struct Described {
    uuid: [u8; 16],
    timestamp: Timestamp,
    pattern: KeyPattern,
    unique: bool,
    unsplittable: bool,
    default_collation: Option<DocBuf>,
    timeseries: Option<TimeseriesOptions>,
}

impl Described {
    fn parse(ns: &str, entry: RawDoc<'_>) -> Result<Described> {
        let uuid = uuid_of(entry).ok_or_else(|| no_entry(ns, "uuid"))?;
        let key = entry.get("key").and_then(|key| key.as_doc()).ok_or_else(|| no_entry(ns, "key"))?;
        let collation = entry.get("defaultCollation").and_then(|collation| collation.as_doc());
        let is_simple = |collation: &RawDoc<'_>| {
            collation.is_empty()
                || collation.get("locale").and_then(|locale| locale.as_str()) == Some("simple")
        };
        Ok(Described {
            uuid,
            timestamp: timestamp_of(entry, "timestamp").unwrap_or(Timestamp(0)),
            pattern: KeyPattern::parse(key)?,
            unique: entry.get("unique").is_some_and(|unique| unique.truthy()),
            unsplittable: entry.get("unsplittable").is_some_and(|flag| flag.truthy()),
            default_collation: collation.filter(|collation| !is_simple(collation)).map(DocBuf::from),
            timeseries: TimeseriesOptions::of_entry(entry)?,
        })
    }
}

/// Whether the entry is of the collection that is known, with the same shard key: then its chunks are asked for from there on.
fn is_same(entry: RawDoc<'_>, known: &Sharded) -> bool {
    // Buckets that begin elsewhere belong elsewhere.
    TimeseriesOptions::of_entry(entry).is_ok_and(|now| now == known.timeseries)
        && uuid_of(entry) == Some(known.uuid)
        && timestamp_of(entry, "timestamp").unwrap_or(Timestamp(0)) == known.timestamp
}

fn uuid_of(entry: RawDoc<'_>) -> Option<[u8; 16]> {
    match entry.get("uuid")? {
        Value::Binary(Binary { subtype: 4, bytes }) => bytes.try_into().ok(),
        _ => None,
    }
}

fn timestamp_of(entry: RawDoc<'_>, field: &str) -> Option<Timestamp> {
    match entry.get(field)? {
        Value::Timestamp(time) => Some(time),
        _ => None,
    }
}

/// A chunk as `config.chunks` has it.
///
/// Errors: `NoSuchKey`, if a field is missing; `BadValue`, if its bounds are none of the pattern.
pub fn chunk_of(pattern: &KeyPattern, chunk: RawDoc<'_>) -> Result<Chunk> {
    let bound = |field: &str| {
        let bound = chunk.get(field).and_then(|bound| bound.as_doc());
        pattern.key(bound.ok_or_else(|| no_field(chunk, field))?)
    };
    let shard =
        chunk.get("shard").and_then(|shard| shard.as_str()).ok_or_else(|| no_field(chunk, "shard"))?;
    let lastmod = timestamp_of(chunk, "lastmod").ok_or_else(|| no_field(chunk, "lastmod"))?;
    let history = chunk.get("history").and_then(|history| history.as_array());
    let mut history: Vec<Owned> = history
        .into_iter()
        .flat_map(|history| history.values())
        .filter_map(|owned| {
            let owned = owned.as_doc()?;
            let since = ClusterTime::from_bits(timestamp_of(owned, "validAfter")?.0);
            Some(Owned { since, shard: ShardId::new(owned.get("shard")?.as_str()?) })
        })
        .collect();
    if history.first().is_none_or(|newest| newest.shard.as_str() != shard) {
        let since = timestamp_of(chunk, "onCurrentShardSince").unwrap_or(Timestamp(0));
        history.insert(0, Owned { since: ClusterTime::from_bits(since.0), shard: ShardId::new(shard) });
    }
    Ok(Chunk { min: bound("min")?, max: bound("max")?, lastmod, history })
}

/// The same of a chunk that was read after the collection's entry.
///
/// Errors: `ConflictingOperationInProgress`, if it has another key than the entry: `refineCollectionShardKey` has changed both between the two
/// reads.
fn fitting(pattern: &KeyPattern, chunk: RawDoc<'_>) -> Result<Chunk> {
    chunk_of(pattern, chunk).map_err(|error| match error.code() {
        Code::BAD_VALUE => {
            let text = format!("the collection's chunks do not fit its shard key: {}", error.message());
            Error::new(Code::CONFLICTING_OPERATION_IN_PROGRESS, text)
        }
        _ => error,
    })
}

fn no_field(chunk: RawDoc<'_>, field: &str) -> Error {
    let chunk = sheaf_bson::document_text(chunk);
    Error::new(Code::NO_SUCH_KEY, format!("a chunk has no {field} that can be used: {chunk}"))
}

fn no_entry(ns: &str, field: &str) -> Error {
    Error::new(Code::NO_SUCH_KEY, format!("config.collections has no {field} that can be used for {ns}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern() -> KeyPattern {
        KeyPattern::parse(doc! { "a": 1 }.as_raw()).unwrap()
    }

    fn chunk(min: Value<'_>, max: Value<'_>, shard: &str, lastmod: (u32, u32)) -> Chunk {
        let entry = doc! {
            "min": { "a": min }, "max": { "a": max }, "shard": shard,
            "lastmod": Value::Timestamp(Timestamp::new(lastmod.0, lastmod.1)),
            "onCurrentShardSince": Value::Timestamp(Timestamp::new(7, 0))
        };
        chunk_of(&pattern(), entry.as_raw()).unwrap()
    }

    #[test]
    fn an_entry_of_buckets_that_cannot_be_read_is_none_of_plain_documents() {
        let uuid = Value::Binary(Binary { subtype: 4, bytes: &[1; 16] });
        let entry = doc! { "_id": "a.system.buckets.b", "uuid": uuid, "key": { "meta": 1 } };
        let read = |entry: &DocBuf| {
            Described::parse("a.system.buckets.b", entry.as_raw()).map(|read| read.timeseries)
        };
        assert_eq!(read(&entry).unwrap(), None);
        let later = entry.with("timeseriesFields", doc! { "timeField": "t", "ofALaterVersion": 1 }.as_raw());
        let error = read(&later).unwrap_err();
        assert_eq!(error.code(), Code::BAD_VALUE);
        assert!(error.message().contains("ofALaterVersion"), "{}", error.message());
    }

    #[test]
    fn a_chunk_without_a_history_has_its_owner() {
        let chunk = chunk(Value::MinKey, 5.into(), "s0", (1, 0));
        assert_eq!(chunk.shard().as_str(), "s0");
        assert_eq!(chunk.history[0].since, ClusterTime::from_bits(Timestamp::new(7, 0).0));
        assert!(chunk_of(&pattern(), doc! { "min": { "a": 1 }, "max": { "b": 1 } }.as_raw()).is_err());
    }

    #[test]
    fn a_chunk_of_a_key_refined_since_is_read_again_with_its_entry() {
        let refined = doc! {
            "min": { "a": Value::MinKey, "b": Value::MinKey }, "max": { "a": Value::MaxKey, "b": Value::MaxKey },
            "shard": "s0", "lastmod": Value::Timestamp(Timestamp::new(2, 0))
        };
        let longer = KeyPattern::parse(doc! { "a": 1, "b": 1 }.as_raw()).unwrap();
        assert!(fitting(&longer, refined.as_raw()).is_ok());
        let error = fitting(&pattern(), refined.as_raw()).unwrap_err();
        assert_eq!(error.code(), Code::CONFLICTING_OPERATION_IN_PROGRESS, "{}", error.message());
        // What is wrong without any change is not read again.
        let nobodys = doc! { "min": { "a": 1 }, "max": { "a": 2 } };
        assert_eq!(fitting(&pattern(), nobodys.as_raw()).unwrap_err().code(), Code::NO_SUCH_KEY);
    }

    #[test]
    fn what_came_later_takes_the_place_of_what_it_overlaps() {
        let mut newest = Newest::default();
        newest.take(chunk(Value::MinKey, 5.into(), "s0", (1, 0)));
        newest.take(chunk(5.into(), 9.into(), "s0", (1, 1)));
        newest.take(chunk(9.into(), Value::MaxKey, "s1", (1, 2)));
        // A page later: the first two were merged, and the last one was split.
        newest.take(chunk(Value::MinKey, 9.into(), "s0", (1, 3)));
        newest.take(chunk(9.into(), 20.into(), "s1", (1, 4)));
        newest.take(chunk(20.into(), Value::MaxKey, "s1", (1, 5)));
        let table = RoutingTable::new(pattern(), [1; 16], newest.0.into_values().collect()).unwrap();
        assert_eq!(table.chunks().len(), 3);
        assert_eq!(table.version_of(&ShardId::new("s1")).lastmod, Timestamp::new(1, 5));
    }

    #[test]
    fn what_is_forgotten_while_it_is_read_is_not_remembered() {
        let collections = Collections::default();
        let believed = Arc::new(Believed::default());
        collections.remember("a.b", &believed, 0);
        assert!(collections.fresh("a.b").is_some());
        collections.forget(Some("a"));
        assert!(collections.fresh("a.b").is_none());
        collections.remember("a.b", &believed, 0);
        assert!(collections.fresh("a.b").is_none());
        collections.remember("a.b", &believed, 1);
        believed.stale.store(true, Ordering::Release);
        assert!(collections.fresh("a.b").is_none());
    }
}
