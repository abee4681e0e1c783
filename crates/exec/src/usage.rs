//! Who uses what: accesses of indexes, scans of collections.

use sheaf_storage::{Collection, Index};
use smallvec::SmallVec;

use crate::plan::PlanNode;

/// Counts what a plan that begins to run uses; an index counts once, however often the plan reads it. Gives the number of scans of the
/// whole collection.
pub fn note(plan: &PlanNode, collection: &Collection, tailable: bool) -> u64 {
    let mut scans = 0;
    let mut seen: SmallVec<[u32; 4]> = SmallVec::new();
    visit(plan, &mut |node| match node {
        PlanNode::IndexScan(scan) | PlanNode::CountScan(scan) | PlanNode::DistinctScan(scan) => {
            once(&scan.index, &mut seen)
        }
        PlanNode::GeoNear(near) => once(&near.scan.index, &mut seen),
        PlanNode::IdLookup { .. } => {
            if let Some(index) = collection.indexes.first() {
                once(index, &mut seen);
            }
        }
        PlanNode::CollScan { .. } => {
            collection.count_scan(tailable);
            scans += 1;
        }
        _ => {}
    });
    scans
}

fn once(index: &Index, seen: &mut SmallVec<[u32; 4]>) {
    if !seen.contains(&index.ident) {
        seen.push(index.ident);
        index.accesses.count();
    }
}

fn visit(node: &PlanNode, look: &mut dyn FnMut(&PlanNode)) {
    look(node);
    node.inputs().iter().for_each(|input| visit(input, look));
}
