//! Buckets in which the latest measurements of their meta values can be: of each meta value the one that reaches furthest.

use std::collections::BTreeMap;

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::Result;
use sheaf_rows::{BoxOperator, Cx, Operator, Row, Step};

/// With more bytes than this of buckets, all that follow are let through.
const MAX_BYTES: usize = 16 << 20;

/// Gathers buckets, and gives the latest of each meta value.
pub(super) struct LatestBuckets {
    input: BoxOperator,
    time_field: String,
    /// By meta value: how far the bucket reaches, and the bucket.
    best: BTreeMap<Vec<u8>, (i64, Vec<u8>)>,
    bytes: usize,
    state: State,
    row: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Gathering,
    /// Giving what was gathered; what comes afterwards goes through.
    Giving,
    Through,
    Ended,
}

impl LatestBuckets {
    pub(super) fn new(input: BoxOperator, time_field: &str) -> Self {
        LatestBuckets {
            input,
            time_field: time_field.to_owned(),
            best: BTreeMap::new(),
            bytes: 0,
            state: State::Gathering,
            row: Vec::new(),
        }
    }

    fn take(&mut self) {
        let bucket = self.input.row().document();
        let Some(reaches) = reach(bucket, &self.time_field) else {
            // Whatever it is, it goes on.
            let number = self.best.len().to_be_bytes();
            self.bytes += bucket.len();
            self.best.insert([&[0xFF][..], &number].concat(), (i64::MAX, bucket.as_bytes().to_vec()));
            return;
        };
        let meta = bucket.element("meta").map_or(&[][..], |meta| meta.as_bytes());
        match self.best.get_mut(meta) {
            Some((best, _)) if *best >= reaches => {}
            Some((best, kept)) => {
                self.bytes = self.bytes - kept.len() + bucket.len();
                (*best, *kept) = (reaches, bucket.as_bytes().to_vec());
            }
            None => {
                self.bytes += meta.len() + bucket.len();
                self.best.insert(meta.to_vec(), (reaches, bucket.as_bytes().to_vec()));
            }
        }
    }
}

/// The latest time of a bucket.
fn reach(bucket: RawDoc<'_>, time_field: &str) -> Option<i64> {
    match bucket.get("control")?.as_doc()?.get("max")?.as_doc()?.get(time_field)? {
        Value::DateTime(millis) => Some(millis),
        _ => None,
    }
}

impl Operator for LatestBuckets {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        match self.state {
            State::Gathering => {
                match self.input.work(cx)? {
                    Step::Row => {
                        self.take();
                        self.input.release();
                        if self.bytes > MAX_BYTES {
                            self.state = State::Giving;
                        }
                    }
                    Step::More => {}
                    Step::Eof => self.state = State::Giving,
                }
                Ok(Step::More)
            }
            State::Giving => match self.best.pop_first() {
                Some((_, (_, bucket))) => {
                    self.row = bucket;
                    Ok(Step::Row)
                }
                None => {
                    self.row = Vec::new();
                    self.state = if self.bytes > MAX_BYTES { State::Through } else { State::Ended };
                    Ok(Step::More)
                }
            },
            State::Through => self.input.work(cx),
            State::Ended => Ok(Step::Eof),
        }
    }

    fn row(&self) -> Row<'_> {
        match self.state {
            State::Through => self.input.row(),
            _ => Row::of(RawDoc::new(&self.row)),
        }
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }

    fn release(&mut self) {
        match self.state {
            State::Through => self.input.release(),
            _ => sheaf_rows::let_go(&mut self.row),
        }
    }
}
