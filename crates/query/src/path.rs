//! Dotted paths as filters and sorts follow them: through documents and, implicitly, through arrays.

use sheaf_bson::{Element, RawDoc, Type};
use sheaf_errors::Result;
use sheaf_meter::ALLOCATION;

/// A dotted path, cut into names.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Path {
    dotted: Box<str>,
    parts: Box<[Part]>,
}

/// One name of a path.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Part {
    name: Box<str>,
    index: bool,
}

impl Part {
    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the name may also be a position in an array: digits only.
    pub fn is_index(&self) -> bool {
        self.index
    }
}

impl Path {
    /// Cuts a path at its dots. Every text is a path; `""` is the field with the empty name.
    pub fn new(dotted: &str) -> Self {
        let part = |name: &str| Part {
            name: name.into(),
            index: !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit()),
        };
        Path { dotted: dotted.into(), parts: dotted.split('.').map(part).collect() }
    }

    /// What [`Path::new`] makes of a path takes, besides itself.
    pub(crate) fn heap_bytes(dotted: &str) -> usize {
        let parts = 1 + dotted.bytes().filter(|b| *b == b'.').count();
        2 * (dotted.len() + ALLOCATION) + parts * (size_of::<Part>() + ALLOCATION)
    }

    /// The path as written.
    pub fn dotted(&self) -> &str {
        &self.dotted
    }

    /// The names.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Visits what the path leads to in `doc`, until `visit` returns true; the result says whether it did.
    ///
    /// `visit` gets `None` for a missing field, and besides the element the array element through which the
    /// path went, if it went through an array without naming a position (the outermost one counts). An array
    /// on the way is traversed: its documents continue the path, and a numeric name is also a position in it.
    /// An array at the end gives its elements and then itself if `leaves`, otherwise only itself.
    ///
    /// Errors: the visitor's; what the meter says.
    pub fn any<'a>(&self, doc: RawDoc<'a>, leaves: bool, visit: &mut impl Visit<'a>) -> Result<bool> {
        any(doc, &self.parts, leaves, None, visit)
    }
}

/// A visitor of what a path leads to: the element, and the array element on the way. True ends the visit.
pub trait Visit<'a>: FnMut(Option<Element<'a>>, Option<Element<'a>>) -> Result<bool> {}
impl<'a, F: FnMut(Option<Element<'a>>, Option<Element<'a>>) -> Result<bool>> Visit<'a> for F {}

fn any<'a>(
    mut doc: RawDoc<'a>,
    mut parts: &[Part],
    leaves: bool,
    offset: Option<Element<'a>>,
    visit: &mut impl Visit<'a>,
) -> Result<bool> {
    while let Some((part, rest)) = parts.split_first() {
        let Some(element) = doc.element(&part.name) else { return visit(None, offset) };
        match element.kind() {
            Type::Array if rest.is_empty() && !leaves => return visit(Some(element), offset),
            Type::Array if rest.is_empty() => return any_leaf(element, offset, visit),
            Type::Array => return any_inside(element, rest, leaves, offset, visit),
            _ if rest.is_empty() => return visit(Some(element), offset),
            Type::Document => doc = inner(element),
            _ => return visit(None, offset),
        }
        parts = rest;
    }
    Ok(false)
}

/// The array at the end of a path: its elements, then itself.
fn any_leaf<'a>(array: Element<'a>, offset: Option<Element<'a>>, visit: &mut impl Visit<'a>) -> Result<bool> {
    for item in inner(array).iter() {
        sheaf_meter::tick(1)?;
        if visit(Some(item), offset.or(Some(item)))? {
            return Ok(true);
        }
    }
    visit(Some(array), offset)
}

/// An array with `parts` of the path still to go. An array whose elements are no documents gives nothing,
/// not even a missing field.
fn any_inside<'a>(
    array: Element<'a>,
    parts: &[Part],
    leaves: bool,
    offset: Option<Element<'a>>,
    visit: &mut impl Visit<'a>,
) -> Result<bool> {
    let (part, rest) = (&parts[0], &parts[1..]);
    for item in inner(array).iter() {
        sheaf_meter::tick(1)?;
        let kind = item.kind();
        if kind == Type::Document && any(inner(item), parts, leaves, offset.or(Some(item)), visit)? {
            return Ok(true);
        }
        if !(part.index && item.key_bytes() == part.name.as_bytes()) {
            continue;
        }
        // A position that the path names is no implicit traversal, so `offset` stays.
        let found = match kind {
            _ if rest.is_empty() => visit(Some(item), offset)?,
            Type::Document => any(inner(item), rest, leaves, offset, visit)?,
            Type::Array => any_inside(item, rest, leaves, offset, visit)?,
            _ => false,
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The document or array that an element is.
pub(crate) fn inner(element: Element<'_>) -> RawDoc<'_> {
    RawDoc::new(element.data())
}

/// The position that an array element has.
pub(crate) fn position(element: Element<'_>) -> usize {
    element.key().parse().unwrap_or(0)
}
