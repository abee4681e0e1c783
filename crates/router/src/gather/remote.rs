//! A cursor on a shard, and what has come of it.

use std::sync::Arc;

use sheaf_bson::{Iter, RawDoc};
use sheaf_cluster::Answer;
use sheaf_errors::Result;
use sheaf_meter::Held;

use super::on_member::{Abandoned, OnMember};
use crate::target::Target;

/// A cursor on a shard with the batch that has come last.
pub struct Remote {
    /// The cursor.
    pub cursor: OnMember,
    batch: Batch,
}

/// Documents that have come and were not taken yet.
#[derive(Default)]
struct Batch {
    /// The elements of the batch's array.
    elements: Vec<u8>,
    /// Where the next one begins.
    next: usize,
    /// Where the document at hand begins and ends.
    document: (usize, usize),
    _held: Option<Held>,
}

/// Smaller batches are not counted.
const FREE_BYTES: usize = 64 << 10;

impl Batch {
    fn of(array: RawDoc<'_>) -> Result<Self> {
        // Without the length in front and the byte behind.
        let elements = array.as_bytes();
        let elements = &elements[4..elements.len() - 1];
        let held = match elements.len() {
            0..=FREE_BYTES => None,
            large => Some(sheaf_meter::reserve(large as u64)?),
        };
        Ok(Batch { elements: elements.to_vec(), next: 0, document: (0, 0), _held: held })
    }

    fn advance(&mut self) -> bool {
        let mut rest = Iter::over(&self.elements[self.next..]);
        while let Some(element) = rest.next() {
            let end = self.elements.len() - rest.rest().len();
            self.next = end;
            if element.value().as_doc().is_some() {
                self.document = (end - element.data().len(), end);
                return true;
            }
        }
        *self = Batch::default();
        false
    }
}

impl Remote {
    /// The cursor of an answer.
    ///
    /// Errors: `ExceededMemoryLimit`, if there is no room for its batch.
    pub fn of(abandoned: &Arc<Abandoned>, target: &Target, answer: &Answer) -> Result<Remote> {
        let cursor = answer.reply().get("cursor").and_then(|cursor| cursor.as_doc()).unwrap_or(RawDoc::EMPTY);
        let id = cursor.get("id").and_then(|id| id.as_exact_i64()).unwrap_or(0);
        let namespace = cursor.get("ns").and_then(|ns| ns.as_str()).unwrap_or_default();
        let on_member = OnMember::new(abandoned, target, answer.host(), namespace, id);
        let batch = cursor.get("firstBatch").and_then(|batch| batch.as_array()).unwrap_or(RawDoc::EMPTY);
        Ok(Remote { cursor: on_member, batch: Batch::of(batch)? })
    }

    /// Goes to the next document that has come. `false`: there is none here.
    pub fn advance(&mut self) -> bool {
        self.batch.advance()
    }

    /// The document at hand.
    pub fn document(&self) -> RawDoc<'_> {
        let (begin, end) = self.batch.document;
        RawDoc::new(&self.batch.elements[begin..end])
    }

    /// Whether nothing more can come.
    pub fn is_done(&self) -> bool {
        self.cursor.id == 0
    }

    /// Nothing more comes: its member cannot be reached.
    pub fn give_up(&mut self) {
        self.cursor.id = 0;
    }

    /// Takes in the answer to a getMore.
    ///
    /// Errors: `ExceededMemoryLimit`.
    pub fn take(&mut self, reply: RawDoc<'_>) -> Result<()> {
        let cursor = reply.get("cursor").and_then(|cursor| cursor.as_doc()).unwrap_or(RawDoc::EMPTY);
        self.cursor.id = cursor.get("id").and_then(|id| id.as_exact_i64()).unwrap_or(0);
        let batch = cursor.get("nextBatch").and_then(|batch| batch.as_array()).unwrap_or(RawDoc::EMPTY);
        self.batch = Batch::of(batch)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::{ArrayBuf, doc};

    use super::*;

    #[test]
    fn a_batch_gives_its_documents_in_order() {
        let documents = [doc! { "_id": 1 }, doc! { "_id": 2, "text": "two" }, doc! {}];
        let array = ArrayBuf::of(&documents);
        let mut batch = Batch::of(array.as_raw()).unwrap();
        for document in &documents {
            assert!(batch.advance());
            let (begin, end) = batch.document;
            assert_eq!(&batch.elements[begin..end], document.as_bytes());
        }
        assert!(!batch.advance() && !batch.advance());
    }
}
