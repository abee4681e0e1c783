//! `drop` of sharded collections, and `dropDatabase`.
//!
//! | phase | what is done in it |
//! | --- | --- |
//! | `closing` | all owners and the primary shard close the collection |
//! | `forgetting` | the directory forgets it |
//! | `dropping` | all drop it, the primary shard as the last |
//!
//! A database's sharded collections go one after another like that; then the database itself.

use std::collections::BTreeSet;

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_storage::Interrupt;

use super::chunks::{CHUNKS, COLLECTIONS, Entry};
use super::ddl::{DDL, Phase, name_of, text, with};
use super::{Conductor, DATABASES, db_of, uuid_of, uuid_value};
use crate::sharding::participants::name;
use crate::sharding::rows::Change;

const TAGS: &str = "config.tags";

impl Conductor {
    /// Drops a sharded collection. Gives the fields of the reply; nothing happens to one that is not.
    ///
    /// Errors: `CollectionUUIDMismatch`; those of its shards that may not pass.
    pub fn drop_collection(
        &self,
        namespace: &str,
        uuid: Option<[u8; 16]>,
        go_on: Interrupt<'_>,
    ) -> Result<DocBuf> {
        let db = db_of(namespace);
        let turn = self.turn(db, go_on)?;
        let Some(entry) = self.entry(namespace)? else { return Ok(doc! {}) };
        if uuid.is_some_and(|uuid| uuid != entry.uuid) {
            bail!(Code::COLLECTION_UUID_MISMATCH, "Collection UUID does not match that specified");
        }
        let begin = self.dropping(&entry)?;
        self.perform(&turn, begin, go_on)
    }

    /// The document with which a drop begins.
    pub(super) fn dropping(&self, entry: &Entry) -> Result<DocBuf> {
        let namespace = entry.namespace();
        let primary = self.primary_shard(db_of(namespace))?;
        let owners = ArrayBuf::of(self.owners(&entry.uuid)?.iter().map(String::as_str));
        Ok(doc! {
            "_id": namespace, "op": "drop", "phase": "closing", "uuid": uuid_value(&entry.uuid), "primary": &primary,
            "key": entry.pattern.document(), "unique": entry.unique(), "owners": Value::Array(owners.as_raw())
        })
    }

    /// The shards that own chunks of a collection, and those that did lately: they may still have what is to be removed.
    fn owners(&self, uuid: &[u8; 16]) -> Result<BTreeSet<String>> {
        let mut owners = BTreeSet::new();
        self.find(CHUNKS, |chunk| {
            if uuid_of(chunk, "uuid") == Some(*uuid) {
                owners.insert(text(chunk, "shard").to_owned());
                let before = chunk.get("history").and_then(|history| history.as_array());
                let before = before.into_iter().flat_map(|history| history.values());
                owners.extend(before.filter_map(|owned| Some(text(owned.as_doc()?, "shard").to_owned())));
            }
            false
        })?;
        Ok(owners)
    }

    /// Drops a database with all its collections. Gives the fields of the reply.
    ///
    /// Errors: `IllegalOperation` for what is the cluster's own.
    pub fn drop_database(&self, db: &str, go_on: Interrupt<'_>) -> Result<DocBuf> {
        if matches!(db, "admin" | "config" | "local") {
            bail!(Code::ILLEGAL_OPERATION, "Dropping the '{db}' database is prohibited.");
        }
        let turn = self.turn(db, go_on)?;
        if self.get(DATABASES, Value::String(db))?.is_none() {
            return Ok(doc! { "info": "database does not exist" });
        }
        let primary = self.primary_shard(db)?;
        let begin = doc! { "_id": db, "op": "dropDatabase", "phase": "collections", "primary": &primary };
        self.perform(&turn, begin, go_on)
    }
}

