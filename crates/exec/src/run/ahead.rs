//! Fetching many documents before it is their turn: keys of an index come in an order that is mostly none of the records, and to read these one
//! by one costs several times what it takes to walk over all of them.
//!
//! The keys of a window are taken together, their records read in the records' own order, and the documents given in the order of the keys.
//! Where many of a collection's records are wanted they are walked over, else asked for one after the other, which finds much of what it
//! needs where the one before has left it.

use std::sync::Arc;

use sheaf_bson::RawDoc;
use sheaf_errors::Result;
use sheaf_meter::Held;
use sheaf_rows::{Cx, Fields, Row};
use sheaf_storage::{Collection, Direction, Range, RecordCursor, View};

/// A window is worth its trouble where so many rows were wanted already.
const ALONE: usize = 1000;
/// Each window is so many times the rows before it. Who stops somewhere has had no more than that fetched in vain.
const GROWTH: usize = 8;
/// Where one record of so many is wanted, walking is cheaper than asking.
const DENSE: u64 = 8;
/// Walks over so many records before the next one is sought.
const STEPS_MAX: usize = 32;
/// Records that are read in one piece of work.
const RECORDS_AT_ONCE: usize = 32;
/// What a row takes besides its bytes.
const ROW_BYTES: usize = 2 * size_of::<Taken>();
/// Documents stand in blocks of this, larger ones in one of their own.
const BLOCK_BYTES: usize = 256 << 10;
/// Memory is accounted in steps of this.
const COUNTED_BYTES: usize = 256 << 10;

/// A row of the window.
struct Taken {
    /// Where the record's key, the index key and its type bits stand, and how long they are.
    at: usize,
    lengths: [u32; 3],
    document: Document,
}

#[derive(Clone, Copy)]
enum Document {
    /// To be read when it is its turn.
    Unread,
    /// It is not there any more.
    Gone,
    /// The block that it stands in, where, and how long it is.
    At(u32, u32, u32),
}

/// The rows of a window.
pub(super) struct Window {
    /// The fields that are kept of documents, if those are not all.
    fields: Option<Arc<Fields>>,
    /// So many rows are taken.
    target: usize,
    rows: Vec<Taken>,
    keys: Vec<u8>,
    /// The documents in blocks, and how many bytes they have.
    documents: Vec<Vec<u8>>,
    document_bytes: usize,
    /// The rows in the order of their records, and how many of them were read.
    order: Vec<u32>,
    read: usize,
    cursor: Option<RecordCursor>,
    /// The row that is given, from 1.
    given: usize,
    narrow: Vec<u8>,
    held: Held,
}

/// What a window has to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Take more rows.
    Taking,
    /// Read the documents of those that were taken.
    Reading,
    /// Give them.
    Giving,
}

impl Window {
    pub(super) fn new(fields: Option<Arc<Fields>>) -> Window {
        Window {
            fields,
            target: ALONE * GROWTH,
            rows: Vec::new(),
            keys: Vec::new(),
            documents: Vec::new(),
            document_bytes: 0,
            order: Vec::new(),
            read: 0,
            cursor: None,
            given: 0,
            narrow: Vec::new(),
            held: Held::default(),
        }
    }

    /// Whether windows begin after so many rows.
    pub(super) fn is_worth_it(rows: usize) -> bool {
        rows >= ALONE
    }

