//! Multi-document transactions: snapshot isolation, first committer wins, nobody waits.

mod past;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rocksdb::WriteBatch;
use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_meter::Account;
use smallvec::SmallVec;

use crate::catalog::{Collection, split};
use crate::commit::prepared::{Counts, Large, Prepared};
use crate::commit::step::{Holding, Step};
use crate::core::Core;
use crate::critical::must;
use crate::db::Cf;
use crate::db::sink::BatchSink;
use crate::db::values::Gone;
use crate::definitions::command::{Command, create_command};
use crate::keys::{full_key, put_id_key};
use crate::locks::{Hold, LockKey, Locked, Owner, Pass};
use crate::oplog::{self, Statement, TransactionKey, TransactionRecord};
use crate::options::{Interrupt, OpTime};
use crate::read::overlay::Overlay;
use crate::read::view::{SnapshotState, View};
use crate::write::changes::{Changes, WrittenKeys, record_lock, record_lock_at};
use crate::write::guard;
use crate::write::sessions;
use crate::write::{
    CreateCollection, DocumentKey, Marks, MayCreate, Op, Write, check_record_key, duplicate_id, refuse_view,
    write_conflict,
};

/// How long a transaction waits for DDL on a collection: `maxTransactionLockRequestTimeoutMillis`.
const LOCK_TIMEOUT: Duration = Duration::from_millis(5);
/// Memory is taken in steps of this size.
const MEMORY_STEP: u64 = 64 << 10;

/// A multi-document transaction. Dropped without commit it aborts.
pub struct Transaction {
    core: Arc<Core>,
    view: View,
    start: u64,
    /// The time as of which it reads; 0 where it reads what was the newest state.
    read_at: u64,
    /// The newest state when it began, if nothing is known of what had come before that and is not in the view.
    base: Option<View>,
    owner: Owner,
    locks: Vec<LockKey>,
    /// Operations as elements of `applyOps`, one after another.
    payload: Vec<u8>,
    counts: Counts,
    /// What nothing refers to when it is committed.
    gone: Gone,
    passes: SmallVec<[(Arc<Collection>, Pass); 2]>,
    /// Of collections whose placements it writes.
    holds: Vec<Hold>,
    changes: Changes,
    key: Vec<u8>,
    session: Option<(DocBuf, i64)>,
    /// The statement of another session's retryable write that the next operations belong to.
    statement: Option<Statement>,
    /// Whether any operation belongs to one.
    has_statements: bool,
    /// What the log says of the next operations besides what they do.
    marks: Marks,
    /// Collections that exist only here until the commit: their commands.
    created: Vec<Command>,
    /// What is asked before these are made.
    checks: Vec<MayCreate>,
    /// [`Commits::others`](crate::commit::Commits::others) at the start.
    since: u64,
    /// Its own account among those of operations; it lives longer than these.
    account: Option<Arc<Account>>,
    memory: sheaf_meter::Held,
}

impl Transaction {
    pub(crate) fn begin(core: &Arc<Core>, session: Option<(DocBuf, i64)>) -> Result<Transaction> {
        let since = core.commits.others();
        let (view, start) = loop {
            let catalog = core.published.catalog();
            // Commits become visible under this lock, so the snapshot is exactly at `start`.
            let mut recent = core.commits.recent();
            let at = Arc::new(SnapshotState::take(&core.published));
            let start = recent.begin();
            if Arc::ptr_eq(&catalog, &core.published.peek_catalog()) {
                break (View { at, catalog, overlay: Some(Arc::default()), past: None, read_at: 0 }, start);
            }
            recent.end(start);
        };
        Transaction::new(core, session, since, view, start, None)
    }

    fn new(
        core: &Arc<Core>,
        session: Option<(DocBuf, i64)>,
        since: u64,
        view: View,
        start: u64,
        base: Option<View>,
    ) -> Result<Transaction> {
        let account = sheaf_meter::current().map(|meter| Account::new(meter.process()));
        Ok(Transaction {
            since,
            memory: account.as_ref().map_or_else(|| Ok(Default::default()), |account| account.reserve(0))?,
            account,
            core: core.clone(),
            read_at: view.read_at,
            view,
            start,
            base,
            owner: core.commits.locks().owner(),
            locks: Vec::new(),
            payload: Vec::new(),
            counts: Counts::default(),
            gone: Gone::default(),
            passes: SmallVec::new(),
            holds: Vec::new(),
            changes: Changes::default(),
            key: Vec::new(),
            session,
            statement: None,
            marks: Marks::default(),
            has_statements: false,
            created: Vec::new(),
            checks: Vec::new(),
        })
    }

