//! `moveRange`, `moveChunk`.
//!
//! | phase | what is done in it |
//! | --- | --- |
//! | `receiving` | the recipient has the collection, and the range marked as being received |
//! | `copying` | the recipient takes the range, while others write in it |
//! | `closing` | the donor is closed |
//! | `catching` | the recipient takes what has changed since |
//! | `entering` | the directory has the new owner |
//! | `opening` | the recipient owns the range, then the donor is open; the range is leaving there |
//! | `reopening` | instead of the last two, where it could not be: the donor opens as it was, what was received is leaving |

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_shard::ShardId;
use sheaf_shard::placement::{Key, KeyPattern};
use sheaf_storage::Interrupt;

use super::chunks::Entry;
use super::ddl::{DDL, Phase, name_of, reason, text, with};
use super::ranges::{Chunks, Which, namespace_of};
use super::{Conductor, db_of, uuid_of, uuid_value};
use crate::args::{Args, Array};
use crate::sharding::participants::name;

impl Conductor {
    /// `{moveChunk: "garden.plants", find | bounds, to: "s1"}`.
    ///
    /// Errors: `NamespaceNotSharded`, `ShardNotFound`; why the range could not be moved.
    pub fn move_chunk(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let namespace = namespace_of(args)?;
        let to: &str = args.required("to")?;
        let find: Option<RawDoc<'_>> = args.optional("find")?;
        let bounds: Option<Array<'_>> = args.optional("bounds")?;
        args.ignore(&[
            "_secondaryThrottle",
            "secondaryThrottle",
            "_waitForDelete",
            "waitForDelete",
            "forceJumbo",
        ]);
        args.finish()?;
        let which = match (find, bounds) {
            (Some(find), None) => Which::Find(find),
            (None, Some(bounds)) => Which::Bounds(bounds.0),
            (Some(_), Some(_)) => bail!(Code::INVALID_OPTIONS, "cannot specify both 'find' and 'bounds'"),
            (None, None) => bail!(Code::INVALID_OPTIONS, "must specify either 'find' or 'bounds'"),
        };
        let began = self.front.clock.now_millis();
        self.move_between(&namespace, to, go_on, |chunks| {
            let chunk = chunks.find(which)?;
            Ok((chunk.min.clone(), chunk.max.clone()))
        })?;
        Ok(doc! { "millis": self.front.clock.now_millis() - began })
    }

    /// `{moveRange: "garden.plants", toShard: "s1", min: {name: "a"}, max: {name: "m"}}`; with one end, up to that of its chunk.
    ///
    /// Errors: as [`Conductor::move_chunk`].
    pub fn move_range(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let namespace = namespace_of(args)?;
        let to: &str = args.required("toShard")?;
        let min: Option<RawDoc<'_>> = args.optional("min")?;
        let max: Option<RawDoc<'_>> = args.optional("max")?;
        args.ignore(&["forceJumbo", "secondaryThrottle", "waitForDelete", "_waitForDelete"]);
        args.finish()?;
        if min.is_none() && max.is_none() {
            bail!(Code::INVALID_OPTIONS, "must specify at least one of 'min' and 'max'");
        }
        self.move_between(&namespace, to, go_on, |chunks| {
            let key = |end: RawDoc<'_>| chunks.entry.pattern.key(end);
            let (min, max) = (min.map(key).transpose()?, max.map(key).transpose()?);
            let from = match (&min, &max) {
                (Some(min), _) => chunks.table.chunk_of(min).clone(),
                // The chunk that ends there, or in which that lies.
                (None, Some(max)) => {
                    let found =
                        chunks.table.chunks().iter().find(|chunk| chunk.min < *max && *max <= chunk.max);
                    found.cloned().unwrap_or_else(|| chunks.table.chunk_of(max).clone())
                }
                (None, None) => chunks.table.chunks()[0].clone(),
            };
            Ok((min.unwrap_or(from.min), max.unwrap_or(from.max)))
        })?;
        Ok(doc! {})
    }

    /// Moves a range of one chunk; nothing happens to one that is there already.
    pub(super) fn move_between(
        &self,
        namespace: &str,
        to: &str,
        go_on: Interrupt<'_>,
        range: impl Fn(&Chunks) -> Result<(Key, Key)>,
    ) -> Result<()> {
        let turn = self.turn(db_of(namespace), go_on)?;
        if self.get("config.shards", Value::String(to))?.is_none() {
            bail!(Code::SHARD_NOT_FOUND, "Could not move the range to shard {to}: Shard {to} not found");
        }
        let chunks = self.change(go_on, |change| Chunks::read(change, namespace))?;
        let (min, max) = range(&chunks)?;
        let from = chunks.table.owner(&min).clone();
        if from.as_str() == to {
            return Ok(());
        }
        // What is wrong with it is said before anything is done.
        chunks.table.move_range(&min, &max, &ShardId::new(to), self.now().into())?;
        let begin = doc! {
            "_id": namespace, "op": "moveRange", "phase": "receiving", "uuid": uuid_value(&chunks.entry.uuid),
            "key": chunks.entry.pattern.document(), "unique": chunks.entry.unique(), "min": min.document(),
            "max": max.document(), "from": from.as_str(), "to": to
        };
        self.perform(&turn, begin, go_on).map(|_| ())
    }

    /// Has shards remove what has left them.
    pub(super) fn clean(&self, go_on: Interrupt<'_>) -> Result<()> {
        for shard in self.shards()? {
            self.tell(&shard.name, &doc! { (name::CLEAN): 1 }, go_on)?;
        }
        Ok(())
    }
}

