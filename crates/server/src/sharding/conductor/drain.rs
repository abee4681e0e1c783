//! Shards that leave the cluster: `removeShard`, `startShardDraining`, `stopShardDraining`, `shardDrainingStatus`, `commitShardRemoval`.
//!
//! A shard that is being drained has `draining: true` in `config.shards`. Nothing new is placed on it, and the balancer moves its chunks
//! away; its databases go by `movePrimary`. When it has neither, its document goes.

use std::collections::BTreeSet;

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value, doc};
use sheaf_cluster::{QUICK, no_longer_than};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_storage::Interrupt;

use super::chunks::{CHUNKS, COLLECTIONS};
use super::ddl::{name_of, text, with};
use super::shard_collection::shown;
use super::{Conductor, DATABASES, uuid_of};
use crate::args::Args;
use crate::sharding::rows::Change;

pub(super) const SHARDS: &str = "config.shards";
const TAGS: &str = "config.tags";

/// Which sets were shards, `{_id: "s1", host: "set/host:port,..."}`: another one does not get the name (`addShard`).
const REMOVED_SHARDS: &str = "config.removedShards";

/// What is left on a shard.
struct Remaining {
    /// Of sharded collections: the balancer moves them.
    chunks: i64,
    jumbo: i64,
    /// The collections of these, by their UUIDs.
    sharded: BTreeSet<[u8; 16]>,
    /// Collections that are not sharded, and are there by themselves.
    collections: Vec<String>,
    databases: Vec<String>,
}

/// So many bytes of names are told of each kind: a reply has its limit, and whoever moves what is listed asks again.
const NAMES_BYTES: usize = 1 << 20;

/// Those of these names that fit into a reply.
fn some_of(names: &[String]) -> &[String] {
    let mut bytes = 0;
    let fitting = names.iter().take_while(|name| {
        bytes += name.len();
        bytes <= NAMES_BYTES
    });
    &names[..fitting.count()]
}

/// Of so many collections it is said why their ranges stay.
const REASONS: usize = 10;

fn waits<'f>(failed: impl Iterator<Item = (&'f String, &'f String)>) -> String {
    let (mut told, mut others) = (String::new(), 0);
    for (at, (namespace, why)) in failed.enumerate() {
        match at < REASONS {
            true => told.push_str(&format!("; ranges of {namespace} wait: {why}")),
            false => others += 1,
        }
    }
    if others > 0 {
        told.push_str(&format!("; so do ranges of {others} more collections"));
    }
    told
}

impl Remaining {
    fn is_empty(&self) -> bool {
        self.chunks == 0 && self.collections.is_empty() && self.databases.is_empty()
    }

    fn append_to(&self, reply: &mut DocBuf, waits: &str) {
        let counts = doc! {
            "chunks": self.chunks, "dbs": self.databases.len() as i64,
            "collectionsToMove": self.collections.len() as i64, "jumboChunks": self.jumbo
        };
        reply.append("remaining", counts.as_raw());
        self.append_to_move(reply, if self.chunks > 0 { waits } else { "" });
    }

    /// What is told in words: that there is something to move, and what ranges wait for. Empty, if neither is so.
    fn note(&self, waits: &str) -> String {
        let unnamed = |list: &[String]| list.len() - some_of(list).len();
        let mut note = match self.collections.is_empty() && self.databases.is_empty() {
            true => String::new(),
            false => "you need to call moveCollection for collectionsToMove and afterwards movePrimary for the dbsToMove".to_owned(),
        };
        match (unnamed(&self.collections), unnamed(&self.databases)) {
            (0, 0) => {}
            (collections, databases) => note.push_str(&format!(
                "; {collections} more collections and {databases} more databases are not listed"
            )),
        }
        if note.is_empty() { waits.trim_start_matches("; ").to_owned() } else { note + waits }
    }

    /// What clients have to move by themselves, and what ranges wait for. Most collections that are not sharded go with their database.
    fn append_to_move(&self, reply: &mut DocBuf, waits: &str) {
        let names = |list: &[String]| ArrayBuf::of(some_of(list).iter().map(String::as_str));
        let note = self.note(waits);
        if !note.is_empty() {
            reply.append("note", &note);
        }
        reply.append("dbsToMove", Value::Array(names(&self.databases).as_raw()));
        reply.append("collectionsToMove", Value::Array(names(&self.collections).as_raw()));
    }
}

