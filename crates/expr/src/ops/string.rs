//! Strings: joining, splitting, searching, replacing, case, length.

use sheaf_bson::Value;
use sheaf_errors::{Result, bail};

use super::{array_of, check_length, exact_i32, show};
use crate::expr::{Call, Cx};
use crate::operator::{Arity, Named, Operator, between, binary, lazy, named, unary};

pub(crate) static OPERATORS: &[Operator] = &[
    lazy("$concat", Arity::Any, concat),
    between("$indexOfBytes", 2, 4, index_of_bytes),
    between("$indexOfCP", 2, 4, index_of_cp),
    named("$replaceOne", &REPLACE, |call, cx| replace(call, cx, false)),
    named("$replaceAll", &REPLACE, |call, cx| replace(call, cx, true)),
    binary("$split", split),
    binary("$strcasecmp", strcasecmp),
    unary("$strLenBytes", |v, _| match v[0] {
        Value::String(text) => Ok(Value::Int32(text.len() as i32)),
        other => bail!(34473, "$strLenBytes requires a string argument, found: {}", other.type_name()),
    }),
    unary("$strLenCP", |v, _| match v[0] {
        Value::String(text) => Ok(Value::Int32(text.chars().count() as i32)),
        other => bail!(34471, "$strLenCP requires a string argument, found: {}", other.type_name()),
    }),
    unary("$toLower", |v, cx| Ok(change_case(coerce(v[0], cx)?, cx, false))),
    unary("$toUpper", |v, cx| Ok(change_case(coerce(v[0], cx)?, cx, true))),
];

static REPLACE: Named = Named {
    fields: &[("input", 51749), ("find", 51748), ("replacement", 51747)],
    not_object: 51751,
    unknown: 51750,
};

/// The text of values that string operators take for strings; null is the empty one.
pub(super) fn coerce<'a>(value: Value<'a>, cx: Cx<'a, '_>) -> Result<&'a str> {
    let made = match value {
        Value::String(text) | Value::Symbol(text) | Value::JavaScript(text) => return Ok(text),
        value if value.is_nullish() => return Ok(""),
        Value::Int32(n) => n.to_string(),
        Value::Int64(n) => n.to_string(),
        Value::Double(n) => super::convert::short_double_text(n),
        Value::Decimal128(n) => n.to_string(),
        Value::DateTime(millis) => crate::time::iso_string(millis),
        Value::Timestamp(time) => {
            format!("{}:{}", crate::time::short_text(time.seconds()), time.increment())
        }
        other => bail!(16007, "can't convert from BSON type {} to String", other.type_name()),
    };
    Ok(cx.env.arena().alloc_str(&made))
}

fn concat<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let mut joined = bumpalo::collections::String::new_in(cx.env.arena());
    for arg in &call.args {
        match arg.value(cx)? {
            Value::String(text) => {
                cx.env.spend_for(text.len())?;
                check_length(joined.len() + text.len())?;
                joined.push_str(text);
            }
            value if value.is_nullish() => return Ok(Value::Null),
            other => bail!(16702, "$concat only supports strings, not {}", other.type_name()),
        }
    }
    Ok(Value::String(joined.into_bump_str()))
}

/// A start or end index of a search.
fn search_bound(name: &str, which: &str, value: Value<'_>) -> Result<usize> {
    match exact_i32(value) {
        Some(n) if n >= 0 => Ok(n as usize),
        Some(n) => bail!(40097, "{name} requires a nonnegative {which} index, found: {n}"),
        None => bail!(
            40096,
            "{name} requires an integral {which} index, found a value of type: {}, with value: \"{}\"",
            value.type_name(),
            show(value)
        ),
    }
}

fn index_of_bytes<'a>(v: &[Value<'a>], _: Cx<'a, '_>) -> Result<Value<'a>> {
    if v[0].is_nullish() {
        return Ok(Value::Null);
    }
    let Value::String(text) = v[0] else {
        bail!(40091, "$indexOfBytes requires a string as the first argument, found: {}", v[0].type_name());
    };
    let Value::String(wanted) = v[1] else {
        bail!(40092, "$indexOfBytes requires a string as the second argument, found: {}", v[1].type_name());
    };
    let start = v.get(2).map_or(Ok(0), |value| search_bound("$indexOfBytes", "starting", *value))?;
    let end = v.get(3).map_or(Ok(usize::MAX), |value| search_bound("$indexOfBytes", "ending", *value))?;
    let end = end.min(text.len());
    let found = text.as_bytes().get(start..end).and_then(|part| find_bytes(part, wanted.as_bytes()));
    Ok(Value::Int32(found.map_or(-1, |at| (start + at) as i32)))
}

/// Where `wanted` first stands in `text`.
fn find_bytes(text: &[u8], wanted: &[u8]) -> Option<usize> {
    if wanted.is_empty() {
        return Some(0);
    }
    memchr::memmem::find(text, wanted)
}

