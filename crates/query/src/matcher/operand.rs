//! Reading the operands of filter operators.

use sheaf_bson::{Element, RawDoc, Type, Value};
use sheaf_errors::{Code, Error, Result, bail};

use super::ast::{BitsOp, InList, Test, binary_bit};
use super::operand_types::non_negative;
use super::regex::Regex;
use crate::owned::own;
use crate::path::inner;

/// A non-negative 32-bit integer.
pub(super) fn non_negative_i32(element: Element<'_>) -> Result<u32> {
    let n = non_negative(element)?;
    match i32::try_from(n) {
        Ok(n) => Ok(n as u32),
        Err(_) => Err(Error::failed_to_parse(format!(
            "Cannot represent as a 32-bit integer: {}",
            sheaf_bson::element_text(element.key(), element.value())
        ))),
    }
}

/// `$size`.
pub(super) fn size(element: Element<'_>) -> Result<Test> {
    match non_negative_i32(element) {
        Ok(n) => Ok(Test::Size(i64::from(n))),
        Err(error) => bail!(Code::BAD_VALUE, "Failed to parse $size. {}", error.message()),
    }
}

/// `$mod: [divisor, remainder]`.
pub(super) fn modulo(element: Element<'_>) -> Result<Test> {
    if element.kind() != Type::Array {
        bail!(Code::BAD_VALUE, "malformed mod, needs to be an array");
    }
    let items: Vec<Element<'_>> = inner(element).iter().take(3).collect();
    let [divisor, remainder] = items[..] else {
        let problem = if items.len() < 2 { "not enough" } else { "too many" };
        bail!(Code::BAD_VALUE, "malformed mod, {problem} elements");
    };
    for (name, item) in [("divisor", divisor), ("remainder", remainder)] {
        if !item.value().is_number() {
            bail!(Code::BAD_VALUE, "malformed mod, {name} not a number");
        }
    }
    let divisor = mod_number("divisor", divisor.value())?;
    if divisor == 0 {
        bail!(Code::BAD_VALUE, "divisor cannot be 0");
    }
    Ok(Test::Mod { divisor, remainder: mod_number("remainder", remainder.value())? })
}

fn mod_number(name: &str, value: Value<'_>) -> Result<i64> {
    use sheaf_bson::number::Truncated;
    let reason = match sheaf_bson::number::truncate_to_i64(value) {
        Some(Truncated::Integer(n)) => return Ok(n),
        Some(Truncated::Overflow) | None => "Out of bounds coercing to integral value",
        Some(Truncated::Infinite | Truncated::Nan) => "Unable to coerce NaN/Inf to integral type",
    };
    bail!(Code::BAD_VALUE, "malformed mod, {name} value is invalid :: caused by :: {reason}")
}

/// `$bitsAllSet` and kin. Errors name the field, not the operator, as mongod's do.
pub(super) fn bits(op: BitsOp, field: &str, element: Element<'_>) -> Result<Test> {
    let positions = match element.value() {
        Value::Array(array) => {
            let mut positions = Vec::new();
            for item in array.iter() {
                sheaf_meter::grow(2 * size_of::<u32>())?;
                match non_negative_i32(item) {
                    Ok(position) => positions.push(position),
                    Err(error) => {
                        bail!(Code::BAD_VALUE, "Failed to parse bit position. {}", error.message())
                    }
                }
            }
            positions.sort_unstable();
            positions.dedup();
            positions
        }
        Value::Binary(binary) => {
            // Thirty times as long as what it is made from.
            let ones: usize = binary.bytes.iter().map(|byte| byte.count_ones() as usize).sum();
            sheaf_meter::grow(2 * size_of::<u32>() * ones)?;
            (0..binary.bytes.len() as u32 * 8).filter(|at| binary_bit(binary, *at)).collect()
        }
        value if value.is_number() => {
            let mask = non_negative(element)?;
            (0..64).filter(|at| mask >> at & 1 == 1).collect()
        }
        value => bail!(
            Code::BAD_VALUE,
            "{field} takes an Array, a number, or a BinData but received: {}",
            sheaf_bson::element_text(element.key(), value)
        ),
    };
    let mask = positions.iter().filter(|at| **at < 64).fold(0, |mask, at| mask | 1u64 << at);
    Ok(Test::Bits { op, positions, mask })
}

/// The array of `$in`.
pub(super) fn in_list(array: RawDoc<'_>) -> Result<InList> {
    let mut list = InList::default();
    for value in array.values() {
        sheaf_meter::tick(1)?;
        match value {
            Value::Regex(regex) => list.regexes.push(Regex::new(regex.pattern, regex.options)?),
            Value::Document(doc) if super::parse::is_operators(doc, false) => {
                bail!(Code::BAD_VALUE, "cannot nest $ under $in")
            }
            Value::Undefined => bail!(Code::BAD_VALUE, "InMatchExpression equality cannot be undefined"),
            value => {
                list.has_null |= matches!(value, Value::Null);
                list.values.push(own(value)?);
            }
        }
    }
    list.sort(None);
    Ok(list)
}

/// `{$regex: ..., $options: ...}`, in either order, among other operators.
pub(super) fn regex(operators: RawDoc<'_>) -> Result<Test> {
    let (mut pattern, mut options) = ("", "");
    for element in operators.iter() {
        match (element.key(), element.value()) {
            ("$regex", Value::String(text)) => pattern = text,
            ("$regex", Value::Regex(regex)) => {
                pattern = regex.pattern;
                if !regex.options.is_empty() {
                    if !options.is_empty() {
                        bail!(51074, "options set in both $regex and $options");
                    }
                    options = regex.options;
                }
            }
            ("$regex", _) => bail!(Code::BAD_VALUE, "$regex has to be a string"),
            ("$options", Value::String(text)) => {
                if !options.is_empty() {
                    bail!(51075, "options set in both $regex and $options");
                }
                options = text;
            }
            ("$options", _) => bail!(Code::BAD_VALUE, "$options has to be a string"),
            _ => {}
        }
    }
    if pattern.contains('\0') {
        bail!(Code::BAD_VALUE, "Regular expression cannot contain an embedded null byte");
    }
    Ok(Test::Regex(Regex::new(pattern, options)?))
}

/// Reads the argument of `$text`.
pub(super) fn text_params(value: Value<'_>) -> Result<sheaf_text::Params> {
    let Value::Document(spec) = value else { bail!(Code::BAD_VALUE, "$text expects an object") };
    let mut known = 0;
    for (name, kind, required) in [
        ("$search", Type::String, true),
        ("$language", Type::String, false),
        ("$caseSensitive", Type::Bool, false),
        ("$diacriticSensitive", Type::Bool, false),
    ] {
        let Some(element) = spec.element(name) else {
            if required {
                bail!(Code::NO_SUCH_KEY, "Missing expected field \"{name}\"");
            }
            continue;
        };
        if element.kind() != kind {
            bail!(
                Code::TYPE_MISMATCH,
                "\"{name}\" had the wrong type. Expected {}, found {}",
                kind.name(),
                element.kind().name()
            );
        }
        known += 1;
    }
    if known < spec.count() {
        bail!(Code::BAD_VALUE, "extra fields in $text");
    }
    let text = |name: &str| spec.get(name).and_then(|value| value.as_str()).map(str::to_owned);
    let flag = |name: &str| spec.get(name).and_then(|value| value.as_bool()).unwrap_or(false);
    Ok(sheaf_text::Params {
        search: text("$search").unwrap_or_default(),
        language: text("$language"),
        case_sensitive: flag("$caseSensitive"),
        diacritic_sensitive: flag("$diacriticSensitive"),
    })
}
