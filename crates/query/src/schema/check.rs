//! Checking values against schemas.

use std::cmp::Ordering;

use sheaf_bson::{Element, OwnedValue, RawDoc, Value, compare, number};
use sheaf_errors::Result;

use super::encrypt;
use super::rule::{Allowed, Dependency, Rule, Schema};
use crate::matcher::Regex;
use crate::path::Path;
use crate::ticks::{tick_for, try_all, try_any};

impl Schema {
    /// Whether a value satisfies all rules.
    ///
    /// Errors: what cannot be decided (51156); what the meter says.
    pub(super) fn holds(&self, value: Value<'_>) -> Result<bool> {
        try_all(&self.rules, |rule| rule.holds(value))
    }

    /// Whether a value is known to break a rule: for the explanation of a failure, which is not the place to fail again.
    pub(super) fn fails(&self, value: Value<'_>) -> bool {
        matches!(self.holds(value), Ok(false))
    }
}

impl Rule {
    /// Whether a value is known to break the rule, like [`Schema::fails`].
    pub(super) fn fails(&self, value: Value<'_>) -> bool {
        matches!(self.holds(value), Ok(false))
    }

    /// Whether a value satisfies the rule. A rule about one type holds for values of other types.
    pub(super) fn holds(&self, value: Value<'_>) -> Result<bool> {
        Ok(match value {
            Value::Document(doc) => self.holds_for_document(doc, value)?,
            Value::Array(array) => self.holds_for_array(array, value)?,
            Value::String(text) => {
                tick_for(text.len())?;
                match self {
                    Rule::MaxLength(n) => text.chars().count() as i64 <= *n,
                    Rule::MinLength(n) => text.chars().count() as i64 >= *n,
                    Rule::Pattern(pattern) => pattern.is_match(text)?,
                    _ => self.holds_for_any(value)?,
                }
            }
            value if value.is_number() => match self {
                Rule::MultipleOf(divisor) => is_multiple(value, divisor),
                Rule::Maximum { bound, exclusive } => is_beyond(bound.as_value(), value, *exclusive),
                Rule::Minimum { bound, exclusive } => is_beyond(value, bound.as_value(), *exclusive),
                _ => self.holds_for_any(value)?,
            },
            value => self.holds_for_any(value)?,
        })
    }

    fn holds_for_any(&self, value: Value<'_>) -> Result<bool> {
        Ok(match self {
            Rule::AllOf(schemas) => try_all(schemas, |schema| schema.holds(value))?,
            Rule::AnyOf(schemas) => try_any(schemas, |schema| schema.holds(value))?,
            Rule::OneOf(schemas) => {
                let mut holding = 0;
                for schema in schemas {
                    holding += usize::from(schema.holds(value)?);
                }
                holding == 1
            }
            Rule::Not(schema) => !schema.holds(value)?,
            Rule::Enum(values) => try_any(values, |known| same(known.as_value(), value))?,
            Rule::Type { types, .. } => types.contains(value.kind()),
            Rule::EmptyEnum | Rule::Never => false,
            Rule::Encrypt(types) => encrypt::fault(value, types.as_ref()).is_none(),
            _ => true,
        })
    }

    fn holds_for_array(&self, array: RawDoc<'_>, value: Value<'_>) -> Result<bool> {
        Ok(match self {
            Rule::MinItems(n) => array.count() as i64 >= *n,
            Rule::MaxItems(n) => array.count() as i64 <= *n,
            Rule::UniqueItems => duplicate(array)?.is_none(),
            Rule::Items(schema) => try_all(array.values(), |item| schema.holds(item))?,
            Rule::ItemsEach(schemas) => {
                try_all(array.values().zip(schemas), |(item, schema)| schema.holds(item))?
            }
            Rule::AdditionalItems { from, allowed } => {
                try_all(array.values().skip(*from), |item| allowed.holds(item))?
            }
            _ => self.holds_for_any(value)?,
        })
    }

