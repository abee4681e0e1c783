//! Samples of queries on a replica set: its primary asks what is to be sampled, and writes what was.
//!
//! Members of a sharded cluster sample nothing: routers do, since only they see a request once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, RawDoc, doc};
use sheaf_errors::{Code, Result};
use sheaf_front::sampling::{Analyzer, REFRESH, SAMPLES_INDEX, WRITE};
use sheaf_storage::{CreateCollection, Write};

use crate::node::Node;
use crate::sharding::rows;

/// The documents of `configureQueryAnalyzer`.
pub const ANALYZERS: &str = "config.queryAnalyzers";
/// The samples.
pub const SAMPLES: &str = "config.sampledQueries";

/// How often is looked whether something is due.
const TICK: Duration = Duration::from_millis(500);

/// Runs until shutdown.
pub async fn run(node: Arc<Node>) {
    let is_alone = node.replica().is_none() || node.is_in_cluster();
    if is_alone {
        return;
    }
    let seconds = |name: &str| Duration::from_secs(node.parameters.int(name).max(1) as u64);
    let (mut asked, mut written) = (None::<Instant>, Instant::now());
    loop {
        tokio::select! {
            () = tokio::time::sleep(TICK) => {}
            () = node.until_shutdown() => return,
        }
        if !node.is_writable() {
            // The next primary has its own.
            node.sampling.configure(Vec::new(), 1.0);
            node.sampling.discard();
            asked = None;
            continue;
        }
        if asked.is_none_or(|asked| asked.elapsed() >= seconds(REFRESH)) {
            asked = Some(Instant::now());
            tell(tokio::task::block_in_place(|| refresh(&node)));
        }
        if written.elapsed() >= seconds(WRITE) {
            written = Instant::now();
            tell(tokio::task::block_in_place(|| write(&node)));
        }
    }
}

fn tell(done: Result<()>) {
    if let Err(error) = done
        && error.code() != Code::LOCK_TIMEOUT
    {
        tracing::warn!(%error, "queries are not sampled for now");
    }
}

/// Asks what is to be sampled.
///
/// Errors: it cannot be read.
pub fn refresh(node: &Node) -> Result<()> {
    let found = rows::find(&node.engine().view()?, ANALYZERS, |_| true)?;
    let analyzers = found.iter().filter_map(|found| Analyzer::parse(found.as_raw())).collect();
    node.sampling.configure(analyzers, 1.0);
    Ok(())
}

/// Writes the samples that were taken.
///
/// Errors: `NotWritablePrimary`, `LockTimeout`; those of the disk. What is not written is kept for the next time.
pub fn write(node: &Node) -> Result<()> {
    loop {
        let batch = node.sampling.take_batch();
        if batch.is_empty() {
            return Ok(());
        }
        if let Err(error) = write_batch(node, &batch) {
            node.sampling.put_back(batch);
            return Err(error);
        }
    }
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
