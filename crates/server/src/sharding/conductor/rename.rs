//! `renameCollection`, where the collection or the one that has the new name is sharded.
//!
//! | phase | what is done in it |
//! | --- | --- |
//! | `closing` | the primary shard closes a source that is not sharded, if that is still the same; all owners of both close them |
//! | `dropping` | the directory and all shards drop the one that has the new name, if it is sharded |
//! | `renaming` | the primary shard renames, then the other owners do |
//! | `entering` | the directory has the new name |
//! | `opening` | all open it |
//! | `reopening` | instead, where the source has gone or the primary shard has refused: all open what is there as it was |

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_shard::ShardId;
use sheaf_shard::placement::RoutingTable;
use sheaf_storage::Interrupt;
use sheaf_timeseries::split_buckets;

use super::chunks::{CHUNKS, COLLECTIONS, Entry, table_of};
use super::ddl::{DDL, Phase, name_of, reason, text, with};
use super::drop::{close, concerned, drop_everywhere, forget};
use super::{Conductor, db_of, uuid_of, uuid_value};
use crate::args::{Args, Loose};
use crate::commands::ddl::names::check_new_name;
use crate::commands::ddl::rename::check_renamable;
use crate::sharding::participants::name;

const TAGS: &str = "config.tags";

impl Conductor {
    /// `{renameCollection: "garden.plants", to: "garden.herbs", dropTarget: true}`.
    ///
    /// Errors: `CommandFailed` for another database, `NamespaceExists`; those of the primary shard.
    pub fn rename_collection(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let from = super::ranges::namespace_of(args)?;
        let to: &str = args.required("to")?;
        let drop_target = match args.value("dropTarget") {
            Value::Binary(binary) if binary.subtype == 4 => true,
            _ => args.optional::<Loose>("dropTarget")?.is_some_and(|flag| flag.0),
        };
        let uuid: Option<sheaf_storage::Uuid> = args.optional("collectionUUID")?;
        args.ignore(&["stayTemp"]);
        args.finish()?;
        if db_of(&from) != db_of(to) {
            bail!(Code::COMMAND_FAILED, "Source and destination collections must be on the same database.");
        }
        if from == to {
            bail!(Code::ILLEGAL_OPERATION, "Can't rename a collection to itself");
        }
        let turn = self.turn(db_of(&from), go_on)?;
        let (source, target) = (self.entry(&from)?, self.entry(to)?);
        if target.is_some() && !drop_target {
            bail!(Code::NAMESPACE_EXISTS, "Target namespace exists: {to}");
        }
        let known = source.as_ref().map(|source| source.uuid);
        if uuid.is_some_and(|uuid| known.is_some_and(|known| known != *uuid.as_bytes())) {
            bail!(Code::COLLECTION_UUID_MISMATCH, "Collection UUID does not match that specified");
        }
        let primary = self.primary_shard(db_of(&from))?;
        let mut unsharded = None;
        if source.is_none() && target.is_some() {
            unsharded = Some(self.unsharded_source(&from, to, &primary, uuid, go_on)?);
        }
        if source.as_ref().is_some_and(|source| split_buckets(source.namespace()).is_some()) {
            bail!(
                Code::ILLEGAL_OPERATION,
                "the buckets of a time-series collection cannot be renamed: {from}"
            );
        }
        let source = source.map(|source| self.dropping(&source)).transpose()?;
        let target = target.map(|target| self.dropping(&target)).transpose()?;
        let mut begin = doc! {
            "_id": &from, "op": "rename", "phase": "closing", "to": to, "dropTarget": drop_target, "primary": &primary
        };
        for (name, side) in [("source", &source), ("target", &target)] {
            if let Some(side) = side {
                begin.append(name, side.as_raw());
            }
        }
        if let Some(uuid) = unsharded {
            begin.append("uuid", uuid_value(&uuid));
        }
        self.perform(&turn, begin, go_on)
    }

