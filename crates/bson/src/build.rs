//! Building documents: straight into the buffer in which they will be sent, stored or kept.

use bumpalo::Bump;

use crate::raw::{Element, RawDoc};
use crate::value::{Type, Value};

/// A growing byte buffer: a `Vec<u8>`, or one in an arena.
pub trait Sink {
    /// Appends bytes.
    fn put(&mut self, bytes: &[u8]);
    /// What has been written.
    fn written(&mut self) -> &mut [u8];
    /// Forgets everything from `len` on.
    fn truncate(&mut self, len: usize);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
    fn written(&mut self) -> &mut [u8] {
        self
    }
    fn truncate(&mut self, len: usize) {
        Vec::truncate(self, len);
    }
}

impl<const N: usize> Sink for smallvec::SmallVec<[u8; N]> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
    fn written(&mut self) -> &mut [u8] {
        self
    }
    fn truncate(&mut self, len: usize) {
        smallvec::SmallVec::truncate(self, len);
    }
}

impl Sink for bumpalo::collections::Vec<'_, u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice_copy(bytes);
    }
    fn written(&mut self) -> &mut [u8] {
        self
    }
    fn truncate(&mut self, len: usize) {
        bumpalo::collections::Vec::truncate(self, len);
    }
}

/// Bytes of the longest value of a fixed length.
const LONGEST_FIXED: usize = 16;

/// Bytes of a name up to which an element's beginning is put together before it is written: each [`Sink::put`] looks for room and copies.
const SHORT_NAME: usize = 30;

/// The bytes of a value whose type has a fixed length, and that length.
#[inline]
fn fixed_bytes(value: &Value<'_>) -> Option<([u8; LONGEST_FIXED], usize)> {
    let mut bytes = [0; LONGEST_FIXED];
    let length = match value {
        Value::MinKey | Value::MaxKey | Value::Null | Value::Undefined => 0,
        Value::Int32(n) => {
            bytes[..4].copy_from_slice(&n.to_le_bytes());
            4
        }
        Value::Int64(n) | Value::DateTime(n) => {
            bytes[..8].copy_from_slice(&n.to_le_bytes());
            8
        }
        Value::Double(n) => {
            bytes[..8].copy_from_slice(&n.to_le_bytes());
            8
        }
        Value::Timestamp(t) => {
            bytes[..8].copy_from_slice(&t.0.to_le_bytes());
            8
        }
        Value::ObjectId(id) => {
            bytes[..12].copy_from_slice(&id.0);
            12
        }
        Value::Bool(b) => {
            bytes[0] = u8::from(*b);
            1
        }
        Value::Decimal128(n) => {
            bytes = n.0;
            16
        }
        _ => return None,
    };
    Some((bytes, length))
}

/// Writes an element's type and name, and the first `length` of these bytes, at once.
#[inline]
fn put_head<S: Sink>(out: &mut S, kind: u8, key: &[u8], then: [u8; LONGEST_FIXED], length: usize) {
    debug_assert!(!key.contains(&0), "a field name with a NUL");
    if key.len() <= SHORT_NAME {
        let mut bytes = [0; SHORT_NAME + LONGEST_FIXED + 2];
        bytes[0] = kind;
        bytes[1..][..key.len()].copy_from_slice(key);
        bytes[key.len() + 2..][..LONGEST_FIXED].copy_from_slice(&then);
        out.put(&bytes[..key.len() + 2 + length]);
    } else {
        out.put(&[kind]);
        out.put(key);
        out.put(&[0]);
        out.put(&then[..length]);
    }
}

