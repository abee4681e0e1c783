//! Documents and arrays on their way into a column: a row of values for each of their fields, which stand interleaved behind a reference
//! document that has all of them.

use sheaf_bson::{MAX_DEPTH, RawDoc, is_deeper};

use super::stream::Stream;
use super::value::kind;

/// The control byte of documents whose fields, also those of arrays in them, are rows.
pub(super) const DOCUMENTS: u8 = 0xF1;
/// The same of arrays.
pub(super) const ARRAYS: u8 = 0xF2;

/// Deeper documents are literals.
const MAX_INNER_DEPTH: usize = MAX_DEPTH / 2 - 1;

/// Most fields of documents that are rows, those that are documents too: more are literals, for a row takes much more memory than its
/// values, and readers take no more than so many.
const MAX_FIELDS: usize = 1000;

/// Documents of one shape.
#[derive(Clone, Debug)]
pub(super) struct Objects {
    kind: u8,
    root: Vec<Field>,
    count: u32,
    fields: usize,
    /// Whether an empty document lies in the reference: it is in each of the documents then.
    has_empty: bool,
}

/// A field of the reference.
#[derive(Clone, Debug)]
struct Field {
    name: Vec<u8>,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    /// Boxed, for trees are small and rows are not.
    Row(Box<Row>),
    Inner(u8, Vec<Field>),
}

#[derive(Clone, Debug)]
struct Row {
    /// The reference's value.
    kind: u8,
    first: Vec<u8>,
    stream: Stream,
}

fn memory(fields: &[Field]) -> usize {
    let below = |field: &Field| match &field.what {
        What::Row(row) => size_of::<Row>() + row.first.capacity() + row.stream.memory(),
        What::Inner(_, inner) => memory(inner),
    };
    fields.iter().map(|field| size_of::<Field>() + field.name.capacity() + below(field)).sum()
}

impl Objects {
    /// Bytes of memory beside itself.
    pub(super) fn memory(&self) -> usize {
        memory(&self.root)
    }

    /// Begins with a document; nothing if it has no values.
    pub(super) fn new(kind: u8, document: RawDoc<'_>) -> Option<Objects> {
        if !has_value(document) || is_deeper(document, MAX_INNER_DEPTH) || count(document) > MAX_FIELDS {
            return None;
        }
        let has_empty = has_empty(document);
        let mut objects = Objects { kind, root: Vec::new(), count: 1, fields: 0, has_empty };
        objects.fields = take(&mut objects.root, document, 0);
        Some(objects)
    }

    /// Adds a document; false, without a change, if it has another shape.
    pub(super) fn add(&mut self, kind: u8, document: RawDoc<'_>) -> bool {
        // At worst none of its fields is there yet.
        let is_like =
            kind == self.kind && self.fields + count(document) <= 2 * MAX_FIELDS && has_value(document);
        if !is_like || !fits(&self.root, document) || is_deeper(document, MAX_INNER_DEPTH) {
            return false;
        }
        self.fields += take(&mut self.root, document, self.count);
        self.count += 1;
        skip_others(&mut self.root, self.count);
        true
    }

    /// Adds a missing document; false if the shape does not allow it.
    pub(super) fn skip(&mut self) -> bool {
        if self.has_empty {
            return false;
        }
        self.count += 1;
        skip_others(&mut self.root, self.count);
        true
    }

    /// Writes them.
    pub(super) fn finish_into(mut self, out: &mut Vec<u8>) {
        out.push(if self.kind == kind::ARRAY { ARRAYS } else { DOCUMENTS });
        write_reference(&self.root, out);
        let mut rows = Vec::new();
        gather(&mut self.root, &mut rows);
        let mut pieces: Vec<(u32, usize, &[u8])> = Vec::new();
        for (at, stream) in rows.iter().enumerate() {
            let (bytes, begins) = stream.written();
            for (piece, begin) in begins.iter().enumerate() {
                let end = begins.get(piece + 1).map_or(bytes.len(), |next| next.at);
                pieces.push((begin.values, at, &bytes[begin.at..end]));
            }
        }
        // A reader comes to them in this order.
        pieces.sort_by_key(|(values, row, _)| (*values, *row));
        for (_, _, piece) in pieces {
            out.extend_from_slice(piece);
        }
        out.push(kind::NONE);
    }
}

fn inner(kind: u8, data: &[u8]) -> Option<RawDoc<'_>> {
    matches!(kind, kind::DOCUMENT | kind::ARRAY).then(|| RawDoc::new(data))
}

/// Whether a document has a value that is no document.
fn has_value(document: RawDoc<'_>) -> bool {
    document.iter().any(|field| inner(field.as_bytes()[0], field.data()).is_none_or(has_value))
}

