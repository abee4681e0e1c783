//! `aggregate`: whole on the one shard that has all that it reads and writes; otherwise its leading stages on the shards that have the
//! documents, and the rest here, where rows come together. What is asked of the whole cluster runs on the shard that there is.

use std::sync::Arc;

use sheaf_aggregate::{Namespace, Pipeline};
use sheaf_bson::{DocBuf, RawDoc, Timestamp, Value};
use sheaf_cluster::{Clock, Sharded};
use sheaf_collation::{Collator, SharedCollator};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_expr::{ClusterClock, ParseCx, SystemVariables};
use sheaf_front::args::{Args, NonNegative};
use sheaf_front::reply::Reply;
use sheaf_query::sort::SortPattern;
use sheaf_rows::{BoxOperator, Limits};
use sheaf_server::commands::crud::change_stream::labelled;

use super::change_stream;
use crate::addressed::{Addressed, Placed};
use crate::collation::collator_of;
use crate::cursor::Merged;
use crate::database::ClusterDatabase;
use crate::forward::{self, Body};
use crate::gather::{Gather, Order};
use crate::merged::{First, first_batch, link, open};
use crate::op::Operation;
use crate::out::with_merge_fields;
use crate::parameters::obey_settings;
use crate::route::not_over_shards;
use crate::route::{Route, until_fresh};
use crate::sampling::Named;
use crate::target::Target;
use crate::targeting;
use crate::view::{command, resolved, view_named};

/// `{aggregate: "plants", pipeline: [...], cursor: {}}`.
pub fn run<'a>(_: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    obey_settings(op, op.body())?;
    let Some(stages) = op.body().get("pipeline").and_then(|pipeline| pipeline.as_array()) else {
        return forward::to_database(op, false);
    };
    let first = stages.values().next().and_then(|stage| stage.as_doc()?.iter().next());
    match first.map(|stage| stage.key()) {
        Some("$changeStream") => stream(op, stages).map_err(labelled),
        Some(
            "$currentOp"
            | "$listClusterCatalog"
            | "$listLocalSessions"
            | "$listSampledQueries"
            | "$listSessions"
            | "$querySettings"
            | "$queryStats"
            | "$shardedDataDistribution",
        ) => on_cluster(op, stages),
        // The database's primary shard, which alone knows a time-series collection by its name, has not all of its buckets.
        Some("$collStats" | "$indexStats") if is_measured(op)? => of_measurements(op, stages),
        _ => collection(op, stages),
    }
}

/// A change stream. Its plan is the same on all shards, so that any of them explains it.
fn stream(op: &Operation<'_>, stages: RawDoc<'_>) -> Result<Reply> {
    let name = op.body().iter().next().and_then(|first| first.value().as_str()).unwrap_or_default();
    let namespace = Namespace::new(op.db(), name);
    let pipeline = parse(op, op.body(), stages, &namespace, collator_of(op.body(), None)?)?;
    if op.body().get("explain").is_some_and(|flag| flag.truthy()) {
        let any = forward::all_shards(op)?.into_iter().next();
        let any = any.ok_or_else(|| Error::new(Code::SHARD_NOT_FOUND, "No shards found"))?;
        return forward::to_one(op, &any);
    }
    change_stream::open(op, &namespace, &pipeline)
}

/// Whether the pipeline is on a time-series collection that is sharded.
fn is_measured(op: &Operation<'_>) -> Result<bool> {
    let name = op.body().iter().next().and_then(|first| first.value().as_str()).unwrap_or_default();
    op.buckets_are_sharded(op.db(), name)
}

/// A pipeline on the figures of a time-series collection that is sharded: the router asks for those of the buckets.
fn of_measurements(op: &Operation<'_>, stages: RawDoc<'_>) -> Result<Reply> {
    let name = op.body().iter().next().and_then(|first| first.value().as_str()).unwrap_or_default();
    let placed = Placed::Whole(Target::Config(op.router.directory.config().clone()).into());
    let plan = Plan::new(op, op.body(), name, stages, &placed)?.apart();
    Plan { begins_here: true, ..plan }.run(op, None)
}

/// A pipeline on what servers do: its first stage has its documents from this router.
fn on_cluster(op: &Operation<'_>, stages: RawDoc<'_>) -> Result<Reply> {
    let name = op.body().iter().next().and_then(|first| first.value().as_str()).unwrap_or_default();
    let placed = Placed::Whole(Target::Config(op.router.directory.config().clone()).into());
    Plan::new(op, op.body(), name, stages, &placed)?.apart().run(op, None)
}

