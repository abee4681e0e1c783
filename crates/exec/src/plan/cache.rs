//! Plans remembered by query shape, in the engine ([`View::plans`]).

use std::sync::Arc;

use sheaf_bson::DocBuf;
use sheaf_storage::{Collection, View};

use super::{PlanNode, Query};

/// What is remembered of a chosen plan: enough to find it among the candidates again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice(String);

impl Choice {
    /// What tells a plan from the other candidates of its query: its scans and whether it sorts.
    pub fn of(plan: &PlanNode) -> Self {
        let mut text = String::new();
        describe(plan, &mut text);
        Choice(text)
    }
}

fn describe(node: &PlanNode, out: &mut String) {
    match node {
        PlanNode::IndexScan(scan) | PlanNode::CountScan(scan) | PlanNode::DistinctScan(scan) => {
            out.push_str(&scan.index.name);
            out.push(if scan.backward { '<' } else { '>' });
            if let Some((path, _)) = scan.fields.first() {
                out.push_str(path);
            }
        }
        PlanNode::CollScan { .. } => out.push('*'),
        PlanNode::Sort { .. } => out.push_str("sort"),
        PlanNode::SortMerge { .. } => out.push_str("merge"),
        PlanNode::Or { .. } => out.push_str("or"),
        _ => {}
    }
    for input in node.inputs() {
        out.push('(');
        describe(input, out);
        out.push(')');
    }
}

/// The hash that `planCacheShapeHash` and `planCacheKey` show.
pub fn shape_hash(query: &Query) -> u64 {
    let mut shape = query.matcher().shape();
    shape.push(0xFF);
    for field in query.sort_spec.as_raw().iter() {
        shape.extend_from_slice(field.key_bytes());
        // A direction is one whatever the type of its number.
        match field.value().as_f64() {
            Some(direction) => shape.push(if direction < 0.0 { 1 } else { 2 }),
            None => shape.extend_from_slice(field.as_bytes()),
        }
    }
    shape.push(0xFF);
    shape.extend_from_slice(query.projection_spec.as_bytes());
    // Strings that are compared in another way make another shape.
    if let Some(collator) = &query.collator {
        shape.extend_from_slice(collator.to_doc().as_bytes());
    }
    hash(&shape)
}

/// FNV-1a: stable between runs, as explain's hashes are.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The candidate that was chosen for this shape before.
pub fn lookup(
    query: &Query,
    collection: &Collection,
    view: &View,
    plans: &[PlanNode],
) -> Option<Arc<PlanNode>> {
    let chosen = view.plans().get(collection.uuid, shape_hash(query), view.catalog().version())?;
    plans.iter().find(|plan| *Choice::of(plan).0 == *chosen).map(|plan| Arc::new(plan.clone()))
}

/// Remembers a choice, and how `$planCacheStats` shows it.
pub fn store(query: &Query, collection: &Collection, view: &View, choice: &Choice, shown: DocBuf) {
    view.plans().set(collection.uuid, shape_hash(query), view.catalog().version(), &choice.0, shown);
}