/// Writes the value's bytes (not its type or name).
pub(crate) fn put_value<S: Sink>(out: &mut S, value: Value<'_>) {
    match value {
        Value::Missing | Value::MinKey | Value::MaxKey | Value::Null | Value::Undefined => {}
        Value::Int32(n) => out.put(&n.to_le_bytes()),
        Value::Int64(n) | Value::DateTime(n) => out.put(&n.to_le_bytes()),
        Value::Double(n) => out.put(&n.to_le_bytes()),
        Value::Decimal128(n) => out.put(&n.0),
        Value::String(text) | Value::Symbol(text) | Value::JavaScript(text) => put_text(out, text),
        Value::Document(doc) | Value::Array(doc) => out.put(doc.as_bytes()),
        Value::Binary(binary) => {
            out.put(&(binary.bytes.len() as i32).to_le_bytes());
            out.put(&[binary.subtype]);
            out.put(binary.bytes);
        }
        Value::ObjectId(id) => out.put(&id.0),
        Value::Bool(b) => out.put(&[u8::from(b)]),
        Value::Timestamp(t) => out.put(&t.0.to_le_bytes()),
        Value::Regex(regex) => {
            put_cstr(out, regex.pattern);
            put_cstr(out, regex.options);
        }
        Value::DbPointer(pointer) => {
            put_text(out, pointer.namespace);
            out.put(&pointer.id.0);
        }
        Value::CodeWithScope(code) => {
            let len = 4 + 4 + code.code.len() + 1 + code.scope.len();
            out.put(&(len as i32).to_le_bytes());
            put_text(out, code.code);
            out.put(code.scope.as_bytes());
        }
    }
}

fn put_text<S: Sink>(out: &mut S, text: &str) {
    out.put(&(text.len() as i32 + 1).to_le_bytes());
    out.put(text.as_bytes());
    out.put(&[0]);
}

fn put_cstr<S: Sink>(out: &mut S, text: &str) {
    out.put(text.as_bytes());
    out.put(&[0]);
}

/// Writes one document into a [`Sink`]; the length and the closing NUL are written when it goes
/// out of scope.
pub struct DocWriter<'s, S: Sink> {
    out: &'s mut S,
    start: usize,
}

impl<'s, S: Sink> DocWriter<'s, S> {
    /// Starts a document at the end of `out`.
    pub fn new(out: &'s mut S) -> Self {
        let start = out.written().len();
        out.put(&[0; 4]);
        DocWriter { out, start }
    }

    /// Continues the document that starts at `start` of `out` and lacks only its closing NUL: for
    /// replies that several functions write to in turn.
    pub fn resume(out: &'s mut S, start: usize) -> Self {
        DocWriter { out, start }
    }

