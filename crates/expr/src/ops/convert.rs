//! `$convert`, and `$toInt` and kin, which are short for it.

use sheaf_bson::number::{self, Truncated};
use sheaf_bson::{Binary, Decimal128, ObjectId, Type, Value};
use sheaf_errors::{Code, Error, Result, bail};

use super::{MAX_STRING, binary, date, exact_i32, hex, show};
use crate::context::ParseCx;
use crate::expr::{Call, Cx, Expr};
use crate::operator::{Named, Operator, State, custom, named};
use crate::parse::parse_arguments;

pub(crate) static OPERATORS: &[Operator] = &[
    named("$convert", &FIELDS, convert),
    to_type("$toBool", |call, cx| shorthand(call, cx, Type::Bool)),
    to_type("$toDate", |call, cx| shorthand(call, cx, Type::DateTime)),
    to_type("$toDecimal", |call, cx| shorthand(call, cx, Type::Decimal128)),
    to_type("$toDouble", |call, cx| shorthand(call, cx, Type::Double)),
    to_type("$toInt", |call, cx| shorthand(call, cx, Type::Int32)),
    to_type("$toLong", |call, cx| shorthand(call, cx, Type::Int64)),
    to_type("$toObjectId", |call, cx| shorthand(call, cx, Type::ObjectId)),
    to_type("$toString", |call, cx| shorthand(call, cx, Type::String)),
    to_type("$toUUID", |call, cx| shorthand(call, cx, Type::Binary)),
];

// In 8.2 these are plain parse errors, without numbers of their own.
const PARSE: i32 = Code::FAILED_TO_PARSE.0;

static FIELDS: Named = Named {
    fields: &[
        ("input", PARSE),
        ("to", PARSE),
        ("format", 0),
        ("byteOrder", 0),
        ("onError", 0),
        ("onNull", 0),
    ],
    not_object: PARSE,
    unknown: PARSE,
};

const fn to_type(name: &'static str, eval: crate::operator::LazyFn) -> Operator {
    custom(name, parse_to_type, eval)
}

fn parse_to_type(op: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    if let Value::Array(array) = argument
        && array.count() != 1
    {
        bail!(50723, "{} requires a single argument, got {}", op.name, array.count());
    }
    let args = parse_arguments(op.name, crate::operator::Arity::Any, argument, cx)?;
    Ok(Expr::call(op, args, State::None, cx))
}

/// What a conversion makes.
struct Target<'a> {
    kind: Type,
    /// Of binary data; looked at only where that is made.
    subtype: Value<'a>,
    /// How binary data is written as text; `None` if it was not said.
    format: Option<&'a str>,
    big_endian: bool,
}

fn shorthand<'a>(call: &'a Call, cx: Cx<'a, '_>, kind: Type) -> Result<Value<'a>> {
    let input = call.arg(0, cx)?;
    if input.is_nullish() {
        return Ok(Value::Null);
    }
    let uuid = kind == Type::Binary;
    let (subtype, format) = if uuid { (Value::Int32(4), "uuid") } else { (Value::Missing, "auto") };
    convert_to(input, &Target { kind, subtype, format: Some(format), big_endian: false }, cx)
}

fn convert<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let input = call.arg(0, cx)?;
    // Of `to` only the type is looked at before what is null gives null.
    let (kind, subtype) = match call.arg(1, cx)? {
        Value::Document(doc) => (doc.get_or_missing("type"), doc.get_or_missing("subtype")),
        other => (other, Value::Missing),
    };
    let kind = target_type(kind)?;
    if input.is_nullish() {
        return if call.has(5) { call.arg(5, cx) } else { Ok(Value::Null) };
    }
    let Some(kind) = kind else { return Ok(Value::Null) };
    let target = target_of(kind, subtype, call, cx)?;
    match convert_to(input, &target, cx) {
        // A date that has no text fails with a code of its own, and counts as a failure too.
        Err(error) if call.has(4) && matches!(error.code(), Code::CONVERSION_FAILURE | Code(18537)) => {
            call.arg(4, cx)
        }
        result => result,
    }
}

