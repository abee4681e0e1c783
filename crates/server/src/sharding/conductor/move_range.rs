//! `moveRange`, `moveChunk`.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_shard::ShardId;
use sheaf_shard::moves::{Move, MoveId};
use sheaf_shard::placement::Key;
use sheaf_storage::{Interrupt, Uuid};

use super::ranges::{Chunks, Which, namespace_of};
use super::settings::permits_migrations;
use super::{Conductor, db_of};
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

    /// Moves a range of one chunk to another shard, and returns when that owns it, on majorities of the donor, the recipient and the config
    /// servers; nothing happens to a range that is there already. `range` chooses it, from the chunks as they are when it is this move's
    /// turn: of all that changes a database's collections one thing is done at a time, so moves of one database wait for each other, and
    /// those of others do not.
    ///
    /// Reads and writes go on meanwhile; writes to the donor's part of the collection wait for some milliseconds at the end. What has
    /// left is removed from the donor by itself, `orphanCleanupDelaySecs` later; a range cannot return before that.
    ///
    /// If it fails, nothing has changed, and what was copied is removed by itself. Only after `NotWritablePrimary` (this member has lost
    /// its office) and the error of a shutdown is the outcome not known: then the chunks tell.
    ///
    /// Errors: `NamespaceNotSharded`, `ShardNotFound`, those of `range`; `ChunkRangeCleanupPending`, where the recipient still has what it
    /// had of the range before; `ConflictingOperationInProgress` with the reason, where it was given up; those of `go_on`, by which it
    /// is given up if it can be.
    pub(super) fn move_between(
        &self,
        namespace: &str,
        to: &str,
        go_on: Interrupt<'_>,
        range: impl Fn(&Chunks) -> Result<(Key, Key)>,
    ) -> Result<()> {
        let turn = self.turn(db_of(namespace), go_on)?;
        let Some(shard) = self.get("config.shards", Value::String(to))? else {
            bail!(Code::SHARD_NOT_FOUND, "Could not move the range to shard {to}: Shard {to} not found");
        };
        let is_draining = shard.as_raw().get("draining").is_some_and(|draining| draining.truthy());
        let chunks = self.change(go_on, |change| Chunks::read(change, namespace))?;
        if !permits_migrations(chunks.entry.document.as_raw()) {
            bail!(
                Code::CONFLICTING_OPERATION_IN_PROGRESS,
                "Collection is undergoing changes so moveChunk is not allowed."
            );
        }
        let (min, max) = range(&chunks)?;
        // Also where the first chunk is there already: the others would stay, and nobody be told.
        let from = chunks.table.only_chunk_of(&min, &max)?.shard().clone();
        if from.as_str() == to {
            return Ok(());
        }
        if is_draining {
            bail!(Code::SHARD_NOT_FOUND, "Could not move the range to shard {to}: Shard {to} is draining");
        }
        // What is wrong with it is said before anything is done.
        chunks.table.move_range(&min, &max, &ShardId::new(to), self.now().into())?;
        let the_move = Arc::new(Move {
            id: MoveId(*Uuid::new_v4().as_bytes()),
            ns: namespace.into(),
            uuid: chunks.entry.uuid,
            pattern: chunks.entry.pattern.clone(),
            min,
            max,
            from,
            to: ShardId::new(to),
        });
        self.make_room(&the_move, &chunks, go_on)?;
        self.lead(&turn, &the_move, go_on)
    }

    /// Has the recipient make the collection.
    fn make_room(&self, the_move: &Move, chunks: &Chunks, go_on: Interrupt<'_>) -> Result<()> {
        let described =
            self.tell(the_move.from.as_str(), &doc! { (name::DESCRIBE): &*the_move.ns }, go_on)?;
        let described = described.as_raw();
        let placement = chunks.table.placement(&the_move.ns, chunks.entry.unique(), &the_move.to);
        let step = self.step()?;
        let command = doc! {
            (name::MAKE_ROOM): &*the_move.ns, "step": step, "move": the_move.document().as_raw(),
            "options": described.get_or_missing("options"), "indexes": described.get_or_missing("indexes"),
            "placement": placement.as_raw()
        };
        self.tell(the_move.to.as_str(), &command, go_on).map(|_| ())
    }
}
