//! Keys of wildcard indexes: one per leaf, made of the leaf's path and its value.

use sheaf_bson::key::encode;
use sheaf_bson::{RawDoc, Value, hashed_index_value};
use sheaf_errors::{Result, bail};

use super::Index;
use super::keys::{KeySet, push_key};

/// Which paths a wildcard index covers.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    /// `a.b` of a key `a.b.$**`; empty for `$**`.
    root: String,
    /// Of `wildcardProjection`: the paths, and whether they are included or excluded.
    paths: Vec<String>,
    excludes: bool,
    /// Whether an inclusion names `_id`, or an exclusion leaves it in. It is left out by default.
    id: bool,
}

impl Coverage {
    pub fn new(key_path: &str, projection: Option<RawDoc<'_>>) -> Coverage {
        let root = key_path.strip_suffix("$**").unwrap_or("").trim_end_matches('.').to_owned();
        let mut coverage = Coverage { root, ..Coverage::default() };
        let Some(projection) = projection else {
            return coverage;
        };
        let mut flat = Vec::new();
        flatten(projection, "", &mut flat);
        coverage.excludes = !flat.iter().any(|(path, included)| path != "_id" && *included)
            && flat.iter().any(|(path, _)| path != "_id");
        for (path, included) in flat {
            if path == "_id" {
                coverage.id = included;
            } else {
                coverage.paths.push(path);
            }
        }
        if coverage.paths.is_empty() {
            coverage.excludes = true;
        }
        coverage
    }

    /// Whether keys may come from below this path, and whether its own value is a key.
    fn covers(&self, path: &str) -> (bool, bool) {
        let below = |prefix: &str| {
            path == prefix || path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'))
        };
        let above = |longer: &str| longer.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
        if !self.root.is_empty() {
            return (below(&self.root) || above(&self.root), below(&self.root));
        }
        if below("_id") {
            // Without a projection, `$**` covers `_id` not at all: the `_id` index does.
            return (self.id, self.id);
        }
        if self.paths.is_empty() {
            return (true, true);
        }
        let named = self.paths.iter().any(|p| below(p));
        if self.excludes {
            return (!named, !named);
        }
        (named || self.paths.iter().any(|p| above(p)), named)
    }
}

fn flatten(doc: RawDoc<'_>, prefix: &str, out: &mut Vec<(String, bool)>) {
    for element in doc.iter() {
        let path =
            if prefix.is_empty() { element.key().to_owned() } else { format!("{prefix}.{}", element.key()) };
        match element.value() {
            Value::Document(inner) => flatten(inner, &path, out),
            value => out.push((path, value.truthy())),
        }
    }
}

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
    push_key(out, |bytes, bits| {
        for (at, (_, descending)) in index.fields.iter().enumerate() {
            if Some(at) == index.wildcard_field {
                encode(Value::String(path), *descending, bytes, bits);
                encode(value, *descending, bytes, bits);
            } else if index.hashed_field == Some(at) {
                encode(Value::Int64(hashed_index_value(others[at])), *descending, bytes, bits);
            } else {
                encode(others[at], *descending, bytes, bits);
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
