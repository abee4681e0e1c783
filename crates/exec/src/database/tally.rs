//! What one stage of a pipeline does, measured for explain.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use sheaf_aggregate::{BoxSource, RunCx, Source};
use sheaf_bson::DocBuf;
use sheaf_errors::Result;

use super::Db;
use crate::plan::Node;
use crate::run::{Executor, Spills};

/// The figures of one stage. Time includes the stages before it, as mongod measures it.
#[derive(Default, Debug)]
pub struct Tally {
    /// Documents given.
    pub returned: AtomicU64,
    /// Their bytes.
    pub bytes: AtomicU64,
    /// Time spent.
    pub nanos: AtomicU64,
    /// What its sorts put on disk.
    pub spills: Arc<Spills>,
    /// Index keys looked at in other collections.
    pub keys: AtomicU64,
    /// Documents looked at in other collections.
    pub docs: AtomicU64,
    /// Scans of other collections.
    pub scans: AtomicU64,
    /// Names of the indexes used in other collections.
    pub indexes: Mutex<BTreeSet<String>>,
}

impl Tally {
    /// Adds what a run on another collection has read.
    pub fn read(&self, executor: &Executor) {
        let (keys, docs) = executor.examined();
        self.keys.fetch_add(keys, Ordering::Relaxed);
        self.docs.fetch_add(docs, Ordering::Relaxed);
        self.visit(executor.plan(), executor);
    }

    /// Adds one document read by its `_id`.
    pub fn read_one(&self, index: &str, found: bool) {
        self.keys.fetch_add(u64::from(found), Ordering::Relaxed);
        self.docs.fetch_add(u64::from(found), Ordering::Relaxed);
        self.indexes.lock().insert(index.to_owned());
    }

    fn visit(&self, node: &Node, executor: &Executor) {
        match node {
            Node::CollScan { .. } => _ = self.scans.fetch_add(1, Ordering::Relaxed),
            Node::IndexScan(scan) | Node::CountScan(scan) | Node::DistinctScan(scan) => {
                self.indexes.lock().insert(scan.index.name.clone());
            }
            Node::IdLookup { .. } => {
                let first = executor.collection().indexes.first();
                self.indexes.lock().extend(first.map(|index| index.name.clone()));
            }
            other => other.inputs().iter().for_each(|input| self.visit(input, executor)),
        }
    }
}

/// A stage that is measured.
pub struct Tallied {
    inner: BoxSource,
    tally: Arc<Tally>,
}

impl Tallied {
    /// Measures a stage.
    pub fn new(inner: BoxSource, tally: Arc<Tally>) -> Self {
        Tallied { inner, tally }
    }
}

impl Source for Tallied {
    fn next(&mut self, cx: &mut RunCx<'_>) -> Result<Option<DocBuf>> {
        let db = cx.database.as_any().downcast_ref::<Db>();
        // What the database is asked for now, this stage asks for.
        let outer = db.map(|db| db.tally.replace(Some(self.tally.clone())));
        let began = Instant::now();
        let next = self.inner.next(cx);
        self.tally.nanos.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        if let (Some(db), Some(outer)) = (db, outer) {
            db.tally.replace(outer);
        }
        if let Ok(Some(doc)) = &next {
            self.tally.returned.fetch_add(1, Ordering::Relaxed);
            self.tally.bytes.fetch_add(doc.as_bytes().len() as u64, Ordering::Relaxed);
        }
        next
    }
}
