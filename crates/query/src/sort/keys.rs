//! Sort keys of documents.
//!
//! An array counts as its smallest element in an ascending sort and as its largest in a descending one; an
//! empty array as undefined, a missing field as null. Keys below one array belong together: with `{"a.b": 1,
//! "a.c": 1}` the key is the smallest pair that one element of `a` gives.

use std::cmp::Ordering;

use sheaf_bson::{Bump, RawDoc, Value, key};
use sheaf_collation::{SharedCollator, compare_by};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::size_of_value;
use sheaf_meter::Held;
use smallvec::SmallVec;

use super::pattern::{SortOn, SortPart, SortPattern};
use crate::path::Part;

/// A document's sort key: its values, or bytes whose order is the order of the sort.
pub type SortKey<'a> = SmallVec<[Value<'a>; 4]>;

impl SortPattern {
    /// The values by which a document is sorted.
    pub fn key<'a>(&self, doc: RawDoc<'a>, metadata: RawDoc<'a>) -> Result<SortKey<'a>> {
        let mut key = SortKey::new();
        let mut through_arrays = 0;
        for part in self.parts() {
            let (value, array) = self.part_of_key(part, doc, metadata);
            through_arrays += usize::from(array);
            key.push(value);
        }
        if through_arrays > 1 { self.joint_key(doc, metadata) } else { Ok(key) }
    }

    /// The value of one part by itself, and whether its path met an array.
    fn part_of_key<'a>(&self, part: &SortPart, doc: RawDoc<'a>, metadata: RawDoc<'a>) -> (Value<'a>, bool) {
        match &part.on {
            SortOn::Meta(kind) => (metadata.get(kind).unwrap_or(Value::Null), false),
            SortOn::Path(path) => extreme(doc, path.parts(), part.descending, self.collator()),
        }
    }

    /// Appends the sort key's comparable bytes: their order is the order of the sort.
    pub fn put_key_bytes(&self, doc: RawDoc<'_>, metadata: RawDoc<'_>, out: &mut Vec<u8>) -> Result<()> {
        let put = |part: &SortPart, value: Value<'_>, out: &mut Vec<u8>| -> Result<()> {
            match self.collator() {
                None => key::encode_bound(value, part.descending, out),
                Some(collator) => {
                    let _held = room_for_collated(value)?;
                    key::encode_bound(collator.key(value, &Bump::new()), part.descending, out);
                }
            }
            Ok(())
        };
        let (start, mut through_arrays) = (out.len(), 0);
        for part in self.parts() {
            let (value, array) = self.part_of_key(part, doc, metadata);
            through_arrays += usize::from(array);
            put(part, value, out)?;
        }
        if through_arrays > 1 {
            out.truncate(start);
            let key = self.joint_key(doc, metadata)?;
            self.parts().iter().zip(key).try_for_each(|(part, value)| put(part, value, out))?;
        }
        Ok(())
    }

    /// About how many bytes of comparable keys a document has, for who makes room first.
    pub fn key_room(&self, doc: RawDoc<'_>, metadata: RawDoc<'_>) -> usize {
        let values = self.parts().iter().map(|part| self.part_of_key(part, doc, metadata).0);
        values.map(|value| size_of_value(value) + PART_BYTES).sum()
    }

    /// Orders two sort keys.
    pub fn compare_keys(&self, a: &[Value<'_>], b: &[Value<'_>]) -> Ordering {
        compare_keys(self, a, b)
    }

    /// Orders two documents.
    pub fn compare_docs(&self, a: RawDoc<'_>, b: RawDoc<'_>) -> Result<Ordering> {
        Ok(self.compare_keys(&self.key(a, RawDoc::EMPTY)?, &self.key(b, RawDoc::EMPTY)?))
    }

    /// The key of a document in which several of the sort's paths go through arrays.
    fn joint_key<'a>(&self, doc: RawDoc<'a>, metadata: RawDoc<'a>) -> Result<SortKey<'a>> {
        let places = self
            .parts()
            .iter()
            .map(|part| match &part.on {
                SortOn::Meta(kind) => Place::Done(metadata.get(kind).unwrap_or(Value::Null)),
                SortOn::Path(path) => Place::At(Value::Document(doc), path.parts()),
            })
            .collect();
        let mut best = None;
        joint(self, places, &mut best)?;
        Ok(best.unwrap_or_default())
    }
}

/// What a value takes in a key besides its bytes, and what a small one takes.
const PART_BYTES: usize = 24;

/// Values with more than this are counted while their collation keys are made.
const LARGE_BYTES: usize = 64 << 10;

/// The account of what a collator makes of a large value: a key for each text and a copy of all, several times as long as the value is.
fn room_for_collated(value: Value<'_>) -> Result<Option<Held>> {
    let bytes = size_of_value(value);
    if bytes < LARGE_BYTES { Ok(None) } else { sheaf_meter::reserve(4 * bytes as u64).map(Some) }
}

fn compare_keys(pattern: &SortPattern, a: &[Value<'_>], b: &[Value<'_>]) -> Ordering {
    for (part, (a, b)) in pattern.parts().iter().zip(a.iter().zip(b)) {
        let order = compare_by(pattern.collator(), *a, *b);
        if order.is_ne() {
            return if part.descending { order.reverse() } else { order };
        }
    }
    Ordering::Equal
}

