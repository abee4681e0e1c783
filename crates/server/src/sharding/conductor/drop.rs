//! `drop` of sharded collections, and `dropDatabase`.
//!
//! | phase | what is done in it |
//! | --- | --- |
//! | `closing` | all shards that have something of the collection close it |
//! | `forgetting` | the directory forgets it |
//! | `dropping` | all drop it, the primary shard as the last |
//!
//! A database's sharded collections go one after another like that; then the database itself.

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
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
        Ok(doc! {
            "_id": namespace, "op": "drop", "phase": "closing", "uuid": uuid_value(&entry.uuid), "primary": &primary,
            "key": entry.pattern.document(), "unique": entry.unique()
        })
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

/// All shards, the primary shard of the collection as the last. What owned something once, or was the database's primary shard, has the
/// collection still, and the directory does not tell.
pub(super) fn concerned(conductor: &Conductor, at: RawDoc<'_>) -> Result<Vec<String>> {
    let primary = text(at, "primary");
    let shards = conductor.shards()?.into_iter().map(|shard| shard.name);
    let mut concerned: Vec<String> = shards.filter(|shard| shard != primary).collect();
    concerned.push(primary.to_owned());
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
        conductor.tell(&shard, &command, go_on)?;
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
        conductor.tell(&shard, &command, go_on)?;
    }
    Ok(())
}
