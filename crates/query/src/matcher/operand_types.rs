//! Operands that filters and schemas share: sets of types, whole numbers.

use sheaf_bson::{Element, Type, Value};
use sheaf_errors::{Code, Error, Result, bail};

/// The operand of `$type`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TypeSet {
    /// `"number"` was named: all four numeric types.
    pub number: bool,
    /// The types named, by `$type` number, ascending.
    pub types: Vec<i32>,
}

impl TypeSet {
    /// Whether a type is in the set.
    pub fn contains(&self, kind: Type) -> bool {
        let numeric = matches!(kind, Type::Double | Type::Int32 | Type::Int64 | Type::Decimal128);
        (self.number && numeric) || self.types.contains(&kind.number())
    }
}

/// The operand of `$type`, and of `bsonType` in a schema (`numbers_allowed: false`).
pub(crate) fn parse_type_set(value: Value<'_>, numbers_allowed: bool) -> Result<TypeSet> {
    let mut set = TypeSet::default();
    match value {
        Value::Array(array) => {
            for item in array.values() {
                add_type(&mut set, item, numbers_allowed)?;
            }
            if array.is_empty() {
                bail!(Code::FAILED_TO_PARSE, "$type must match at least one type");
            }
        }
        value => add_type(&mut set, value, numbers_allowed)?,
    }
    set.types.sort_unstable();
    set.types.dedup();
    Ok(set)
}

fn add_type(set: &mut TypeSet, value: Value<'_>, numbers_allowed: bool) -> Result<()> {
    match value {
        Value::String("number") => set.number = true,
        Value::String(alias) => match Type::from_name(alias) {
            Some(kind) => set.types.push(kind.number()),
            None => bail!(Code::BAD_VALUE, "Unknown type name alias: {alias}"),
        },
        value if value.is_number() && numbers_allowed => {
            let number = value.as_exact_i64().and_then(|n| i32::try_from(n).ok());
            match number {
                Some(0) => {
                    bail!(Code::BAD_VALUE, "Invalid numerical type code: 0. Instead use {{$exists:false}}.")
                }
                Some(n) if Type::from_number(n).is_some() => set.types.push(n),
                _ => bail!(Code::BAD_VALUE, "Invalid numerical type code: {}", type_number(value)),
            }
        }
        _ => bail!(Code::TYPE_MISMATCH, "type must be represented as a number or a string"),
    }
    Ok(())
}

/// A wrong type number as the error shows it: as a stream prints a number, `42` also for `42.0`.
fn type_number(value: Value<'_>) -> String {
    match value {
        Value::Double(n) if n.is_nan() => "nan".into(),
        Value::Double(n) => format!("{n}"),
        other => sheaf_bson::value_text(other),
    }
}

/// An integer operand that is not negative.
pub(crate) fn non_negative(element: Element<'_>) -> Result<i64> {
    match integer(element)? {
        n if n < 0 => Err(Error::failed_to_parse(format!(
            "Expected a non-negative number in: {}",
            sheaf_bson::element_text(element.key(), element.value())
        ))),
        n => Ok(n),
    }
}

/// An integer operand, whatever its numeric type; for the errors it is printed with its name.
pub(super) fn integer(element: Element<'_>) -> Result<i64> {
    let value = element.value();
    let fail = |text: &str| {
        Err(Error::failed_to_parse(format!("{text}: {}", sheaf_bson::element_text(element.key(), value))))
    };
    if !value.is_number() {
        return fail("Expected a number in");
    }
    if value.as_f64().is_some_and(f64::is_nan) {
        return fail("Expected an integer, but found NaN in");
    }
    match sheaf_bson::number::truncate_to_i64(value) {
        Some(sheaf_bson::number::Truncated::Integer(_)) => match value.as_exact_i64() {
            Some(n) => Ok(n),
            None => fail("Expected an integer"),
        },
        _ => fail("Cannot represent as a 64-bit integer"),
    }
}
