//! Skeleton of the public surface; moves into its modules as they are filled.
#![allow(unused_variables, missing_docs)]
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sheaf_bson::{DocBuf, RawDoc, Timestamp};
use sheaf_errors::Result;
pub use uuid::Uuid;

/// Runs a closure that may wait long; the server sets it to `tokio::task::block_in_place`.
pub type Block = Arc<dyn Fn(&mut dyn FnMut()) + Send + Sync>;
/// Called again and again while something waits; an error (killed, `maxTimeMS`) ends the wait.
pub type Interrupt<'i> = &'i (dyn Fn() -> Result<()> + Sync);

/// How to open a data folder.
#[derive(Clone)]
pub struct Options {
    /// The data folder (`--dbpath`).
    pub path: PathBuf,
    /// Memory for block cache and memtables together.
    pub cache_bytes: u64,
    /// Whether there is a log (`--nojournal` sets false).
    pub journal: bool,
    /// How long unsynced log bytes may wait (`journalCommitInterval`, default 100 ms).
    pub journal_commit_interval: Duration,
    /// How long memtables may stay unflushed (`syncdelay`, default 60 s; zero: only by memory used).
    pub sync_delay: Duration,
    /// How much log is kept (`--oplogSize`).
    pub oplog_bytes: u64,
    pub block: Block,
    /// Milliseconds since the epoch.
    pub clock: Arc<dyn Fn() -> i64 + Send + Sync>,
}

/// An open data folder. Cheap to clone; the folder closes with the last clone.
#[derive(Clone)]
pub struct Engine(Arc<()>);

/// Where a commit stands in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct OpTime {
    pub term: u64,
    /// Log index of the entry; what `wait_durable` takes.
    pub index: u64,
    /// Cluster time of the last operation (`operationTime`).
    pub time: u64,
}