    /// The UUID of a collection that is on the primary shard alone and can be renamed. What is dropped for it does not come back, so
    /// all that the shard could refuse is looked at before, and in the phase `closing` whether it is still the same collection.
    ///
    /// Errors: those of `renameCollection`.
    fn unsharded_source(
        &self,
        from: &str,
        to: &str,
        primary: &str,
        wanted: Option<sheaf_storage::Uuid>,
        go_on: Interrupt<'_>,
    ) -> Result<[u8; 16]> {
        check_renamable(from, "source")?;
        check_renamable(to, "target")?;
        check_new_name(to)?;
        let told = self.tell(primary, &doc! { (name::DESCRIBE): from }, go_on)?;
        if told.as_raw().get("isView").is_some() {
            bail!(Code::COMMAND_NOT_SUPPORTED_ON_VIEW, "cannot rename view: {from}");
        }
        let Some(known) = uuid_of(told.as_raw(), "uuid") else {
            bail!(Code::NAMESPACE_NOT_FOUND, "Source collection {from} does not exist");
        };
        if wanted.is_some_and(|wanted| *wanted.as_bytes() != known) {
            bail!(Code::COLLECTION_UUID_MISMATCH, "Collection UUID does not match that specified");
        }
        Ok(known)
    }

    /// The directory's table of a collection.
    pub(super) fn table(&self, entry: &Entry) -> Result<RoutingTable> {
        let chunks = self.find(CHUNKS, |chunk| uuid_of(chunk, "uuid") == Some(entry.uuid))?;
        table_of(&entry.pattern, entry.uuid, chunks.iter().map(DocBuf::as_raw))
    }

    /// Gives all shards that have something of a collection the placement that the directory has for them, which opens it.
    pub(super) fn open_everywhere(
        &self,
        namespace: &str,
        entry: &Entry,
        shards: &[String],
        go_on: Interrupt<'_>,
    ) -> Result<()> {
        let table = self.table(entry)?;
        for shard in shards {
            let placement = entry.placement(&table, &ShardId::new(shard.as_str()));
            let step = self.step()?;
            let command = doc! {
                (name::PLACE): namespace, "step": step, "uuid": uuid_value(&entry.uuid), "placement": placement.as_raw(),
                "there": true
            };
            self.tell(shard, &command, go_on)?;
        }
        Ok(())
    }
}

fn side<'d>(at: RawDoc<'d>, name: &str) -> Option<RawDoc<'d>> {
    at.get(name).and_then(|side| side.as_doc())
}

