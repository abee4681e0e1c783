//! Documents with another value at one path.

use sheaf_bson::{DocBuf, DocWriter, Element, RawDoc, Sink, Value};
use smallvec::SmallVec;

/// The document with another value at a path, which is created if it is absent; [`Value::Missing`] removes it.
pub(crate) fn rewrite(document: RawDoc<'_>, parts: &[Box<str>], value: Value<'_>) -> DocBuf {
    let mut bytes = Vec::with_capacity(document.len() + 32);
    rewrite_into(document, parts, value, &mut bytes);
    DocBuf::from_bytes(bytes)
}

/// Like [`rewrite`], in a buffer of the caller's.
pub(crate) fn rewrite_into(document: RawDoc<'_>, parts: &[Box<str>], value: Value<'_>, bytes: &mut Vec<u8>) {
    bytes.clear();
    let mut out = DocWriter::new(bytes);
    match parts {
        // A new field stands behind all others.
        [only] if document.element(only).is_none() => _ = out.append_all(document).append(only, value),
        _ => put(document, parts, value, out),
    }
}

/// Where a value stands in a document's bytes: for making documents that differ in it alone, of which each is three copies.
pub(crate) struct Slot {
    /// Where the documents that it is in begin, from the outermost on.
    inside: SmallVec<[usize; 4]>,
    /// Its type byte.
    kind: usize,
    start: usize,
    end: usize,
}

impl Slot {
    /// The value to which a path leads through documents alone.
    pub(crate) fn find(document: &[u8], parts: &[Box<str>]) -> Option<Slot> {
        let offset = |part: &[u8]| part.as_ptr().addr() - document.as_ptr().addr();
        let mut inside = SmallVec::from_slice(&[0]);
        let (last, above) = parts.split_last()?;
        let mut at = RawDoc::new(document);
        for part in above {
            at = at.get(part)?.as_doc()?;
            inside.push(offset(at.as_bytes()));
        }
        let element = at.element(last)?;
        let start = offset(element.data());
        let kind = offset(element.as_bytes());
        Some(Slot { inside, kind, start, end: start + element.data().len() })
    }

    /// Where the value begins.
    pub(crate) fn start(&self) -> usize {
        self.start
    }

    /// Where it ends.
    pub(crate) fn end(&self) -> usize {
        self.end
    }

    /// Makes the document in which this element's value stands here.
    pub(crate) fn fill(&self, document: &[u8], element: Element<'_>, made: &mut Vec<u8>) {
        let (kind, value) = (element.as_bytes()[0], element.data());
        made.clear();
        made.extend_from_slice(&document[..self.start]);
        made.extend_from_slice(value);
        made.extend_from_slice(&document[self.end..]);
        made[self.kind] = kind;
        let (less, more) = ((self.end - self.start) as i32, value.len() as i32);
        for start in &self.inside {
            let length = made[*start..].first_chunk_mut::<4>().expect("a document begins with its length");
            *length = (i32::from_le_bytes(*length) - less + more).to_le_bytes();
        }
    }
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

#[cfg(test)]
mod tests {
    use sheaf_bson::{array, doc};

    use super::*;

    #[test]
    fn a_slot_makes_what_rewriting_makes() {
        let values =
            doc! { "a": 1, "b": "text", "c": { "d": [1, 2] }, "e": Value::Null, "f": &array![], "g": true };
        let document = doc! {
            "x": 1, "a": { "y": 2, "b": { "c": [1, 2, 3], "c": "again", "d": 4 }, "z": 3 }, "c": [7], "": "no name", "a": 5
        };
        let mut made = Vec::new();
        for path in ["a.b.c", "c", "a.b", "a", "x", "", "a.y"] {
            let parts: Vec<Box<str>> = path.split('.').map(Box::from).collect();
            let slot = Slot::find(document.as_raw().as_bytes(), &parts).unwrap();
            for element in values.as_raw().iter() {
                slot.fill(document.as_raw().as_bytes(), element, &mut made);
                assert_eq!(
                    RawDoc::new(&made),
                    rewrite(document.as_raw(), &parts, element.value()).as_raw(),
                    "{path}"
                );
            }
        }
        for path in ["b", "a.c", "c.0", "x.y"] {
            let parts: Vec<Box<str>> = path.split('.').map(Box::from).collect();
            assert!(Slot::find(document.as_raw().as_bytes(), &parts).is_none(), "{path}");
        }
    }
}
