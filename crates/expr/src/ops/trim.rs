//! `$trim`, `$ltrim`, `$rtrim`.

use sheaf_bson::Value;
use sheaf_errors::{Result, bail};

use super::show;
use crate::expr::{Call, Cx};
use crate::operator::{Named, Operator, named};

static FIELDS: Named = Named { fields: &[("input", 50695), ("chars", 0)], not_object: 50696, unknown: 50694 };

pub(crate) static OPERATORS: &[Operator] = &[
    named("$trim", &FIELDS, |call, cx| trim(call, cx, true, true)),
    named("$ltrim", &FIELDS, |call, cx| trim(call, cx, true, false)),
    named("$rtrim", &FIELDS, |call, cx| trim(call, cx, false, true)),
];

/// What is trimmed if nothing else is asked for: white space and NUL.
const WHITE_SPACE: &[char] = &[
    '\0', ' ', '\t', '\n', '\u{0B}', '\u{0C}', '\r', '\u{A0}', '\u{1680}', '\u{2000}', '\u{2001}',
    '\u{2002}', '\u{2003}', '\u{2004}', '\u{2005}', '\u{2006}', '\u{2007}', '\u{2008}', '\u{2009}',
    '\u{200A}',
];

fn trim<'a>(call: &'a Call, cx: Cx<'a, '_>, left: bool, right: bool) -> Result<Value<'a>> {
    let name = call.op.name;
    let mut text = match call.arg(0, cx)? {
        Value::String(text) => text,
        value if value.is_nullish() => return Ok(Value::Null),
        other => bail!(
            50699,
            "{name} requires its input to be a string, got {} (of type {}) instead.",
            show(other),
            other.type_name()
        ),
    };
    let chosen = match call.arg(1, cx)? {
        Value::String(chars) => Some(chars),
        value if value.is_nullish() && call.has(1) => return Ok(Value::Null),
        _ if !call.has(1) => None,
        other => bail!(
            50700,
            "{name} requires 'chars' to be a string, got {} (of type {}) instead.",
            show(other),
            other.type_name()
        ),
    };
    cx.env.spend_for(text.len() + chosen.map_or(0, str::len))?;
    let many: Option<std::collections::HashSet<char, ahash::RandomState>> =
        chosen.filter(|chars| chars.len() > 64).map(|chars| chars.chars().collect());
    let trimmed = |c: char| match (&many, chosen) {
        (Some(many), _) => many.contains(&c),
        (None, Some(chars)) => chars.contains(c),
        (None, None) => WHITE_SPACE.contains(&c),
    };
    if left {
        text = text.trim_start_matches(trimmed);
    }
    if right {
        text = text.trim_end_matches(trimmed);
    }
    Ok(Value::String(text))
}