    pub(super) fn phase(&self) -> Phase {
        if self.order.is_empty() {
            Phase::Taking
        } else if self.read < self.order.len() {
            Phase::Reading
        } else {
            Phase::Giving
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn bytes(&self) -> usize {
        self.keys.len() + self.document_bytes + self.rows.len() * ROW_BYTES
    }

    /// Counts what is held; false if there is no memory for it.
    fn account(&mut self) -> bool {
        let bytes = self.bytes().next_multiple_of(COUNTED_BYTES) as u64;
        if bytes == self.held.bytes() {
            return true;
        }
        if self.held.bytes() > 0 {
            return self.held.set(bytes).is_ok();
        }
        sheaf_meter::reserve(bytes).map(|held| self.held = held).is_ok()
    }

    /// Takes a row.
    pub(super) fn take(&mut self, row: Row<'_>) -> Result<()> {
        let (key, bits) = row.key.unwrap_or_default();
        let at = self.keys.len();
        let parts = [row.record, key, bits];
        parts.iter().for_each(|part| self.keys.extend_from_slice(part));
        let lengths = parts.map(|part| part.len() as u32);
        self.rows.push(Taken { at, lengths, document: Document::Unread });
        if self.rows.len() >= self.target || !self.account() {
            self.begin_reading()?;
        }
        Ok(())
    }

    /// No more rows are taken.
    pub(super) fn begin_reading(&mut self) -> Result<()> {
        let first = |row: u32| {
            let mut bytes = [0; 8];
            let record = self.record(row);
            let length = record.len().min(8);
            bytes[..length].copy_from_slice(&record[..length]);
            u64::from_be_bytes(bytes)
        };
        let mut order: Vec<(u64, u32)> = (0..self.rows.len() as u32).map(|row| (first(row), row)).collect();
        sheaf_meter::sort_by_prefix(
            &mut order,
            |(prefix, _)| *prefix,
            |(_, a), (_, b)| {
                let (a, b) = (self.record(*a), self.record(*b));
                sheaf_meter::tick_for(a.len().min(b.len()))?;
                Ok(a.cmp(b))
            },
        )?;
        self.order = order.into_iter().map(|(_, row)| row).collect();
        self.read = 0;
        Ok(())
    }

    fn record(&self, row: u32) -> &[u8] {
        let taken = &self.rows[row as usize];
        &self.keys[taken.at..taken.at + taken.lengths[0] as usize]
    }

    /// Reads some of the documents; says how many were there.
    pub(super) fn read_some(&mut self, collection: &Collection, view: &View, cx: &Cx<'_>) -> Result<u64> {
        // Between the records that are wanted may be some whose readers have to wait.
        let dense = !view.may_wait() && self.order.len() as u64 * DENSE >= collection.count();
        let mut found = 0;
        for _ in 0..RECORDS_AT_ONCE {
            let Some(row) = self.order.get(self.read).copied() else { break };
            if self.bytes() >= cx.limits.memory_bytes || !self.account() {
                // The others are read when it is their turn.
                self.read = self.order.len();
                break;
            }
            let there = if dense {
                self.walk_to(row, collection, view)?
            } else {
                self.ask_for(row, collection, view)?
            };
            found += u64::from(there);
            self.read += 1;
        }
        if self.read == self.order.len() {
            self.cursor = None;
        }
        Ok(found)
    }

    /// Moves the cursor to the row's record, if it is there, and keeps its document.
    fn walk_to(&mut self, row: u32, collection: &Collection, view: &View) -> Result<bool> {
        let mut cursor = match self.cursor.take() {
            Some(cursor) => cursor,
            None => {
                let mut cursor = view.records(collection, Range::ALL, Direction::Forward)?;
                cursor.seek(self.record(row))?;
                cursor
            }
        };
        let record = self.record(row);
        let mut steps = 0;
        // At the end the cursor's key is empty, and sought again there is none.
        while cursor.key() < record {
            steps += 1;
            let more = if steps > STEPS_MAX { cursor.seek(record)? } else { cursor.next()? };
            if !more {
                break;
            }
        }
        let there = cursor.key() == record;
        self.keep(row, there.then(|| cursor.bytes()));
        self.cursor = Some(cursor);
        Ok(there)
    }

    fn ask_for(&mut self, row: u32, collection: &Collection, view: &View) -> Result<bool> {
        let found = view.get(collection, self.record(row))?;
        self.keep(row, found.as_deref());
        Ok(found.is_some())
    }

    fn keep(&mut self, row: u32, document: Option<&[u8]>) {
        let place = match document {
            None => Document::Gone,
            Some(whole) => {
                let kept = match &self.fields {
                    Some(fields) => fields.of(RawDoc::new(whole), &mut self.narrow).as_bytes(),
                    None => whole,
                };
                let fits = |block: &Vec<u8>| block.capacity() - block.len() >= kept.len();
                if !self.documents.last().is_some_and(fits) {
                    self.documents.push(Vec::with_capacity(BLOCK_BYTES.max(kept.len())));
                }
                let at = self.documents.len() - 1;
                let block = &mut self.documents[at];
                let offset = block.len() as u32;
                block.extend_from_slice(kept);
                self.document_bytes += kept.len();
                Document::At(at as u32, offset, kept.len() as u32)
            }
        };
        self.rows[row as usize].document = place;
    }

    /// Moves to the next row; false if all were given, which empties the window for the next one, that may be larger.
    pub(super) fn advance(&mut self, cx: &Cx<'_>) -> bool {
        if self.given < self.rows.len() {
            self.given += 1;
            return true;
        }
        let each = self.bytes() / self.rows.len().max(1) + 1;
        self.target = (self.target * GROWTH).min(cx.limits.memory_bytes / each).max(ALONE);
        let (fields, target) = (self.fields.take(), self.target);
        *self = Window { target, ..Window::new(fields) };
        false
    }

    /// The row that [`Window::advance`] moved to, if its document was read.
    pub(super) fn row(&self) -> Row<'_> {
        let Some(taken) = self.given.checked_sub(1).and_then(|at| self.rows.get(at)) else {
            return Row::default();
        };
        let (record, rest) = self.keys[taken.at..].split_at(taken.lengths[0] as usize);
        let (key, rest) = rest.split_at(taken.lengths[1] as usize);
        let key = (!key.is_empty()).then(|| (key, &rest[..taken.lengths[2] as usize]));
        let doc = match taken.document {
            Document::At(block, at, length) => {
                let at = at as usize;
                Some(RawDoc::new(&self.documents[block as usize][at..at + length as usize]))
            }
            Document::Unread | Document::Gone => None,
        };
        Row { doc, record, key }
    }

    /// Whether it has given a row, which is the present one.
    pub(super) fn gives(&self) -> bool {
        self.given > 0
    }

    /// Whether all rows were given.
    pub(super) fn is_spent(&self) -> bool {
        self.given == self.rows.len()
    }

    /// Whether the row's document is not there any more.
    pub(super) fn is_gone(&self) -> bool {
        self.given.checked_sub(1).is_some_and(|at| matches!(self.rows[at].document, Document::Gone))
    }

    /// The command is over.
    pub(super) fn suspend(&mut self) {
        self.cursor = None;
    }
}
