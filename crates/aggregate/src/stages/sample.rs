//! `$sample`.

use std::collections::BinaryHeap;

use sheaf_bson::{DocBuf, Rounding, Value};
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
                let whole = whole_number(value);
                if whole < 1 {
                    bail!(28747, "size argument to $sample must be a positive integer");
                }
                size = Some(whole.unsigned_abs());
            }
            (other, _) => bail!(28748, "unrecognized option to $sample: {other}"),
        }
    }
    match size {
        Some(size) => Ok(vec![Stage::Sample(size)]),
        None => bail!(28749, "$sample stage must specify a size"),
    }
}

/// A number as a 64-bit integer, at its bounds what is beyond them: the fraction of a double is cut off, that of a
/// decimal rounded.
fn whole_number(value: Value<'_>) -> i64 {
    match value {
        Value::Decimal128(n) if n.is_finite() => {
            let whole = n.to_integral(Rounding::HalfEven);
            whole.to_i64_exact().unwrap_or_else(|| whole.to_f64() as i64)
        }
        Value::Int64(n) => n,
        value => value.as_f64().unwrap_or(0.0) as i64,
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
