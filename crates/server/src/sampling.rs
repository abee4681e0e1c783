//! Samples of queries on a replica set: its primary asks what is to be sampled, and writes what was.
//!
//! Members of a sharded cluster sample nothing: routers do, since only they see a request once.

use std::cell::RefCell;
use std::sync::Arc;

use sheaf_bson::{Binary, DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result};
use sheaf_exec::write::Change;
use sheaf_front::sampling::{Analyzer, Due, SAMPLES, TOLD_DIFFS, expiry_index, inline_diff};
use sheaf_storage::{CreateCollection, Write};

use crate::node::Node;
use crate::op::Operation;
use crate::reply::Reply;
use crate::sharding::rows;

/// The documents of `configureQueryAnalyzer`.
pub const ANALYZERS: &str = "config.queryAnalyzers";

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
    node.sampling.flush(|collection, batch| write_batch(node, collection, batch))
}

fn write_batch(node: &Node, name: &str, batch: &[DocBuf]) -> Result<()> {
    let unless_locked = || node.unless_locked();
    let namespace = format!("config.{name}");
    prepare(node, &namespace, expiry_index(name))?;
    let mut unit = node.engine().write(&unless_locked);
    let Some(collection) = unit.collection(&namespace)? else { return Ok(()) };
    for sample in batch {
        unit.insert(&collection, sample.as_raw())?;
    }
    unit.commit()?;
    Ok(())
}

/// Makes a collection, and the index by which its documents go away.
fn prepare(node: &Node, namespace: &str, index: &str) -> Result<()> {
    let unless_locked = || node.unless_locked();
    let engine = node.engine();
    if engine.catalog().collection(namespace).is_none() {
        match engine.create_collection(namespace, &CreateCollection::default(), &unless_locked) {
            Err(error) if error.code() != Code::NAMESPACE_EXISTS => return Err(error),
            _ => {}
        }
    }
    if engine.catalog().collection(namespace).is_some_and(|found| found.index(index).is_none()) {
        let spec = doc! { "v": 2, "key": { "expireAt": 1 }, "name": index, "expireAfterSeconds": 0 };
        engine.create_indexes(namespace, &[spec.as_raw()], &unless_locked)?;
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
    rows::find(&node.engine().view()?, &format!("config.{SAMPLES}"), is_wanted)
}

/// The sample that the update at this place is: by the number that a router has given it, or by this primary's own choice.
pub fn sample_of(op: &Operation<'_>, at: usize, told: Value<'_>) -> Option<[u8; 16]> {
    match told {
        Value::Binary(Binary { bytes, .. }) if op.node().is_in_cluster() => bytes.try_into().ok(),
        _ => op.sample_at(at),
    }
}

/// What a command's sampled updates have changed.
#[derive(Default)]
pub struct Diffs(RefCell<Vec<([u8; 16], DocBuf)>>);

impl Diffs {
    /// Notes a change by a statement: the first of a sample counts.
    pub fn note(&self, sample: Option<[u8; 16]>, change: Change<'_>) {
        let (Some(id), Change::Update { before, after }) = (sample, change) else { return };
        let mut diffs = self.0.borrow_mut();
        if diffs.iter().all(|(other, _)| *other != id)
            && let Some(diff) = inline_diff(before, after)
        {
            diffs.push((id, diff));
        }
    }

    /// Tells the router that has sampled them, or keeps them where this primary has.
    pub fn tell(&self, op: &Operation<'_>, namespace: &str, reply: &mut Reply) {
        self.tell_each(op, |_| namespace, reply);
    }

    /// The same, where each of them may be of another namespace.
    pub fn tell_each<'n>(
        &self,
        op: &Operation<'_>,
        namespace_of: impl Fn(&[u8; 16]) -> &'n str,
        reply: &mut Reply,
    ) {
        let diffs = self.0.take();
        if diffs.is_empty() {
            return;
        }
        let node = op.node();
        if !node.is_in_cluster() {
            let expires = node.samples_expire();
            diffs.iter().for_each(|(id, diff)| {
                node.sampling.note_diff(namespace_of(id), id, diff.as_raw(), expires);
            });
            return;
        }
        reply.fill(|out| {
            let mut list = out.array(TOLD_DIFFS);
            for (id, diff) in &diffs {
                let mut entry = list.document();
                entry.append("_id", Value::Binary(Binary { subtype: 4, bytes: id }));
                entry.append("diff", diff.as_raw());
            }
        });
    }
}
