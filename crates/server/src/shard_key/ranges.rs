//! From a filter to ranges of a shard key, by the bounds that plans are made of.
//!
//! No document has an array in its shard key, so that several conditions on a field are met by one value. Shard keys compare strings
//! by their bytes: where a query does otherwise, what may be a string says nothing.

use sheaf_bson::path::FieldPath;
use sheaf_bson::{DocBuf, RawDoc, Value, hashed_index_value};
use sheaf_exec::bounds::Intervals;
use sheaf_exec::bounds::predicate::{FieldTraits, negated_bounds, test_bounds};
use sheaf_exec::plan::analyze::may_hold_strings;
use sheaf_expr::ParseCx;
use sheaf_query::matcher::{MatchExpr, Matcher, Test};
use sheaf_shard::placement::{Interval, Key, KeyPattern, KeyRange, Ranges};

/// The keys that documents may have which match a filter. A filter that cannot be parsed here says nothing: who reads by it says what is wrong.
///
/// `alike`: whether strings compare by their bytes.
pub fn ranges_of_filter(pattern: &KeyPattern, filter: RawDoc<'_>, alike: bool) -> Ranges {
    if let Some(key) = key_in_filter(pattern, filter, alike) {
        return Ranges::new([KeyRange::point(&key)]);
    }
    match Matcher::parse(filter, &mut ParseCx::new()) {
        Ok(matcher) => ranges_for(pattern, Some(&matcher), alike),
        Err(_) => Ranges::new([KeyRange::all()]),
    }
}

/// The same for a filter that has been parsed; all keys without one.
///
/// `alike`: whether strings compare by their bytes.
pub fn ranges_for(pattern: &KeyPattern, filter: Option<&Matcher>, alike: bool) -> Ranges {
    let ranges = filter.and_then(|filter| Bounded { pattern, alike }.ranges_of(filter.root()));
    ranges.unwrap_or_else(|| Ranges::new([KeyRange::all()]))
}

/// Whether strings of a query compare as those of the shard key. `default`: the collection's collation, unless that is the simple one.
pub fn compares_bytes(default: Option<&DocBuf>, collation: Option<RawDoc<'_>>) -> bool {
    match collation {
        Some(own) if !own.is_empty() => {
            own.get("locale").and_then(|locale| locale.as_str()) == Some("simple")
        }
        _ => default.is_none(),
    }
}

/// The one key that documents can have which match: each field of the shard key is given a value, and nothing has to be parsed.
///
/// `alike`: whether strings compare by their bytes.
fn key_in_filter(pattern: &KeyPattern, filter: RawDoc<'_>, alike: bool) -> Option<Key> {
    let is_plain = |value: Value<'_>| match value {
        Value::Document(_)
        | Value::Array(_)
        | Value::Regex(_)
        | Value::Null
        | Value::Undefined
        | Value::Missing
        | Value::MinKey
        | Value::MaxKey => false,
        Value::String(_) | Value::Symbol(_) => alike,
        Value::Double(number) => !number.is_nan(),
        _ => true,
    };
    let mut found = DocBuf::new();
    for field in pattern.fields() {
        let mut given = filter.iter().filter(|given| given.key() == field.path.dotted());
        let (Some(value), None) = (given.next().map(|given| given.value()), given.next()) else {
            return None;
        };
        if !is_plain(value) {
            return None;
        }
        let value = if field.hashed { Value::Int64(hashed_index_value(value)) } else { value };
        found.edit(|out| {
            out.append(field.path.dotted(), value);
        });
    }
    pattern.key(found.as_raw()).ok()
}

/// What bounds are made for.
struct Bounded<'s> {
    pattern: &'s KeyPattern,
    alike: bool,
}

