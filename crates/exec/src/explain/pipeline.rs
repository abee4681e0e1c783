//! Explain of pipelines: the query at their head, and what each stage after it does.

use std::sync::Arc;

use parking_lot::Mutex;
use sheaf_aggregate::{Pipeline, Shape, SharedStage};
use sheaf_bson::{DocBuf, DocWriter, RawDoc, Value, doc};
use sheaf_errors::Result;
use sheaf_expr::ParseCx;
use sheaf_query::projection::{Kind, Mode, Projection};
use sheaf_rows::{BoxOperator, Cx, Empty, Figures, Measured, Operator, Row, Step, pull, report};
use sheaf_storage::Collection;

use super::{Explained, Explaining, Rows, Top, Verbosity, nothing, print};
use crate::database::{Db, head_query, near};
use crate::plan::Query;
use crate::plan::query::Hint;

/// An explained pipeline.
pub struct ExplainedPipeline {
    /// The query at its head; `None` if the pipeline makes its documents itself.
    pub cursor: Option<Explained>,
    /// The stages after the head. If there are none, the pipeline is shown as a find.
    pub stages: Vec<DocBuf>,
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
    // A pipeline that writes is never run for its figures.
    let runs = verbosity > Verbosity::QueryPlanner && pipeline.target_namespace().is_none();
    if pipeline.has_own_source() {
        let tallies = of.run(0, Box::new(Empty::default()), runs, cx)?;
        return Ok(ExplainedPipeline { cursor: None, stages: of.print(0, &tallies) });
    }
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
        return Ok(ExplainedPipeline { cursor: Some(cursor), stages: of.print(done, &tallies) });
    };
    let (explaining, winner) = Explaining::start(&query, collection, of.db.reads(), cx)?;
    let planner = explaining.planner(&query, of.namespace, Top::Find);
    let input = Witness::new(Box::new(winner));
    let plan = input.seen.clone();
    let tallies = of.run(done, Box::new(input), runs, cx)?;
    let execution = runs.then(|| {
        let plan = plan.lock();
        let taken = plan.first().map_or(0, |root| root.advanced);
        explaining.execution(&query, &plan, Rows { taken, changed: 0 }, verbosity, Top::Find)
    });
    let cursor = Explained { planner, execution };
    Ok(ExplainedPipeline { cursor: Some(cursor), stages: of.print(done, &tallies) })
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

/// Figures of operators that are gone: of one, and of those below it.
type Seen = Arc<Mutex<Vec<Figures>>>;

/// Tells the figures of an operator and those below it when it is gone, whoever it has been given to.
struct Witness {
    inner: BoxOperator,
    seen: Seen,
}

impl Witness {
    fn new(inner: BoxOperator) -> Self {
        Witness { inner, seen: Seen::default() }
    }
}

impl Operator for Witness {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        self.inner.work(cx)
    }

    fn row(&self) -> Row<'_> {
        self.inner.row()
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        self.inner.metadata()
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.inner);
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        let mut seen = self.seen.lock();
        report(&mut self.inner, &mut |figures| seen.push(figures.clone()));
    }
}

