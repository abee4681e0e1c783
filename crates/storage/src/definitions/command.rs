//! Commands: every change of the catalog is a document, in the log as an operation `c`. Running and recovering are the
//! same code: [`Command::apply`] turns a catalog into the next one.

use std::sync::Arc;

use rocksdb::WriteBatch;
use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Error, Result, bail};
use uuid::Uuid;

use crate::catalog::{Catalog, Collection, CollectionState, id_index, mark_id_index, split};
use crate::critical::must;
use crate::db::{Cf, Db};
use crate::definitions::{Definitions, Garbage, garbage_key};
use crate::index::{Index, KeysBy, index_entries, side_ident};
use crate::keys::catalog_key;
use crate::oplog;
use crate::write::CreateCollection;

/// Who tells readers of the log of a change of definitions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Told {
    /// This server's log: it is an event of change streams.
    #[default]
    Here,
    /// Another shard's log, or none: here it only follows what is done to a collection of several shards, or goes with data that move.
    /// The entry has `fromMigrate`.
    Elsewhere,
}

impl Told {
    fn append_to<S: sheaf_bson::Sink>(self, doc: &mut sheaf_bson::DocWriter<'_, S>) {
        if self == Told::Elsewhere {
            doc.append("fromMigrate", true);
        }
    }
}

/// One DDL command as the oplog has it.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    /// Full name of the collection that it is about.
    target: String,
    pub uuid: Option<Uuid>,
    /// See [`Told`].
    pub told: Told,
    /// `{create: "name", ...}` and so on. What only storage needs is in a field `sheaf`.
    o: DocBuf,
}

/// What a command changes.
pub(crate) struct Applied {
    pub catalog: Catalog,
    puts: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    pub garbage: Vec<Garbage>,
    /// Collections that are gone: tailing cursors must hear of it.
    pub gone: Vec<Arc<Collection>>,
}

impl Applied {
    fn new(catalog: Catalog) -> Applied {
        Applied { catalog, puts: Vec::new(), garbage: Vec::new(), gone: Vec::new() }
    }

    pub fn put(&self, db: &Db, batch: &mut WriteBatch) {
        let cf = db.cf(Cf::Catalog);
        for (key, value) in &self.puts {
            match value {
                Some(value) => batch.put_cf(cf, key, value),
                None => batch.delete_cf(cf, key),
            }
        }
    }

    fn save(&mut self, collection: Collection) {
        let key = catalog_key::of(catalog_key::COLLECTION, collection.ident).to_vec();
        self.puts.push((key, Some(collection.to_doc().into_bytes())));
        self.catalog.put(Arc::new(collection));
    }

    fn remove(&mut self, collection: &Arc<Collection>) {
        self.catalog.remove(&collection.uuid);
        for kind in [catalog_key::COLLECTION, catalog_key::COUNTERS] {
            self.puts.push((catalog_key::of(kind, collection.ident).to_vec(), None));
        }
        let mut prefixes = vec![(Cf::Records, collection.ident)];
        prefixes.extend(collection.maintained().flat_map(|index| index_prefixes(index)));
        self.discard(collection, prefixes);
        self.gone.push(collection.clone());
    }

    fn discard(&mut self, holder: &Arc<Collection>, prefixes: Vec<(Cf, u32)>) {
        for (cf, ident) in &prefixes {
            self.puts.push((garbage_key(*cf, *ident), Some(Vec::new())));
            if *cf == Cf::Indexes {
                self.puts.push((catalog_key::of(catalog_key::MULTIKEY, *ident).to_vec(), None));
            }
        }
        self.garbage.push(Garbage { holder: Some(holder.clone()), prefixes, index: 0 });
    }
}

/// All places of an index's entries.
fn index_prefixes(index: &Index) -> impl Iterator<Item = (Cf, u32)> + use<> {
    let beside = (!index.ready).then(|| side_ident(index.ident));
    std::iter::once(index.ident).chain(beside).map(|ident| (Cf::Indexes, ident))
}

