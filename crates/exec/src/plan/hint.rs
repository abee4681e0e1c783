//! Hints, and what `min` and `max` ask of them.

use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf, Element, RawDoc, Value, compare};
use sheaf_collation::SharedCollator;
use sheaf_errors::{Code, Result, bail};
use sheaf_storage::{Collection, Index};

use super::query::Hint;
use crate::bounds::predicate::is_collatable;
use crate::index::{compares_strings_alike, key_pattern};

impl Hint {
    /// Reads a command's `hint`.
    ///
    /// Errors: `FailedToParse`, `BadValue`.
    pub fn parse(value: Value<'_>) -> Result<Hint> {
        match value {
            Value::Missing => Ok(Hint::None),
            Value::String(name) => Ok(Hint::Name(name.to_owned())),
            Value::Document(doc) if doc.is_empty() => Ok(Hint::None),
            Value::Document(doc) if let Some(name) = name_in(doc) => Ok(Hint::Name(name.to_owned())),
            Value::Document(doc) => match doc.get("$natural") {
                Some(_) if doc.count() > 1 => bail!(
                    Code::BAD_VALUE,
                    "Cannot combine a $natural hint with other fields: {}",
                    sheaf_bson::value_text(value)
                ),
                Some(direction) => match direction.as_exact_i64() {
                    Some(n @ (1 | -1)) => Ok(Hint::Natural(n < 0)),
                    _ => bail!(
                        Code::BAD_VALUE,
                        "$natural hint may only accept a value of 1 or -1, but got: {}",
                        sheaf_bson::value_text(direction)
                    ),
                },
                None => Ok(Hint::Pattern(DocBuf::from(doc))),
            },
            _ => bail!(Code::FAILED_TO_PARSE, "Hint must be a string or an object"),
        }
    }

    /// The index that the hint names. Of several with one key pattern it is the one that compares strings as the query does.
    ///
    /// Errors: `BadValue` if there is none.
    pub fn index(
        &self,
        collection: &Collection,
        collator: Option<&SharedCollator>,
    ) -> Result<Option<Arc<Index>>> {
        let found = |test: &dyn Fn(&Index) -> bool| {
            let named =
                || collection.indexes.iter().filter(|index| index.ready && !index.hidden && test(index));
            named().find(|index| compares_strings_alike(index, collator)).or_else(|| named().next()).cloned()
        };
        let index = match self {
            Hint::None | Hint::Natural(_) => return Ok(None),
            Hint::Name(name) => found(&|index| index.name == *name),
            Hint::Pattern(pattern) => found(&|index| compare_patterns(key_pattern(index), pattern.as_raw())),
        };
        match index {
            Some(index) => Ok(Some(index)),
            None => bail!(
                Code::BAD_VALUE,
                "error processing query: ns={} planner returned error :: caused by :: hint provided does not correspond to an existing index",
                collection.namespace
            ),
        }
    }
}

/// `{$hint: "name"}`, which is how servers write a name to each other.
fn name_in(hint: RawDoc<'_>) -> Option<&str> {
    let first = hint.iter().next().filter(|first| first.key() == "$hint")?;
    first.value().as_str()
}

/// Whether a hint is an index's key pattern: the same fields with equal values, whatever the types of their numbers.
fn compare_patterns(pattern: RawDoc<'_>, hint: RawDoc<'_>) -> bool {
    let same = |a: Element<'_>, b: Element<'_>| a.key() == b.key() && compare(a.value(), b.value()).is_eq();
    pattern.count() == hint.count() && pattern.iter().zip(hint.iter()).all(|(a, b)| same(a, b))
}

/// Checks `min` and `max` against the hinted index and brings them into the key pattern's order.
///
/// Errors: 51173 to 51176, `BadValue`.
pub fn key_range(
    index: Option<&Arc<Index>>,
    collator: Option<&SharedCollator>,
    (min, max): (Option<&DocBuf>, Option<&DocBuf>),
) -> Result<Option<(Option<DocBuf>, Option<DocBuf>)>> {
    if min.is_none() && max.is_none() {
        return Ok(None);
    }
    let Some(index) = index else {
        bail!(51173, "When using min()/max() a hint of which index to use must be provided");
    };
    let arrange = |doc: &DocBuf| -> Result<DocBuf> {
        let pattern = key_pattern(index);
        let given = doc.as_raw();
        // Where strings stand in another order than the query's, none can be a bound.
        let alike = compares_strings_alike(index, collator);
        let fits = given.count() == pattern.count()
            && pattern
                .iter()
                .zip(given)
                .all(|(a, b)| a.key() == b.key() && (alike || !is_collatable(b.value())));
        if !fits {
            bail!(51174, "The index chosen is not compatible with min/max");
        }
        let arena = Bump::new();
        Ok(DocBuf::build(|out| {
            for element in pattern.iter() {
                let value = given.get_or_missing(element.key());
                let value = index.collator.as_ref().map_or(value, |collator| collator.key(value, &arena));
                out.append(element.key(), value);
            }
        }))
    };
    let min = min.map(arrange).transpose()?;
    let max = max.map(arrange).transpose()?;
    if let (Some(min), Some(max)) = (&min, &max)
        && !in_order(key_pattern(index), min.as_raw(), max.as_raw())
    {
        bail!(
            51175,
            "The value provided for min() does not come before the value provided for max() in the hinted index"
        );
    }
    Ok(Some((min, max)))
}

fn in_order(pattern: RawDoc<'_>, min: RawDoc<'_>, max: RawDoc<'_>) -> bool {
    for (field, (low, high)) in pattern.iter().zip(min.values().zip(max.values())) {
        let descending = field.value().as_f64().is_some_and(|n| n < 0.0);
        let order = compare(low, high);
        let order = if descending { order.reverse() } else { order };
        if order.is_ne() {
            return order.is_lt();
        }
    }
    false
}