impl Bounded<'_> {
    /// The keys of matches; `None` if the condition says nothing of them.
    fn ranges_of(&self, expr: &MatchExpr) -> Option<Ranges> {
        match expr {
            MatchExpr::AlwaysFalse => Some(Ranges::default()),
            MatchExpr::Or(branches) => self.union(branches),
            MatchExpr::And(parts) => {
                let own = self.of_leaves(parts);
                // Only one of what stands beside each other is used; a document must match all of it.
                own.or_else(|| {
                    parts.iter().find_map(|part| match part {
                        MatchExpr::Or(branches) => self.union(branches),
                        _ => None,
                    })
                })
            }
            single => self.of_leaves(std::slice::from_ref(single)),
        }
    }

    fn union(&self, branches: &[MatchExpr]) -> Option<Ranges> {
        let ranges: Option<Vec<Ranges>> = branches.iter().map(|branch| self.ranges_of(branch)).collect();
        Some(Ranges::new(ranges?.iter().flat_map(|ranges| ranges.as_slice().iter().cloned())))
    }

    /// From the conditions on single fields that all have to be met.
    fn of_leaves(&self, parts: &[MatchExpr]) -> Option<Ranges> {
        let mut narrows = false;
        let mut bounds = Vec::new();
        for field in self.pattern.fields() {
            let traits = FieldTraits { hashed: field.hashed, ..FieldTraits::default() };
            let mut intervals = Intervals::all();
            for part in parts {
                if let Some(found) = self.of_part(part, field.path.dotted(), traits) {
                    intervals = intervals.intersect(&found);
                }
            }
            narrows |= !intervals.is_all();
            bounds.push(intervals.iter().map(interval).collect::<Vec<_>>());
        }
        narrows.then(|| self.pattern.ranges_of(&bounds))
    }

    fn of_part(&self, part: &MatchExpr, path: &str, traits: FieldTraits<'_>) -> Option<Intervals> {
        let intervals = match part {
            MatchExpr::Leaf(leaf) if leaf.path.dotted() == path => self.of_test(&leaf.test, traits)?,
            MatchExpr::Not(negated) => match &**negated {
                MatchExpr::Leaf(leaf) if leaf.path.dotted() == path => negated_bounds(&leaf.test, traits)?.0,
                _ => return None,
            },
            _ => return None,
        };
        (self.alike || !may_hold_strings(&intervals)).then_some(intervals)
    }

    fn of_test(&self, test: &Test, traits: FieldTraits<'_>) -> Option<Intervals> {
        let (intervals, _) = test_bounds(test, traits)?;
        // Null matches undefined as well, whose hash is another.
        let is_null = |of: &sheaf_exec::bounds::Interval| of.low.as_value().is_nullish();
        if traits.hashed && intervals.iter().any(is_null) {
            return None;
        }
        Some(intervals)
    }
}

fn interval(of: &sheaf_exec::bounds::Interval) -> Interval {
    Interval { low: of.low.clone(), high: of.high.clone(), low_in: of.low_in, high_in: of.high_in }
}

/// The one key that a filter names, if it names one. `simple`: strings compare by their bytes.
pub fn one_key(filter: RawDoc<'_>, pattern: &KeyPattern, simple: bool) -> Option<Ranges> {
    let mut bounds = Vec::new();
    for field in pattern.fields() {
        let value = equality(filter, &field.path)?;
        if !simple && depends_on_collation(value) {
            return None;
        }
        bounds.push(vec![Interval::point(value)]);
    }
    Some(pattern.ranges_of(&bounds))
}

fn depends_on_collation(value: Value<'_>) -> bool {
    matches!(value, Value::String(_) | Value::Document(_) | Value::Array(_))
}

/// The one value that an entry of a filter asks for: `{a: 5}`, `{a: {$eq: 5}}`.
pub fn is_equality(value: Value<'_>) -> Option<Value<'_>> {
    match value {
        Value::Missing | Value::Regex(_) | Value::Undefined => None,
        Value::Document(document) => match document.iter().next() {
            Some(first) if first.key().starts_with('$') => {
                (first.key() == "$eq" && document.count() == 1).then(|| first.value())
            }
            _ => Some(value),
        },
        value => Some(value),
    }
}

/// The one value that a filter asks for at a path; none that is an array, since no key has one.
fn equality<'d>(filter: RawDoc<'d>, path: &FieldPath) -> Option<Value<'d>> {
    for entry in filter.iter() {
        if entry.key() == "$and" {
            let parts = entry.value().as_array().into_iter().flat_map(|parts| parts.values());
            let found = parts.filter_map(|part| part.as_doc()).find_map(|part| equality(part, path));
            if found.is_some() {
                return found;
            }
            continue;
        }
        let rest = match path.dotted().strip_prefix(entry.key()) {
            Some("") => None,
            Some(rest) if rest.starts_with('.') => Some(&rest[1..]),
            _ => continue,
        };
        let Some(value) = is_equality(entry.value()) else { continue };
        let value = match (rest, value) {
            (None, value) => value,
            (Some(rest), Value::Document(document)) => match FieldPath::new(rest).get(document) {
                Value::Missing => Value::Null,
                value => value,
            },
            _ => continue,
        };
        if !matches!(value, Value::Array(_)) {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use sheaf_bson::doc;

    use super::*;

    fn found(filter: &DocBuf, path: &str) -> Option<i64> {
        equality(filter.as_raw(), &FieldPath::new(path)).and_then(|value| value.as_exact_i64())
    }

    #[test]
    fn one_value_is_found_where_a_filter_names_it() {
        for filter in [
            doc! { "a": { "b": 5 } },
            doc! { "a.b": 5 },
            doc! { "a.b": { "$eq": 5 } },
            doc! { "x": 1, "$and": [{ "y": 2 }, { "a.b": 5 }] },
        ] {
            assert_eq!(found(&filter, "a.b"), Some(5), "{filter:?}");
        }
        for filter in [
            doc! {},
            doc! { "a.b": { "$gt": 5 } },
            doc! { "a.b": { "$eq": 5, "$gt": 1 } },
            doc! { "a.b": { "$in": [5] } },
            doc! { "a.b": [5] },
            doc! { "a.bc": 5 },
            doc! { "$or": [{ "a.b": 5 }] },
        ] {
            assert_eq!(found(&filter, "a.b"), None, "{filter:?}");
        }
    }
}