/// Reads `format` and `byteOrder`.
fn target_of<'a>(kind: Type, subtype: Value<'a>, call: &'a Call, cx: Cx<'a, '_>) -> Result<Target<'a>> {
    let format = match call.arg(2, cx)? {
        Value::String(format) => Some(format),
        value if value.is_nullish() => None,
        other => bail!(4341114, "$convert requires that 'format' be a string, found: {}", other.type_name()),
    };
    if let Some(format) = format
        && !binary::FORMATS.contains(&format)
    {
        bail!(4341125, "Requested 'format' in $convert is invalid: {format}");
    }
    let big_endian = match call.arg(3, cx)? {
        Value::String("little") => false,
        Value::String("big") => true,
        Value::String(other) => bail!(9130002, "Requested 'byteOrder' in $convert is invalid: {other}"),
        value if value.is_nullish() => false,
        other => {
            bail!(9130001, "$convert requires that 'byteOrder' be a string, found: {}", other.type_name())
        }
    };
    Ok(Target { kind, subtype, format, big_endian })
}

fn target_type(value: Value<'_>) -> Result<Option<Type>> {
    match value {
        Value::String(name) => match Type::from_name(name) {
            Some(kind) => Ok(Some(kind)),
            None => bail!(Code::BAD_VALUE, "Unknown type name: {name}"),
        },
        value if value.is_nullish() => Ok(None),
        value if value.is_number() => match exact_i32(value) {
            None => bail!(Code::FAILED_TO_PARSE, "In $convert, numeric 'to' argument is not an integer"),
            Some(number) => match Type::from_number(number) {
                Some(kind) => Ok(Some(kind)),
                None => bail!(
                    Code::FAILED_TO_PARSE,
                    "In $convert, numeric value for 'to' does not correspond to a BSON type: {number}"
                ),
            },
        },
        other => bail!(
            Code::FAILED_TO_PARSE,
            "$convert's 'to' argument must be a string or number, but is {}",
            other.type_name()
        ),
    }
}

fn target_subtype(value: Value<'_>) -> Result<u8> {
    match value {
        Value::Missing => Ok(0),
        value if value.is_number() => match exact_i32(value) {
            None => bail!(4341106, "In $convert, numeric 'subtype' argument is not an integer"),
            Some(n) if (0..=9).contains(&n) || (128..=255).contains(&n) => Ok(n as u8),
            Some(n) => bail!(
                4341107,
                "In $convert, numeric value for 'subtype' does not correspond to a BinData type: {n}"
            ),
        },
        other => {
            bail!(4341108, "$convert's 'subtype' argument must be a number, but is {}", other.type_name())
        }
    }
}

/// `ConversionFailure` in MongoDB's words.
pub(super) fn failure(message: impl Into<String>) -> Error {
    Error::new(Code::CONVERSION_FAILURE, message)
}

fn unsupported(value: Value<'_>, kind: Type) -> Error {
    failure(format!(
        "Unsupported conversion from {} to {} in $convert with no onError value",
        value.type_name(),
        kind.name()
    ))
}

fn convert_to<'a>(value: Value<'a>, target: &Target<'_>, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    match target.kind {
        Type::Bool => Ok(Value::Bool(value.truthy())),
        Type::Int32 => to_int(value, target),
        Type::Int64 => to_long(value, target),
        Type::Double => to_double(value, target),
        Type::Decimal128 => to_decimal(value, target),
        Type::String => to_text(value, target, cx),
        Type::ObjectId => to_object_id(value, target),
        Type::DateTime => to_date(value, target),
        Type::Binary => to_binary(value, target, cx),
        kind => Err(unsupported(value, kind)),
    }
}

/// Drops the fraction of a number on its way to an integer type.
fn integral(value: Value<'_>) -> Result<i64> {
    let what = match number::truncate_to_i64(value) {
        Some(Truncated::Integer(n)) => return Ok(n),
        Some(Truncated::Infinite) => {
            "Attempt to convert infinity value to integer type in $convert with no onError value"
        }
        Some(Truncated::Nan) => {
            "Attempt to convert NaN value to integer type in $convert with no onError value"
        }
        _ => return Err(overflow(value)),
    };
    Err(failure(what))
}