    /// Whether nothing has been written.
    pub fn is_read_only(&self) -> bool {
        self.payload.is_empty() && self.created.is_empty()
    }

    /// Bytes of operations so far.
    pub fn bytes(&self) -> usize {
        self.payload.len()
    }

    /// Whether it was chosen to make room in memory: it is to be ended.
    pub fn is_shed(&self) -> bool {
        self.account.as_ref().is_some_and(|account| account.is_shed())
    }

    /// Takes memory for what has been written: operations for the log, and keys and values twice, as the commit makes a
    /// batch of them.
    ///
    /// Errors: `TransactionTooLarge`.
    fn take_memory(&mut self) -> Result<()> {
        let overlay = self.view.overlay.as_ref().map_or(0, |overlay| overlay.bytes());
        let bytes = (self.payload.len() + 2 * overlay) as u64;
        let limit = self.core.base.options.transaction_bytes;
        if bytes > limit {
            bail!(
                Code::TRANSACTION_TOO_LARGE,
                "The uncommitted changes of the transaction take {bytes} bytes of memory, more than the limit of {limit}"
            );
        }
        if bytes <= self.memory.bytes() {
            return Ok(());
        }
        self.memory.set(bytes.next_multiple_of(MEMORY_STEP)).map_err(|error| {
            let text = format!(
                "The uncommitted changes of the transaction take too much memory: {}",
                error.message()
            );
            Error::new(Code::TRANSACTION_TOO_LARGE, text)
        })
    }

    /// Cluster time of its snapshot.
    pub fn snapshot_time(&self) -> u64 {
        self.view.time().0
    }

    /// Ends it without a trace.
    pub fn abort(self) {}

    /// Commits everything as one log entry; gives the position, or the newest one if nothing was written.
    pub fn commit(mut self, interrupt: Interrupt<'_>) -> Result<OpTime> {
        if self.is_read_only() {
            return Ok(self.core.published.last());
        }
        let core = self.core.clone();
        if let Some(key) = self.key().filter(|_| core.commits.transactions().is_listened_to()) {
            core.commits.transactions().check_unprepared(&key)?;
        }
        let _guards = self.guards(interrupt)?;
        let _pass = core.commits.pass(interrupt)?;
        let mut batch = WriteBatch::default();
        // What is in the batch is given back at once: a large transaction is not in memory twice.
        let mut overlay = Arc::unwrap_or_clone(self.view.overlay.take().unwrap_or_default());
        for (cf, written) in overlay.take() {
            for (key, value) in written {
                match value {
                    Some(value) => batch.put_cf(core.base.db.cf(cf), key, value),
                    None => batch.delete_cf(core.base.db.cf(cf), key),
                }
            }
        }
        if let Some((lsid, number)) = &self.session {
            sessions::put_record(
                lsid.as_raw(),
                *number,
                true,
                &mut BatchSink { db: &core.base.db, batch: &mut batch },
            );
        }
        if self.has_statements {
            let mut sink = BatchSink { db: &core.base.db, batch: &mut batch };
            let operations = oplog::documents(&self.payload).map(oplog::Operation::read);
            operations.for_each(|operation| {
                if let Some(statement) = operation.statement() {
                    sessions::put_statement(&statement, operation.namespace, &mut sink);
                }
            });
        }
        let (payload, chained) = self.oplog_entries(None);
        let mut prepared = Prepared {
            large: Large::boxed(0, std::mem::take(&mut self.gone)),
            payload,
            chained,
            batch,
            counts: std::mem::take(&mut self.counts),
            locks: self.locks.as_slice().into(),
            publish: None,
            since: Some(self.since),
            above: 0,
            step: self.step_alone(),
        };
        if self.created.is_empty() {
            return core.commit(prepared);
        }
        // Somebody may have created one of these meanwhile; nobody can from here on.
        let _turn = core.definitions.take_turn(|| core.commits.others());
        self.checks.iter().try_for_each(|check| check())?;
        let mut catalog = (*core.published.catalog()).clone();
        for command in &self.created {
            catalog.check_case(split(command.target()).0)?;
            if catalog.collection(command.target()).is_some() {
                core.commits.count_conflict();
                return Err(write_conflict());
            }
            let applied = command.apply_existing(catalog, self.view.collection(command.target()))?;
            applied.put(&core.base.db, &mut prepared.batch);
            catalog = applied.catalog;
        }
        prepared.publish = Some(Box::new(move |_| catalog));
        core.commit(prepared)
    }

