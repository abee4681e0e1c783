//! The numbers of records, for those who ask to see them.

use std::sync::Arc;

use sheaf_bson::{Binary, Value};
use sheaf_errors::Result;
use sheaf_meter::Held;
use sheaf_rows::Cx;
use sheaf_storage::{Collection, Direction, Range, RecordCursor};

use super::Reads;
use super::reads::Reader;

/// Records between two that are remembered.
const STRIDE: usize = 128;

/// What `$recordId` shows of a record. A capped collection's records have numbers, and a clustered collection's have the
/// keys of their `_id`, here as in MongoDB. Other collections' records are stored by `_id` alone (what finds a document by
/// `_id` reads once, and writes no second entry), so there is no number on disk: the one shown is the record's place in
/// natural order, from 1, in the state that is read. It is found by walking, and only here: nobody else pays for it.
///
/// Within one batch numbers are unique and in natural order. Later batches of a cursor go on from the places that
/// were counted before, so that what is written meanwhile behind the cursor moves no number before it.
pub struct Numbers {
    kind: Kind,
    collection: Arc<Collection>,
    reader: Reader,
    /// Keys with 0, `STRIDE`, twice that… records below them. All of them are counted; beyond the last one nothing is.
    marks: Vec<Vec<u8>>,
    /// The keys from one of the marks on, until the next: of the last record that was asked for.
    block: Option<(usize, Vec<Vec<u8>>)>,
    /// Goes on from the last mark, and how many records it has given since.
    frontier: Option<(RecordCursor, usize)>,
    /// The account of the marks.
    held: Held,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Number,
    Key,
    Place,
}

impl Numbers {
    /// For the records of a collection.
    pub fn new(reads: &Reads, collection: &Arc<Collection>) -> Self {
        let kind = if !crate::index::clustered_by_id(collection) {
            Kind::Number
        } else if collection.options.as_raw().element("clusteredIndex").is_some() {
            Kind::Key
        } else {
            Kind::Place
        };
        Numbers {
            kind,
            collection: collection.clone(),
            reader: Reader::new(reads),
            marks: Vec::new(),
            block: None,
            frontier: None,
            held: Held::default(),
        }
    }

    /// What is shown of a record by its key; nothing of a row that is no record.
    pub fn of<'k>(&mut self, record: &'k [u8], cx: &mut Cx<'_>) -> Result<Option<Value<'k>>> {
        if record.is_empty() {
            return Ok(None);
        }
        Ok(Some(match (self.kind, record.first_chunk::<8>()) {
            (Kind::Number, Some(number)) => Value::Int64(i64::from_be_bytes(*number)),
            (Kind::Number | Kind::Key, _) => Value::Binary(Binary { subtype: 0, bytes: record }),
            (Kind::Place, _) => Value::Int64(self.place(record, cx)?),
        }))
    }

    fn place(&mut self, record: &[u8], cx: &mut Cx<'_>) -> Result<i64> {
        self.count_to(record, cx)?;
        // The first mark is the first record, so that one is at or below each record of the view; a key below it is of
        // a record that was written after its mark.
        let mark = self.marks.partition_point(|key| key.as_slice() <= record).saturating_sub(1);
        let block = match &self.block {
            Some((at, _)) if *at == mark => &self.block,
            _ => {
                let keys = self.keys_from(mark)?;
                self.block = Some((mark, keys));
                &self.block
            }
        };
        let within =
            block.as_ref().map_or(0, |(_, keys)| keys.partition_point(|key| key.as_slice() < record));
        Ok((mark * STRIDE + within + 1) as i64)
    }

    /// Sets marks until the last one is above the record, or there are no more.
    fn count_to(&mut self, record: &[u8], cx: &mut Cx<'_>) -> Result<()> {
        while self.marks.last().is_none_or(|last| last.as_slice() <= record) {
            if self.frontier.is_none() {
                let mut range = Range::ALL;
                if let Some(last) = self.marks.last() {
                    range.lower = std::ops::Bound::Included(last.clone());
                }
                let given = 0;
                let cursor = self.reader.view().records(&self.collection, range, Direction::Forward)?;
                self.frontier = Some((cursor, given));
            }
            let Some((cursor, given)) = &mut self.frontier else { return Ok(()) };
            if !cursor.next()? {
                return Ok(());
            }
            // Of a cursor that began at a mark, the first record is the mark's own.
            if *given % STRIDE == 0 && (*given > 0 || self.marks.is_empty()) {
                let bytes = (cursor.key().len() + size_of::<Vec<u8>>()) as u64;
                if self.held.bytes() == 0 {
                    self.held = sheaf_meter::reserve(bytes)?;
                } else {
                    self.held.grow(bytes)?;
                }
                self.marks.push(cursor.key().to_vec());
            }
            *given += 1;
            cx.check_interrupt()?;
        }
        Ok(())
    }

    fn keys_from(&mut self, mark: usize) -> Result<Vec<Vec<u8>>> {
        let mut range = Range::ALL;
        if let Some(key) = self.marks.get(mark) {
            range.lower = std::ops::Bound::Included(key.clone());
        }
        if let Some(key) = self.marks.get(mark + 1) {
            range.upper = std::ops::Bound::Excluded(key.clone());
        }
        let mut cursor = self.reader.view().records(&self.collection, range, Direction::Forward)?;
        let mut keys = Vec::new();
        while keys.len() < STRIDE && cursor.next()? {
            keys.push(cursor.key().to_vec());
        }
        Ok(keys)
    }

    /// The command is over: marks stay, what reads goes.
    pub fn suspend(&mut self) {
        self.reader.suspend();
        self.frontier = None;
        self.block = None;
    }
}