    /// Appends a field; [`Value::Missing`] appends nothing. `key` must hold no NUL.
    pub fn append<'v>(&mut self, key: &str, value: impl Into<Value<'v>>) -> &mut Self {
        let value = value.into();
        if !value.is_missing() {
            self.put(key.as_bytes(), value);
        }
        self
    }

    /// Appends a field copied from another document.
    pub fn append_element(&mut self, element: Element<'_>) -> &mut Self {
        self.out.put(element.as_bytes());
        self
    }

    /// Appends another document's field under a name of its own, without decoding it.
    pub fn append_renamed(&mut self, key: &str, element: Element<'_>) -> &mut Self {
        self.head(element.kind() as u8, key.as_bytes());
        self.out.put(element.data());
        self
    }

    /// Appends a field whose type byte and bytes are well-formed BSON.
    pub fn append_raw(&mut self, key: &str, kind: u8, data: &[u8]) -> &mut Self {
        self.head(kind, key.as_bytes());
        self.out.put(data);
        self
    }

    /// Appends all fields of a document.
    pub fn append_all(&mut self, doc: RawDoc<'_>) -> &mut Self {
        self.out.put(doc.iter().rest());
        self
    }

    /// Appends elements that are already BSON: what [`Element::as_bytes`] or `Iter::rest` gave.
    pub fn append_raw_elements(&mut self, elements: &[u8]) -> &mut Self {
        self.out.put(elements);
        self
    }

    /// Appends a field whose bytes and type `fill` gives: nothing for [`Type::Missing`] or `None`.
    pub(crate) fn append_with(&mut self, key: &str, fill: impl FnOnce(&mut S) -> Option<Type>) -> Option<()> {
        let start = self.out.written().len();
        self.head(0, key.as_bytes());
        match fill(self.out) {
            Some(kind) if kind != Type::Missing => {
                self.out.written()[start] = kind as u8;
                Some(())
            }
            outcome => {
                self.out.truncate(start);
                outcome.map(|_| ())
            }
        }
    }

    /// Starts an embedded document.
    pub fn document(&mut self, key: &str) -> DocWriter<'_, S> {
        self.embedded(0x03, key.as_bytes())
    }

    /// Starts an embedded document whose name is made of two parts.
    pub fn document_prefixed(&mut self, prefix: &str, key: &str) -> DocWriter<'_, S> {
        self.out.put(&[0x03]);
        self.out.put(prefix.as_bytes());
        self.out.put(key.as_bytes());
        self.out.put(&[0]);
        DocWriter::new(self.out)
    }

    /// Starts an array.
    pub fn array(&mut self, key: &str) -> ArrayWriter<'_, S> {
        ArrayWriter { doc: self.embedded(0x04, key.as_bytes()), next: 0 }
    }

    /// Bytes written so far for this document.
    pub fn size(&mut self) -> usize {
        self.out.written().len() - self.start
    }

    fn head(&mut self, kind: u8, key: &[u8]) {
        put_head(self.out, kind, key, [0; LONGEST_FIXED], 0);
    }

    /// Appends a field that is there.
    fn put(&mut self, key: &[u8], value: Value<'_>) {
        let kind = value.kind() as u8;
        if let Some((bytes, length)) = fixed_bytes(&value) {
            put_head(self.out, kind, key, bytes, length);
        } else if let Value::String(text) = value {
            let mut length = [0; LONGEST_FIXED];
            length[..4].copy_from_slice(&(text.len() as i32 + 1).to_le_bytes());
            put_head(self.out, kind, key, length, 4);
            put_cstr(self.out, text);
        } else {
            self.head(kind, key);
            put_value(self.out, value);
        }
    }

    /// Begins a document or an array: its length is written when it goes out of scope.
    fn embedded(&mut self, kind: u8, key: &[u8]) -> DocWriter<'_, S> {
        put_head(self.out, kind, key, [0; LONGEST_FIXED], 4);
        let start = self.out.written().len() - 4;
        DocWriter { out: self.out, start }
    }
}

impl<S: Sink> Drop for DocWriter<'_, S> {
    fn drop(&mut self) {
        self.out.put(&[0]);
        let written = self.out.written();
        let len = (written.len() - self.start) as i32;
        written[self.start..self.start + 4].copy_from_slice(&len.to_le_bytes());
    }
}

/// Writes one array into a [`Sink`], numbering its elements.
pub struct ArrayWriter<'s, S: Sink> {
    doc: DocWriter<'s, S>,
    next: u32,
}

impl<'s, S: Sink> ArrayWriter<'s, S> {
    /// Starts an array at the end of `out`.
    pub fn new(out: &'s mut S) -> Self {
        ArrayWriter { doc: DocWriter::new(out), next: 0 }
    }

    /// Appends a value; [`Value::Missing`] becomes null, as MongoDB has it in arrays.
    pub fn push<'v>(&mut self, value: impl Into<Value<'v>>) -> &mut Self {
        let value = value.into();
        let value = if value.is_missing() { Value::Null } else { value };
        let mut digits = [0u8; 10];
        self.doc.put(decimal_digits(self.next, &mut digits), value);
        self.next += 1;
        self
    }

    /// Appends another array's or document's value without decoding it.
    pub fn push_element(&mut self, element: Element<'_>) -> &mut Self {
        self.head(element.kind() as u8);
        self.doc.out.put(element.data());
        self
    }

    /// Appends a value given as its type and bytes.
    pub(crate) fn push_raw(&mut self, kind: Type, data: &[u8]) {
        self.head(kind as u8);
        self.doc.out.put(data);
    }

    /// Appends a document given as bytes.
    pub fn push_raw_document(&mut self, bytes: &[u8]) -> &mut Self {
        self.head(0x03);
        self.doc.out.put(bytes);
        self
    }

    /// Starts an embedded document as the next element.
    pub fn document(&mut self) -> DocWriter<'_, S> {
        self.embedded(0x03)
    }

    /// Starts an embedded array as the next element.
    pub fn array(&mut self) -> ArrayWriter<'_, S> {
        ArrayWriter { doc: self.embedded(0x04), next: 0 }
    }

    /// Number of elements so far.
    pub fn count(&self) -> usize {
        self.next as usize
    }

    /// Bytes written so far for this array.
    pub fn size(&mut self) -> usize {
        self.doc.size()
    }

    fn head(&mut self, kind: u8) {
        let mut digits = [0u8; 10];
        let key = decimal_digits(self.next, &mut digits);
        self.doc.head(kind, key);
        self.next += 1;
    }

    fn embedded(&mut self, kind: u8) -> DocWriter<'_, S> {
        let mut digits = [0u8; 10];
        let key = decimal_digits(self.next, &mut digits);
        self.next += 1;
        self.doc.embedded(kind, key)
    }
}