/// One phase of a drop.
pub(super) fn phase(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<Phase> {
    let next = match text(at, "phase") {
        "closing" => {
            close(conductor, at, go_on)?;
            "forgetting"
        }
        "forgetting" => {
            forget(conductor, at, go_on)?;
            "dropping"
        }
        _ => {
            drop_everywhere(conductor, at, go_on)?;
            let namespace = name_of(at);
            conductor.change(go_on, |change| change.remove(DDL, Value::String(namespace)).map(|_| ()))?;
            return Ok(Phase::Over(doc! {}));
        }
    };
    Ok(Phase::Reached(with(at, &[("phase", next.into())])))
}

/// One phase of dropping a database.
pub(super) fn database_phase(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<Phase> {
    let db = name_of(at);
    match text(at, "phase") {
        "collections" => {
            for entry in conductor.find(COLLECTIONS, |entry| db_of(text(entry, "_id")) == db)? {
                let dropping = conductor.dropping(&Entry::parse(entry)?)?;
                let dropping = dropping.as_raw();
                close(conductor, dropping, go_on)?;
                forget(conductor, dropping, go_on)?;
                drop_everywhere(conductor, dropping, go_on)?;
            }
            Ok(Phase::Reached(with(at, &[("phase", "database".into())])))
        }
        "database" => {
            drop_on_shards(conductor, at, Some(text(at, "primary")), go_on)?;
            conductor.change(go_on, |change| {
                forget_zones(conductor, change, |namespace| db_of(namespace) == db)?;
                conductor.note(change, "dropDatabase", db, RawDoc::EMPTY)?;
                change.remove(DATABASES, Value::String(db)).map(|_| ())
            })?;
            Ok(Phase::Reached(with(at, &[("phase", "again".into())])))
        }
        _ => {
            // What was on its way there meanwhile would lie there unseen.
            drop_on_shards(conductor, at, None, go_on)?;
            conductor.change(go_on, |change| change.remove(DDL, Value::String(db)).map(|_| ()))?;
            Ok(Phase::Over(doc! { "dropped": db }))
        }
    }
}

/// The shard `told_by` tells change streams of it.
fn drop_on_shards(
    conductor: &Conductor,
    at: RawDoc<'_>,
    told_by: Option<&str>,
    go_on: Interrupt<'_>,
) -> Result<()> {
    let (db, primary) = (name_of(at), text(at, "primary"));
    let shards = conductor.shards()?;
    let others = shards.iter().map(|shard| shard.name.as_str()).filter(|shard| *shard != primary);
    for shard in others.chain([primary]) {
        let step = conductor.step()?;
        let command = doc! { (name::DROP_DATABASE): db, "step": step, "copy": Some(shard) != told_by };
        conductor.tell(shard, &command, go_on)?;
    }
    Ok(())
}

/// All shards that may have something of the collection, the primary shard as the last. One that has left the cluster has nothing of it.
pub(super) fn concerned<'d>(conductor: &Conductor, at: RawDoc<'d>) -> Result<Vec<&'d str>> {
    let primary = text(at, "primary");
    let shards = conductor.shards()?;
    let is_there = |owner: &&str| shards.iter().any(|shard| shard.name == **owner);
    let owners = at.get("owners").and_then(|owners| owners.as_array()).unwrap_or(RawDoc::EMPTY);
    let owners = owners.values().filter_map(|owner| owner.as_str());
    let mut concerned: Vec<&str> = owners.filter(|owner| *owner != primary).filter(is_there).collect();
    concerned.push(primary);
    Ok(concerned)
}

/// All that have something of the collection close it.
pub(super) fn close(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<()> {
    for shard in concerned(conductor, at)? {
        let step = conductor.step()?;
        let command = doc! {
            (name::BLOCK): name_of(at), "step": step, "uuid": at.get_or_missing("uuid"),
            "key": at.get_or_missing("key"), "unique": at.get_or_missing("unique")
        };
        conductor.tell(shard, &command, go_on)?;
    }
    Ok(())
}

/// The directory forgets it.
pub(super) fn forget(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<()> {
    let (namespace, uuid) = (name_of(at), uuid_of(at, "uuid"));
    let chunks = conductor.find(CHUNKS, |chunk| uuid_of(chunk, "uuid") == uuid)?;
    conductor.change(go_on, |change| {
        for chunk in &chunks {
            change.remove(CHUNKS, chunk.as_raw().get_or_missing("_id"))?;
        }
        forget_zones(conductor, change, |of| of == namespace)?;
        conductor.note(change, "dropCollection", namespace, RawDoc::EMPTY)?;
        change.remove(COLLECTIONS, Value::String(namespace)).map(|_| ())
    })
}

fn forget_zones(conductor: &Conductor, change: &mut Change, concerned: impl Fn(&str) -> bool) -> Result<()> {
    for tag in conductor.find(TAGS, |tag| concerned(text(tag, "ns")))? {
        change.remove(TAGS, tag.as_raw().get_or_missing("_id"))?;
    }
    Ok(())
}

/// All that have something of it drop it.
pub(super) fn drop_everywhere(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<()> {
    for shard in concerned(conductor, at)? {
        let step = conductor.step()?;
        let command = doc! {
            (name::DROP): name_of(at), "step": step, "uuid": at.get_or_missing("uuid"), "copy": shard != text(at, "primary")
        };
        conductor.tell(shard, &command, go_on)?;
    }
    Ok(())
}
