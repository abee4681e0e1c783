//! Applying the tree of modifiers to a document, in one walk over its raw bytes.
//!
//! A level gives a list of edits (replace or remove the element at this place, append these fields); its
//! bytes are spliced once from the unchanged ranges and the new values. Nothing is decoded that no path
//! touches, and a level without edits is not copied at all.

use std::collections::BTreeMap;
use std::ops::Range;

use sheaf_bson::{Bump, DocWriter, MAX_STORED_DEPTH, RawDoc, Sink, Value};
use sheaf_errors::{Code, Result, bail};
use smallvec::SmallVec;

use super::array_filter::ArrayFilters;
use super::ops::{OpCx, Outcome};
use super::too_deep;
use super::tree::{ArrayNode, Node, ObjectNode};
use crate::name_order::name_order;

/// An array is never extended by more nulls than this.
const MAX_PADDING: usize = 1_500_000;

/// Names that are looked through for each field; more are looked up.
const FEW: usize = 16;

/// Nodes that apply to the same element: one, or several when `$` or `$[]` meets an explicit index.
type Nodes<'a> = SmallVec<[&'a Node; 1]>;

/// One walk over one document.
pub(super) struct Walk<'a> {
    pub(super) op: OpCx<'a>,
    /// The index that `$` stands for.
    pub(super) matched: Option<&'a str>,
    pub(super) filters: &'a ArrayFilters,
    /// The parts of the path to where the walk stands.
    path: SmallVec<[&'a str; 8]>,
}

/// The changes of one level.
#[derive(Default)]
pub(super) struct Edits<'a> {
    /// Element's byte range within the container, name, and the new value (`Missing`: remove), in order of
    /// place.
    pub(super) at: SmallVec<[(Range<usize>, &'a str, Value<'a>); 4]>,
    /// Elements to append.
    pub(super) appended: SmallVec<[(&'a str, Value<'a>); 4]>,
}

impl Edits<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.at.is_empty() && self.appended.is_empty()
    }

    /// Writes the container's bytes anew.
    pub(super) fn splice<S: Sink>(&self, container: RawDoc<'_>, out: &mut S) {
        let bytes = container.as_bytes();
        let mut writer = DocWriter::new(out);
        let mut from = 4;
        for (range, key, value) in &self.at {
            writer.append_raw_elements(&bytes[from..range.start]);
            writer.append(key, *value);
            from = range.end;
        }
        writer.append_raw_elements(&bytes[from..bytes.len() - 1]);
        for (key, value) in &self.appended {
            writer.append(key, *value);
        }
    }
}

impl<'a> Walk<'a> {
    pub(super) fn new(op: OpCx<'a>, matched: Option<&'a str>, filters: &'a ArrayFilters) -> Self {
        Walk { op, matched, filters, path: SmallVec::new() }
    }

    /// The document afterwards; `None` if nothing changes.
    pub(super) fn run(&mut self, root: &'a ObjectNode, doc: RawDoc<'a>) -> Result<Option<Vec<u8>>> {
        let mut edits = Edits::default();
        self.object_edits(&merge(&[root], self.matched)?, doc, &mut edits)?;
        if edits.is_empty() {
            return Ok(None);
        }
        let stored = edits.at.iter().filter(|(_, _, value)| !value.is_missing()).map(|(_, key, _)| *key);
        for key in stored.chain(edits.appended.iter().map(|(key, _)| *key)) {
            if key.starts_with('$') {
                bail!(
                    Code::DOLLAR_PREFIXED_FIELD_NAME,
                    "The dollar ($) prefixed field '{key}' in '{key}' is not valid for storage."
                );
            }
        }
        let mut bytes = Vec::with_capacity(doc.len() + 128);
        edits.splice(doc, &mut bytes);
        Ok(Some(bytes))
    }

    fn dotted(&self) -> String {
        self.path.join(".")
    }

