//! Explain of pipelines: the query at their head, and what each stage after it does.

use std::sync::Arc;

use sheaf_aggregate::{Namespace, Pipeline, Shape};
use sheaf_bson::{ArrayBuf, DocBuf, DocWriter, RawDoc, Value};
use sheaf_errors::Result;
use sheaf_expr::ParseCx;
use sheaf_query::projection::{Kind, Mode, Projection};
use sheaf_rows::{BoxOperator, Cx, Empty, Figures, Seen, Witness, pull};
use sheaf_storage::Collection;

use super::shown::{self, Inner, Showing};
use super::{Explained, Explaining, Rows, Top, Verbosity, nothing};
use crate::database::{Db, head_query, near, resolve_view};
use crate::plan::query::Hint;
use crate::plan::{PlanNode, Query};

/// An explained pipeline.
pub struct ExplainedPipeline {
    /// The query at its head; `None` if the pipeline makes its documents itself.
    pub cursor: Option<Explained>,
    /// The stages after the head. If there are none, the pipeline is shown as a find.
    pub stages: Vec<DocBuf>,
}

impl ExplainedPipeline {
    /// The stages' documents, that of the query at the head first.
    pub fn documents(&self) -> ArrayBuf {
        let cursor = self.cursor.as_ref().map(Explained::as_stage);
        ArrayBuf::of(cursor.iter().chain(&self.stages).map(DocBuf::as_raw))
    }
}

impl Explained {
    /// Appends `queryPlanner` and `executionStats`.
    pub fn write(&self, out: &mut DocWriter<'_, Vec<u8>>) {
        out.append("queryPlanner", &self.planner);
        if let Some(execution) = &self.execution {
            out.append("executionStats", execution);
        }
    }

    /// As the first stage of a pipeline.
    fn as_stage(&self) -> DocBuf {
        let number = |doc: RawDoc<'_>, name| doc.get(name).and_then(|v| v.as_exact_i64()).unwrap_or(0);
        DocBuf::build(|out| {
            self.write(&mut out.document("$cursor"));
            let Some(execution) = self.execution.as_ref().map(DocBuf::as_raw) else { return };
            let plan = execution.get("executionStages").and_then(|v| v.as_doc()).unwrap_or(RawDoc::EMPTY);
            out.append("nReturned", number(execution, "nReturned"));
            out.append("executionTimeMillisEstimate", number(plan, "executionTimeMillisEstimate"));
        })
    }
}

/// What a pipeline is explained on.
pub struct PipelineOf<'p> {
    /// The database, at the state that is read.
    pub db: &'p Db,
    /// The pipeline, views resolved.
    pub pipeline: &'p Pipeline,
    /// Where it reads.
    pub namespace: &'p str,
    /// The collection, if it exists.
    pub collection: Option<&'p Arc<Collection>>,
    /// Which plans are allowed.
    pub hint: Hint,
    /// Makes a context in which the command's variables are known.
    pub fresh: &'p dyn Fn() -> ParseCx,
}

/// Explains a pipeline; runs it if figures are asked for.
pub fn explain_pipeline(
    of: &PipelineOf<'_>,
    cx: &mut Cx<'_>,
    verbosity: Verbosity,
) -> Result<ExplainedPipeline> {
    let pipeline = of.pipeline;
    let runs = verbosity > Verbosity::QueryPlanner;
    cx.measures = runs;
    if pipeline.has_own_source() {
        let tallies = of.run(0, Box::new(Empty::default()), runs, cx)?;
        return Ok(ExplainedPipeline { cursor: None, stages: of.show(0, &tallies, verbosity, cx)? });
    }
    pipeline.check_metadata()?;
    let near = match of.collection {
        Some(collection) => near::query(pipeline, collection, cx)?,
        None => None,
    };
    let by_distance = near.is_some();
    let (mut query, mut done) = match near {
        Some(query) => (query, 0),
        None => head_query(pipeline),
    };
    query.hint = of.hint.clone();
    if !by_distance {
        done += push_projection(&mut query, pipeline, done, of)?;
    }
    let Some(collection) = of.collection else {
        let tallies = of.run(done, Box::new(Empty::default()), runs, cx)?;
        let cursor = nothing(&query, of.namespace, verbosity, Top::Find);
        return Ok(ExplainedPipeline {
            cursor: Some(cursor),
            stages: of.show(done, &tallies, verbosity, cx)?,
        });
    };
    let (explaining, winner) = Explaining::start(&query, collection, of.db.reads(), cx)?;
    let planner = explaining.planner(&query, of.namespace, Top::Find);
    let renamed = renamed(winner.plan());
    let input = Witness::new(Box::new(winner));
    let plan = input.seen();
    let tallies = of.run(done, Box::new(input), runs, cx)?;
    let execution = runs.then(|| {
        let plan = plan.all();
        let taken = plan.first().map_or(0, |root| root.advanced);
        explaining.execution(&query, &plan, Rows { taken, changed: 0 }, verbosity, Top::Find)
    });
    let cursor = Explained { planner, execution };
    let mut stages = of.show(done, &tallies, verbosity, cx)?;
    if let (Some(rename), Some(first)) = (renamed, stages.first_mut()) {
        *first = rename(first.as_raw());
    }
    Ok(ExplainedPipeline { cursor: Some(cursor), stages })
}

/// What the first stage becomes where the plan below does the most of it.
fn renamed(plan: &PlanNode) -> Option<fn(RawDoc<'_>) -> DocBuf> {
    match plan {
        PlanNode::RandomRecords(_) => Some(from_random_cursor),
        PlanNode::DistinctScan(_) => Some(by_distinct_scan),
        PlanNode::Project { input, .. } | PlanNode::Fetch { input, .. } => renamed(input),
        _ => None,
    }
}

