//! Explain: plans and their figures in MongoDB's shape.

mod clustered;
pub mod pipeline;
mod print;
mod shown;
mod stages;

use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, DocWriter, RawDoc, Value};
use sheaf_errors::Result;
use sheaf_rows::{Cx, Figures};
use sheaf_storage::{Collection, View};

use crate::find::{self, Trial};
use crate::plan::query::Hint;
use crate::plan::settings::Settings;
use crate::plan::{PlanNode, Query};
use crate::plan::{cache, filters};
use crate::run::{Executor, Reads};
use stages::Of;

/// How much to tell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verbosity {
    /// The plans.
    QueryPlanner,
    /// And the figures of a run of the winning one.
    ExecutionStats,
    /// And those of the trials of all.
    AllPlansExecution,
}

impl Verbosity {
    /// From its name.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "queryPlanner" => Verbosity::QueryPlanner,
            "executionStats" => Verbosity::ExecutionStats,
            "allPlansExecution" => Verbosity::AllPlansExecution,
            _ => return None,
        })
    }
}

/// The operator that a command puts on top of its query's plan.
#[derive(Clone, Copy)]
pub enum Top<'q> {
    /// None: find.
    Find,
    /// `COUNT`.
    Count,
    /// `UPDATE`; whether it goes on after the first match, and whether it would insert.
    Update {
        /// All matches.
        multi: bool,
        /// Insert if there are none.
        upsert: bool,
    },
    /// `DELETE`; whether it goes on after the first match.
    Delete {
        /// All matches.
        multi: bool,
    },
    /// `TS_MODIFY`: measurements go out of the buckets that the query finds.
    DeleteMeasurements {
        /// All that match.
        multi: bool,
        /// Which buckets are looked into.
        buckets: RawDoc<'q>,
        /// Which of their measurements go, as far as the buckets do not tell.
        residual: RawDoc<'q>,
    },
}

impl Top<'_> {
    fn is_done(self, rows: Rows) -> bool {
        match self {
            Top::Update { multi: false, .. } | Top::Delete { multi: false } => true,
            Top::DeleteMeasurements { multi: false, .. } => rows.changed > 0,
            _ => false,
        }
    }
}

/// An explained query.
pub struct Explained {
    /// `queryPlanner`.
    pub planner: DocBuf,
    /// `executionStats`, unless only the plans were asked for.
    pub execution: Option<DocBuf>,
}

