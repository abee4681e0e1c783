//! Index specifications against each other.

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Error, Result, bail};

use super::shown;

/// Whether two key patterns are the same index key: same fields in the same order with the same
/// directions or kinds (`1` and `1.0` and `5` all ascend, but MongoDB compares the numbers).
pub fn same_key(a: RawDoc<'_>, b: RawDoc<'_>) -> bool {
    let mut left = a.iter();
    let mut right = b.iter();
    loop {
        match (left.next(), right.next()) {
            (None, None) => return true,
            (Some(x), Some(y)) => {
                if x.key_bytes() != y.key_bytes() || sheaf_bson::compare(x.value(), y.value()).is_ne() {
                    return false;
                }
            }
            _ => return false,
        }
    }
}

/// How a new specification relates to an index that exists.
#[derive(Debug, PartialEq, Eq)]
pub enum Relation {
    /// Another index.
    Different,
    /// The same index: creating it does nothing.
    Same,
}

/// Options that make two indexes with the same key different ones.
const IDENTIFYING: &[&str] =
    &["unique", "sparse", "collation", "partialFilterExpression", "wildcardProjection"];

/// Options that make no difference between indexes.
const INCIDENTAL: &[&str] =
    &["v", "key", "name", "background", "hidden", "textIndexVersion", "2dsphereIndexVersion"];

/// Whether all other options are the same: those by which two indexes of one key cannot stand side by side.
fn same_rest(a: RawDoc<'_>, b: RawDoc<'_>) -> bool {
    let differs = |x: RawDoc<'_>, y: RawDoc<'_>| {
        let mut names = x.iter().map(|field| field.key());
        names.any(|name| {
            !INCIDENTAL.contains(&name) && !IDENTIFYING.contains(&name) && !same_option(x, y, name)
        })
    };
    !differs(a, b) && !differs(b, a)
}

fn same_option(a: RawDoc<'_>, b: RawDoc<'_>, name: &str) -> bool {
    let (x, y) = (a.get_or_missing(name), b.get_or_missing(name));
    match name {
        "unique" | "sparse" | "hidden" => x.truthy() == y.truthy(),
        _ => x.is_missing() == y.is_missing() && sheaf_bson::compare(x, y).is_eq(),
    }
}

/// Compares a new (normal) specification with one that exists.
///
/// Errors: `IndexKeySpecsConflict` (same name, other key), `IndexOptionsConflict` (same index under
/// another name or with other options).
pub fn relate(new: RawDoc<'_>, existing: RawDoc<'_>) -> Result<Relation> {
    let key = |doc: RawDoc<'_>| doc.get("key").and_then(|v| v.as_doc()).map(DocBuf::from).unwrap_or_default();
    let (new_key, old_key) = (key(new), key(existing));
    let same_name = sheaf_bson::compare(new.get_or_missing("name"), existing.get_or_missing("name")).is_eq();
    let same_keys = same_key(new_key.as_raw(), old_key.as_raw());
    let text = |doc: &DocBuf| sheaf_text::is_text_key(doc.as_raw());
    if text(&new_key) && text(&old_key) {
        let same = sheaf_text::NORMAL_FIELDS.iter().all(|option| same_option(new, existing, option));
        if same_keys && !same {
            return Err(options_conflict(new, existing));
        }
        if !same_keys && !same_name {
            let name = existing.get("name").and_then(|v| v.as_str()).unwrap_or_default();
            bail!(
                Code::CANNOT_CREATE_INDEX,
                "only one text index per collection allowed, found existing text index \"{name}\""
            );
        }
    }
    // A sparse or unique index beside a plain one of the same key is refused; one that differs in what it
    // holds (partial filter, collation) is another index.
    let same_identity = same_keys
        && IDENTIFYING
            .iter()
            .filter(|o| **o != "unique" && **o != "sparse")
            .all(|o| same_option(new, existing, o));
    let same_flags = same_option(new, existing, "unique") && same_option(new, existing, "sparse");
    let same_rest = same_rest(new, existing);
    if same_name {
        if same_identity && same_flags {
            if same_rest {
                return Ok(Relation::Same);
            }
            return Err(options_conflict(new, existing));
        }
        if !same_keys {
            bail!(
                Code::INDEX_KEY_SPECS_CONFLICT,
                "An existing index has the same name as the requested index. When index names are not specified, they are auto generated and can cause conflicts. Please refer to our documentation. Requested index: {}, existing index: {}",
                shown(Value::Document(new)),
                shown(Value::Document(existing))
            );
        }
        bail!(
            Code::INDEX_KEY_SPECS_CONFLICT,
            "An existing index has the same name as the requested index. When index names are not specified, they are auto generated and can cause conflicts. Please refer to our documentation. Requested index: {}, existing index: {}",
            shown(Value::Document(new)),
            shown(Value::Document(existing))
        );
    }
    if same_identity && same_flags {
        let name = existing.get("name").and_then(|v| v.as_str()).unwrap_or_default();
        if !same_rest {
            return Err(options_conflict(new, existing));
        }
        bail!(Code::INDEX_OPTIONS_CONFLICT, "Index already exists with a different name: {name}");
    }
    Ok(Relation::Different)
}

fn options_conflict(new: RawDoc<'_>, existing: RawDoc<'_>) -> Error {
    Error::new(
        Code::INDEX_OPTIONS_CONFLICT,
        format!(
            "An equivalent index already exists with the same name but different options. Requested index: {}, existing index: {}",
            shown(Value::Document(new)),
            shown(Value::Document(existing))
        ),
    )
}
