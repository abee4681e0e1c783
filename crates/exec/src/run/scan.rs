//! Operators that read records and index entries.

use std::sync::Arc;

use ahash::AHashSet;
use sheaf_bson::key::Decoder;
use sheaf_bson::{Bump, RawDoc, Value};
use sheaf_errors::Result;
use sheaf_rows::{Cx, Figures, Operator, Row, Step, let_go};
use sheaf_storage::{Collection, Cut, Direction, IndexCursor, Position, Range, RecordCursor};

use super::Reads;
use super::reads::Reader;
use crate::bounds::bytes::{ByteBounds, Place};
use crate::plan::{FilterPart, Scan};

fn direction(backward: bool) -> Direction {
    if backward { Direction::Backward } else { Direction::Forward }
}

/// A cursor, or where one stood.
enum Stand<C> {
    Fresh,
    Saved(Position),
    Open(C),
    Done,
}

/// All records, or a range of them.
pub struct CollScan {
    collection: Arc<Collection>,
    reads: Reads,
    filter: Option<FilterPart>,
    arena: Bump,
    backward: bool,
    range: Range,
    /// A tailable cursor comes to its end again and again.
    tailable: bool,
    stand: Stand<RecordCursor>,
    figures: Figures,
}

impl CollScan {
    pub fn new(
        reads: &Reads,
        collection: &Arc<Collection>,
        filter: Option<FilterPart>,
        backward: bool,
        range: Range,
        tailable: bool,
    ) -> Self {
        CollScan {
            collection: collection.clone(),
            reads: reads.clone(),
            filter,
            arena: Bump::new(),
            backward,
            range,
            tailable,
            stand: Stand::Fresh,
            figures: Figures::default(),
        }
    }

    fn open(&mut self) -> Result<()> {
        let cursor = match &self.stand {
            Stand::Fresh => {
                self.reads.view().records(&self.collection, self.range.clone(), direction(self.backward))?
            }
            Stand::Saved(position) => RecordCursor::restore(
                &self.reads.view(),
                &self.collection,
                self.range.clone(),
                direction(self.backward),
                position,
            )?,
            Stand::Open(_) | Stand::Done => return Ok(()),
        };
        self.stand = Stand::Open(cursor);
        Ok(())
    }
}

impl Operator for CollScan {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        self.open()?;
        let Stand::Open(cursor) = &mut self.stand else {
            return Ok(self.figures.count(Step::Eof));
        };
        if !cursor.next()? {
            if !self.tailable {
                self.stand = Stand::Done;
            }
            return Ok(self.figures.count(Step::Eof));
        }
        self.figures.docs_examined += 1;
        let passes = match &self.filter {
            None => true,
            Some(filter) => filter.passes(cursor.doc(), cx, &mut self.arena)?,
        };
        Ok(self.figures.count(if passes { Step::Row } else { Step::More }))
    }

    fn row(&self) -> Row<'_> {
        match &self.stand {
            Stand::Open(cursor) => Row { doc: Some(cursor.doc()), record: cursor.key(), key: None },
            _ => Row::default(),
        }
    }

    fn inputs(&mut self, _visit: &mut dyn FnMut(&mut dyn Operator)) {}

    fn figures(&mut self) -> Option<&mut Figures> {
        self.figures.collection_scans = 1;
        Some(&mut self.figures)
    }

    fn suspend(&mut self) {
        self.figures.saves += 1;
        if let Stand::Open(cursor) = &self.stand {
            self.stand = Stand::Saved(cursor.save());
        }
    }
}

/// The record of one `_id`.
pub struct IdLookup {
    collection: Arc<Collection>,
    reads: Reads,
    key: Vec<u8>,
    filter: Option<FilterPart>,
    arena: Bump,
    doc: Vec<u8>,
    done: bool,
    figures: Figures,
}

