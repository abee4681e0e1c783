//! The tree of a projection's fields.

use ahash::AHashMap;
use sheaf_bson::{Bump, DocWriter};
use sheaf_errors::{Result, bail};
use sheaf_expr::{Deps, Expr};

use super::kind::Kind;
use crate::matcher::{MatchExpr, Test};
use crate::owned::name_bytes;

/// Of so many fields one is found soonest by looking at all of them.
const FEW: usize = 16;

/// The fields that a projection names at one level, in its order.
#[derive(Debug, Default)]
pub(super) struct Node {
    fields: Vec<(Box<str>, Field)>,
    /// Where they are, once there are many.
    places: Option<Box<AHashMap<Box<[u8]>, u32>>>,
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

    pub(super) fn fields(&self) -> &[(Box<str>, Field)] {
        &self.fields
    }

    pub(super) fn find(&self, key: &[u8]) -> Option<usize> {
        match &self.places {
            // Names are mostly told apart by their first byte, without a call that compares all of them.
            None => self.fields.iter().position(|(name, _)| {
                let name = name.as_bytes();
                name.len() == key.len() && name.first() == key.first() && name == key
            }),
            Some(places) => places.get(key).map(|at| *at as usize),
        }
    }

    /// Adds a field whose name is new. The result is its place.
    pub(super) fn add(&mut self, name: &str, field: Field) -> Result<usize> {
        sheaf_meter::tick(1)?;
        sheaf_meter::grow(size_of::<(Box<str>, Field)>() + name_bytes(name))?;
        let at = self.fields.len();
        self.fields.push((name.into(), field));
        if at == FEW {
            self.find_places();
        } else if let Some(places) = &mut self.places {
            sheaf_meter::grow(size_of::<(Box<[u8]>, u32)>() + name_bytes(name))?;
            places.insert(name.as_bytes().into(), at as u32);
        }
        Ok(at)
    }

    /// Adds a field whose name is new before all others.
    pub(super) fn add_first(&mut self, name: &str, field: Field) {
        self.fields.insert(0, (name.into(), field));
        if self.fields.len() > FEW {
            self.find_places();
        }
    }

    fn find_places(&mut self) {
        let names = self.fields.iter().enumerate();
        let places = names.map(|(at, (name, _))| (name.as_bytes().into(), at as u32)).collect();
        self.places = Some(Box::new(places));
    }

    /// Whether the path is one of the tree's, leads through one, or to what is above one.
    pub(super) fn collides(&self, path: &str) -> bool {
        let (name, below) = split(path);
        match (self.find(name.as_bytes()).map(|at| &self.fields[at].1), below) {
            (None, _) => false,
            (Some(Field::Inside(inside)), Some(below)) => inside.collides(below),
            (Some(_), _) => true,
        }
    }

    /// Puts a field at the end of a path; `full` is the path from the root, for errors.
    pub(super) fn insert(&mut self, full: &str, rest: &str, field: Field) -> Result<()> {
        self.computed |= matches!(field, Field::Computed(_) | Field::ElemMatch(_));
        self.positional |= matches!(field, Field::Positional);
        let (name, below) = split(rest);
        let at = match (self.find(name.as_bytes()), below) {
            (Some(_), None) => bail!(31250, "Path collision at {full}"),
            (None, None) => return self.add(name, field).map(|_| ()),
            (Some(at), Some(_)) => at,
            (None, Some(_)) => self.add(name, Field::Inside(Node::default()))?,
        };
        match (&mut self.fields[at].1, below) {
            (Field::Inside(inside), Some(below)) => inside.insert(full, below, field),
            (_, below) => {
                bail!(31249, "Path collision at {full} remaining portion {}", below.unwrap_or_default())
            }
        }
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

/// The first name of a path, and the rest.
fn split(path: &str) -> (&str, Option<&str>) {
    path.split_once('.').map_or((path, None), |(name, below)| (name, Some(below)))
}

pub(super) fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}
