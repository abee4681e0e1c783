//! Several branches as one stream.

use ahash::AHashSet;
use sheaf_bson::RawDoc;
use sheaf_errors::Result;

use super::sort::SortOrder;
use super::{Cx, Row, Stage, Step, count};

/// The branches one after the other, each record once.
pub struct Or {
    pub id: usize,
    pub inputs: Vec<Box<dyn Stage>>,
    at: usize,
    seen: AHashSet<Box<[u8]>>,
}

impl Or {
    pub fn new(id: usize, inputs: Vec<Box<dyn Stage>>) -> Self {
        Or { id, inputs, at: 0, seen: AHashSet::new() }
    }
}

impl Stage for Or {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let Some(input) = self.inputs.get_mut(self.at) else {
            return Ok(count(&mut cx.stats[self.id], Step::Eof));
        };
        let step = match input.work(cx)? {
            Step::Eof => {
                self.at += 1;
                if self.at == self.inputs.len() { Step::Eof } else { Step::More }
            }
            Step::More => Step::More,
            Step::Row => {
                let stats = &mut cx.stats[self.id];
                stats.dups_tested += 1;
                let record = input.row().record;
                if self.seen.contains(record) {
                    stats.dups_dropped += 1;
                    Step::More
                } else {
                    self.seen.insert(record.into());
                    Step::Row
                }
            }
        };
        Ok(count(&mut cx.stats[self.id], step))
    }

    fn row(&self) -> Row<'_> {
        self.inputs.get(self.at).map_or(Row::default(), |input| input.row())
    }

    fn suspend(&mut self) {
        self.inputs.iter_mut().for_each(|input| input.suspend());
    }
}

/// One branch of a merge with the row that it has ready.
struct Branch {
    input: Box<dyn Stage>,
    ready: Option<Ready>,
    done: bool,
}

struct Ready {
    order: Vec<u8>,
    doc: Option<Vec<u8>>,
    record: Vec<u8>,
    key: Option<(Vec<u8>, Vec<u8>)>,
}

/// Branches that are each in order, merged.
pub struct SortMerge {
    pub id: usize,
    branches: Vec<Branch>,
    order: SortOrder,
    current: Option<Ready>,
    seen: AHashSet<Box<[u8]>>,
}

impl SortMerge {
    pub fn new(id: usize, inputs: Vec<Box<dyn Stage>>, order: SortOrder) -> Self {
        let branch = |input| Branch { input, ready: None, done: false };
        SortMerge {
            id,
            branches: inputs.into_iter().map(branch).collect(),
            order,
            current: None,
            seen: AHashSet::new(),
        }
    }
}

impl Stage for SortMerge {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        for at in 0..self.branches.len() {
            let branch = &mut self.branches[at];
            if branch.done || branch.ready.is_some() {
                continue;
            }
            match branch.input.work(cx)? {
                Step::Eof => branch.done = true,
                Step::More => {}
                Step::Row => {
                    let row = branch.input.row();
                    let mut order = Vec::new();
                    self.order.key(cx, row, &mut order)?;
                    branch.ready = Some(Ready {
                        order,
                        doc: row.doc.map(|doc| doc.as_bytes().to_vec()),
                        record: row.record.to_vec(),
                        key: row.key.map(|(key, bits)| (key.to_vec(), bits.to_vec())),
                    });
                }
            }
            return Ok(count(&mut cx.stats[self.id], Step::More));
        }
        let first =
            (0..self.branches.len()).filter(|at| self.branches[*at].ready.is_some()).min_by(|a, b| {
                let order = |at: usize| self.branches[at].ready.as_ref().map(|ready| &ready.order);
                order(*a).cmp(&order(*b))
            });
        let Some(ready) = first.and_then(|at| self.branches[at].ready.take()) else {
            return Ok(count(&mut cx.stats[self.id], Step::Eof));
        };
        let stats = &mut cx.stats[self.id];
        stats.dups_tested += 1;
        if !self.seen.insert(ready.record.as_slice().into()) {
            stats.dups_dropped += 1;
            return Ok(count(stats, Step::More));
        }
        self.current = Some(ready);
        Ok(count(stats, Step::Row))
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

    fn suspend(&mut self) {
        self.branches.iter_mut().for_each(|branch| branch.input.suspend());
    }
}
