//! `moveCollection`, `unshardCollection`: a collection goes to one shard, in one piece.

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_shard::ShardId;
use sheaf_shard::placement::{KeyPattern, RoutingTable};
use sheaf_storage::{Interrupt, Uuid};

use crate::args::Args;
use crate::sharding::conductor::chunks::Entry;
use crate::sharding::conductor::ranges::namespace_of;
use crate::sharding::conductor::{Conductor, db_of, uuid_of, uuid_value};
use crate::sharding::hidden::keys_document;
use crate::sharding::participants::name;
use crate::sharding::turns::Turn;

/// A collection as it is now.
pub(super) struct Source {
    pub namespace: String,
    pub primary: String,
    /// Its entry, if the directory has one.
    pub entry: Option<Entry>,
    /// Where it is, if the directory says so.
    pub table: Option<RoutingTable>,
    pub uuid: [u8; 16],
    /// `{uuid, options, indexes, empty}` of one of its shards.
    pub described: DocBuf,
}

/// What becomes of it.
pub(super) struct Wanted<'w> {
    /// The command that asks for it.
    pub command: &'w str,
    /// The operation's name.
    pub id: [u8; 16],
    pub table: RoutingTable,
    pub unique: bool,
    pub unsplittable: bool,
    /// Indexes that it does not have yet.
    pub indexes: Vec<DocBuf>,
    /// The zones' ranges, as documents of `config.tags`.
    pub zones: Vec<DocBuf>,
    /// What the client has said of chunks and collation, for change streams.
    pub told: DocBuf,
}

impl Source {
    pub fn options(&self) -> RawDoc<'_> {
        self.described.as_raw().get("options").and_then(|options| options.as_doc()).unwrap_or(RawDoc::EMPTY)
    }

    pub fn indexes(&self) -> Vec<RawDoc<'_>> {
        let list = self.described.as_raw().get("indexes").and_then(|list| list.as_array());
        list.unwrap_or(RawDoc::EMPTY).values().filter_map(|spec| spec.as_doc()).collect()
    }

    /// The shards that have documents of it, each with the keys of these.
    pub fn donors(&self) -> Vec<DocBuf> {
        let Some(table) = &self.table else { return vec![doc! { "shard": &self.primary }] };
        let donor = |shard: &ShardId| {
            let chunks = table.chunks().iter().filter(|chunk| chunk.shard() == shard);
            let ranges: Vec<_> = chunks.map(|chunk| (chunk.min.document(), chunk.max.document())).collect();
            let keys = keys_document(table.pattern().document(), &ranges);
            let keys = ArrayBuf::of([keys.as_raw()]);
            doc! { "shard": shard.as_str(), "keys": Value::Array(keys.as_raw()) }
        };
        table.shards().map(donor).collect()
    }
}

impl Conductor {
    /// A collection that is to get another key or place.
    ///
    /// Errors: `NamespaceNotFound`.
    pub(super) fn source(&self, namespace: &str, go_on: Interrupt<'_>) -> Result<Source> {
        let primary = self.primary_shard(db_of(namespace))?;
        let entry = self.entry(namespace)?;
        let table = entry.as_ref().map(|entry| self.table(entry)).transpose()?;
        let owner =
            table.as_ref().and_then(|table| table.shards().next().map(|shard| shard.as_str().to_owned()));
        let owner = owner.unwrap_or_else(|| primary.clone());
        let described = self.tell(&owner, &doc! { (name::DESCRIBE): namespace }, go_on)?;
        if described.as_raw().get("isView").is_some_and(|is| is.truthy()) {
            bail!(Code::COMMAND_NOT_SUPPORTED_ON_VIEW, "Namespace {namespace} is a view, not a collection");
        }
        let Some(uuid) = uuid_of(described.as_raw(), "uuid") else {
            bail!(Code::NAMESPACE_NOT_FOUND, "ns {namespace} not found");
        };
        Ok(Source { namespace: namespace.to_owned(), primary, entry, table, uuid, described })
    }

