//! The database as pipelines see it: collections, views, `$out` and `$merge`.

mod out;
pub(crate) mod source;
mod stats;
pub mod tally;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use sheaf_aggregate::{
    BoxSource, Database, Documents, MergeIndex, MergeWrite, Namespace, OutWriter, Pipeline, RunCx,
    StatsSource,
};
use sheaf_bson::{DocBuf, ObjectId, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{ClusterClock, ParseCx};
use sheaf_query::matcher::Matcher;
use sheaf_query::sort::Runs;
use sheaf_storage::{Collection, Engine, IndexKind, OpTime, OplogCursor, View, Write};

use crate::change_stream::{ChangeStreamSource, SharedPosition};
use crate::find;
use crate::plan::Query;
use crate::plan::query::Hint;
use crate::run::{Executor, ReadCx};
use crate::write::Validator;
use source::Planned;
use tally::Tally;

/// Views upon views upon views: no deeper than this.
const MAX_VIEW_DEPTH: usize = 20;

/// Gives the documents of a stage that shows what the server does.
pub type ServerStats = Box<dyn Fn(StatsSource, RawDoc<'_>) -> Result<Vec<DocBuf>> + Send + Sync>;

/// Gives the latencies of a namespace, with histograms or without.
pub type LatencyStats = Box<dyn Fn(&str, bool) -> DocBuf + Send + Sync>;

/// What the server adds: things that storage does not know. It is owned, because a pipeline's sources find
/// their database again by its type.
pub struct Hooks {
    /// The error to end with, if the operation was killed or is out of time.
    pub interrupt: Box<dyn Fn() -> Result<()> + Send + Sync>,
    /// The documents of `$currentOp` and `$listLocalSessions`.
    pub server_stats: ServerStats,
    /// `latencyStats` of a namespace, with histograms or without.
    pub latency_stats: LatencyStats,
    /// Makes an `_id`.
    pub new_object_id: fn() -> ObjectId,
    /// A random number.
    pub random: fn() -> u64,
    /// `host:port`, as `$collStats` and `$indexStats` show it.
    pub host: String,
    /// `$$CLUSTER_TIME` in views; `None` outside a replica set.
    pub cluster_clock: Option<Arc<dyn ClusterClock>>,
    /// Whether the command belongs to a transaction, in which a pipeline may not write.
    pub in_transaction: bool,
    /// `bypassDocumentValidation`.
    pub bypass_validation: bool,
}

/// The database for one command.
pub struct Db {
    engine: Engine,
    view: View,
    now_millis: i64,
    hooks: Hooks,
    /// Tells one command's database from the next one's.
    pub(crate) id: u64,
    /// Runs that hold something of the view.
    open: RefCell<Vec<Weak<dyn Suspend + Send + Sync>>>,
    committed: Cell<Option<OpTime>>,
    /// Plan summaries and figures of the runs opened.
    summary: RefCell<Option<String>>,
    /// Which plans the command allows on its own collection.
    hint: RefCell<Option<(String, Hint)>>,
    /// The stage that is at work, if stages are measured.
    tally: RefCell<Option<Arc<Tally>>>,
    /// The position of a change stream that the command has opened.
    change_stream: RefCell<Option<SharedPosition>>,
    /// How long documents before changes are shown, once it was asked for.
    image_seconds: Cell<Option<Option<i64>>>,
}

impl Db {
    /// The database at a view.
    pub fn new(engine: Engine, view: View, now_millis: i64, hooks: Hooks) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Db {
            engine,
            view,
            now_millis,
            hooks,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            open: RefCell::default(),
            committed: Cell::new(None),
            summary: RefCell::new(None),
            hint: RefCell::new(None),
            tally: RefCell::new(None),
            change_stream: RefCell::new(None),
            image_seconds: Cell::new(None),
        }
    }

    /// Sets which plans are allowed on the command's own collection.
    pub fn hint(&self, namespace: &Namespace, hint: Hint) {
        if hint != Hint::None {
            self.hint.replace(Some((namespace.to_string(), hint)));
        }
    }

    /// Position of the newest commit that the pipeline made.
    pub fn committed(&self) -> Option<OpTime> {
        self.committed.get()
    }

    /// The plan summary of the pipeline's first run.
    pub fn plan_summary(&self) -> Option<String> {
        self.summary.borrow().clone()
    }

    /// The position of the change stream that was opened with this.
    pub fn change_stream(&self) -> Option<SharedPosition> {
        self.change_stream.borrow().clone()
    }

    /// Whether a document that was kept at this time for change streams may be shown no more.
    pub(crate) fn image_is_expired(&self, wall_millis: i64) -> Result<bool> {
        let limit = match self.image_seconds.get() {
            Some(limit) => limit,
            None => {
                let limit = crate::change_stream::image_seconds(&self.view)?;
                self.image_seconds.set(Some(limit));
                limit
            }
        };
        let age = self.now_millis.saturating_sub(wall_millis);
        Ok(limit.is_some_and(|seconds| age > seconds.saturating_mul(1000)))
    }

    /// Lets all runs go of the view; a cursor calls it at the end of each batch.
    pub fn suspend(&self) {
        for run in self.open.borrow_mut().drain(..) {
            if let Some(run) = run.upgrade() {
                run.suspend();
            }
        }
    }

    /// Notes what holds memory or the view until the end of the batch.
    pub(crate) fn open<T: Suspend + Send + Sync + 'static>(&self, run: &Arc<T>) {
        let run: Weak<T> = Arc::downgrade(run);
        self.open.borrow_mut().push(run);
    }

    fn note_commit(&self, position: OpTime) {
        let newest = self.committed.get().map_or(position, |before| before.max(position));
        self.committed.set(Some(newest));
    }

    /// The state that is read.
    pub fn view(&self) -> &View {
        &self.view
    }

    pub(crate) fn read<T>(&self, work: impl FnOnce(&ReadCx<'_>) -> Result<T>) -> Result<T> {
        let interrupt = &*self.hooks.interrupt;
        work(&ReadCx::new(&self.view, &interrupt, self.now_millis))
    }

    fn collection(&self, namespace: &Namespace) -> Option<&Arc<Collection>> {
        self.view.collection(&namespace.to_string())
    }

    /// Runs a pipeline on a namespace, resolving views.
    fn run_at(
        &self,
        namespace: &Namespace,
        pipeline: &Arc<Pipeline>,
        cx: &RunCx<'_>,
        depth: usize,
    ) -> Result<BoxSource> {
        if let Some(stream) = pipeline.change_stream() {
            let source = ChangeStreamSource::open(self, namespace, stream.clone())?;
            self.change_stream.replace(Some(source.position()));
            return Ok(pipeline.open_from(1, Box::new(source)));
        }
        if pipeline.has_own_source() {
            return Ok(pipeline.open_own());
        }
        let Some(collection) = self.collection(namespace) else {
            return Ok(pipeline.open(Box::new(Documents::new(Vec::new()))));
        };
        if let Some((on, stages)) = &collection.view {
            if depth >= MAX_VIEW_DEPTH {
                bail!(
                    Code::VIEW_DEPTH_LIMIT_EXCEEDED,
                    "View depth too deep or view cycle detected; maximum depth is {MAX_VIEW_DEPTH}"
                );
            }
            let under = Namespace::new(namespace.database.clone(), on.clone());
            let joined = Arc::new(
                view_pipeline(stages.as_raw(), &under, self.hooks.cluster_clock.clone())?
                    .followed_by(pipeline)?,
            );
            return self.run_at(&under, &joined, cx, depth + 1);
        }
        let (executor, done) = self.plan(collection, pipeline, cx)?;
        self.summary.borrow_mut().get_or_insert_with(|| executor.plan().summary());
        let tally = self.tally.borrow().clone();
        Ok(pipeline.open_from(done, Box::new(Planned::new(executor, tally))))
    }

    /// Plans the leading stages; gives the run and the number of stages that it does the work of.
    pub fn plan(
        &self,
        collection: &Arc<Collection>,
        pipeline: &Pipeline,
        cx: &RunCx<'_>,
    ) -> Result<(Executor, usize)> {
        let (mut query, done) = head_query(pipeline);
        if let Some((namespace, hint)) = &*self.hint.borrow()
            && *namespace == collection.namespace
        {
            query.hint = hint.clone();
        }
        let variables: Vec<_> = cx.variables().map(|(slot, value)| (slot, value.clone())).collect();
        let executor = self.read(|read| {
            let read = ReadCx { variables: &variables, allow_disk_use: cx.options.allow_disk_use, ..*read };
            find::open(&query, collection, &read)
        })?;
        Ok((executor, done))
    }

    /// All documents that match a filter.
    fn find_all(
        &self,
        collection: &Arc<Collection>,
        filter: RawDoc<'_>,
        limit: Option<u64>,
    ) -> Result<Vec<DocBuf>> {
        let matcher = Matcher::parse(filter, &mut ParseCx::new())?;
        let query = Query { limit, ..Query::filtered(matcher) };
        self.read(|read| {
            let mut executor = find::open(&query, collection, read)?;
            let mut found = Vec::new();
            let mut held = sheaf_meter::reserve(0)?;
            while let Some(doc) = executor.next_document(read)? {
                held.grow(doc.len() as u64 + 64)?;
                found.push(DocBuf::from_bytes(doc));
            }
            if let Some(tally) = &*self.tally.borrow() {
                tally.read(&executor);
            }
            Ok(found)
        })
    }
}

/// The query that a pipeline's leading stages make, and how many stages those are.
pub fn head_query(pipeline: &Pipeline) -> (Query, usize) {
    let head = pipeline.head();
    let mut query = Query { matcher: head.matcher.cloned(), ..Query::default() };
    let sortable = head.sort.is_none_or(|sort| !sort.pattern.needs_metadata());
    if !sortable {
        return (query, head.stages_of_match);
    }
    if let Some(sort) = head.sort {
        query.sort_spec = sort.pattern.to_doc();
        query.sort = Some(Arc::new(sort.pattern.clone()));
    }
    query.skip = head.skip;
    query.limit = head.limit;
    let done = head.stages;
    query.only_paths = pipeline
        .dependencies_from(done)
        .filter(|deps| deps.metadata.is_empty())
        .map(|deps| deps.paths.into_iter().collect());
    (query, done)
}

/// A view's own pipeline.
pub fn view_pipeline(
    stages: RawDoc<'_>,
    on: &Namespace,
    clock: Option<Arc<dyn ClusterClock>>,
) -> Result<Pipeline> {
    let mut cx = ParseCx::new().with_cluster_clock(clock);
    let pipeline = Pipeline::parse_view(stages, on, &mut cx)?;
    cx.finish()?;
    Ok(pipeline)
}

/// The collection on which a view (or a view on a view) stands in the end, and the pipeline that leads from it.
pub fn resolve_view(
    view: &View,
    collection: &Collection,
    pipeline: &Pipeline,
    clock: Option<Arc<dyn ClusterClock>>,
) -> Result<(Namespace, Pipeline)> {
    let mut joined = pipeline.clone();
    let mut current = collection.view.clone();
    let mut namespace = Namespace::new(collection.db(), collection.name());
    for _ in 0..MAX_VIEW_DEPTH {
        let Some((on, stages)) = current else { return Ok((namespace, joined)) };
        namespace = Namespace::new(namespace.database, on);
        joined = view_pipeline(stages.as_raw(), &namespace, clock.clone())?.followed_by(&joined)?;
        current = view.collection(&namespace.to_string()).and_then(|c| c.view.clone());
    }
    bail!(
        Code::VIEW_DEPTH_LIMIT_EXCEEDED,
        "View depth too deep or view cycle detected; maximum depth is {MAX_VIEW_DEPTH}"
    )
}

impl Database for Db {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn check_interrupt(&self) -> Result<()> {
        (self.hooks.interrupt)()
    }

    fn run(&self, namespace: &Namespace, pipeline: &Arc<Pipeline>, cx: &RunCx<'_>) -> Result<BoxSource> {
        self.run_at(namespace, pipeline, cx, 0)
    }

    fn can_find_equal(&self, namespace: &Namespace, field: &str) -> Result<bool> {
        let Some(collection) = self.collection(namespace) else { return Ok(false) };
        if collection.is_view() {
            return Ok(false);
        }
        Ok(collection.indexes.iter().any(|index| {
            index.ready
                && !index.hidden
                && index.partial.is_none()
                && !index.sparse
                && matches!(index.kind, IndexKind::Id | IndexKind::Btree | IndexKind::Hashed)
                && index.fields.first().is_some_and(|(path, _)| path == field)
        }))
    }

    fn find_equal(&self, namespace: &Namespace, field: &str, value: Value<'_>) -> Result<Vec<DocBuf>> {
        let Some(collection) = self.collection(namespace) else { return Ok(Vec::new()) };
        if field == "_id" && crate::index::clustered_by_id(collection) && equals_only_itself(value) {
            let key = collection.record_key(value)?;
            if let Some(index) = collection.indexes.first() {
                index.accesses.count();
            }
            let found = self.view.get(collection, &key)?;
            if let (Some(tally), Some(index)) = (&*self.tally.borrow(), collection.indexes.first()) {
                tally.read_one(&index.name, found.is_some());
            }
            return Ok(found.map(|doc| DocBuf::from(doc.as_raw())).into_iter().collect());
        }
        let value = if value.is_nullish() { Value::Null } else { value };
        let filter = DocBuf::build(|out| {
            out.document(field).append("$eq", value);
        });
        self.find_all(collection, filter.as_raw(), None)
    }

    fn stats(&self, source: StatsSource, namespace: &Namespace, spec: RawDoc<'_>) -> Result<Vec<DocBuf>> {
        match source {
            StatsSource::CollStats => stats::coll_stats(self, namespace, spec),
            StatsSource::IndexStats => stats::index_stats(self, namespace),
            StatsSource::CurrentOp | StatsSource::ListLocalSessions => {
                (self.hooks.server_stats)(source, spec)
            }
        }
    }

    fn begin_out(&self, namespace: &Namespace, spec: Value<'_>) -> Result<Box<dyn OutWriter>> {
        out::begin(self, namespace, spec)
    }

    fn merge_index(&self, namespace: &Namespace, on: &[String]) -> Result<Option<MergeIndex>> {
        if on.len() == 1 && on[0] == "_id" {
            return Ok(Some(MergeIndex { sparse: false }));
        }
        let Some(collection) = self.collection(namespace) else { return Ok(None) };
        let found = collection.indexes.iter().find(|index| {
            index.ready
                && index.unique
                && index.partial.is_none()
                && index.fields.len() == on.len()
                && index.fields.iter().all(|(path, _)| on.contains(path))
        });
        Ok(found.map(|index| MergeIndex { sparse: index.sparse }))
    }

    fn find_merge_target(&self, namespace: &Namespace, key: RawDoc<'_>) -> Result<Option<DocBuf>> {
        // Documents that this very pipeline has written must be seen, so the newest state is read.
        let view = self.engine.view()?;
        let Some(collection) = view.collection(&namespace.to_string()).cloned() else { return Ok(None) };
        if key.count() == 1
            && let Some(id) = key.get("_id")
            && crate::index::clustered_by_id(&collection)
            && equals_only_itself(id)
        {
            let key = collection.record_key(id)?;
            return Ok(view.get(&collection, &key)?.map(|doc| DocBuf::from(doc.as_raw())));
        }
        let filter = DocBuf::build(|out| {
            for element in key.iter() {
                out.document(element.key()).append("$eq", element.value());
            }
        });
        let matcher = Matcher::parse(filter.as_raw(), &mut ParseCx::new())?;
        let query = Query { limit: Some(1), ..Query::filtered(matcher) };
        let interrupt = &*self.hooks.interrupt;
        let read = ReadCx::new(&view, &interrupt, self.now_millis);
        let found = find::open(&query, &collection, &read)?.next_document(&read)?;
        Ok(found.map(DocBuf::from_bytes))
    }

    fn merge_write(
        &self,
        namespace: &Namespace,
        write: MergeWrite,
        old: Option<RawDoc<'_>>,
        document: RawDoc<'_>,
    ) -> Result<bool> {
        self.refuse_in_transaction("$merge")?;
        let interrupt = &*self.hooks.interrupt;
        let mut unit = self.engine.write(&interrupt);
        let collection = out::collection_for_write(&mut unit, &namespace.to_string())?;
        let validator = if self.hooks.bypass_validation { None } else { Validator::of(&collection)? };
        if let Some(validator) = &validator {
            validator.enforce(old, document)?;
        }
        match (write, old) {
            (MergeWrite::Replace, Some(old)) => {
                let key = collection.record_key(document.get_or_missing("_id"))?;
                match unit.read_for_update(&collection, &key)? {
                    Some(now) if now == old.as_bytes() => {
                        unit.update(&collection, &key, old, document, None)?
                    }
                    _ => return Ok(false),
                }
            }
            _ => unit.insert(&collection, document)?,
        }
        self.note_commit(unit.commit()?);
        Ok(true)
    }

    fn sort_runs(&self) -> Result<Option<Box<dyn Runs + Send>>> {
        let spills = self.tally.borrow().as_ref().map(|tally| tally.spills.clone());
        Ok(Some(crate::run::temporary_runs(spills)))
    }

    fn new_object_id(&self) -> ObjectId {
        (self.hooks.new_object_id)()
    }

    fn random(&self) -> u64 {
        (self.hooks.random)()
    }
}

impl Db {
    fn refuse_in_transaction(&self, stage: &str) -> Result<()> {
        if self.hooks.in_transaction {
            bail!(Code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION, "{stage} cannot be used in a transaction");
        }
        Ok(())
    }
}

fn equals_only_itself(value: Value<'_>) -> bool {
    !matches!(value, Value::Missing | Value::Null | Value::Undefined | Value::Array(_) | Value::Regex(_))
}

impl Drop for Db {
    fn drop(&mut self) {
        self.suspend();
    }
}

/// What reads for a command, and may be kept for the next one.
pub(crate) trait Suspend {
    /// The command's batch has come to its end.
    fn suspend(&self);
}

impl Suspend for Mutex<Executor> {
    fn suspend(&self) {
        self.lock().suspend();
    }
}

impl Suspend for Mutex<OplogCursor> {
    fn suspend(&self) {
        self.lock().suspend();
    }
}
