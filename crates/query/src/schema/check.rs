//! Checking values against schemas.

use std::cmp::Ordering;

use sheaf_bson::{Element, OwnedValue, RawDoc, Value, compare, number};

use super::Schema;
use super::rule::{Allowed, Dependency, Rule};
use crate::matcher::Regex;

impl Schema {
    /// Whether a value satisfies all rules.
    pub(super) fn holds(&self, value: Value<'_>) -> bool {
        self.rules.iter().all(|rule| rule.holds(value))
    }
}

impl Rule {
    /// Whether a value satisfies the rule. A rule about one type holds for values of other types.
    pub(super) fn holds(&self, value: Value<'_>) -> bool {
        match value {
            Value::Document(doc) => self.holds_for_document(doc, value),
            Value::Array(array) => self.holds_for_array(array, value),
            Value::String(text) => match self {
                Rule::MaxLength(n) => text.chars().count() as i64 <= *n,
                Rule::MinLength(n) => text.chars().count() as i64 >= *n,
                Rule::Pattern(pattern) => pattern.is_match(text),
                _ => self.holds_for_any(value),
            },
            value if value.is_number() => match self {
                Rule::MultipleOf(divisor) => is_multiple(value, divisor),
                Rule::Maximum { bound, exclusive } => is_beyond(bound.as_value(), value, *exclusive),
                Rule::Minimum { bound, exclusive } => is_beyond(value, bound.as_value(), *exclusive),
                _ => self.holds_for_any(value),
            },
            value => self.holds_for_any(value),
        }
    }

    fn holds_for_any(&self, value: Value<'_>) -> bool {
        match self {
            Rule::AllOf(schemas) => schemas.iter().all(|schema| schema.holds(value)),
            Rule::AnyOf(schemas) => schemas.iter().any(|schema| schema.holds(value)),
            Rule::OneOf(schemas) => schemas.iter().filter(|schema| schema.holds(value)).count() == 1,
            Rule::Not(schema) => !schema.holds(value),
            Rule::Enum(values) => values.iter().any(|known| same(known.as_value(), value)),
            Rule::Type { types, .. } => types.contains(value.kind()),
            _ => true,
        }
    }

    fn holds_for_array(&self, array: RawDoc<'_>, value: Value<'_>) -> bool {
        match self {
            Rule::MinItems(n) => array.count() as i64 >= *n,
            Rule::MaxItems(n) => array.count() as i64 <= *n,
            Rule::UniqueItems => duplicate(array).is_none(),
            Rule::Items(schema) => array.values().all(|item| schema.holds(item)),
            Rule::ItemsEach(schemas) => array.values().zip(schemas).all(|(item, schema)| schema.holds(item)),
            Rule::AdditionalItems { from, allowed } => {
                array.values().skip(*from).all(|item| allowed.holds(item))
            }
            _ => self.holds_for_any(value),
        }
    }

    fn holds_for_document(&self, doc: RawDoc<'_>, value: Value<'_>) -> bool {
        match self {
            Rule::Properties(properties) => {
                properties.iter().all(|(name, schema)| doc.get(name).is_none_or(|value| schema.holds(value)))
            }
            Rule::PatternProperties(patterns) => doc.iter().all(|element| {
                patterns.iter().all(|(pattern, schema)| {
                    !pattern.is_match(element.key()) || schema.holds(element.value())
                })
            }),
            Rule::AdditionalProperties { names, patterns, allowed } => doc
                .iter()
                .filter(|element| is_additional(element, names, patterns))
                .all(|element| allowed.holds(element.value())),
            Rule::Required(names) => names.iter().all(|name| doc.element(name).is_some()),
            Rule::MinProperties(n) => doc.count() as i64 >= *n,
            Rule::MaxProperties(n) => doc.count() as i64 <= *n,
            Rule::Dependencies(dependencies) => dependencies
                .iter()
                .all(|(name, dependency)| doc.element(name).is_none() || dependency.holds(doc)),
            _ => self.holds_for_any(value),
        }
    }
}

impl Allowed {
    pub(super) fn holds(&self, value: Value<'_>) -> bool {
        match self {
            Allowed::None => false,
            Allowed::If(schema) => schema.holds(value),
        }
    }
}

impl Dependency {
    pub(super) fn holds(&self, doc: RawDoc<'_>) -> bool {
        match self {
            Dependency::Properties(names) => names.iter().all(|name| doc.element(name).is_some()),
            Dependency::Schema(schema) => schema.matches(doc),
        }
    }
}

/// Whether no other keyword speaks of the property.
pub(super) fn is_additional(element: &Element<'_>, names: &[Box<str>], patterns: &[Regex]) -> bool {
    let key = element.key();
    !names.iter().any(|name| **name == *key) && !patterns.iter().any(|pattern| pattern.is_match(key))
}

/// `larger >= smaller`, or `>` if exclusive; false for NaN against anything else.
fn is_beyond(larger: Value<'_>, smaller: Value<'_>, exclusive: bool) -> bool {
    let is_nan = |value: Value<'_>| value.as_f64().is_some_and(f64::is_nan);
    if is_nan(larger) || is_nan(smaller) {
        return is_nan(larger) && is_nan(smaller) && !exclusive;
    }
    match compare(larger, smaller) {
        Ordering::Greater => true,
        Ordering::Equal => !exclusive,
        Ordering::Less => false,
    }
}

/// Whether a number divides without rest; reckoned in decimal, so that 0.3 is a multiple of 0.1.
fn is_multiple(value: Value<'_>, divisor: &OwnedValue) -> bool {
    let decimal = |value| number::to_decimal(value).map(Value::Decimal128);
    match (decimal(value), decimal(divisor.as_value())) {
        (Some(value), Some(divisor)) => number::modulo(value, divisor).is_some_and(number::is_zero),
        _ => false,
    }
}

/// The first item that equals an earlier one.
pub(super) fn duplicate(array: RawDoc<'_>) -> Option<Value<'_>> {
    let items: Vec<Value<'_>> = array.values().collect();
    let simple = |value: &Value<'_>| !matches!(value, Value::Document(_) | Value::Array(_));
    let mut seen = std::collections::HashSet::new();
    items.iter().enumerate().find_map(|(at, item)| {
        let repeated = if simple(item) {
            !seen.insert(sheaf_bson::Ordered(*item))
        } else {
            items[..at].iter().any(|earlier| same(*earlier, *item))
        };
        repeated.then_some(*item)
    })
}

/// JSON Schema's equality: as MongoDB's, but the order of a document's fields does not count.
pub(super) fn same(a: Value<'_>, b: Value<'_>) -> bool {
    match (a, b) {
        (Value::Document(a), Value::Document(b)) => {
            a.count() == b.count()
                && a.iter().all(|field| b.get(field.key()).is_some_and(|other| same(field.value(), other)))
        }
        (Value::Array(a), Value::Array(b)) => {
            a.count() == b.count() && a.values().zip(b.values()).all(|(a, b)| same(a, b))
        }
        (a, b) => compare(a, b).is_eq(),
    }
}
