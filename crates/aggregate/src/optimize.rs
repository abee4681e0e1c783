//! Rewriting a pipeline into one that does less and gives the same.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_expr::{Deps, ParseCx};
use sheaf_query::matcher::Matcher;

use crate::stage::Stage;
use crate::stages::simple::Match;
use crate::stages::sort::Sort;

/// Rewrites until nothing moves any more.
pub(crate) fn optimize(stages: &mut Vec<Stage>) {
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
fn push_matches(stages: &mut Vec<Stage>) -> bool {
    let mut moved = false;
    let mut at = 1;
    while at < stages.len() {
        if let Stage::Match(stage) = &stages[at]
            && let Some((before, after)) = split(&stages[at - 1], stage)
        {
            moved = true;
            match after {
                Some(after) => {
                    stages[at] = Stage::Match(after);
                    stages.insert(at - 1, Stage::Match(before));
                }
                None => stages.swap(at - 1, at),
            }
        }
        at += 1;
    }
    moved
}

/// What of a `$match` can go before a stage, and what must stay behind it. `None` if nothing can go.
fn split(stage: &Stage, filter: &Arc<Match>) -> Option<(Arc<Match>, Option<Arc<Match>>)> {
    if filter.matcher.has_expr() && !matches!(stage, Stage::Sort(_)) {
        return None;
    }
    match stage {
        // A sort that is cut off at a limit sees other documents if some are missing.
        Stage::Sort(sort) if sort.limit.is_none() => Some((filter.clone(), None)),
        Stage::Project(project) => split_by(filter, |path| project.preserves(path)),
        Stage::Unwind(unwind) => {
            let mut changed = vec![unwind.path.dotted()];
            changed.extend(unwind.include_array_index.as_ref().map(|index| index.dotted()));
            split_by(filter, |path| !touches(&changed, path))
        }
        Stage::Lookup(lookup) => split_by(filter, |path| !touches(&[lookup.output.dotted()], path)),
        _ => None,
    }
}

/// Whether a path is, lies below or lies above one of the changed ones.
fn touches(changed: &[String], path: &str) -> bool {
    let below = |path: &str, above: &str| path.strip_prefix(above).is_some_and(|rest| rest.starts_with('.'));
    changed.iter().any(|one| one == path || below(path, one) || below(one, path))
}

/// Splits a filter's top-level conjunction: the conditions that read only paths which are `free` go first.
fn split_by(filter: &Arc<Match>, free: impl Fn(&str) -> bool) -> Option<(Arc<Match>, Option<Arc<Match>>)> {
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
fn conjunction(clauses: &[DocBuf]) -> Option<Arc<Match>> {
    let matcher = match clauses {
        [only] => parse(only.as_raw())?,
        _ => {
            let all = sheaf_bson::ArrayBuf::of(clauses);
            parse(DocBuf::new().with("$and", &all).as_raw())?
        }
    };
    Some(Arc::new(Match { matcher: Arc::new(matcher) }))
}

/// Filters without `$expr` read no variables, so that they parse in any context.
fn parse(filter: RawDoc<'_>) -> Option<Matcher> {
    Matcher::parse(filter, &mut ParseCx::new()).ok()
}

/// Joins neighbouring `$match`, `$limit` and `$skip` stages of one kind.
fn merge_neighbours(stages: &mut Vec<Stage>) {
    let mut at = 1;
    while at < stages.len() {
        let joined = match (&stages[at - 1], &stages[at]) {
            (Stage::Limit(a), Stage::Limit(b)) => Some(Stage::Limit(*a.min(b))),
            (Stage::Skip(a), Stage::Skip(b)) => a.checked_add(*b).map(Stage::Skip),
            (Stage::Match(a), Stage::Match(b)) => both(a, b),
            _ => None,
        };
        match joined {
            Some(joined) => {
                stages[at - 1] = joined;
                stages.remove(at);
            }
            None => at += 1,
        }
    }
}

/// `{$and: [a, b]}`.
fn both(a: &Match, b: &Match) -> Option<Stage> {
    if a.matcher.has_expr() || b.matcher.has_expr() {
        return None;
    }
    let mut clauses = Vec::new();
    flatten(a.matcher.filter(), &mut clauses);
    flatten(b.matcher.filter(), &mut clauses);
    if clauses.is_empty() {
        return Some(Stage::Match(Arc::new(Match { matcher: Arc::new(Matcher::everything()) })));
    }
    conjunction(&clauses).map(Stage::Match)
}

/// Tells each `$sort` how many of its documents are wanted: the `$limit` after it, with what is skipped before.
fn limit_sorts(stages: &mut [Stage]) {
    for at in 0..stages.len() {
        let Stage::Sort(sort) = &stages[at] else { continue };
        let Some(wanted) = wanted_after(&stages[at + 1..]) else { continue };
        let limit = Some(sort.limit.map_or(wanted, |known| known.min(wanted)));
        stages[at] = Stage::Sort(Arc::new(Sort { pattern: sort.pattern.clone(), limit }));
    }
}

/// How many documents the stages can use, if a `$limit` says so before anything else counts them.
fn wanted_after(stages: &[Stage]) -> Option<u64> {
    let mut skipped: u64 = 0;
    for stage in stages {
        match stage {
            Stage::Limit(limit) => return skipped.checked_add(*limit),
            Stage::Skip(skip) => skipped = skipped.checked_add(*skip)?,
            // One document in, one document out.
            Stage::Project(_) | Stage::ReplaceRoot(_) | Stage::Lookup(_) => {}
            _ => return None,
        }
    }
    None
}