/// The decimal digits of `n`: array keys are written by the million, so this avoids `format!`.
pub fn decimal_digits(mut n: u32, buffer: &mut [u8; 10]) -> &[u8] {
    let mut at = buffer.len();
    loop {
        at -= 1;
        buffer[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            return &buffer[at..];
        }
    }
}

/// An owned, always complete document.
#[derive(Clone, PartialEq)]
pub struct DocBuf(Vec<u8>);

impl DocBuf {
    /// `{}`.
    pub fn new() -> Self {
        DocBuf(crate::raw::EMPTY_DOCUMENT.to_vec())
    }

    /// Wraps bytes that are a complete, checked document.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        debug_assert_eq!(bytes.len(), i32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize);
        DocBuf(bytes)
    }

    /// Builds a document with a writer.
    pub fn build(fill: impl FnOnce(&mut DocWriter<'_, Vec<u8>>)) -> Self {
        let mut bytes = Vec::with_capacity(128);
        fill(&mut DocWriter::new(&mut bytes));
        DocBuf(bytes)
    }

    /// Appends a field.
    pub fn append<'v>(&mut self, key: &str, value: impl Into<Value<'v>>) -> &mut Self {
        self.edit(|writer| {
            writer.append(key, value);
        })
    }

    /// Appends a field and returns the document, for chains.
    #[must_use]
    pub fn with<'v>(mut self, key: &str, value: impl Into<Value<'v>>) -> Self {
        self.append(key, value);
        self
    }

    /// Continues the document with a writer.
    pub fn edit(&mut self, fill: impl FnOnce(&mut DocWriter<'_, Vec<u8>>)) -> &mut Self {
        self.0.pop();
        fill(&mut DocWriter { out: &mut self.0, start: 0 });
        self
    }

    /// A borrowed view.
    pub fn as_raw(&self) -> RawDoc<'_> {
        RawDoc::new(&self.0)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, owned.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

impl Default for DocBuf {
    fn default() -> Self {
        DocBuf::new()
    }
}

impl std::fmt::Debug for DocBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_raw().fmt(f)
    }
}

impl From<RawDoc<'_>> for DocBuf {
    fn from(doc: RawDoc<'_>) -> Self {
        DocBuf(doc.as_bytes().to_vec())
    }
}

/// An owned, always complete array.
#[derive(Clone, PartialEq)]
pub struct ArrayBuf(Vec<u8>);

impl ArrayBuf {
    /// `[]`.
    pub fn new() -> Self {
        ArrayBuf(crate::raw::EMPTY_DOCUMENT.to_vec())
    }

    /// Builds an array with a writer.
    pub fn build(fill: impl FnOnce(&mut ArrayWriter<'_, Vec<u8>>)) -> Self {
        let mut bytes = Vec::with_capacity(128);
        fill(&mut ArrayWriter::new(&mut bytes));
        ArrayBuf(bytes)
    }

    /// An array of these values.
    pub fn of<'v, V: Into<Value<'v>>>(values: impl IntoIterator<Item = V>) -> Self {
        Self::build(|writer| {
            for value in values {
                writer.push(value);
            }
        })
    }

    /// A borrowed view.
    pub fn as_raw(&self) -> RawDoc<'_> {
        RawDoc::new(&self.0)
    }

    /// The bytes, owned.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

impl Default for ArrayBuf {
    fn default() -> Self {
        ArrayBuf::new()
    }
}

impl std::fmt::Debug for ArrayBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.as_raw().values()).finish()
    }
}

