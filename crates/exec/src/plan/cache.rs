//! Plans remembered by query shape.

use std::sync::{Arc, LazyLock};

use ahash::AHashMap;
use parking_lot::Mutex;
use sheaf_storage::{Collection, Uuid};

use super::{Node, Query};

/// Shapes remembered for one process; beyond it everything is forgotten at once, which costs one trial each.
const MAX_ENTRIES: usize = 5000;

/// What is remembered of a chosen plan: enough to find it among the candidates again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice(String);

impl Choice {
    /// What tells a plan from the other candidates of its query: its scans and whether it sorts.
    pub fn of(plan: &Node) -> Self {
        let mut text = String::new();
        describe(plan, &mut text);
        Choice(text)
    }
}

fn describe(node: &Node, out: &mut String) {
    match node {
        Node::IndexScan(scan) | Node::CountScan(scan) | Node::DistinctScan(scan) => {
            out.push_str(&scan.index.name);
            out.push(if scan.backward { '<' } else { '>' });
            if let Some((path, _)) = scan.fields.first() {
                out.push_str(path);
            }
        }
        Node::CollScan { .. } => out.push('*'),
        Node::Sort { .. } => out.push_str("sort"),
        Node::SortMerge { .. } => out.push_str("merge"),
        Node::Or { .. } => out.push_str("or"),
        _ => {}
    }
    for input in node.inputs() {
        out.push('(');
        describe(input, out);
        out.push(')');
    }
}

struct Entry {
    /// The catalog's version: any DDL makes the entry stale.
    version: u64,
    choice: Choice,
}

type Key = (Uuid, u64);

static CACHE: LazyLock<Mutex<AHashMap<Key, Entry>>> = LazyLock::new(Default::default);

/// The hash that `queryShapeHash`, `planCacheShapeHash` and `planCacheKey` show.
pub fn shape_hash(query: &Query) -> u64 {
    let mut shape = query.matcher().shape();
    for part in [&query.sort_spec, &query.projection_spec] {
        shape.push(0xFF);
        shape.extend_from_slice(part.as_bytes());
    }
    // FNV-1a: stable between runs, as explain's hashes are.
    shape
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The candidate that was chosen for this shape before.
pub fn lookup(query: &Query, collection: &Collection, version: u64, plans: &[Node]) -> Option<Arc<Node>> {
    let cache = CACHE.lock();
    let entry = cache.get(&(collection.uuid, shape_hash(query))).filter(|entry| entry.version == version)?;
    plans.iter().find(|plan| Choice::of(plan) == entry.choice).map(|plan| Arc::new(plan.clone()))
}

/// Remembers a choice.
pub fn store(query: &Query, collection: &Collection, version: u64, choice: Choice) {
    let mut cache = CACHE.lock();
    if cache.len() >= MAX_ENTRIES {
        cache.clear();
    }
    cache.insert((collection.uuid, shape_hash(query)), Entry { version, choice });
}

/// Forgets a collection's plans, or all of them.
pub fn clear(collection: Option<Uuid>) {
    CACHE.lock().retain(|(uuid, _), _| collection.is_some_and(|gone| *uuid != gone));
}
