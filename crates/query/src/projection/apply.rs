//! Applying a projection: one pass over the document, then the computed fields that it does not have.

use sheaf_bson::{ArrayWriter, DocWriter, Element, RawDoc, Sink, Type, Value};
use sheaf_errors::{Result, bail};
use sheaf_expr::Env;
use smallvec::SmallVec;

use super::Projection;
use super::kind::Kind;
use super::tree::{Field, Node};
use crate::matcher::{MatchDetails, Test};
use crate::path::inner;

/// What stays the same during one application.
struct Pass<'a, 'e> {
    kind: Kind,
    /// The document as it was: what expressions read.
    root: RawDoc<'a>,
    env: &'e Env<'a>,
    /// The position that `a.$` stands for.
    index: Option<usize>,
}

/// Elements side by side that go into the output as they are.
struct Kept<'a> {
    /// The document's elements from the first of them on.
    rest: &'a [u8],
    /// Bytes of those that stay.
    length: usize,
}

impl<'a> Kept<'a> {
    /// Writes them, and begins anew with the elements that follow.
    fn flush<S: Sink>(&mut self, following: &'a [u8], out: &mut DocWriter<'_, S>) {
        if self.length > 0 {
            out.append_raw_elements(&self.rest[..self.length]);
        }
        *self = Kept { rest: following, length: 0 };
    }
}

pub(super) fn apply<'a, S: Sink>(
    projection: &'a Projection,
    doc: RawDoc<'a>,
    env: &Env<'a>,
    details: Option<MatchDetails>,
    out: &mut DocWriter<'_, S>,
) -> Result<()> {
    let index = details.and_then(|details| details.elem_match_index);
    let pass = Pass { kind: projection.kind, root: doc, env, index };
    pass.document(&projection.root, doc, projection.positional, out)
}

