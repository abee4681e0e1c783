//! Documents as they stand in memory and on disk: borrowed bytes, read in place.
//!
//! The bytes were checked once at the door ([`crate::validate`]). Readers here therefore trust the
//! structure, but never their own safety to it: on bytes that were not checked they end an
//! iteration early or give an empty value, and stay within the slice.

use crate::value::{Binary, CodeWithScope, DbPointer, Decimal128, ObjectId, Regex, Timestamp, Type, Value};

/// The five bytes of `{}`.
pub const EMPTY_DOCUMENT: &[u8] = &[5, 0, 0, 0, 0];

/// A borrowed document (or array: the same bytes with keys "0", "1", ...). Cheap to copy.
#[derive(Clone, Copy)]
pub struct RawDoc<'a>(&'a [u8]);

impl<'a> RawDoc<'a> {
    /// `{}`.
    pub const EMPTY: RawDoc<'static> = RawDoc(EMPTY_DOCUMENT);

    /// A view of `bytes`, which must hold exactly one document that has passed [`crate::validate`],
    /// or that this crate built. Bytes whose length prefix does not fit give an empty document.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        match bytes.first_chunk::<4>() {
            Some(head) if i32::from_le_bytes(*head) as usize == bytes.len() && bytes.len() >= 5 => {
                RawDoc(bytes)
            }
            _ => RawDoc(EMPTY_DOCUMENT),
        }
    }

    /// The whole document, length prefix included.
    #[inline]
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Size in bytes, as the 16 MiB limit counts it.
    #[inline]
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// Whether it has no elements.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0.len() <= 5
    }

    /// The elements in order.
    ///
    /// ```
    /// use sheaf_bson::doc;
    ///
    /// let plant = doc! { "name": "rye", "grams": 38 };
    /// let names: Vec<&str> = plant.as_raw().iter().map(|element| element.key()).collect();
    /// assert_eq!(names, ["name", "grams"]);
    /// ```
    #[inline]
    pub fn iter(self) -> Iter<'a> {
        Iter { rest: &self.0[4..self.0.len() - 1] }
    }

    /// The values in order: how an array is walked.
    pub fn values(self) -> impl Iterator<Item = Value<'a>> {
        self.iter().map(|element| element.value())
    }

    /// The first field of this name. A name is compared as it stands, dots included.
    pub fn get(self, key: &str) -> Option<Value<'a>> {
        self.element(key).map(|element| element.value())
    }

    /// Like [`RawDoc::get`], with [`Value::Missing`] for an absent field.
    pub fn get_or_missing(self, key: &str) -> Value<'a> {
        self.get(key).unwrap_or(Value::Missing)
    }

    /// The first element of this name.
    pub fn element(self, key: &str) -> Option<Element<'a>> {
        find(self.iter().rest, key.as_bytes())
    }

    /// Number of elements; walks them all.
    pub fn count(self) -> usize {
        self.iter().count()
    }
}

impl PartialEq for RawDoc<'_> {
    /// Byte equality: the same fields in the same order with the same types. MongoDB's comparison,
    /// in which `1` equals `1.0`, is [`crate::compare`].
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl std::fmt::Debug for RawDoc<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut map = f.debug_map();
        for element in self.iter() {
            map.entry(&element.key(), &element.value());
        }
        map.finish()
    }
}

impl<'a> IntoIterator for RawDoc<'a> {
    type Item = Element<'a>;
    type IntoIter = Iter<'a>;
    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// One field: its type, name and undecoded value. It is handed on by the million, so it is small.
#[derive(Clone, Copy)]
pub struct Element<'a> {
    /// The element's own bytes: type, name, NUL and value; what a copy into another document takes.
    whole: &'a [u8],
    /// Where the value begins.
    value_at: usize,
}

impl<'a> Element<'a> {
    /// The name. Names are UTF-8 after validation; other bytes read as an empty name.
    pub fn key(&self) -> &'a str {
        std::str::from_utf8(self.key_bytes()).unwrap_or("")
    }

    /// The name's bytes, without the closing NUL; comparing these is cheaper than [`Element::key`].
    #[inline]
    pub fn key_bytes(&self) -> &'a [u8] {
        &self.whole[1..self.value_at - 1]
    }

    /// The type byte's meaning.
    #[inline]
    pub fn kind(&self) -> Type {
        Type::from_byte(self.whole[0]).unwrap_or(Type::Null)
    }

    /// The value's bytes, without type and name.
    #[inline]
    pub fn data(&self) -> &'a [u8] {
        &self.whole[self.value_at..]
    }

    /// Type byte, name, NUL and value: for copying an element unchanged.
    #[inline]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.whole
    }

    /// The decoded value; strings are checked for UTF-8 here, once, when somebody looks.
    pub fn value(&self) -> Value<'a> {
        decode(self.whole[0], self.data())
    }
}