fn overflow(value: Value<'_>) -> Error {
    failure(format!(
        "Conversion would overflow target type in $convert with no onError value: {}",
        show(value)
    ))
}

fn parse_integer<T: std::str::FromStr>(text: &str) -> Result<T> {
    if text.starts_with("0x") {
        return Err(failure(format!("Illegal hexadecimal input in $convert with no onError value: {text}")));
    }
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let whole = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let reason = match (whole, digits.is_empty()) {
        (true, _) => "Overflow",
        (_, true) => "No digits",
        _ => "Did not consume whole string.",
    };
    text.parse().map_err(|_| parse_failure(text, reason))
}

fn parse_failure(text: &str, reason: &str) -> Error {
    failure(format!("Failed to parse number '{text}' in $convert with no onError value: {reason}"))
}

fn to_int<'a>(value: Value<'a>, target: &Target<'_>) -> Result<Value<'a>> {
    match value {
        Value::String(text) => parse_integer(text).map(Value::Int32),
        Value::Bool(b) => Ok(Value::Int32(i32::from(b))),
        Value::Binary(bytes) if matches!(bytes.bytes.len(), 1 | 2 | 4) => {
            Ok(Value::Int32(binary::to_integer(bytes.bytes, target.big_endian) as i32))
        }
        Value::Binary(bytes) => Err(binary::wrong_length(bytes, "int")),
        value if value.is_number() => {
            i32::try_from(integral(value)?).map(Value::Int32).map_err(|_| overflow(value))
        }
        other => Err(unsupported(other, Type::Int32)),
    }
}

fn to_long<'a>(value: Value<'a>, target: &Target<'_>) -> Result<Value<'a>> {
    match value {
        Value::String(text) => parse_integer(text).map(Value::Int64),
        Value::Bool(b) => Ok(Value::Int64(i64::from(b))),
        Value::DateTime(millis) => Ok(Value::Int64(millis)),
        Value::Binary(bytes) if matches!(bytes.bytes.len(), 1 | 2 | 4 | 8) => {
            Ok(Value::Int64(binary::to_integer(bytes.bytes, target.big_endian)))
        }
        Value::Binary(bytes) => Err(binary::wrong_length(bytes, "long")),
        value if value.is_number() => integral(value).map(Value::Int64),
        other => Err(unsupported(other, Type::Int64)),
    }
}

fn to_double<'a>(value: Value<'a>, target: &Target<'_>) -> Result<Value<'a>> {
    match value {
        Value::String(text) => parse_double(text).map(Value::Double),
        Value::Bool(b) => Ok(Value::Double(f64::from(u8::from(b)))),
        Value::DateTime(millis) => Ok(Value::Double(millis as f64)),
        Value::Binary(bytes) => match binary::to_double(bytes.bytes, target.big_endian) {
            Some(n) => Ok(Value::Double(n)),
            None => Err(binary::wrong_length(bytes, "double")),
        },
        Value::Decimal128(n) => {
            let double = n.to_f64();
            if double.is_infinite() && n.is_finite() {
                Err(overflow(value))
            } else {
                Ok(Value::Double(double))
            }
        }
        value => value.as_f64().map(Value::Double).ok_or_else(|| unsupported(value, Type::Double)),
    }
}

/// Reads a double as C does, decimal or hexadecimal, but nothing around it and nothing out of range.
fn parse_double(text: &str) -> Result<f64> {
    if text.starts_with("0x") {
        return Err(failure(format!("Illegal hexadecimal input in $convert with no onError value: {text}")));
    }
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let parsed = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hexadecimal) => parse_hex_double(hexadecimal),
        None if digits.starts_with(['+', '-']) => None,
        None => digits.parse::<f64>().ok(),
    };
    let Some(n) = parsed else { return Err(parse_failure(text, "Did not consume whole string.")) };
    let named = digits.starts_with(|c: char| c.is_ascii_alphabetic());
    let out_of_range = n.is_infinite() && !named;
    let vanished = n == 0.0 && digits.split(['e', 'E', 'p', 'P']).next().is_some_and(has_nonzero_digit);
    if out_of_range || vanished {
        return Err(parse_failure(text, "Out of range"));
    }
    Ok(if negative { -n } else { n })
}

