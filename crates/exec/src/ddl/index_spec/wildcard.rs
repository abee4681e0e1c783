//! What is asked of wildcard indexes: their projection, and what else stands in their key.

use std::collections::BTreeSet;
use std::ops::Bound;

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Error, Result, bail};

use super::{is_wildcard, shown};

/// Paths of a `wildcardProjection`, and whether each is taken in; `_id` is apart.
type Paths = Vec<(String, bool)>;

/// Checks a wildcard index's key together with its projection.
///
/// Errors: `CannotCreateIndex`, `FailedToParse`, those of projections, 7246204 and others where a field would be indexed twice.
pub fn check(key: RawDoc<'_>, projection: Option<RawDoc<'_>>) -> Result<()> {
    let everything = key.iter().any(|field| field.key() == "$**");
    let compound = key.iter().nth(1).is_some();
    let paths = match projection {
        Some(projection) => Some(check_projection(projection, everything)?),
        None => None,
    };
    if !compound {
        return Ok(());
    }
    let plain = || key.iter().map(|field| field.key()).filter(|name| !is_wildcard(name));
    match paths {
        Some(paths) => plain().try_for_each(|name| check_apart(name, &paths)),
        None if everything => bail!(
            Code::CANNOT_CREATE_INDEX,
            "Compound wildcard indexes on all fields must specify 'wildcardProjection' option"
        ),
        None => {
            let root = key.iter().find_map(|field| field.key().strip_suffix(".$**")).unwrap_or_default();
            match plain().find(|name| overlaps(name, root)) {
                Some(name) => bail!(
                    7246204,
                    "The wildcard field '{root}.$**' overlaps with the field '{name}' of the index: {}",
                    shown(Value::Document(key))
                ),
                None => Ok(()),
            }
        }
    }
}

/// Whether one path is the other, or stands above it.
fn overlaps(a: &str, b: &str) -> bool {
    let above = |outer: &str, inner: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    above(a, b) || above(b, a)
}

/// A field of its own in a compound index must not be one of those that the wildcard stands for.
fn check_apart(name: &str, paths: &Paths) -> Result<()> {
    let excludes = paths.iter().all(|(_, taken)| !taken);
    if excludes && !paths.iter().any(|(path, _)| name == path || name.starts_with(&format!("{path}."))) {
        bail!(
            7246209,
            "Index wildcardProjection must exclude the field '{name}', which is one of the index's own fields"
        );
    }
    if !excludes && let Some((path, _)) = paths.iter().find(|(path, _)| overlaps(path, name)) {
        bail!(7246208, "Index wildcardProjection overlaps with the index's own field '{name}': '{path}'");
    }
    Ok(())
}

/// Paths are all taken in or all left out, `_id` aside; nothing is computed.
fn check_projection(projection: RawDoc<'_>, everything: bool) -> Result<Paths> {
    if projection.is_empty() {
        bail!(Code::FAILED_TO_PARSE, "The 'wildcardProjection' field can't be an empty object");
    }
    if !everything {
        bail!(
            Code::FAILED_TO_PARSE,
            "The field 'wildcardProjection' is only allowed when 'key' is {{\"$**\": ±1}}"
        );
    }
    let mut paths = Paths::new();
    collect(projection, "", &mut paths, &mut Seen::default())?;
    Ok(paths)
}

fn collect(projection: RawDoc<'_>, prefix: &str, paths: &mut Paths, seen: &mut Seen) -> Result<()> {
    for field in projection.iter() {
        sheaf_meter::tick(1)?;
        let path =
            if prefix.is_empty() { field.key().to_owned() } else { format!("{prefix}.{}", field.key()) };
        let takes = match field.value() {
            Value::Document(inner) if inner.is_empty() => {
                bail!(51270, "An empty sub-projection is not a valid value. Found empty object at path")
            }
            // Neither expressions nor the operators of `find` are for an index.
            Value::Document(inner)
                if inner.iter().next().is_some_and(|first| first.key().starts_with('$')) =>
            {
                return Err(computed(projection));
            }
            Value::Document(inner) => {
                collect(inner, &path, paths, seen)?;
                continue;
            }
            value if value.is_number() || value.as_bool().is_some() => value.truthy(),
            _ => return Err(computed(projection)),
        };
        sheaf_expr::FieldPath::parse(&path)?;
        if path == "_id" {
            continue;
        }
        seen.add(&path)?;
        if let Some((_, before)) = paths.first().filter(|(_, before)| *before != takes) {
            let (kind, place) = if *before { ("exclusion", "inclusion") } else { ("inclusion", "exclusion") };
            let code = if takes { 31253 } else { 31254 };
            bail!(Code(code), "Cannot do {kind} on field {path} in {place} projection");
        }
        paths.push((path, takes));
    }
    Ok(())
}

fn computed(projection: RawDoc<'_>) -> Error {
    Error::new(
        Code(51271),
        format!(
            "Bad projection specification, cannot use computed fields when parsing a spec in bare inclusion or exclusion mode: {}",
            shown(Value::Document(projection))
        ),
    )
}

/// Paths that were there before.
#[derive(Default)]
struct Seen(BTreeSet<String>);

impl Seen {
    /// Errors: 31249 and 31250, where one was there that is this path, or stands above or below it.
    fn add(&mut self, path: &str) -> Result<()> {
        for (at, _) in path.match_indices('.') {
            sheaf_meter::tick_for(at)?;
            if self.0.contains(&path[..at]) {
                bail!(31249, "Path collision at {path} remaining portion {}", &path[at + 1..]);
            }
        }
        let below = format!("{path}.");
        let next = self.0.range::<str, _>((Bound::Included(below.as_str()), Bound::Unbounded)).next();
        if next.is_some_and(|next| next.starts_with(&below)) || !self.0.insert(path.to_owned()) {
            bail!(31250, "Path collision at {path}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_collide_with_those_above_and_below_them() {
        let mut seen = Seen::default();
        for path in ["a.b", "a.bc", "a!b", "c.d.e", "f"] {
            seen.add(path).unwrap();
        }
        for (path, code, ends) in [
            ("a.b", 31250, "at a.b"),
            ("a", 31250, "at a"),
            ("c.d", 31250, "at c.d"),
            ("a.b.x.y", 31249, "portion x.y"),
            ("f.g", 31249, "portion g"),
        ] {
            let error = seen.add(path).unwrap_err();
            assert!(error.code().0 == code && error.message().ends_with(ends), "{path}: {error:?}");
        }
        for path in ["a.c", "c.d.f", "ff", "a!c"] {
            seen.add(path).unwrap();
        }
    }
}