    /// Prepares everything for a commit that others decide: an entry of the log, with the names of all shards that wrote in the
    /// transaction (an array). Nothing of it is visible; what it has locked stays locked until
    /// [`Engine::commit_prepared`](crate::Engine::commit_prepared) or
    /// [`Engine::write_abort`](crate::Engine::write_abort), also after a restart and for a new primary. The
    /// position's time is the one that counts for the commit's.
    ///
    /// Errors: it was aborted before (`NoSuchTransaction`), or has made a collection
    /// (`OperationNotSupportedInTransaction`); it is over then. After `InterruptedDueToReplStateChange` the log may yet have it.
    pub fn prepare(mut self, participants: &DocBuf, interrupt: Interrupt<'_>) -> Result<OpTime> {
        let core = self.core.clone();
        let Some(key) = self.key() else {
            bail!(Code::ILLEGAL_OPERATION, "a transaction without a session cannot be prepared");
        };
        if !self.created.is_empty() {
            bail!(
                Code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
                "Cannot create new collections inside distributed transactions"
            );
        }
        let transactions = core.commits.transactions();
        let _turn = transactions.turn(key.lsid.as_raw(), &core.base.options.block, interrupt)?;
        let guards = self.guards(interrupt)?;
        let _pass = core.commits.pass(interrupt)?;
        transactions.check_unprepared(&key)?;
        let writes = Arc::unwrap_or_clone(self.view.overlay.take().unwrap_or_default());
        let operations = self.payload.clone();
        let mut batch = WriteBatch::default();
        let mut sink = BatchSink { db: &core.base.db, batch: &mut batch };
        sessions::put_record(key.lsid.as_raw(), key.txn_number, false, &mut sink);
        let (payload, chained) = self.oplog_entries(Some(participants.as_raw()));
        let step = Step {
            collections: oplog::collections_of(&operations),
            operations,
            entries: oplog::documents(&payload).count() as u64,
            holding: Some(Holding {
                table: core.commits.locks().clone(),
                owner: self.owner,
                locks: std::mem::take(&mut self.locks),
                passes: guards,
                holds: std::mem::take(&mut self.holds),
                writes,
                // Statements are rows of their own, which are made of the operations.
                counts: (!self.has_statements).then(|| std::mem::take(&mut self.counts)),
            }),
            ..Step::of(TransactionRecord::Prepare { key, participants: participants.clone() })
        };
        core.commit(Prepared {
            payload,
            chained,
            batch,
            since: Some(self.since),
            step: Some(Box::new(step)),
            ..Prepared::default()
        })
    }

    fn key(&self) -> Option<TransactionKey> {
        let (lsid, txn_number) = self.session.clone()?;
        Some(TransactionKey { lsid, txn_number })
    }

    /// What is told of a commit with one entry, if anybody listens.
    fn step_alone(&self) -> Option<Box<Step>> {
        if !self.core.commits.transactions().is_listened_to() {
            return None;
        }
        let key = self.key()?;
        Some(Box::new(Step::of(TransactionRecord::Alone { key })))
    }