impl<'a> Pass<'a, '_> {
    /// One level of the document. `positional` says that no array has been cut yet on the way of `a.$`.
    fn document<S: Sink>(
        &self,
        node: &'a Node,
        doc: RawDoc<'a>,
        positional: bool,
        out: &mut DocWriter<'_, S>,
    ) -> Result<()> {
        // Which fields are done matters only where computed ones may have to follow.
        let mut written: SmallVec<[bool; 16]> = SmallVec::new();
        if node.computed {
            written.resize(node.fields().len(), false);
        }
        let mut left = node.fields().len();
        let others = self.kind != Kind::Inclusion;
        let mut elements = doc.iter();
        // Elements that are kept as they are, side by side: they are copied together.
        let mut kept = Kept { rest: elements.rest(), length: 0 };
        while let Some(element) = elements.next() {
            sheaf_meter::tick(1)?;
            let found = node.find(element.key_bytes());
            let keeps = match found {
                Some(at) => matches!(node.fields()[at].1, Field::Keep),
                None => others,
            };
            if keeps {
                kept.length += element.as_bytes().len();
            } else {
                kept.flush(elements.rest(), out);
            }
            let Some(at) = found else { continue };
            let done = keeps || self.field(&node.fields()[at].1, element, positional, out)?;
            if let Some(written) = written.get_mut(at) {
                *written = done;
            }
            left = left.saturating_sub(1);
            // Names are taken to be unique, so nothing more can be wanted.
            if left == 0 && !others {
                break;
            }
        }
        kept.flush(&[], out);
        if node.computed { self.missing_fields(node, &written, out) } else { Ok(()) }
    }

    /// A field that both document and projection have. False if nothing has been decided for it, so that a
    /// computed value may still follow at the end.
    fn field<S: Sink>(
        &self,
        field: &'a Field,
        element: Element<'a>,
        positional: bool,
        out: &mut DocWriter<'_, S>,
    ) -> Result<bool> {
        match field {
            Field::Keep => _ = out.append_element(element),
            Field::Drop => {}
            Field::Slice(slice) => match element.value() {
                Value::Array(array) => {
                    let range = slice.range(array.count());
                    let mut writer = out.array(element.key());
                    let items = array.iter().skip(range.start).take(range.len());
                    items.for_each(|item| _ = writer.push_element(item));
                }
                _ => _ = out.append_element(element),
            },
            Field::Positional => match element.value() {
                Value::Array(array) if positional => {
                    let item = array.iter().nth(self.position()?);
                    _ = out.array(element.key()).push_element(item.map_or_else(mismatch, Ok)?);
                }
                _ => _ = out.append_element(element),
            },
            // In an inclusion, the document's own value is not wanted and the computed one comes at the end.
            Field::Computed(_) | Field::ElemMatch(_) if self.kind == Kind::Inclusion => return Ok(false),
            Field::Computed(_) | Field::ElemMatch(_) => {
                let name = element.key();
                out.append(name, self.computed(field, name)?);
            }
            Field::Inside(node) => return self.inside(node, element, positional && node.positional, out),
        }
        Ok(true)
    }

    /// A field of which the projection names parts.
    fn inside<S: Sink>(
        &self,
        node: &'a Node,
        element: Element<'a>,
        positional: bool,
        out: &mut DocWriter<'_, S>,
    ) -> Result<bool> {
        let name = element.key();
        match element.kind() {
            Type::Document => self.document(node, inner(element), positional, &mut out.document(name))?,
            Type::Array => self.array(node, inner(element), positional, &mut out.array(name))?,
            _ if node.computed => self.missing_fields(node, &[], &mut out.document(name))?,
            _ if self.kind == Kind::Inclusion => {}
            _ => _ = out.append_element(element),
        }
        Ok(true)
    }

    fn array<S: Sink>(
        &self,
        node: &'a Node,
        array: RawDoc<'a>,
        positional: bool,
        out: &mut ArrayWriter<'_, S>,
    ) -> Result<()> {
        let wanted = if positional { Some(self.position()?) } else { None };
        let mut kept = 0;
        for item in array.iter() {
            let kind = item.kind();
            let scalar = !matches!(kind, Type::Document | Type::Array);
            if scalar && self.kind == Kind::Inclusion && !node.computed {
                continue;
            }
            kept += 1;
            if wanted.is_some_and(|wanted| wanted + 1 != kept) {
                continue;
            }
            match kind {
                Type::Document => self.document(node, inner(item), false, &mut out.document())?,
                Type::Array => self.array(node, inner(item), false, &mut out.array())?,
                _ if node.computed => self.missing_fields(node, &[], &mut out.document())?,
                _ => _ = out.push_element(item),
            }
        }
        if wanted.is_some_and(|wanted| wanted >= kept) { mismatch() } else { Ok(()) }
    }

    /// Appends the computed fields that are not `written` yet.
    fn missing_fields<S: Sink>(
        &self,
        node: &'a Node,
        written: &[bool],
        out: &mut DocWriter<'_, S>,
    ) -> Result<()> {
        for (at, (name, field)) in node.fields().iter().enumerate() {
            if written.get(at).copied().unwrap_or(false) {
                continue;
            }
            match field {
                Field::Computed(_) | Field::ElemMatch(_) => _ = out.append(name, self.computed(field, name)?),
                Field::Inside(inside) if inside.computed => {
                    self.missing_fields(inside, &[], &mut out.document(name))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn computed(&self, field: &'a Field, name: &str) -> Result<Value<'a>> {
        match field {
            Field::Computed(expr) => expr.eval(self.root, self.env),
            Field::ElemMatch(test) => self.elem_match(test, name),
            _ => Ok(Value::Missing),
        }
    }

    fn elem_match(&self, test: &Test, name: &str) -> Result<Value<'a>> {
        let mut details = MatchDetails::default();
        let Some(array) = self.root.element(name) else { return Ok(Value::Missing) };
        if !test.passes(Some(array), Some(&mut details), None)? {
            return Ok(Value::Missing);
        }
        let item = details.elem_match_index.and_then(|at| inner(array).iter().nth(at));
        Ok(Value::Array(sheaf_bson::array_in(self.env.arena(), |out| {
            item.into_iter().for_each(|item| _ = out.push_element(item));
        })))
    }

    fn position(&self) -> Result<usize> {
        match self.index {
            Some(index) => Ok(index),
            None => bail!(
                51246,
                "Executor error during find command :: caused by :: positional operator '.$' couldn't find a \
                 matching element in the array"
            ),
        }
    }
}

fn mismatch<T>() -> Result<T> {
    bail!(
        51247,
        "Executor error during find command :: caused by :: positional operator '.$' element mismatch"
    )
}
