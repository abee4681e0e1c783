//! `$bucketAuto`: buckets of about equal numbers of documents.

use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf, OwnedValue, RawDoc, Value, compare};
use sheaf_errors::{Result, bail};
use sheaf_expr::{Deps, Expr};
use smallvec::SmallVec;

use super::bucket::{check_group_by, parse_output};
use super::granularity::Granularity;
use crate::accumulators::{Accumulation, State};
use crate::print;
use crate::source::{BoxSource, RunCx, Source};
use crate::stage::{Reads, Stage, StageCx};

/// A parsed `$bucketAuto`.
#[derive(Debug)]
pub struct BucketAuto {
    group_by: Expr,
    buckets: usize,
    accumulations: Vec<Accumulation>,
    granularity: Option<Granularity>,
}

pub(crate) fn parse(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<Stage>> {
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
    let accumulations = output.unwrap_or_else(|| vec![Accumulation::count("count")]);
    Ok(vec![Stage::BucketAuto(Arc::new(BucketAuto { group_by, buckets, accumulations, granularity }))])
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
    /// Notes what is read of the documents.
    pub fn dependencies(&self, deps: &mut Deps) -> Reads {
        self.group_by.dependencies(deps);
        self.accumulations.iter().for_each(|accumulation| accumulation.dependencies(deps));
        Reads::Only
    }

    /// The documents with their values, sorted by them.
    fn sorted(&self, mut input: BoxSource, cx: &mut RunCx<'_>) -> Result<Vec<(OwnedValue, DocBuf)>> {
        let mut documents = Vec::new();
        let mut arena = Bump::new();
        let mut held = 0;
        while let Some(document) = input.next(cx)? {
            arena.reset();
            let value = self.group_by.eval(document.as_raw(), &cx.env(&arena))?;
            if self.granularity.is_some() {
                check_granular(value)?;
            }
            let value = if value.is_missing() { Value::Null } else { value };
            let value = OwnedValue::from(value);
            held += value.memory_bytes() + document.as_bytes().len();
            documents.push((value, document));
            cx.check_memory(held, |limit| {
                format!(
                    "Sort exceeded memory limit of {limit} bytes, but did not opt in to external sorting."
                )
            })?;
            cx.check_interrupt()?;
        }
        documents.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(documents)
    }

    fn fill(&self, documents: &[(OwnedValue, DocBuf)], cx: &RunCx<'_>) -> Result<Vec<DocBuf>> {
        let mut output = Vec::new();
        // Rounding to nearest, so that the number of documents per bucket is as even as can be.
        let size = ((documents.len() as f64 / self.buckets as f64).round() as usize).max(1);
        let mut at = 0;
        let mut low = documents.first().map(|(value, _)| value.clone()).unwrap_or_default();
        if let Some(granularity) = &self.granularity {
            low = granularity.round_down(&low);
        }
        while at < documents.len() {
            let last_bucket = output.len() + 1 == self.buckets;
            let mut end = if last_bucket { documents.len() } else { (at + size).min(documents.len()) };
            let mut high = documents[end - 1].0.clone();
            if let Some(granularity) = &self.granularity {
                high = granularity.round_up(&high);
                // What the rounded boundary covers belongs to this bucket.
                while end < documents.len() && documents[end].0 < high {
                    end += 1;
                }
                if end == documents.len() && last_bucket {
                    high = granularity.round_up(&documents[end - 1].0);
                }
            } else {
                while end < documents.len() && documents[end].0 == documents[end - 1].0 {
                    end += 1;
                }
                // The upper boundary is the next bucket's lower one; the last bucket includes it.
                high = documents.get(end).map_or(high, |(value, _)| value.clone());
            }
            output.push(self.bucket(&low, &high, &documents[at..end], cx)?);
            low = high;
            at = end;
        }
        Ok(output)
    }

    fn bucket(
        &self,
        low: &OwnedValue,
        high: &OwnedValue,
        documents: &[(OwnedValue, DocBuf)],
        cx: &RunCx<'_>,
    ) -> Result<DocBuf> {
        let mut arena = Bump::new();
        let mut states: SmallVec<[Box<dyn State>; 4]> = SmallVec::new();
        for accumulation in &self.accumulations {
            states.push(accumulation.start(Value::Document(RawDoc::EMPTY), &cx.env(&arena))?);
        }
        for (_, document) in documents {
            arena.reset();
            let env = cx.env(&arena);
            for (accumulation, state) in self.accumulations.iter().zip(&mut states) {
                state.add(accumulation.value(document.as_raw(), &env)?)?;
            }
        }
        let id = DocBuf::new().with("min", low).with("max", high);
        let mut output = DocBuf::new().with("_id", &id);
        for (accumulation, state) in self.accumulations.iter().zip(&states) {
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

/// Runs `$bucketAuto`.
pub struct BucketAutoRun {
    stage: Arc<BucketAuto>,
    input: Option<BoxSource>,
    buckets: std::vec::IntoIter<DocBuf>,
}

impl BucketAutoRun {
    pub(crate) fn new(stage: Arc<BucketAuto>, input: BoxSource) -> Self {
        BucketAutoRun { stage, input: Some(input), buckets: Vec::new().into_iter() }
    }
}

impl Source for BucketAutoRun {
    fn next(&mut self, cx: &mut RunCx<'_>) -> Result<Option<DocBuf>> {
        if let Some(input) = self.input.take() {
            let documents = self.stage.sorted(input, cx)?;
            self.buckets = self.stage.fill(&documents, cx)?.into_iter();
        }
        Ok(self.buckets.next())
    }
}