/// Builds the command that creates a collection, with numbers of its own.
pub(crate) fn create_command(
    definitions: &Definitions,
    namespace: &str,
    spec: &CreateCollection,
) -> Result<Command> {
    let raw = spec.options.as_raw();
    let capped = raw.get("capped").is_some_and(|v| v.truthy());
    let mut indexes = Vec::new();
    if raw.get("viewOn").is_none() {
        indexes.push(Arc::new(id_index(spec.id_index.as_ref(), definitions.new_ident(namespace), capped)?));
    }
    for spec in &spec.indexes {
        indexes.push(Arc::new(Index::from_spec(
            spec.as_raw(),
            definitions.new_ident(namespace),
            true,
            None,
        )?));
    }
    let entries = index_entries(&indexes);
    let ident = definitions.new_ident(namespace);
    let o = DocBuf::build(|doc| {
        doc.append("create", split(namespace).1).append_all(raw);
        doc.document("sheaf").append("ident", i64::from(ident)).append("indexes", &entries);
    });
    let uuid = Some(spec.uuid.unwrap_or_else(Uuid::new_v4));
    Ok(Command { target: namespace.to_owned(), uuid, told: spec.told, o })
}

/// Options of a collection that is temporary no more.
fn without_temp(options: RawDoc<'_>) -> DocBuf {
    DocBuf::build(|doc| {
        for element in options.iter().filter(|element| element.key() != "temp") {
            doc.append_element(element);
        }
    })
}

pub(crate) fn no_collection(namespace: &str) -> Error {
    Error::new(Code::NAMESPACE_NOT_FOUND, format!("ns not found: {namespace}"))
}

impl Command {
    pub fn new(namespace: &str, uuid: Option<Uuid>, o: DocBuf) -> Command {
        Command { target: namespace.to_owned(), uuid, told: Told::Here, o }
    }

    pub fn told(self, told: Told) -> Command {
        Command { told, ..self }
    }

    /// Reads it from an oplog document, or from an element of `applyOps`.
    pub fn from_oplog(doc: RawDoc<'_>) -> Option<Command> {
        let db = split(doc.get("ns")?.as_str()?).0;
        let o = doc.get("o")?.as_doc()?;
        let first = o.iter().next()?;
        let name = first.value().as_str().unwrap_or_default();
        let target = if first.key() == "renameCollection" { name.to_owned() } else { format!("{db}.{name}") };
        let told = match doc.get("fromMigrate") {
            Some(Value::Bool(true)) => Told::Elsewhere,
            _ => Told::Here,
        };
        Some(Command { target, uuid: oplog::value_uuid(doc.get("ui")), told, o: o.into() })
    }

    pub fn target(&self) -> &str {
        &self.target
    }

    fn command_namespace(&self) -> String {
        format!("{}.$cmd", split(&self.target).0)
    }

    /// Appends the oplog document.
    pub fn log(&self, payload: &mut Vec<u8>) {
        oplog::write(payload, "c", &self.command_namespace(), self.uuid.as_ref(), None, |doc| {
            self.told.append_to(doc);
            doc.append("o", &self.o);
        });
    }

    /// As an element of `applyOps`.
    pub fn inner(&self) -> DocBuf {
        DocBuf::build(|doc| {
            doc.append("op", "c").append("ns", &self.command_namespace());
            if let Some(uuid) = &self.uuid {
                doc.append("ui", oplog::uuid_value(uuid));
            }
            self.told.append_to(doc);
            doc.append("o", &self.o);
        })
    }

    /// Replaces the indexes that a `create` makes.
    pub fn set_indexes(&mut self, indexes: &[Arc<Index>]) {
        let ident = self.storage_field("ident").and_then(|v| v.as_exact_i64()).unwrap_or(0);
        let entries = index_entries(indexes);
        self.o = DocBuf::build(|doc| {
            for element in self.o.as_raw().iter().filter(|element| element.key() != "sheaf") {
                doc.append_element(element);
            }
            doc.document("sheaf").append("ident", ident).append("indexes", &entries);
        });
    }