impl PipelineOf<'_> {
    /// Runs the stages from `done` on over their input, each measured.
    fn run(&self, done: usize, input: BoxOperator, runs: bool, cx: &mut Cx<'_>) -> Result<Vec<Figures>> {
        if !runs {
            return Ok(Vec::new());
        }
        let (mut run, mut seen) = (input, Vec::new());
        for stage in &self.pipeline.stages()[done..] {
            let witness = Witness::new(Box::new(Measured::new(stage.clone().open(run, &self.db.shared()))));
            seen.push(witness.seen.clone());
            run = Box::new(witness);
        }
        while pull(&mut run, cx)? {}
        drop(run);
        Ok(seen.iter().map(|seen| seen.lock().first().cloned().unwrap_or_default()).collect())
    }

    /// The stages from `done` on, with their figures if they have run.
    fn print(&self, done: usize, tallies: &[Figures]) -> Vec<DocBuf> {
        let stages = &self.pipeline.stages()[done..];
        let printed = print::stages(self.pipeline, done, self.fresh);
        let mut out = Vec::new();
        let mut at = 0;
        while let Some(stage) = stages.get(at) {
            if matches!(stage.shape(), Shape::Limit(_)) && kept_by_sort(&stages[..at]) {
                at += 1;
                continue;
            }
            let mut tally = tallies.get(at);
            let lookup = tally;
            let mut documents = printed[at].clone();
            let next = stages.get(at + 1).map(|next| next.shape());
            match (stage.shape(), next) {
                // An `$unwind` of what was joined is a part of that.
                (
                    Shape::Lookup(output) | Shape::GraphLookup(output),
                    Some(Shape::Unwind { path, include_array_index, preserve_null_and_empty }),
                ) if path == output => {
                    let index = include_array_index.map(|index| index.dotted());
                    let name = stage.name();
                    documents = documents
                        .iter()
                        .map(|doc| unwinding(doc, name, preserve_null_and_empty, index.as_deref()))
                        .collect();
                    at += 1;
                    tally = tallies.get(at);
                }
                // The cache is asked for what matches.
                (_, Some(Shape::Match(_))) if stage.name() == "$planCacheStats" => {
                    at += 1;
                    tally = tallies.get(at);
                    let filter = printed[at].first().and_then(|filter| filter.as_raw().get("$match"));
                    documents = vec![doc! { "$planCacheStats": { "match": filter.unwrap_or(Value::Null) } }];
                }
                _ => {}
            }
            for (part, document) in documents.iter().enumerate() {
                out.push(DocBuf::build(|out| {
                    out.append_all(document.as_raw());
                    if let (Some(tally), Some(lookup)) = (tally, lookup) {
                        if part == 0 {
                            own_figures(out, stage.shape(), lookup);
                        }
                        out.append("nReturned", tally.advanced as i64);
                        let millis = tally.nanos / 1_000_000;
                        out.append("executionTimeMillisEstimate", millis as i64);
                    }
                }));
            }
            at += 1;
        }
        out
    }
}

/// Whether a `$limit` behind these stages is part of a `$sort` among them, which knows how many to keep.
fn kept_by_sort(before: &[SharedStage]) -> bool {
    let mut shapes = before.iter().rev().map(|stage| stage.shape());
    let sort = shapes.find(|shape| !matches!(shape, Shape::Skip(_)));
    matches!(sort, Some(Shape::Sort { limit: Some(_), .. }))
}

fn unwinding(joined: &DocBuf, name: &str, preserve: bool, index: Option<&str>) -> DocBuf {
    let spec = joined.as_raw().get(name).and_then(|v| v.as_doc()).unwrap_or(RawDoc::EMPTY);
    DocBuf::build(|out| {
        let mut out = out.document(name);
        out.append_all(spec);
        let mut out = out.document("unwinding");
        out.append("preserveNullAndEmptyArrays", preserve);
        if let Some(index) = index {
            out.append("includeArrayIndex", index);
        }
    })
}

/// The figures that only stages of this kind have.
fn own_figures(out: &mut DocWriter<'_, Vec<u8>>, shape: Shape<'_>, own: &Figures) {
    let spilled = &own.spilled;
    let disk = |out: &mut DocWriter<'_, Vec<u8>>| {
        out.append("usedDisk", spilled.count > 0);
        out.append("spills", spilled.count as i64);
        out.append("spilledDataStorageSize", spilled.bytes as i64);
    };
    match shape {
        Shape::Group { .. } => {
            out.append("totalOutputDataSizeBytes", own.output_bytes as i64);
            disk(out);
            out.append("numBytesSpilledEstimate", spilled.bytes as i64);
            out.append("spilledRecords", spilled.records as i64);
        }
        Shape::Sort { .. } | Shape::BucketAuto => {
            out.append("totalDataSizeSortedBytesEstimate", own.output_bytes as i64);
            disk(out);
        }
        Shape::GraphLookup(_) => {
            disk(out);
            out.append("spilledBytes", spilled.bytes as i64);
            out.append("spilledRecords", spilled.records as i64);
        }
        Shape::Lookup(_) => {
            out.append("totalDocsExamined", own.docs_examined as i64);
            out.append("totalKeysExamined", own.keys_examined as i64);
            out.append("collectionScans", own.collection_scans as i64);
            let mut indexes = out.array("indexesUsed");
            for name in &own.indexes_used {
                indexes.push(name.as_str());
            }
        }
        _ => {}
    }
}