/// The shard that a command names as its own value.
fn shard_in(args: &mut Args<'_>) -> Result<String> {
    let command = args.command();
    let shard = match args.own_value() {
        Value::String(shard) => shard.to_owned(),
        other => bail!(
            Code::TYPE_MISMATCH,
            "BSON field '{command}.{command}' is the wrong type '{}', expected type 'string'",
            other.type_name()
        ),
    };
    args.finish()?;
    if shard == sheaf_cluster::CONFIG_SHARD {
        bail!(
            Code::ILLEGAL_OPERATION,
            "Cannot run {command} on the config shard; use transitionToDedicatedConfigServer instead"
        );
    }
    Ok(shard)
}

fn is_draining(shard: RawDoc<'_>) -> bool {
    shard.get("draining").is_some_and(|draining| draining.truthy())
}

impl Conductor {
    /// `{removeShard: "s1"}`: begins to drain the shard, tells how far that is, and removes it when nothing is left.
    ///
    /// Errors: `ShardNotFound`; `IllegalOperation` for the last shard; `ZoneStillInUse`.
    pub fn remove_shard(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let shard = shard_in(args)?;
        self.prepare(go_on)?;
        self.drain(&shard, &|| Ok(None), go_on)
    }

    /// Begins to drain a shard, tells how far that is, and removes it when nothing is left and `leave` has no reply that says otherwise.
    ///
    /// Errors: as [`Conductor::remove_shard`]; those of `leave`.
    pub(super) fn drain(
        &self,
        shard: &str,
        leave: &dyn Fn() -> Result<Option<DocBuf>>,
        go_on: Interrupt<'_>,
    ) -> Result<DocBuf> {
        if self.begin_draining(shard, go_on)? {
            let mut reply =
                doc! { "msg": "draining started successfully", "state": "started", "shard": shard };
            self.remaining(shard)?.append_to_move(&mut reply, "");
            return Ok(reply);
        }
        let remaining = self.remaining(shard)?;
        if !remaining.is_empty() {
            let mut reply = doc! { "msg": "draining ongoing", "state": "ongoing" };
            remaining.append_to(&mut reply, &self.what_ranges_wait_for(&remaining)?);
            return Ok(reply);
        }
        if let Some(reply) = leave()? {
            return Ok(reply);
        }
        self.forget_shard(shard, go_on)?;
        Ok(doc! { "msg": "removeshard completed successfully", "state": "completed", "shard": shard })
    }

    /// `{startShardDraining: "s1"}`.
    ///
    /// Errors: as [`Conductor::remove_shard`].
    pub fn start_draining(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let shard = shard_in(args)?;
        self.prepare(go_on)?;
        self.begin_draining(&shard, go_on)?;
        Ok(doc! {})
    }

    /// `{stopShardDraining: "s1"}`.
    ///
    /// Errors: `ShardNotFound`.
    pub fn stop_draining(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let shard = shard_in(args)?;
        self.prepare(go_on)?;
        self.change(go_on, |change| {
            let known = change.get(SHARDS, Value::String(&shard))?.ok_or_else(|| not_found(&shard))?;
            if !is_draining(known.as_raw()) {
                return Ok(());
            }
            let kept = DocBuf::build(|out| {
                for field in known.as_raw().iter().filter(|field| field.key() != "draining") {
                    out.append_element(field);
                }
            });
            change.put(SHARDS, kept.as_raw())?;
            self.note(change, "removeShard.stop", "", doc! { "shard": shard.as_str() }.as_raw())
        })?;
        Ok(doc! {})
    }

    /// `{shardDrainingStatus: "s1"}`.
    ///
    /// Errors: `ShardNotFound`; `IllegalOperation`, if it is not being drained.
    pub fn draining_status(&self, args: &mut Args<'_>, _: Interrupt<'_>) -> Result<DocBuf> {
        let shard = shard_in(args)?;
        self.check_draining(&shard)?;
        let remaining = self.remaining(&shard)?;
        let mut reply = if remaining.is_empty() {
            doc! { "msg": "draining completed successfully", "state": "drainingComplete", "shard": shard.as_str() }
        } else {
            doc! { "msg": "draining ongoing", "state": "ongoing", "shard": shard.as_str() }
        };
        if !remaining.is_empty() {
            remaining.append_to(&mut reply, &self.what_ranges_wait_for(&remaining)?);
        }
        Ok(reply)
    }