/// A `$group` that has one document of each group: it only makes another of it.
fn by_distinct_scan(group: RawDoc<'_>) -> DocBuf {
    DocBuf::build(|out| {
        for field in group.iter() {
            let group = match (field.key(), field.value()) {
                ("$group", Value::Document(group)) => group,
                ("nReturned" | "executionTimeMillisEstimate", _) => {
                    out.append_element(field);
                    continue;
                }
                _ => continue,
            };
            let mut stage = out.document("$groupByDistinctScan");
            let mut root = stage.document("newRoot");
            for field in group.iter() {
                let accumulated = field.value().as_doc().filter(|_| field.key() != "_id");
                let value = accumulated.and_then(|operator| operator.values().next());
                root.append(field.key(), value.unwrap_or(field.value()));
            }
        }
    })
}

/// A `$sample` by the name that it has where its documents come by chance.
fn from_random_cursor(sample: RawDoc<'_>) -> DocBuf {
    DocBuf::build(|out| {
        for field in sample.iter() {
            let name = if field.key() == "$sample" { "$sampleFromRandomCursor" } else { field.key() };
            out.append(name, field.value());
        }
    })
}

/// Gives the query a projection: of a `$project` that only includes, or else of the paths that the stages after
/// the head need. Returns how many stages that takes in.
fn push_projection(
    query: &mut Query,
    pipeline: &Pipeline,
    done: usize,
    of: &PipelineOf<'_>,
) -> Result<usize> {
    let (spec, taken) = match pipeline.stages().get(done).map(|stage| stage.shape()) {
        Some(Shape::Project(projection))
            if projection.kind() == Kind::Inclusion && !projection.is_computed() =>
        {
            (projection.to_doc(), 1)
        }
        None => return Ok(0),
        Some(_) => match &query.only_paths {
            Some(paths) if !paths.is_empty() => {
                let mut needed: Vec<&String> = paths.iter().collect();
                needed.sort();
                let covered =
                    |path: &str, by: &str| path.strip_prefix(by).is_some_and(|rest| rest.starts_with('.'));
                let all = needed.clone();
                needed.retain(|path| !all.iter().any(|by| covered(path, by)));
                let spec = DocBuf::build(|out| {
                    let id = needed.iter().any(|path| *path == "_id" || path.starts_with("_id."));
                    for path in needed.iter().filter(|path| *path != &"_id") {
                        out.append(path, 1);
                    }
                    if needed.iter().any(|path| *path == "_id") || !id {
                        out.append("_id", i32::from(id));
                    }
                });
                (spec, 0)
            }
            _ => return Ok(0),
        },
    };
    query.projection = Some(Arc::new(Projection::parse(spec.as_raw(), Mode::Find, &mut (of.fresh)())?));
    query.projection_spec = spec;
    Ok(taken)
}

impl PipelineOf<'_> {
    /// Runs the stages from `done` on over their input, each measured. One that writes takes all that comes, and does nothing
    /// with it.
    fn run(&self, done: usize, input: BoxOperator, runs: bool, cx: &mut Cx<'_>) -> Result<Vec<Figures>> {
        if !runs {
            return Ok(Vec::new());
        }
        let database = self.db.shared();
        let (mut run, seen) = match self.pipeline.target_namespace() {
            Some(_) => self.pipeline.without_last().open_measured(done, input, &database),
            None => self.pipeline.open_measured(done, input, &database),
        };
        while pull(&mut run, cx)? {}
        drop(run);
        let mut tallies: Vec<Figures> = seen.iter().map(Seen::own).collect();
        tallies.resize_with(self.pipeline.stages().len() - done, Figures::default);
        Ok(tallies)
    }

    /// The stages from `done` on, with their figures if they have run.
    fn show(
        &self,
        done: usize,
        tallies: &[Figures],
        verbosity: Verbosity,
        cx: &mut Cx<'_>,
    ) -> Result<Vec<DocBuf>> {
        let mut inner = |from: Option<&Namespace>, pipeline: &Arc<Pipeline>, started: bool| {
            if verbosity > Verbosity::QueryPlanner && !started {
                return Ok(None);
            }
            self.explain_inner(from, pipeline, verbosity, cx).map(Some)
        };
        let inner: Inner<'_> = &mut inner;
        shown::stages(Showing { pipeline: self.pipeline, fresh: self.fresh }, done, tallies, inner)
    }

    /// Explains the pipeline of a `$unionWith`.
    fn explain_inner(
        &self,
        from: Option<&Namespace>,
        pipeline: &Arc<Pipeline>,
        verbosity: Verbosity,
        cx: &mut Cx<'_>,
    ) -> Result<ArrayBuf> {
        let view = self.db.view();
        let named = from.and_then(|from| view.collection(&from.to_string()));
        let resolved = match named.filter(|found| found.is_view() && !pipeline.has_own_source()) {
            Some(found) => Some(resolve_view(&view, found, pipeline, self.db.system())?),
            None => None,
        };
        let (on, pipeline) = match &resolved {
            Some((on, joined)) => (Some(on), joined),
            None => (from, &**pipeline),
        };
        let namespace = on.map_or_else(|| self.namespace.to_owned(), Namespace::to_string);
        let of = PipelineOf {
            db: self.db,
            pipeline,
            namespace: &namespace,
            collection: view.collection(&namespace),
            hint: Hint::None,
            fresh: self.fresh,
        };
        Ok(explain_pipeline(&of, cx, verbosity)?.documents())
    }
}