    fn storage_field(&self, name: &str) -> Option<Value<'_>> {
        self.o.as_raw().get("sheaf")?.as_doc()?.get(name)
    }

    /// The next catalog, and what goes to disk for it.
    pub fn apply(&self, catalog: Catalog) -> Result<Applied> {
        self.apply_existing(catalog, None)
    }

    /// Like [`Command::apply`]; `made` is the collection if it was made already, for its counters to be kept.
    pub fn apply_existing(&self, catalog: Catalog, made: Option<&Arc<Collection>>) -> Result<Applied> {
        let mut applied = Applied::new(catalog);
        match self.kind() {
            "create" => self.create(made, &mut applied)?,
            "drop" => {
                let collection = self.collection(&applied.catalog)?;
                applied.remove(&collection);
            }
            // The collections' own drops are operations of the same commit.
            "dropDatabase" => {}
            "renameCollection" => self.rename(&mut applied)?,
            "createIndexes" | "startIndexBuild" => self.create_index(&mut applied)?,
            "commitIndexBuild" => self.commit_build(&mut applied)?,
            "abortIndexBuild" => self.abort_build(&mut applied)?,
            "dropIndexes" => self.drop_index(&mut applied)?,
            "collMod" => self.coll_mod(&mut applied)?,
            other => bail!(Code::COMMAND_NOT_FOUND, "the log has an unknown command '{other}'"),
        }
        Ok(applied)
    }

    /// Which command it is.
    fn kind(&self) -> &str {
        self.o.as_raw().iter().next().map_or("", |first| first.key())
    }

    /// Whether it makes a collection.
    pub fn is_create(&self) -> bool {
        self.kind() == "create"
    }

    /// The collections that no writer may be in when it takes place.
    pub fn closes(&self, catalog: &Catalog) -> Vec<Arc<Collection>> {
        match self.kind() {
            // A new one has no writers. What writers leave beside an index that is given up is removed when they are gone.
            "create" | "dropDatabase" | "abortIndexBuild" => Vec::new(),
            "renameCollection" => {
                self.collection(catalog).ok().into_iter().chain(self.replaced(catalog)).collect()
            }
            _ => self.collection(catalog).ok().into_iter().collect(),
        }
    }

    /// The collection whose place a renamed one takes.
    fn replaced(&self, catalog: &Catalog) -> Option<Arc<Collection>> {
        let to = self.o.as_raw().get("to").and_then(|v| v.as_str()).unwrap_or_default();
        let own = self.collection(catalog).ok()?;
        catalog.collection(to).filter(|target| target.uuid != own.uuid).cloned()
    }

    pub fn collection(&self, catalog: &Catalog) -> Result<Arc<Collection>> {
        let by_uuid = self.uuid.as_ref().and_then(|uuid| catalog.by_uuid(uuid));
        by_uuid
            .or_else(|| catalog.collection(&self.target))
            .cloned()
            .ok_or_else(|| no_collection(&self.target))
    }

    fn create(&self, made: Option<&Arc<Collection>>, applied: &mut Applied) -> Result<()> {
        let options = DocBuf::build(|doc| {
            for element in self.o.as_raw().iter().skip(1).filter(|element| element.key() != "sheaf") {
                doc.append_element(element);
            }
        });
        let capped = options.as_raw().get("capped").is_some_and(|v| v.truthy());
        let broken = || Error::new(Code::INTERNAL_ERROR, "a create in the log lacks its numbers");
        let ident = self.storage_field("ident").and_then(|v| v.as_exact_i64()).ok_or_else(broken)? as u32;
        let uuid = self.uuid.ok_or_else(broken)?;
        let mut indexes = Vec::new();
        for entry in self.storage_field("indexes").and_then(|v| v.as_array()).ok_or_else(broken)?.values() {
            let mut index = read_index_entry(entry.as_doc().ok_or_else(broken)?)?;
            mark_id_index(&mut index, capped);
            indexes.push(Arc::new(index));
        }
        let collection = match made {
            Some(made) => made.changed(None, None, None),
            None => {
                let state = Arc::new(CollectionState::new(0, 0));
                Collection::new(self.target.clone(), uuid, ident, options, indexes, state)
            }
        };
        applied.save(collection);
        Ok(())
    }

    fn rename(&self, applied: &mut Applied) -> Result<()> {
        let collection = self.collection(&applied.catalog)?;
        if let Some(target) = self.replaced(&applied.catalog) {
            applied.remove(&target);
        }
        let o = self.o.as_raw();
        let Some(Value::String(to)) = o.get("to") else {
            bail!(Code::INTERNAL_ERROR, "the log renames {} to nothing: {:?}", collection.namespace, self.o);
        };
        // What has got its name stays for good, unless the command says otherwise.
        let before = collection.options.as_raw();
        let stays = before.element("temp").is_none() || o.get("stayTemp").is_some_and(|v| v.truthy());
        let options = (!stays).then(|| without_temp(before));
        applied.save(collection.changed(Some(to), options.as_ref().map(DocBuf::as_raw), None));
        Ok(())
    }

    fn create_index(&self, applied: &mut Applied) -> Result<()> {
        let collection = self.collection(&applied.catalog)?;
        let mut indexes: Vec<_> = collection.maintained().cloned().collect();
        let unreadable =
            || Error::new(Code::INTERNAL_ERROR, format!("the log names no indexes: {:?}", self.o));
        let entries = self.storage_field("indexes").and_then(|v| v.as_array()).ok_or_else(unreadable)?;
        for entry in entries.values() {
            let index = read_index_entry(entry.as_doc().ok_or_else(unreadable)?)?;
            must!(
                indexes.iter().all(|known: &Arc<Index>| known.ident != index.ident),
                "indexes {} of {} and another have the number {}",
                index.name,
                collection.namespace,
                index.ident
            );
            indexes.push(Arc::new(index));
        }
        applied.save(collection.changed(None, None, Some(indexes)));
        Ok(())
    }

    fn commit_build(&self, applied: &mut Applied) -> Result<()> {
        let collection = self.collection(&applied.catalog)?;
        let names = self.names();
        let mut indexes: Vec<Arc<Index>> = Vec::new();
        let mut replaced: Vec<Arc<Index>> = Vec::new();
        for index in collection.maintained() {
            if index.ready || !names.contains(&index.name.as_str()) {
                indexes.push(index.clone());
                continue;
            }
            let ready = Arc::new(index.changed(index.spec.as_raw(), true)?);
            self.learn_multikey(&ready);
            match indexes.iter_mut().find(|known| index.replaces && known.name == index.name) {
                Some(place) => replaced.push(std::mem::replace(place, ready)),
                None => indexes.push(ready),
            }
        }
        // For the next flush to keep what was learnt.
        collection.state.dirty.store(true, std::sync::atomic::Ordering::Release);
        if !replaced.is_empty() {
            applied.discard(&collection, replaced.iter().flat_map(|index| index_prefixes(index)).collect());
        }
        applied.save(collection.changed(None, None, Some(indexes)));
        Ok(())
    }

    fn learn_multikey(&self, index: &Index) {
        let all = self.storage_field("multikey").and_then(|v| v.as_array()).unwrap_or(RawDoc::EMPTY);
        let own = self.names().iter().position(|name| *name == index.name);
        if let Some(masks) = own.and_then(|at| all.values().nth(at)?.as_array()) {
            let masks: Vec<u64> = masks.values().map(|v| v.as_exact_i64().unwrap_or(0) as u64).collect();
            index.multikey.add(&masks);
        }
    }

    fn abort_build(&self, applied: &mut Applied) -> Result<()> {
        let names = self.names();
        self.remove_indexes(applied, |index| !index.ready && names.contains(&index.name.as_str()))
    }

    fn remove_indexes(&self, applied: &mut Applied, goes: impl Fn(&Index) -> bool) -> Result<()> {
        let collection = self.collection(&applied.catalog)?;
        let (gone, kept): (Vec<_>, Vec<_>) = collection.maintained().cloned().partition(|index| goes(index));
        applied.discard(&collection, gone.iter().flat_map(|index| index_prefixes(index)).collect());
        applied.save(collection.changed(None, None, Some(kept)));
        Ok(())
    }

    /// Names of indexes that the command is about.
    pub fn names(&self) -> Vec<&str> {
        let names = self.o.as_raw().get("indexes").and_then(|v| v.as_array()).unwrap_or(RawDoc::EMPTY);
        names.values().filter_map(|v| v.as_str()).collect()
    }

    /// Numbers that it gives to a collection and its indexes, or names.
    pub fn idents(&self) -> Vec<u32> {
        let own = self.storage_field("ident").and_then(|v| v.as_exact_i64()).map(|ident| ident as u32);
        own.into_iter().chain(self.index_idents()).collect()
    }

    /// Numbers of the indexes that it makes.
    pub fn new_indexes(&self) -> Vec<u32> {
        match self.o.as_raw().iter().next().map_or("", |first| first.key()) {
            "create" | "createIndexes" | "startIndexBuild" => self.index_idents(),
            _ => Vec::new(),
        }
    }

    fn index_idents(&self) -> Vec<u32> {
        let indexes = self.storage_field("indexes").and_then(|v| v.as_array()).unwrap_or(RawDoc::EMPTY);
        let idents = indexes.values().filter_map(|v| v.as_doc()?.get("ident").and_then(|v| v.as_exact_i64()));
        idents.map(|ident| ident as u32).collect()
    }

    /// Whether it begins an index build.
    pub fn is_build_start(&self) -> bool {
        self.o.as_raw().element("startIndexBuild").is_some()
    }

    /// Whether it ends an index build, whose last steps recovery has to repeat.
    pub fn is_build_commit(&self) -> bool {
        self.o.as_raw().element("commitIndexBuild").is_some()
    }

    fn drop_index(&self, applied: &mut Applied) -> Result<()> {
        let names = self.names();
        self.remove_indexes(applied, |index| names.contains(&index.name.as_str()))
    }

    fn coll_mod(&self, applied: &mut Applied) -> Result<()> {
        let collection = self.collection(&applied.catalog)?;
        let o = self.o.as_raw();
        let specs = o.get("indexes").and_then(|v| v.as_doc()).unwrap_or(RawDoc::EMPTY);
        let mut indexes = Vec::new();
        for index in collection.maintained() {
            let spec = specs.get(&index.name).filter(|_| !index.replaces).and_then(|v| v.as_doc());
            indexes.push(match spec {
                Some(spec) => Arc::new(index.changed(spec, index.ready)?),
                None => index.clone(),
            });
        }
        let options = o.get("options").and_then(|v| v.as_doc());
        applied.save(collection.changed(None, options, Some(indexes)));
        Ok(())
    }
}

