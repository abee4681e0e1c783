//! Which keys a document has in an index.
//!
//! The rules are MongoDB's: a field that is absent reads as null; an array on the path gives one key per
//! element; only one array may be on the paths of a compound index (others must go through the same
//! one); an empty array reads as undefined where the path ends in it, and as null where it goes on; a
//! number in the path is an array position or a field name, but not both.

use std::cmp::Ordering;

use sheaf_bson::key::{TypeBits, encode};
use sheaf_bson::{RawDoc, Type, Value, hashed_index_value};
use sheaf_errors::{Code, Result, bail};
use sheaf_meter::Held;
use smallvec::SmallVec;

use super::{Index, IndexKind};

/// Keys that are sorted without a look at whether to go on.
const SORTED_AT_ONCE: usize = 2048;

/// What making a key costs, as the meter counts.
const MAKE: u32 = 4;

/// Keys of one document, flat in one buffer; kept and cleared, so that writing many documents allocates little.
#[derive(Default)]
pub(crate) struct KeySet {
    bytes: Vec<u8>,
    /// `(start, end of key, end of type bits)`.
    keys: Vec<(usize, usize, usize)>,
    /// Per indexed field, the positions of the path components that were arrays, as bits.
    pub arrays: SmallVec<[u64; 4]>,
    bits: TypeBits,
    /// What is taken from the operation's memory for a set that is large: each key of an array's elements has the other
    /// fields of the index too, or the whole path, which can be megabytes.
    held: Held,
}

/// Sets below this are not counted, and how much is taken at a time.
const COUNTED_BYTES: u64 = 1 << 20;

impl KeySet {
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.keys.clear();
        self.arrays.clear();
        if self.held.bytes() > 0 {
            self.held = Held::default();
        }
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn get(&self, at: usize) -> (&[u8], &[u8]) {
        let (start, key_end, end) = self.keys[at];
        (&self.bytes[start..key_end], &self.bytes[key_end..end])
    }

    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (0..self.keys.len()).map(|at| self.get(at))
    }

    /// Whether this (sorted) set holds the key.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.keys.binary_search_by(|(start, end, _)| self.bytes[*start..*end].cmp(key)).is_ok()
    }

    /// The type bits with which this (sorted) set holds the key.
    pub fn type_bits(&self, key: &[u8]) -> Option<&[u8]> {
        let found = self.keys.binary_search_by(|(start, end, _)| self.bytes[*start..*end].cmp(key));
        found.ok().map(|at| self.get(at).1)
    }

    /// Whether this (sorted) set holds the key with the same type bits.
    pub fn contains_exactly(&self, key: &[u8], bits: &[u8]) -> bool {
        self.type_bits(key) == Some(bits)
    }

    /// Calls `each` with the keys that only one of two (sorted) sets has.
    pub fn each_difference(&self, other: &KeySet, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let (mut left, mut right) = (self.iter().peekable(), other.iter().peekable());
        loop {
            let order = match (left.peek(), right.peek()) {
                (None, None) => return Ok(()),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((left, _)), Some((right, _))) => left.cmp(right),
            };
            let one = if order.is_gt() { right.next() } else { left.next() };
            match one {
                Some((key, _)) if order.is_ne() => each(key)?,
                _ => _ = right.next(),
            }
        }
    }

    /// Bytes that it takes, empty or not.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity() + self.keys.capacity() * std::mem::size_of::<(usize, usize, usize)>()
    }

    fn push(&mut self, fill: impl FnOnce(&mut Vec<u8>, &mut TypeBits)) -> Result<()> {
        let start = self.bytes.len();
        self.bits.clear();
        fill(&mut self.bytes, &mut self.bits);
        let key_end = self.bytes.len();
        debug_assert!(key_end > start, "a key has no bytes");
        self.bytes.extend_from_slice(self.bits.as_bytes());
        self.keys.push((start, key_end, self.bytes.len()));
        let used = (self.bytes.len() + self.keys.len() * std::mem::size_of::<(usize, usize, usize)>()) as u64;
        if used > self.held.bytes() + COUNTED_BYTES { self.charge(used) } else { Ok(()) }
    }

    #[cold]
    fn charge(&mut self, used: u64) -> Result<()> {
        let more = used + COUNTED_BYTES - self.held.bytes();
        if self.held.bytes() == 0 {
            // With the account of this operation, if there is one.
            self.held = sheaf_meter::reserve(0)?;
        }
        self.held.grow(more)
    }

    /// Sorts, and leaves one of each key: the first that was made.
    fn sort(&mut self) -> Result<()> {
        let bytes = &self.bytes;
        let key = |(start, end, _): &(usize, usize, usize)| &bytes[*start..*end];
        if self.keys.is_sorted_by(|a, b| key(a) < key(b)) {
            return Ok(());
        }
        // In pieces, between which the operation can be ended: a document can have a million keys.
        for run in self.keys.chunks_mut(SORTED_AT_ONCE) {
            sheaf_meter::tick(run.len() as u32)?;
            run.sort_by(|a, b| key(a).cmp(key(b)));
        }
        let mut width = SORTED_AT_ONCE;
        let mut merged = Vec::new();
        while width < self.keys.len() {
            merged.reserve(self.keys.len());
            for pair in self.keys.chunks(2 * width) {
                let (mut left, mut right) = pair.split_at(width.min(pair.len()));
                while let (Some(a), Some(b)) = (left.first(), right.first()) {
                    sheaf_meter::tick(1)?;
                    if key(b) < key(a) {
                        merged.push(*b);
                        right = &right[1..];
                    } else {
                        merged.push(*a);
                        left = &left[1..];
                    }
                }
                merged.extend_from_slice(left);
                merged.extend_from_slice(right);
            }
            std::mem::swap(&mut self.keys, &mut merged);
            merged.clear();
            width *= 2;
        }
        self.keys.dedup_by(|a, b| key(a) == key(b));
        debug_assert!(self.keys.is_sorted_by(|a, b| key(a) < key(b)), "a document's keys are sorted");
        Ok(())
    }
}

