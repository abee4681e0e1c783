//! Shards that leave the cluster: `removeShard`, `startShardDraining`, `stopShardDraining`, `shardDrainingStatus`, `commitShardRemoval`.
//!
//! A shard that is being drained has `draining: true` in `config.shards`. Nothing new is placed on it, and the balancer moves its chunks
//! away; its databases go by `movePrimary`. When it has neither, its document goes.

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_storage::Interrupt;

use super::chunks::{CHUNKS, COLLECTIONS};
use super::ddl::{name_of, text, with};
use super::{Conductor, DATABASES, uuid_of};
use crate::args::Args;
use crate::sharding::rows::Change;

pub(super) const SHARDS: &str = "config.shards";
const TAGS: &str = "config.tags";

/// What is left on a shard.
struct Remaining {
    /// Of sharded collections: the balancer moves them.
    chunks: i64,
    jumbo: i64,
    /// Collections that are not sharded, and are there by themselves.
    collections: Vec<String>,
    databases: Vec<String>,
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

    /// What clients have to move by themselves, and what ranges wait for. Most collections that are not sharded go with their database.
    fn append_to_move(&self, reply: &mut DocBuf, waits: &str) {
        let names = |list: &[String]| ArrayBuf::of(list.iter().map(String::as_str));
        let note = "you need to call moveCollection for collectionsToMove and afterwards movePrimary for the dbsToMove";
        reply.append("note", &format!("{note}{waits}"));
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
            remaining.append_to(&mut reply, &self.what_ranges_wait_for());
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
            remaining.append_to(&mut reply, &self.what_ranges_wait_for());
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

    /// Why ranges stay where they are, as the balancer has found it.
    fn what_ranges_wait_for(&self) -> String {
        let failed = self.balancer.failed.lock();
        failed.iter().map(|(namespace, why)| format!("; ranges of {namespace} wait: {why}")).collect()
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
        self.find(CHUNKS, |chunk| {
            if text(chunk, "shard") != shard {
                return false;
            }
            let uuid = uuid_of(chunk, "uuid");
            match whole.iter().find(|entry| uuid_of(entry.as_raw(), "uuid") == uuid) {
                Some(entry) => collections.push(name_of(entry.as_raw()).to_owned()),
                None => {
                    chunks += 1;
                    jumbo += i64::from(chunk.get("jumbo").is_some_and(|jumbo| jumbo.truthy()));
                }
            }
            false
        })?;
        let databases = self.find(DATABASES, |db| text(db, "primary") == shard)?;
        let databases = databases.iter().map(|db| name_of(db.as_raw()).to_owned()).collect();
        Ok(Remaining { chunks, jumbo, collections, databases })
    }

    /// Takes the shard out of the directory, unless something has come to it.
    fn forget_shard(&self, shard: &str, go_on: Interrupt<'_>) -> Result<()> {
        let known = self.change(go_on, |change| {
            let known = change.get(SHARDS, Value::String(shard))?;
            if known.is_some() {
                change.remove(SHARDS, Value::String(shard))?;
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
            _ => Ok(()),
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
