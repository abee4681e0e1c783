//! The catalog: databases, collections, indexes, as one immutable value that DDL replaces.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::task::Waker;

use ahash::AHashMap;
use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_collation::{Collator, SharedCollator};
use sheaf_errors::{Code, Error, Result, bail};
use uuid::Uuid;

use crate::critical::{impossible, must};
use crate::index::{Index, IndexKind, KeysBy, id_index_spec, index_entries};
use crate::keys::put_id_key;
use crate::locks::Gate;
use crate::oplog::{uuid_value, value_uuid};
use crate::order::Mutex;
use crate::order::rank::LEAF;

/// All databases and collections at one moment.
#[derive(Clone, Default)]
pub struct Catalog {
    databases: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Arc<Collection>>>,
    by_uuid: AHashMap<Uuid, Arc<Collection>>,
    version: u64,
}

impl Catalog {
    /// The collection or view of a full name.
    pub fn collection(&self, namespace: &str) -> Option<&Arc<Collection>> {
        let (db, name) = split(namespace);
        self.databases.get(db)?.get(name)
    }

    /// The collection of a UUID.
    pub fn by_uuid(&self, uuid: &Uuid) -> Option<&Arc<Collection>> {
        self.by_uuid.get(uuid)
    }

    /// Names of the databases that have collections, in order.
    pub fn databases(&self) -> impl Iterator<Item = &str> {
        self.databases.keys().map(|name| &**name)
    }

    /// Whether the database has any collection.
    pub fn has_database(&self, db: &str) -> bool {
        self.databases.contains_key(db)
    }

    /// Whether there may be a database of this name: two must not differ by case alone.
    ///
    /// Errors: `DatabaseDifferCase`.
    pub fn check_case(&self, db: &str) -> Result<()> {
        if self.has_database(db) {
            return Ok(());
        }
        match self.databases().find(|known| known.eq_ignore_ascii_case(db)) {
            None => Ok(()),
            Some(known) => bail!(
                Code::DATABASE_DIFFER_CASE,
                "db already exists with different case already have: [{known}] trying to create [{db}]"
            ),
        }
    }

    /// Collections and views of a database, by name.
    pub fn collections(&self, db: &str) -> impl Iterator<Item = &Arc<Collection>> {
        self.databases.get(db).into_iter().flat_map(|collections| collections.values())
    }

    /// Everything that is stored, in order of names.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Collection>> {
        self.databases.values().flat_map(|collections| collections.values()).filter(|c| !c.is_oplog())
    }

    /// Changes with every DDL: a key for plan caches.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Adds or replaces a collection (found by its UUID, so renames move it).
    pub(crate) fn put(&mut self, collection: Arc<Collection>) {
        self.remove(&collection.uuid);
        let (db, name) = split(&collection.namespace);
        let collections = match self.databases.get_mut(db) {
            Some(collections) => collections,
            None => self.databases.entry(db.into()).or_default(),
        };
        let before = collections.insert(name.into(), collection.clone());
        if let Some(before) = before {
            impossible!("{} is to be {}, and is {} already", before.namespace, collection.uuid, before.uuid)
        }
        self.by_uuid.insert(collection.uuid, collection);
    }

    /// Takes the collection of this UUID out.
    pub(crate) fn remove(&mut self, uuid: &Uuid) {
        self.version += 1;
        let Some(old) = self.by_uuid.remove(uuid) else { return };
        let (db, name) = split(&old.namespace);
        let Some(collections) = self.databases.get_mut(db) else {
            impossible!("the catalog has {uuid} and not its database {db}")
        };
        let named = collections.remove(name);
        must!(
            named.as_ref().is_some_and(|named| named.uuid == *uuid),
            "the catalog has {uuid} as {}, and under this name {:?}",
            old.namespace,
            named.map(|named| named.uuid)
        );
        if collections.is_empty() {
            self.databases.remove(db);
        }
    }
}

/// `db.some.collection` as `("db", "some.collection")`.
pub(crate) fn split(namespace: &str) -> (&str, &str) {
    namespace.split_once('.').unwrap_or((namespace, ""))
}

/// What bounds a capped collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capped {
    /// Bytes of documents.
    pub size: i64,
    /// Number of documents.
    pub max: Option<i64>,
}