    /// One `applyOps` document, or the [chain](crate::commit::chain) of them that a large transaction is.
    /// With `participants` it is a prepare.
    fn oplog_entries(&mut self, participants: Option<RawDoc<'_>>) -> (Vec<u8>, bool) {
        let statement = self.session.as_ref().map(|(lsid, number)| Statement {
            lsid: lsid.clone(),
            txn_number: *number,
            stmt_id: -1,
            result: None,
        });
        let created: Vec<u8> = self.created.iter().flat_map(|command| command.inner().into_bytes()).collect();
        let payload = std::mem::take(&mut self.payload);
        let operations = || oplog::documents(&created).chain(oplog::documents(&payload));
        let bytes_max = self.core.base.options.transaction_entry_bytes;
        let chained = created.len() + payload.len() > bytes_max && operations().nth(1).is_some();
        let mut out = Vec::with_capacity(payload.len() + 256);
        let (mut left, mut count) = (operations().peekable(), 0i64);
        let mut more = participants.is_some() || left.peek().is_some();
        while std::mem::take(&mut more) {
            oplog::write_transaction(&mut out, statement.as_ref(), chained, |doc| {
                let mut o = doc.document("o");
                let mut size = 0;
                let mut array = o.array("applyOps");
                while let Some(operation) = left.next_if(|op| size == 0 || size + op.len() <= bytes_max) {
                    size += operation.len();
                    count += 1;
                    array.push_raw_document(operation.as_bytes());
                }
                drop(array);
                if left.peek().is_some() {
                    o.append("partialTxn", true);
                    return;
                }
                if chained {
                    o.append("count", count);
                }
                if let Some(participants) = participants {
                    o.append("prepare", true).append("participants", Value::Array(participants));
                }
            });
            more = left.peek().is_some();
        }
        (out, chained)
    }