impl Engine {
    pub fn open(options: Options) -> Result<Engine> {
        todo!()
    }
    /// Newest published state.
    pub fn view(&self) -> Result<View> {
        todo!()
    }
    /// The newest catalog, without taking a snapshot.
    pub fn catalog(&self) -> Arc<Catalog> {
        todo!()
    }
    /// One record of the newest state, without taking a snapshot: the fast path of a find by `_id`.
    pub fn get(&self, collection: &Collection, key: &[u8]) -> Result<Option<Doc<'_>>> {
        todo!()
    }
    /// Starts a group of plain writes (each document atomic by itself).
    pub fn write<'i>(&self, interrupt: Interrupt<'i>) -> WriteUnit<'i> {
        todo!()
    }
    /// Starts a transaction; its snapshot is taken now.
    pub fn begin(&self, session: Option<(DocBuf, i64)>) -> Result<Transaction> {
        todo!()
    }
    /// Position of the newest commit.
    pub fn last_applied(&self) -> OpTime {
        todo!()
    }
    /// Position up to which the log is on stable storage.
    pub fn last_durable(&self) -> OpTime {
        todo!()
    }
    /// Waits until the log is on stable storage up to `index`, asking for a sync.
    pub fn wait_durable(&self, index: u64, interrupt: Interrupt<'_>) -> Result<()> {
        todo!()
    }
    /// Calls `done` (from the sync thread, or at once) when the log is durable up to `index`.
    pub fn on_durable(&self, index: u64, done: Box<dyn FnOnce(Result<()>) + Send>) {
        todo!()
    }
    /// Flushes memtables and syncs the log: the `fsync` command.
    pub fn checkpoint(&self) -> Result<()> {
        todo!()
    }
    /// `fsyncLock`: flushes, then holds all commits back until `unlock_writes`; counts nesting.
    pub fn lock_writes(&self, interrupt: Interrupt<'_>) -> Result<u64> {
        todo!()
    }
    /// Returns the lock count left.
    pub fn unlock_writes(&self) -> Result<u64> {
        todo!()
    }
    pub fn stats(&self) -> Stats {
        todo!()
    }
    pub fn validate(&self, namespace: &str, full: bool, interrupt: Interrupt<'_>) -> Result<Validation> {
        todo!()
    }
    /// What is recorded of a session's retryable writes and transactions; key: the raw `lsid` document.
    pub fn session_record(&self, lsid: RawDoc<'_>) -> Result<Option<SessionRecord>> {
        todo!()
    }
    /// The recorded reply of one retryable statement.
    pub fn statement_result(&self, lsid: RawDoc<'_>, txn_number: i64, stmt: i32) -> Result<Option<DocBuf>> {
        todo!()
    }
    /// Stops background work, flushes when `clean`, and refuses everything from now on.
    pub fn shutdown(&self, clean: bool) -> Result<()> {
        todo!()
    }

    // ---- DDL: each call is one commit ----
    pub fn create_collection(&self, namespace: &str, spec: CreateCollection, interrupt: Interrupt<'_>) -> Result<OpTime> {
        todo!()
    }
    pub fn drop_collection(&self, namespace: &str, interrupt: Interrupt<'_>) -> Result<OpTime> {
        todo!()
    }
    pub fn drop_database(&self, db: &str, interrupt: Interrupt<'_>) -> Result<OpTime> {
        todo!()
    }
    pub fn rename_collection(&self, from: &str, to: &str, drop_target: bool, interrupt: Interrupt<'_>) -> Result<OpTime> {
        todo!()
    }
    /// Builds the given indexes (complete, checked specs) and returns when they are ready.
    /// An identical index that exists is skipped; conflicts give MongoDB's errors.
    pub fn create_indexes(&self, namespace: &str, specs: &[RawDoc<'_>], interrupt: Interrupt<'_>) -> Result<OpTime> {
        todo!()
    }
    pub fn drop_indexes(&self, namespace: &str, names: &[&str], interrupt: Interrupt<'_>) -> Result<OpTime> {
        todo!()
    }
    /// Replaces the options of a collection and the specs of its indexes by name (`collMod`); the caller has checked them.
    pub fn coll_mod(
        &self,
        namespace: &str,
        options: Option<RawDoc<'_>>,
        index_specs: &[(&str, RawDoc<'_>)],
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        todo!()
    }
    /// Rewrites a collection as a capped one (`convertToCapped`).
    pub fn convert_to_capped(&self, namespace: &str, size: i64, interrupt: Interrupt<'_>) -> Result<OpTime> {
        todo!()
    }
}

/// What `create` makes: a collection, a capped collection or a view, by its checked options.
#[derive(Clone, Default)]
pub struct CreateCollection {
    /// As `listCollections` shows them under `options`: `{capped, size, max, validator, viewOn, ...}`.
    pub options: DocBuf,
    /// Keep this UUID (restores); otherwise a new one.
    pub uuid: Option<Uuid>,
    /// The `_id` index's spec, if the caller has special wishes (name of a clustered index, collation).
    pub id_index: Option<DocBuf>,
}

/// A document's bytes, pinned in RocksDB's memory or borrowed from a transaction's own writes.
pub struct Doc<'a>(std::borrow::Cow<'a, [u8]>);
impl Doc<'_> {
    pub fn as_raw(&self) -> RawDoc<'_> {
        RawDoc::new(&self.0)
    }
}
impl std::ops::Deref for Doc<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// One consistent state: a snapshot with the catalog that describes it, and in a transaction its own writes.
#[derive(Clone)]
pub struct View(Arc<()>);
impl View {
    pub fn catalog(&self) -> &Arc<Catalog> {
        todo!()
    }
    pub fn collection(&self, namespace: &str) -> Option<&Arc<Collection>> {
        todo!()
    }
    pub fn get(&self, collection: &Collection, key: &[u8]) -> Result<Option<Doc<'_>>> {
        todo!()
    }
    /// A cursor over records in natural order; it stands before the first record.
    pub fn records(&self, collection: &Collection, range: Range, direction: Direction) -> Result<RecordCursor> {
        todo!()
    }
    /// A cursor over an index; it stands nowhere until it is sought.
    pub fn index(&self, index: &Index, direction: Direction) -> Result<IndexCursor> {
        todo!()
    }
    /// Cluster time at or before which everything is visible.
    pub fn time(&self) -> Timestamp {
        todo!()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Forward,
    Backward,
}

