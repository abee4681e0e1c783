//! Who uses what: accesses of indexes, scans of collections.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use parking_lot::RwLock;
use sheaf_storage::{Collection, Index, Uuid};
use smallvec::SmallVec;

use crate::plan::Node;

/// Scans of one collection since the server started: what `queryExecStats` shows.
#[derive(Default, Debug)]
pub struct Scans {
    total: AtomicU64,
    non_tailable: AtomicU64,
}

static SCANS: LazyLock<RwLock<HashMap<Uuid, Arc<Scans>>>> = LazyLock::new(RwLock::default);

/// Counts what a plan that begins to run uses; an index counts once, however often the plan reads it.
pub fn note(plan: &Node, collection: &Collection, tailable: bool) {
    let mut seen: SmallVec<[u32; 4]> = SmallVec::new();
    visit(plan, &mut |node| match node {
        Node::IndexScan(scan) | Node::CountScan(scan) | Node::DistinctScan(scan) => {
            once(&scan.index, &mut seen)
        }
        Node::IdLookup { .. } => {
            if let Some(index) = collection.indexes.first() {
                once(index, &mut seen);
            }
        }
        Node::CollScan { range: None, .. } => count_scan(collection, tailable),
        _ => {}
    });
}

fn once(index: &Index, seen: &mut SmallVec<[u32; 4]>) {
    if !seen.contains(&index.ident) {
        seen.push(index.ident);
        index.accesses.count();
    }
}

fn visit(node: &Node, look: &mut dyn FnMut(&Node)) {
    look(node);
    node.inputs().iter().for_each(|input| visit(input, look));
}

fn count_scan(collection: &Collection, tailable: bool) {
    let known = SCANS.read().get(&collection.uuid).cloned();
    let scans = known.unwrap_or_else(|| SCANS.write().entry(collection.uuid).or_default().clone());
    scans.total.fetch_add(1, Ordering::Relaxed);
    if !tailable {
        scans.non_tailable.fetch_add(1, Ordering::Relaxed);
    }
}

/// Scans of a collection: all, and those of cursors that are not tailable.
pub fn scans(collection: &Collection) -> (u64, u64) {
    SCANS.read().get(&collection.uuid).map_or((0, 0), |scans| {
        (scans.total.load(Ordering::Relaxed), scans.non_tailable.load(Ordering::Relaxed))
    })
}