impl IdLookup {
    pub fn new(
        reads: &Reads,
        collection: &Arc<Collection>,
        key: Vec<u8>,
        filter: Option<FilterPart>,
    ) -> Self {
        IdLookup {
            collection: collection.clone(),
            reads: reads.clone(),
            key,
            filter,
            arena: Bump::new(),
            doc: Vec::new(),
            done: false,
            figures: Figures::default(),
        }
    }
}

impl Operator for IdLookup {
    fn is_eof(&self) -> bool {
        self.done
    }

    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        if self.done {
            return Ok(self.figures.count(Step::Eof));
        }
        self.done = true;
        self.figures.keys_examined += 1;
        let view = self.reads.view();
        let Some(doc) = view.get(&self.collection, &self.key)? else {
            return Ok(self.figures.count(Step::Eof));
        };
        self.figures.docs_examined += 1;
        if let Some(filter) = &self.filter
            && !filter.passes(doc.as_raw(), cx, &mut self.arena)?
        {
            return Ok(self.figures.count(Step::Eof));
        }
        self.doc.clear();
        self.doc.extend_from_slice(&doc);
        Ok(self.figures.count(Step::Row))
    }

    fn row(&self) -> Row<'_> {
        Row { doc: Some(RawDoc::new(&self.doc)), record: &self.key, key: None }
    }

    fn inputs(&mut self, _visit: &mut dyn FnMut(&mut dyn Operator)) {}

    fn figures(&mut self) -> Option<&mut Figures> {
        let index = self.collection.indexes.first();
        self.figures.indexes_used.extend(index.map(|index| index.name.clone()));
        Some(&mut self.figures)
    }

    fn release(&mut self) {
        let_go(&mut self.doc);
    }

    fn suspend(&mut self) {
        self.release();
        self.figures.saves += 1;
    }
}

/// Either kind of cursor that an index scan walks: entries, or the records themselves for `_id`.
enum Walk {
    Entries(IndexCursor),
    Records(RecordCursor, bool),
}

impl Walk {
    fn key(&self) -> &[u8] {
        match self {
            Walk::Entries(cursor) => cursor.key(),
            Walk::Records(cursor, _) => cursor.key(),
        }
    }

    fn record(&self) -> &[u8] {
        match self {
            Walk::Entries(cursor) => cursor.record_key(),
            Walk::Records(cursor, _) => cursor.key(),
        }
    }

    fn next(&mut self) -> Result<bool> {
        match self {
            Walk::Entries(cursor) => cursor.next(),
            Walk::Records(cursor, _) => cursor.next(),
        }
    }

    fn seek(&mut self, bytes: &mut Vec<u8>, after: bool) -> Result<bool> {
        match self {
            Walk::Entries(cursor) => cursor.seek(if after { Cut::After(bytes) } else { Cut::Before(bytes) }),
            // A record key has one component, so that no key extends another.
            Walk::Records(cursor, backward) => match (after, *backward) {
                (true, false) => {
                    bytes.push(sheaf_bson::key::HIGH);
                    cursor.seek(bytes)
                }
                (false, true) => {
                    let found = cursor.seek(bytes)?;
                    if found && cursor.key() == &bytes[..] { cursor.next() } else { Ok(found) }
                }
                _ => cursor.seek(bytes),
            },
        }
    }

    fn save(&self) -> Position {
        match self {
            Walk::Entries(cursor) => cursor.save(),
            Walk::Records(cursor, _) => cursor.save(),
        }
    }
}

/// Whether a key begins with null, or is no more than that.
fn is_null(key: &[u8], descending: &[bool], scratch: &mut Vec<u8>) -> bool {
    scratch.clear();
    sheaf_bson::key::encode_bound(Value::Null, descending.first() == Some(&true), scratch);
    key.starts_with(scratch)
}

