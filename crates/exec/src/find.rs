//! Opening a query: its candidates, the choice among them, and the run.

use std::sync::Arc;

use sheaf_errors::{Code, Result, bail};
use sheaf_rows::{Cx, Step};
use sheaf_storage::Collection;

use crate::plan::cache::{self, Choice};
use crate::plan::query::Hint;
use crate::plan::{PlanNode, Query, choose, filters};
use crate::run::{Chosen, Executor, Reads};

/// Works that a trial gives each candidate.
const TRIAL_WORKS: usize = 10_000;
/// Results that end a trial.
const TRIAL_RESULTS: u64 = 101;
/// Bytes of results that end a trial: a hundred of the largest documents, for each candidate, would be gigabytes.
const TRIAL_BYTES: u64 = 16 << 20;

/// Plans the query and readies its run. With several candidates, a short trial of all decides.
pub fn open(query: &Query, collection: &Arc<Collection>, reads: &Reads, cx: &mut Cx<'_>) -> Result<Executor> {
    let executor = choose_plan(query, collection, reads, cx)?;
    let scans = crate::usage::note(executor.plan(), collection, query.tailable);
    if scans > 0 {
        reads.view().plans().count_scans(scans, query.tailable);
    }
    Ok(executor)
}

/// All plans worth trying. Those of a sharded collection have whole documents: what arrives while a cursor rests is left out.
///
/// Errors: those of [`choose::candidates`]; `NoQueryExecutionPlans`, where the collection would be scanned and must not be.
pub fn candidates(query: &Query, collection: &Arc<Collection>, reads: &Reads) -> Result<Vec<PlanNode>> {
    let plans = allowed_candidates(query, collection, reads)?;
    if reads.refuses_scans() && may_not_scan(query, collection) {
        return without_scans(plans, query, collection);
    }
    Ok(plans)
}

/// Whether `notablescan` is meant for this query, as in MongoDB: not for those that want all, nor for the server's own collections.
fn may_not_scan(query: &Query, collection: &Collection) -> bool {
    let system = collection.name().starts_with("system.");
    !query.matcher().filter().is_empty()
        && !system
        && !matches!(collection.db(), "admin" | "config" | "local")
}

fn without_scans(mut plans: Vec<PlanNode>, query: &Query, collection: &Collection) -> Result<Vec<PlanNode>> {
    plans.retain(|plan| !plan.scans_all());
    if !plans.is_empty() {
        return Ok(plans);
    }
    let why = match query.hint {
        Hint::Natural(_) => "hint $natural is not allowed, because 'notablescan' is enabled",
        _ => "No indexed plans available, and running with 'notablescan'",
    };
    bail!(
        Code::NO_QUERY_EXECUTION_PLANS,
        "error processing query: ns={} planner returned error :: caused by :: {why}",
        collection.namespace
    )
}

fn allowed_candidates(query: &Query, collection: &Arc<Collection>, reads: &Reads) -> Result<Vec<PlanNode>> {
    if let Some((query, narrowed)) =
        reads.settings().and_then(|settings| settings.narrowed(query, collection))
    {
        return all_candidates(&query, &narrowed, reads);
    }
    if let Some(filter) = filters::of(query, collection, &reads.view()) {
        let (query, narrowed) = filters::narrowed(query, collection, &filter);
        return all_candidates(&query, &narrowed, reads);
    }
    all_candidates(query, collection, reads)
}

fn all_candidates(query: &Query, collection: &Arc<Collection>, reads: &Reads) -> Result<Vec<PlanNode>> {
    let Some(part) = reads.part(collection)? else {
        return match choose::by_chance(query, collection) {
            Some(plan) => Ok(vec![plan]),
            None => choose::candidates(query, collection),
        };
    };
    let query = Query { whole_documents: true, ..query.clone() };
    let plans = choose::candidates(&query, collection)?;
    Ok(plans.into_iter().map(|plan| plan.filtered(&part)).collect())
}

