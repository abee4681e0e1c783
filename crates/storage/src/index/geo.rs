//! Keys of geometric indexes.

use sheaf_bson::{ArrayBuf, OwnedValue, RawDoc, Value};
use sheaf_errors::Result;
use sheaf_geo::Indexing;

use super::{Index, KeySet};

/// What making a key costs, as the meter counts.
const MAKE: u32 = 8;

/// The keys of a geometric index, and which of its fields are geometries.
#[derive(Debug)]
pub(crate) struct Geo {
    /// How keys are made.
    pub indexing: Indexing,
    /// Per field of the index.
    pub fields: Vec<bool>,
}

impl Geo {
    /// Of a specification; `None` if its index is of another kind.
    pub fn of_spec(spec: RawDoc<'_>) -> Result<Option<Geo>> {
        let Some(indexing) = Indexing::of_spec(spec)? else { return Ok(None) };
        let pattern = spec.get("key").and_then(|key| key.as_doc()).unwrap_or(RawDoc::EMPTY);
        let fields = pattern.iter().map(|field| field.value().as_str().is_some_and(sheaf_geo::is_geo_kind));
        Ok(Some(Geo { indexing, fields: fields.collect() }))
    }
}

/// Adds the keys of a document: each combination of the values of its fields. A document without geometries has none.
pub(super) fn generate(index: &Index, geo: &Geo, doc: RawDoc<'_>, out: &mut KeySet) -> Result<()> {
    let mut columns: Vec<Vec<OwnedValue>> = Vec::with_capacity(index.fields.len());
    let mut found = false;
    for (at, (path, _)) in index.fields.iter().enumerate() {
        let mut values = Vec::new();
        put_values(doc, path, 0, &mut out.arrays[at], &mut values)?;
        let last = path.bytes().filter(|b| *b == b'.').count().min(63);
        columns.push(if geo.fields[at] {
            if matches!(&values[..], [only] if is_nothing(*only)) {
                values.clear();
            }
            let mut keys = Vec::new();
            for value in values {
                sheaf_meter::tick(MAKE)?;
                geo.indexing.put_keys(value, doc, &mut keys)?;
            }
            found |= !keys.is_empty();
            if keys.len() > 1 {
                out.arrays[at] |= 1 << last;
            }
            if keys.is_empty() { vec![Value::Null.into()] } else { keys.into_iter().map(long).collect() }
        } else {
            plain_values(&geo.indexing, &values, &mut out.arrays[at], last)
        });
    }
    if !found {
        return Ok(());
    }
    combine(index, &columns, out)
}

fn long(key: i64) -> OwnedValue {
    Value::Int64(key).into()
}

/// Null, an empty array or an empty document: no geometry.
fn is_nothing(value: Value<'_>) -> bool {
    match value {
        Value::Null | Value::Undefined => true,
        Value::Document(doc) | Value::Array(doc) => doc.is_empty(),
        _ => false,
    }
}

/// What a field beside geometries has for keys. A grid keeps several values together, in an array.
fn plain_values(indexing: &Indexing, values: &[Value<'_>], arrays: &mut u64, last: usize) -> Vec<OwnedValue> {
    if let Indexing::Grid(_) = indexing {
        return vec![match values {
            [] => Value::Null.into(),
            [only] => (*only).into(),
            many => {
                let all = ArrayBuf::build(|array| many.iter().for_each(|value| _ = array.push(*value)));
                Value::from(&all).into()
            }
        }];
    }
    let mut out = Vec::new();
    for value in values {
        match value {
            Value::Array(array) => {
                *arrays |= 1 << last;
                if array.is_empty() {
                    out.push(Value::Undefined.into());
                }
                out.extend(array.values().map(OwnedValue::from));
            }
            value => out.push((*value).into()),
        }
    }
    if out.is_empty() {
        out.push(Value::Null.into());
    }
    out
}

/// The values that a path leads to. Arrays on the way are traversed, one at the end is a value.
fn put_values<'d>(
    doc: RawDoc<'d>,
    path: &str,
    component: usize,
    arrays: &mut u64,
    out: &mut Vec<Value<'d>>,
) -> Result<()> {
    sheaf_meter::tick(1)?;
    let (name, rest) = match path.split_once('.') {
        Some((name, rest)) => (name, Some(rest)),
        None => (path, None),
    };
    match (doc.get(name), rest) {
        (None, _) => {}
        (Some(value), None) => out.push(value),
        (Some(Value::Document(inner)), Some(rest)) => put_values(inner, rest, component + 1, arrays, out)?,
        (Some(Value::Array(array)), Some(rest)) => {
            let next = rest.split_once('.').map_or(rest, |(next, _)| next);
            if !next.is_empty() && next.bytes().all(|b| b.is_ascii_digit()) {
                return put_values(array, rest, component + 1, arrays, out);
            }
            *arrays |= 1 << component.min(63);
            for value in array.values() {
                if let Value::Document(inner) | Value::Array(inner) = value {
                    put_values(inner, rest, component + 1, arrays, out)?;
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// Adds a key for each choice of one value from each column.
fn combine(index: &Index, columns: &[Vec<OwnedValue>], out: &mut KeySet) -> Result<()> {
    let total = columns.iter().map(Vec::len).fold(1, usize::saturating_mul);
    for number in 0..total {
        sheaf_meter::tick(MAKE)?;
        let mut rest = number;
        out.push(|bytes, bits| {
            for (column, (_, descending)) in columns.iter().zip(&index.fields) {
                index.put_value(column[rest % column.len()].as_value(), *descending, bytes, bits);
                rest /= column.len();
            }
        })?;
    }
    Ok(())
}