/// Iterator over a document's elements.
#[derive(Clone)]
pub struct Iter<'a> {
    rest: &'a [u8],
}

impl<'a> Iter<'a> {
    /// Walks elements that stand without a document around them: what [`Iter::rest`] gave.
    pub fn over(elements: &'a [u8]) -> Self {
        Iter { rest: elements }
    }

    /// The elements not yet visited, as bytes.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Iter<'a> {
    type Item = Element<'a>;

    #[inline]
    fn next(&mut self) -> Option<Element<'a>> {
        let (&kind, name) = self.rest.split_first()?;
        let value_at = short_find_nul(name)? + 2;
        let size = value_size(kind, &self.rest[value_at..])?;
        let Some((whole, rest)) = self.rest.split_at_checked(value_at + size) else {
            self.rest = &[];
            return None;
        };
        self.rest = rest;
        Some(Element { whole, value_at })
    }
}

/// The first element of this name. What is sought is mostly behind others that are only passed over: a short name is compared in the word
/// in which its end is looked for.
fn find<'a>(mut elements: &'a [u8], key: &[u8]) -> Option<Element<'a>> {
    let wanted = first_word(key);
    loop {
        let (&kind, name) = elements.split_first()?;
        let (length, same) = match name.first_chunk::<8>().map(|word| u64::from_le_bytes(*word)) {
            Some(word) if has_nul(word) != 0 => {
                let length = first_nul(has_nul(word));
                // The bytes from the closing NUL on are none of the name's.
                (length, length == key.len() && (word ^ wanted) << 8 << (8 * (7 - length)) == 0)
            }
            _ => {
                let length = short_find_nul(name)?;
                (length, name[..length] == *key)
            }
        };
        let value_at = length + 2;
        let end = value_at + value_size(kind, &elements[value_at..])?;
        if same {
            return Some(Element { whole: elements.get(..end)?, value_at });
        }
        elements = elements.get(end..)?;
    }
}

/// The first eight bytes as a number; zeros where there are fewer.
fn first_word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    u64::from_le_bytes(word)
}

/// Not zero if a byte of the word is; the lowest bit that is set marks the first.
#[inline]
fn has_nul(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    word.wrapping_sub(ONES) & !word & HIGHS
}

/// The byte that [`has_nul`] marks first.
#[inline]
fn first_nul(marks: u64) -> usize {
    (marks.trailing_zeros() / 8) as usize
}

/// Where the name ends. Names are mostly short, for which looking at eight bytes at once beats a call
/// to memchr.
#[inline]
pub(crate) fn short_find_nul(bytes: &[u8]) -> Option<usize> {
    for at in [0, 8] {
        let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) else { break };
        let marks = has_nul(u64::from_le_bytes(*word));
        if marks != 0 {
            return Some(at + first_nul(marks));
        }
    }
    // The last element of a document may be shorter than a word.
    if bytes.len() < 8 { bytes.iter().position(|byte| *byte == 0) } else { memchr::memchr(0, bytes) }
}

fn length_at(bytes: &[u8]) -> Option<usize> {
    let n = i32::from_le_bytes(*bytes.first_chunk::<4>()?);
    usize::try_from(n).ok()
}

/// Size of a value of this type that starts `bytes`; `None` for an unknown type or a cut value.
#[inline]
pub(crate) fn value_size(kind: u8, bytes: &[u8]) -> Option<usize> {
    match SIZES[usize::from(kind)] {
        TEXT => length_at(bytes)?.checked_add(4),
        DOCUMENT => Some(length_at(bytes)?.max(5)),
        VARIES => varying_size(kind, bytes),
        size => Some(usize::from(size)),
    }
}

/// Marks types whose values begin with the length of what follows in [`SIZES`],
const TEXT: u8 = 0xFD;
/// those whose values begin with their own length,
const DOCUMENT: u8 = 0xFE;
/// and those of which more must be looked at.
const VARIES: u8 = 0xFF;

/// Sizes of values by type byte.
const SIZES: [u8; 256] = {
    let mut sizes = [VARIES; 256];
    sizes[0x01] = 8;
    sizes[0x02] = TEXT;
    sizes[0x03] = DOCUMENT;
    sizes[0x04] = DOCUMENT;
    sizes[0x06] = 0;
    sizes[0x07] = 12;
    sizes[0x08] = 1;
    sizes[0x09] = 8;
    sizes[0x0A] = 0;
    sizes[0x10] = 4;
    sizes[0x11] = 8;
    sizes[0x12] = 8;
    sizes[0x13] = 16;
    sizes
};

fn varying_size(kind: u8, bytes: &[u8]) -> Option<usize> {
    Some(match kind {
        0x0D | 0x0E => length_at(bytes)?.checked_add(4)?,
        0x0F => length_at(bytes)?.max(5),
        0x05 => length_at(bytes)?.checked_add(5)?,
        0x7F | 0xFF => 0,
        0x0B => {
            let pattern = memchr::memchr(0, bytes)? + 1;
            pattern + memchr::memchr(0, &bytes[pattern..])? + 1
        }
        0x0C => length_at(bytes)?.checked_add(16)?,
        _ => return None,
    })
}