    /// Adds indexes to a collection that this transaction has created and not yet written to.
    pub fn create_indexes(&mut self, namespace: &str, specs: &[RawDoc<'_>]) -> Result<()> {
        let command = self.created.iter_mut().find(|command| command.target() == namespace);
        let Some(command) = command else {
            bail!(
                Code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
                "Cannot create new indexes on existing collection {namespace} in a multi-document transaction."
            );
        };
        let collection = self.view.catalog.collection(namespace).cloned();
        let Some(collection) = collection else {
            bail!(Code::NAMESPACE_NOT_FOUND, "ns does not exist: {namespace}")
        };
        if self.counts.of(&collection.state).0 != 0 {
            bail!(
                Code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
                "Cannot create new indexes on non-empty collection {namespace} in a multi-document transaction."
            );
        }
        let mut indexes = collection.indexes.clone();
        for spec in specs {
            let index = crate::index::Index::from_spec(
                *spec,
                self.core.definitions.new_ident(namespace),
                true,
                None,
            )?;
            if indexes.iter().all(|known| known.name != index.name) {
                indexes.push(Arc::new(index));
            }
        }
        let changed = Arc::new(collection.changed(None, None, Some(indexes)));
        command.set_indexes(&changed.indexes);
        Arc::make_mut(&mut self.view.catalog).put(changed);
        Ok(())
    }

    /// Nobody changes what the shard owns of the collections that it writes to, nor has done so since it began.
    fn guards(&self, interrupt: Interrupt<'_>) -> Result<guard::Guards> {
        let guards = guard::guard(&self.core, &self.passes, &self.holds, interrupt).inspect_err(|error| {
            if error.code() == Code::WRITE_CONFLICT {
                self.core.commits.count_conflict();
            }
        })?;
        for record in guard::placements(&self.core, &guards)? {
            let lock = record_lock_at(self.core.commits.locks(), &record);
            if self.core.commits.recent().written_since(lock, self.start, self.read_at) {
                return Err(self.conflict());
            }
            self.check_unchanged(&record)?;
        }
        Ok(guards)
    }

    /// Holds the collection whose placement this is.
    fn hold_placed(&mut self, home: &Collection, document: Option<RawDoc<'_>>) -> Result<()> {
        let catalog = self.core.published.peek_catalog();
        let Some(placed) = document.and_then(|document| guard::placed_by(&catalog, home, document)) else {
            return Ok(());
        };
        if !self.holds.iter().any(|hold| hold.holds(&placed.state.gate)) {
            self.holds.push(guard::hold(&self.core, &placed, &sheaf_meter::check)?);
        }
        Ok(())
    }

    fn conflict(&self) -> Error {
        self.core.commits.count_conflict();
        write_conflict()
    }

    fn lock_all(&mut self, keys: &[LockKey]) -> Result<()> {
        for key in keys {
            match self.core.commits.locks().try_lock(*key, self.owner) {
                Locked::Taken => self.locks.push(*key),
                Locked::Already => continue,
                Locked::Busy => {
                    self.wait_for_decision(*key)?;
                    self.locks.push(*key);
                }
            }
            if self.core.commits.recent().written_since(*key, self.start, self.read_at) {
                return Err(self.conflict());
            }
        }
        Ok(())
    }

    fn check_collection(&self, collection: &Collection) -> Result<()> {
        refuse_view(collection)?;
        refuse_capped(collection)
    }

    fn change(&mut self, collection: &Arc<Collection>, record_key: &[u8], op: Op<'_>) -> Result<()> {
        self.check_collection(collection)?;
        let within = self.passes.iter().any(|(known, _)| Arc::ptr_eq(&known.state, &collection.state));
        must!(
            within || self.created.iter().any(|command| command.target() == collection.namespace),
            "{} is written to without a pass through its gate",
            collection.namespace
        );
        self.hold_placed(collection, op.before().or(op.after()))?;
        self.changes.compute(collection, record_key, op.before(), op.after(), self.core.commits.locks())?;
        self.changes.check_long_keys(&self.core.flushes, collection, op)?;
        let locks = self.changes.locks.clone();
        self.lock_all(&locks)?;
        self.check_unchanged(&self.changes.record)?;
        if let Op::Insert(doc) = op
            && self.view.get_full(Cf::Records, &self.changes.record)?.is_some()
        {
            return Err(duplicate_id(collection, doc));
        }
        let view = &self.view;
        self.changes.check_unique(collection, |unique| unique.taken(view, record_key))?;
        if let Some(base) = &self.base {
            let free = self.changes.check_unique(collection, |unique| unique.taken(base, record_key));
            free.map_err(|error| if error.code() == Code::DUPLICATE_KEY { self.conflict() } else { error })?;
        }
        // Views handed out keep what they saw: the overlay is copied if one is still alive.
        let overlay: &mut Overlay = Arc::make_mut(self.view.overlay.get_or_insert_default());
        self.changes.emit(collection, record_key, op.after().map(|doc| doc.as_bytes()), overlay);
        self.core.base.db.put_gone(&self.changes.record, op.before(), &mut self.gone);
        self.changes.count_id(collection, op);
        op.log_inner(&mut self.payload, collection, self.statement.as_ref(), &self.marks);
        self.has_statements |= self.statement.is_some();
        self.counts.add(&collection.state, op.counts());
        self.take_memory()
    }
}

impl Transaction {
    /// What it writes from now on is a copy of what is on another shard, or the removal of one: no change of anybody's data.
    pub fn set_from_migrate(&mut self) {
        self.marks.from_migrate = true;
    }
}

impl Write for Transaction {
    fn view(&mut self) -> Result<View> {
        Ok(self.view.clone())
    }

    fn collection(&mut self, namespace: &str) -> Result<Option<Arc<Collection>>> {
        if let Some((collection, _)) = self.passes.iter().find(|(c, _)| c.namespace == namespace) {
            return Ok(Some(collection.clone()));
        }
        let own = self.created.iter().any(|command| command.target() == namespace);
        let known = self.view.collection(namespace).cloned();
        if own {
            return Ok(known);
        }
        let now = self.core.published.catalog();
        let Some(collection) = now.collection(namespace) else {
            return match known {
                None => Ok(None),
                Some(_) => Err(snapshot_unavailable()),
            };
        };
        // Before anything is looked for: what finds nothing, or changes nothing, is refused, too.
        refuse_capped(collection)?;
        let deadline = Instant::now() + LOCK_TIMEOUT;
        let in_time = || {
            if Instant::now() < deadline {
                return Ok(());
            }
            bail!(Code::LOCK_TIMEOUT, "Unable to acquire IX lock on '{namespace}' within 5ms.")
        };
        let pass = collection.state.gate.pass_as_transaction(&self.core.base.options.block, &in_time)?;
        let unchanged = known.as_ref().is_some_and(|known| Arc::ptr_eq(known, collection))
            && self
                .core
                .published
                .peek_catalog()
                .collection(namespace)
                .is_some_and(|now| Arc::ptr_eq(now, collection));
        if !unchanged {
            return Err(snapshot_unavailable());
        }
        self.passes.push((collection.clone(), pass));
        Ok(Some(collection.clone()))
    }

