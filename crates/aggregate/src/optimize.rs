//! Rewriting a pipeline into one that does less and gives the same.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_expr::{Deps, ParseCx};
use sheaf_query::matcher::Matcher;

use crate::stage::{Shape, SharedStage, SplitFilter, Stage};
use crate::stages::filter::Match;
use crate::stages::sort::Sort;

/// Rewrites until nothing moves any more.
pub(crate) fn optimize(stages: &mut Vec<SharedStage>) {
    loop {
        let before = stages.len();
        let moved = push_matches(stages);
        merge_neighbours(stages);
        if !moved && stages.len() == before {
            break;
        }
    }
    limit_sorts(stages);
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
                    stages[at] = Arc::new(after);
                    stages.insert(at - 1, Arc::new(before));
                }
                None => stages.swap(at - 1, at),
            }
        }
        at += 1;
    }
    moved
}

/// What of a `$match` can go before a stage, and what must stay behind it. `None` if nothing can go.
fn split(stage: &dyn Stage, filter: &Match) -> Option<SplitFilter> {
    // An expression may read anything; only an order it does not see.
    if filter.matcher.has_expr() && !matches!(stage.shape(), Shape::Sort(_)) {
        return None;
    }
    stage.let_pass(filter)
}

/// Whether a path is, lies below or lies above one of the changed ones.
pub(crate) fn touches(changed: &[String], path: &str) -> bool {
    let below = |path: &str, above: &str| path.strip_prefix(above).is_some_and(|rest| rest.starts_with('.'));
    changed.iter().any(|one| one == path || below(path, one) || below(one, path))
}

/// Splits a filter's top-level conjunction: the conditions that read only paths which are `free` go first.
pub(crate) fn split_by(filter: &Match, free: impl Fn(&str) -> bool) -> Option<SplitFilter> {
    let mut clauses = Vec::new();
    flatten(filter.matcher.filter(), &mut clauses);
    let movable = |clause: &DocBuf| {
        parse(clause.as_raw()).is_some_and(|matcher| {
            let mut deps = Deps::new();
            matcher.dependencies(&mut deps);
            !deps.whole_document
                && !deps.random
                && deps.metadata.is_empty()
                && deps.paths.iter().all(|path| free(path))
        })
    };
    let (first, rest): (Vec<DocBuf>, Vec<DocBuf>) = clauses.into_iter().partition(movable);
    if first.is_empty() {
        return None;
    }
    if rest.is_empty() {
        return Some((filter.clone(), None));
    }
    Some((conjunction(&first)?, Some(conjunction(&rest)?)))
}

/// The conditions of a filter that must all hold, one document each.
fn flatten(filter: RawDoc<'_>, clauses: &mut Vec<DocBuf>) {
    for element in filter.iter() {
        match (element.key(), element.value()) {
            ("$and", Value::Array(inner)) => {
                inner
                    .values()
                    .filter_map(|clause| clause.as_doc())
                    .for_each(|clause| flatten(clause, clauses));
            }
            _ => clauses.push(DocBuf::build(|out| _ = out.append_element(element))),
        }
    }
}

/// A `$match` of all these conditions.
fn conjunction(clauses: &[DocBuf]) -> Option<Match> {
    let matcher = match clauses {
        [only] => parse(only.as_raw())?,
        _ => {
            let all = sheaf_bson::ArrayBuf::of(clauses);
            parse(DocBuf::new().with("$and", &all).as_raw())?
        }
    };
    Some(Match { matcher: Arc::new(matcher) })
}

/// Filters without `$expr` read no variables, so that they parse in any context.
fn parse(filter: RawDoc<'_>) -> Option<Matcher> {
    Matcher::parse(filter, &mut ParseCx::new()).ok()
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

/// `{$and: [a, b]}`.
pub(crate) fn both(a: &Match, b: &Match) -> Option<Match> {
    if a.matcher.has_expr() || b.matcher.has_expr() {
        return None;
    }
    let mut clauses = Vec::new();
    flatten(a.matcher.filter(), &mut clauses);
    flatten(b.matcher.filter(), &mut clauses);
    if clauses.is_empty() {
        return Some(Match { matcher: Arc::new(Matcher::everything()) });
    }
    conjunction(&clauses)
}

/// Tells each `$sort` how many of its documents are wanted: the `$limit` after it, with what is skipped before.
fn limit_sorts(stages: &mut [SharedStage]) {
    for at in 0..stages.len() {
        let Shape::Sort(sort) = stages[at].shape() else { continue };
        let Some(wanted) = wanted_after(&stages[at + 1..]) else { continue };
        let limit = Some(sort.limit.map_or(wanted, |known| known.min(wanted)));
        stages[at] = Arc::new(Sort { pattern: sort.pattern.clone(), limit });
    }
}

/// How many documents the stages can use, if a `$limit` says so before anything else counts them.
fn wanted_after(stages: &[SharedStage]) -> Option<u64> {
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
