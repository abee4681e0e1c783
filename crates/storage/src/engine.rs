//! The public face: an open data folder.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::{Error, Result};

use crate::catalog::{Catalog, Collection};
use crate::commit::prepared::Prepared;
use crate::commit::watch::Watcher;
use crate::core::Core;
use crate::db::Cf;
use crate::definitions::command::Told;
use crate::definitions::ddl::{Check, CollectionChange, DropCheck, NamedSpecs, RenameCheck};
use crate::durability::LogTail;
use crate::hooks::{Hook, HookPoint};
use crate::index::{Index, IndexKind};
use crate::keys::prefix_range;
use crate::oplog::{self, LogEntry, Statement};
use crate::options::{Interrupt, OpTime, Options};
use crate::plans::PlanFigures;
use crate::read::validate::{Validation, validate};
use crate::read::view::View;
use crate::sequencer::Sequencer;
use crate::stats::{Applied, Stats};
use crate::write::CreateCollection;
use crate::write::sessions::SessionRecord;
use crate::write::transaction::Transaction;
use crate::write::unit::WriteUnit;
use uuid::Uuid;

/// An open data folder. Cheap to clone; the folder closes with the last clone (and the last view and
/// cursor), without flushing unless [`Engine::shutdown`] was called.
#[derive(Clone)]
pub struct Engine(Arc<Handle>);

struct Handle {
    core: Arc<Core>,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

impl Handle {
    fn stop(&self) {
        self.core.stop();
        for thread in self.threads.lock().drain(..) {
            // A thread that panicked has said so already.
            let _ = thread.join();
        }
        self.core.definitions.builds().join();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.stop();
        // A flush that may not go on keeps the rest from being dropped.
        self.core.base.db.end_background();
    }
}

impl Engine {
    /// Opens a data folder: takes its lock, opens RocksDB at its last flush and applies the log from there.
    pub fn open(options: Options) -> Result<Engine> {
        let core = Core::open(options)?;
        let threads = Mutex::new(core.start()?);
        Ok(Engine(Arc::new(Handle { core, threads })))
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    /// The newest catalog, without taking a snapshot.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.core().published.catalog()
    }

    /// What is remembered of plans, and how often collections were scanned.
    pub fn plan_figures(&self) -> PlanFigures {
        self.core().published.plans.figures()
    }

    /// Whether this is the newest catalog still.
    pub fn shows(&self, catalog: &Weak<Catalog>) -> bool {
        self.core().published.shows(catalog)
    }

