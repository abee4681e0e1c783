//! `$bucketAuto`: buckets of about equal numbers of documents.

use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf, OwnedValue, RawDoc, Value, compare};
use sheaf_collation::{SharedCollator, compare_by};
use sheaf_errors::{Result, bail};
use sheaf_expr::{Deps, Expr, size_of_value};
use sheaf_meter::Held;
use sheaf_query::sort::Sorted;
use smallvec::SmallVec;

use super::bucket::{check_group_by, parse_output};
use super::granularity::Granularity;
use super::set_aside::{AsideRow, SetAside};
use crate::accumulators::{Accumulation, State};
use crate::database::SharedDatabase;
use crate::print;
use crate::stage::{Needs, Reads, Shape, SharedStage, Split, Stage, StageCx, StageEntry};
use sheaf_rows::{BoxOperator, Cx, Figures, Operator, Row, Scratch, Step, pull};

/// `$bucketAuto`.
pub(crate) const BUCKET_AUTO: StageEntry =
    StageEntry::new("$bucketAuto", parse, Split::Merger, Needs::Nothing);

/// A parsed `$bucketAuto`.
#[derive(Debug)]
pub struct BucketAuto {
    group_by: Expr,
    buckets: usize,
    accumulations: Vec<Accumulation>,
    granularity: Option<Granularity>,
    collator: Option<SharedCollator>,
}

pub(crate) fn parse(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let Value::Document(spec) = argument else {
        bail!(
            40240,
            "The argument to $bucketAuto must be an object, but found type: {}.",
            argument.type_name()
        );
    };
    let (mut group_by, mut buckets, mut output, mut granularity) = (None, None, None, None);
    for field in spec.iter() {
        let value = field.value();
        match field.key() {
            "groupBy" => {
                check_group_by(value, 40239, "$bucketAuto")?;
                group_by = Some(Expr::parse(value, cx.expr)?);
            }
            "buckets" => buckets = Some(parse_buckets(value)?),
            "output" => output = Some(parse_output(value, 40244, "$bucketAuto", cx.expr)?),
            "granularity" => match value {
                Value::String(name) => granularity = Some(Granularity::parse(name)?),
                other => bail!(
                    40261,
                    "The $bucketAuto 'granularity' field must be a string, but found type: {}.",
                    other.type_name()
                ),
            },
            other => bail!(40245, "Unrecognized option to $bucketAuto: {other}."),
        }
    }
    let (Some(group_by), Some(buckets)) = (group_by, buckets) else {
        bail!(40246, "$bucketAuto requires 'groupBy' and 'buckets' to be specified.");
    };
    // An output without fields is none.
    let output = output.filter(|output| !output.is_empty());
    let accumulations = output.unwrap_or_else(|| vec![Accumulation::count("count")]);
    let collator = cx.expr.collator().cloned();
    Ok(vec![Arc::new(BucketAuto { group_by, buckets, accumulations, granularity, collator })])
}

fn parse_buckets(value: Value<'_>) -> Result<usize> {
    if !value.is_number() {
        bail!(
            40241,
            "The $bucketAuto 'buckets' field must be a numeric value, but found type: {}.",
            value.type_name()
        );
    }
    match value.as_exact_i64().and_then(|n| i32::try_from(n).ok()) {
        None => bail!(
            40242,
            "The $bucketAuto 'buckets' field must be representable as a 32-bit integer, but found {}.",
            print::value(value)
        ),
        Some(n) if n <= 0 => {
            bail!(40243, "The $bucketAuto 'buckets' field must be greater than 0, but found: {n}.")
        }
        Some(n) => Ok(n as usize),
    }
}

impl BucketAuto {
    /// What is left of the documents, sorted, and how many there are.
    fn sorted(
        &self,
        input: &mut BoxOperator,
        cx: &mut Cx<'_>,
        figures: &mut Figures,
    ) -> Result<(Input, u64)> {
        let mut rows = SetAside::new(cx);
        let mut arena = Bump::new();
        let (mut key, mut count) = (Scratch::default(), 0);
        while pull(input, cx)? {
            arena.reset();
            let env = cx.env_over(input, &arena);
            let document = input.row().document();
            let value = self.group_by.eval(document, &env)?;
            if self.granularity.is_some() {
                check_granular(value)?;
            }
            let value = if value.is_missing() { Value::Null } else { value };
            let by = self.collator.as_ref().map_or(value, |collator| collator.key(value, &arena));
            sheaf_bson::key::encode_bound(by, false, key.begin(size_of_value(by))?);
            key.settle()?;
            let values = self.accumulations.iter().map(|accumulation| accumulation.value(document, &env));
            rows.add(&key.bytes, value, values)?;
            key.let_go();
            drop(env);
            count += 1;
            cx.check_interrupt()?;
        }
        let mut rows = rows.finish(figures)?;
        Ok((Input { next: AsideRow::next(&mut rows)?, rows }, count))
    }

    fn are_equal(&self, a: &OwnedValue, b: &OwnedValue) -> bool {
        compare_by(self.collator.as_ref(), a.as_value(), b.as_value()).is_eq()
    }

