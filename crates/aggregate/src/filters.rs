//! Filters in parts: what rewriting moves past a stage, and what it joins.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_collation::SharedCollator;
use sheaf_expr::{Deps, ParseCx};
use sheaf_query::matcher::Matcher;

/// A filter split at a stage: what goes before it, and what stays behind it.
pub(crate) type SplitFilter = (Arc<Matcher>, Option<Arc<Matcher>>);

/// Whether a path is, lies below or lies above one of the changed ones.
pub(crate) fn touches(changed: &[String], path: &str) -> bool {
    let below = |path: &str, above: &str| path.strip_prefix(above).is_some_and(|rest| rest.starts_with('.'));
    changed.iter().any(|one| one == path || below(path, one) || below(one, path))
}

/// Splits a filter's top-level conjunction: the conditions that read only paths which are `free` go first.
pub(crate) fn split_by(filter: &Arc<Matcher>, free: impl Fn(&str) -> bool) -> Option<SplitFilter> {
    let clauses = clauses(filter);
    let movable = |clause: &DocBuf| {
        parse(clause.as_raw(), None).is_some_and(|matcher| {
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
    let collator = filter.collator();
    Some((conjunction(&first, collator)?, Some(conjunction(&rest, collator)?)))
}

/// The conditions of a filter that must all hold, one document each.
pub(crate) fn clauses(filter: &Matcher) -> Vec<DocBuf> {
    let mut clauses = Vec::new();
    flatten(filter.filter(), &mut clauses);
    clauses
}

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

/// The filter of all these conditions.
pub(crate) fn conjunction(clauses: &[DocBuf], collator: Option<&SharedCollator>) -> Option<Arc<Matcher>> {
    let matcher = match clauses {
        [only] => parse(only.as_raw(), collator)?,
        _ => {
            let all = sheaf_bson::ArrayBuf::of(clauses);
            parse(DocBuf::new().with("$and", &all).as_raw(), collator)?
        }
    };
    Some(Arc::new(matcher))
}

/// Filters without `$expr` read no variables, so that they parse in any context.
fn parse(filter: RawDoc<'_>, collator: Option<&SharedCollator>) -> Option<Matcher> {
    Matcher::parse(filter, &mut ParseCx::new().with_collator(collator.cloned())).ok()
}

/// `{$and: [a, b]}`.
pub(crate) fn both(a: &Matcher, b: &Matcher) -> Option<Arc<Matcher>> {
    if a.has_expr() || b.has_expr() {
        return None;
    }
    let mut clauses = Vec::new();
    flatten(a.filter(), &mut clauses);
    flatten(b.filter(), &mut clauses);
    if clauses.is_empty() {
        return Some(Arc::new(Matcher::everything()));
    }
    conjunction(&clauses, a.collator())
}
