//! The operators, one file per family. Each file starts with its part of the table.

mod accumulator;
mod arithmetic;
mod array;
mod array_loop;
mod binary;
mod bits;
mod boolean;
mod comparison;
mod conditional;
mod convert;
mod date;
mod date_parts;
mod date_unit;
mod function;
mod misc;
mod n_array;
mod object;
mod percentile;
mod regex;
mod set;
mod sort_array;
mod string;
mod substring;
mod trigonometry;
mod trim;
mod types;
mod variable;

use bumpalo::collections::Vec as BumpVec;
use sheaf_bson::{ArrayWriter, MAX_DEPTH, RawDoc, Value, array_in, document_in};
use sheaf_errors::{Code, Result, bail};

pub(crate) use date::checked_millis;
pub use date_unit::Unit;
pub(crate) use function::Compiled;
pub(crate) use regex::Pattern;
pub(crate) use sort_array::SortBy;

use crate::expr::Cx;
use crate::operator::Operator;

/// All parts of the table.
pub(crate) static FAMILIES: &[&[Operator]] = &[
    accumulator::OPERATORS,
    arithmetic::OPERATORS,
    array::OPERATORS,
    array_loop::OPERATORS,
    bits::OPERATORS,
    boolean::OPERATORS,
    comparison::OPERATORS,
    conditional::OPERATORS,
    convert::OPERATORS,
    date::OPERATORS,
    date_parts::OPERATORS,
    date_unit::OPERATORS,
    function::OPERATORS,
    misc::OPERATORS,
    n_array::OPERATORS,
    object::OPERATORS,
    percentile::OPERATORS,
    regex::OPERATORS,
    set::OPERATORS,
    sort_array::OPERATORS,
    string::OPERATORS,
    substring::OPERATORS,
    trigonometry::OPERATORS,
    trim::OPERATORS,
    types::OPERATORS,
    variable::OPERATORS,
];

/// A string in an expression must be shorter than this.
pub(crate) const MAX_STRING: usize = 16 * 1024 * 1024;

/// Refuses a string, or bytes, of this length if that is too much for a value of an expression.
pub(crate) fn check_length(len: usize) -> Result<()> {
    if len >= MAX_STRING {
        bail!(16493, "Tried to create string longer than 16MB");
    }
    Ok(())
}

/// Computed values past this size are refused, as mongod's buffers are.
const MAX_COMPUTED_SIZE: usize = 64 * 1024 * 1024;

/// Builds an array in the arena with steps that may fail.
fn build_array<'a>(
    cx: Cx<'a, '_>,
    fill: impl FnOnce(&mut ArrayWriter<'_, BumpVec<'a, u8>>) -> Result<()>,
) -> Result<Value<'a>> {
    let mut filled = Ok(());
    let array = array_in(cx.env.arena(), |out| filled = fill(out));
    filled?;
    check_size(array.len())?;
    Ok(Value::Array(array))
}

/// Counts a step of a loop that builds a value, which is so long now.
///
/// Errors: 13548 for a value that no document could hold by far; what the meter says.
pub(crate) fn grown(cx: Cx<'_, '_>, size: usize) -> Result<()> {
    cx.env.spend(1)?;
    check_size(size)
}

/// An array of these values.
fn array_of<'a>(values: impl IntoIterator<Item = Value<'a>>, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    build_array(cx, |out| {
        values.into_iter().try_for_each(|value| {
            out.push(value);
            grown(cx, out.size())
        })
    })
}

/// Sorts values as the operation compares them.
fn sort<'a>(items: &mut [Value<'a>], cx: Cx<'a, '_>) -> Result<()> {
    sheaf_meter::sort_by(items, |a, b| cx.try_compare(*a, *b))
}

/// A copy of a value that lives in the arena.
fn copy_in<'a>(value: Value<'_>, cx: Cx<'a, '_>) -> Value<'a> {
    let holder = document_in(cx.env.arena(), |out| _ = out.append("", value));
    holder.iter().next().map_or(Value::Missing, |element| element.value())
}

/// Refuses computed values that no document could hold by far.
pub(crate) fn check_size(len: usize) -> Result<()> {
    if len > MAX_COMPUTED_SIZE {
        bail!(13548, "BufBuilder attempted to grow() to {len} bytes, past the 64MB limit.");
    }
    Ok(())
}