/// How many fields a document and those in it have.
fn count(document: RawDoc<'_>) -> usize {
    document.iter().map(|field| 1 + inner(field.as_bytes()[0], field.data()).map_or(0, count)).sum()
}

fn has_empty(document: RawDoc<'_>) -> bool {
    let is_empty = |inner: RawDoc<'_>| inner.is_empty() || has_empty(inner);
    document.iter().any(|field| inner(field.as_bytes()[0], field.data()).is_some_and(is_empty))
}

/// Whether a document's values can be put into these rows, and nothing but these comes out again. Further rows may be needed.
fn fits(fields: &[Field], document: RawDoc<'_>) -> bool {
    let mut at = 0;
    for element in document.iter() {
        let kind = element.as_bytes()[0];
        let nested = inner(kind, element.data());
        let is_it = |field: &Field| field.name == element.key_bytes();
        // It is mostly the next one.
        let behind = fields[at..].iter().position(is_it).map(|found| at + found);
        match behind.or_else(|| fields[..at].iter().position(is_it)) {
            Some(found) if found >= at && !always_there(&fields[at..found]) => {
                if !fits_field(&fields[found].what, kind, nested) {
                    return false;
                }
                at = found + 1;
            }
            Some(_) => return false,
            // A new one: an empty document in it would come out of the others too.
            None if nested.is_some_and(|nested| nested.is_empty() || has_empty(nested)) => return false,
            None => {}
        }
    }
    !always_there(&fields[at..])
}

fn fits_field(field: &What, kind: u8, nested: Option<RawDoc<'_>>) -> bool {
    match (field, nested) {
        (What::Row(_), nested) => nested.is_none(),
        (What::Inner(..), None) => false,
        (What::Inner(own, fields), Some(nested)) => {
            *own == kind && fields.is_empty() == nested.is_empty() && fits(fields, nested)
        }
    }
}

/// Whether something of these fields is in each document, for an empty document lies in them.
fn always_there(fields: &[Field]) -> bool {
    fields.iter().any(|field| match &field.what {
        What::Row(_) => false,
        What::Inner(_, fields) => fields.is_empty() || always_there(fields),
    })
}

/// Adds a document's values to their rows, which have `before` values, and makes those that are not there; how many.
fn take(fields: &mut Vec<Field>, document: RawDoc<'_>, before: u32) -> usize {
    let (mut at, mut made) = (0, 0);
    for element in document.iter() {
        let (kind, data) = (element.as_bytes()[0], element.data());
        let found = fields[at..].iter().position(|field| field.name == element.key_bytes());
        at = match found {
            Some(found) => at + found,
            None => {
                let what = match inner(kind, data) {
                    Some(_) => What::Inner(kind, Vec::new()),
                    None => What::Row(Box::new(Row::behind(kind, data, before))),
                };
                made += 1;
                fields.insert(at, Field { name: element.key_bytes().to_vec(), what });
                at
            }
        };
        match (&mut fields[at].what, inner(kind, data)) {
            (What::Inner(_, fields), Some(nested)) => made += take(fields, nested, before),
            (What::Row(row), _) => row.stream.append(kind, data),
            (What::Inner(..), None) => {}
        }
        at += 1;
    }
    made
}

/// Rows that have fewer values than this miss one.
fn skip_others(fields: &mut [Field], count: u32) {
    for field in fields {
        match &mut field.what {
            What::Row(row) if row.stream.count() < count => row.stream.skip(),
            What::Row(_) => {}
            What::Inner(_, fields) => skip_others(fields, count),
        }
    }
}

/// The rows in the reference's order, with nothing held back.
fn gather<'f>(fields: &'f mut [Field], rows: &mut Vec<&'f Stream>) {
    for field in fields {
        match &mut field.what {
            What::Row(row) => {
                row.stream.flush();
                rows.push(&row.stream);
            }
            What::Inner(_, fields) => gather(fields, rows),
        }
    }
}

fn write_reference(fields: &[Field], out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    for field in fields {
        let kind = match &field.what {
            What::Row(row) => row.kind,
            What::Inner(kind, _) => *kind,
        };
        out.push(kind);
        out.extend_from_slice(&field.name);
        out.push(0);
        match &field.what {
            What::Row(row) => out.extend_from_slice(&row.first),
            What::Inner(_, fields) => write_reference(fields, out),
        }
    }
    out.push(0);
    let len = (out.len() - start) as i32;
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
}

impl Row {
    /// A row that begins with so many missing values.
    fn behind(kind: u8, data: &[u8], missing: u32) -> Row {
        let mut stream = Stream::behind(kind, data);
        (0..missing).for_each(|_| stream.skip());
        Row { kind, first: data.to_vec(), stream }
    }
}