/// Record keys from `lower` to `upper`, both possibly open.
#[derive(Clone, Debug)]
pub struct Range {
    pub lower: std::ops::Bound<Vec<u8>>,
    pub upper: std::ops::Bound<Vec<u8>>,
}
impl Range {
    pub const ALL: Range = Range { lower: std::ops::Bound::Unbounded, upper: std::ops::Bound::Unbounded };
}

/// Walks records. Own everything: may be kept between commands.
pub struct RecordCursor(());
impl RecordCursor {
    /// Moves to the next record in direction; false at the end. Then `key` and `doc` may be asked.
    pub fn next(&mut self) -> Result<bool> {
        todo!()
    }
    /// Moves to the first record at or after (in direction) `key`.
    pub fn seek(&mut self, key: &[u8]) -> Result<bool> {
        todo!()
    }
    /// The record's key, without the collection's prefix.
    pub fn key(&self) -> &[u8] {
        todo!()
    }
    pub fn doc(&self) -> RawDoc<'_> {
        todo!()
    }
    /// The position, for `restore`: `next` then gives what follows the record last given.
    pub fn save(&self) -> Position {
        todo!()
    }
    /// Continues a saved position on another (newer) view. For capped collections `CappedPositionLost` (136) when the record is gone.
    pub fn restore(view: &View, collection: &Collection, range: Range, direction: Direction, position: &Position) -> Result<Self> {
        todo!()
    }
}

/// Where a cursor stood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// Bytes of the entry last given; `None`: nothing was given yet.
    pub key: Option<Vec<u8>>,
}

