//! The operators on whole arrays: `$push`, `$addToSet`, `$pop`, `$pull`.

use std::cmp::Ordering;
use std::collections::HashSet;

use sheaf_bson::{Bump, Ordered, OwnedValue, RawDoc, Value, array_in, compare, document_in};
use sheaf_collation::{SharedCollator, compare_by};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::ParseCx;

use crate::diff::ToArray;
use crate::matcher::{Features, Matcher, is_path_operator};
use crate::owned::{name_bytes, own, own_all};

/// `$push` with its modifiers.
#[derive(Clone, Debug)]
pub(super) struct Push {
    values: Vec<OwnedValue>,
    position: Option<i64>,
    slice: Option<i64>,
    sort: Option<PushSort>,
}

/// `$sort` of `$push`.
#[derive(Clone, Debug)]
enum PushSort {
    Whole { descending: bool },
    Fields(Vec<(String, bool)>),
}

impl Push {
    pub(super) fn parse(value: Value<'_>) -> Result<Push> {
        let of = |values| Push { values, position: None, slice: None, sort: None };
        let each = value.as_doc().and_then(|spec| Some((spec, spec.get("$each")?)));
        let Some((spec, each)) = each else { return Ok(of(vec![own(value)?])) };
        let Value::Array(each) = each else {
            bail!(
                Code::BAD_VALUE,
                "The argument to $each in $push must be an array but it was of type: {}",
                each.type_name()
            );
        };
        let mut push = of(own_all(each)?);
        for (at, clause) in spec.iter().enumerate() {
            if spec.iter().take(at).any(|earlier| earlier.key() == clause.key()) {
                bail!(Code::BAD_VALUE, "Only one {} is supported.", clause.key());
            }
            match clause.key() {
                "$each" => {}
                "$position" => push.position = Some(integer("$position", clause.value())?),
                "$slice" => push.slice = Some(integer("$slice", clause.value())?),
                "$sort" => push.sort = Some(PushSort::parse(clause.value())?),
                other => bail!(Code::BAD_VALUE, "Unrecognized clause in $push: {other}"),
            }
        }
        Ok(push)
    }

    /// How it is told of.
    pub(super) fn to_array(&self) -> ToArray {
        match (&self.sort, self.position) {
            (Some(_), _) => ToArray::Whole,
            (None, None) => ToArray::Appended(self.values.len()),
            (None, Some(place)) => ToArray::AppendedAt(place, self.values.len()),
        }
    }

    /// The array afterwards; `None` if nothing is pushed, cut or sorted.
    pub(super) fn apply<'a>(
        &'a self,
        array: RawDoc<'a>,
        arena: &'a Bump,
        collator: Option<&SharedCollator>,
    ) -> Result<Option<Value<'a>>> {
        if self.values.is_empty() && self.slice.is_none() && self.sort.is_none() {
            return Ok(None);
        }
        if self.position.is_none() && self.slice.is_none() && self.sort.is_none() {
            return Ok(Some(append(array, &self.values, arena)));
        }
        let mut all: Vec<Value<'a>> = array.values().collect();
        let at = match self.position {
            None => all.len(),
            Some(n) if n >= 0 => all.len().min(usize::try_from(n).unwrap_or(usize::MAX)),
            Some(n) => all.len().saturating_sub(usize::try_from(n.unsigned_abs()).unwrap_or(usize::MAX)),
        };
        all.splice(at..at, self.values.iter().map(OwnedValue::as_value));
        if let Some(sort) = &self.sort {
            sheaf_meter::sort_by(&mut all, |a, b| {
                sheaf_meter::tick_for(size(*a).min(size(*b)))?;
                Ok(sort.compare(*a, *b, collator))
            })?;
        }
        let kept = match self.slice {
            None => &all[..],
            Some(n) if n >= 0 => &all[..all.len().min(usize::try_from(n).unwrap_or(usize::MAX))],
            Some(n) => {
                &all[all.len().saturating_sub(usize::try_from(n.unsigned_abs()).unwrap_or(usize::MAX))..]
            }
        };
        Ok(Some(build(kept.iter().copied(), arena)))
    }
}

/// The array with values at its end, its present elements copied in one piece.
fn append<'a>(array: RawDoc<'a>, values: &[OwnedValue], arena: &'a Bump) -> Value<'a> {
    let mut count = array.count();
    Value::Array(document_in(arena, |out| {
        out.append_raw_elements(array.iter().rest());
        for value in values {
            let mut digits = [0; 10];
            let key = sheaf_bson::decimal_digits(count as u32, &mut digits);
            out.append(std::str::from_utf8(key).unwrap_or("0"), value.as_value());
            count += 1;
        }
    }))
}