/// Refuses values nested deeper than a document may be: walking them could exhaust the stack.
///
/// Errors: `Overflow`.
pub fn check_nesting(value: Value<'_>) -> Result<()> {
    match value {
        Value::Document(doc) | Value::Array(doc) if sheaf_bson::is_deeper(doc, MAX_DEPTH) => bail!(
            Code::OVERFLOW,
            "Exceeded depth limit of {MAX_DEPTH} when converting a value to BSON. Do you have a cycle?"
        ),
        _ => Ok(()),
    }
}

/// The values of an array, for random access.
fn items<'a>(array: RawDoc<'a>, cx: Cx<'a, '_>) -> Result<BumpVec<'a, Value<'a>>> {
    cx.env.spend_for(array.len())?;
    let count = array.count();
    cx.env.expect(count * size_of::<Value<'_>>())?;
    let mut items = BumpVec::with_capacity_in(count, cx.env.arena());
    items.extend(array.values());
    Ok(items)
}

/// The 32-bit integer that a number stands for exactly.
fn exact_i32(value: Value<'_>) -> Option<i32> {
    value.as_exact_i64().and_then(|n| i32::try_from(n).ok())
}

/// A value as mongod's expressions and stages print it in messages: `{a: 1, b: ["x"]}`. (Filters and updates print
/// BSON in another way.) Of values that no message should be as long as, only the beginning is printed.
pub fn show(value: Value<'_>) -> String {
    let mut out = String::new();
    put(value, &mut out);
    out
}

/// Messages are cut off behind this.
const SHOWN_BYTES: usize = 64 << 10;

fn put(value: Value<'_>, out: &mut String) {
    match value {
        Value::String(text) => put_text("\"", text, "\"", out),
        Value::JavaScript(code) | Value::Symbol(code) => put_text("\"", code, "\"", out),
        Value::Array(array) => {
            out.push('[');
            for (at, item) in array.values().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                if out.len() > SHOWN_BYTES {
                    out.push_str("...");
                    break;
                }
                put(item, out);
            }
            out.push(']');
        }
        Value::Document(doc) => {
            out.push('{');
            for (at, element) in doc.iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                if out.len() > SHOWN_BYTES {
                    out.push_str("...");
                    break;
                }
                out.push_str(element.key());
                out.push_str(": ");
                put(element.value(), out);
            }
            out.push('}');
        }
        Value::Binary(binary) => {
            let shown = &binary.bytes[..binary.bytes.len().min(SHOWN_BYTES)];
            out.push_str(&format!("BinData({}, \"{}\")", binary.subtype, hex(shown)));
        }
        Value::CodeWithScope(code) => {
            put_text("CodeWScope(\"", code.code, "\", ", out);
            put(Value::Document(code.scope), out);
            out.push(')');
        }
        other => out.push_str(&show_scalar(other)),
    }
}

fn put_text(before: &str, text: &str, after: &str, out: &mut String) {
    let mut end = text.len().min(SHOWN_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    out.push_str(before);
    out.push_str(&text[..end]);
    out.push_str(if end < text.len() { "..." } else { "" });
    out.push_str(after);
}

fn show_scalar(value: Value<'_>) -> String {
    match value {
        Value::Missing => "MISSING".to_owned(),
        Value::Null => "null".to_owned(),
        Value::Undefined => "undefined".to_owned(),
        Value::Int32(n) => n.to_string(),
        Value::Int64(n) => n.to_string(),
        Value::Double(n) if n.is_nan() => "nan".to_owned(),
        Value::Double(n) if n.is_infinite() => if n > 0.0 { "inf" } else { "-inf" }.to_owned(),
        Value::Double(n) => format!("{n}"),
        Value::Decimal128(n) => n.to_string(),
        Value::Bool(b) => b.to_string(),
        Value::ObjectId(id) => hex(&id.0),
        Value::DateTime(millis) => crate::time::iso_string(millis),
        Value::Regex(regex) => format!("/{}/{}", regex.pattern, regex.options),
        Value::Timestamp(time) => format!("Timestamp({}, {})", time.seconds(), time.increment()),
        Value::MinKey => "MinKey".to_owned(),
        Value::MaxKey => "MaxKey".to_owned(),
        Value::DbPointer(pointer) => format!("DBRef(\"{}\", {})", pointer.namespace, hex(&pointer.id.0)),
        Value::String(_)
        | Value::Symbol(_)
        | Value::JavaScript(_)
        | Value::Array(_)
        | Value::Document(_)
        | Value::Binary(_)
        | Value::CodeWithScope(_) => unreachable!("printed by `put`"),
    }
}

/// Lower-case hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}
