//! Explain: plans and their figures in MongoDB's shape.

mod stages;

use std::sync::Arc;
use std::time::Instant;

use sheaf_bson::{DocBuf, DocWriter};
use sheaf_errors::Result;
use sheaf_storage::Collection;

use crate::find::{self, Trial};
use crate::plan::cache::{self, Choice};
use crate::plan::query::Hint;
use crate::plan::{Node, Query, choose};
use crate::run::{Executor, ReadCx, Stats};

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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Top {
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
}

impl Top {
    fn first_only(self) -> bool {
        matches!(self, Top::Update { multi: false, .. } | Top::Delete { multi: false })
    }
}

/// An explained query.
pub struct Explained {
    /// `queryPlanner`.
    pub planner: DocBuf,
    /// `executionStats`, unless only the plans were asked for.
    pub execution: Option<DocBuf>,
}

/// Explains a query on a collection (`None`: one that does not exist).
pub fn explain(
    query: &Query,
    namespace: &str,
    collection: Option<&Arc<Collection>>,
    cx: &ReadCx<'_>,
    verbosity: Verbosity,
    top: Top,
) -> Result<Explained> {
    let started = Instant::now();
    let Some(collection) = collection else { return Ok(nothing(query, namespace, verbosity, top)) };
    if top == Top::Count && query.matcher().matches_everything() && query.hint == Hint::None {
        return Ok(fast_count(query, namespace, collection, verbosity));
    }
    let mut plans = choose::candidates(query, collection)?;
    let cached = cache::lookup(query, collection, cx.view.catalog().version(), &plans).is_some();
    let mut trial = if plans.len() == 1 {
        let winner = Executor::new(Arc::new(plans.remove(0)), collection.clone(), query.tailable)?;
        Trial { winner, losers: Vec::new(), score: 0.0 }
    } else {
        let trial = find::try_out(plans, collection, cx)?;
        cache::store(query, collection, cx.view.catalog().version(), Choice::of(trial.winner.plan()));
        trial
    };
    let trial_stats: Vec<Stats> = trial.winner.stats().to_vec();
    let optimization = started.elapsed();
    let planner = planner_doc(query, namespace, &trial, cached, optimization.as_millis() as i32, top);
    if verbosity == Verbosity::QueryPlanner {
        return Ok(Explained { planner, execution: None });
    }
    let rows = run(&mut trial.winner, cx, top)?;
    let millis = started.elapsed().as_millis() as i64;
    let execution = DocBuf::build(|out| {
        execution_doc(out, &trial, rows, millis, top, cached);
        if verbosity == Verbosity::AllPlansExecution {
            let mut all = out.array("allPlansExecution");
            if !trial.losers.is_empty() {
                trial_doc(&mut all.document(), trial.winner.plan(), &trial_stats, trial.score);
                for (loser, score) in &trial.losers {
                    trial_doc(&mut all.document(), loser.plan(), loser.stats(), *score);
                }
            }
        }
    });
    Ok(Explained { planner, execution: Some(execution) })
}

fn run(executor: &mut Executor, cx: &ReadCx<'_>, top: Top) -> Result<u64> {
    let mut rows = 0;
    while executor.advance(cx)? {
        rows += 1;
        if top.first_only() {
            break;
        }
    }
    Ok(rows)
}

fn hash_text(hash: u64) -> String {
    format!("{:08X}", (hash >> 32) as u32 ^ hash as u32)
}

fn planner_head(
    out: &mut DocWriter<'_, Vec<u8>>,
    query: &Query,
    namespace: &str,
    key_salt: u64,
    millis: i32,
) {
    let hash = cache::shape_hash(query);
    out.append("namespace", namespace);
    out.append("parsedQuery", &query.matcher().to_doc());
    out.append("indexFilterSet", false);
    out.append("queryHash", hash_text(hash).as_str());
    out.append("planCacheShapeHash", hash_text(hash).as_str());
    out.append("planCacheKey", hash_text(hash.rotate_left(17) ^ key_salt).as_str());
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

fn planner_doc(query: &Query, namespace: &str, trial: &Trial, cached: bool, millis: i32, top: Top) -> DocBuf {
    DocBuf::build(|out| {
        let salt = trial.winner.collection().indexes.iter().map(|index| u64::from(index.ident)).sum();
        planner_head(out, query, namespace, salt, millis);
        {
            let mut plan = out.document("winningPlan");
            plan.append("isCached", cached);
            stages::write_top(&mut plan, top, trial.winner.plan(), None, 0);
        }
        let mut rejected = out.array("rejectedPlans");
        for (loser, _) in &trial.losers {
            let mut plan = rejected.document();
            plan.append("isCached", false);
            stages::write_top(&mut plan, top, loser.plan(), None, 0);
        }
    })
}

fn execution_doc(
    out: &mut DocWriter<'_, Vec<u8>>,
    trial: &Trial,
    rows: u64,
    millis: i64,
    top: Top,
    cached: bool,
) {
    let winner = &trial.winner;
    let (keys, docs) = winner.examined();
    let returned = if top == Top::Find { rows } else { 0 };
    out.append("executionSuccess", true);
    out.append("nReturned", returned as i32);
    out.append("executionTimeMillis", millis as i32);
    out.append("totalKeysExamined", keys as i32);
    out.append("totalDocsExamined", docs as i32);
    let mut plan = out.document("executionStages");
    plan.append("isCached", cached);
    stages::write_top(&mut plan, top, winner.plan(), Some(winner.stats()), rows);
}

fn trial_doc(out: &mut DocWriter<'_, Vec<u8>>, plan: &Node, stats: &[Stats], score: f64) {
    let sum = |field: fn(&Stats) -> u64| stats.iter().map(field).sum::<u64>() as i32;
    out.append("nReturned", stats.first().map_or(0, |s| s.advanced) as i32);
    out.append("executionTimeMillisEstimate", 0);
    out.append("totalKeysExamined", sum(|s| s.keys_examined));
    out.append("totalDocsExamined", sum(|s| s.docs_examined));
    out.append("score", score);
    stages::write(&mut out.document("executionStages"), plan, Some(stats), &mut 0);
}

/// A count of all documents reads the collection's own counter.
fn fast_count(query: &Query, namespace: &str, collection: &Collection, verbosity: Verbosity) -> Explained {
    let planner = DocBuf::build(|out| {
        planner_head(out, query, namespace, 0, 0);
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
                stages::fast_count(&mut plan, collection.count());
            }
            if verbosity == Verbosity::AllPlansExecution {
                drop(out.array("allPlansExecution"));
            }
        })
    });
    Explained { planner, execution }
}

fn nothing(query: &Query, namespace: &str, verbosity: Verbosity, top: Top) -> Explained {
    let stats = [Stats { works: 1, eof: true, ..Stats::default() }];
    let planner = DocBuf::build(|out| {
        planner_head(out, query, namespace, 0, 0);
        {
            let mut plan = out.document("winningPlan");
            plan.append("isCached", false);
            stages::write_top(&mut plan, top, &Node::Eof, None, 0);
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
                stages::write_top(&mut plan, top, &Node::Eof, Some(&stats), 0);
            }
            if verbosity == Verbosity::AllPlansExecution {
                drop(out.array("allPlansExecution"));
            }
        })
    });
    Explained { planner, execution }
}