fn choose_plan(
    query: &Query,
    collection: &Arc<Collection>,
    reads: &Reads,
    cx: &mut Cx<'_>,
) -> Result<Executor> {
    let mut plans = candidates(query, collection, reads)?;
    assert!(!plans.is_empty(), "no plan for a query on {}", collection.namespace);
    if plans.len() == 1 {
        return Executor::new(Arc::new(plans.remove(0)), collection.clone(), reads, query.tailable);
    }
    let view = reads.view();
    if let Some(plan) = cache::lookup(query, collection, &view, &plans) {
        view.plans().count_lookup(true);
        let executor = Executor::new(plan, collection.clone(), reads, query.tailable)?;
        return Ok(executor.chosen_as(Chosen::Remembered));
    }
    view.plans().count_lookup(false);
    let mut trial = try_out(plans, collection, reads, cx)?;
    let shown = crate::explain::cached(query, collection, &view, &mut trial, cx.limits.now_millis);
    cache::store(query, collection, &view, &Choice::of(trial.winner.plan()), shown);
    Ok(trial.winner.chosen_as(Chosen::Tried))
}

/// How a trial ended.
pub struct Trial {
    /// The best candidate, in the middle of its run.
    pub winner: Executor,
    /// The others, best first, with what they scored.
    pub losers: Vec<(Executor, f64)>,
    /// The winner's score.
    pub score: f64,
}

/// Runs all candidates side by side for a little while.
pub fn try_out(
    plans: Vec<PlanNode>,
    collection: &Arc<Collection>,
    reads: &Reads,
    cx: &mut Cx<'_>,
) -> Result<Trial> {
    try_with(plans, cx, |plan| Executor::new(Arc::new(plan), collection.clone(), reads, false))
}

/// Like [`try_out`], with runs made by `start`.
pub fn try_with(
    plans: Vec<PlanNode>,
    cx: &mut Cx<'_>,
    mut start: impl FnMut(PlanNode) -> Result<Executor>,
) -> Result<Trial> {
    let mut runs = Vec::with_capacity(plans.len());
    for plan in plans {
        runs.push((start(plan)?, Tally::default()));
    }
    let (mut failure, mut bytes) = (None, 0);
    'trial: for _ in 0..TRIAL_WORKS {
        let mut alive = false;
        for (run, tally) in &mut runs {
            if tally.failed {
                continue;
            }
            alive = true;
            tally.works += 1;
            cx.check_interrupt()?;
            match run.trial_step(cx) {
                Ok(Step::Row) => tally.rows += 1,
                Ok(Step::More) => {}
                Ok(Step::Eof) => tally.done = true,
                // One candidate may fail (a sort too large) where another does not.
                Err(error) => {
                    tally.failed = true;
                    failure = Some(error);
                }
            }
            let before = std::mem::replace(&mut tally.bytes, run.stash_bytes());
            bytes += tally.bytes - before;
            if tally.done || tally.rows >= TRIAL_RESULTS || bytes >= TRIAL_BYTES {
                break 'trial;
            }
        }
        if !alive {
            break;
        }
    }
    if let (true, Some(error)) = (runs.iter().all(|(_, tally)| tally.failed), failure) {
        return Err(error);
    }
    let mut scored: Vec<(Executor, f64)> = runs
        .into_iter()
        .map(|(run, tally)| {
            let score = tally.score(run.plan());
            (run, score)
        })
        .collect();
    // Equal scores keep the candidates' order, so that the choice does not depend on chance.
    scored.sort_by(|a, b| b.1.total_cmp(&a.1));
    assert!(scored.iter().all(|(_, score)| !score.is_nan()), "a plan has no score");
    let (winner, score) = scored.remove(0);
    Ok(Trial { winner, losers: scored, score })
}

#[derive(Default)]
struct Tally {
    works: u64,
    rows: u64,
    bytes: u64,
    done: bool,
    failed: bool,
}

impl Tally {
    /// Rows per work decide; small bonuses break ties as mongod does.
    fn score(&self, plan: &PlanNode) -> f64 {
        if self.failed {
            return -1.0;
        }
        let productivity = self.rows as f64 / self.works.max(1) as f64;
        let epsilon = (1.0 / (10.0 * self.works.max(1) as f64)).min(1e-4);
        let no_fetch = if has(plan, &|node| matches!(node, PlanNode::Fetch { .. })) { 0.0 } else { epsilon };
        let no_sort = if plan.blocks() { 0.0 } else { epsilon };
        let end = if self.done { 1.0 } else { 0.0 };
        1.0 + productivity + no_fetch + no_sort + epsilon + end
    }
}

fn has(node: &PlanNode, test: &dyn Fn(&PlanNode) -> bool) -> bool {
    test(node) || node.inputs().iter().any(|input| has(input, test))
}
