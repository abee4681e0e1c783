//! The door: bytes from network or disk are checked here once, and trusted from then on.

use sheaf_errors::{Code, Error, Result, bail};

use crate::raw::{short_find_nul, value_size};
use crate::{Element, RawDoc, Type, Value};

/// Deepest nesting of documents and arrays, the outermost counted, that a message may bring or a pipeline may make:
/// mongod's `maxBSONDepth`. What is deeper no driver reads, and walking it could exhaust the stack.
pub const MAX_DEPTH: usize = 200;

/// Deepest nesting of a document that can be stored: the log and commands wrap it into others.
pub const MAX_STORED_DEPTH: usize = MAX_DEPTH - 20;

/// Bytes of the smallest document around another: its length, a type, an empty name, and its end.
const LEVEL_BYTES: usize = 7;

/// Largest stored document, in bytes.
pub const MAX_DOCUMENT_SIZE: usize = 16 * 1024 * 1024;

/// Checks that `bytes` starts with one well-formed document and returns its length: lengths agree
/// with each other, names and strings are UTF-8 and end in NUL, types are known, booleans are 0 or
/// 1, nesting is at most `max_depth`. Bytes after the document are not looked at.
///
/// Errors: `InvalidBSON` (22), and `Overflow` (15) for nesting.
pub fn validate(bytes: &[u8], max_depth: usize) -> Result<usize> {
    let len = match bytes.first_chunk::<4>() {
        Some(head) => i32::from_le_bytes(*head),
        None => bail!(Code::INVALID_BSON, "invalid bson: not enough bytes for a document's length"),
    };
    if len < 5 || len as usize > bytes.len() {
        bail!(Code::INVALID_BSON, "invalid bson: incorrect BSON length {len}");
    }
    let len = len as usize;
    document(&bytes[..len], max_depth)?;
    Ok(len)
}

/// Whether a well-formed document has more than so many levels. Small ones are not looked at.
pub fn is_deeper(doc: RawDoc<'_>, levels: usize) -> bool {
    if doc.len() < LEVEL_BYTES * levels {
        return false;
    }
    levels == 0 || doc.iter().filter_map(held).any(|inner| is_deeper(inner, levels - 1))
}

