//! The database as pipelines see it: collections, views, `$out` and `$merge`.

pub(crate) mod near;
mod out;
mod spread;
mod stats;

pub use out::Shape;
pub use stats::orphans;

use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;
use sheaf_aggregate::Shape as StageShape;
use sheaf_aggregate::{
    Database, MergeIndex, MergeWrite, Namespace, OutWriter, Pipeline, Probe, SharedDatabase, StatsSource,
};
use sheaf_bson::{DocBuf, ObjectId, RawDoc, Value};
use sheaf_collation::SharedCollator;
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{ParseCx, SystemVariables};
use sheaf_query::matcher::Matcher;
use sheaf_rows::{BoxOperator, Cx, Empty, Operator, pull};
use sheaf_storage::{Collection, Engine, OpTime, View, Write};
use sheaf_timeseries::{TimeseriesOptions, index_for_buckets};

use crate::change_stream::{ChangeStreamSource, SharedPosition};
use crate::find;
use crate::plan::Query;
use crate::plan::query::{Hint, OneOfEach};
use crate::run::{Chosen, EqualProbe, Reads, Watch, equals_only_itself, watched};
use crate::write::{Validator, check_document, check_made};

/// Views upon views upon views: no deeper than this.
const MAX_VIEW_DEPTH: usize = 20;