fn text(data: &[u8]) -> &str {
    // 4 bytes of length, the text, a NUL.
    let bytes = data.get(4..data.len().saturating_sub(1)).unwrap_or_default();
    simdutf8::basic::from_utf8(bytes).unwrap_or_default()
}

fn cstr(data: &[u8]) -> (&str, &[u8]) {
    let end = memchr::memchr(0, data).unwrap_or(data.len());
    (std::str::from_utf8(&data[..end]).unwrap_or(""), data.get(end + 1..).unwrap_or_default())
}

fn array<const N: usize>(data: &[u8]) -> [u8; N] {
    data.first_chunk::<N>().copied().unwrap_or([0; N])
}

/// Decodes the value of one element. `data` is exactly the value's bytes.
pub(crate) fn decode(kind: u8, data: &[u8]) -> Value<'_> {
    match kind {
        0x01 => Value::Double(f64::from_le_bytes(array(data))),
        0x02 => Value::String(text(data)),
        0x03 => Value::Document(RawDoc::new(data)),
        0x04 => Value::Array(RawDoc::new(data)),
        0x05 => {
            let subtype = data.get(4).copied().unwrap_or(0);
            Value::Binary(Binary { subtype, bytes: data.get(5..).unwrap_or_default() })
        }
        0x06 => Value::Undefined,
        0x07 => Value::ObjectId(ObjectId(array(data))),
        0x08 => Value::Bool(data.first().is_some_and(|b| *b != 0)),
        0x09 => Value::DateTime(i64::from_le_bytes(array(data))),
        0x0B => {
            let (pattern, rest) = cstr(data);
            Value::Regex(Regex { pattern, options: cstr(rest).0 })
        }
        0x0C => {
            let at = data.len().saturating_sub(12);
            Value::DbPointer(DbPointer { namespace: text(&data[..at]), id: ObjectId(array(&data[at..])) })
        }
        0x0D => Value::JavaScript(text(data)),
        0x0E => Value::Symbol(text(data)),
        0x0F => {
            let code_end = 8 + length_at(data.get(4..).unwrap_or_default()).unwrap_or(0);
            match (data.get(4..code_end), data.get(code_end..)) {
                (Some(code), Some(scope)) => {
                    Value::CodeWithScope(CodeWithScope { code: text(code), scope: RawDoc::new(scope) })
                }
                _ => Value::Null,
            }
        }
        0x10 => Value::Int32(i32::from_le_bytes(array(data))),
        0x11 => Value::Timestamp(Timestamp(u64::from_le_bytes(array(data)))),
        0x12 => Value::Int64(i64::from_le_bytes(array(data))),
        0x13 => Value::Decimal128(Decimal128(array(data))),
        0x7F => Value::MaxKey,
        0xFF => Value::MinKey,
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DocBuf;

    /// Names of every length around a word's, of which some begin alike, and of which the last element leaves fewer bytes than a word.
    #[test]
    fn a_field_is_found_by_its_whole_name_and_the_first_of_equal_names() {
        let names =
            ["", "a", "ab", "abc", "abcdefg", "abcdefh", "abcdefgh", "abcdefghi", "abcdefghijklmnop", "b"];
        let long = "x".repeat(300);
        let mut document = DocBuf::new();
        for (n, name) in names.iter().copied().chain([long.as_str(), "abc"]).enumerate() {
            document.append(name, n as i32);
        }
        document.append("z", Value::Null);
        let raw = document.as_raw();
        let missing = ["abcd", "c", "abcdefgx", "abcdefghijklmnopq", "xx", "a\0\u{1}", "abcdefg\0", "zz"];
        for name in names.into_iter().chain([long.as_str(), "z"]).chain(missing) {
            let first = raw.iter().find(|element| element.key_bytes() == name.as_bytes());
            let found = raw.element(name);
            assert_eq!(found.map(|e| e.as_bytes()), first.map(|e| e.as_bytes()), "{name:?}");
            assert_eq!(found.is_some(), !missing.contains(&name), "{name:?}");
        }
    }

    #[test]
    fn bytes_that_were_cut_have_no_field_beyond_the_cut() {
        let document = crate::doc! { "first": "some text", "second": { "a": 1 }, "third": 3 };
        let elements = document.as_raw().iter().rest();
        for cut in 0..elements.len() {
            let found = find(&elements[..cut], b"third");
            assert!(found.is_none(), "{cut}");
            let walked = Iter::over(&elements[..cut]).find(|element| element.key() == "second");
            let found = find(&elements[..cut], b"second");
            assert_eq!(found.map(|e| e.as_bytes()), walked.map(|e| e.as_bytes()), "{cut}");
        }
    }
}