/// The keys of an index within bounds.
pub struct IndexScan {
    collection: Arc<Collection>,
    reader: Reader,
    scan: Scan,
    bytes: ByteBounds,
    records: bool,
    stand: Stand<Walk>,
    /// Documents may come several times, and are given once.
    repeats: bool,
    seen: AHashSet<Box<[u8]>>,
    scratch: Vec<u8>,
    /// After a row of a distinct scan: seek beyond this many leading components.
    skip_prefix: Option<usize>,
    /// These components of the key that was given last.
    leading: Vec<u8>,
    /// The bounds are one run of keys: the first key outside is the end, and is not counted as examined.
    single_range: bool,
    /// The key that ends the scan counts as examined, as a `COUNT_SCAN` has it.
    counts_end: bool,
    arena: Bump,
    figures: Figures,
}

impl IndexScan {
    pub fn new(reads: &Reads, collection: &Arc<Collection>, scan: Scan) -> Self {
        let records = crate::index::is_record_order(collection, &scan.index);
        let bytes = scan.byte_bounds();
        let single_range = scan.bounds.is_single_range();
        let repeats = scan.repeats();
        IndexScan {
            collection: collection.clone(),
            reader: Reader::new(reads),
            scan,
            bytes,
            records,
            stand: Stand::Fresh,
            repeats,
            seen: AHashSet::new(),
            scratch: Vec::new(),
            skip_prefix: None,
            leading: Vec::new(),
            single_range,
            counts_end: false,
            arena: Bump::new(),
            figures: Figures::default(),
        }
    }

    /// Gives one key for each value of the first `fields` fields.
    pub fn distinct(mut self, fields: usize) -> Self {
        self.skip_prefix = Some(fields);
        self.repeats = false;
        self
    }

    /// Counts as mongod's `COUNT_SCAN` does.
    pub fn counting(mut self) -> Self {
        self.counts_end = true;
        self
    }

    fn begin(&mut self) -> Result<bool> {
        let Some(after) = self.bytes.start(&mut self.scratch) else { return Ok(false) };
        let direction = direction(self.scan.backward);
        let mut walk = if self.records {
            Walk::Records(
                self.reader.view().records(&self.collection, Range::ALL, direction)?,
                self.scan.backward,
            )
        } else {
            // Where the key that ends the scan counts as examined, it must be seen.
            let last = self.bytes.last().filter(|_| self.single_range && !self.counts_end);
            Walk::Entries(match last {
                Some(last) => self.reader.view().index_to(&self.scan.index, direction, last)?,
                None => self.reader.view().index(&self.scan.index, direction)?,
            })
        };
        self.figures.seeks += 1;
        let found = walk.seek(&mut self.scratch, after)?;
        self.stand = Stand::Open(walk);
        Ok(found)
    }

    /// Moves to the next entry, in bounds or not.
    fn advance(&mut self) -> Result<bool> {
        self.note_leading();
        let walk = match &mut self.stand {
            Stand::Fresh => return self.begin(),
            Stand::Done => return Ok(false),
            Stand::Open(walk) => walk,
            Stand::Saved(position) => {
                let direction = direction(self.scan.backward);
                let walk = if self.records {
                    let cursor = RecordCursor::restore(
                        self.reader.view(),
                        &self.collection,
                        Range::ALL,
                        direction,
                        position,
                    )?;
                    Walk::Records(cursor, self.scan.backward)
                } else {
                    Walk::Entries(IndexCursor::restore(
                        self.reader.view(),
                        &self.scan.index,
                        direction,
                        position,
                    )?)
                };
                self.stand = Stand::Open(walk);
                let Stand::Open(walk) = &mut self.stand else { unreachable!("it was opened just now") };
                walk
            }
        };
        if self.skip_prefix.is_some() {
            let descending: Vec<bool> = self.scan.fields.iter().map(|(_, d)| *d).collect();
            // A document without the field has the key null as well. Where strings are not in the keys the documents themselves
            // give the values, and so each of them has to be seen.
            if self.scan.index.collator.is_some() && is_null(&self.leading, &descending, &mut self.scratch) {
                return walk.next();
            }
            self.leading.clone_into(&mut self.scratch);
            self.figures.seeks += 1;
            return walk.seek(&mut self.scratch, !self.scan.backward);
        }
        walk.next()
    }