    /// Begins it, and brings it to its end.
    ///
    /// Errors: why it could not be.
    pub(super) fn reshard(
        &self,
        turn: &Turn<'_>,
        source: &Source,
        wanted: &Wanted<'_>,
        go_on: Interrupt<'_>,
    ) -> Result<DocBuf> {
        let new = wanted.table.version().uuid;
        let chunks = wanted.table.chunks().iter();
        let chunks = chunks.map(|chunk| chunk.document(sheaf_front::front::new_object_id(), new));
        let chunks: Vec<DocBuf> = chunks.collect();
        let list = |all: &[DocBuf]| ArrayBuf::of(all.iter().map(DocBuf::as_raw));
        let id_key = doc! { "_id": 1 };
        let old_key = source.entry.as_ref().map_or(id_key.as_raw(), |entry| entry.pattern.document());
        let mut indexes = source.indexes();
        indexes.extend(wanted.indexes.iter().map(DocBuf::as_raw));
        let indexes = ArrayBuf::of(indexes.iter().copied());
        let (chunks, donors, zones) = (list(&chunks), list(&source.donors()), list(&wanted.zones));
        let begin = doc! {
            "_id": &source.namespace, "op": "reshard", "phase": "preparing", "command": wanted.command,
            "id": uuid_value(&wanted.id), "uuid": uuid_value(&new), "source": uuid_value(&source.uuid),
            "primary": &source.primary, "tracked": source.entry.is_some(), "oldKey": old_key,
            "oldUnique": source.entry.as_ref().is_some_and(Entry::unique),
            "oldIndexes": source.described.as_raw().get_or_missing("indexes"), "options": source.options(),
            "indexes": Value::Array(indexes.as_raw()), "key": wanted.table.pattern().document(),
            "unique": wanted.unique, "unsplittable": wanted.unsplittable, "chunks": Value::Array(chunks.as_raw()),
            "donors": Value::Array(donors.as_raw()), "zones": Value::Array(zones.as_raw()), "told": wanted.told.as_raw(),
            "since": Value::DateTime(self.front.clock.now_millis())
        };
        self.wishes.forget(&source.namespace);
        self.perform(turn, begin, go_on)
    }

    /// `{moveCollection: "garden.plants", toShard: "s1"}`.
    ///
    /// Errors: `NamespaceNotFound`, where there is no such collection or it is sharded; `ShardNotFound`; why it could not be moved.
    pub fn move_collection(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let namespace = namespace_of(args)?;
        let to: &str = args.required("toShard")?;
        args.finish()?;
        refuse_own(&namespace)?;
        self.prepare(go_on)?;
        let namespace = self.named_anywhere(&namespace, go_on)?.namespace;
        if let Some(joined) = self.join((&namespace, "moveCollection"), |begun| goes_to(begun, to), go_on)? {
            return Ok(joined);
        }
        let turn = self.turn(db_of(&namespace), go_on)?;
        let source = self.source(&namespace, go_on)?;
        if source.entry.as_ref().is_some_and(|entry| !entry.unsplittable()) {
            bail!(Code::NAMESPACE_NOT_FOUND, "MoveCollection can only be called on an unsharded collection.");
        }
        self.check_recipient(to)?;
        self.in_one_piece(&turn, "moveCollection", &source, to, go_on)
    }

    /// `{unshardCollection: "garden.plants", toShard: "s1"}`; without a shard, to the one that has the least data.
    ///
    /// Errors: `NamespaceNotFound`, `NamespaceNotSharded`, `ShardNotFound`; why it could not be.
    pub fn unshard_collection(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let namespace = namespace_of(args)?;
        let to: Option<&str> = args.optional("toShard")?;
        args.finish()?;
        refuse_own(&namespace)?;
        self.prepare(go_on)?;
        let namespace = self.named(&namespace)?.namespace;
        if let Some(joined) = self.join(
            (&namespace, "unshardCollection"),
            |begun| to.is_none_or(|to| goes_to(begun, to)),
            go_on,
        )? {
            return Ok(joined);
        }
        let turn = self.turn(db_of(&namespace), go_on)?;
        match self.entry(&namespace)? {
            None => {
                bail!(Code::NAMESPACE_NOT_FOUND, "Namespace {namespace} is not sharded or does not exist")
            }
            Some(entry) if entry.unsplittable() => {
                bail!(Code::NAMESPACE_NOT_SHARDED, "Namespace {namespace} is not sharded")
            }
            Some(_) => {}
        }
        let source = self.source(&namespace, go_on)?;
        let to = match to {
            Some(to) => to.to_owned(),
            None => self.emptiest_shard(go_on)?,
        };
        self.check_recipient(&to)?;
        self.in_one_piece(&turn, "unshardCollection", &source, &to, go_on)
    }

