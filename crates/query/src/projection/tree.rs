//! The tree of a projection's fields.

use sheaf_bson::{Bump, DocWriter};
use sheaf_expr::{Deps, Expr};

use super::Kind;
use crate::matcher::{MatchExpr, Test};

/// The fields that a projection names at one level, in its order.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) fields: Vec<(Box<str>, Field)>,
    /// Something below is computed.
    pub(super) computed: bool,
    /// `a.b.$` leads through this node.
    pub(super) positional: bool,
}

/// What happens to a field.
#[derive(Debug)]
pub(super) enum Field {
    Keep,
    Drop,
    /// Kept; an array is cut.
    Slice(Slice),
    /// Kept; an array is cut to the element that the query matched.
    Positional,
    /// The first element of the array that passes; from the document as it was.
    ElemMatch(Test),
    Computed(Expr),
    Inside(Node),
}

/// find's `$slice`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice {
    pub(super) skip: Option<i32>,
    pub(super) limit: i32,
}

impl Slice {
    /// The range of an array of `len` elements.
    pub(super) fn range(self, len: usize) -> std::ops::Range<usize> {
        let (len, limit) = (len as i64, i64::from(self.limit));
        let (start, count) = match self.skip.map(i64::from) {
            None if limit < 0 => ((len + limit).max(0), -limit),
            None => (0, limit),
            Some(skip) if skip < 0 => ((len + skip).max(0), limit),
            Some(skip) => (skip.min(len), limit),
        };
        start as usize..(start + count).min(len) as usize
    }
}

impl Node {
    pub(super) fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    pub(super) fn find(&self, key: &[u8]) -> Option<usize> {
        self.fields.iter().position(|(name, _)| name.as_bytes() == key)
    }

    /// Adds the paths kept as they are; false if there is anything else.
    pub(super) fn put_included(&self, prefix: &str, paths: &mut Vec<String>) -> bool {
        self.fields.iter().all(|(name, field)| match field {
            Field::Keep => {
                paths.push(join(prefix, name));
                true
            }
            Field::Drop => true,
            Field::Inside(node) => node.put_included(&join(prefix, name), paths),
            _ => false,
        })
    }

    pub(super) fn dependencies(&self, prefix: &str, deps: &mut Deps) {
        for (name, field) in &self.fields {
            match field {
                Field::Keep | Field::Slice(_) | Field::Positional | Field::ElemMatch(_) => {
                    deps.paths.insert(join(prefix, name));
                }
                Field::Drop => {}
                Field::Computed(expr) => {
                    expr.dependencies(deps);
                    // A computed field below another decides with what stands there.
                    if !prefix.is_empty() {
                        deps.paths.insert(prefix.split('.').next().unwrap_or(prefix).to_owned());
                    }
                }
                Field::Inside(node) => node.dependencies(&join(prefix, name), deps),
            }
        }
    }

    pub(super) fn serialize(&self, kind: Kind, top: bool, doc: &mut DocWriter<'_, Vec<u8>>) {
        for (name, field) in &self.fields {
            match field {
                Field::Keep => _ = doc.append(name, true),
                Field::Drop => _ = doc.append(name, false),
                Field::Slice(Slice { skip: None, limit }) => _ = doc.document(name).append("$slice", *limit),
                Field::Slice(Slice { skip: Some(skip), limit }) => {
                    _ = doc.document(name).array("$slice").push(*skip).push(*limit);
                }
                Field::Positional => _ = doc.append(&format!("{name}.$"), true),
                Field::ElemMatch(Test::ElemMatchObject(inside) | Test::ElemMatchValue(inside)) => {
                    let inside: &MatchExpr = inside;
                    doc.document(name).append("$elemMatch", &inside.to_doc());
                }
                Field::ElemMatch(_) => {}
                Field::Computed(expr) => {
                    let arena = Bump::new();
                    doc.append(name, expr.serialize(&arena));
                }
                Field::Inside(node) => node.serialize(kind, false, &mut doc.document(name)),
            }
        }
        if top && kind == Kind::Inclusion && self.find(b"_id").is_none() {
            doc.append("_id", false);
        }
    }
}

pub(super) fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}
