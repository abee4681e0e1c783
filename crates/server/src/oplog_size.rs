//! How much log this member keeps: `--oplogSize`, until `replSetResizeOplog` says otherwise. What it says is kept in
//! `local`, as it is each member's own.

use std::time::Duration;

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::Result;
use sheaf_storage::{CreateCollection, Interrupt, Write};

use crate::node::Node;

const NAMESPACE: &str = "local.replset.oplogSize";
const ID: &str = "oplog";

/// Sets the log's size and the least age of what is removed from it, and keeps both for later starts.
pub fn change(
    node: &Node,
    bytes: Option<u64>,
    retention_hours: Option<f64>,
    interrupt: Interrupt<'_>,
) -> Result<()> {
    let mut unit = node.engine().write(interrupt);
    if unit.collection(NAMESPACE)?.is_none() {
        unit.create_collection(NAMESPACE, CreateCollection::default())?;
    }
    if let Some(collection) = unit.collection(NAMESPACE)? {
        let key = collection.record_key(Value::String(ID))?;
        let old = unit.read_for_update(&collection, &key)?;
        let known = old.as_ref().map_or(RawDoc::EMPTY, |old| RawDoc::new(old));
        let document = DocBuf::build(|out| {
            out.append("_id", ID);
            let bytes = bytes.map(|bytes| Value::Int64(bytes as i64)).or_else(|| known.get("bytes"));
            let hours = retention_hours.map(Value::Double).or_else(|| known.get("minRetentionHours"));
            for (name, value) in [("bytes", bytes), ("minRetentionHours", hours)] {
                if let Some(value) = value {
                    out.append(name, value);
                }
            }
        });
        match &old {
            Some(old) => unit.update(&collection, &key, RawDoc::new(old), document.as_raw(), None)?,
            None => unit.insert(&collection, document.as_raw())?,
        }
    }
    unit.commit()?;
    put_in_force(node, bytes, retention_hours);
    Ok(())
}

/// Puts in force what an earlier `replSetResizeOplog` has said.
pub fn restore(node: &Node) -> Result<()> {
    let view = node.engine().view()?;
    let Some(collection) = view.collection(NAMESPACE) else { return Ok(()) };
    let Some(found) = view.get(collection, &collection.record_key(Value::String(ID))?)? else {
        return Ok(());
    };
    let found = found.as_raw();
    let bytes = found.get("bytes").and_then(|bytes| bytes.as_exact_i64()).map(|bytes| bytes.max(0) as u64);
    put_in_force(node, bytes, found.get("minRetentionHours").and_then(|hours| hours.as_f64()));
    Ok(())
}

fn put_in_force(node: &Node, bytes: Option<u64>, retention_hours: Option<f64>) {
    let retention = retention_hours.map(|hours| Duration::try_from_secs_f64(hours * 3600.0));
    node.engine().set_oplog_size(bytes, retention.map(|retention| retention.unwrap_or(Duration::MAX)));
}