/// A cut between index entries: just before or just after all entries whose key starts with these bytes.
#[derive(Clone, Copy, Debug)]
pub enum Cut<'k> {
    Before(&'k [u8]),
    After(&'k [u8]),
}

/// Walks index entries (key bytes, then record key).
pub struct IndexCursor(());
impl IndexCursor {
    /// Moves to the first entry in direction from the cut: forward the first after it, backward the last before it.
    pub fn seek(&mut self, cut: Cut<'_>) -> Result<bool> {
        todo!()
    }
    /// Moves on by one entry in direction.
    pub fn next(&mut self) -> Result<bool> {
        todo!()
    }
    /// The memcomparable key, without index prefix and record key.
    pub fn key(&self) -> &[u8] {
        todo!()
    }
    pub fn record_key(&self) -> &[u8] {
        todo!()
    }
    /// What, with the key, gives back exact values (`sheaf_bson::key` decode).
    pub fn type_bits(&self) -> &[u8] {
        todo!()
    }
    pub fn save(&self) -> Position {
        todo!()
    }
    /// Continues on another view: `next` gives what follows the entry last given.
    pub fn restore(view: &View, index: &Index, direction: Direction, position: &Position) -> Result<Self> {
        todo!()
    }
}

/// All databases and collections at one moment; replaced as a whole by DDL.
pub struct Catalog(());
impl Catalog {
    pub fn collection(&self, namespace: &str) -> Option<&Arc<Collection>> {
        todo!()
    }
    pub fn by_uuid(&self, uuid: &Uuid) -> Option<&Arc<Collection>> {
        todo!()
    }
    pub fn databases(&self) -> impl Iterator<Item = &str> {
        [].into_iter()
    }
    pub fn collections(&self, db: &str) -> impl Iterator<Item = &Arc<Collection>> {
        [].into_iter()
    }
    /// Changes with every DDL: key for plan caches.
    pub fn version(&self) -> u64 {
        todo!()
    }
}

/// One collection or view as the catalog knows it.
pub struct Collection {
    pub namespace: String,
    pub uuid: Uuid,
    /// Prefix of its records; never used again after a drop.
    pub ident: u32,
    /// As given to `create`, for `listCollections`.
    pub options: DocBuf,
    pub capped: Option<Capped>,
    /// `(viewOn, pipeline)` of a view.
    pub view: Option<(String, DocBuf)>,
    /// Ready ones and those being built; a query uses only [`Index::ready`] ones. The `_id` index of a
    /// collection is the record order itself and is listed first, with [`IndexKind::Id`].
    pub indexes: Vec<Arc<Index>>,
}
impl Collection {
    pub fn db(&self) -> &str {
        todo!()
    }
    pub fn name(&self) -> &str {
        todo!()
    }
    pub fn index(&self, name: &str) -> Option<&Arc<Index>> {
        todo!()
    }
    pub fn is_view(&self) -> bool {
        self.view.is_some()
    }
    /// Documents now (fast count).
    pub fn count(&self) -> u64 {
        todo!()
    }
    /// Sum of document sizes now.
    pub fn data_bytes(&self) -> u64 {
        todo!()
    }
    /// The record key of a document of a not capped collection: the memcomparable form of `_id`.
    pub fn record_key(&self, id: sheaf_bson::Value<'_>) -> Result<Vec<u8>> {
        todo!()
    }
    /// Grows with each commit to this collection; for tailable cursors.
    pub fn version(&self) -> u64 {
        todo!()
    }
    /// Calls `wake` once when the version is above `seen` (at once if it is already).
    pub fn on_change(&self, seen: u64, wake: std::task::Waker) -> bool {
        todo!()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capped {
    pub size: i64,
    pub max: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexKind {
    /// `_id`: in a not capped collection no entries exist, the records themselves are in this order.
    Id,
    /// Ascending and descending fields, one or more.
    Btree,
    /// One hashed field (others may be plain).
    Hashed,
    Wildcard,
}

/// One index.
pub struct Index {
    pub name: String,
    pub ident: u32,
    pub kind: IndexKind,
    /// As `listIndexes` shows it.
    pub spec: DocBuf,
    /// `(path, descending)` per field; of hashed fields the direction is ascending.
    pub fields: Vec<(String, bool)>,
    pub unique: bool,
    pub sparse: bool,
    pub hidden: bool,
    /// False while it is being built.
    pub ready: bool,
    pub expire_after_seconds: Option<f64>,
    /// `partialFilterExpression`.
    pub partial: Option<DocBuf>,
}
impl Index {
    pub fn multikey(&self) -> bool {
        todo!()
    }
    /// Per field, the positions of path components that are arrays in some document; `None` when unknown (wildcard).
    pub fn multikey_paths(&self) -> Option<Vec<Vec<usize>>> {
        todo!()
    }
    /// The index's keys of a document, memcomparable, for explain, validate and tests.
    pub fn keys(&self, doc: RawDoc<'_>) -> Result<Vec<Vec<u8>>> {
        todo!()
    }
}

/// Names the statement of a retryable write that the next operations belong to.
#[derive(Clone)]
pub struct Statement {
    pub lsid: DocBuf,
    pub txn_number: i64,
    pub stmt_id: i32,
    /// What a retry is answered with; `None` records `{n: 1}`.
    pub result: Option<DocBuf>,
}

/// What statements do, alone or in a transaction.
pub trait Write {
    /// The state this writer reads now: newest, or the transaction's own.
    fn view(&mut self) -> Result<View>;
    /// The current definition for writing; holds DDL on it off until the commit.
    fn collection(&mut self, namespace: &str) -> Result<Option<Arc<Collection>>>;
    /// Locks a record and reads it as it is now; a plain write waits, a transaction fails with `WriteConflict`.
    /// After it the caller matches again if the bytes are not those its cursor saw.
    fn read_for_update(&mut self, collection: &Arc<Collection>, key: &[u8]) -> Result<Option<Vec<u8>>>;
    /// Inserts a document that has an `_id` and passed all checks of the command (validators included). Returns its record key only for capped collections.
    fn insert(&mut self, collection: &Arc<Collection>, doc: RawDoc<'_>) -> Result<()>;
    /// Replaces a record that `read_for_update` gave. `diff` (`$v: 2`) goes to the oplog instead of the document when given.
    fn update(&mut self, collection: &Arc<Collection>, key: &[u8], old: RawDoc<'_>, new: RawDoc<'_>, diff: Option<RawDoc<'_>>) -> Result<()>;
    /// Deletes a record that `read_for_update` gave.
    fn delete(&mut self, collection: &Arc<Collection>, key: &[u8], old: RawDoc<'_>) -> Result<()>;
    /// Creates a collection, in a transaction as part of it, otherwise at once. `NamespaceExists` if it exists.
    fn create_collection(&mut self, namespace: &str, spec: CreateCollection) -> Result<()>;
    /// The following operations are this retryable statement's.
    fn statement(&mut self, statement: Option<Statement>);
}

/// Plain writes: each document is atomic, all of them go through as one commit when nothing forces an
/// earlier one (a wait for a lock, a document touched twice, size). Dropped without commit: pending ones are lost.
pub struct WriteUnit<'i>(&'i ());
impl WriteUnit<'_> {
    /// Commits what is pending and gives the position of the last commit (or of the newest state if there was nothing).
    pub fn commit(self) -> Result<OpTime> {
        todo!()
    }
    /// Commits what is pending and stays usable: later reads see it.
    pub fn flush(&mut self) -> Result<OpTime> {
        todo!()
    }
}

/// A multi-document transaction. Dropped without commit it aborts.
pub struct Transaction(());
impl Transaction {
    pub fn commit(self, interrupt: Interrupt<'_>) -> Result<OpTime> {
        todo!()
    }
    pub fn abort(self) {}
    /// Whether nothing has been written.
    pub fn is_read_only(&self) -> bool {
        todo!()
    }
    /// Bytes of operations so far.
    pub fn bytes(&self) -> usize {
        todo!()
    }
}

macro_rules! write_skeleton {
    ($t:ty) => {
        impl Write for $t {
            fn view(&mut self) -> Result<View> {
                todo!()
            }
            fn collection(&mut self, namespace: &str) -> Result<Option<Arc<Collection>>> {
                todo!()
            }
            fn read_for_update(&mut self, collection: &Arc<Collection>, key: &[u8]) -> Result<Option<Vec<u8>>> {
                todo!()
            }
            fn insert(&mut self, collection: &Arc<Collection>, doc: RawDoc<'_>) -> Result<()> {
                todo!()
            }
            fn update(&mut self, collection: &Arc<Collection>, key: &[u8], old: RawDoc<'_>, new: RawDoc<'_>, diff: Option<RawDoc<'_>>) -> Result<()> {
                todo!()
            }
            fn delete(&mut self, collection: &Arc<Collection>, key: &[u8], old: RawDoc<'_>) -> Result<()> {
                todo!()
            }
            fn create_collection(&mut self, namespace: &str, spec: CreateCollection) -> Result<()> {
                todo!()
            }
            fn statement(&mut self, statement: Option<Statement>) {
                todo!()
            }
        }
    };
}
write_skeleton!(WriteUnit<'_>);
write_skeleton!(Transaction);

/// What is on record about a session.
#[derive(Clone, Debug)]
pub struct SessionRecord {
    pub txn_number: i64,
    /// `Some(true)`: the transaction of this number committed; `None`: retryable writes.
    pub committed: Option<bool>,
    pub last_write: OpTime,
}

/// Figures for `serverStatus` and `collStats`.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    pub memtable_bytes: u64,
    pub cache_capacity: u64,
    pub cache_used: u64,
    pub log_bytes: u64,
    pub log_first_index: u64,
    pub log_last_index: u64,
    pub log_appends: u64,
    pub log_append_bytes: u64,
    pub log_syncs: u64,
    pub log_sync_micros: u64,
    pub commits: u64,
    pub flushes: u64,
    pub open_transactions: u64,
    pub lock_waits: u64,
    pub conflicts: u64,
    pub sst_bytes: u64,
}

/// What `validate` found.
#[derive(Clone, Debug, Default)]
pub struct Validation {
    pub records: u64,
    pub bytes: u64,
    pub invalid_documents: u64,
    pub errors: Vec<String>,
    pub warnings: Vec<String>,
    /// `(index name, keys)` in catalog order.
    pub keys_per_index: Vec<(String, u64)>,
}
