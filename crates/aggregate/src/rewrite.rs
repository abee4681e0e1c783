//! Documents with another value at one path.

use sheaf_bson::{DocBuf, DocWriter, RawDoc, Sink, Value};

/// The document with another value at a path, which is created if it is absent; [`Value::Missing`] removes it.
pub(crate) fn rewrite(document: RawDoc<'_>, parts: &[Box<str>], value: Value<'_>) -> DocBuf {
    let mut bytes = Vec::with_capacity(document.len() + 32);
    rewrite_into(document, parts, value, &mut bytes);
    DocBuf::from_bytes(bytes)
}

/// Like [`rewrite`], in a buffer of the caller's.
pub(crate) fn rewrite_into(document: RawDoc<'_>, parts: &[Box<str>], value: Value<'_>, bytes: &mut Vec<u8>) {
    bytes.clear();
    put(document, parts, value, DocWriter::new(bytes));
}

fn put<S: Sink>(document: RawDoc<'_>, parts: &[Box<str>], value: Value<'_>, mut out: DocWriter<'_, S>) {
    let Some((part, below)) = parts.split_first() else { return };
    let mut found = false;
    for element in document.iter() {
        if found || element.key_bytes() != part.as_bytes() {
            out.append_element(element);
            continue;
        }
        found = true;
        if below.is_empty() {
            out.append(part, value);
        } else {
            let inner = element.value().as_doc().unwrap_or(RawDoc::EMPTY);
            put(inner, below, value, out.document(part));
        }
    }
    if found || value.is_missing() {
        return;
    }
    if below.is_empty() {
        out.append(part, value);
    } else {
        put(RawDoc::EMPTY, below, value, out.document(part));
    }
}