/// One phase of it.
pub(super) fn phase(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<Phase> {
    let (done, next) = match text(at, "phase") {
        "receiving" => (receive(conductor, at, go_on), "copying"),
        "copying" => (sync(conductor, at, go_on), "closing"),
        "closing" => {
            close(conductor, at, go_on)?;
            (Ok(()), "catching")
        }
        "catching" => (sync(conductor, at, go_on), "entering"),
        "entering" => {
            enter(conductor, at, go_on)?;
            (Ok(()), "opening")
        }
        "opening" => {
            set(conductor, at, text(at, "to"), RawDoc::EMPTY, go_on)?;
            set(conductor, at, text(at, "from"), range_of(at).as_raw(), go_on)?;
            over(conductor, at, go_on)?;
            return Ok(Phase::Over(doc! {}));
        }
        _ => {
            set(conductor, at, text(at, "to"), range_of(at).as_raw(), go_on)?;
            set(conductor, at, text(at, "from"), RawDoc::EMPTY, go_on)?;
            over(conductor, at, go_on)?;
            return Ok(Phase::Refused(reason(at)));
        }
    };
    match done {
        Ok(()) => Ok(Phase::Reached(with(at, &[("phase", next.into())]))),
        Err(error) => Conductor::back(error, at, "reopening", go_on),
    }
}

fn range_of(at: RawDoc<'_>) -> DocBuf {
    doc! { "min": at.get_or_missing("min"), "max": at.get_or_missing("max") }
}

fn pattern_of(at: RawDoc<'_>) -> Result<KeyPattern> {
    KeyPattern::parse(at.get("key").and_then(|key| key.as_doc()).unwrap_or(RawDoc::EMPTY))
}

/// The collection as the directory has it.
fn entry_of(conductor: &Conductor, at: RawDoc<'_>) -> Result<Entry> {
    match conductor.entry(name_of(at))? {
        Some(entry) if Some(entry.uuid) == uuid_of(at, "uuid") => Ok(entry),
        _ => bail!(Code::INTERNAL_ERROR, "config.collections has no entry of {}", name_of(at)),
    }
}

fn receive(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<()> {
    let (namespace, to) = (name_of(at), text(at, "to"));
    let described = conductor.tell(text(at, "from"), &doc! { (name::DESCRIBE): namespace }, go_on)?;
    let described = described.as_raw();
    let entry = entry_of(conductor, at)?;
    let placement = conductor.table(&entry)?.placement(namespace, entry.unique(), &ShardId::new(to));
    let step = conductor.step()?;
    let mut command = command(at, name::RECEIVE, step);
    command.append("options", described.get_or_missing("options"));
    command.append("indexes", described.get_or_missing("indexes"));
    command.append("placement", placement.as_raw());
    conductor.tell(to, &command, go_on).map(|_| ())
}

fn command(at: RawDoc<'_>, name: &str, step: sheaf_bson::Timestamp) -> DocBuf {
    DocBuf::build(|out| {
        out.append(name, name_of(at)).append("step", step);
        for field in ["uuid", "key", "min", "max", "from"] {
            out.append(field, at.get_or_missing(field));
        }
    })
}

fn sync(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<()> {
    let step = conductor.step()?;
    conductor.tell(text(at, "to"), &command(at, name::SYNC, step), go_on).map(|_| ())
}

fn close(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<()> {
    let step = conductor.step()?;
    let command = doc! {
        (name::BLOCK): name_of(at), "step": step, "uuid": at.get_or_missing("uuid"), "key": at.get_or_missing("key"),
        "unique": at.get_or_missing("unique")
    };
    conductor.tell(text(at, "from"), &command, go_on).map(|_| ())
}

fn enter(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<()> {
    let (pattern, to) = (pattern_of(at)?, ShardId::new(text(at, "to")));
    let end = |name: &str| pattern.key(at.get(name).and_then(|end| end.as_doc()).unwrap_or(RawDoc::EMPTY));
    let (min, max) = (end("min")?, end("max")?);
    let since = conductor.now();
    conductor.change(go_on, |change| {
        let chunks = Chunks::read(change, name_of(at))?;
        if *chunks.table.owner(&min) == to {
            // It was entered before.
            return Ok(());
        }
        let changed = chunks.table.move_range(&min, &max, &to, since.into())?;
        chunks.write(change, &changed)?;
        let details = doc! {
            "min": min.document(), "max": max.document(), "from": text(at, "from"), "to": to.as_str()
        };
        conductor.note(change, "moveChunk.commit", name_of(at), details.as_raw())
    })
}

/// Gives a shard the placement that the directory has for it; a range that is not its any more is leaving.
fn set(
    conductor: &Conductor,
    at: RawDoc<'_>,
    shard: &str,
    leaves: RawDoc<'_>,
    go_on: Interrupt<'_>,
) -> Result<()> {
    let entry = entry_of(conductor, at)?;
    let placement = conductor.table(&entry)?.placement(name_of(at), entry.unique(), &ShardId::new(shard));
    let step = conductor.step()?;
    let mut command = doc! {
        (name::SET): name_of(at), "step": step, "uuid": at.get_or_missing("uuid"), "placement": placement.as_raw()
    };
    if !leaves.is_empty() {
        command.append("leaves", leaves);
    }
    conductor.tell(shard, &command, go_on).map(|_| ())
}

fn over(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<()> {
    let id = Value::String(name_of(at));
    conductor.change(go_on, |change| change.remove(DDL, id).map(|_| ()))
}