/// A pipeline that begins with the documents of a collection, or makes its own.
fn collection<'a>(op: &Operation<'a>, stages: RawDoc<'a>) -> Result<Reply> {
    let name = op.body().iter().next().and_then(|first| first.value().as_str()).unwrap_or_default();
    let beside = names_others(stages);
    if name.is_empty() && !beside {
        return forward::to_database(op, op.writes());
    }
    let ran = until_fresh(op, op.db(), name, op.writes(), |placed| {
        let plan = match (placed, beside) {
            (Placed::Whole(to), false) => return forward::to_one(op, to),
            _ => Plan::new(op, op.body(), name, stages, placed)?,
        };
        match plan.runs_whole() {
            Some(to) => forward::to_one(op, to),
            None => plan.run(op, None),
        }
    });
    match ran {
        // A stage reads a view on what is sharded: here it finds out what that is.
        Err(error) if resolved(&error).is_some_and(|view| view.namespace != op.namespace(name)) => {
            until_fresh(op, op.db(), name, op.writes(), |placed| {
                Plan::new(op, op.body(), name, stages, placed)?.apart().run(op, None)
            })
        }
        Err(error) => on_view(op, name, stages, error),
        ran => ran,
    }
}

/// Runs an aggregation that was refused with this error because it is on a view.
fn on_view(op: &Operation<'_>, name: &str, stages: RawDoc<'_>, error: Error) -> Result<Reply> {
    let view = view_named(op, name, error)?;
    let stages: Vec<DocBuf> = stages.values().filter_map(|stage| stage.as_doc().map(DocBuf::from)).collect();
    let cursor = op.body().get("cursor").and_then(|cursor| cursor.as_doc()).unwrap_or(RawDoc::EMPTY);
    let size = Args::of_part("aggregate.cursor", cursor)?.optional::<NonNegative>("batchSize")?;
    let first = First { size: size.map(|size| size.0 as usize), ..First::default() };
    run_here(op, command(op, &view, &stages).as_raw(), &view.namespace, first)
}

/// Runs a pipeline here, whatever shards could do; the cursor goes by `shown`.
///
/// Errors: those of the pipeline, and of the way to the shards.
pub fn run_here(op: &Operation<'_>, body: RawDoc<'_>, shown: &str, first: First) -> Result<Reply> {
    let name = body.iter().next().and_then(|first| first.value().as_str()).unwrap_or_default();
    let stages = body.get("pipeline").and_then(|stages| stages.as_array()).unwrap_or(RawDoc::EMPTY);
    until_fresh(op, op.db(), name, op.writes(), |placed| {
        Plan::new(op, body, name, stages, placed)?.apart().run(op, Some((shown, first)))
    })
}

/// Whether some stage may read or write other collections.
fn names_others(stages: RawDoc<'_>) -> bool {
    stages.values().filter_map(|stage| stage.as_doc()?.iter().next()).any(|stage| {
        matches!(stage.key(), "$lookup" | "$graphLookup" | "$unionWith" | "$facet" | "$out" | "$merge")
    })
}

/// How a pipeline runs.
pub struct Plan<'b> {
    /// The `aggregate` command.
    body: RawDoc<'b>,
    /// What it runs on.
    pub namespace: Namespace,
    /// All of it.
    pub pipeline: Pipeline,
    /// How it compares strings; `None` while only the shard that has its collection can say it.
    collator: Option<Option<SharedCollator>>,
    /// Who has the documents that it begins with.
    pub to: Vec<Addressed>,
    /// Whether the shard there, if it is one, has all other collections that are read and written, too.
    pub is_local: bool,
    /// Whether its first stage has its documents from this router, though shards could tell them.
    begins_here: bool,
    /// The collections that are not only there.
    elsewhere: Vec<Namespace>,
}