/// Builds a document in an arena, for computed values that live as long as the arena.
pub fn document_in<'a>(
    arena: &'a Bump,
    fill: impl FnOnce(&mut DocWriter<'_, bumpalo::collections::Vec<'a, u8>>),
) -> RawDoc<'a> {
    let mut bytes = bumpalo::collections::Vec::with_capacity_in(64, arena);
    fill(&mut DocWriter::new(&mut bytes));
    RawDoc::new(bytes.into_bump_slice())
}

/// Builds an array in an arena.
pub fn array_in<'a>(
    arena: &'a Bump,
    fill: impl FnOnce(&mut ArrayWriter<'_, bumpalo::collections::Vec<'a, u8>>),
) -> RawDoc<'a> {
    let mut bytes = bumpalo::collections::Vec::with_capacity_in(64, arena);
    fill(&mut ArrayWriter::new(&mut bytes));
    RawDoc::new(bytes.into_bump_slice())
}

/// A [`DocBuf`] literal: `doc! { "ok": 1.0, "cursor": { "id": 0i64 }, "tags": ["a", "b"] }`.
/// Values are anything that turns into a [`Value`]; braces and brackets nest.
///
/// ```
/// use sheaf_bson::{Value, doc};
///
/// let plant = doc! { "name": "rye", "grams": 38, "tags": ["cereal", { "since": 1756 }] };
/// // Reading borrows from the bytes; nothing is decoded ahead.
/// assert!(matches!(plant.as_raw().get("grams"), Some(Value::Int32(38))));
/// assert!(plant.as_raw().get("colour").is_none());
/// ```
#[macro_export]
macro_rules! doc {
    () => { $crate::DocBuf::new() };
    ($($body:tt)+) => { $crate::DocBuf::build(|_writer| { $crate::doc_fields!(_writer, $($body)+); }) };
}

/// An [`ArrayBuf`] literal, with the same grammar as [`doc!`].
#[macro_export]
macro_rules! array {
    () => { $crate::ArrayBuf::new() };
    ($($body:tt)+) => { $crate::ArrayBuf::build(|_writer| { $crate::array_items!(_writer, $($body)+); }) };
}

/// The inside of [`doc!`].
#[doc(hidden)]
#[macro_export]
macro_rules! doc_fields {
    ($w:ident,) => {};
    ($w:ident, $key:tt : { $($inner:tt)* } $(, $($rest:tt)*)?) => {
        { #[allow(unused_mut, unused_variables)] let mut inner = $w.document($key); $crate::doc_fields!(inner, $($inner)*); }
        $($crate::doc_fields!($w, $($rest)*);)?
    };
    ($w:ident, $key:tt : [ $($inner:tt)* ] $(, $($rest:tt)*)?) => {
        { #[allow(unused_mut, unused_variables)] let mut inner = $w.array($key); $crate::array_items!(inner, $($inner)*); }
        $($crate::doc_fields!($w, $($rest)*);)?
    };
    ($w:ident, $key:tt : $value:expr $(, $($rest:tt)*)?) => {
        $w.append($key, $value);
        $($crate::doc_fields!($w, $($rest)*);)?
    };
}

/// The inside of [`array!`].
#[doc(hidden)]
#[macro_export]
macro_rules! array_items {
    ($w:ident,) => {};
    ($w:ident, { $($inner:tt)* } $(, $($rest:tt)*)?) => {
        { #[allow(unused_mut, unused_variables)] let mut inner = $w.document(); $crate::doc_fields!(inner, $($inner)*); }
        $($crate::array_items!($w, $($rest)*);)?
    };
    ($w:ident, [ $($inner:tt)* ] $(, $($rest:tt)*)?) => {
        { #[allow(unused_mut, unused_variables)] let mut inner = $w.array(); $crate::array_items!(inner, $($inner)*); }
        $($crate::array_items!($w, $($rest)*);)?
    };
    ($w:ident, $value:expr $(, $($rest:tt)*)?) => {
        $w.push($value);
        $($crate::array_items!($w, $($rest)*);)?
    };
}
