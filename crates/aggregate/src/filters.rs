//! Filters in parts: what rewriting moves past a stage, and what it joins.

use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf, Element, RawDoc, Value};
use sheaf_collation::SharedCollator;
use sheaf_expr::{Deps, Env, ParseCx};
use sheaf_query::matcher::Matcher;

/// A filter split at a stage: what goes before it, and what stays behind it.
pub(crate) type SplitFilter = (Arc<Matcher>, Option<Arc<Matcher>>);

/// Whether a path is, lies below or lies above one of the changed ones.
pub(crate) fn touches(changed: &[String], path: &str) -> bool {
    let below = |path: &str, above: &str| path.strip_prefix(above).is_some_and(|rest| rest.starts_with('.'));
    changed.iter().any(|one| one == path || below(path, one) || below(one, path))
}

/// Whether two paths begin with the same field.
pub(crate) fn same_field(a: &str, b: &str) -> bool {
    a.split('.').next() == b.split('.').next()
}

/// What a condition reads.
pub(crate) struct Read<'p> {
    pub(crate) path: &'p str,
    /// Whether the condition may hold, or fail, because the path is missing: it tells an element of an array that is a document without the
    /// field from one that is no document.
    sees_missing: bool,
}

impl Read<'_> {
    /// Whether the condition sees the same in an array before and after its elements become documents, or get or lose fields that are not
    /// on the path.
    pub(crate) fn is_blind_to_elements(&self) -> bool {
        let is_place = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        !self.sees_missing && !self.path.split('.').any(is_place)
    }
}

/// Splits a filter's top-level conjunction: the conditions that read only paths which are `free` go first.
pub(crate) fn split_by(filter: &Arc<Matcher>, free: impl Fn(&str) -> bool) -> Option<SplitFilter> {
    split_renamed(filter, |read| free(read.path).then(|| read.path.to_owned()))
}

/// The same where paths have other names before the stage: `before` gives them, where there is one.
pub(crate) fn split_renamed(
    filter: &Arc<Matcher>,
    before: impl Fn(&Read<'_>) -> Option<String>,
) -> Option<SplitFilter> {
    let (mut first, mut rest, mut renamed) = (Vec::new(), Vec::new(), false);
    for clause in clauses(filter) {
        match moved(&clause, &before) {
            None => rest.push(clause),
            Some(moved) => {
                renamed |= moved != clause;
                first.push(moved);
            }
        }
    }
    if first.is_empty() {
        return None;
    }
    if rest.is_empty() && !renamed {
        return Some((filter.clone(), None));
    }
    let collator = filter.collator();
    let rest = if rest.is_empty() { None } else { Some(conjunction(&rest, collator)?) };
    Some((conjunction(&first, collator)?, rest))
}

/// A condition as it is before the stage, if it can be asked there.
fn moved(clause: &DocBuf, before: &impl Fn(&Read<'_>) -> Option<String>) -> Option<DocBuf> {
    let matcher = parse(clause.as_raw(), None)?;
    let mut deps = Deps::new();
    matcher.dependencies(&mut deps);
    if deps.whole_document || deps.random || !deps.metadata.is_empty() {
        return None;
    }
    let sees_missing = sees_missing(clause.as_raw());
    let before = |path: &str| before(&Read { path, sees_missing });
    let mut renamed = false;
    for path in &deps.paths {
        renamed |= before(path)? != *path;
    }
    if renamed { with_names(clause.as_raw(), &before) } else { Some(clause.clone()) }
}

/// Whether a condition is more than comparisons of one path none of which holds where it is missing.
fn sees_missing(clause: RawDoc<'_>) -> bool {
    let holds = |condition: RawDoc<'_>| {
        let Some(matcher) = parse(condition, None) else { return true };
        let arena = Bump::new();
        matcher.matches(RawDoc::EMPTY, &Env::new(&arena)).unwrap_or(true)
    };
    clause.iter().any(|element| match element.value() {
        _ if element.key().starts_with('$') => true,
        Value::Document(operators) if operators.iter().next().is_some_and(|o| o.key().starts_with('$')) => {
            operators.iter().any(|operator| match operator.key() {
                "$not" | "$ne" | "$nin" => true,
                // These two are one.
                "$regex" | "$options" => false,
                _ => {
                    let alone = DocBuf::build(|out| _ = out.append_element(operator));
                    holds(DocBuf::new().with(element.key(), &alone).as_raw())
                }
            })
        }
        _ => holds(clause),
    })
}

/// The condition with other names for its paths; `None` for what has them elsewhere than in front of conditions.
fn with_names(clause: RawDoc<'_>, before: &impl Fn(&str) -> Option<String>) -> Option<DocBuf> {
    let mut out = DocBuf::new();
    for element in clause.iter() {
        match (element.key(), element.value()) {
            (key @ ("$and" | "$or" | "$nor"), Value::Array(inner)) => {
                let inner: Option<Vec<DocBuf>> =
                    inner.values().map(|clause| with_names(clause.as_doc()?, before)).collect();
                out.append(key, &sheaf_bson::ArrayBuf::of(&inner?));
            }
            (key, _) if key.starts_with('$') => return None,
            (key, value) => _ = out.append(&before(key)?, value),
        }
    }
    Some(out)
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

/// What of a filter holds for a document whatever documents are taken out of it, if it holds for what is left: comparisons with
/// single values that are not null.
pub(crate) fn lasting(filter: &Matcher) -> Option<Arc<Matcher>> {
    let lasting: Vec<DocBuf> = clauses(filter).iter().filter_map(lasting_clause).collect();
    if lasting.is_empty() { None } else { conjunction(&lasting, filter.collator()) }
}

fn lasting_clause(clause: &DocBuf) -> Option<DocBuf> {
    let field = clause.as_raw().iter().next()?;
    let path = field.key();
    // Elements of arrays that go leave others in their place.
    let has_place = path.split('.').any(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
    if path.starts_with('$') || has_place {
        return None;
    }
    let Value::Document(operators) = field.value() else {
        return is_single(field.value()).then(|| clause.clone());
    };
    let lasts = |operator: &Element<'_>| match (operator.key(), operator.value()) {
        ("$eq" | "$gt" | "$gte" | "$lt" | "$lte", value) => is_single(value),
        ("$in", Value::Array(list)) => list.values().all(is_single),
        ("$regex" | "$options" | "$mod", _) => true,
        _ => false,
    };
    let kept = DocBuf::build(|out| operators.iter().filter(lasts).for_each(|o| _ = out.append_element(o)));
    if kept.as_raw().is_empty() { None } else { Some(DocBuf::new().with(path, &kept)) }
}

/// Whether a value has nothing in it that could go, and is not equal to what is missing.
fn is_single(value: Value<'_>) -> bool {
    !value.is_nullish()
        && !matches!(value, Value::Document(_) | Value::Array(_) | Value::MinKey | Value::MaxKey)
}
