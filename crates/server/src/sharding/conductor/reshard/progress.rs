//! What is told of operations under way: `config.reshardingOperations`, and the coordinator's entry of `currentOp`.

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value, doc};
use sheaf_errors::Result;
use sheaf_storage::Interrupt;

use super::At;
use crate::sharding::conductor::Conductor;
use crate::sharding::conductor::ddl::text;
use crate::sharding::shown::operation;

/// Where they are.
pub(super) const OPERATIONS: &str = "config.reshardingOperations";

/// Notes what an operation is at.
pub(super) fn note(conductor: &Conductor, at: At<'_>, state: &str, go_on: Interrupt<'_>) -> Result<()> {
    let document = document(at, state)?;
    conductor.change(go_on, |change| change.put(OPERATIONS, document.as_raw()))
}

/// The document for an operation in a state.
pub(super) fn document(at: At<'_>, state: &str) -> Result<DocBuf> {
    let shards = |names: &[String]| {
        ArrayBuf::build(|list| names.iter().for_each(|name| _ = list.document().append("id", name.as_str())))
    };
    let donors: Vec<String> = at.list("donors").map(|donor| text(donor, "shard").to_owned()).collect();
    let recipients: Vec<String> = at.table()?.shards().map(|shard| shard.as_str().to_owned()).collect();
    Ok(doc! {
        "_id": at.0.get_or_missing("id"), "ns": at.namespace(), "uuid": at.0.get_or_missing("source"),
        "tempNs": &at.hidden().0, "reshardingKey": at.0.get_or_missing("key"),
        "startTime": at.0.get_or_missing("since"), "provenance": text(at.0, "command"), "state": state,
        "donorShards": Value::Array(shards(&donors).as_raw()),
        "recipientShards": Value::Array(shards(&recipients).as_raw())
    })
}

impl Conductor {
    /// The operations under way, as `currentOp` shows them; none where another member leads.
    pub fn resharding_operations(&self) -> Vec<DocBuf> {
        if self.term().is_err() {
            return Vec::new();
        }
        // What cannot be read now is not shown.
        let found = self.find(OPERATIONS, |_| true).unwrap_or_default();
        let shown = |of: RawDoc<'_>| {
            let began = match of.get("startTime") {
                Some(Value::DateTime(began)) => began,
                _ => return None,
            };
            let elapsed = (self.front.clock.now_millis() - began).max(0) / 1000;
            let id = super::uuid_of(of, "_id")?;
            let command = (text(of, "provenance"), of.get("reshardingKey")?.as_doc()?);
            let shown = operation("Coordinator", &id, text(of, "ns"), command, elapsed);
            Some(shown.with("coordinatorState", text(of, "state")).with("opStatus", "running"))
        };
        found.iter().filter_map(|of| shown(of.as_raw())).collect()
    }
}