fn has_nonzero_digit(text: &str) -> bool {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    digits.bytes().any(|b| b.is_ascii_hexdigit() && b != b'0')
}

/// `1.8p1`, behind its `0x`.
fn parse_hex_double(text: &str) -> Option<f64> {
    let (mantissa, exponent) = match text.find(['p', 'P']) {
        Some(at) => (&text[..at], text[at + 1..].parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut value = 0.0;
    for digit in whole.chars() {
        value = value * 16.0 + f64::from(digit.to_digit(16)?);
    }
    let mut place = 1.0 / 16.0;
    for digit in fraction.chars() {
        value += f64::from(digit.to_digit(16)?) * place;
        place /= 16.0;
    }
    Some(value * 2f64.powi(exponent))
}

fn to_decimal<'a>(value: Value<'a>, _: &Target<'_>) -> Result<Value<'a>> {
    match value {
        Value::String(text) => {
            if text.starts_with("0x") {
                return Err(failure(format!(
                    "Illegal hexadecimal input in $convert with no onError value: {text}"
                )));
            }
            Decimal128::parse_truncated(text)
                .map(Value::Decimal128)
                .map_err(|_| parse_failure(text, "Failed to parse string to decimal"))
        }
        Value::Bool(b) => Ok(Value::Decimal128(Decimal128::from_i64(i64::from(b)))),
        Value::DateTime(millis) => Ok(Value::Decimal128(Decimal128::from_i64(millis))),
        value => number::to_decimal(value)
            .map(Value::Decimal128)
            .ok_or_else(|| unsupported(value, Type::Decimal128)),
    }
}

fn to_text<'a>(value: Value<'a>, target: &Target<'_>, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let text = match value {
        Value::String(text) => return Ok(Value::String(text)),
        Value::Bool(b) => b.to_string(),
        Value::Int32(n) => n.to_string(),
        Value::Int64(n) => n.to_string(),
        Value::Double(n) => double_text(n),
        Value::Decimal128(n) => n.to_string(),
        Value::ObjectId(id) => hex(&id.0),
        Value::DateTime(millis) => date::standard_text(millis)?,
        Value::Binary(bytes) => match target.format {
            Some(format) => {
                let text = binary::to_text(bytes, format)?;
                if text.len() >= MAX_STRING {
                    return Err(failure("Resulting string value exceeds maximum size (16793600 bytes)"));
                }
                text
            }
            None => return Err(missing_format(value, Type::String)),
        },
        other => return Err(unsupported(other, Type::String)),
    };
    Ok(cx.env.text(&text))
}

fn missing_format(value: Value<'_>, kind: Type) -> Error {
    Error::location(
        4341115,
        format!(
            "Format must be speficied when converting from '{}' to '{}'.",
            value.type_name(),
            kind.name()
        ),
    )
}

fn to_object_id<'a>(value: Value<'a>, target: &Target<'_>) -> Result<Value<'a>> {
    match value {
        Value::ObjectId(_) => Ok(value),
        Value::String(text) => {
            let bytes = binary::from_hex(text)?.and_then(|bytes| <[u8; 12]>::try_from(bytes).ok());
            let reason = || match text.len() {
                24 => "Invalid character found in hex string".to_owned(),
                len => format!("Invalid string length for parsing to OID, expected 24 but found {len}"),
            };
            match bytes {
                Some(bytes) => Ok(Value::ObjectId(ObjectId(bytes))),
                None => Err(failure(format!(
                    "Failed to parse objectId '{text}' in $convert with no onError value: {}",
                    reason()
                ))),
            }
        }
        other => Err(unsupported(other, target.kind)),
    }
}