/// Gives the documents of a stage that shows what the server does.
pub type ServerStats = Box<dyn Fn(StatsSource, RawDoc<'_>) -> Result<Vec<DocBuf>> + Send + Sync>;

/// Gives the latencies of a namespace, with histograms or without.
pub type LatencyStats = Box<dyn Fn(&str, bool) -> DocBuf + Send + Sync>;

/// What the server adds: things that storage does not know.
pub struct Hooks {
    /// The documents of `$currentOp`, `$listLocalSessions` and `$listSampledQueries`.
    pub server_stats: ServerStats,
    /// `latencyStats` of a namespace, with histograms or without.
    pub latency_stats: LatencyStats,
    /// Makes an `_id`.
    pub new_object_id: fn() -> ObjectId,
    /// Makes the view of a time-series collection whose buckets `$out` has written: its name, its options.
    pub make_view: MakeView,
    /// The buckets of time-series collections that are being filled.
    pub open_buckets: Arc<crate::write::open_buckets::OpenBuckets>,
    /// A random number.
    pub random: fn() -> u64,
    /// `host:port`, as `$collStats` and `$indexStats` show it.
    pub host: String,
    /// The shard that the server is, which these show, too.
    pub shard: Option<String>,
    /// The server's own variables, for views.
    pub system: SystemVariables,
    /// Whether the command belongs to a transaction, in which a pipeline may not write.
    pub in_transaction: bool,
    /// `bypassDocumentValidation`.
    pub bypass_validation: bool,
    /// Whether what the stages of the plan do is to be told.
    pub is_profiled: bool,
    /// Told of documents that fail a validator which wants that to be logged.
    pub report: crate::write::Report,
    /// Whether `$out` may put another collection into the place of this one, which users know by that name.
    pub may_replace: Option<MayReplace>,
    /// Whether a collection is sharded, where that matters: the command came through a router, which then has to read it of all shards.
    pub is_spread: Option<IsSpread>,
}

/// Makes a view, unless it is there.
pub type MakeView = Box<dyn Fn(&str, &DocBuf, sheaf_rows::Interrupt<'_>) -> Result<OpTime> + Send + Sync>;

/// Gives an error for a collection that must not be replaced.
pub type MayReplace = Box<dyn Fn(&Collection, &str) -> Result<()> + Send + Sync>;

/// Whether a collection is sharded in this state.
pub type IsSpread = Box<dyn Fn(&View, &Collection) -> Result<bool> + Send + Sync>;

/// The database of one pipeline, over all batches of its cursor. A handle: clones are the same database.
#[derive(Clone)]
pub struct Db(Arc<Inner>);

/// What a [`Db`] has.
pub struct Inner {
    engine: Engine,
    reads: Reads,
    hooks: Hooks,
    /// Position of the newest commit that the pipeline made.
    committed: Mutex<Option<OpTime>>,
    /// The plan of the run that was opened first.
    head: Mutex<Option<Head>>,
    /// The command's own namespace.
    own: Option<String>,
    /// Which plans the command allows on its own collection.
    hint: Option<(String, Hint)>,
    /// The position of a change stream that was opened.
    change_stream: Mutex<Option<SharedPosition>>,
}

impl Deref for Db {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Db {
    /// A database that reads what `reads` says. The hint holds for this namespace.
    pub fn new(engine: Engine, reads: Reads, hooks: Hooks, hint: Option<(&Namespace, Hint)>) -> Self {
        let own = hint.as_ref().map(|(namespace, _)| namespace.to_string());
        let hint = hint.filter(|(_, hint)| *hint != Hint::None);
        let hint = hint.map(|(namespace, hint)| hint_below(&reads.view(), namespace, hint));
        Db(Arc::new(Inner {
            engine,
            reads,
            hooks,
            committed: Mutex::new(None),
            head: Mutex::new(None),
            own,
            hint,
            change_stream: Mutex::new(None),
        }))
    }

    /// The same database, as the operators of pipelines share it.
    pub fn shared(&self) -> SharedDatabase {
        Arc::new(self.clone())
    }

    /// Position of the newest commit that the pipeline has made since this was asked last.
    pub fn take_committed(&self) -> Option<OpTime> {
        self.committed.lock().take()
    }

    /// The plan of the pipeline's first run.
    pub fn head(&self) -> Option<Head> {
        self.head.lock().clone()
    }

    /// The position of the change stream that was opened with this.
    pub fn change_stream(&self) -> Option<SharedPosition> {
        self.change_stream.lock().clone()
    }

    fn note_commit(&self, position: OpTime) {
        let mut committed = self.committed.lock();
        *committed = Some(committed.map_or(position, |before| before.max(position)));
    }

    /// What the pipeline reads.
    pub fn reads(&self) -> &Reads {
        &self.reads
    }

    /// What the system variables are.
    pub(crate) fn system(&self) -> SystemVariables {
        self.hooks.system.clone()
    }

    /// Where the data are.
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The state that is read at present.
    pub(crate) fn view(&self) -> View {
        self.reads.view()
    }

    fn collection(&self, namespace: &Namespace) -> Option<Arc<Collection>> {
        self.view().collection(&namespace.to_string()).cloned()
    }

    /// Runs a pipeline on a namespace, resolving views.
    fn run_at(
        &self,
        namespace: &Namespace,
        pipeline: &Arc<Pipeline>,
        cx: &mut Cx<'_>,
        depth: usize,
    ) -> Result<BoxOperator> {
        let shared = self.shared();
        if let Some(stream) = pipeline.change_stream() {
            let source = ChangeStreamSource::open(self, namespace, stream.clone())?;
            *self.change_stream.lock() = Some(source.position());
            return Ok(pipeline.open_from(1, Box::new(source), &shared));
        }
        if pipeline.has_own_source() {
            return Ok(pipeline.open_own(&shared));
        }
        let Some(collection) = self.collection(namespace) else {
            pipeline.check_metadata()?;
            near::check_collection(pipeline, namespace)?;
            let matcher = pipeline.head().matcher.map(|matcher| &**matcher);
            crate::plan::text::check_collection(matcher, &namespace.to_string())?;
            return Ok(pipeline.open(Box::new(Empty::default()), &shared));
        };
        if depth == 0 {
            if collection.is_view() {
                check_view_collation(&collection, pipeline)?;
            }
            self.check_here(namespace, &collection)?;
        }
        if let Some((on, stages)) = &collection.view {
            if depth >= MAX_VIEW_DEPTH {
                bail!(
                    Code::VIEW_DEPTH_LIMIT_EXCEEDED,
                    "View depth too deep or view cycle detected; maximum depth is {MAX_VIEW_DEPTH}"
                );
            }
            check_view_collation(&collection, pipeline)?;
            let under = Namespace::new(namespace.database.clone(), on.clone());
            let joined = Arc::new(
                view_pipeline(stages.as_raw(), &under, pipeline, self.hooks.system.clone())?
                    .followed_by(pipeline)?,
            );
            return self.run_at(&under, &joined, cx, depth + 1);
        }
        pipeline.check_metadata()?;
        let (input, done) = self.plan(&collection, pipeline, cx)?;
        Ok(pipeline.open_from(done, input, &shared))
    }

    /// How many documents a collection has: by its counter, unless not all that is there may be seen.
    fn count(&self, collection: &Arc<Collection>, cx: &mut Cx<'_>) -> Result<u64> {
        if !self.reads.mixed(collection)? {
            return Ok(collection.count());
        }
        let query = Query { counting: true, only_paths: Some(Vec::new()), ..Query::default() };
        find::open(&query, collection, &self.reads, cx)?.count(cx)
    }

    /// Plans the leading stages; gives the run and the number of stages that it does the work of.
    pub fn plan(
        &self,
        collection: &Arc<Collection>,
        pipeline: &Pipeline,
        cx: &mut Cx<'_>,
    ) -> Result<(BoxOperator, usize)> {
        let (mut query, done) = match near::query(pipeline, collection, cx)? {
            Some(query) => (query, 0),
            None => head_query(pipeline),
        };
        query.number_records = pipeline.reads_metadata(done, "recordId");
        if let Some((namespace, hint)) = &self.hint
            && *namespace == collection.namespace
        {
            query.hint = hint.clone();
        }
        let executor = find::open(&query, collection, &self.reads, cx)?;
        let mut head = self.head.lock();
        if head.is_some() {
            return Ok((Box::new(executor), done));
        }
        let (summary, chosen) = (executor.plan().summary(), executor.chosen());
        let (input, watch): (BoxOperator, _) = if self.hooks.is_profiled {
            let (watched, watch) = watched(executor, query);
            (Box::new(watched), Some(watch))
        } else {
            (Box::new(executor), None)
        };
        *head = Some(Head { summary, chosen, watch });
        Ok((input, done))
    }
}

/// The plan of the query at a pipeline's head.
#[derive(Clone)]
pub struct Head {
    /// `planSummary`
    pub summary: String,
    /// How it was found.
    pub chosen: Chosen,
    /// Its stages, where they are watched.
    pub watch: Option<Watch>,
}

/// The collection below a view, and below the views that it may be on, for which a hint holds; and what the hint is there:
/// a key pattern on measurements is one on their buckets.
pub fn hint_below(view: &View, namespace: &Namespace, hint: Hint) -> (String, Hint) {
    let (mut on, mut hint) = (namespace.to_string(), hint);
    for _ in 0..MAX_VIEW_DEPTH {
        let Some(found) = view.collection(&on) else { break };
        let Some((under, _)) = &found.view else { break };
        if found.is_timeseries()
            && let Some(options) = TimeseriesOptions::of_catalog(found.options.as_raw())
        {
            hint = hint_on_buckets(hint, &options);
        }
        on = Namespace::new(namespace.database.clone(), under.clone()).to_string();
    }
    (on, hint)
}

/// What a hint on measurements is on their buckets. A pattern that no index of buckets could have stays as it is, and finds none.
pub fn hint_on_buckets(hint: Hint, options: &TimeseriesOptions) -> Hint {
    match hint {
        Hint::Pattern(key) => Hint::Pattern(index_for_buckets(key.as_raw(), options).unwrap_or(key)),
        other => other,
    }
}

/// The query that a pipeline's leading stages make, and how many stages those are.
pub fn head_query(pipeline: &Pipeline) -> (Query, usize) {
    let head = pipeline.head();
    let collator = pipeline.collator().cloned();
    let mut query = Query { collator, matcher: head.matcher.cloned(), ..Query::default() };
    let sortable = head.sort.is_none_or(|sort| !sort.needs_metadata());
    if !sortable {
        return (query, head.stages_of_match);
    }
    if let Some(sort) = head.sort {
        query.sort_spec = sort.to_doc();
        query.sort = Some(sort.clone());
    }
    query.skip = head.skip;
    query.limit = head.limit;
    let done = head.stages;
    assert!(
        head.stages_of_match <= head.stages_of_sort && head.stages_of_sort <= done,
        "a pipeline's head is of {} stages with its filter, {} with its sort, {done} in all",
        head.stages_of_match,
        head.stages_of_sort
    );
    query.only_paths = pipeline
        .dependencies_from(done)
        .filter(|deps| deps.metadata.is_empty())
        .map(|deps| deps.paths.into_iter().collect());
    let group = pipeline.stages().get(done).and_then(|stage| stage.one_of_each());
    if let (true, Some((path, first))) =
        (query.sort.is_some() && query.skip == 0 && query.limit.is_none(), group)
    {
        query.one_of_each = Some(OneOfEach { path: path.dotted(), last: !first });
    }
    // Who reads nothing of the documents wants to know how many there are, which keys tell as well.
    query.counting = query.sort.is_none() && query.only_paths.as_ref().is_some_and(Vec::is_empty);
    if let (0, Some(StageShape::Sample(wanted))) =
        (done, pipeline.stages().first().map(|stage| stage.shape()))
    {
        query.sample = Some(wanted);
    }
    // A group without accumulators wants each value once, which an index may give without looking at every key.
    let plain = query.sort.is_none() && query.skip == 0 && query.limit.is_none();
    if let (true, Some(StageShape::Group { distinct: Some(path) })) =
        (plain, pipeline.stages().get(done).map(|stage| stage.shape()))
    {
        query.distinct = Some(path.dotted());
    }
    (query, done)
}

/// What reads a view compares strings as the view does. Measurements are compared as each command says: that they are a
/// view on buckets does not show.
///
/// Errors: `OptionNotSupportedOnView`.
pub fn check_view_collation(view: &Collection, pipeline: &Pipeline) -> Result<()> {
    if view.collator.as_ref() != pipeline.collator() && !view.is_timeseries() {
        bail!(
            Code::OPTION_NOT_SUPPORTED_ON_VIEW,
            "Cannot override the default collation of view {}",
            view.namespace
        );
    }
    Ok(())
}

/// A view's own pipeline, to be followed by another.
pub fn view_pipeline(
    stages: RawDoc<'_>,
    on: &Namespace,
    followed_by: &Pipeline,
    system: SystemVariables,
) -> Result<Pipeline> {
    let mut cx = ParseCx::new().with_system(system).with_collator(followed_by.collator().cloned());
    let pipeline = Pipeline::parse_view(stages, on, &mut cx)?;
    cx.finish()?;
    Ok(pipeline)
}

/// The collection on which a view (or a view on a view) stands in the end, and the pipeline that leads from it.
pub fn resolve_view(
    view: &View,
    collection: &Collection,
    pipeline: &Pipeline,
    system: SystemVariables,
) -> Result<(Namespace, Pipeline)> {
    check_view_collation(collection, pipeline)?;
    let mut joined = pipeline.clone();
    let mut current = collection.view.clone();
    let mut namespace = Namespace::new(collection.db(), collection.name());
    for _ in 0..MAX_VIEW_DEPTH {
        let Some((on, stages)) = current else { return Ok((namespace, joined)) };
        namespace = Namespace::new(namespace.database, on);
        joined = view_pipeline(stages.as_raw(), &namespace, &joined, system.clone())?.followed_by(&joined)?;
        current = view.collection(&namespace.to_string()).and_then(|c| c.view.clone());
    }
    bail!(
        Code::VIEW_DEPTH_LIMIT_EXCEEDED,
        "View depth too deep or view cycle detected; maximum depth is {MAX_VIEW_DEPTH}"
    )
}

impl Database for Db {
    fn run(&self, namespace: &Namespace, pipeline: &Arc<Pipeline>, cx: &mut Cx<'_>) -> Result<BoxOperator> {
        self.run_at(namespace, pipeline, cx, 0)
    }

    fn prepare_equal(
        &self,
        namespace: &Namespace,
        field: &str,
        collator: Option<&SharedCollator>,
    ) -> Result<Option<Box<dyn Probe>>> {
        let Some(collection) = self.collection(namespace) else { return Ok(None) };
        if collection.is_view() {
            return Ok(None);
        }
        self.check_here(namespace, &collection)?;
        if self.reads.mixed(&collection)? {
            return Ok(None);
        }
        let probe = EqualProbe::plan(&collection, field, collator, &self.reads);
        Ok(probe.map(|probe| Box::new(probe) as Box<dyn Probe>))
    }

    fn stats(
        &self,
        source: StatsSource,
        namespace: &Namespace,
        spec: RawDoc<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<Vec<DocBuf>> {
        match source {
            StatsSource::CollStats => stats::coll_stats(self, namespace, spec, cx),
            StatsSource::IndexStats => stats::index_stats(self, namespace),
            StatsSource::PlanCacheStats => stats::plan_cache_stats(self, namespace),
            StatsSource::ListClusterCatalog => Ok(stats::cluster_catalog(self, namespace, spec)),
            StatsSource::QueryStats
            | StatsSource::QuerySettings
            | StatsSource::CurrentOp
            | StatsSource::ListLocalSessions
            | StatsSource::ListSessions
            | StatsSource::ListSampledQueries => (self.hooks.server_stats)(source, spec),
            StatsSource::ShardedDataDistribution => {
                bail!(6789101, "The $shardedDataDistribution stage can only be run on router")
            }
        }
    }

    fn begin_out(
        &self,
        namespace: &Namespace,
        timeseries: Option<&TimeseriesOptions>,
        cx: &Cx<'_>,
    ) -> Result<Box<dyn OutWriter>> {
        out::begin(self, namespace, timeseries, cx)
    }

    fn merge_index(
        &self,
        namespace: &Namespace,
        on: &[String],
        collator: Option<&SharedCollator>,
    ) -> Result<Option<MergeIndex>> {
        let Some(collection) = self.collection(namespace) else {
            return Ok((on.len() == 1 && on[0] == "_id").then_some(MergeIndex { sparse: false }));
        };
        let found = collection.indexes.iter().find(|index| {
            index.ready
                && index.unique
                && index.partial.is_none()
                && index.fields.len() == on.len()
                && index.fields.iter().all(|(path, _)| on.contains(path))
                && crate::index::compares_strings_alike(index, collator)
        });
        Ok(found.map(|index| MergeIndex { sparse: index.sparse }))
    }

    fn find_merge_target(
        &self,
        namespace: &Namespace,
        key: RawDoc<'_>,
        collator: Option<&SharedCollator>,
        cx: &mut Cx<'_>,
    ) -> Result<Option<DocBuf>> {
        // Documents that this very pipeline has written must be seen, so the newest state is read.
        let view = self.engine.view()?;
        let Some(collection) = view.collection(&namespace.to_string()).cloned() else { return Ok(None) };
        if key.count() == 1
            && let Some(id) = key.get("_id")
            && crate::index::clustered_by_id(&collection)
            && collator.is_none()
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
        let mut parse = ParseCx::new().with_collator(collator.cloned());
        let matcher = Matcher::parse(filter.as_raw(), &mut parse)?;
        let query = Query { limit: Some(1), collator: collator.cloned(), ..Query::filtered(matcher) };
        let mut run = find::open(&query, &collection, &Reads::at(view), cx)?;
        Ok(pull(&mut run, cx)?.then(|| DocBuf::from(run.row().document())))
    }

    fn merge_write(
        &self,
        namespace: &Namespace,
        write: MergeWrite,
        old: Option<RawDoc<'_>>,
        document: RawDoc<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<bool> {
        self.refuse_in_transaction("$merge")?;
        match write {
            MergeWrite::Insert => check_made(document)?,
            MergeWrite::Replace => check_document(document)?,
        }
        let mut unit = self.engine.write(cx.interrupt());
        let collection = out::collection_for_write(&mut unit, &namespace.to_string())?;
        let validator = if self.hooks.bypass_validation { None } else { Validator::of(&collection)? };
        if let Some(validator) = &validator {
            validator.enforce(old, document, self.hooks.report)?;
        }
        match (write, old) {
            (MergeWrite::Replace, Some(old)) => {
                let id = document.get_or_missing("_id");
                let Some(key) = record_of(&collection, unit.view()?, id, cx)? else { return Ok(false) };
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

    fn new_object_id(&self) -> ObjectId {
        (self.hooks.new_object_id)()
    }

    fn random(&self) -> u64 {
        (self.hooks.random)()
    }
}

/// The key of the record with this `_id`: in a capped collection it is found through the index.
fn record_of(
    collection: &Arc<Collection>,
    view: View,
    id: Value<'_>,
    cx: &mut Cx<'_>,
) -> Result<Option<Vec<u8>>> {
    if crate::index::clustered_by_id(collection) {
        return collection.record_key(id).map(Some);
    }
    let filter = DocBuf::build(|out| _ = out.document("_id").append("$eq", id));
    let query = Query::filtered(Matcher::parse(filter.as_raw(), &mut ParseCx::new())?);
    let mut run = find::open(&query, collection, &Reads::at(view), cx)?;
    Ok(pull(&mut run, cx)?.then(|| run.row().record.to_vec()))
}

impl Db {
    fn refuse_in_transaction(&self, stage: &str) -> Result<()> {
        if self.hooks.in_transaction {
            bail!(Code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION, "{stage} cannot be used in a transaction");
        }
        Ok(())
    }
}
