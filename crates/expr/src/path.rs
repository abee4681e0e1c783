//! Field paths of expressions: `a.b.c`.

use bumpalo::Bump;
use sheaf_bson::{MAX_DEPTH, RawDoc, Value, array_in};
use sheaf_errors::{Code, Result, bail};

/// A dotted path, cut into field names. In an expression numbers in it are field names only, never array
/// indexes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FieldPath {
    parts: Box<[Box<str>]>,
}

impl FieldPath {
    /// Checks and cuts a dotted path.
    pub fn parse(dotted: &str) -> Result<Self> {
        if dotted.is_empty() {
            bail!(40352, "FieldPath cannot be constructed with empty string");
        }
        if dotted.ends_with('.') {
            bail!(40353, "FieldPath must not end with a '.'.");
        }
        if dotted.bytes().filter(|b| *b == b'.').count() >= MAX_DEPTH {
            bail!(Code::OVERFLOW, "FieldPath is too long");
        }
        for name in dotted.split('.') {
            validate_field_name(name)?;
        }
        Ok(FieldPath { parts: dotted.split('.').map(Box::from).collect() })
    }

    /// No names at all: a variable itself.
    pub(crate) fn empty() -> Self {
        FieldPath { parts: Box::new([]) }
    }

    /// The names.
    pub fn parts(&self) -> &[Box<str>] {
        &self.parts
    }

    /// The path as written.
    pub fn dotted(&self) -> String {
        self.parts.join(".")
    }

    /// The path's value in a document, as expressions see it.
    pub fn get<'a>(&self, doc: RawDoc<'a>, arena: &'a Bump) -> Value<'a> {
        get_path(doc, &self.parts, arena)
    }
}

/// Checks one field name of a path or of an object expression.
pub(crate) fn validate_field_name(name: &str) -> Result<()> {
    if name.is_empty() {
        bail!(15998, "FieldPath field names may not be empty strings.");
    }
    // The fields of a DBRef are the exception.
    if name.starts_with('$') && !matches!(name, "$ref" | "$id" | "$db") {
        bail!(16410, "FieldPath field names may not start with '$'. Consider using $getField or $setField.");
    }
    if name.contains('\0') {
        bail!(16411, "FieldPath field names may not contain '\\0'.");
    }
    if name.contains('.') {
        bail!(16412, "FieldPath field names may not contain '.'. Consider using $getField or $setField.");
    }
    Ok(())
}

/// Follows names into a document. An array on the way gives the array of what its documents have there;
/// elements that are no documents, or have nothing there, are left out.
pub fn get_path<'a>(doc: RawDoc<'a>, parts: &[Box<str>], arena: &'a Bump) -> Value<'a> {
    let Some((first, rest)) = parts.split_first() else { return Value::Document(doc) };
    let value = doc.get_or_missing(first);
    if rest.is_empty() { value } else { descend(value, rest, arena) }
}

/// Follows names into a value.
pub(crate) fn descend<'a>(value: Value<'a>, parts: &[Box<str>], arena: &'a Bump) -> Value<'a> {
    if parts.is_empty() {
        return value;
    }
    match value {
        Value::Document(doc) => get_path(doc, parts, arena),
        Value::Array(array) => Value::Array(array_in(arena, |out| {
            for doc in array.values().filter_map(|item| item.as_doc()) {
                let found = get_path(doc, parts, arena);
                if !found.is_missing() {
                    out.push(found);
                }
            }
        })),
        _ => Value::Missing,
    }
}
