//! Rewriting a pipeline into one that does less and gives the same.

use std::sync::Arc;

use sheaf_query::matcher::Matcher;

use crate::filters::SplitFilter;
use crate::stage::{Shape, SharedStage, Stage, dependencies_of};

/// Rewrites until nothing moves any more.
pub(crate) fn optimize(stages: &mut Vec<SharedStage>) {
    loop {
        let before = stages.len();
        let moved = push_matches(stages) | take_inside(stages);
        merge_neighbours(stages);
        if !moved && stages.len() == before {
            break;
        }
    }
    bound_inputs(stages);
    limit_sorts(stages);
    narrow_inputs(stages);
}

/// Tells stages what those behind them need of their rows.
fn narrow_inputs(stages: &mut [SharedStage]) {
    for at in 0..stages.len() {
        let (before, behind) = stages.split_at_mut(at + 1);
        let stage = &mut before[at];
        if let [sort, group, ..] = &*behind
            && let Shape::Sort { pattern, limit: None } = sort.shape()
            && let Some((path, first)) = group.one_of_each()
            && let Some(narrowed) = stage.before_one_of_each(pattern, path, first)
        {
            *stage = narrowed;
        }
        if stage.can_give_less()
            && let Some(narrowed) = dependencies_of(behind).and_then(|deps| stage.giving_only(&deps))
        {
            *stage = narrowed;
        }
    }
}

/// Puts before stages what `$match` stages behind them say of their input.
fn bound_inputs(stages: &mut Vec<SharedStage>) {
    let mut at = 1;
    while at < stages.len() {
        if let Shape::Match(filter) = stages[at].shape()
            && let Some((before, bounded)) = stages[at - 1].bounded_by(filter)
        {
            stages[at - 1] = bounded;
            if let Some(before) = before {
                let before = filtering(&*stages[at], before);
                stages.insert(at - 1, before);
                at += 1;
            }
        }
        at += 1;
    }
    merge_neighbours(stages);
}

/// Moves each `$match` before the stages that it does not depend on.
fn push_matches(stages: &mut Vec<SharedStage>) -> bool {
    let mut moved = false;
    let mut at = 1;
    while at < stages.len() {
        if let Shape::Match(filter) = stages[at].shape()
            && let Some((before, after)) = split(&*stages[at - 1], filter)
        {
            moved = true;
            match after {
                Some(after) => {
                    let (before, after) = (filtering(&*stages[at], before), filtering(&*stages[at], after));
                    stages[at] = after;
                    stages.insert(at - 1, before);
                }
                None => {
                    stages[at] = filtering(&*stages[at], before);
                    stages.swap(at - 1, at);
                }
            }
        }
        at += 1;
    }
    moved
}

/// Moves stages before those that do the same for the rows that they add.
fn take_inside(stages: &mut [SharedStage]) -> bool {
    let mut moved = false;
    for at in 1..stages.len() {
        if let Some(with_next) = stages[at - 1].with_next_inside(&stages[at]) {
            stages[at - 1] = with_next;
            stages.swap(at - 1, at);
            moved = true;
        }
    }
    moved
}

/// What of a `$match` can go before a stage, and what must stay behind it. `None` if nothing can go.
fn split(stage: &dyn Stage, filter: &Arc<Matcher>) -> Option<SplitFilter> {
    // An expression may read anything; only an order it does not see.
    if filter.has_expr() && !matches!(stage.shape(), Shape::Sort { .. }) {
        return None;
    }
    stage.let_pass(filter)
}

/// A `$match` like this one, with another filter.
fn filtering(stage: &dyn Stage, filter: Arc<Matcher>) -> SharedStage {
    stage.with_filter(filter).expect("a stage with a filter takes another one")
}

/// Joins neighbouring stages that can be one.
fn merge_neighbours(stages: &mut Vec<SharedStage>) {
    let mut at = 1;
    while at < stages.len() {
        match stages[at - 1].joined_with(&*stages[at]) {
            Some(joined) => {
                stages[at - 1] = joined;
                stages.remove(at);
            }
            None => at += 1,
        }
    }
}

/// Tells each `$sort` how many of its documents are wanted: the `$limit` after it, with what is skipped before.
fn limit_sorts(stages: &mut [SharedStage]) {
    for at in 0..stages.len() {
        let Some(wanted) = wanted_after(&stages[at + 1..]) else { continue };
        if let Some(limited) = stages[at].limited_to(wanted) {
            stages[at] = limited;
        }
    }
}

/// How many documents the stages can use, if a `$limit` says so before anything else counts them.
pub(crate) fn wanted_after(stages: &[SharedStage]) -> Option<u64> {
    let mut skipped: u64 = 0;
    for stage in stages {
        match stage.shape() {
            Shape::Limit(limit) => return skipped.checked_add(limit),
            Shape::Skip(skip) => skipped = skipped.checked_add(skip)?,
            _ if stage.keeps_count() => {}
            _ => return None,
        }
    }
    None
}
