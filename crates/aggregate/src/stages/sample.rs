//! `$sample`.

use std::collections::BinaryHeap;

use sheaf_bson::{DocBuf, Value};
use sheaf_errors::{Result, bail};

use crate::source::{BoxSource, RunCx, Source};
use crate::stage::{Stage, StageCx};

pub(crate) fn parse(argument: Value<'_>, _cx: &mut StageCx<'_>) -> Result<Vec<Stage>> {
    let Value::Document(spec) = argument else {
        bail!(28745, "the $sample stage specification must be an object");
    };
    let mut size = None;
    for field in spec.iter() {
        match (field.key(), field.value()) {
            ("size", value) if !value.is_number() => {
                bail!(28746, "size argument to $sample must be a number")
            }
            ("size", value) => {
                // Fractions are cut off, as mongod does.
                let whole = value.as_f64().map_or(0.0, f64::trunc);
                if whole < 1.0 {
                    bail!(28747, "size argument to $sample must be a positive integer");
                }
                size = Some(value.as_exact_i64().map_or(whole as u64, i64::unsigned_abs));
            }
            (other, _) => bail!(28748, "unrecognized option to $sample: {other}"),
        }
    }
    match size {
        Some(size) => Ok(vec![Stage::Sample(size)]),
        None => bail!(28749, "$sample stage must specify a size"),
    }
}

/// A document with its random rank; the largest ranks are dropped first.
struct Ranked(u64, DocBuf);

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl Eq for Ranked {}
impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

/// Runs `$sample`: the documents with the smallest random ranks.
pub struct SampleRun {
    size: u64,
    input: Option<BoxSource>,
    chosen: std::vec::IntoIter<DocBuf>,
}

impl SampleRun {
    pub(crate) fn new(size: u64, input: BoxSource) -> Self {
        SampleRun { size, input: Some(input), chosen: Vec::new().into_iter() }
    }
}

impl Source for SampleRun {
    fn next(&mut self, cx: &mut RunCx<'_>) -> Result<Option<DocBuf>> {
        if let Some(mut input) = self.input.take() {
            let size = usize::try_from(self.size).unwrap_or(usize::MAX);
            let mut heap: BinaryHeap<Ranked> = BinaryHeap::new();
            let mut held = 0;
            while let Some(document) = input.next(cx)? {
                held += document.as_bytes().len();
                heap.push(Ranked(cx.database.random(), document));
                if heap.len() > size
                    && let Some(dropped) = heap.pop()
                {
                    held -= dropped.1.as_bytes().len();
                }
                cx.check_memory(held, |limit| {
                    format!(
                        "Sort exceeded memory limit of {limit} bytes, but did not opt in to external sorting."
                    )
                })?;
                cx.check_interrupt()?;
            }
            let sorted: Vec<DocBuf> = heap.into_sorted_vec().into_iter().map(|ranked| ranked.1).collect();
            self.chosen = sorted.into_iter();
        }
        Ok(self.chosen.next())
    }
}
