//! Parsing `$addFields` (`$set`).

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Error, Result, bail};
use sheaf_expr::{Expr, FieldPath, ParseCx};
use sheaf_meter::Held;

use crate::owned::name_bytes;

use super::Projection;
use super::kind::Kind;
use super::tree::{Field, Node, join};

pub(super) fn parse(spec: RawDoc<'_>, cx: &mut ParseCx) -> Result<Projection> {
    let mut root = Node::default();
    let mut seen = Vec::new();
    fields(&mut root, &mut seen, "", spec, cx)?;
    Ok(Projection { kind: Kind::Addition, root, positional: false, held: Held::default() })
}

fn fields(
    root: &mut Node,
    seen: &mut Vec<String>,
    parent: &str,
    spec: RawDoc<'_>,
    cx: &mut ParseCx,
) -> Result<()> {
    for element in spec.iter() {
        let (name, value) = (element.key(), element.value());
        if !parent.is_empty() && name.contains('.') {
            bail!(40183, "cannot use dotted field name '{name}' in a sub object");
        }
        let path = join(parent, name);
        FieldPath::parse(&path)?;
        match value {
            // An empty object is a value, which takes the place of what was there.
            Value::Document(inside) if !inside.is_empty() && !is_expression(inside, &path)? => {
                fields(root, seen, &path, inside, cx)?;
            }
            value => {
                if root.collides(&path) {
                    return Err(conflict(seen, &path));
                }
                sheaf_meter::grow(size_of::<String>() + name_bytes(&path))?;
                let expr = Expr::parse(value, cx)?;
                root.insert(&path, &path, Field::Computed(expr))?;
                seen.push(path);
            }
        }
    }
    Ok(())
}

/// Whether an object is an expression; one with operators among other fields is nothing.
fn is_expression(spec: RawDoc<'_>, path: &str) -> Result<bool> {
    let operators = spec.iter().filter(|element| element.key().starts_with('$')).count();
    match (operators, spec.count()) {
        (0, _) => Ok(false),
        (1, 1) => Ok(true),
        _ => bail!(
            40181,
            "an expression specification must contain exactly one field, the name of the expression. Found {} fields in \
             {}, while parsing object {}",
            spec.count(),
            path,
            sheaf_bson::document_text(spec)
        ),
    }
}

/// The error for a path that does not go with one that was `seen`.
fn conflict(seen: &[String], path: &str) -> Error {
    let below = |path: &str, other: &str| path.strip_prefix(other).is_some_and(|rest| rest.starts_with('.'));
    let other = seen.iter().find(|other| *other == path || below(path, other) || below(other, path));
    Error::location(
        40176,
        format!(
            "specification contains two conflicting paths. Cannot specify both '{path}' and '{}'",
            other.map_or(path, String::as_str)
        ),
    )
}