/// The value that decides for one path, and whether the path met an array.
fn extreme<'a>(
    doc: RawDoc<'a>,
    parts: &[Part],
    descending: bool,
    collator: Option<&SharedCollator>,
) -> (Value<'a>, bool) {
    // Mostly there is but one name, and no array.
    if let [only] = parts {
        match doc.get(only.name()) {
            None => return (Value::Null, false),
            Some(Value::Array(_)) => {}
            Some(value) => return (value, false),
        }
    }
    let mut best: Option<Value<'a>> = None;
    let mut array = false;
    each(Value::Document(doc), parts, &mut array, &mut |value| {
        let better = best.is_none_or(|best| {
            let order = compare_by(collator, value, best);
            if descending { order.is_gt() } else { order.is_lt() }
        });
        if better {
            best = Some(value);
        }
    });
    (best.unwrap_or(Value::Null), array)
}

/// Gives every value that an index on the path would have a key for.
fn each<'a>(mut value: Value<'a>, mut parts: &[Part], array: &mut bool, give: &mut impl FnMut(Value<'a>)) {
    loop {
        match (value, parts.split_first()) {
            (Value::Array(items), split) => {
                *array = true;
                if let Some((part, rest)) = split
                    && let Some(item) = at_position(items, part)
                {
                    // An array that a position picks is one value where the path ends.
                    if rest.is_empty() {
                        return give(item);
                    }
                    (value, parts) = (item, rest);
                    continue;
                }
                if items.is_empty() {
                    give(if parts.is_empty() { Value::Undefined } else { Value::Null });
                }
                for item in items.values() {
                    match (item, parts) {
                        (item, []) => give(item),
                        (Value::Document(_), parts) => each(item, parts, array, give),
                        _ => give(Value::Null),
                    }
                }
                return;
            }
            (Value::Document(doc), Some((part, rest))) => match doc.get(part.name()) {
                Some(inner) => (value, parts) = (inner, rest),
                None => return give(Value::Null),
            },
            (value, None) => return give(value),
            (_, Some(_)) => return give(Value::Null),
        }
    }
}

/// The array's element that a numeric name picks.
fn at_position<'a>(array: RawDoc<'a>, part: &Part) -> Option<Value<'a>> {
    if part.is_index() { array.get(part.name()) } else { None }
}

/// How far one key of a joint extraction has come.
#[derive(Clone, Copy)]
enum Place<'a, 'p> {
    At(Value<'a>, &'p [Part]),
    Done(Value<'a>),
}

/// Walks all paths to their next array, then through its elements together.
fn joint<'a>(
    pattern: &SortPattern,
    mut places: SmallVec<[Place<'a, '_>; 4]>,
    best: &mut Option<SortKey<'a>>,
) -> Result<()> {
    let mut array: Option<RawDoc<'a>> = None;
    for place in &mut places {
        if let Place::At(value, rest) = *place {
            *place = to_array(value, rest);
        }
        if let Place::At(Value::Array(found), _) = *place {
            match array {
                Some(first) if !std::ptr::eq(first.as_bytes(), found.as_bytes()) => {
                    bail!(Code::BAD_VALUE, "cannot sort with keys that are parallel arrays")
                }
                _ => array = Some(found),
            }
        }
    }
    let Some(array) = array else {
        let key: SortKey<'a> = places
            .iter()
            .map(|place| match place {
                Place::Done(value) | Place::At(value, _) => *value,
            })
            .collect();
        if best.as_ref().is_none_or(|best| compare_keys(pattern, &key, best).is_lt()) {
            *best = Some(key);
        }
        return Ok(());
    };
    let step = |item: Option<Value<'a>>| {
        let mut next = places.clone();
        for place in &mut next {
            if let Place::At(_, rest) = *place {
                *place = match (item, rest) {
                    (None, []) => Place::Done(Value::Undefined),
                    (Some(item), []) => Place::Done(item),
                    (Some(item @ Value::Document(_)), rest) => Place::At(item, rest),
                    _ => Place::Done(Value::Null),
                };
            }
        }
        next
    };
    if array.is_empty() {
        return joint(pattern, step(None), best);
    }
    for item in array.values() {
        joint(pattern, step(Some(item)), best)?;
    }
    Ok(())
}

/// Follows a path to an array that it goes through, or to its end.
fn to_array<'a, 'p>(mut value: Value<'a>, mut parts: &'p [Part]) -> Place<'a, 'p> {
    loop {
        match (value, parts.split_first()) {
            (Value::Array(items), Some((part, rest))) => match at_position(items, part) {
                Some(item) if rest.is_empty() => return Place::Done(item),
                Some(item) => (value, parts) = (item, rest),
                None => return Place::At(value, parts),
            },
            (Value::Array(_), None) => return Place::At(value, parts),
            (Value::Document(doc), Some((part, rest))) => match doc.get(part.name()) {
                Some(inner) => (value, parts) = (inner, rest),
                None => return Place::Done(Value::Null),
            },
            (value, None) => return Place::Done(value),
            (_, Some(_)) => return Place::Done(Value::Null),
        }
    }
}