    /// What becomes of an existing element, whose name is the last part of the path.
    fn visit(&mut self, nodes: &Nodes<'a>, key: &'a str, old: Value<'a>) -> Result<Outcome<'a>> {
        if let [Node::Leaf(op)] = nodes[..] {
            if op.is_idle(&self.op) {
                return Ok(Outcome::Keep);
            }
            let path = &self.path;
            let outcome = op.apply(key, || path.join("."), old, &self.op)?;
            if let Outcome::Replace(value) = outcome {
                self.check_depth(value)?;
                if same_bytes(old, value) {
                    return Ok(Outcome::Keep);
                }
            }
            return Ok(outcome);
        }
        let mut edits = Edits::default();
        let container = match (&nodes[0], old) {
            (Node::Array(_), Value::Array(array)) => {
                self.filtered_edits(nodes, array, &mut edits)?;
                array
            }
            (Node::Array(_), _) => {
                bail!(
                    Code::BAD_VALUE,
                    "Cannot apply array updates to non-array element {}",
                    sheaf_bson::element_text(key, old)
                )
            }
            (_, Value::Document(doc)) => {
                let objects = self.objects(nodes)?;
                self.object_edits(&merge(&objects, self.matched)?, doc, &mut edits)?;
                doc
            }
            (_, Value::Array(array)) => {
                let objects = self.objects(nodes)?;
                self.index_edits(&merge(&objects, self.matched)?, key, array, &mut edits)?;
                array
            }
            (_, scalar) => {
                let objects = self.objects(nodes)?;
                for (name, below) in &merge(&objects, self.matched)? {
                    self.blocked(below, name, key, scalar, &mut SmallVec::new())?;
                }
                return Ok(Outcome::Keep);
            }
        };
        if edits.is_empty() {
            return Ok(Outcome::Keep);
        }
        let mut bytes = bumpalo_vec(container.len() + 64, self.op.arena);
        edits.splice(container, &mut bytes);
        let built = RawDoc::new(bytes.into_bump_slice());
        Ok(Outcome::Replace(match old {
            Value::Array(_) => Value::Array(built),
            _ => Value::Document(built),
        }))
    }

    /// All of several nodes must be names below an object; anything else among several is a conflict.
    fn objects(&self, nodes: &Nodes<'a>) -> Result<SmallVec<[&'a ObjectNode; 1]>> {
        let mut objects = SmallVec::new();
        for node in nodes {
            match node {
                Node::Object(object) => objects.push(object),
                _ => return Err(self.conflict()),
            }
        }
        Ok(objects)
    }

    fn conflict(&self) -> sheaf_errors::Error {
        let path = self.dotted();
        sheaf_errors::Error::new(
            Code::CONFLICTING_UPDATE_OPERATORS,
            format!("Updating the path '{path}' would create a conflict at '{path}'"),
        )
    }

    fn object_edits(
        &mut self,
        children: &Children<'a>,
        doc: RawDoc<'a>,
        edits: &mut Edits<'a>,
    ) -> Result<()> {
        let mut done: SmallVec<[bool; 16]> = SmallVec::from_elem(false, children.len());
        let mut left = children.len();
        let mut offset = 4;
        // Few are looked through quicker than looked up.
        let many = (children.len() > FEW).then(|| {
            let places = children.iter().enumerate().map(|(at, (name, _))| (name.as_bytes(), at));
            places.collect::<BTreeMap<&[u8], usize>>()
        });
        for element in doc.iter() {
            let end = offset + element.as_bytes().len();
            sheaf_meter::tick(1)?;
            let found = match &many {
                Some(places) => places.get(element.key_bytes()).copied(),
                None => children.iter().position(|(name, _)| name.as_bytes() == element.key_bytes()),
            };
            let found = found.filter(|at| !done[*at]);
            if let Some(at) = found {
                done[at] = true;
                self.path.push(children[at].0);
                match self.visit(&children[at].1, children[at].0, element.value())? {
                    Outcome::Keep => {}
                    Outcome::Remove => edits.at.push((offset..end, children[at].0, Value::Missing)),
                    Outcome::Replace(value) => edits.at.push((offset..end, children[at].0, value)),
                }
                self.path.pop();
                left -= 1;
                if left == 0 {
                    return Ok(());
                }
            }
            offset = end;
        }
        for (at, (name, nodes)) in children.iter().enumerate() {
            if !done[at] {
                self.path.push(name);
                if let Some(value) = self.create(nodes)? {
                    edits.appended.push((name, value));
                }
                self.path.pop();
            }
        }
        Ok(())
    }

    /// Like [`Walk::object_edits`], for names (which must be indexes) below an array.
    fn index_edits(
        &mut self,
        children: &Children<'a>,
        array_key: &str,
        array: RawDoc<'a>,
        edits: &mut Edits<'a>,
    ) -> Result<()> {
        let mut wanted: SmallVec<[(usize, usize); 4]> = SmallVec::new();
        for (at, (name, nodes)) in children.iter().enumerate() {
            match index(name) {
                Some(index) => wanted.push((index, at)),
                None => self.blocked(nodes, name, array_key, Value::Array(array), &mut SmallVec::new())?,
            }
        }
        wanted.sort_unstable();
        let mut wanted = wanted.into_iter().peekable();
        let (mut offset, mut count) = (4, 0);
        for element in array.iter() {
            let end = offset + element.as_bytes().len();
            while let Some((_, at)) = wanted.next_if(|(index, _)| *index == count) {
                self.visit_item(&children[at].1, offset..end, element.key(), element.value(), edits)?;
            }
            (offset, count) = (end, count + 1);
        }
        for (index, at) in wanted {
            let (name, nodes) = &children[at];
            self.path.push(name);
            if let Some(value) = self.create(nodes)? {
                if index > count + MAX_PADDING {
                    bail!(Code::CANNOT_BACKFILL_ARRAY, "can't backfill more than {MAX_PADDING} elements");
                }
                while count <= index {
                    let key = self.op.arena.alloc_str(&count.to_string());
                    edits.appended.push((key, if count == index { value } else { Value::Null }));
                    count += 1;
                }
            }
            self.path.pop();
        }
        Ok(())
    }

    /// Below `$[]` and `$[id]`: every element goes through the children whose filters it matches.
    fn filtered_edits(&mut self, nodes: &Nodes<'a>, array: RawDoc<'a>, edits: &mut Edits<'a>) -> Result<()> {
        let mut arrays: SmallVec<[&'a ArrayNode; 1]> = SmallVec::new();
        for node in nodes {
            match node {
                Node::Array(node) => arrays.push(node),
                _ => return Err(self.conflict()),
            }
        }
        let mut offset = 4;
        for element in array.iter() {
            let end = offset + element.as_bytes().len();
            let mut matching = Nodes::new();
            for (id, child) in arrays.iter().flat_map(|node| node.children.iter()) {
                if id.is_empty() || self.filters.matches(id, element.value())? {
                    matching.push(child);
                }
            }
            if !matching.is_empty() {
                self.visit_item(&matching, offset..end, element.key(), element.value(), edits)?;
            }
            offset = end;
        }
        Ok(())
    }

    fn visit_item(
        &mut self,
        nodes: &Nodes<'a>,
        range: Range<usize>,
        key: &'a str,
        old: Value<'a>,
        edits: &mut Edits<'a>,
    ) -> Result<()> {
        self.path.push(key);
        if nodes.len() > 1 && nodes.iter().any(|node| matches!(node, Node::Leaf(_))) {
            return Err(self.conflict());
        }
        match self.visit(nodes, key, old)? {
            Outcome::Keep => {}
            // Removing an element would shift its followers; it becomes null instead.
            Outcome::Remove if matches!(old, Value::Null) => {}
            Outcome::Remove => edits.at.push((range, key, Value::Null)),
            Outcome::Replace(value) => edits.at.push((range, key, value)),
        }
        self.path.pop();
        Ok(())
    }

    /// The value for an absent path; `None` if no operator creates one.
    fn create(&mut self, nodes: &Nodes<'a>) -> Result<Option<Value<'a>>> {
        if let [Node::Leaf(op)] = nodes[..] {
            if op.is_idle(&self.op) || !op.creates() {
                return Ok(None);
            }
            let value = op.create(&self.op)?;
            self.check_depth(value)?;
            return Ok(Some(value));
        }
        if let Node::Array(_) = nodes[0] {
            bail!(
                Code::BAD_VALUE,
                "The path '{}' must exist in the document in order to apply array updates.",
                self.dotted()
            );
        }
        let objects = self.objects(nodes)?;
        let mut fields: SmallVec<[(&'a str, Value<'a>); 4]> = SmallVec::new();
        for (name, below) in &merge(&objects, self.matched)? {
            self.path.push(name);
            if let Some(value) = self.create(below)? {
                fields.push((name, value));
            }
            self.path.pop();
        }
        if fields.is_empty() {
            return Ok(None);
        }
        Ok(Some(Value::Document(sheaf_bson::document_in(self.op.arena, |out| {
            for (name, value) in fields {
                out.append(name, value);
            }
        }))))
    }

    /// A path that leads through a value which cannot hold it: each operator below has its say. `below` holds
    /// the parts after `name`.
    fn blocked(
        &self,
        nodes: &Nodes<'a>,
        name: &str,
        key: &str,
        value: Value<'a>,
        below: &mut SmallVec<[&'a str; 4]>,
    ) -> Result<()> {
        for node in nodes {
            match node {
                Node::Leaf(op) if op.is_idle(&self.op) || op.ignores_blocked_path() => {}
                Node::Leaf(op) if op.creates() => bail!(
                    Code::PATH_NOT_VIABLE,
                    "Cannot create field '{name}' in element {{{}}}",
                    sheaf_bson::element_text(key, value)
                ),
                Node::Leaf(_) => {
                    let rest: String = below.iter().flat_map(|part| [".", part]).collect();
                    bail!(
                        Code::PATH_NOT_VIABLE,
                        "Cannot use the part ({name}) of ({}.{name}{rest}) to traverse the element ({{{}}})",
                        self.dotted(),
                        sheaf_bson::element_text(key, value)
                    )
                }
                Node::Array(_) => bail!(
                    Code::BAD_VALUE,
                    "The path '{}.{name}' must exist in the document in order to apply array updates.",
                    self.dotted()
                ),
                Node::Object(object) => {
                    for (part, child) in &merge(&[object], self.matched)? {
                        below.push(part);
                        self.blocked(child, name, key, value, below)?;
                        below.pop();
                    }
                }
            }
        }
        Ok(())
    }

    fn check_depth(&self, value: Value<'_>) -> Result<()> {
        let inner = match value {
            Value::Document(doc) | Value::Array(doc) => depth(doc),
            _ => 0,
        };
        if self.path.len() + inner > MAX_STORED_DEPTH { Err(too_deep()) } else { Ok(()) }
    }
}

fn bumpalo_vec(capacity: usize, arena: &Bump) -> bumpalo::collections::Vec<'_, u8> {
    bumpalo::collections::Vec::with_capacity_in(capacity, arena)
}

/// How deep documents and arrays nest, the outermost one included.
pub(super) fn depth(doc: RawDoc<'_>) -> usize {
    let inner = doc.iter().filter_map(|element| match element.value() {
        Value::Document(inner) | Value::Array(inner) => Some(depth(inner)),
        _ => None,
    });
    1 + inner.max().unwrap_or(0)
}

/// Whether two values are the same type and bytes, so that writing one over the other changes nothing.
pub(super) fn same_bytes(a: Value<'_>, b: Value<'_>) -> bool {
    match (a, b) {
        (Value::Document(a), Value::Document(b)) | (Value::Array(a), Value::Array(b)) => a == b,
        (Value::Double(a), Value::Double(b)) => a.to_bits() == b.to_bits(),
        (Value::Int32(a), Value::Int32(b)) => a == b,
        (Value::Int64(a), Value::Int64(b)) | (Value::DateTime(a), Value::DateTime(b)) => a == b,
        (Value::Decimal128(a), Value::Decimal128(b)) => a == b,
        (Value::String(a), Value::String(b))
        | (Value::Symbol(a), Value::Symbol(b))
        | (Value::JavaScript(a), Value::JavaScript(b)) => a == b,
        (Value::Binary(a), Value::Binary(b)) => a == b,
        (Value::ObjectId(a), Value::ObjectId(b)) => a == b,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Timestamp(a), Value::Timestamp(b)) => a == b,
        (Value::Regex(a), Value::Regex(b)) => a == b,
        (Value::DbPointer(a), Value::DbPointer(b)) => a == b,
        (Value::CodeWithScope(a), Value::CodeWithScope(b)) => a == b,
        (a, b) => {
            a.kind() == b.kind()
                && matches!(
                    a,
                    Value::Null | Value::Undefined | Value::MinKey | Value::MaxKey | Value::Missing
                )
        }
    }
}

/// An array index: digits only (leading zeros are let pass, as mongod does here).
fn index(name: &str) -> Option<usize> {
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    name.parse().ok()
}

/// Children of one level, in order of creation.
type Children<'a> = SmallVec<[(&'a str, Nodes<'a>); 4]>;

/// The children of all these nodes, with `$` replaced by the matched index.
fn merge<'a>(nodes: &[&'a ObjectNode], matched: Option<&'a str>) -> Result<Children<'a>> {
    let mut merged: Children<'a> = SmallVec::new();
    let mut add =
        |name: &'a str, node: &'a Node| match merged.binary_search_by(|(known, _)| name_order(known, name)) {
            Ok(at) => merged[at].1.push(node),
            Err(at) => merged.insert(at, (name, SmallVec::from_slice(&[node]))),
        };
    for node in nodes {
        for (name, child) in node.children.iter() {
            add(name, child);
        }
        if let Some(child) = &node.positional {
            match matched {
                Some(index) => add(index, child),
                None => bail!(
                    Code::BAD_VALUE,
                    "The positional operator did not find the match needed from the query."
                ),
            }
        }
    }
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use sheaf_bson::{DocBuf, Timestamp, Value, doc};
    use sheaf_expr::ParseCx;

    use crate::update::{ApplyCx, Update};

    /// With a step for every pair of fields this takes minutes.
    #[test]
    fn very_many_fields() {
        let fields = |value: i32| {
            DocBuf::build(|out| (0..150_000).for_each(|n| _ = out.append(&format!("f{n}"), value)))
        };
        let cx = ApplyCx { matched_index: None, now_millis: 0, timestamp: Timestamp(0) };
        let update = doc! { "$set": &fields(2) };
        let update = Update::parse(Value::Document(update.as_raw()), &[], &mut ParseCx::new()).unwrap();
        assert_eq!(update.apply(fields(1).as_raw(), &cx).unwrap().unwrap(), fields(2));
    }
}