fn to_date<'a>(value: Value<'a>, target: &Target<'_>) -> Result<Value<'a>> {
    match value {
        Value::String(text) => date::date_of_text(text).map(Value::DateTime),
        Value::Int64(_) | Value::Double(_) | Value::Decimal128(_) => integral(value).map(Value::DateTime),
        value => {
            crate::time::date_of(value).map(Value::DateTime).ok_or_else(|| unsupported(value, target.kind))
        }
    }
}

fn to_binary<'a>(value: Value<'a>, target: &Target<'_>, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    // What cannot be converted at all is refused before the subtype is looked at.
    match value {
        Value::String(_) if target.format.is_none() => return Err(missing_format(value, Type::Binary)),
        Value::String(_) | Value::Binary(_) | Value::Int32(_) | Value::Int64(_) | Value::Double(_) => {}
        other => return Err(unsupported(other, target.kind)),
    }
    let subtype = target_subtype(target.subtype)?;
    let bytes = match value {
        Value::String(text) => binary::from_text(text, target.format.unwrap_or(""), subtype)?,
        Value::Binary(bytes) if bytes.subtype == subtype => return Ok(value),
        Value::Binary(bytes) => {
            return Err(failure(format!(
                "Conversions between different binData subtypes are not supported: {} to {subtype}",
                bytes.subtype
            )));
        }
        Value::Int64(n) => binary::ordered(n.to_le_bytes().to_vec(), target.big_endian),
        Value::Double(n) => binary::ordered(n.to_le_bytes().to_vec(), target.big_endian),
        other => binary::ordered(exact_i32(other).unwrap_or(0).to_le_bytes().to_vec(), target.big_endian),
    };
    let bytes = match subtype {
        // The old binary subtype repeats its length inside.
        2 => [&(bytes.len() as i32).to_le_bytes()[..], &bytes].concat(),
        _ => bytes,
    };
    Ok(Value::Binary(Binary { subtype, bytes: cx.env.arena().alloc_slice_copy(&bytes) }))
}

/// A double in the fewest digits that tell it from its neighbours, which is how MongoDB prints it.
pub(super) fn double_text(n: f64) -> String {
    if n.is_nan() {
        return "NaN".to_owned();
    }
    if n.is_infinite() {
        return if n > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    plain_or_scientific(n, &format!("{n:e}"), 16)
}

/// A double in six digits, as the operators print it that take any value for a string.
pub(super) fn short_double_text(n: f64) -> String {
    if n.is_nan() {
        return "nan".to_owned();
    }
    if n.is_infinite() {
        return if n > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    digits_text(n, 6)
}

/// C's `%g` with this many digits, of a finite number.
fn digits_text(n: f64, precision: usize) -> String {
    plain_or_scientific(n, &format!("{n:.*e}", precision - 1), precision as i32)
}

/// A number whose digits are known, without an exponent if that is above -5 and below `limit`.
fn plain_or_scientific(n: f64, scientific: &str, limit: i32) -> String {
    let (digits, exponent) = scientific.split_once('e').unwrap_or((scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..limit).contains(&exponent) {
        let places = digits.split_once('.').map_or(0, |(_, fraction)| fraction.len()) as i32;
        let plain = format!("{n:.*}", (places - exponent).max(0) as usize);
        return if plain.contains('.') { trim_zeros(&plain).to_owned() } else { plain };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    let digits = if digits.contains('.') { trim_zeros(digits) } else { digits };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn trim_zeros(digits: &str) -> &str {
    digits.trim_end_matches('0').trim_end_matches('.')
}

/// A number as an int64, its fraction dropped, as `$substr` and `$round` take their numbers.
pub(super) fn coerce_i64(value: Value<'_>) -> Result<i64> {
    match number::truncate_to_i64(value) {
        Some(Truncated::Integer(n)) => Ok(n),
        Some(_) => bail!(31109, "Can't coerce out of range value {} to long", show(value)),
        None => bail!(16004, "can't convert from BSON type {} to long", value.type_name()),
    }
}