    /// `{commitShardRemoval: "s1"}`. Nothing happens to one that is not there any more.
    ///
    /// Errors: `IllegalOperation`, if it is not being drained or something is left on it.
    pub fn commit_removal(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let shard = shard_in(args)?;
        self.prepare(go_on)?;
        if self.get(SHARDS, Value::String(&shard))?.is_none() {
            return Ok(doc! {});
        }
        self.check_draining(&shard)?;
        if !self.remaining(&shard)?.is_empty() {
            bail!(Code::ILLEGAL_OPERATION, "Shard {shard} cannot be removed: it is not completely drained");
        }
        self.forget_shard(&shard, go_on)?;
        Ok(doc! {})
    }

    fn check_draining(&self, shard: &str) -> Result<()> {
        let known = self.get(SHARDS, Value::String(shard))?.ok_or_else(|| not_found(shard))?;
        if !is_draining(known.as_raw()) {
            bail!(Code::ILLEGAL_OPERATION, "Shard {shard} is not currently draining");
        }
        Ok(())
    }

    /// Why ranges of the shard stay where they are, as the balancer has found it.
    fn what_ranges_wait_for(&self, remaining: &Remaining) -> Result<String> {
        let failed = self.balancer.failed.lock().clone();
        if failed.is_empty() || remaining.sharded.is_empty() {
            return Ok(String::new());
        }
        let mut namespaces = BTreeSet::new();
        self.find(COLLECTIONS, |entry| {
            if uuid_of(entry, "uuid").is_some_and(|uuid| remaining.sharded.contains(&uuid)) {
                namespaces.insert(name_of(entry).to_owned());
            }
            false
        })?;
        Ok(waits(failed.iter().filter(|(namespace, _)| namespaces.contains(*namespace))))
    }

    /// Whether the shard is being drained from now on, and was not before.
    fn begin_draining(&self, shard: &str, go_on: Interrupt<'_>) -> Result<bool> {
        self.change(go_on, |change| {
            let known = change.get(SHARDS, Value::String(shard))?.ok_or_else(|| not_found(shard))?;
            if is_draining(known.as_raw()) {
                return Ok(false);
            }
            let others = change.find(SHARDS, |other| name_of(other) != shard)?;
            if others.iter().all(|other| is_draining(other.as_raw())) {
                bail!(
                    Code::ILLEGAL_OPERATION,
                    "Operation not allowed because it would remove the last shard"
                );
            }
            check_zones(change, known.as_raw(), &others)?;
            change.put(SHARDS, with(known.as_raw(), &[("draining", Value::Bool(true))]).as_raw())?;
            self.note(change, "removeShard.start", "", doc! { "shard": shard }.as_raw())?;
            Ok(true)
        })
    }

    fn remaining(&self, shard: &str) -> Result<Remaining> {
        let whole = |entry: RawDoc<'_>| entry.get("unsplittable").is_some_and(|flag| flag.truthy());
        let whole = self.find(COLLECTIONS, whole)?;
        let (mut chunks, mut jumbo, mut collections) = (0, 0, Vec::new());
        let mut sharded = BTreeSet::new();
        self.find(CHUNKS, |chunk| {
            if text(chunk, "shard") != shard {
                return false;
            }
            let uuid = uuid_of(chunk, "uuid");
            match whole.iter().find(|entry| uuid_of(entry.as_raw(), "uuid") == uuid) {
                Some(entry) => collections.push(shown(name_of(entry.as_raw()))),
                None => {
                    chunks += 1;
                    sharded.extend(uuid);
                    jumbo += i64::from(chunk.get("jumbo").is_some_and(|jumbo| jumbo.truthy()));
                }
            }
            false
        })?;
        let databases = self.find(DATABASES, |db| text(db, "primary") == shard)?;
        let databases = databases.iter().map(|db| name_of(db.as_raw()).to_owned()).collect();
        Ok(Remaining { chunks, jumbo, sharded, collections, databases })
    }