/// One phase of it.
pub(super) fn phase(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<Phase> {
    let next = match text(at, "phase") {
        "closing" => {
            // Before anything else: without it there is nothing to drop the target for.
            if let Err(error) = shut_unsharded(conductor, at, go_on) {
                return Conductor::back(error, at, "reopening", go_on);
            }
            for side in [side(at, "source"), side(at, "target")].into_iter().flatten() {
                close(conductor, side, go_on)?;
            }
            "dropping"
        }
        "dropping" => {
            if let Some(target) = side(at, "target") {
                forget(conductor, target, go_on)?;
                drop_everywhere(conductor, target, go_on)?;
            }
            "renaming"
        }
        "renaming" => match rename(conductor, at, go_on) {
            // The target has gone: there is no way back from what passes.
            Err(error) if error.code() == Code::OUT_OF_DISK_SPACE && side(at, "target").is_some() => {
                return Err(error);
            }
            Err(error) => return Conductor::back(error, at, "reopening", go_on),
            Ok(()) => "entering",
        },
        "entering" => {
            enter(conductor, at, go_on)?;
            "opening"
        }
        "opening" => {
            open(conductor, at, text(at, "to"), go_on)?;
            over(conductor, at, go_on)?;
            return Ok(Phase::Over(doc! {}));
        }
        _ => {
            open(conductor, at, name_of(at), go_on)?;
            reopen_target(conductor, at, go_on)?;
            over(conductor, at, go_on)?;
            return Ok(Phase::Refused(reason(at)));
        }
    };
    Ok(Phase::Reached(with(at, &[("phase", next.into())])))
}

fn over(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<()> {
    let id = Value::String(name_of(at));
    conductor.change(go_on, |change| change.remove(DDL, id).map(|_| ()))
}

/// A source that is not sharded: its UUID.
fn unsharded(at: RawDoc<'_>) -> Option<[u8; 16]> {
    side(at, "source").is_none().then(|| uuid_of(at, "uuid")).flatten()
}

/// Nothing changes any more in a source that is not sharded, nor does it go.
///
/// Errors: `NamespaceNotFound`, where it has gone.
fn shut_unsharded(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<()> {
    let Some(uuid) = unsharded(at) else { return Ok(()) };
    let (step, key) = (conductor.step()?, doc! { "_id": 1 });
    let command = doc! {
        (name::SHUT): name_of(at), "step": step, "uuid": uuid_value(&uuid), "key": key.as_raw(), "unique": false,
        "plain": true
    };
    conductor.tell(text(at, "primary"), &command, go_on).map(|_| ())
}

fn rename(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<()> {
    let primary = text(at, "primary");
    // The primary shard knows what else may be in the way.
    let mut shards = match side(at, "source") {
        Some(source) => concerned(conductor, source)?,
        None => vec![primary.to_owned()],
    };
    shards.reverse();
    for shard in shards {
        let step = conductor.step()?;
        let mut command = doc! {
            (name::RENAME): name_of(at), "step": step, "to": text(at, "to"), "dropTarget": at.get_or_missing("dropTarget"),
            "copy": shard != primary
        };
        let source = side(at, "source").unwrap_or(at);
        if let Some(uuid) = source.get("uuid") {
            command.append("uuid", uuid);
        }
        conductor.tell(&shard, &command, go_on)?;
    }
    Ok(())
}

fn enter(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<()> {
    let (from, to) = (name_of(at), text(at, "to"));
    if side(at, "source").is_none() {
        return Ok(());
    }
    let since = conductor.now();
    conductor.change(go_on, |change| {
        let Some(entry) = change.get(COLLECTIONS, Value::String(from))? else { return Ok(()) };
        let changes = [("_id", to.into()), ("timestamp", since.into())];
        let renamed = with(entry.as_raw(), &changes);
        // The name comes first.
        let renamed = DocBuf::build(|out| {
            out.append("_id", to);
            renamed
                .as_raw()
                .iter()
                .filter(|field| field.key() != "_id")
                .for_each(|field| _ = out.append_element(field));
        });
        change.remove(COLLECTIONS, Value::String(from))?;
        change.put(COLLECTIONS, renamed.as_raw())?;
        for tag in change.find(TAGS, |tag| text(tag, "ns") == from)? {
            change.put(TAGS, with(tag.as_raw(), &[("ns", to.into())]).as_raw())?;
        }
        conductor.note(change, "renameCollection", from, doc! { "to": to }.as_raw())
    })
}

fn open(conductor: &Conductor, at: RawDoc<'_>, namespace: &str, go_on: Interrupt<'_>) -> Result<()> {
    if let Some(uuid) = unsharded(at) {
        let step = conductor.step()?;
        let command = doc! { (name::OPEN): namespace, "step": step, "uuid": uuid_value(&uuid) };
        return conductor.tell(text(at, "primary"), &command, go_on).map(|_| ());
    }
    let Some(source) = side(at, "source") else { return Ok(()) };
    let Some(entry) = conductor.entry(namespace)? else {
        bail!(Code::INTERNAL_ERROR, "config.collections has no entry of {namespace}");
    };
    conductor.open_everywhere(namespace, &entry, &concerned(conductor, source)?, go_on)
}

/// A target that was closed and not dropped is as open as it was.
fn reopen_target(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<()> {
    let Some(target) = side(at, "target") else { return Ok(()) };
    match conductor.entry(name_of(target))? {
        Some(entry) if Some(entry.uuid) == uuid_of(target, "uuid") => {
            let shards = concerned(conductor, target)?;
            conductor.open_everywhere(name_of(target), &entry, &shards, go_on)
        }
        // It was dropped before the rename was refused.
        _ => Ok(()),
    }
}