fn index_of_cp<'a>(v: &[Value<'a>], _: Cx<'a, '_>) -> Result<Value<'a>> {
    if v[0].is_nullish() {
        return Ok(Value::Null);
    }
    let Value::String(text) = v[0] else {
        bail!(40093, "$indexOfCP requires a string as the first argument, found: {}", v[0].type_name());
    };
    let Value::String(wanted) = v[1] else {
        bail!(40094, "$indexOfCP requires a string as the second argument, found: {}", v[1].type_name());
    };
    let start = v.get(2).map_or(Ok(0), |value| search_bound("$indexOfCP", "starting", *value))?;
    let end = v.get(3).map_or(Ok(usize::MAX), |value| search_bound("$indexOfCP", "ending", *value))?;
    // An empty text has no place to look at, and yet an empty one is found in it.
    if text.is_empty() && wanted.is_empty() && start == 0 {
        return Ok(Value::Int32(0));
    }
    let Some((from, _)) = text.char_indices().nth(start) else { return Ok(Value::Int32(-1)) };
    let found = find_bytes(&text.as_bytes()[from..], wanted.as_bytes());
    // A match must begin before `end`, but may reach past it.
    let index = found.map(|at| start + text[from..from + at].chars().count()).filter(|index| *index < end);
    Ok(Value::Int32(index.map_or(-1, |index| index as i32)))
}

fn replace<'a>(call: &'a Call, cx: Cx<'a, '_>, all: bool) -> Result<Value<'a>> {
    let name = call.op.name;
    let (input, find, replacement) = (call.arg(0, cx)?, call.arg(1, cx)?, call.arg(2, cx)?);
    let is_text = |value: Value<'_>| value.is_nullish() || value.as_str().is_some();
    if !is_text(input) {
        bail!(10503904, "{name} requires that 'input' be a string, found: {}", show(input));
    }
    // Regular expressions are of versions after 8.2.
    if !is_text(find) {
        bail!(10503901, "{name} requires that 'find' be a string, found: {}", show(find));
    }
    if !is_text(replacement) {
        bail!(10503902, "{name} requires that 'replacement' be a string, found: {}", show(replacement));
    }
    let (Value::String(text), Value::String(find), Value::String(replacement)) = (input, find, replacement)
    else {
        return Ok(Value::Null);
    };
    let mut out = bumpalo::collections::String::new_in(cx.env.arena());
    let (mut copied, mut from) = (0, 0);
    while let Some(at) = text[from..].find(find) {
        let (start, end) = (from + at, from + at + find.len());
        cx.env.spend_for(end - copied.min(end))?;
        out.push_str(&text[copied..start]);
        out.push_str(replacement);
        check_length(out.len())?;
        copied = end;
        // Behind an empty match the search goes on at the next character.
        from = if end > start { end } else { next_char(text, end) };
        if !all || from > text.len() {
            break;
        }
    }
    out.push_str(&text[copied..]);
    check_length(out.len())?;
    Ok(Value::String(out.into_bump_str()))
}

/// The start of the character behind the one at `at`; past the end if there is none.
pub(super) fn next_char(text: &str, at: usize) -> usize {
    at + text[at..].chars().next().map_or(1, char::len_utf8)
}

fn split<'a>(v: &[Value<'a>], cx: Cx<'a, '_>) -> Result<Value<'a>> {
    if v[0].is_nullish() || v[1].is_nullish() {
        return Ok(Value::Null);
    }
    let Value::String(text) = v[0] else {
        bail!(
            40085,
            "$split requires an expression that evaluates to a string as a first argument, found: {}",
            v[0].type_name()
        );
    };
    match v[1] {
        Value::String("") => bail!(40087, "$split requires a non-empty separator"),
        Value::String(separator) => array_of(text.split(separator).map(Value::String), cx),
        // Regular expressions are of versions after 8.2.
        other => bail!(
            10503900,
            "$split requires an expression that evaluates to a string as a second argument, found: {}",
            other.type_name()
        ),
    }
}

fn strcasecmp<'a>(v: &[Value<'a>], cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let (a, b) = (coerce(v[0], cx)?, coerce(v[1], cx)?);
    let upper = |text: &'a str| text.bytes().map(|b| b.to_ascii_uppercase());
    Ok(Value::Int32(upper(a).cmp(upper(b)) as i32))
}

/// Changes the case of ASCII letters only, as MongoDB does.
fn change_case<'a>(text: &'a str, cx: Cx<'a, '_>, upper: bool) -> Value<'a> {
    let text = cx.env.arena().alloc_str(text);
    if upper {
        text.make_ascii_uppercase();
    } else {
        text.make_ascii_lowercase();
    }
    Value::String(text)
}
