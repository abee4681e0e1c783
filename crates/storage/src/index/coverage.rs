//! Which paths a wildcard index covers.

use sheaf_bson::{RawDoc, Value};

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
    /// By the path of its key and its `wildcardProjection`.
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
    pub fn covers(&self, path: &str) -> (bool, bool) {
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
