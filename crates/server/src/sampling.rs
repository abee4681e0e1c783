//! Samples of queries on a replica set: its primary asks what is to be sampled, and writes what was.
//!
//! Members of a sharded cluster sample nothing: routers do, since only they see a request once.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, doc};
use sheaf_errors::{Code, Result};
use sheaf_front::sampling::{Analyzer, Due, SAMPLES_INDEX};
use sheaf_storage::{CreateCollection, Write};

use crate::node::Node;
use crate::sharding::rows;

/// The documents of `configureQueryAnalyzer`.
pub const ANALYZERS: &str = "config.queryAnalyzers";
/// The samples.
pub const SAMPLES: &str = "config.sampledQueries";

/// Runs until shutdown.
pub async fn run(node: Arc<Node>) {
    if node.replica().is_none() || node.is_in_cluster() {
        return;
    }
    let mut due = Due::default();
    loop {
        tokio::select! {
            () = tokio::time::sleep(Due::TICK) => {}
            () = node.until_shutdown() => return,
        }
        if !node.is_writable() {
            // The next primary has its own.
            node.sampling.configure(Vec::new(), 1.0);
            node.sampling.discard();
            due = Due::default();
            continue;
        }
        if due.asks(&node.parameters) {
            tell(tokio::task::block_in_place(|| refresh(&node)));
        }
        if due.writes(&node.parameters) {
            tell(tokio::task::block_in_place(|| write(&node)));
        }
    }
}

fn tell(done: Result<()>) {
    if let Err(error) = done {
        tracing::debug!(%error, "queries are not sampled for now");
    }
}

/// Asks what is to be sampled: of collections that are there, since configurations outlive them.
///
/// Errors: it cannot be read.
pub fn refresh(node: &Node) -> Result<()> {
    let found = rows::find(&node.engine().view()?, ANALYZERS, |_| true)?;
    let catalog = node.engine().catalog();
    let is_there = |analyzer: &Analyzer| {
        catalog.collection(&analyzer.namespace).is_some_and(|of| *of.uuid.as_bytes() == analyzer.uuid)
    };
    let analyzers = found.iter().filter_map(|found| Analyzer::parse(found.as_raw())).filter(is_there);
    node.sampling.configure(analyzers.collect(), 1.0);
    Ok(())
}

/// Writes the samples that were taken.
///
/// Errors: `NotWritablePrimary`, `LockTimeout`; those of the disk. What is not written is kept for the next time.
pub fn write(node: &Node) -> Result<()> {
    node.sampling.flush(|batch| write_batch(node, batch))
}

fn write_batch(node: &Node, batch: &[DocBuf]) -> Result<()> {
    let unless_locked = || node.unless_locked();
    prepare(node)?;
    let mut unit = node.engine().write(&unless_locked);
    let Some(collection) = unit.collection(SAMPLES)? else { return Ok(()) };
    for sample in batch {
        unit.insert(&collection, sample.as_raw())?;
    }
    unit.commit()?;
    Ok(())
}

/// Makes the collection of samples, and the index by which they go away.
fn prepare(node: &Node) -> Result<()> {
    let unless_locked = || node.unless_locked();
    let engine = node.engine();
    if engine.catalog().collection(SAMPLES).is_none() {
        match engine.create_collection(SAMPLES, &CreateCollection::default(), &unless_locked) {
            Err(error) if error.code() != Code::NAMESPACE_EXISTS => return Err(error),
            _ => {}
        }
    }
    if engine.catalog().collection(SAMPLES).is_some_and(|found| found.index(SAMPLES_INDEX).is_none()) {
        let spec = doc! { "v": 2, "key": { "expireAt": 1 }, "name": SAMPLES_INDEX, "expireAfterSeconds": 0 };
        engine.create_indexes(SAMPLES, &[spec.as_raw()], &unless_locked)?;
    }
    Ok(())
}

/// The documents of `$listSampledQueries`, with what this member has not written yet.
///
/// Errors: they cannot be read, or written.
pub fn list(node: &Node, spec: RawDoc<'_>) -> Result<Vec<DocBuf>> {
    if node.sampling.is_active() && node.is_writable() {
        write(node)?;
    }
    let wanted = spec.get("namespace").and_then(|name| name.as_str());
    let is_wanted = |sample: RawDoc<'_>| {
        wanted.is_none_or(|wanted| sample.get("ns").and_then(|ns| ns.as_str()) == Some(wanted))
    };
    rows::find(&node.engine().view()?, SAMPLES, is_wanted)
}
