//! `$sample`.

use std::collections::BinaryHeap;
use std::sync::Arc;

use sheaf_bson::{DocBuf, Rounding, Value, doc};
use sheaf_errors::{Result, bail};

use sheaf_expr::Deps;
use sheaf_rows::{BoxOperator, Cx, Documents, Operator, Row, Step};

use crate::database::SharedDatabase;
use crate::stage::{Halves, Needs, Reads, Shape, SharedStage, Split, Stage, StageCx, StageEntry};

/// `$sample`.
pub(crate) const SAMPLE: StageEntry = StageEntry::new("$sample", parse, Split::Both, Needs::Nothing);

pub(crate) fn parse(argument: Value<'_>, _cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
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
        Some(size) => Ok(vec![Arc::new(Sample(size))]),
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

/// A parsed `$sample`: a number of documents.
#[derive(Clone, Copy, Debug)]
pub struct Sample(pub u64);

impl Stage for Sample {
    fn name(&self) -> &'static str {
        "$sample"
    }

    fn open(self: Arc<Self>, input: BoxOperator, database: &SharedDatabase) -> BoxOperator {
        Box::new(SampleRun::new(self.0, input, database.clone()))
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Sample(self.0)
    }

    fn dependencies(&self, _deps: &mut Deps) -> Reads {
        Reads::AndPassesOn
    }

    fn is_repeatable(&self) -> bool {
        false
    }

    /// Each shard's documents get their random ranks there, so that those of a small shard are not preferred.
    fn halves(&self) -> Option<Halves> {
        let limit = || doc! { "$limit": self.0 as i64 };
        let order = doc! { "rank": 1 };
        let ranked =
            doc! { "$replaceRoot": { "newRoot": { "rank": { "$rand": {} }, "document": "$$ROOT" } } };
        Some(Halves {
            shards: vec![ranked, doc! { "$sort": &order }, limit()],
            order: Some(order),
            merger: vec![limit(), doc! { "$replaceRoot": { "newRoot": "$document" } }],
            passes_rows: false,
        })
    }

    fn shown(&self) -> Option<Vec<DocBuf>> {
        Some(vec![doc! { "$sample": { "size": self.0 as i64 } }])
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
struct SampleRun {
    size: usize,
    input: BoxOperator,
    database: SharedDatabase,
    heap: BinaryHeap<Ranked>,
    held: usize,
    /// What was chosen, once all documents have come.
    chosen: Option<Documents>,
}

impl SampleRun {
    fn new(size: u64, input: BoxOperator, database: SharedDatabase) -> Self {
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        SampleRun { size, input, database, heap: BinaryHeap::new(), held: 0, chosen: None }
    }

    fn take(&mut self, cx: &Cx<'_>) -> Result<()> {
        let rank = self.database.random();
        if self.heap.len() >= self.size && self.heap.peek().is_none_or(|last| last.0 <= rank) {
            return Ok(());
        }
        let document = DocBuf::from(self.input.row().document());
        self.held += document.as_bytes().len();
        self.heap.push(Ranked(rank, document));
        if self.heap.len() > self.size
            && let Some(dropped) = self.heap.pop()
        {
            self.held -= dropped.1.as_bytes().len();
        }
        cx.check_memory(self.held, |limit| {
            format!("Sort exceeded memory limit of {limit} bytes, but did not opt in to external sorting.")
        })
    }
}

impl Operator for SampleRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        if let Some(chosen) = &mut self.chosen {
            return chosen.work(cx);
        }
        match self.input.work(cx)? {
            Step::Row => self.take(cx)?,
            Step::More => {}
            Step::Eof => {
                let sorted = std::mem::take(&mut self.heap).into_sorted_vec();
                self.chosen = Some(Documents::new(sorted.into_iter().map(|ranked| ranked.1).collect()));
            }
        }
        Ok(Step::More)
    }

    fn row(&self) -> Row<'_> {
        self.chosen.as_ref().map_or(Row::default(), Operator::row)
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }
}