    /// Starts a group of plain writes (each document atomic by itself).
    pub fn write<'i>(&self, interrupt: Interrupt<'i>) -> WriteUnit<'i> {
        WriteUnit::new(self.core().clone(), interrupt)
    }

    /// Starts a transaction; its snapshot is taken now. `session` is `(lsid, txnNumber)`.
    pub fn begin(&self, session: Option<(DocBuf, i64)>) -> Result<Transaction> {
        Transaction::begin(self.core(), session)
    }

    /// Sets how often the log is synced when nobody asks.
    pub fn set_journal_commit_interval(&self, interval: std::time::Duration) {
        self.core().base.tuning.set_journal_commit_interval(interval);
    }

    /// Sets how often memtables are flushed; zero: only when they are full.
    pub fn set_sync_delay(&self, delay: std::time::Duration) {
        self.core().base.tuning.set_sync_delay(delay);
    }

    /// How old entries of the log must be to be removed; zero: its size alone decides.
    pub fn oplog_retention(&self) -> std::time::Duration {
        self.core().base.tuning.oplog_retention()
    }

    /// How much log is kept at least, in bytes.
    pub fn oplog_bytes(&self) -> u64 {
        self.core().durability.log().map_or(0, |log| log.retain_bytes())
    }

    /// Position of the newest commit that is in RocksDB's files.
    pub fn last_flushed(&self) -> OpTime {
        self.core().flushes.flushed()
    }

    /// Sets how much log is kept at least (`replSetResizeOplog`), in bytes and by the age of its entries.
    pub fn set_oplog_size(&self, bytes: Option<u64>, retention: Option<std::time::Duration>) {
        if let (Some(bytes), Some(log)) = (bytes, self.core().durability.log()) {
            log.set_retain_bytes(bytes);
        }
        if let Some(retention) = retention {
            self.core().base.tuning.set_oplog_retention(retention);
        }
    }

    /// Sets what orders the commits of a member of a replica set; once, after opening with [`Options::replica`].
    /// `committed` says that everything in the log is known to be kept by the set.
    pub fn set_sequencer(&self, sequencer: Arc<dyn Sequencer>, committed: bool) {
        let core = self.core();
        core.base.set_sequencer(sequencer);
        let start = core.commits.recent().sequence();
        core.commits.majority().note_candidate(&core.published, None, start);
        if committed {
            let last = core.published.last();
            self.committed(last.index);
        }
        if let Err(error) = core.resume_builds() {
            tracing::warn!(%error, "index builds that a restart has interrupted are left to their ends");
        }
    }

    /// Appends and applies the units that the sequencer has ready. Returns whether there were any. A disk without room is waited for.
    ///
    /// Errors: the log has failed for good, so that nothing that comes can be taken.
    pub fn apply_units(&self) -> Result<bool> {
        self.core().apply_units()
    }

    /// A majority of the set has everything up to this index, and it is applied here.
    pub fn committed(&self, index: u64) {
        let core = self.core();
        let oldest = core.commits.majority().committed(index);
        core.commits.transactions().forget_late(oldest);
        core.published.wake_log_readers();
    }

    /// Has the log synced soon, without anybody here waiting for it.
    pub fn ask_for_sync(&self) {
        self.core().durability.ask_for_sync();
    }

    /// Syncs what is in the log now, on this thread if nobody is at it: other members wait for it.
    pub fn sync_for_others(&self) {
        self.core().durability.sync_for_others();
    }

    /// What replication is to know of the log.
    pub fn log_tail(&self) -> Result<LogTail> {
        self.core().log_tail()
    }

    /// Entries `low..high` of the log, about `bytes_max` of them.
    pub fn log_entries(&self, low: u64, high: u64, bytes_max: u64) -> Result<Vec<LogEntry>> {
        self.core().durability.log_entries(low, high, bytes_max)
    }

    /// Commits an entry without effect on data: `{op: "n", o: ...}`.
    pub fn write_noop(&self, o: RawDoc<'_>, interrupt: Interrupt<'_>) -> Result<OpTime> {
        let core = self.core();
        let _pass = core.commits.pass(interrupt)?;
        let mut prepared = Prepared::default();
        oplog::write(&mut prepared.payload, "n", "", None, None, |doc| {
            doc.append("o", o);
        });
        core.commit(prepared)
    }

    /// Commits an entry that tells readers of the log what has happened to a collection besides changes of its data and definition, and has
    /// no effect here: `{op: "n", ns, ui, o: {}, o2: {shardCollection: "garden.plants", shardKey: {...}}}`.
    pub fn write_event(
        &self,
        namespace: &str,
        uuid: Uuid,
        event: RawDoc<'_>,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        let core = self.core();
        let _pass = core.commits.pass(interrupt)?;
        let mut prepared = Prepared::default();
        // Those who wait for a change of the collection hear of it.
        if let Some(collection) = core.published.peek_catalog().by_uuid(&uuid) {
            prepared.counts.add(&collection.state, (0, 0));
        }
        oplog::write(&mut prepared.payload, "n", namespace, Some(&uuid), None, |doc| {
            doc.append("o", RawDoc::EMPTY).append("o2", event);
        });
        core.commit(prepared)
    }

    /// Removes indexes that another primary has begun to build and nobody here builds. To be called by a new primary; what
    /// it has been building while it followed becomes its own.
    pub fn abort_orphaned_builds(&self) -> Result<()> {
        self.core().abort_orphaned_builds()
    }

    /// Position of the newest commit.
    pub fn last_applied(&self) -> OpTime {
        self.core().published.last()
    }

    /// Log index up to which commits survive a power failure.
    pub fn durable_index(&self) -> u64 {
        self.core().durability.durable_index()
    }

    /// Waits until commits up to `index` are on stable storage, asking for a sync.
    pub fn wait_durable(&self, index: u64, interrupt: Interrupt<'_>) -> Result<()> {
        self.core().wait_durable(index, interrupt)
    }

    /// Calls `done` (from the sync thread, or at once) when commits up to `index` are on stable storage.
    pub fn on_durable(&self, index: u64, done: Box<dyn FnOnce(Result<()>) + Send>) {
        self.core().on_durable(index, done);
    }

    /// [`Engine::on_durable`] for those who cannot wait long: always from the sync thread, unless there is nothing to wait for.
    pub fn on_durable_later(&self, index: u64, done: Box<dyn FnOnce(Result<()>) + Send>) {
        self.core().on_durable_later(index, done);
    }

    /// Sets what is called at this point, for tests that stand in the way of the disk.
    pub fn set_hook(&self, point: HookPoint, hook: Option<Hook>) {
        self.core().base.hooks.set(point, hook);
    }

    /// Flushes memtables and syncs the log: the `fsync` command.
    pub fn checkpoint(&self) -> Result<()> {
        self.core().checkpoint()
    }

    /// `fsyncLock`: flushes, then holds all commits back until [`Engine::unlock_writes`]; returns the lock count.
    pub fn lock_writes(&self, interrupt: Interrupt<'_>) -> Result<u64> {
        let core = self.core();
        core.commits.fsync_lock().lock(&core.base.options.block, interrupt, || core.checkpoint())
    }

    /// Undoes one [`Engine::lock_writes`]; returns the count that is left.
    pub fn unlock_writes(&self) -> Result<u64> {
        self.core().commits.fsync_lock().unlock()
    }

    /// How often writes are locked.
    pub fn write_lock_count(&self) -> u64 {
        self.core().commits.fsync_lock().count()
    }

    /// Whether writes are refused for good (failed sync or disk), with the reason.
    pub fn check_writable(&self) -> Result<()> {
        self.core().durability.check_writable()
    }

    /// Whether [`Engine::shutdown`] has begun: what a set has ordered is applied by the next start.
    pub fn is_stopping(&self) -> bool {
        self.core().is_stopping()
    }

    /// Figures for `serverStatus`.
    pub fn stats(&self) -> Stats {
        self.core().stats()
    }

    /// Has the block cache give back most of what it has, and keep to that; or lets it grow again.
    pub fn shrink_cache(&self, small: bool) {
        let bytes = self.core().base.options.block_cache_bytes();
        self.core().base.db.set_cache_bytes(if small { bytes / 4 } else { bytes });
    }

    /// What this member of a set has applied of the entries that others have ordered.
    pub fn applied(&self) -> Applied {
        self.core().commits.applied().get()
    }

    /// Bytes that a collection's records take on disk and in memtables (an estimate).
    pub fn storage_bytes(&self, collection: &Collection) -> u64 {
        let (from, to) = prefix_range(collection.ident);
        let db = &self.core().base.db;
        db.size_of(Cf::Records, &from, &to) + db.values().bytes_of(collection.ident)
    }

    /// Bytes that an index takes on disk and in memtables (an estimate).
    pub fn index_bytes(&self, index: &Index) -> u64 {
        if index.kind == IndexKind::Id {
            return 0;
        }
        let (from, to) = prefix_range(index.ident);
        self.core().base.db.size_of(Cf::Indexes, &from, &to)
    }

    /// Compacts a collection's records and indexes now: `compact`.
    pub fn compact(&self, collection: &Collection) -> Result<()> {
        let mut outcome = Ok(());
        (self.core().base.options.block)(&mut || outcome = self.core().compact(collection));
        outcome
    }

    /// Checks a collection's records against its indexes and counters. `full` also reads every index key.
    pub fn validate(&self, namespace: &str, full: bool, interrupt: Interrupt<'_>) -> Result<Validation> {
        let view = View::newest(&self.core().published);
        let mut outcome = Ok(Validation::default());
        (self.core().base.options.block)(&mut || outcome = validate(&view, namespace, full, interrupt));
        outcome
    }

    /// What is recorded of a session (its raw `lsid` document).
    pub fn session_record(&self, lsid: RawDoc<'_>) -> Result<Option<SessionRecord>> {
        self.core().session_record(lsid)
    }

    /// The recorded reply of one retryable statement, if it was executed.
    pub fn statement_result(&self, lsid: RawDoc<'_>, txn_number: i64, stmt: i32) -> Result<Option<DocBuf>> {
        self.core().statement_result(lsid, txn_number, stmt)
    }

    /// What is on record of a session's newest number about this namespace (and some others), if that is a retryable write's.
    pub fn session_statements(&self, lsid: RawDoc<'_>, namespace: &str) -> Result<Vec<Statement>> {
        self.core().session_statements(lsid, namespace)
    }

    /// The same of several namespaces, each statement with the place of its namespace among these.
    pub fn statements_about(&self, lsid: RawDoc<'_>, namespaces: &[&str]) -> Result<Vec<(usize, Statement)>> {
        self.core().statements_about(lsid, namespaces)
    }

    /// Puts statements about a namespace on record that another shard has executed, where nothing newer is known of their sessions.
    ///
    /// Nobody may run a retryable write or transaction of these sessions meanwhile.
    pub fn put_statements(
        &self,
        namespace: &str,
        statements: &[Statement],
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        self.core().put_statements(namespace, statements, interrupt)
    }

    /// Has a watcher told of all changes of these collections that become visible from now on, and of retryable statements that are put on
    /// record; of no other collections any more. What it is not told of is visible when this returns.
    pub fn watch(&self, collections: &[Uuid], watcher: Option<Watcher>) {
        let core = self.core();
        let catalog = core.published.catalog();
        let known = collections.iter().filter_map(|uuid| Some((catalog.by_uuid(uuid)?.ident, *uuid)));
        core.commits.watch(known.collect(), watcher);
    }

    /// Sessions that something is on record of, in order, behind `after`; at most `most`.
    pub fn recorded_sessions(&self, after: Option<RawDoc<'_>>, most: usize) -> Result<Vec<DocBuf>> {
        self.core().recorded_sessions(after, most)
    }

    /// Removes what is on record of sessions that have ended (their raw `lsid` documents): a commit like any other, if there
    /// is something. False: not all is done, as writes are locked.
    ///
    /// Nobody may run a retryable write or transaction of these sessions meanwhile.
    pub fn forget_sessions(&self, lsids: &[DocBuf]) -> Result<bool> {
        self.core().forget_sessions(lsids)
    }

    /// Reads the log from this index on, as oplog documents. `None` without a journal.
    pub fn read_log(&self, index: u64) -> Option<Result<sheaf_log::Reader, sheaf_log::Error>> {
        self.core().durability.log().map(|log| log.read_from(index))
    }

    /// Ends background work and, if `clean`, flushes. What the log holds need not be flushed, only applied again by the next
    /// start: where there is one, a flush that fails (no room on the disk, no descriptor) is left out. Gives its error then.
    ///
    /// Errors: what was committed may be lost, as neither files nor the log have it for good.
    pub fn shutdown(&self, clean: bool) -> Result<Option<Error>> {
        let core = self.core();
        self.0.stop();
        let flushed = if clean && !core.durability.is_failed() { core.checkpoint() } else { Ok(()) };
        let outcome = match flushed {
            Err(error) if core.durability.log().is_some() => {
                core.durability.sync_for_checkpoint().map(|()| Some(error))
            }
            flushed => flushed.map(|()| None),
        };
        core.durability.refuse_writes("the engine is shut down");
        core.base.db.end_background();
        outcome
    }

    // ---- DDL: each call is one commit ----

    /// Creates a collection, capped collection or view.
    pub fn create_collection(
        &self,
        namespace: &str,
        spec: &CreateCollection,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        self.core().create_collections(&[(namespace, spec)], interrupt)
    }

    /// Creates collections and views of these names, which belong together: all or none.
    pub fn create_collections(
        &self,
        wanted: &[(&str, &CreateCollection)],
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        self.core().create_collections(wanted, interrupt)
    }

    /// Drops a collection or view; waits for its writers.
    pub fn drop_collection(&self, namespace: &str, interrupt: Interrupt<'_>) -> Result<OpTime> {
        self.core().drop_collection(namespace, &|_| Ok(()), Told::Here, interrupt)
    }

    /// [`Engine::drop_collection`] of what `check` accepts.
    pub fn drop_collection_if(
        &self,
        namespace: &str,
        check: Check<'_>,
        told: Told,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        self.core().drop_collection(namespace, check, told, interrupt)
    }

    /// Drops collections with the option `temp`, which commands have left behind: at a start, and when this member becomes
    /// primary.
    pub fn drop_temporary_collections(&self, interrupt: Interrupt<'_>) -> Result<()> {
        self.core().drop_temporary_collections(interrupt)
    }

    /// Drops all collections of a database. `check` has seen which ones when it happens.
    pub fn drop_database(
        &self,
        db: &str,
        check: DropCheck<'_>,
        told: Told,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        self.core().drop_database(db, check, told, interrupt)
    }

    /// Renames, also to another database: data stays where it is. `check` has seen both sides when it happens.
    pub fn rename_collection(
        &self,
        from: &str,
        to: &str,
        drop_target: bool,
        check: RenameCheck<'_>,
        told: Told,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        self.core().rename_collection(from, to, drop_target, check, told, interrupt)
    }

    /// Builds the given indexes (complete, checked specs) and returns when they are ready. Writers go on
    /// meanwhile. An identical index that exists is skipped.
    pub fn create_indexes(
        &self,
        namespace: &str,
        specs: &[RawDoc<'_>],
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        let specs: Vec<DocBuf> = specs.iter().map(|spec| DocBuf::from(*spec)).collect();
        self.core().create_indexes(namespace, &|_| Ok(specs.clone()), interrupt)
    }

    /// [`Engine::create_indexes`] with the specs that `wanted` makes for the collection as it is when the build begins.
    pub fn create_indexes_for(
        &self,
        namespace: &str,
        wanted: &dyn Fn(&Collection) -> Result<Vec<DocBuf>>,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        self.core().create_indexes(namespace, wanted, interrupt)
    }

    /// Builds indexes anew by name, with the complete specs that `wanted` makes for the collection as it is when the build
    /// begins (`collMod` to unique, `reIndex`, repairs). The old ones stay in use until all are exchanged in one commit; the
    /// one on `_id` is left alone.
    pub fn rebuild_indexes(
        &self,
        namespace: &str,
        wanted: &dyn Fn(&Collection) -> Result<NamedSpecs>,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        self.core().rebuild_indexes(namespace, wanted, interrupt)
    }

    /// Drops the indexes that `choose` names, as the collection is then; not the one on `_id`.
    pub fn drop_indexes(
        &self,
        namespace: &str,
        choose: &dyn Fn(&Collection) -> Result<Vec<String>>,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        self.core().drop_indexes(namespace, choose, interrupt)
    }

    /// Changes options of a collection and specs of its indexes (`collMod`), to what `change` makes of them as they are then.
    pub fn coll_mod(
        &self,
        namespace: &str,
        change: &dyn Fn(&Collection) -> Result<CollectionChange>,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        self.core().coll_mod(namespace, change, interrupt)
    }

    /// Copies a collection into a capped one (`cloneCollectionAsCapped`); the newest documents stay.
    pub fn clone_as_capped(
        &self,
        from: &str,
        to: &str,
        size: i64,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        self.core().clone_as_capped(from, to, size, interrupt)
    }

    /// Makes a collection capped (`convertToCapped`): a capped copy takes its name. Indexes but `_id` go, as in MongoDB.
    pub fn convert_to_capped(
        &self,
        namespace: &str,
        size: i64,
        check: Check<'_>,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        self.core().convert_to_capped(namespace, size, check, interrupt)
    }
}