/// The document that an element holds. What holds none is not decoded.
fn held(element: Element<'_>) -> Option<RawDoc<'_>> {
    if !matches!(element.kind(), Type::Document | Type::Array | Type::CodeWithScope) {
        return None;
    }
    match element.value() {
        Value::Document(inner) | Value::Array(inner) => Some(inner),
        Value::CodeWithScope(code) => Some(code.scope),
        _ => None,
    }
}

/// Checks a document whose length prefix was already found to fit `bytes` exactly. Recursion is
/// bounded by `depth_left`.
fn document(bytes: &[u8], depth_left: usize) -> Result<()> {
    if depth_left == 0 {
        return Err(Error::new(
            Code::OVERFLOW,
            format!("BSONObj exceeds maximum nested object depth: {MAX_DEPTH}"),
        ));
    }
    let Some((&0, _)) = bytes.split_last() else {
        bail!(Code::INVALID_BSON, "invalid bson: document not terminated");
    };
    let mut rest = &bytes[4..bytes.len() - 1];
    while !rest.is_empty() {
        rest = &rest[element(rest, depth_left)?..];
    }
    Ok(())
}

/// Checks that `bytes` starts with one well-formed element, as [`validate`] does, and returns its length.
///
/// Errors: as [`validate`].
pub fn validate_element(bytes: &[u8], max_depth: usize) -> Result<usize> {
    element(bytes, max_depth.max(1))
}

/// Checks the element at the begin of these bytes; gives its length.
#[inline]
fn element(bytes: &[u8], depth_left: usize) -> Result<usize> {
    let Some((&kind, after)) = bytes.split_first() else {
        bail!(Code::INVALID_BSON, "invalid bson: no element");
    };
    let Some(name_len) = short_find_nul(after) else {
        bail!(Code::INVALID_BSON, "invalid bson: field name not terminated");
    };
    let name = &after[..name_len];
    if !is_utf8(name) {
        bail!(Code::INVALID_BSON, "invalid bson: field name is not valid UTF-8");
    }
    let value = &after[name_len + 1..];
    let fault = |what: &str| {
        let name = String::from_utf8_lossy(name);
        Error::new(Code::INVALID_BSON, format!("invalid bson in element with field name '{name}': {what}"))
    };
    let size = match value_size(kind, value) {
        Some(size) if size <= value.len() => size,
        Some(_) => return Err(fault("value runs past the end of its document")),
        None => return Err(fault(&format!("unknown type {kind} or cut value"))),
    };
    check_value(kind, &value[..size], depth_left).map_err(|problem| match problem {
        Problem::Text(what) => fault(what),
        Problem::Inner(error) => error,
    })?;
    Ok(2 + name_len + size)
}

/// Most names and many strings are short and plain; these need neither call nor table.
fn is_utf8(text: &[u8]) -> bool {
    (text.len() < 64 && text.is_ascii()) || simdutf8::basic::from_utf8(text).is_ok()
}

enum Problem {
    Text(&'static str),
    Inner(Error),
}

fn check_value(kind: u8, data: &[u8], depth_left: usize) -> Result<(), Problem> {
    match kind {
        0x02 | 0x0D | 0x0E => check_text(data),
        0x03 | 0x04 => check_embedded(data, depth_left),
        0x08 if data[0] > 1 => Err(Problem::Text("boolean is neither 0 nor 1")),
        0x0B if !is_utf8(data) => Err(Problem::Text("regular expression is not valid UTF-8")),
        0x0C => check_text(&data[..data.len().saturating_sub(12)]),
        0x0F => {
            let code_len = data.get(4..8).and_then(|b| b.try_into().ok()).map_or(0, i32::from_le_bytes);
            let code_end = usize::try_from(code_len).ok().and_then(|n| n.checked_add(8));
            match code_end {
                Some(end) if end <= data.len() => {
                    check_text(&data[4..end])?;
                    check_embedded(&data[end..], depth_left)
                }
                _ => Err(Problem::Text("code with scope is malformed")),
            }
        }
        0x05 if data[4] == 2 => {
            let inner = data.get(5..9).and_then(|b| b.try_into().ok()).map_or(-1, i32::from_le_bytes);
            if usize::try_from(inner).ok() == Some(data.len().saturating_sub(9)) {
                Ok(())
            } else {
                Err(Problem::Text("old binary subtype with a wrong inner length"))
            }
        }
        _ => Ok(()),
    }
}

/// A string: 4 bytes of length (with NUL), text, NUL; `data` must be exactly that.
fn check_text(data: &[u8]) -> Result<(), Problem> {
    if data.len() < 5 || data[data.len() - 1] != 0 {
        return Err(Problem::Text("string is not terminated"));
    }
    if i32::from_le_bytes([data[0], data[1], data[2], data[3]]) as usize != data.len() - 4 {
        return Err(Problem::Text("string has a wrong length"));
    }
    if is_utf8(&data[4..data.len() - 1]) { Ok(()) } else { Err(Problem::Text("string is not valid UTF-8")) }
}

fn check_embedded(data: &[u8], depth_left: usize) -> Result<(), Problem> {
    let len = data.first_chunk::<4>().map_or(-1, |head| i32::from_le_bytes(*head));
    if len < 5 || len as usize != data.len() {
        return Err(Problem::Text("embedded document has a wrong length"));
    }
    document(data, depth_left - 1).map_err(Problem::Inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DocBuf, doc};

    #[test]
    fn accepts_what_we_build_and_refuses_what_is_cut() {
        let whole = doc! { "a": 1, "b": { "c": ["x", 2.5, { "d": true }] } }.into_bytes();
        assert_eq!(validate(&whole, MAX_DEPTH), Ok(whole.len()));
        for cut in 0..whole.len() {
            assert!(validate(&whole[..cut], MAX_DEPTH).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let mut nested = doc! {};
        for _ in 1..MAX_DEPTH {
            nested = doc! { "a": &nested };
        }
        assert!(!is_deeper(nested.as_raw(), MAX_DEPTH) && is_deeper(nested.as_raw(), MAX_DEPTH - 1));
        assert!(validate(nested.as_bytes(), MAX_DEPTH).is_ok());
        let deeper = doc! { "a": &nested };
        assert_eq!(validate(deeper.as_bytes(), MAX_DEPTH).unwrap_err().code(), Code::OVERFLOW);
        assert!(is_deeper(deeper.as_raw(), MAX_DEPTH));
    }

    /// The smallest document of so many levels, beside much that is flat, is found; what is flat never is.
    #[test]
    fn what_is_deep_is_found_anywhere() {
        let mut nested = DocBuf::new();
        for _ in 0..MAX_STORED_DEPTH - 2 {
            nested = doc! { "": &nested };
        }
        let flat = "x".repeat(5000);
        let beside = doc! { "before": &flat, "list": [1, &nested], "after": { "x": "y" } };
        assert!(is_deeper(beside.as_raw(), MAX_STORED_DEPTH));
        let beside = doc! { "before": &flat, "at": &nested, "after": { "x": "y" } };
        assert!(!is_deeper(beside.as_raw(), MAX_STORED_DEPTH));
    }
}