    fn read_for_update(&mut self, collection: &Arc<Collection>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let lock = record_lock(self.core.commits.locks(), collection, key);
        self.lock_all(&[lock])?;
        let full = full_key(collection.ident, key);
        self.check_unchanged(&full)?;
        Ok(self.view.get_full(Cf::Records, &full)?.map(|doc| doc.to_vec()))
    }

    fn insert(&mut self, collection: &Arc<Collection>, doc: RawDoc<'_>) -> Result<()> {
        sheaf_meter::tick_for(doc.len())?;
        crate::write::check_inserted_depth(doc)?;
        let mut record_key = std::mem::take(&mut self.key);
        record_key.clear();
        put_id_key(doc.get_or_missing("_id"), &mut record_key)?;
        check_record_key(collection, &record_key)?;
        let result = self.change(collection, &record_key, Op::Insert(doc));
        self.key = record_key;
        result
    }

    fn update(
        &mut self,
        collection: &Arc<Collection>,
        key: &[u8],
        old: RawDoc<'_>,
        new: RawDoc<'_>,
        diff: Option<RawDoc<'_>>,
    ) -> Result<()> {
        sheaf_meter::tick_for(old.len() + new.len())?;
        crate::write::check_updated_depth(new)?;
        self.change(collection, key, Op::Update { old, new, diff })
    }

    fn delete(&mut self, collection: &Arc<Collection>, key: &[u8], old: RawDoc<'_>) -> Result<()> {
        self.change(collection, key, Op::Delete(old))
    }

    fn create_collection(&mut self, namespace: &str, spec: CreateCollection) -> Result<()> {
        if self.view.collection(namespace).is_some() {
            bail!(Code::NAMESPACE_EXISTS, "Collection {namespace} already exists.");
        }
        let catalog = self.core.published.peek_catalog();
        if catalog.collection(namespace).is_some() {
            return Err(self.conflict());
        }
        catalog.check_case(split(namespace).0)?;
        let lock = self.core.commits.locks().key(3, namespace.as_bytes());
        self.lock_all(&[lock])?;
        let command = create_command(&self.core.definitions, namespace, &spec)?;
        let applied = command.apply((*self.view.catalog).clone())?;
        self.view.catalog = Arc::new(applied.catalog);
        self.created.push(command);
        self.checks.extend(spec.check);
        Ok(())
    }

    fn retries_conflicts(&self) -> bool {
        false
    }

    fn reserve(&mut self, bytes: usize) {
        self.payload.reserve(bytes);
    }

    /// A transaction is retried as a whole, by its number; one that stands for a retryable write of another session records that one's
    /// statements with its commit.
    fn statement(&mut self, statement: Option<Statement>) {
        self.statement = statement;
    }

    fn joint_statements(&mut self, statements: Vec<Statement>) -> Result<()> {
        if statements.is_empty() {
            return Ok(());
        }
        Err(Error::new(Code::INTERNAL_ERROR, "a transaction's operation is one statement's"))
    }

    fn document_key(&mut self, key: Option<Arc<DocumentKey>>) {
        self.marks.key = key;
    }

    fn written_keys(&self) -> WrittenKeys {
        self.changes.written
    }
}

/// Errors: `OperationNotSupportedInTransaction`.
fn refuse_capped(collection: &Collection) -> Result<()> {
    if collection.capped.is_some() {
        bail!(
            Code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
            "Collection '{}' is a capped collection. Writes in transactions are not allowed on capped collections.",
            collection.namespace
        );
    }
    Ok(())
}

fn snapshot_unavailable() -> Error {
    Error::new(
        Code::SNAPSHOT_UNAVAILABLE,
        "Unable to write to a collection whose catalog entry changed after the transaction's snapshot; please retry the operation.",
    )
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.core.commits.locks().unlock(&self.locks, self.owner);
        self.core.commits.recent().end(self.start);
    }
}