fn read_index_entry(entry: RawDoc<'_>) -> Result<Index> {
    let keys = KeysBy::read("a collection in the log", entry)?;
    let unreadable =
        || Error::new(Code::INTERNAL_ERROR, format!("the log has an unreadable index: {entry:?}"));
    let spec = entry.get("spec").and_then(|v| v.as_doc()).ok_or_else(unreadable)?;
    // Number 0 is no index's: marks of builds stand there.
    let ident = entry.get("ident").and_then(|v| v.as_exact_i64()).and_then(|ident| u32::try_from(ident).ok());
    let ident = ident.filter(|ident| *ident > 0).ok_or_else(unreadable)?;
    let ready = entry.get("ready").is_some_and(|v| v.truthy());
    let mut index = Index::with_keys(keys, spec, ident, ready, None)?;
    index.replaces = entry.get("replaces").is_some_and(|v| v.truthy());
    Ok(index)
}

/// The command that adds these indexes: ready ones, or such that are to be built.
pub(crate) fn create_indexes_command(collection: &Collection, indexes: &[Arc<Index>]) -> Command {
    let entries = index_entries(indexes);
    let o = DocBuf::build(|doc| {
        let ready = indexes.iter().all(|index| index.ready);
        doc.append(if ready { "createIndexes" } else { "startIndexBuild" }, collection.name());
        doc.document("sheaf").append("indexes", &entries);
    });
    Command::new(&collection.namespace, Some(collection.uuid), o)
}

