//! Records by chance.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;

use sheaf_bson::RawDoc;
use sheaf_errors::Result;
use sheaf_meter::Held;
use sheaf_rows::{Cx, Figures, Operator, Row, Step};
use sheaf_storage::{Collection, Range};

use super::Reads;
use super::scan::CollScan;

/// Gives so many different records in an order by chance; all that are there, should it not find these.
pub struct RandomRecords {
    collection: Arc<Collection>,
    reads: Reads,
    wanted: usize,
    state: State,
    /// The account of the keys.
    held: Held,
    figures: Figures,
}

/// What a key takes besides its bytes.
const KEY_BYTES: usize = 48;

enum State {
    Fresh,
    /// The keys of the records that are still to come, and the one that is given.
    Drawn(Vec<Vec<u8>>, Vec<u8>, Vec<u8>),
    All(Box<CollScan>),
}

impl RandomRecords {
    pub fn new(reads: &Reads, collection: &Arc<Collection>, wanted: usize) -> Self {
        let (collection, reads) = (collection.clone(), reads.clone());
        let (held, figures) = (Held::default(), Figures::default());
        RandomRecords { collection, reads, wanted, state: State::Fresh, held, figures }
    }

    fn draw(&mut self, cx: &Cx<'_>) -> Result<()> {
        // Each of these has keys of its own, made of the system's random numbers.
        let (seed, mut drawn) = (RandomState::new(), 0u64);
        let mut random = || {
            drawn += 1;
            seed.hash_one(drawn)
        };
        let view = self.reads.view();
        let keys = view.random_records(&self.collection, self.wanted, &mut random, cx.interrupt())?;
        let bytes = |keys: &Vec<Vec<u8>>| keys.iter().map(|key| key.len() + KEY_BYTES).sum::<usize>();
        self.held = sheaf_meter::reserve(keys.as_ref().map_or(0, bytes) as u64)?;
        self.state = match keys {
            Some(keys) => State::Drawn(keys, Vec::new(), Vec::new()),
            None => {
                let scan = CollScan::new(&self.reads, &self.collection, None, false, Range::ALL, false);
                State::All(Box::new(scan))
            }
        };
        Ok(())
    }
}

impl Operator for RandomRecords {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let step = match &mut self.state {
            State::Fresh => {
                self.draw(cx)?;
                Step::More
            }
            State::Drawn(keys, key, doc) => match keys.pop() {
                None => Step::Eof,
                Some(next) => {
                    *key = next;
                    self.figures.docs_examined += 1;
                    // Between two batches it may have gone.
                    match self.reads.view().get(&self.collection, key)? {
                        Some(found) => {
                            (*found).clone_into(doc);
                            Step::Row
                        }
                        None => Step::More,
                    }
                }
            },
            State::All(scan) => {
                let step = scan.work(cx)?;
                self.figures.docs_examined += u64::from(step == Step::Row);
                step
            }
        };
        Ok(self.figures.count(step))
    }

    fn row(&self) -> Row<'_> {
        match &self.state {
            State::Fresh => Row::default(),
            State::Drawn(_, key, doc) => Row { doc: Some(RawDoc::new(doc)), record: key, key: None },
            State::All(scan) => scan.row(),
        }
    }

    fn inputs(&mut self, _visit: &mut dyn FnMut(&mut dyn Operator)) {}

    fn figures(&mut self) -> Option<&mut Figures> {
        Some(&mut self.figures)
    }

    fn suspend(&mut self) {
        self.figures.saves += 1;
        if let State::All(scan) = &mut self.state {
            scan.suspend();
        }
    }
}