    /// The buckets.
    fn fill(&self, input: &mut Input, count: u64, cx: &Cx<'_>) -> Result<(Vec<DocBuf>, Held)> {
        let mut output = Vec::new();
        let mut held = sheaf_meter::reserve(0)?;
        // Rounding to nearest, so that the number of documents per bucket is as even as can be.
        let size = ((count as f64 / self.buckets as f64).round() as u64).max(1);
        let mut low = input.value().unwrap_or_default();
        if let Some(granularity) = &self.granularity {
            low = granularity.round_down(&low);
        }
        while input.next.is_some() {
            let last_bucket = output.len() + 1 == self.buckets;
            let mut bucket = Bucket::start(self, cx)?;
            let mut taken = 0;
            while (last_bucket || taken < size) && bucket.take(input)? {
                taken += 1;
            }
            let high = match &self.granularity {
                Some(granularity) => {
                    let high = granularity.round_up(&bucket.last);
                    // What the rounded boundary covers belongs to this bucket.
                    while input.value().is_some_and(|next| next < high) && bucket.take(input)? {}
                    high
                }
                None => {
                    while input.value().is_some_and(|next| self.are_equal(&next, &bucket.last))
                        && bucket.take(input)?
                    {}
                    // The upper boundary is the next bucket's lower one; the last bucket includes it.
                    input.value().unwrap_or_else(|| bucket.last.clone())
                }
            };
            // Boundaries may be large: there they are, and the bucket that is made has both.
            let of_bounds = 2 * (low.memory_bytes() + high.memory_bytes()) as u64;
            held.grow(of_bounds)?;
            let bucket = bucket.finish(&low, &high)?;
            held.shrink(of_bounds);
            held.grow(bucket.as_bytes().len() as u64 + 64)?;
            output.push(bucket);
            low = high;
        }
        Ok((output, held))
    }
}

/// Rows with a look at the next one.
struct Input {
    rows: Sorted,
    next: Option<AsideRow>,
}

impl Input {
    /// The value that the next row is filed under.
    fn value(&self) -> Option<OwnedValue> {
        self.next.as_ref().map(|row| OwnedValue::from(row.filed_under()))
    }
}

/// A bucket being filled.
struct Bucket<'s> {
    stage: &'s BucketAuto,
    states: SmallVec<[Box<dyn State>; 4]>,
    /// The value of the last row taken.
    last: OwnedValue,
}

impl<'s> Bucket<'s> {
    fn start(stage: &'s BucketAuto, cx: &Cx<'_>) -> Result<Self> {
        let arena = Bump::new();
        let env = cx.env(&arena);
        let states = stage.accumulations.iter().map(|a| a.start(Value::Document(RawDoc::EMPTY), &env));
        Ok(Bucket { stage, states: states.collect::<Result<_>>()?, last: OwnedValue::default() })
    }

    /// Takes the next row, if there is one.
    fn take(&mut self, input: &mut Input) -> Result<bool> {
        let Some(row) = input.next.take() else { return Ok(false) };
        for (state, value) in self.states.iter_mut().zip(row.values()) {
            state.add(value)?;
        }
        self.last = OwnedValue::from(row.filed_under());
        input.next = AsideRow::next(&mut input.rows)?;
        sheaf_meter::tick(4)?;
        Ok(true)
    }

    fn finish(&self, low: &OwnedValue, high: &OwnedValue) -> Result<DocBuf> {
        let arena = Bump::new();
        let id = DocBuf::new().with("min", low).with("max", high);
        let mut output = DocBuf::new().with("_id", &id);
        for (accumulation, state) in self.stage.accumulations.iter().zip(&self.states) {
            let value = state.result(&arena)?;
            output.append(accumulation.field(), if value.is_missing() { Value::Null } else { value });
        }
        Ok(output)
    }
}

/// With a granularity, values must be numbers that it can round.
fn check_granular(value: Value<'_>) -> Result<()> {
    if !value.is_number() {
        bail!(
            40258,
            "$bucketAuto can specify a 'granularity' with numeric boundaries only, but found a value with type: {}",
            value.type_name()
        );
    }
    if value.as_f64().is_some_and(f64::is_nan) {
        bail!(40259, "$bucketAuto can specify a 'granularity' with numeric boundaries only, but found a NaN");
    }
    if compare(value, Value::Int32(0)).is_lt() {
        bail!(
            40260,
            "$bucketAuto can specify a 'granularity' with non-negative numbers only, but found a negative number"
        );
    }
    Ok(())
}

impl Stage for BucketAuto {
    fn name(&self) -> &'static str {
        "$bucketAuto"
    }

    fn open(self: Arc<Self>, input: BoxOperator, _database: &SharedDatabase) -> BoxOperator {
        Box::new(BucketAutoRun::new(self, input))
    }

    fn dependencies(&self, deps: &mut Deps) -> Reads {
        self.group_by.dependencies(deps);
        self.accumulations.iter().for_each(|accumulation| accumulation.dependencies(deps));
        Reads::Only
    }

    fn shape(&self) -> Shape<'_> {
        Shape::BucketAuto
    }
}

/// Runs `$bucketAuto`.
struct BucketAutoRun {
    stage: Arc<BucketAuto>,
    input: BoxOperator,
    /// The buckets, once all documents have come.
    buckets: Option<std::vec::IntoIter<DocBuf>>,
    current: Option<DocBuf>,
    held: Held,
    figures: Figures,
}

impl BucketAutoRun {
    fn new(stage: Arc<BucketAuto>, input: BoxOperator) -> Self {
        BucketAutoRun {
            stage,
            input,
            buckets: None,
            current: None,
            held: Held::default(),
            figures: Figures::default(),
        }
    }
}

impl Operator for BucketAutoRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        if self.buckets.is_none() {
            let (mut rows, count) = self.stage.sorted(&mut self.input, cx, &mut self.figures)?;
            let (buckets, held) = self.stage.fill(&mut rows, count, cx)?;
            self.buckets = Some(buckets.into_iter());
            self.held = held;
        }
        self.current = self.buckets.as_mut().and_then(Iterator::next);
        Ok(if self.current.is_some() { Step::Row } else { Step::Eof })
    }

    fn row(&self) -> Row<'_> {
        self.current.as_ref().map_or(Row::default(), |bucket| Row::of(bucket.as_raw()))
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }

    fn release(&mut self) {
        self.current = None;
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        Some(&mut self.figures)
    }
}