/// A command that ends a build: `commitIndexBuild`, `abortIndexBuild`.
pub(crate) fn build_command(kind: &str, collection: &Collection, indexes: &[Arc<Index>]) -> Command {
    let entries = index_entries(indexes);
    let o = DocBuf::build(|doc| {
        doc.append(kind, collection.name());
        let mut names = doc.array("indexes");
        indexes.iter().for_each(|index| _ = names.push(index.name.as_str()));
        drop(names);
        let mut own = doc.document("sheaf");
        own.append("indexes", &entries);
        // What the build has learnt of arrays: nobody reads the documents again to know it.
        let mut all = own.array("multikey");
        for index in indexes {
            let mut masks = all.array();
            index.multikey.masks().iter().for_each(|mask| _ = masks.push(*mask as i64));
        }
    });
    Command::new(&collection.namespace, Some(collection.uuid), o)
}

/// A command about indexes by name.
pub(crate) fn index_names_command(kind: &str, collection: &Collection, names: &[&str]) -> Command {
    let o = DocBuf::build(|doc| {
        doc.append(kind, collection.name());
        let mut array = doc.array("indexes");
        for name in names {
            array.push(*name);
        }
        drop(array);
        // What the indexes were: readers of the log see their specifications.
        let about: Vec<_> =
            collection.indexes.iter().filter(|index| names.contains(&index.name.as_str())).cloned().collect();
        doc.document("sheaf").append("indexes", &index_entries(&about));
    });
    Command::new(&collection.namespace, Some(collection.uuid), o)
}

pub(crate) fn drop_command(collection: &Arc<Collection>) -> Command {
    let o = DocBuf::build(|doc| {
        doc.append("drop", collection.name());
        let mut own = doc.document("sheaf");
        own.append("numRecords", collection.count() as i64);
        if collection.is_view() {
            own.append("view", true);
        }
    });
    Command::new(&collection.namespace, Some(collection.uuid), o)
}