/// What a write would do to a document that its query has found; without one it would change it.
pub type WouldModify<'w> = &'w dyn Fn(RawDoc<'_>) -> Result<Rows>;

/// Explains a query on a collection and the state that it reads (`None`: a collection that does not exist).
pub fn explain(
    query: &Query,
    namespace: &str,
    collection: Option<(&Arc<Collection>, &Reads)>,
    cx: &mut Cx<'_>,
    verbosity: Verbosity,
    top: Top<'_>,
    would_modify: Option<WouldModify<'_>>,
) -> Result<Explained> {
    let Some((collection, reads)) = collection else { return Ok(nothing(query, namespace, verbosity, top)) };
    let counter =
        matches!(top, Top::Count) && query.matcher().matches_everything() && query.hint == Hint::None;
    if counter && !reads.mixed(collection)? {
        return Ok(fast_count(query, namespace, collection, verbosity));
    }
    let (explaining, mut winner) = Explaining::start(query, collection, reads, cx)?;
    let planner = explaining.planner(query, namespace, top);
    if verbosity == Verbosity::QueryPlanner {
        return Ok(Explained { planner, execution: None });
    }
    let rows = run(&mut winner, cx, top, would_modify)?;
    let execution = explaining.execution(query, &winner.figures(), rows, verbosity, top);
    Ok(Explained { planner, execution: Some(execution) })
}

/// Rows that a command took in, and those that it would change.
#[derive(Clone, Copy, Default)]
pub struct Rows {
    /// Taken in.
    pub taken: u64,
    /// Would be changed.
    pub changed: u64,
}

fn run(
    executor: &mut Executor,
    cx: &mut Cx<'_>,
    top: Top<'_>,
    would_modify: Option<WouldModify<'_>>,
) -> Result<Rows> {
    let mut rows = Rows::default();
    while executor.advance(cx)? {
        let one = match (would_modify, executor.plan_row().doc) {
            (Some(test), Some(doc)) => test(doc)?,
            _ => Rows { taken: 1, changed: 1 },
        };
        rows = Rows { taken: rows.taken + one.taken, changed: rows.changed + one.changed };
        if top.is_done(rows) {
            break;
        }
    }
    Ok(rows)
}

/// A query whose plans have been made and tried.
pub(crate) struct Explaining {
    /// The best plan, and the collection that it reads.
    plan: Arc<PlanNode>,
    collection: Arc<Collection>,
    /// The others with what they scored and their figures.
    losers: Vec<(Arc<PlanNode>, f64, Vec<Figures>)>,
    score: f64,
    /// The winner's figures at the end of its trial.
    trial: Vec<Figures>,
    cached: bool,
    /// Whether an index filter holds for the query.
    filtered: bool,
    /// What was set for queries of its shape.
    settings: Option<Arc<Settings>>,
    started: Instant,
    optimization: Duration,
}

impl Explaining {
    /// Makes the plans and, if there are several, tries them. What is found is not remembered: explain leaves
    /// no trace in the plan cache.
    ///
    /// Gives the winner besides, at the end of its trial.
    pub(crate) fn start(
        query: &Query,
        collection: &Arc<Collection>,
        reads: &Reads,
        cx: &mut Cx<'_>,
    ) -> Result<(Self, Executor)> {
        let started = Instant::now();
        let mut plans = find::candidates(query, collection, reads)?;
        let cached = cache::lookup(query, collection, &reads.view(), &plans).is_some();
        let ready = |plan: PlanNode| Executor::timed(Arc::new(plan), collection.clone(), reads);
        let mut trial = if plans.len() == 1 {
            Trial { winner: ready(plans.remove(0))?, losers: Vec::new(), score: 0.0 }
        } else {
            find::try_with(plans, cx, ready)?
        };
        let lost = |(mut run, score): (Executor, f64)| (run.plan().clone(), score, run.figures());
        let explaining = Explaining {
            trial: trial.winner.figures(),
            plan: trial.winner.plan().clone(),
            collection: trial.winner.collection().clone(),
            losers: trial.losers.into_iter().map(lost).collect(),
            score: trial.score,
            cached,
            filtered: filters::of(query, collection, &reads.view()).is_some(),
            settings: reads.settings().cloned(),
            started,
            optimization: started.elapsed(),
        };
        Ok((explaining, trial.winner))
    }

    /// `queryPlanner`.
    pub(crate) fn planner(&self, query: &Query, namespace: &str, top: Top<'_>) -> DocBuf {
        let of = Of { query, clustered: is_clustered(&self.collection), absent: false };
        DocBuf::build(|out| {
            let salt = index_salt(&self.collection);
            let millis = self.optimization.as_millis() as i32;
            planner_head(out, query, namespace, (salt, self.filtered), millis);
            if let Some(settings) = &self.settings {
                out.append("querySettings", settings.shown());
            }
            {
                let mut plan = out.document("winningPlan");
                plan.append("isCached", self.cached);
                stages::write_top(&mut plan, top, &self.plan, None, Rows::default(), of);
            }
            let mut rejected = out.array("rejectedPlans");
            for (loser, ..) in &self.losers {
                let mut plan = rejected.document();
                plan.append("isCached", false);
                stages::write_top(&mut plan, top, loser, None, Rows::default(), of);
            }
        })
    }

    /// `executionStats` of the winner as far as it has run.
    pub(crate) fn execution(
        &self,
        query: &Query,
        figures: &[Figures],
        rows: Rows,
        verbosity: Verbosity,
        top: Top<'_>,
    ) -> DocBuf {
        let of = Of { query, clustered: is_clustered(&self.collection), absent: false };
        let (keys, docs) = clustered::examined(&self.plan, figures, of.clustered);
        let returned = if matches!(top, Top::Find) { rows.taken } else { 0 };
        DocBuf::build(|out| {
            out.append("executionSuccess", true);
            out.append("nReturned", returned as i32);
            out.append("executionTimeMillis", self.started.elapsed().as_millis() as i32);
            out.append("totalKeysExamined", keys as i32);
            out.append("totalDocsExamined", docs as i32);
            {
                let mut plan = out.document("executionStages");
                plan.append("isCached", self.cached);
                stages::write_top(&mut plan, top, &self.plan, Some(figures), rows, of);
            }
            if verbosity == Verbosity::AllPlansExecution {
                let mut all = out.array("allPlansExecution");
                if !self.losers.is_empty() {
                    trial_doc(&mut all.document(), &self.plan, &self.trial, self.score, of);
                    for (loser, score, figures) in &self.losers {
                        trial_doc(&mut all.document(), loser, figures, *score, of);
                    }
                }
            }
        })
    }
}

/// A chosen plan as `$planCacheStats` shows it, made when it is remembered.
pub(crate) fn cached(
    query: &Query,
    collection: &Collection,
    view: &View,
    trial: &mut Trial,
    now: i64,
) -> DocBuf {
    let hash = cache::shape_hash(query);
    let salt = index_salt(collection);
    let of = Of { query, clustered: is_clustered(collection), absent: false };
    let figures = trial.winner.figures();
    let works = figures.iter().map(|figures| figures.works).max().unwrap_or(0);
    DocBuf::build(|out| {
        out.append("version", "1");
        out.append("queryHash", hash_text(hash).as_str());
        out.append("planCacheShapeHash", hash_text(hash).as_str());
        out.append("planCacheKey", key_text(hash, salt).as_str());
        // A plan is used from the first time on that it was chosen.
        out.append("isActive", true);
        out.append("works", works as i64);
        out.append("worksType", "works");
        out.append("timeOfCreation", Value::DateTime(now));
        {
            let mut from = out.document("createdFromQuery");
            from.append("query", &query.matcher().to_doc());
            from.append("sort", query.sort_spec.as_raw());
            from.append("projection", query.projection_spec.as_raw());
        }
        let (plan, score) = (trial.winner.plan().clone(), trial.score);
        stages::write_top(&mut out.document("cachedPlan"), Top::Find, &plan, None, Rows::default(), of);
        {
            let mut all = out.array("creationExecStats");
            trial_doc(&mut all.document(), &plan, &figures, score, of);
            for (loser, score) in &mut trial.losers {
                let (plan, figures) = (loser.plan().clone(), loser.figures());
                trial_doc(&mut all.document(), &plan, &figures, *score, of);
            }
        }
        {
            let mut scores = out.array("candidatePlanScores");
            scores.push(score);
            trial.losers.iter().for_each(|(_, score)| _ = scores.push(*score));
        }
        out.append("indexFilterSet", filters::of(query, collection, view).is_some());
    })
}

/// Whether a collection was made as a clustered one.
fn is_clustered(collection: &Collection) -> bool {
    collection.options.as_raw().element("clusteredIndex").is_some()
}

/// Changes with the indexes that there are.
fn index_salt(collection: &Collection) -> u64 {
    collection.indexes.iter().map(|index| u64::from(index.ident)).sum()
}

fn key_text(hash: u64, salt: u64) -> String {
    hash_text(hash.rotate_left(17) ^ salt)
}

fn hash_text(hash: u64) -> String {
    format!("{:08X}", (hash >> 32) as u32 ^ hash as u32)
}

/// By what names the plan cache knows a query on this collection: its shape (`planCacheShapeHash`), and that with the indexes that there are
/// (`planCacheKey`).
pub fn names(query: &Query, collection: &Collection) -> [String; 2] {
    let hash = cache::shape_hash(query);
    [hash_text(hash), key_text(hash, index_salt(collection))]
}

/// The stages of a plan with what they have done, as the profiler shows them.
pub fn stages_of(
    query: &Query,
    collection: &Collection,
    plan: &PlanNode,
    figures: &[Figures],
    rows: Rows,
    top: Top<'_>,
) -> DocBuf {
    let of = Of { query, clustered: is_clustered(collection), absent: false };
    DocBuf::build(|out| stages::write_top(out, top, plan, Some(figures), rows, of))
}

fn planner_head(
    out: &mut DocWriter<'_, Vec<u8>>,
    query: &Query,
    namespace: &str,
    (key_salt, filtered): (u64, bool),
    millis: i32,
) {
    let hash = cache::shape_hash(query);
    out.append("namespace", namespace);
    out.append("parsedQuery", &query.matcher().to_doc());
    out.append("indexFilterSet", filtered);
    out.append("queryHash", hash_text(hash).as_str());
    out.append("planCacheShapeHash", hash_text(hash).as_str());
    out.append("planCacheKey", key_text(hash, key_salt).as_str());
    out.append("optimizationTimeMillis", millis);
    for name in [
        "maxIndexedOrSolutionsReached",
        "maxIndexedAndSolutionsReached",
        "maxScansToExplodeReached",
        "prunedSimilarIndexes",
    ] {
        out.append(name, false);
    }
}

fn trial_doc(out: &mut DocWriter<'_, Vec<u8>>, plan: &PlanNode, stats: &[Figures], score: f64, of: Of<'_>) {
    let (keys, docs) = clustered::examined(plan, stats, of.clustered);
    out.append("nReturned", stats.first().map_or(0, |s| s.advanced) as i32);
    let nanos = stats.first().map_or(0, |s| s.nanos);
    out.append("executionTimeMillisEstimate", (nanos / 1_000_000) as i32);
    out.append("totalKeysExamined", keys as i32);
    out.append("totalDocsExamined", docs as i32);
    out.append("score", score);
    stages::write(&mut out.document("executionStages"), plan, Some(stats), &mut stages::At::top(of));
}

/// A count of all documents reads the collection's own counter.
fn fast_count(query: &Query, namespace: &str, collection: &Collection, verbosity: Verbosity) -> Explained {
    let planner = DocBuf::build(|out| {
        planner_head(out, query, namespace, (0, false), 0);
        out.document("winningPlan").append("isCached", false).append("stage", "RECORD_STORE_FAST_COUNT");
        drop(out.array("rejectedPlans"));
    });
    let execution = (verbosity > Verbosity::QueryPlanner).then(|| {
        DocBuf::build(|out| {
            out.append("executionSuccess", true);
            for name in ["nReturned", "executionTimeMillis", "totalKeysExamined", "totalDocsExamined"] {
                out.append(name, 0);
            }
            {
                let mut plan = out.document("executionStages");
                plan.append("isCached", false);
                stages::fast_count(&mut plan, collection.count(), query);
            }
            if verbosity == Verbosity::AllPlansExecution {
                drop(out.array("allPlansExecution"));
            }
        })
    });
    Explained { planner, execution }
}

fn nothing(query: &Query, namespace: &str, verbosity: Verbosity, top: Top<'_>) -> Explained {
    let stats = [Figures { works: 1, eof: true, ..Figures::default() }];
    let of = Of { query, clustered: false, absent: true };
    let planner = DocBuf::build(|out| {
        planner_head(out, query, namespace, (0, false), 0);
        {
            let mut plan = out.document("winningPlan");
            plan.append("isCached", false);
            stages::write_top(&mut plan, top, &PlanNode::Eof, None, Rows::default(), of);
        }
        drop(out.array("rejectedPlans"));
    });
    let execution = (verbosity > Verbosity::QueryPlanner).then(|| {
        DocBuf::build(|out| {
            out.append("executionSuccess", true);
            for name in ["nReturned", "executionTimeMillis", "totalKeysExamined", "totalDocsExamined"] {
                out.append(name, 0);
            }
            {
                let mut plan = out.document("executionStages");
                plan.append("isCached", false);
                stages::write_top(&mut plan, top, &PlanNode::Eof, Some(&stats), Rows::default(), of);
            }
            if verbosity == Verbosity::AllPlansExecution {
                drop(out.array("allPlansExecution"));
            }
        })
    });
    Explained { planner, execution }
}
