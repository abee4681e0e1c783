//! Explain of pipelines: the query at their head, and what each stage after it does.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use sheaf_aggregate::{BoxSource, Empty, Pipeline, RunCx, RunOptions, Stage};
use sheaf_bson::{DocBuf, DocWriter};
use sheaf_errors::Result;
use sheaf_expr::ParseCx;
use sheaf_query::projection::{Kind, Mode, Projection};
use sheaf_storage::Collection;

use super::{Explained, Explaining, Rows, Top, Verbosity, nothing, print};
use crate::database::source::Planned;
use crate::database::tally::{Tallied, Tally};
use crate::database::{Db, head_query};
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
    /// How it runs.
    pub options: RunOptions,
    /// Makes a context in which the command's variables are known.
    pub fresh: &'p dyn Fn() -> ParseCx,
}

/// Explains a pipeline; runs it if figures are asked for.
pub fn explain_pipeline(of: &PipelineOf<'_>, verbosity: Verbosity) -> Result<ExplainedPipeline> {
    let pipeline = of.pipeline;
    // A pipeline that writes is never run for its figures.
    let runs = verbosity > Verbosity::QueryPlanner && pipeline.target_namespace().is_none();
    if pipeline.has_own_source() {
        let tallies = of.run(0, Box::new(Empty), runs)?;
        return Ok(ExplainedPipeline { cursor: None, stages: of.print(0, &tallies) });
    }
    let (mut query, mut done) = head_query(pipeline);
    query.hint = of.hint.clone();
    done += push_projection(&mut query, pipeline, done, of)?;
    let Some(collection) = of.collection else {
        let tallies = of.run(done, Box::new(Empty), runs)?;
        let cursor = nothing(&query, of.namespace, verbosity, Top::Find);
        return Ok(ExplainedPipeline { cursor: Some(cursor), stages: of.print(done, &tallies) });
    };
    let explaining = of.db.read(|read| Explaining::start(&query, collection, read))?;
    let planner = explaining.planner(&query, of.namespace, Top::Find);
    let input = Arc::new(Tally::default());
    let source = Tallied::new(Box::new(Planned::shared(explaining.winner.clone())), input.clone());
    let tallies = of.run(done, Box::new(source), runs)?;
    let execution = runs.then(|| {
        let rows = Rows { taken: input.returned.load(Relaxed), changed: 0 };
        explaining.execution(&query, rows, verbosity, Top::Find)
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
    let (spec, taken) = match pipeline.stages().get(done) {
        Some(Stage::Project(stage))
            if stage.projection.kind() == Kind::Inclusion && !stage.projection.is_computed() =>
        {
            (stage.projection.to_doc(), 1)
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
    /// Runs the stages from `done` on over their input, each measured.
    fn run(&self, done: usize, input: BoxSource, runs: bool) -> Result<Vec<Arc<Tally>>> {
        if !runs {
            return Ok(Vec::new());
        }
        let mut source = input;
        let mut tallies = Vec::new();
        for stage in &self.pipeline.stages()[done..] {
            let tally = Arc::new(Tally::default());
            source = Box::new(Tallied::new(stage.open(source), tally.clone()));
            tallies.push(tally);
        }
        let mut cx = RunCx::new(self.db, self.options);
        while source.next(&mut cx)?.is_some() {}
        Ok(tallies)
    }

    /// The stages from `done` on, with their figures if they have run.
    fn print(&self, done: usize, tallies: &[Arc<Tally>]) -> Vec<DocBuf> {
        let stages = &self.pipeline.stages()[done..];
        let printed = print::stages(self.pipeline, done, self.fresh);
        let mut out = Vec::new();
        let mut at = 0;
        while let Some(stage) = stages.get(at) {
            if matches!(stage, Stage::Limit(_)) && kept_by_sort(&stages[..at]) {
                at += 1;
                continue;
            }
            let mut tally = tallies.get(at);
            let lookup = tally;
            let mut documents = printed[at].clone();
            // An `$unwind` of what a `$lookup` has joined is a part of that.
            if let (Stage::Lookup(join), Some(Stage::Unwind(unwind))) = (stage, stages.get(at + 1))
                && unwind.path == join.output
            {
                documents =
                    documents.iter().map(|doc| unwinding(doc, unwind.preserve_null_and_empty)).collect();
                at += 1;
                tally = tallies.get(at);
            }
            for (part, document) in documents.iter().enumerate() {
                out.push(DocBuf::build(|out| {
                    out.append_all(document.as_raw());
                    if let (Some(tally), Some(lookup)) = (tally, lookup) {
                        if part == 0 {
                            own_figures(out, stage, lookup);
                        }
                        out.append("nReturned", tally.returned.load(Relaxed) as i64);
                        let millis = tally.nanos.load(Relaxed) / 1_000_000;
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
fn kept_by_sort(before: &[Stage]) -> bool {
    let sort = before.iter().rev().find(|stage| !matches!(stage, Stage::Skip(_)));
    matches!(sort, Some(Stage::Sort(sort)) if sort.limit.is_some())
}

fn unwinding(lookup: &DocBuf, preserve: bool) -> DocBuf {
    let spec = lookup.as_raw().get("$lookup").and_then(|v| v.as_doc()).unwrap_or(sheaf_bson::RawDoc::EMPTY);
    DocBuf::build(|out| {
        let mut out = out.document("$lookup");
        out.append_all(spec);
        out.document("unwinding").append("preserveNullAndEmptyArrays", preserve);
    })
}

/// The figures that only stages of this kind have.
fn own_figures(out: &mut DocWriter<'_, Vec<u8>>, stage: &Stage, own: &Tally) {
    let spills = &own.spills;
    let disk = |out: &mut DocWriter<'_, Vec<u8>>| {
        out.append("usedDisk", spills.count.load(Relaxed) > 0);
        out.append("spills", spills.count.load(Relaxed) as i64);
        out.append("spilledDataStorageSize", spills.bytes.load(Relaxed) as i64);
    };
    match stage {
        Stage::Group(_) | Stage::Count(_) => {
            out.append("totalOutputDataSizeBytes", own.bytes.load(Relaxed) as i64);
            disk(out);
            out.append("numBytesSpilledEstimate", spills.bytes.load(Relaxed) as i64);
            out.append("spilledRecords", spills.rows.load(Relaxed) as i64);
        }
        Stage::Sort(_) | Stage::BucketAuto(_) => {
            out.append("totalDataSizeSortedBytesEstimate", own.bytes.load(Relaxed) as i64);
            disk(out);
        }
        Stage::Lookup(_) | Stage::GraphLookup(_) => {
            out.append("totalDocsExamined", own.docs.load(Relaxed) as i64);
            out.append("totalKeysExamined", own.keys.load(Relaxed) as i64);
            out.append("collectionScans", own.scans.load(Relaxed) as i64);
            let mut indexes = out.array("indexesUsed");
            for name in own.indexes.lock().iter() {
                indexes.push(name.as_str());
            }
        }
        _ => {}
    }
}