fn build<'a>(values: impl Iterator<Item = Value<'a>>, arena: &'a Bump) -> Value<'a> {
    Value::Array(array_in(arena, |out| values.for_each(|value| _ = out.push(value))))
}

fn integer(clause: &str, value: Value<'_>) -> Result<i64> {
    match value.as_exact_i64() {
        Some(n) => Ok(n),
        None if value.is_number() => bail!(
            Code::BAD_VALUE,
            "The value for {clause} must be an integer value but was given: {}",
            sheaf_bson::value_text(value)
        ),
        None if clause == "$position" => bail!(
            Code::BAD_VALUE,
            "The value for $position must be an integer value, not of type: {}",
            value.type_name()
        ),
        None => bail!(
            Code::BAD_VALUE,
            "The value for {clause} must be an integer value but was given type: {}",
            value.type_name()
        ),
    }
}

impl PushSort {
    fn parse(value: Value<'_>) -> Result<PushSort> {
        let direction = |value: Value<'_>| match value.as_exact_i64() {
            Some(1) => Some(false),
            Some(-1) => Some(true),
            _ => None,
        };
        let Value::Document(pattern) = value else {
            if !value.is_number() {
                bail!(
                    Code::BAD_VALUE,
                    "The $sort is invalid: use 1/-1 to sort the whole element, or {{field:1/-1}} to sort \
                     embedded fields"
                );
            }
            return match direction(value) {
                Some(descending) => Ok(PushSort::Whole { descending }),
                None => bail!(Code::BAD_VALUE, "The $sort element value must be either 1 or -1"),
            };
        };
        if pattern.is_empty() {
            bail!(Code::BAD_VALUE, "The $sort pattern is empty when it should be a set of fields.");
        }
        let mut fields = Vec::new();
        for element in pattern.iter() {
            let Some(descending) = direction(element.value()) else {
                bail!(Code::BAD_VALUE, "The $sort element value must be either 1 or -1");
            };
            let path = element.key();
            if path.is_empty() {
                bail!(Code::BAD_VALUE, "The $sort field cannot be empty");
            }
            if path.split('.').any(str::is_empty) {
                bail!(Code::BAD_VALUE, "The $sort field is a dotted field but has an empty part: {path}");
            }
            sheaf_meter::grow(size_of::<(String, bool)>() + name_bytes(path))?;
            fields.push((path.to_owned(), descending));
        }
        Ok(PushSort::Fields(fields))
    }

    fn compare(&self, a: Value<'_>, b: Value<'_>, collator: Option<&SharedCollator>) -> Ordering {
        let directed = |order: Ordering, descending| if descending { order.reverse() } else { order };
        match self {
            PushSort::Whole { descending } => directed(compare_by(collator, a, b), *descending),
            PushSort::Fields(fields) => {
                for (path, descending) in fields {
                    let order = compare_by(collator, field(a, path), field(b, path));
                    if order != Ordering::Equal {
                        return directed(order, *descending);
                    }
                }
                Ordering::Equal
            }
        }
    }
}

/// The value at a path, read through documents and array indexes alike; absent counts as null.
fn field<'a>(value: Value<'a>, path: &str) -> Value<'a> {
    let mut at = value;
    for part in path.split('.') {
        at = match at {
            Value::Document(doc) | Value::Array(doc) => doc.get_or_missing(part),
            _ => Value::Missing,
        };
    }
    if at.is_missing() { Value::Null } else { at }
}

