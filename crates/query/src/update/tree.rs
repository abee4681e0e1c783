//! The tree of modifiers: one node per part of an updated path, so that a document is rewritten in one walk
//! and conflicting paths are found while parsing.

use std::cmp::Ordering;

use sheaf_errors::{Code, Result, bail};

use super::ops::Op;

/// One part of a path, and what happens at or below it.
#[derive(Debug)]
pub(super) enum Node {
    /// Named children: `a` in `a.b`, or indexes and `$` below an array.
    Object(ObjectNode),
    /// `$[id]` children.
    Array(ArrayNode),
    /// The end of a path.
    Leaf(Op),
}

/// Children by name, in the order in which new fields are created.
#[derive(Debug, Default)]
pub(super) struct ObjectNode {
    /// Ordered by [`name_order`].
    pub(super) children: Vec<(String, Node)>,
    /// What stands below `$`.
    pub(super) positional: Option<Box<Node>>,
}

/// Children by array filter identifier; the empty identifier is `$[]`.
#[derive(Debug, Default)]
pub(super) struct ArrayNode {
    pub(super) children: Vec<(String, Node)>,
}

/// The identifier inside `$[identifier]`.
pub(super) fn identifier(part: &str) -> Option<&str> {
    part.strip_prefix("$[")?.strip_suffix(']')
}

/// Order of new fields: names in byte order, but numbers among themselves by value.
pub(super) fn name_order(a: &str, b: &str) -> Ordering {
    if is_index(a) && is_index(b) { a.len().cmp(&b.len()).then_with(|| a.cmp(b)) } else { a.cmp(b) }
}

fn is_index(name: &str) -> bool {
    let bytes = name.as_bytes();
    !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit) && (bytes[0] != b'0' || bytes.len() == 1)
}

impl ObjectNode {
    /// Puts `op` at the end of `path` (its parts; at least one).
    pub(super) fn insert(&mut self, path: &str, op: Op) -> Result<()> {
        let parts: Vec<&str> = path.split('.').collect();
        insert_below_object(self, &parts, 0, op)
    }
}

fn conflict(parts: &[&str], upto: usize) -> Result<()> {
    bail!(
        Code::CONFLICTING_UPDATE_OPERATORS,
        "Updating the path '{}' would create a conflict at '{}'",
        parts.join("."),
        parts[..upto].join(".")
    )
}

fn insert_below_object(node: &mut ObjectNode, parts: &[&str], at: usize, op: Op) -> Result<()> {
    if parts[at] == "$" {
        return match &mut node.positional {
            Some(child) => insert_into(child, parts, at + 1, op),
            empty => {
                *empty = Some(Box::new(chain(parts, at + 1, op)));
                Ok(())
            }
        };
    }
    insert_named(&mut node.children, parts[at], parts, at, op)
}

fn insert_named(
    children: &mut Vec<(String, Node)>,
    name: &str,
    parts: &[&str],
    at: usize,
    op: Op,
) -> Result<()> {
    match children.binary_search_by(|(key, _)| name_order(key, name)) {
        Ok(found) => insert_into(&mut children[found].1, parts, at + 1, op),
        Err(place) => {
            // What stands behind moves: very many paths take a while, and must end when they are told to.
            sheaf_meter::tick(1 + (children.len() - place) as u32 / 8)?;
            children.insert(place, (name.to_owned(), chain(parts, at + 1, op)));
            Ok(())
        }
    }
}

/// Continues at an existing node, which stands for `parts[..at]`.
fn insert_into(node: &mut Node, parts: &[&str], at: usize, op: Op) -> Result<()> {
    if at == parts.len() {
        return conflict(parts, at);
    }
    match (node, identifier(parts[at])) {
        (Node::Object(object), None) => insert_below_object(object, parts, at, op),
        (Node::Array(array), Some(id)) => insert_named(&mut array.children, id, parts, at, op),
        _ => conflict(parts, at),
    }
}

/// A fresh chain of nodes for `parts[at..]`.
fn chain(parts: &[&str], at: usize, op: Op) -> Node {
    let Some(part) = parts.get(at) else { return Node::Leaf(op) };
    let below = chain(parts, at + 1, op);
    if let Some(id) = identifier(part) {
        return Node::Array(ArrayNode { children: vec![(id.to_owned(), below)] });
    }
    if *part == "$" {
        return Node::Object(ObjectNode { children: Vec::new(), positional: Some(Box::new(below)) });
    }
    Node::Object(ObjectNode { children: vec![((*part).to_owned(), below)], positional: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_order_by_value() {
        let mut names = vec!["b", "10", "9", "a", "2", "02"];
        names.sort_by(|a, b| name_order(a, b));
        assert_eq!(names, ["02", "2", "9", "10", "a", "b"]);
    }
}