    fn in_one_piece(
        &self,
        turn: &Turn<'_>,
        command: &str,
        source: &Source,
        to: &str,
        go_on: Interrupt<'_>,
    ) -> Result<DocBuf> {
        if source.options().get("capped").is_some_and(|capped| capped.truthy()) {
            bail!(
                Code::COMMAND_NOT_SUPPORTED,
                "{command} of a capped collection is not supported by this server"
            );
        }
        let unsplit = source.entry.as_ref().is_none_or(Entry::unsplittable);
        let owner =
            source.table.as_ref().map_or(&*source.primary, |table| table.chunks()[0].shard().as_str());
        if unsplit && owner == to {
            return Ok(doc! {});
        }
        let pattern = KeyPattern::parse(doc! { "_id": 1 }.as_raw())?;
        let new = *Uuid::new_v4().as_bytes();
        let table = RoutingTable::create(pattern, new, &[], &[ShardId::new(to)], self.now().into())?;
        let id = *Uuid::new_v4().as_bytes();
        let wanted = Wanted {
            command,
            id,
            table,
            unique: false,
            unsplittable: true,
            indexes: Vec::new(),
            zones: Vec::new(),
            told: doc! { "numInitialChunks": 1i64 },
        };
        self.reshard(turn, source, &wanted, go_on)
    }

    /// Errors: `ShardNotFound`, where nothing can go there.
    pub(super) fn check_recipient(&self, to: &str) -> Result<()> {
        match self.shards()?.iter().find(|shard| shard.name == to) {
            None => bail!(Code::SHARD_NOT_FOUND, "Shard {to} not found"),
            Some(shard) if shard.draining => bail!(Code::SHARD_NOT_FOUND, "Shard {to} is currently draining"),
            Some(_) => Ok(()),
        }
    }

    /// The shard that has the least data.
    fn emptiest_shard(&self, go_on: Interrupt<'_>) -> Result<String> {
        let mut least: Option<(i64, String)> = None;
        for shard in self.shards()?.into_iter().filter(|shard| !shard.draining) {
            let told = self.ask(&shard.name, &doc! { "listDatabases": 1 }, go_on)?;
            let size = told.as_raw().get("totalSize").and_then(|size| size.as_exact_i64()).unwrap_or(0);
            if least.as_ref().is_none_or(|(of, _)| size < *of) {
                least = Some((size, shard.name));
            }
        }
        match least {
            Some((_, shard)) => Ok(shard),
            None => bail!(Code::SHARD_NOT_FOUND, "There is no shard that is not draining"),
        }
    }
}

/// Whether an operation that was begun puts everything on this shard.
fn goes_to(begun: RawDoc<'_>, shard: &str) -> bool {
    let chunks = begun.get("chunks").and_then(|chunks| chunks.as_array()).unwrap_or(RawDoc::EMPTY);
    chunks.values().filter_map(|chunk| chunk.as_doc()?.get("shard")?.as_str()).all(|owner| owner == shard)
}

/// Errors: `IllegalOperation` for what is the cluster's own.
pub(super) fn refuse_own(namespace: &str) -> Result<()> {
    let (db, collection) = namespace.split_once('.').unwrap_or((namespace, ""));
    if matches!(db, "admin" | "config" | "local") || collection.starts_with("system.") {
        bail!(
            Code::ILLEGAL_OPERATION,
            "Can't move an internal resharding collection or one of the system: {namespace}"
        );
    }
    Ok(())
}
