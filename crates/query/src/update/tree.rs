//! The tree of modifiers: one node per part of an updated path, so that a document is rewritten in one walk
//! and conflicting paths are found while parsing.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use sheaf_errors::{Code, Result, bail};
use sheaf_meter::ALLOCATION;

use super::ops::Op;
use crate::name_order::name_order;

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
    pub(super) children: Siblings,
    /// What stands below `$`.
    pub(super) positional: Option<Box<Node>>,
}

/// Children by array filter identifier; the empty identifier is `$[]`.
#[derive(Debug, Default)]
pub(super) struct ArrayNode {
    pub(super) children: Siblings,
}

/// So many children are kept in order while they come; to put each of more into its place would move those behind it each time.
const FEW: usize = 32;

/// Children of one node, ordered by [`name_order`].
#[derive(Debug, Default)]
pub(super) struct Siblings {
    ordered: Vec<(String, Node)>,
    /// All of them, once there are many, until the tree is whole.
    many: BTreeMap<Name, Node>,
}

/// A name that is ordered by [`name_order`].
#[derive(Debug)]
struct Name(String);

impl Ord for Name {
    fn cmp(&self, other: &Self) -> Ordering {
        name_order(&self.0, &other.0)
    }
}
impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Name {}

impl Siblings {
    fn one(name: &str, node: Node) -> Siblings {
        Siblings { ordered: vec![(name.to_owned(), node)], many: BTreeMap::new() }
    }

    /// The children of a tree that is whole.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Node)> {
        debug_assert!(self.many.is_empty(), "the tree is not whole yet");
        self.ordered.iter().map(|(name, node)| (name.as_str(), node))
    }

    fn child(&mut self, name: &str) -> Option<&mut Node> {
        if !self.many.is_empty() {
            return self.many.get_mut(&Name(name.to_owned()));
        }
        let found = self.ordered.binary_search_by(|(key, _)| name_order(key, name));
        found.ok().map(|at| &mut self.ordered[at].1)
    }

    /// Adds a child whose name is new.
    fn add(&mut self, name: &str, node: Node) {
        if self.many.is_empty() && self.ordered.len() < FEW {
            let place = self.ordered.partition_point(|(key, _)| name_order(key, name).is_lt());
            return self.ordered.insert(place, (name.to_owned(), node));
        }
        self.many.extend(self.ordered.drain(..).map(|(name, node)| (Name(name), node)));
        self.many.insert(Name(name.to_owned()), node);
    }

    fn settle(&mut self) {
        self.ordered.extend(std::mem::take(&mut self.many).into_iter().map(|(name, node)| (name.0, node)));
        self.ordered.iter_mut().for_each(|(_, node)| node.settle());
    }
}

impl Node {
    fn settle(&mut self) {
        match self {
            Node::Object(object) => object.settle(),
            Node::Array(array) => array.children.settle(),
            Node::Leaf(_) => {}
        }
    }
}

/// What a path takes: in the tree, where its names are kept apart, and twice as it is written.
pub(super) fn path_bytes(path: &str) -> usize {
    let parts = 1 + path.bytes().filter(|b| *b == b'.').count();
    3 * path.len() + parts * (2 * size_of::<(String, Node)>() + 2 * ALLOCATION)
}

/// The identifier inside `$[identifier]`.
pub(super) fn identifier(part: &str) -> Option<&str> {
    part.strip_prefix("$[")?.strip_suffix(']')
}

impl ObjectNode {
    /// Puts `op` at the end of `path` (its parts; at least one).
    pub(super) fn insert(&mut self, path: &str, op: Op) -> Result<()> {
        let parts: Vec<&str> = path.split('.').collect();
        insert_below_object(self, &parts, 0, op)
    }

    /// All paths are there.
    pub(super) fn settle(&mut self) {
        self.children.settle();
        if let Some(positional) = &mut self.positional {
            positional.settle();
        }
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

fn insert_named(children: &mut Siblings, name: &str, parts: &[&str], at: usize, op: Op) -> Result<()> {
    // Very many paths take a while, and must end when they are told to.
    sheaf_meter::tick(1)?;
    if let Some(child) = children.child(name) {
        return insert_into(child, parts, at + 1, op);
    }
    children.add(name, chain(parts, at + 1, op));
    Ok(())
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
        return Node::Array(ArrayNode { children: Siblings::one(id, below) });
    }
    if *part == "$" {
        return Node::Object(ObjectNode { children: Siblings::default(), positional: Some(Box::new(below)) });
    }
    Node::Object(ObjectNode { children: Siblings::one(part, below), positional: None })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{self, AtomicUsize};

    use super::*;

    #[test]
    fn numbers_order_by_value() {
        let mut names = vec!["b", "10", "9", "a", "2", "02"];
        names.sort_by(|a, b| name_order(a, b));
        assert_eq!(names, ["02", "2", "9", "10", "a", "b"]);
        // Others do not come between them.
        let mut names = vec!["9", "1a", "10", "!", "5b", "5"];
        names.sort_by(|a, b| name_order(a, b));
        assert_eq!(names, ["!", "5", "9", "10", "1a", "5b"]);
    }

    fn names(node: &ObjectNode) -> Vec<&str> {
        node.children.iter().map(|(name, _)| name).collect()
    }

    fn tree(paths: impl Iterator<Item = String>) -> Result<ObjectNode> {
        let mut root = ObjectNode::default();
        for path in paths {
            root.insert(&path, Op::RenameFrom(0))?;
        }
        root.settle();
        Ok(root)
    }

    #[test]
    fn many_siblings_stand_in_order_and_conflict_as_few_do() {
        for count in [3, FEW, FEW + 1, 5000] {
            let mixed = |at: usize| at * 7919 % count;
            let root = tree((0..count).map(|at| format!("a.{}", mixed(at)))).unwrap();
            let Node::Object(below) = &root.children.ordered[0].1 else { panic!("a has children") };
            assert_eq!(names(below), (0..count).map(|at| at.to_string()).collect::<Vec<_>>());
            let ids = tree((0..count).map(|at| format!("a.$[x{at}].b"))).unwrap();
            let Node::Array(below) = &ids.children.ordered[0].1 else { panic!("a has filters") };
            assert_eq!(below.children.iter().count(), count);
            for wrong in ["a.1", "a.2.b", "a", "a.$[]"] {
                let paths = (0..count).map(|at| format!("a.{}", mixed(at))).chain([wrong.to_owned()]);
                let error = tree(paths).unwrap_err();
                assert_eq!(error.code(), Code::CONFLICTING_UPDATE_OPERATORS, "{wrong}: {error}");
            }
        }
    }

    /// Counted as the meter counts: each new path once, wherever it has to stand.
    #[test]
    fn the_work_for_many_paths_grows_with_their_number_only() {
        const PATHS: usize = 100_000;
        let looks = Arc::new(AtomicUsize::new(0));
        let source = {
            let looks = looks.clone();
            move || {
                looks.fetch_add(1, atomic::Ordering::Relaxed);
                Ok(())
            }
        };
        let process = sheaf_meter::Process::new(1 << 30, 1 << 30);
        let _entered = sheaf_meter::enter(sheaf_meter::Meter::new(&process, Arc::new(source)));
        // From the last to the first: each would stand before all others.
        let root = tree((0..PATHS).rev().map(|at| format!("f{at:06}"))).unwrap();
        assert_eq!(root.children.iter().count(), PATHS);
        let looks = looks.load(atomic::Ordering::Relaxed);
        assert!(looks < PATHS / 50, "{looks} looks at the clock for {PATHS} paths");
    }
}