/// The values that `$addToSet` adds, each once.
pub(super) fn parse_add_to_set(value: Value<'_>) -> Result<Vec<OwnedValue>> {
    let each = match value {
        Value::Document(spec) if spec.iter().next().is_some_and(|first| first.key() == "$each") => spec,
        _ => return Ok(vec![own(value)?]),
    };
    let mut clauses = each.iter();
    let first = clauses.next().map_or(Value::Missing, |element| element.value());
    let Value::Array(values) = first else {
        bail!(
            Code::TYPE_MISMATCH,
            "The argument to $each in $addToSet must be an array but it was of type {}",
            first.type_name()
        );
    };
    if clauses.next().is_some() {
        bail!(
            Code::BAD_VALUE,
            "Found unexpected fields after $each in $addToSet: {}",
            sheaf_bson::document_text(each)
        );
    }
    let mut distinct: Vec<OwnedValue> = Vec::new();
    let mut seen = HashSet::new();
    for value in values.values() {
        sheaf_meter::tick_for(size(value))?;
        if seen.insert(Ordered(value)) {
            sheaf_meter::grow(2 * size_of::<Ordered<'_>>())?;
            distinct.push(own(value)?);
        }
    }
    Ok(distinct)
}

/// The array with the values that it lacks; `None` if it has them all.
pub(super) fn add_to_set<'a>(
    values: &'a [OwnedValue],
    array: RawDoc<'a>,
    arena: &'a Bump,
    collator: Option<&SharedCollator>,
) -> Result<Option<Value<'a>>> {
    let mut new: Vec<&OwnedValue> = values.iter().collect();
    if collator.is_some() {
        let equal = |a, b| {
            sheaf_meter::tick_for(size(a))?;
            Ok(compare_by(collator, a, b).is_eq())
        };
        new.clear();
        for value in values {
            let wanted = value.as_value();
            if !crate::ticks::try_any(
                new.iter().map(|known| known.as_value()).chain(array.values()),
                |known| equal(known, wanted),
            )? {
                new.push(value);
            }
        }
    } else if let [only] = values {
        for known in array.values() {
            sheaf_meter::tick_for(size(known))?;
            if compare(known, only.as_value()) == Ordering::Equal {
                return Ok(None);
            }
        }
    } else {
        let mut present = HashSet::new();
        for known in array.values() {
            sheaf_meter::tick_for(size(known))?;
            present.insert(Ordered(known));
        }
        new.retain(|value| !present.contains(&Ordered(value.as_value())));
    }
    let new: Vec<OwnedValue> = new.into_iter().cloned().collect();
    Ok(if new.is_empty() { None } else { Some(append(array, &new, arena)) })
}

/// How much there is to look at in a value.
pub(super) fn size(value: Value<'_>) -> usize {
    match value {
        Value::Document(doc) | Value::Array(doc) => doc.len(),
        Value::String(text) => text.len(),
        _ => 8,
    }
}

/// The array without its first or last element; `None` if it is empty.
pub(super) fn pop<'a>(first: bool, array: RawDoc<'a>, arena: &'a Bump) -> Option<Value<'a>> {
    let count = array.count();
    if count == 0 {
        return None;
    }
    Some(build(array.values().skip(usize::from(first)).take(count - 1), arena))
}

/// The array with only the elements that `keep` wants; `None` if it wants all.
pub(super) fn retain<'a>(
    array: RawDoc<'a>,
    arena: &'a Bump,
    keep: impl Fn(Value<'a>) -> Result<bool>,
) -> Result<Option<Value<'a>>> {
    let mut kept = Vec::new();
    let mut dropped = false;
    for value in array.values() {
        sheaf_meter::tick_for(size(value))?;
        if keep(value)? {
            kept.push(value);
        } else {
            dropped = true;
        }
    }
    Ok(dropped.then(|| build(kept.into_iter(), arena)))
}

/// What `$pull` takes out.
#[derive(Debug)]
pub(super) enum Pull {
    /// Documents that match a query: `{$pull: {results: {score: 8}}}`.
    Documents(Matcher),
    /// Values that satisfy a predicate, wrapped as the field `""`: `{$pull: {a: {$gte: 6}}}`.
    Predicate(Matcher),
    /// Values equal to this one.
    Equal(OwnedValue),
}

impl Pull {
    pub(super) fn parse(value: Value<'_>, cx: &mut ParseCx) -> Result<Pull> {
        Ok(match value {
            Value::Document(query) if !starts_with_operator(query) => {
                Pull::Documents(Matcher::parse_with(query, Features::None, cx)?)
            }
            Value::Document(_) | Value::Regex(_) => {
                let wrapped = sheaf_bson::DocBuf::new().with("", value);
                Pull::Predicate(Matcher::parse_with(wrapped.as_raw(), Features::None, cx)?)
            }
            _ => Pull::Equal(own(value)?),
        })
    }

    pub(super) fn matches(&self, value: Value<'_>, collator: Option<&SharedCollator>) -> Result<bool> {
        match self {
            Pull::Documents(matcher) => match value {
                Value::Document(doc) => matcher.matches_doc(doc),
                _ => Ok(false),
            },
            Pull::Predicate(matcher) => {
                matcher.matches_doc(sheaf_bson::DocBuf::new().with("", value).as_raw())
            }
            Pull::Equal(wanted) => Ok(compare_by(collator, wanted.as_value(), value).is_eq()),
        }
    }
}

/// Whether a document is a predicate (`{$gt: 1}`) rather than a query (`{a: 1}`, `{$or: [...]}`). `$not` counts
/// among the queries' operators, which do not have it.
fn starts_with_operator(query: RawDoc<'_>) -> bool {
    query.iter().next().is_some_and(|first| is_path_operator(first.key()))
}
