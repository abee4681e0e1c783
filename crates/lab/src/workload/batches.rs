//! Documents that several writers insert in batches, and what a capped collection must hold of them afterwards.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Instant;

use sheaf_bson::RawDoc;

use super::contents::Contents;
use crate::client::{Client, Collection};
use crate::context::Worker;
use crate::error::Result;
use crate::generate::document::DocumentMaker;
use crate::results::Check;

/// Most writers that are told apart.
pub(super) const MOST_WRITERS: u32 = 255;

/// All batches of one run. Keys begin with 1.
#[derive(Debug, Default)]
pub(super) struct Batches {
    documents: u64,
    /// Documents per insert command.
    size: u64,
    document_bytes: usize,
    each: Vec<Batch>,
    /// Counts sendings and acknowledgements.
    clock: AtomicU64,
}

/// What is known of one batch.
#[derive(Debug, Default)]
struct Batch {
    writer: AtomicU8,
    /// Tick of the clock before it was sent.
    sent: AtomicU64,
    /// Tick after it was acknowledged; 0 before that.
    acknowledged: AtomicU64,
}

impl Batches {
    pub fn new(documents: u64, size: u64, document_bytes: usize) -> Batches {
        let each = (0..documents.div_ceil(size)).map(|_| Batch::default()).collect();
        Batches { documents, size, document_bytes, each, clock: AtomicU64::new(1) }
    }

    pub fn len(&self) -> u64 {
        self.each.len() as u64
    }

    /// The keys of a batch.
    pub fn keys_of(&self, batch: u64) -> Range<i64> {
        let first = batch * self.size + 1;
        first as i64..(first + self.size).min(self.documents + 1) as i64
    }

    /// Whether the insert of this document has been acknowledged by now.
    pub fn was_acknowledged(&self, key: i64) -> bool {
        let batch = &self.each[(key as u64 - 1) as usize / self.size as usize];
        batch.acknowledged.load(Ordering::Acquire) > 0
    }

    /// One writer's part: the batches of the worker's turns. `sent` is told of each, when it was acknowledged or, without
    /// acknowledgements, sent. Returns when the server has worked off all of it.
    pub fn write(
        &self,
        worker: &mut Worker<'_>,
        collection: &Collection,
        compressible: f64,
        sent: impl Fn(u64),
    ) -> Result<()> {
        let writer = worker.index as u8;
        let mut maker = DocumentMaker::new(worker.context().seed, compressible);
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        while let Some(mut ticket) = worker.next() {
            // The documents are made before the turn begins: they are the client's cost, not the server's.
            bytes.clear();
            ends.clear();
            for key in self.keys_of(ticket.number) {
                maker.append(&mut bytes, key, 0, self.document_bytes, |writer| {
                    writer.append("count", key).append("group", (key & 63) as i32);
                });
                ends.push(bytes.len());
            }
            let batch = &self.each[ticket.number as usize];
            batch.writer.store(writer, Ordering::Relaxed);
            batch.sent.store(self.tick(), Ordering::Relaxed);
            let mut insert = worker.client().insert(collection);
            let mut start = 0;
            for end in &ends {
                insert.push_raw(RawDoc::new(&bytes[start..*end]));
                start = *end;
            }
            ticket.due = Instant::now();
            insert.send()?;
            if collection.write_concern.acknowledged() {
                batch.acknowledged.store(self.tick(), Ordering::Release);
            }
            sent(ticket.number);
            worker.done("insert", ticket);
            worker.context().set_progress((ticket.number + 1) as f64 / self.each.len() as f64);
        }
        // Unacknowledged inserts may still be on their way.
        worker.client().barrier()
    }

    /// What the collection holds of it.
    pub fn read(&self, client: &mut Client, from: &Collection) -> Result<Contents> {
        Contents::read(client, from, 1..self.documents as i64 + 1, |key, _, document| {
            let number = |name: &str| document.get(name).and_then(|n| n.as_exact_i64());
            let right = number("count") == Some(key) && number("group") == Some(key & 63);
            (!right).then(|| "count or group is not what was written".to_owned())
        })
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// A capped collection of this size holds the newest documents that fit, without gaps. Writers overtake each other
    /// (without acknowledgements by all that the sockets hold), but each writer's own documents came in order: of those,
    /// what is there must be the last ones. And a batch that was acknowledged before another one was sent is older than it.
    pub fn check_newest(&self, contents: &Contents, capacity: u64) -> Check {
        // A whole batch may have been made room for at once.
        let least = (capacity / self.document_bytes as u64).min(self.documents).saturating_sub(self.size);
        let held = contents.whole;
        let problem = if let Some(key) = self.first_gap(|key| contents.has(key)) {
            Some(format!("document {key} is missing, though older ones are there"))
        } else if held < least.max(1) {
            Some(format!("only {held} documents are there, though {least} fit into {capacity} bytes"))
        } else {
            None
        };
        Check {
            name: "newest documents".to_owned(),
            passed: problem.is_none(),
            detail: problem.unwrap_or_else(|| {
                format!("the last {held} of {} documents, without a gap, in {capacity} bytes", self.documents)
            }),
        }
    }

    fn first_gap(&self, has: impl Fn(i64) -> bool) -> Option<i64> {
        let mut begun = [false; MOST_WRITERS as usize + 1];
        // Of the batches that are there at least in part: when the first of them was acknowledged.
        let mut oldest = u64::MAX;
        let mut missing = Vec::new();
        for (number, batch) in self.each.iter().enumerate() {
            let begun = &mut begun[usize::from(batch.writer.load(Ordering::Relaxed))];
            let mut any = false;
            for key in self.keys_of(number as u64) {
                match has(key) {
                    true => (*begun, any) = (true, true),
                    false if *begun => return Some(key),
                    false => missing.push((batch.sent.load(Ordering::Relaxed), key)),
                }
            }
            let acknowledged = batch.acknowledged.load(Ordering::Relaxed);
            if acknowledged > 0 && any {
                oldest = oldest.min(acknowledged);
            }
        }
        missing.into_iter().find(|(sent, _)| *sent > oldest).map(|(_, key)| key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches of two documents: writer, tick of sending, tick of acknowledgement.
    fn batches(each: &[(u8, u64, u64)]) -> Batches {
        let batches = Batches::new(each.len() as u64 * 2, 2, 100);
        for (batch, (writer, sent, acknowledged)) in batches.each.iter().zip(each) {
            batch.writer.store(*writer, Ordering::Relaxed);
            batch.sent.store(*sent, Ordering::Relaxed);
            batch.acknowledged.store(*acknowledged, Ordering::Relaxed);
        }
        batches
    }

    #[test]
    fn a_gap_within_a_writers_documents_is_found() {
        let one = batches(&[(0, 1, 0), (0, 2, 0), (0, 3, 0)]);
        assert_eq!(one.first_gap(|key| key >= 4), None);
        assert_eq!(one.first_gap(|key| key != 6), Some(6));
        assert_eq!(one.first_gap(|key| key != 4), Some(4));
    }

    #[test]
    fn unacknowledged_writers_overtake_each_other_and_acknowledged_ones_do_not() {
        // The second writer's newest document came before the first one's older ones.
        let unknown = batches(&[(0, 1, 0), (1, 2, 0)]);
        assert_eq!(unknown.first_gap(|key| key <= 2), None);
        let known = batches(&[(0, 1, 2), (1, 3, 4)]);
        assert_eq!(known.first_gap(|key| key <= 2), Some(3));
        let at_once = batches(&[(0, 1, 3), (1, 2, 4)]);
        assert_eq!(at_once.first_gap(|key| key <= 2), None);
    }
}