impl<'b> Plan<'b> {
    /// The plan of a pipeline on a collection that is placed there; `body` is the `aggregate` command.
    ///
    /// Errors: those of the pipeline; those of asking the config servers.
    pub fn new(
        op: &Operation<'_>,
        body: RawDoc<'b>,
        name: &str,
        stages: RawDoc<'_>,
        placed: &Placed,
    ) -> Result<Self> {
        let namespace = Namespace::new(op.db(), name);
        let key_of = |db: &str, collection: &str| {
            if sheaf_front::args::check_db_name(db).is_err() || collection.is_empty() {
                return Ok(None);
            }
            Ok(match Route::new(op, db, collection, false).placed()? {
                Placed::Whole(_) => None,
                Placed::Spread(sharded) => {
                    let fields = sharded.pattern().document();
                    Some(fields.iter().map(|field| field.key().to_owned()).collect())
                }
            })
        };
        let merging = with_merge_fields(stages, op.db(), key_of)?;
        let stages = merging.as_ref().map_or(stages, |stages| stages.as_raw());
        let sharded = match placed {
            Placed::Whole(_) => None,
            Placed::Spread(sharded) => Some(&**sharded),
        };
        let collator = collator_of(body, sharded)?;
        let said = body.get("collation").and_then(|own| own.as_doc()).is_some_and(|own| !own.is_empty());
        let known = said || sharded.is_some() || name.is_empty();
        let pipeline = parse(op, body, stages, &namespace, collator.clone())?;
        let collator = known.then_some(collator);
        let to = match placed {
            Placed::Whole(to) => vec![to.clone()],
            Placed::Spread(sharded) => targets(op, body, sharded, &pipeline)?,
        };
        let mut beside = Vec::new();
        pipeline.foreign_namespaces(&mut beside);
        beside.extend(pipeline.target_namespace().cloned());
        let mut elsewhere = Vec::new();
        for other in beside {
            let is_target = pipeline.target_namespace() == Some(&other);
            let there = match Route::new(op, &other.database, &other.collection, is_target).placed()? {
                Placed::Whole(there) => there.target.name() == to[0].target.name(),
                Placed::Spread(_) => false,
            };
            if !there || to.len() > 1 {
                elsewhere.push(other);
            }
        }
        let (is_local, begins_here) = (elsewhere.is_empty(), false);
        Ok(Plan { body, namespace, pipeline, collator, is_local, begins_here, elsewhere, to })
    }

    /// The same with all that reads or writes other collections here.
    fn apart(mut self) -> Self {
        self.pipeline.foreign_namespaces(&mut self.elsewhere);
        self.is_local = false;
        self
    }

    /// How it compares strings.
    fn collator(&self, op: &Operation<'_>) -> Result<Option<SharedCollator>> {
        if let Some(known) = &self.collator {
            return Ok(known.clone());
        }
        let Namespace { database, collection } = &self.namespace;
        let (router, go_on) = (op.router, || op.check_interrupt());
        // Whoever takes it for one that the directory does not have is told by its shard if that is wrong.
        let believed = router.directory.known_collection(&self.namespace.to_string());
        let found = op.blocking(|| match believed.is_some_and(|believed| believed.sharded.is_none()) {
            true => router.named_at_home(database, collection, &go_on),
            false => router.named(database, collection, &go_on),
        })?;
        match found {
            Named::Collection { collation: Some(collation), .. }
            | Named::View { collation: Some(collation) } => Collator::parse(collation.as_raw()),
            _ => Ok(None),
        }
    }

    /// The one shard that runs all of it.
    fn runs_whole(&self) -> Option<&Addressed> {
        match &self.to[..] {
            [only] if self.is_local => Some(only),
            _ => None,
        }
    }

    /// The pipeline in two parts.
    pub fn split(&self) -> Option<sheaf_aggregate::SplitPipeline> {
        match self.begins_here {
            true => Some(self.pipeline.unsplit()),
            false => self.pipeline.split_with(&|other| !self.elsewhere.contains(other)),
        }
    }

