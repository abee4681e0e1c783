//! `$substr`, `$substrBytes`, `$substrCP`.

use sheaf_bson::Value;
use sheaf_errors::{Result, bail};

use super::string::coerce;
use super::{convert, exact_i32, show};
use crate::expr::Cx;
use crate::operator::{Operator, exactly};

pub(crate) static OPERATORS: &[Operator] = &[
    exactly("$substr", 3, |v, cx| by_bytes("$substr", v, cx)),
    exactly("$substrBytes", 3, |v, cx| by_bytes("$substrBytes", v, cx)),
    exactly("$substrCP", 3, by_code_points),
];

fn by_bytes<'a>(name: &str, v: &[Value<'a>], cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let text = coerce(v[0], cx)?;
    let (start, length) = (v[1], v[2]);
    if !start.is_number() {
        bail!(16034, "{name}:  starting index must be a numeric type (is BSON type {})", start.type_name());
    }
    if !length.is_number() {
        bail!(16035, "{name}:  length must be a numeric type (is BSON type {})", length.type_name());
    }
    let start = convert::coerce_i64(start)?;
    let length = convert::coerce_i64(length)?;
    if start < 0 {
        bail!(50752, "{name}: starting index must be non-negative (got: {start})");
    }
    let start = usize::try_from(start).unwrap_or(usize::MAX);
    if start >= text.len() {
        return Ok(Value::String(""));
    }
    // A negative length means the rest.
    let end =
        usize::try_from(length).map_or(text.len(), |length| text.len().min(start.saturating_add(length)));
    if !text.is_char_boundary(start) {
        bail!(28656, "Invalid range, starting index is a UTF-8 continuation byte.");
    }
    if !text.is_char_boundary(end) {
        bail!(28657, "Invalid range, ending index is in the middle of a UTF-8 character.");
    }
    Ok(Value::String(&text[start..end]))
}

fn by_code_points<'a>(v: &[Value<'a>], cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let text = coerce(v[0], cx)?;
    let (start, length) = (v[1], v[2]);
    if !start.is_number() {
        bail!(34450, "$substrCP: starting index must be a numeric type (is BSON type {})", start.type_name());
    }
    let Some(from) = exact_i32(start) else {
        bail!(
            34451,
            "$substrCP: starting index cannot be represented as a 32-bit integral value: {}",
            show(start)
        );
    };
    if !length.is_number() {
        bail!(34452, "$substrCP: length must be a numeric type (is BSON type {})", length.type_name());
    }
    let Some(count) = exact_i32(length) else {
        bail!(34453, "$substrCP: length cannot be represented as a 32-bit integral value: {}", show(length));
    };
    if count < 0 {
        bail!(34454, "$substrCP: length must be a nonnegative integer.");
    }
    if from < 0 {
        bail!(34455, "$substrCP: the starting index must be nonnegative integer.");
    }
    let mut places = text.char_indices().map(|(at, _)| at).chain(std::iter::once(text.len()));
    let Some(start) = places.nth(from as usize) else { return Ok(Value::String("")) };
    let end = match count {
        0 => start,
        count => places.nth(count as usize - 1).unwrap_or(text.len()),
    };
    Ok(Value::String(&text[start..end]))
}