/// One collection or view as the catalog knows it.
pub struct Collection {
    /// Full name.
    pub namespace: String,
    /// Never changes, not even by renaming.
    pub uuid: Uuid,
    /// Prefix of its records; never used again after a drop.
    pub ident: u32,
    /// As given to `create`, for `listCollections`.
    pub options: DocBuf,
    /// Bounds, if it is capped.
    pub capped: Option<Capped>,
    /// Whether the log keeps documents as they were before each change (`changeStreamPreAndPostImages`).
    pub keeps_images: bool,
    /// How queries that name no collation compare strings, if not by their bytes.
    pub collator: Option<SharedCollator>,
    /// `(viewOn, pipeline)` of a view: the name without database, and the array.
    pub view: Option<(String, DocBuf)>,
    /// Ready ones and those being built; a query uses only [`Index::ready`] ones. The `_id` index comes first.
    pub indexes: Vec<Arc<Index>>,
    /// Being built to take the places of ready ones of the same names.
    pub(crate) replacements: Vec<Arc<Index>>,
    pub(crate) state: Arc<CollectionState>,
    /// How its operations begin in the log.
    pub(crate) oplog_head: Box<[u8]>,
}

/// What changes without DDL; shared by all catalog versions of a collection.
pub(crate) struct CollectionState {
    pub docs: AtomicI64,
    pub bytes: AtomicI64,
    /// Counters (or multikey bits) changed since they were last written to the catalog.
    pub dirty: AtomicBool,
    /// Writers pass, DDL closes.
    pub gate: Arc<Gate>,
    /// Key of the next record of a capped collection.
    pub next_key: AtomicU64,
    /// No record of a capped collection that is there, or comes, has a smaller key. It may lag: it spares whoever looks for the
    /// oldest record the walk over those that were deleted.
    pub first_key: AtomicU64,
    /// Time of the newest commit to the collection, or of its DDL, since the start.
    pub last_commit: AtomicU64,
    /// Scans since the start: all, and those of cursors that are not tailable.
    pub scans: (AtomicU64, AtomicU64),
    version: AtomicU64,
    wakers: Mutex<LEAF, Vec<Waker>>,
}

impl CollectionState {
    pub fn new(docs: i64, bytes: i64) -> Self {
        CollectionState {
            docs: AtomicI64::new(docs),
            bytes: AtomicI64::new(bytes),
            dirty: AtomicBool::new(false),
            gate: Arc::default(),
            next_key: AtomicU64::new(1),
            first_key: AtomicU64::new(0),
            last_commit: AtomicU64::new(0),
            scans: Default::default(),
            version: AtomicU64::new(1),
            wakers: Mutex::default(),
        }
    }

    /// A commit changed the collection: counters follow, tailing cursors wake.
    pub fn published(&self, docs: i64, bytes: i64) {
        if docs != 0 {
            let before = self.docs.fetch_add(docs, Ordering::AcqRel);
            debug_assert!(before + docs >= 0, "a collection of {before} documents has {} less", -docs);
        }
        if bytes != 0 {
            let before = self.bytes.fetch_add(bytes, Ordering::AcqRel);
            debug_assert!(before + bytes >= 0, "a collection of {before} bytes has {} less", -bytes);
        }
        self.dirty.store(true, Ordering::Release);
        self.wake();
    }

    /// Wakes everybody who waits for a change: after a commit, and when the collection goes away.
    pub fn wake(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
        let mut wakers = self.wakers.lock();
        if !wakers.is_empty() {
            for waker in wakers.drain(..) {
                waker.wake();
            }
        }
    }
}

/// Whether a collection changes, for whoever wants to know it for long: it does not hold up that the data of a dropped one is removed.
#[derive(Clone)]
pub struct Changes(Arc<CollectionState>);

impl Changes {
    /// The collection's [version](Collection::version).
    #[inline]
    pub fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }
}

