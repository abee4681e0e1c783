//! Wildcard indexes: which paths one serves.

use sheaf_bson::{RawDoc, Value};
use sheaf_query::matcher::{CompareOp, Test};
use sheaf_storage::Index;

use crate::bounds::{Interval, Intervals};

/// The index's fields once for each path that it has keys for, of the paths asked for. The wildcard field
/// becomes two in the keys: the path's name, then the value; here it is only the latter.
pub fn expand(index: &Index, paths: &[&str]) -> Vec<Vec<(String, bool)>> {
    let mut out = Vec::new();
    for path in paths {
        let mut found = false;
        let fields: Vec<(String, bool)> = index
            .fields
            .iter()
            .map(|(field, descending)| match wildcard_root(field) {
                Some(root) if serves(index, root, path) => {
                    found = true;
                    ((*path).to_owned(), *descending)
                }
                _ => (field.clone(), *descending),
            })
            .collect();
        if found {
            out.push(fields);
        }
    }
    out
}

/// The path below which a wildcard field indexes: `""` for `$**`.
pub fn wildcard_root(field: &str) -> Option<&str> {
    if field == "$**" { Some("") } else { field.strip_suffix(".$**") }
}

/// Whether a wildcard index's keys can answer the test: it has keys for single values only, none for whole
/// documents or arrays, and none for documents without the field.
pub fn can_serve(test: &Test, negated: bool) -> bool {
    let single = |value: Value<'_>| {
        !matches!(
            value,
            Value::Document(_)
                | Value::Array(_)
                | Value::Null
                | Value::Undefined
                | Value::MinKey
                | Value::MaxKey
        )
    };
    if negated {
        // Whatever is not null is there.
        return matches!(test, Test::Compare { op: CompareOp::Eq, operand } if operand.as_value().is_nullish());
    }
    match test {
        Test::Exists => true,
        Test::Compare { operand, .. } => single(operand.as_value()),
        Test::In(list) => list.values.iter().all(|value| single(value.as_value())),
        Test::Regex(_) | Test::Mod { .. } => true,
        _ => false,
    }
}

/// The bounds of a path's name where these are the bounds of its values. A document at the path has keys for what is in it, below
/// the path, so that all of them are wanted where documents are within: then the second says that any value may stand there.
pub fn path_bounds(path: &str, values: &Intervals) -> (Intervals, bool) {
    let own = Interval::point(Value::String(path));
    let documents =
        Intervals::range(Value::Document(RawDoc::EMPTY), true, Value::Array(RawDoc::EMPTY), false);
    if values.intersect(&documents).is_empty() {
        return (Intervals::from_unsorted(vec![own]), false);
    }
    // The slash follows the dot.
    let (from, to) = (format!("{path}."), format!("{path}/"));
    let below = Interval::new(Value::String(&from), true, Value::String(&to), false);
    (Intervals::from_unsorted(vec![own, below]), true)
}

fn serves(index: &Index, root: &str, path: &str) -> bool {
    let below =
        root.is_empty() || path == root || path.strip_prefix(root).is_some_and(|rest| rest.starts_with('.'));
    below
        && projected(index.spec.as_raw(), path)
        && !path.split('.').any(|p| p.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether the index's `wildcardProjection` lets the path in.
fn projected(spec: RawDoc<'_>, path: &str) -> bool {
    let Some(Value::Document(projection)) = spec.get("wildcardProjection") else {
        // Without a projection everything but `_id` is indexed by `$**`.
        return path != "_id" && !path.starts_with("_id.");
    };
    let mut paths = Vec::new();
    flatten(projection, "", &mut paths);
    let under =
        |outer: &str| path == outer || path.strip_prefix(outer).is_some_and(|rest| rest.starts_with('.'));
    let inclusive = paths.iter().any(|(p, on)| *on && p != "_id");
    let id = paths.iter().find(|(p, _)| p == "_id").map(|(_, on)| *on);
    if under("_id") {
        return id.unwrap_or(false);
    }
    if inclusive || (id == Some(true) && paths.len() == 1) {
        paths.iter().any(|(p, on)| *on && under(p))
    } else {
        // An excluded path below the one asked for would leave holes.
        !paths.iter().any(|(p, on)| !*on && (under(p) || p.starts_with(&format!("{path}."))))
    }
}

fn flatten(projection: RawDoc<'_>, prefix: &str, out: &mut Vec<(String, bool)>) {
    for element in projection.iter() {
        let path =
            if prefix.is_empty() { element.key().to_owned() } else { format!("{prefix}.{}", element.key()) };
        match element.value() {
            Value::Document(inner) => flatten(inner, &path, out),
            value => out.push((path, value.truthy())),
        }
    }
}