    /// Notes the leading fields of the key that a distinct scan stands on.
    fn note_leading(&mut self) {
        let (Some(fields), Stand::Open(walk)) = (self.skip_prefix, &self.stand) else { return };
        let mut len = 0;
        for (_, descending) in self.scan.fields.iter().take(fields) {
            len += sheaf_bson::key::component_len(&walk.key()[len..], *descending).unwrap_or(0);
        }
        walk.key()[..len].clone_into(&mut self.leading);
    }

    fn end(&mut self) -> Step {
        self.stand = Stand::Done;
        self.figures.count(Step::Eof)
    }
}

impl Operator for IndexScan {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let mut found = self.advance()?;
        loop {
            if !found {
                self.figures.keys_examined +=
                    u64::from(self.counts_end && !matches!(self.stand, Stand::Done));
                return Ok(self.end());
            }
            let Stand::Open(walk) = &mut self.stand else {
                unreachable!("a scan that has found a key stands on it");
            };
            self.figures.keys_examined += 1;
            match self.bytes.place(walk.key(), &mut self.scratch) {
                Place::Inside => break,
                Place::Done | Place::Seek(_) if self.single_range => {
                    self.figures.keys_examined -= u64::from(!self.counts_end);
                    return Ok(self.end());
                }
                Place::Done => return Ok(self.end()),
                Place::Seek(after) => {
                    self.figures.seeks += 1;
                    found = walk.seek(&mut self.scratch, after)?;
                }
            }
            cx.check_interrupt()?;
        }
        let Stand::Open(walk) = &self.stand else {
            unreachable!("a scan that has found a key stands on it");
        };
        if self.repeats {
            self.figures.dups_tested += 1;
            if self.seen.contains(walk.record()) {
                self.figures.dups_dropped += 1;
                return Ok(self.figures.count(Step::More));
            }
            self.seen.insert(walk.record().into());
        }
        if let Some(filter) = &self.scan.filter {
            let passes = match walk {
                Walk::Entries(cursor) => {
                    let doc = key_document(&self.scan.fields, cursor.key(), cursor.type_bits());
                    filter.passes(doc.as_raw(), cx, &mut self.arena)?
                }
                Walk::Records(cursor, _) => filter.passes(cursor.doc(), cx, &mut self.arena)?,
            };
            if !passes {
                return Ok(self.figures.count(Step::More));
            }
        }
        Ok(self.figures.count(Step::Row))
    }

    fn row(&self) -> Row<'_> {
        match &self.stand {
            Stand::Open(Walk::Entries(cursor)) => {
                let entry = cursor.entry();
                Row { doc: None, record: entry.record_key, key: Some((entry.key, entry.type_bits)) }
            }
            Stand::Open(Walk::Records(cursor, _)) => {
                Row { doc: Some(cursor.doc()), record: cursor.key(), key: None }
            }
            _ => Row::default(),
        }
    }

    fn inputs(&mut self, _visit: &mut dyn FnMut(&mut dyn Operator)) {}

    fn figures(&mut self) -> Option<&mut Figures> {
        self.figures.indexes_used.insert(self.scan.index.name.clone());
        Some(&mut self.figures)
    }

    fn suspend(&mut self) {
        self.figures.saves += 1;
        self.note_leading();
        if let Stand::Open(walk) = &self.stand {
            self.stand = Stand::Saved(walk.save());
        }
        self.reader.suspend();
    }
}

/// The document that an index key says: its fields by their paths, dotted paths nested.
pub fn key_document(fields: &[(String, bool)], key: &[u8], type_bits: &[u8]) -> sheaf_bson::DocBuf {
    let mut decoder = Decoder::new(key, type_bits);
    let mut values = Vec::with_capacity(fields.len());
    for (path, descending) in fields {
        let Some(value) = decoder.next_value(*descending) else { break };
        // A wildcard index's keys begin with the path itself.
        if path != "$_path" {
            values.push((path.as_str(), value));
        }
    }
    super::project::nest(&values)
}
