//! Several branches as one.

use std::sync::Arc;

use ahash::AHashSet;
use sheaf_bson::RawDoc;
use sheaf_errors::Result;
use sheaf_meter::Held;
use sheaf_query::sort::SortPattern;
use sheaf_rows::{BoxOperator, Cx, Figures, Operator, Row, Step};
use sheaf_storage::Collection;

use super::Reads;
use super::reads::Reader;

/// The branches one after the other, each record once.
pub struct Or {
    inputs: Vec<BoxOperator>,
    at: usize,
    seen: AHashSet<Box<[u8]>>,
    figures: Figures,
}

impl Or {
    pub fn new(inputs: Vec<BoxOperator>) -> Self {
        Or { inputs, at: 0, seen: AHashSet::new(), figures: Figures::default() }
    }
}

impl Operator for Or {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let Some(input) = self.inputs.get_mut(self.at) else {
            return Ok(self.figures.count(Step::Eof));
        };
        let step = match input.work(cx)? {
            Step::Eof => {
                self.at += 1;
                if self.at == self.inputs.len() { Step::Eof } else { Step::More }
            }
            Step::More => Step::More,
            Step::Row => {
                self.figures.dups_tested += 1;
                let record = input.row().record;
                if self.seen.contains(record) {
                    self.figures.dups_dropped += 1;
                    Step::More
                } else {
                    self.seen.insert(record.into());
                    Step::Row
                }
            }
        };
        Ok(self.figures.count(step))
    }

    fn row(&self) -> Row<'_> {
        self.inputs.get(self.at).map_or(Row::default(), |input| input.row())
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        self.inputs.get(self.at).and_then(|input| input.metadata())
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        self.inputs.iter_mut().for_each(|input| visit(input));
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        Some(&mut self.figures)
    }
}

/// One branch of a merge with the row that it has ready.
struct Branch {
    input: BoxOperator,
    ready: Option<Ready>,
    done: bool,
}

/// Rows with more than this are counted: every branch has one.
const LARGE_BYTES: usize = 64 << 10;

struct Ready {
    /// The account of a large one.
    _held: Held,
    order: Vec<u8>,
    doc: Option<Vec<u8>>,
    record: Vec<u8>,
    key: Option<(Vec<u8>, Vec<u8>)>,
}

/// Branches that are each in order, merged.
pub struct SortMerge {
    branches: Vec<Branch>,
    pattern: Arc<SortPattern>,
    collection: Arc<Collection>,
    reader: Reader,
    current: Option<Ready>,
    seen: AHashSet<Box<[u8]>>,
    figures: Figures,
}

impl SortMerge {
    pub fn new(
        reads: &Reads,
        collection: &Arc<Collection>,
        inputs: Vec<BoxOperator>,
        pattern: Arc<SortPattern>,
    ) -> Self {
        let branch = |input| Branch { input, ready: None, done: false };
        SortMerge {
            branches: inputs.into_iter().map(branch).collect(),
            pattern,
            collection: collection.clone(),
            reader: Reader::new(reads),
            current: None,
            seen: AHashSet::new(),
            figures: Figures::default(),
        }
    }

    /// Does a piece of work in a branch that has no row ready; false if all have, or are at their end.
    fn advance(&mut self, cx: &mut Cx<'_>) -> Result<bool> {
        let Some(branch) = self.branches.iter_mut().find(|branch| !branch.done && branch.ready.is_none())
        else {
            return Ok(false);
        };
        match branch.input.work(cx)? {
            Step::Eof => branch.done = true,
            Step::More => {}
            Step::Row => {
                let row = branch.input.row();
                let mut order = Vec::new();
                let (key, bits) = row.key.unwrap_or_default();
                let document = row.doc.map_or(0, |doc| doc.len());
                let mut held = Held::default();
                if document > LARGE_BYTES {
                    let of_key = row.doc.map_or(0, |doc| self.pattern.key_room(doc, RawDoc::EMPTY));
                    held = sheaf_meter::reserve((document + of_key) as u64)?;
                    order.reserve_exact(of_key);
                }
                match row.doc {
                    Some(doc) => self.pattern.put_key_bytes(doc, RawDoc::EMPTY, &mut order)?,
                    // A row that is still a key: its record has the fields.
                    None => {
                        if let Some(doc) = self.reader.view().get(&self.collection, row.record)? {
                            self.pattern.put_key_bytes(doc.as_raw(), RawDoc::EMPTY, &mut order)?;
                        }
                    }
                }
                let bytes = (order.capacity() + document + row.record.len() + key.len() + bits.len()) as u64;
                if bytes > held.bytes().max(LARGE_BYTES as u64) {
                    drop(held);
                    held = sheaf_meter::reserve(bytes)?;
                }
                branch.ready = Some(Ready {
                    _held: held,
                    order,
                    doc: row.doc.map(|doc| doc.as_bytes().to_vec()),
                    record: row.record.to_vec(),
                    key: row.key.map(|(key, bits)| (key.to_vec(), bits.to_vec())),
                });
            }
        }
        Ok(true)
    }

    /// The first of the rows that are ready.
    fn take_first(&mut self) -> Option<Ready> {
        let ready = (0..self.branches.len()).filter(|at| self.branches[*at].ready.is_some());
        let order = |at: usize| self.branches[at].ready.as_ref().map(|ready| &ready.order);
        let first = ready.min_by(|a, b| order(*a).cmp(&order(*b)))?;
        self.branches[first].ready.take()
    }
}

impl Operator for SortMerge {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        if self.advance(cx)? {
            return Ok(self.figures.count(Step::More));
        }
        let Some(ready) = self.take_first() else {
            return Ok(self.figures.count(Step::Eof));
        };
        self.figures.dups_tested += 1;
        if !self.seen.insert(ready.record.as_slice().into()) {
            self.figures.dups_dropped += 1;
            return Ok(self.figures.count(Step::More));
        }
        self.current = Some(ready);
        Ok(self.figures.count(Step::Row))
    }

    fn row(&self) -> Row<'_> {
        match &self.current {
            Some(ready) => Row {
                doc: ready.doc.as_deref().map(RawDoc::new),
                record: &ready.record,
                key: ready.key.as_ref().map(|(key, bits)| (&key[..], &bits[..])),
            },
            None => Row::default(),
        }
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        self.branches.iter_mut().for_each(|branch| visit(&mut branch.input));
    }

    fn suspend(&mut self) {
        self.figures.saves += 1;
        self.reader.suspend();
        self.branches.iter_mut().for_each(|branch| branch.input.suspend());
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        Some(&mut self.figures)
    }
}