    /// Takes the shard out of the directory, unless something has come to it.
    fn forget_shard(&self, shard: &str, go_on: Interrupt<'_>) -> Result<()> {
        let set = self.set(shard);
        let known = self.change(go_on, |change| {
            let known = change.get(SHARDS, Value::String(shard))?;
            if let Some(known) = &known {
                change.remove(SHARDS, Value::String(shard))?;
                let host = known.as_raw().get_or_missing("host");
                change.put(REMOVED_SHARDS, doc! { "_id": shard, "host": host }.as_raw())?;
                self.note(change, "removeShard", "", doc! { "shard": shard }.as_raw())?;
            }
            Ok(known)
        })?;
        let left = self.remaining(shard)?;
        match known {
            // A router that had not heard of the draining has put a database there meanwhile.
            Some(known) if !left.is_empty() => {
                self.change(go_on, |change| change.put(SHARDS, known.as_raw()))?;
                bail!(
                    Code::CONFLICTING_OPERATION_IN_PROGRESS,
                    "something has come to shard {shard} meanwhile"
                )
            }
            _ => {
                // What its set does by itself from here on is told by a later time than that of the removal. One that is gone does nothing.
                if let Ok(set) = set {
                    self.clock.reach(self.now());
                    let in_time = no_longer_than(QUICK, go_on);
                    let _ =
                        sheaf_cluster::run(&set, &self.clock, "admin", &doc! { "ping": 1 }, true, &in_time);
                }
                Ok(())
            }
        }
    }
}

/// A zone that has ranges keeps a shard.
fn check_zones(change: &mut Change, shard: RawDoc<'_>, others: &[DocBuf]) -> Result<()> {
    let zones = |shard: RawDoc<'_>| -> Vec<String> {
        let list = shard.get("tags").and_then(|tags| tags.as_array()).unwrap_or(RawDoc::EMPTY);
        list.values().filter_map(|zone| zone.as_str().map(str::to_owned)).collect()
    };
    for zone in zones(shard) {
        let has_another = others.iter().any(|other| zones(other.as_raw()).contains(&zone));
        if !has_another && !change.find(TAGS, |tag| text(tag, "tag") == zone)?.is_empty() {
            bail!(
                Code::ZONE_STILL_IN_USE,
                "Operation not allowed because it would remove the only shard for zone {zone} which has a chunk range is \
                 associated with it"
            );
        }
    }
    Ok(())
}

fn not_found(shard: &str) -> Error {
    Error::new(Code::SHARD_NOT_FOUND, format!("Shard {shard} does not exist"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_reply_lists_as_many_names_as_fit() {
        let remaining = |count: usize| Remaining {
            chunks: 0,
            jumbo: 0,
            sharded: BTreeSet::new(),
            collections: (0..count).map(|n| format!("{n:0200}")).collect(),
            databases: vec!["garden".to_owned()],
        };
        let shown = |count: usize| {
            let mut reply = doc! {};
            remaining(count).append_to_move(&mut reply, ". And so on");
            let listed =
                reply.as_raw().get("collectionsToMove").and_then(|list| list.as_array()).unwrap().count();
            (listed, reply.as_raw().get("note").and_then(|note| note.as_str()).unwrap().to_owned())
        };
        let (listed, note) = shown(3);
        assert_eq!(listed, 3);
        assert!(note.ends_with("for the dbsToMove. And so on"), "{note}");
        let (listed, note) = shown(100_000);
        assert_eq!(listed, NAMES_BYTES / 200);
        assert!(note.contains("; 94758 more collections and 0 more databases are not listed"), "{note}");
        // Where there is nothing to be moved by hand, nothing is asked for.
        let chunks = Remaining { chunks: 1, collections: vec![], databases: vec![], ..remaining(0) };
        assert_eq!(
            chunks.note("; ranges of garden.plants wait: so it is"),
            "ranges of garden.plants wait: so it is"
        );
        assert_eq!(chunks.note(""), "");
    }

    #[test]
    fn a_note_gives_reasons_for_some_collections() {
        let failed = |count: usize| -> BTreeMap<String, String> {
            (0..count).map(|n| (format!("garden.{n:02}"), "so it is".to_owned())).collect()
        };
        assert_eq!(waits(failed(0).iter()), "");
        assert_eq!(waits(failed(1).iter()), "; ranges of garden.00 wait: so it is");
        let told = waits(failed(12).iter());
        assert!(told.contains("garden.09 wait") && !told.contains("garden.10"), "{told}");
        assert!(told.ends_with("; so do ranges of 2 more collections"), "{told}");
    }
}
