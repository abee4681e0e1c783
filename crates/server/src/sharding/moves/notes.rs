//! The donor of a collection that gets another key or place: what has changed since a recipient began to copy it.
//!
//! Notes are in memory. If they are gone, with the office of this member, the recipient is refused, and compares everything once more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use sheaf_bson::{DocBuf, RawDoc};
use sheaf_shard::moves::{ChangeOf, Changes};
use sheaf_storage::Uuid;

use crate::sharding::shown::operation;

/// For whom is noted: the operation, and its recipient.
pub type For = ([u8; 16], String);

/// All that is noted on a donor's primary.
#[derive(Default)]
pub(super) struct Notes {
    pub next: i64,
    pub running: BTreeMap<For, Note>,
}

/// What is noted for one recipient.
pub(super) struct Note {
    pub collection: Uuid,
    /// The office and number of this note.
    pub name: (u64, i64),
    pub changes: Changes,
    pub namespace: String,
    pub command: String,
    pub began: Instant,
}

impl Notes {
    /// What `currentOp` shows of them, once for each operation.
    pub fn shown(&self) -> Vec<DocBuf> {
        let mut shown: BTreeMap<[u8; 16], DocBuf> = BTreeMap::new();
        for ((id, _), note) in &self.running {
            let elapsed = note.began.elapsed().as_secs() as i64;
            let command = (note.command.as_str(), RawDoc::EMPTY);
            let entry = operation("Donor", id, &note.namespace, command, elapsed);
            let entry = entry.with("donorState", "donating-oplog-entries").with("opStatus", "running");
            shown.entry(*id).or_insert(entry);
        }
        shown.into_values().collect()
    }

    /// The collections whose changes are noted.
    pub fn collections(&self) -> impl Iterator<Item = Uuid> {
        self.running.values().map(|note| note.collection)
    }

    /// A document has changed, visibly.
    pub fn changed(&mut self, collection: &Uuid, document: &Arc<[u8]>) {
        for note in self.running.values_mut().filter(|note| note.collection == *collection) {
            note.changes.note(ChangeOf::Document(document.clone()));
        }
        self.limit();
    }

    /// A retryable statement was executed, visibly.
    pub fn session_changed(&mut self, session: &Arc<[u8]>) {
        self.running.values_mut().for_each(|note| note.changes.note(ChangeOf::Session(session.clone())));
        self.limit();
    }

    /// Whoever falls behind that far compares everything once more.
    fn limit(&mut self) {
        self.running.retain(|_, note| !note.changes.are_too_many());
    }

    /// Nobody will ask about an operation any more.
    pub fn end(&mut self, id: &[u8; 16]) {
        self.running.retain(|(of, _), _| of != id);
    }

    /// This member leads no more, or anew.
    pub fn clear(&mut self) {
        self.running.clear();
    }
}

/// A collection whose changes are to be noted, and for what command.
pub struct Noted {
    pub collection: Uuid,
    pub namespace: String,
    pub command: String,
}

/// What is told of notes: the oldest with their numbers, how many more there are, and the number of the newest.
pub type Told = (Vec<(u64, ChangeOf)>, u64, u64);