impl Core {
    /// Whether some transaction is open.
    pub fn open_transactions(&self) -> u64 {
        self.commits.recent().open_count()
    }

    fn stats(&self) -> Stats {
        let log = self.durability.log().map(|log| log.stats()).unwrap_or_default();
        // Not within the expression below: the lock would be held to its end, and whoever begins a transaction takes these
        // two locks in the other order.
        let last_index = self.published.last().index;
        let open_transactions = self.open_transactions();
        let truncations = self.durability.truncations();
        Stats {
            memtable_bytes: self.base.db.property("rocksdb.cur-size-all-mem-tables"),
            cache_capacity: self.base.options.block_cache_bytes(),
            cache_used: self.base.db.cache_used(),
            log_bytes: log.bytes,
            log_first_index: log.first_index,
            log_last_index: last_index,
            log_appends: log.appends,
            log_append_bytes: log.append_bytes,
            log_syncs: log.syncs,
            log_sync_micros: log.sync_micros,
            log_truncations: truncations.0,
            log_truncation_micros: truncations.1,
            commits: self.commits.count(),
            flushes: self.flushes.count(),
            open_transactions,
            lock_waits: self.commits.locks().waits.load(Ordering::Relaxed),
            conflicts: self.commits.conflicts(),
            sst_bytes: self.base.db.property("rocksdb.total-sst-files-size"),
            blob_bytes: self.base.db.property("rocksdb.total-blob-file-size"),
        }
    }
}