    /// Runs it here over what shards give. `given`: how the cursor is shown and begins, where the command does not say it.
    fn run(&self, op: &Operation<'_>, given: Option<(&str, First)>) -> Result<Reply> {
        let body = self.body;
        if body.get("explain").is_some_and(|flag| flag.truthy()) {
            return super::explain::pipeline(op, body, self);
        }
        self.pipeline.check_metadata()?;
        let Some(split) = self.split() else {
            bail!(Code::COMMAND_NOT_SUPPORTED, "This version does not run this pipeline over several shards");
        };
        let cursor = body.get("cursor").and_then(|cursor| cursor.as_doc());
        if cursor.is_none() {
            bail!(
                Code::FAILED_TO_PARSE,
                "The 'cursor' option is required, except for aggregate with the explain argument"
            );
        }
        let collator = self.collator(op)?;
        let link = link(op);
        let rows = match &split.shards {
            Some(stages) => {
                let body = for_shards(op, body, stages.as_raw());
                open(op, &self.to, &Body { db: op.db(), body: body.as_raw() })?
            }
            None => Vec::new(),
        };
        let order = match &split.order {
            Some(order) => {
                let pattern = SortPattern::parse(order.as_raw())?.with_collator(collator.as_ref());
                Order::By(Arc::new(pattern))
            }
            None => Order::None,
        };
        let merger = parse(op, body, split.merger.as_raw(), &self.namespace, collator.clone())?;
        let database = ClusterDatabase::new(op.router, link.clone(), body, op.in_transaction());
        let database = database.collated(collator.as_ref()).shared();
        let gathered: BoxOperator = Box::new(Gather::new(link.clone(), rows, order));
        let run = match merger.has_own_source() {
            true => merger.open_own(&database),
            false => merger.open(gathered, &database),
        };
        let shown = match self.namespace.collection.is_empty() {
            true => op.namespace("$cmd.aggregate"),
            false => self.namespace.to_string(),
        };
        op.metrics().namespace.replace(Some(shown.clone()));
        let mut options = Args::of_part("aggregate.cursor", cursor.unwrap_or(RawDoc::EMPTY))?;
        let size = options.optional::<NonNegative>("batchSize")?.map(|size| size.0 as usize);
        let allow_disk_use = body.get("allowDiskUse").is_none_or(|allowed| allowed.truthy());
        let limits = Limits { allow_disk_use, now_millis: op.now_millis(), ..Limits::default() };
        let (shown, first) = match given {
            Some((shown, first)) => (shown, first),
            None => (&*shown, First { size, ..First::default() }),
        };
        first_batch(op, shown, Merged::new(run, link, limits), first)
            .map_err(|error| error.context("PlanExecutor error during aggregation"))
    }
}

/// The cluster's time, as `$$CLUSTER_TIME` shows it.
struct Shown(Arc<Clock>);

impl ClusterClock for Shown {
    fn cluster_time(&self) -> Timestamp {
        self.0.now().unwrap_or(Timestamp(0))
    }
}

/// Parses a pipeline as a shard would.
fn parse(
    op: &Operation<'_>,
    body: RawDoc<'_>,
    stages: RawDoc<'_>,
    namespace: &Namespace,
    collator: Option<SharedCollator>,
) -> Result<Pipeline> {
    let clock: Arc<dyn ClusterClock> = Arc::new(Shown(op.router.clock.clone()));
    let system = SystemVariables { cluster_clock: Some(clock), user_roles: op.user_roles(), stored: None };
    let cx = ParseCx::new().with_now(op.now_millis()).with_system(system);
    let mut cx = cx.with_api_strict(op.api().strict).with_collator(collator);
    if let Some(variables) = body.get("let").and_then(|variables| variables.as_doc()) {
        cx.declare_let(variables)?;
    }
    let pipeline = Pipeline::parse(stages, namespace, &mut cx)?;
    cx.finish()?;
    Ok(pipeline)
}

/// The shards that can have what the pipeline begins with.
fn targets(
    op: &Operation<'_>,
    body: RawDoc<'_>,
    sharded: &Sharded,
    pipeline: &Pipeline,
) -> Result<Vec<Addressed>> {
    if pipeline.change_stream().is_some() {
        return Err(not_over_shards(op, sharded));
    }
    let collation = body.get("collation").and_then(|collation| collation.as_doc());
    let alike = targeting::compares_bytes(sharded.default_collation.as_ref(), collation);
    let head = pipeline.head();
    let ranges = targeting::ranges_for(sharded.pattern(), head.matcher.map(|matcher| &**matcher), alike);
    op.readers_of(sharded, &ranges)
}

/// The request with other stages.
fn for_shards(op: &Operation<'_>, body: RawDoc<'_>, stages: RawDoc<'_>) -> DocBuf {
    let writes = op.writes();
    DocBuf::build(|out| {
        for field in body.iter() {
            match field.key() {
                "pipeline" => _ = out.append("pipeline", Value::Array(stages)),
                // Only who writes waits.
                "writeConcern" | "bypassDocumentValidation" if writes => {}
                _ => _ = out.append_element(field),
            }
        }
    })
}