/// What is known of one field while its path is followed.
#[derive(Clone, Copy)]
struct Field<'d, 'i> {
    at: At<'d, 'i>,
    /// Which component of the whole path comes next.
    component: u32,
}

#[derive(Clone, Copy)]
enum At<'d, 'i> {
    /// The value was found (or is missing).
    Value(Value<'d>),
    /// The rest of the path goes on in this document.
    In(RawDoc<'d>, &'i str),
    /// An array was met; `rest` is what is left of the path behind it.
    Array(RawDoc<'d>, &'d str, Option<&'i str>),
}

type Fields<'d, 'i> = SmallVec<[Field<'d, 'i>; 4]>;

impl Index {
    /// Replaces `out` with the keys of `doc`, sorted. A document outside a sparse or partial index has none.
    ///
    /// Errors: that the document cannot be indexed, or that the operation is to end ([`super::ends_operation`]).
    pub(crate) fn generate(&self, doc: RawDoc<'_>, out: &mut KeySet) -> Result<()> {
        out.clear();
        out.arrays.resize(self.fields.len(), 0);
        if let Some(filter) = &self.partial_filter
            && !filter.matches_doc(doc)?
        {
            return Ok(());
        }
        if self.kind == IndexKind::Wildcard {
            super::wildcard::generate(self, doc, out)?;
        } else {
            let fields =
                self.fields.iter().map(|(path, _)| Field { at: At::In(doc, path), component: 0 }).collect();
            self.expand(fields, out)?;
        }
        out.sort()
    }

    fn expand(&self, mut fields: Fields<'_, '_>, out: &mut KeySet) -> Result<()> {
        for field in &mut fields {
            walk(field);
        }
        let mut met: Option<(RawDoc<'_>, &str)> = None;
        for field in &fields {
            let At::Array(array, name, _) = field.at else { continue };
            match met {
                Some((other, other_name)) if !std::ptr::eq(other.as_bytes(), array.as_bytes()) => {
                    bail!(
                        Code::CANNOT_INDEX_PARALLEL_ARRAYS,
                        "cannot index parallel arrays [{name}] [{other_name}]"
                    )
                }
                _ => met = Some((array, name)),
            }
        }
        let Some((array, _)) = met else { return self.emit(&fields, out) };
        if self.kind == IndexKind::Hashed {
            bail!(16766, "hashed indexes do not currently support array values. Index: {}", self.name);
        }
        self.expand_array(&fields, array, out)
    }

    fn expand_array(&self, fields: &Fields<'_, '_>, array: RawDoc<'_>, out: &mut KeySet) -> Result<()> {
        let mut plan: SmallVec<[Option<Value<'_>>; 4]> = SmallVec::new();
        let mut any_expands = false;
        for (at, field) in fields.iter().enumerate() {
            let At::Array(_, name, rest) = field.at else {
                plan.push(None);
                continue;
            };
            let position = match rest {
                Some(rest) => array_position(array, rest, name)?,
                None => None,
            };
            if position.is_none() {
                any_expands = true;
                out.arrays[at] |= 1 << (field.component - 1).min(63);
            }
            plan.push(position);
        }
        if !any_expands || array.is_empty() {
            let fields =
                fields.iter().zip(&plan).map(|(field, plan)| step_into(field, *plan, None)).collect();
            return self.expand(fields, out);
        }
        for element in array.values() {
            sheaf_meter::tick(MAKE)?;
            let fields = fields
                .iter()
                .zip(&plan)
                .map(|(field, plan)| step_into(field, *plan, Some(element)))
                .collect();
            self.expand(fields, out)?;
        }
        Ok(())
    }

    fn emit(&self, fields: &Fields<'_, '_>, out: &mut KeySet) -> Result<()> {
        if self.sparse && fields.iter().all(|field| matches!(field.at, At::Value(Value::Missing))) {
            return Ok(());
        }
        out.push(|bytes, bits| {
            for (at, field) in fields.iter().enumerate() {
                let found = field_value(field);
                let (_, descending) = self.fields[at];
                if self.hashed_field == Some(at) {
                    encode(Value::Int64(hashed_index_value(found)), descending, bytes, bits);
                } else {
                    encode(found, descending, bytes, bits);
                }
            }
        })
    }
}

/// A missing field reads as null.
fn field_value<'d>(field: &Field<'d, '_>) -> Value<'d> {
    match field.at {
        At::Value(Value::Missing) => Value::Null,
        At::Value(value) => value,
        At::In(..) => {
            debug_assert!(false, "a path is not followed to its end");
            Value::Null
        }
        // Of an array that is not expanded any further.
        At::Array(..) => Value::Null,
    }
}

/// Follows the path to a value or to the first array.
fn walk(field: &mut Field<'_, '_>) {
    while let At::In(doc, path) = field.at {
        let (name, rest) = match path.split_once('.') {
            Some((name, rest)) => (name, Some(rest)),
            None => (path, None),
        };
        field.component += 1;
        field.at = match (doc.element(name), rest) {
            (Some(element), rest) if element.kind() == Type::Array => match element.value() {
                Value::Array(array) => At::Array(array, element.key(), rest),
                other => At::Value(other),
            },
            (Some(element), None) => At::Value(element.value()),
            (Some(element), Some(rest)) => match element.value() {
                Value::Document(inner) => At::In(inner, rest),
                _ => At::Value(Value::Missing),
            },
            (None, _) => At::Value(Value::Missing),
        };
    }
}

/// The element that a number at the start of `rest` names, if it names one: then the array is not expanded.
fn array_position<'d>(array: RawDoc<'d>, rest: &str, name: &str) -> Result<Option<Value<'d>>> {
    let number = rest.split_once('.').map_or(rest, |(number, _)| number);
    let numeric = !number.is_empty()
        && number.bytes().all(|b| b.is_ascii_digit())
        && (number.len() == 1 || !number.starts_with('0'));
    if !numeric {
        return Ok(None);
    }
    let as_field =
        array.values().any(|value| value.as_doc().is_some_and(|doc| doc.element(number).is_some()));
    match (array.get(number), as_field) {
        (Some(_), true) => bail!(
            16746,
            "Ambiguous field name found in array (do not use numeric field names in embedded elements in an array), field: '{number}' for array: {name}"
        ),
        (found, false) => Ok(found),
        (None, true) => Ok(None),
    }
}

/// The field's state behind an array, for one of its elements (`None`: the array is empty or not expanded).
fn step_into<'d, 'i>(
    field: &Field<'d, 'i>,
    position: Option<Value<'d>>,
    element: Option<Value<'d>>,
) -> Field<'d, 'i> {
    let At::Array(_, _, rest) = field.at else { return *field };
    let component = field.component;
    if let (Some(value), Some(rest)) = (position, rest) {
        let component = component + 1;
        let at = match (value, rest.split_once('.')) {
            (value, None) => At::Value(value),
            (Value::Document(doc), Some((_, rest))) => At::In(doc, rest),
            (Value::Array(array), Some((name, rest))) => nested(array, name, rest),
            _ => At::Value(Value::Missing),
        };
        return Field { at, component };
    }
    let at = match (element, rest) {
        (None, None) => At::Value(Value::Undefined),
        (None, Some(_)) => At::Value(Value::Missing),
        (Some(value), None) => At::Value(value),
        (Some(Value::Document(doc)), Some(rest)) => At::In(doc, rest),
        (Some(_), Some(_)) => At::Value(Value::Missing),
    };
    Field { at, component }
}

/// An array reached by position goes on being an array: `a.0.b` looks into the elements of `a[0]`.
fn nested<'d, 'i>(array: RawDoc<'d>, _name: &'i str, rest: &'i str) -> At<'d, 'i> {
    At::Array(array, "", Some(rest))
}

/// Used by the wildcard generator.
pub(super) fn push_key(out: &mut KeySet, fill: impl FnOnce(&mut Vec<u8>, &mut TypeBits)) -> Result<()> {
    out.push(fill)
}