    fn holds_for_document(&self, doc: RawDoc<'_>, value: Value<'_>) -> Result<bool> {
        let has = |name: &str| -> Result<bool> {
            tick_for(doc.len())?;
            has_property(doc, name)
        };
        Ok(match self {
            Rule::Properties(properties) => try_all(properties, |(name, schema)| {
                tick_for(doc.len())?;
                property_holds(doc, name, schema)
            })?,
            Rule::PatternProperties(patterns) => try_all(doc.iter(), |element| {
                try_all(patterns, |(pattern, schema)| {
                    Ok(!pattern.is_match(element.key())? || schema.holds(element.value())?)
                })
            })?,
            Rule::AdditionalProperties { names, patterns, allowed } => try_all(doc.iter(), |element| {
                Ok(!is_additional(&element, names, patterns)? || allowed.holds(element.value())?)
            })?,
            Rule::Required(names) => try_all(names, |name| has(name))?,
            Rule::MinProperties(n) => doc.count() as i64 >= *n,
            Rule::MaxProperties(n) => doc.count() as i64 <= *n,
            Rule::Dependencies(dependencies) => {
                try_all(dependencies, |(name, dependency)| Ok(!has(name)? || dependency.holds(doc)?))?
            }
            _ => self.holds_for_any(value)?,
        })
    }
}

impl Allowed {
    pub(super) fn holds(&self, value: Value<'_>) -> Result<bool> {
        match self {
            Allowed::None => Ok(false),
            Allowed::If(schema) => schema.holds(value),
        }
    }
}

impl Dependency {
    pub(super) fn holds(&self, doc: RawDoc<'_>) -> Result<bool> {
        match self {
            Dependency::Properties(names) => try_all(names, |name| {
                tick_for(doc.len())?;
                has_property(doc, name)
            }),
            Dependency::Schema(schema) => schema.matches(doc),
        }
    }
}

/// Whether there is a property. A name with dots is a path, as in queries.
pub(super) fn has_property(doc: RawDoc<'_>, name: &str) -> Result<bool> {
    if !name.contains('.') {
        return Ok(doc.element(name).is_some());
    }
    Path::new(name).any(doc, false, &mut |element: Option<Element<'_>>, _| Ok(element.is_some()))
}

/// Whether a property is missing or satisfies its schema. On a path through an array one element has to.
pub(super) fn property_holds(doc: RawDoc<'_>, name: &str, schema: &Schema) -> Result<bool> {
    if !name.contains('.') {
        return doc.get(name).map_or(Ok(true), |value| schema.holds(value));
    }
    let mut missing = true;
    let holds = Path::new(name).any(doc, false, &mut |element: Option<Element<'_>>, _| {
        let Some(element) = element else { return Ok(false) };
        missing = false;
        schema.holds(element.value())
    })?;
    Ok(holds || missing)
}

/// The property that does not satisfy its schema.
pub(super) fn failing_property<'d>(doc: RawDoc<'d>, name: &str, schema: &Schema) -> Option<Value<'d>> {
    if !matches!(property_holds(doc, name, schema), Ok(false)) {
        return None;
    }
    let mut first = None;
    Path::new(name)
        .any(doc, false, &mut |element: Option<Element<'d>>, _| {
            first = element.map(|element| element.value());
            Ok(first.is_some())
        })
        .ok()?;
    first
}

/// Whether no other keyword speaks of the property.
pub(super) fn is_additional(element: &Element<'_>, names: &[Box<str>], patterns: &[Regex]) -> Result<bool> {
    let key = element.key();
    Ok(!try_any(names, |name| Ok(**name == *key))? && !try_any(patterns, |pattern| pattern.is_match(key))?)
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
pub(super) fn duplicate(array: RawDoc<'_>) -> Result<Option<Value<'_>>> {
    let items: Vec<Value<'_>> = array.values().collect();
    let simple = |value: &Value<'_>| !matches!(value, Value::Document(_) | Value::Array(_));
    let mut seen = std::collections::HashSet::new();
    for (at, item) in items.iter().enumerate() {
        sheaf_meter::tick(1)?;
        let repeated = if simple(item) {
            !seen.insert(sheaf_bson::Ordered(*item))
        } else {
            try_any(&items[..at], |earlier| same(*earlier, *item))?
        };
        if repeated {
            return Ok(Some(*item));
        }
    }
    Ok(None)
}

/// JSON Schema's equality: as MongoDB's, but the order of a document's fields does not count.
pub(super) fn same(a: Value<'_>, b: Value<'_>) -> Result<bool> {
    match (a, b) {
        (Value::Document(a), Value::Document(b)) => Ok(a.count() == b.count()
            && try_all(a.iter(), |field| {
                tick_for(b.len())?;
                b.get(field.key()).map_or(Ok(false), |other| same(field.value(), other))
            })?),
        (Value::Array(a), Value::Array(b)) => {
            Ok(a.count() == b.count() && try_all(a.values().zip(b.values()), |(a, b)| same(a, b))?)
        }
        (a, b) => Ok(compare(a, b).is_eq()),
    }
}
