//! This shard's part in giving collections another key or place, as far as it is kept with moves.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use sheaf_bson::DocBuf;
use sheaf_errors::Result;
use sheaf_shard::moves::{ChangeOf, Changes};
use sheaf_storage::Interrupt;

use super::notes::{For, Note, Noted, Told};
use super::{Moves, not_primary};
use crate::sharding::marks::PLACEMENTS;
use crate::sharding::rows;
use crate::sharding::shown::operation;

impl Moves {
    /// Notes what changes from now on, under the name that is given. All records of sessions count as changed.
    ///
    /// Errors: `NotWritablePrimary`.
    pub(in crate::sharding) fn begin_notes(
        self: &Arc<Self>,
        to: For,
        of: Noted,
        go_on: Interrupt<'_>,
    ) -> Result<(u64, i64)> {
        self.take_office()?;
        rows::ensure(&self.engine, PLACEMENTS, go_on)?;
        let Some(term) = self.term() else { return Err(not_primary()) };
        // While this is held nobody stops watching.
        let mut watching = self.watching.lock();
        self.watch(&mut watching, |all| _ = all.insert(of.collection));
        let mut changes = Changes::default();
        self.recorded_sessions().into_iter().for_each(|session| changes.note(ChangeOf::Session(session)));
        let mut state = self.state.lock();
        if state.leading != Some(term) {
            return Err(not_primary());
        }
        state.notes.next += 1;
        let name = (term, state.notes.next);
        let Noted { collection, namespace, command } = of;
        let note = Note { collection, name, changes, namespace, command, began: Instant::now() };
        state.notes.running.insert(to, note);
        Ok(name)
    }

    /// What is noted under a name and was not received before; `None`: nothing is, under this name.
    pub(in crate::sharding) fn noted(&self, to: &For, name: (u64, i64), received: u64) -> Option<Told> {
        let mut state = self.state.lock();
        let note = state.notes.running.get_mut(to).filter(|note| note.name == name)?;
        note.changes.received(received);
        let (changes, left) = note.changes.told();
        Some((changes, left, note.changes.newest()))
    }

    /// Nobody will ask about an operation any more.
    pub(in crate::sharding) fn end_notes(&self, id: &[u8; 16]) {
        self.state.lock().notes.end(id);
    }
}

impl Moves {
    /// The operations in which this member receives or donates, as `currentOp` shows them.
    pub fn resharding_operations(&self) -> Vec<DocBuf> {
        if self.term().is_none() {
            return Vec::new();
        }
        let mut shown = self.state.lock().notes.shown();
        for (id, of) in &self.fetches.lock().0 {
            let of = &of.progress;
            let elapsed = of.began.elapsed().as_secs() as i64;
            let state = match (of.is_copying.load(Ordering::Relaxed), of.is_last.load(Ordering::Relaxed)) {
                (true, _) => "cloning",
                (false, false) => "applying",
                (false, true) => "strict-consistency",
            };
            let command = (of.command.as_str(), of.key.as_raw());
            let entry = operation("Recipient", id, &of.namespace, command, elapsed);
            shown.push(
                entry
                    .with("documentsCopied", of.documents.load(Ordering::Relaxed) as i64)
                    .with("bytesCopied", of.bytes.load(Ordering::Relaxed) as i64)
                    .with("recipientState", state)
                    .with("opStatus", "running"),
            );
        }
        shown
    }
}