impl PartialEq for Changes {
    /// Whether they are the same collection's, whatever DDL has made of it since.
    fn eq(&self, other: &Changes) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Collection {
    /// The same collection, of whose indexes only these are seen: for planning.
    #[must_use]
    pub fn with_only(&self, keep: impl Fn(&Index) -> bool) -> Collection {
        Collection {
            namespace: self.namespace.clone(),
            uuid: self.uuid,
            ident: self.ident,
            options: self.options.clone(),
            capped: self.capped,
            keeps_images: self.keeps_images,
            collator: self.collator.clone(),
            view: self.view.clone(),
            indexes: self.indexes.iter().filter(|index| keep(index)).cloned().collect(),
            replacements: Vec::new(),
            state: self.state.clone(),
            oplog_head: self.oplog_head.clone(),
        }
    }

    /// Database name.
    pub fn db(&self) -> &str {
        split(&self.namespace).0
    }

    /// Name within the database.
    pub fn name(&self) -> &str {
        split(&self.namespace).1
    }

    /// Counts a scan of the whole collection.
    pub fn count_scan(&self, tailable: bool) {
        let (total, non_tailable) = &self.state.scans;
        total.fetch_add(1, Ordering::Relaxed);
        if !tailable {
            non_tailable.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Scans since the server started: all, and those of cursors that are not tailable. What `queryExecStats` shows.
    pub fn scans(&self) -> (u64, u64) {
        let (total, non_tailable) = &self.state.scans;
        (total.load(Ordering::Relaxed), non_tailable.load(Ordering::Relaxed))
    }

    /// The index of this name, ready or not.
    pub fn index(&self, name: &str) -> Option<&Arc<Index>> {
        self.indexes.iter().find(|index| index.name == name)
    }

    /// Its indexes as MongoDB counts them: the order of a clustered collection's records is none.
    pub fn counted_indexes(&self) -> impl Iterator<Item = &Arc<Index>> + Clone {
        self.indexes.iter().filter(|index| index.spec.as_raw().element("clustered").is_none())
    }

    /// All indexes that writers keep, also those that are to replace others.
    pub(crate) fn maintained(&self) -> impl Iterator<Item = &Arc<Index>> {
        self.indexes.iter().chain(&self.replacements)
    }

    /// Whether it is a view.
    pub fn is_view(&self) -> bool {
        self.view.is_some()
    }

    /// Whether it is a time-series collection: the view of measurements on its buckets.
    pub fn is_timeseries(&self) -> bool {
        self.is_view() && self.options.as_raw().element("timeseries").is_some()
    }

    /// Documents now (fast count).
    pub fn count(&self) -> u64 {
        self.state.docs.load(Ordering::Acquire).max(0) as u64
    }

    /// Sum of document sizes now.
    pub fn data_bytes(&self) -> u64 {
        self.state.bytes.load(Ordering::Acquire).max(0) as u64
    }

    /// The record key that a document with this `_id` has (not of capped collections).
    pub fn record_key(&self, id: Value<'_>) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(24);
        put_id_key(id, &mut out)?;
        Ok(out)
    }

    /// Cluster time of the newest commit that concerned this collection; 0 if there was none since the start.
    /// Commits that a view shows are in it.
    pub fn last_commit(&self) -> u64 {
        self.state.last_commit.load(Ordering::Acquire)
    }

    /// Grows with each commit to this collection; for tailable cursors.
    pub fn version(&self) -> u64 {
        self.state.version.load(Ordering::Acquire)
    }

    /// Tells the [version](Collection::version) also when this is not at hand.
    pub fn changes(&self) -> Changes {
        Changes(self.state.clone())
    }

    /// Registers `wake` for the next change after version `seen`; returns whether it has changed already
    /// (then nothing is registered).
    pub fn on_change(&self, seen: u64, wake: Waker) -> bool {
        let mut wakers = self.state.wakers.lock();
        if self.version() > seen {
            return true;
        }
        // Those who stopped waiting leave their wakers behind; one waker per waiter is enough.
        wakers.retain(|old| !old.will_wake(&wake));
        wakers.push(wake);
        false
    }

    /// Builds a collection from its parts.
    pub(crate) fn new(
        namespace: String,
        uuid: Uuid,
        ident: u32,
        options: DocBuf,
        indexes: Vec<Arc<Index>>,
        state: Arc<CollectionState>,
    ) -> Collection {
        let raw = options.as_raw();
        let capped = raw.get("capped").is_some_and(|v| v.truthy()).then(|| Capped {
            size: raw.get("size").and_then(|v| v.as_exact_i64()).unwrap_or(0),
            max: raw.get("max").and_then(|v| v.as_exact_i64()).filter(|max| *max > 0),
        });
        let view = raw.get("viewOn").and_then(|v| v.as_str()).map(|on| {
            let pipeline = raw.get("pipeline").and_then(|v| v.as_array()).unwrap_or(RawDoc::EMPTY);
            (on.to_owned(), DocBuf::from(pipeline))
        });
        // `create` has checked it. With another order, keys would be looked for where they are not.
        let collator = raw.get("collation").and_then(|v| v.as_doc()).and_then(|collation| {
            Collator::parse(collation).unwrap_or_else(|error| {
                panic!("{namespace} has a collation that this version cannot read: {error}")
            })
        });
        let images = raw.get("changeStreamPreAndPostImages").and_then(|v| v.as_doc());
        let keeps_images = images.and_then(|images| images.get("enabled")).is_some_and(|v| v.truthy());
        let oplog_head = crate::oplog::head(&namespace, &uuid);
        let (replacements, indexes) = indexes.into_iter().partition(|index| index.replaces);
        Collection {
            namespace,
            uuid,
            ident,
            capped,
            keeps_images,
            collator,
            view,
            indexes,
            replacements,
            state,
            options,
            oplog_head,
        }
    }

    /// The same collection with something changed.
    pub(crate) fn changed(
        &self,
        namespace: Option<&str>,
        options: Option<RawDoc<'_>>,
        indexes: Option<Vec<Arc<Index>>>,
    ) -> Collection {
        Collection::new(
            namespace.unwrap_or(&self.namespace).to_owned(),
            self.uuid,
            self.ident,
            options.map_or_else(|| self.options.clone(), DocBuf::from),
            indexes.unwrap_or_else(|| self.maintained().cloned().collect()),
            self.state.clone(),
        )
    }

    /// The catalog document.
    pub(crate) fn to_doc(&self) -> DocBuf {
        let indexes = index_entries(self.maintained());
        sheaf_bson::doc! {
            "ns": &self.namespace,
            "uuid": uuid_value(&self.uuid),
            "ident": i64::from(self.ident),
            "options": &self.options,
            "indexes": &indexes
        }
    }

    /// Reads a catalog document back; `masks` gives the multikey bits of an index.
    pub(crate) fn from_doc(
        doc: RawDoc<'_>,
        counters: (i64, i64),
        masks: impl Fn(u32) -> Result<Option<Vec<u64>>>,
    ) -> Result<Collection> {
        let broken = || Error::new(Code::INTERNAL_ERROR, format!("catalog entry cannot be read: {doc:?}"));
        let namespace = doc.get("ns").and_then(|v| v.as_str()).ok_or_else(broken)?.to_owned();
        let uuid = value_uuid(doc.get("uuid")).ok_or_else(broken)?;
        let ident = doc
            .get("ident")
            .and_then(|v| v.as_exact_i64())
            .and_then(|n| u32::try_from(n).ok())
            .ok_or_else(broken)?;
        let options = doc.get("options").and_then(|v| v.as_doc()).ok_or_else(broken)?;
        let capped = options.get("capped").is_some_and(|v| v.truthy());
        let mut indexes = Vec::new();
        for entry in doc.get("indexes").and_then(|v| v.as_array()).ok_or_else(broken)?.values() {
            let entry = entry.as_doc().ok_or_else(broken)?;
            let keys = KeysBy::read(&namespace, entry)?;
            let spec = entry.get("spec").and_then(|v| v.as_doc()).ok_or_else(broken)?;
            let ident = entry
                .get("ident")
                .and_then(|v| v.as_exact_i64())
                .and_then(|n| u32::try_from(n).ok())
                .ok_or_else(broken)?;
            let ready = entry.get("ready").is_some_and(|v| v.truthy());
            let mut index = Index::with_keys(keys, spec, ident, ready, masks(ident)?)?;
            index.replaces = entry.get("replaces").is_some_and(|v| v.truthy());
            mark_id_index(&mut index, capped);
            indexes.push(Arc::new(index));
        }
        let state = Arc::new(CollectionState::new(counters.0, counters.1));
        Ok(Collection::new(namespace, uuid, ident, options.into(), indexes, state))
    }
}

/// The `_id` index has no entries of its own, except in a capped collection and where a collation makes more `_id`s equal than
/// the records' own order does.
pub(crate) fn mark_id_index(index: &mut Index, capped: bool) {
    let on_id = index.fields.len() == 1 && index.fields[0].0 == "_id" && index.kind == IndexKind::Btree;
    if on_id && (index.name == "_id_" || index.spec.as_raw().get("clustered").is_some()) {
        index.unique = true;
        if !capped && index.collator.is_none() {
            index.kind = IndexKind::Id;
        }
    }
}

/// The `_id` index of a new collection; a clustered collection's says so in its spec.
pub(crate) fn id_index(spec: Option<&DocBuf>, ident: u32, capped: bool) -> Result<Index> {
    let default = id_index_spec();
    let mut index = Index::from_spec(spec.unwrap_or(&default).as_raw(), ident, true, None)?;
    mark_id_index(&mut index, capped);
    index.unique = true;
    Ok(index)
}
