//! Operations that give a collection another key or place, as `currentOp` shows them.

use sheaf_bson::{DocBuf, RawDoc, doc};

/// An operation under way, as `currentOp` shows it: what a service does for it, which command and key it is of, and since how many seconds.
pub fn operation(
    service: &str,
    id: &[u8; 16],
    namespace: &str,
    (command, key): (&str, RawDoc<'_>),
    elapsed: i64,
) -> DocBuf {
    let originating = doc! {
        "reshardCollection": namespace, "key": key, "unique": false, "collation": { "locale": "simple" },
        "provenance": command
    };
    let desc = format!("Resharding{service}Service {}", sheaf_bson::uuid_text(*id));
    doc! {
        "type": "op", "desc": &desc, "op": "command", "ns": namespace, "originatingCommand": originating.as_raw(),
        "totalOperationTimeElapsedSecs": elapsed
    }
}
