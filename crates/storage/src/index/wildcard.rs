//! Keys of wildcard indexes: one per leaf, made of the leaf's path and its value.

use sheaf_bson::key::encode;
use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Result, bail};

use super::{Index, KeySet};

pub(super) fn generate(index: &Index, doc: RawDoc<'_>, out: &mut KeySet) -> Result<()> {
    let mut path = String::new();
    // Once, not for every leaf: a document can have a hundred thousand. They matter only where there is one.
    let mut others: Option<Others<'_>> = None;
    leaves(index, doc, &mut path, false, &mut |path, value, in_array| {
        sheaf_meter::tick(MAKE)?;
        let others = match &others {
            Some(known) => known,
            None => others.insert(plain_fields(index, doc)?),
        };
        add(index, others, path, value, in_array, out)
    })
}

/// What making a key costs, as the meter counts.
const MAKE: u32 = 6;

/// The values of the fields beside the wildcard; nothing in its own place.
type Others<'d> = smallvec::SmallVec<[Value<'d>; 4]>;

fn plain_fields<'d>(index: &Index, doc: RawDoc<'d>) -> Result<Others<'d>> {
    let mut others = Others::new();
    for (at, (name, _)) in index.fields.iter().enumerate() {
        if Some(at) == index.wildcard_field {
            others.push(Value::Missing);
            continue;
        }
        let found = plain_path(doc, name);
        if matches!(found, Value::Array(_)) {
            bail!(
                7246301,
                "compound wildcard index only supports one array field: the wildcard's; '{name}' is an array"
            );
        }
        others.push(if found.is_missing() { Value::Null } else { found });
    }
    Ok(others)
}

type Visit<'v> = dyn FnMut(&str, Value<'_>, bool) -> Result<()> + 'v;

fn leaves(
    index: &Index,
    doc: RawDoc<'_>,
    path: &mut String,
    in_array: bool,
    visit: &mut Visit<'_>,
) -> Result<()> {
    for element in doc.iter() {
        sheaf_meter::tick(1)?;
        let len = path.len();
        if len > 0 {
            path.push('.');
        }
        path.push_str(element.key());
        let (enter, own) = index.coverage.covers(path);
        if enter {
            leaf(index, element.value(), path, own, in_array, visit)?;
        }
        path.truncate(len);
    }
    Ok(())
}

fn leaf(
    index: &Index,
    value: Value<'_>,
    path: &mut String,
    own: bool,
    in_array: bool,
    visit: &mut Visit<'_>,
) -> Result<()> {
    match value {
        Value::Document(inner) if !inner.is_empty() => leaves(index, inner, path, in_array, visit),
        Value::Array(array) if array.is_empty() => {
            if own {
                visit(path, Value::Undefined, true)
            } else {
                Ok(())
            }
        }
        Value::Array(array) => {
            for item in array.values() {
                match item {
                    Value::Document(inner) if !inner.is_empty() => leaves(index, inner, path, true, visit)?,
                    // An array right within an array is indexed as it is.
                    item if own => visit(path, item, true)?,
                    _ => {}
                }
            }
            Ok(())
        }
        value if own => visit(path, value, in_array),
        _ => Ok(()),
    }
}

fn add(
    index: &Index,
    others: &Others<'_>,
    path: &str,
    value: Value<'_>,
    in_array: bool,
    out: &mut KeySet,
) -> Result<()> {
    if let Some(at) = index.wildcard_field.filter(|_| in_array) {
        out.arrays[at] |= 1;
    }
    out.push(|bytes, bits| {
        for (at, (_, descending)) in index.fields.iter().enumerate() {
            if Some(at) == index.wildcard_field {
                encode(Value::String(path), *descending, bytes, bits);
                index.put_value(value, *descending, bytes, bits);
            } else if index.hashed_field == Some(at) {
                encode(Value::Int64(index.hash(others[at])), *descending, bytes, bits);
            } else {
                index.put_value(others[at], *descending, bytes, bits);
            }
        }
    })
}

fn plain_path<'d>(doc: RawDoc<'d>, path: &str) -> Value<'d> {
    match path.split_once('.') {
        None => doc.get_or_missing(path),
        Some((name, rest)) => match doc.get_or_missing(name) {
            Value::Document(inner) => plain_path(inner, rest),
            Value::Array(array) => Value::Array(array),
            _ => Value::Missing,
        },
    }
}
