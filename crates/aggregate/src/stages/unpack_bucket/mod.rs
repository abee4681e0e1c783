//! `$_internalUnpackBucket`: a time-series collection's buckets become measurements.

mod bounds;

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Result, bail};
use sheaf_expr::Deps;
use sheaf_query::matcher::Matcher;
use sheaf_rows::{BoxOperator, Cx, Operator, Row, Step};
use sheaf_timeseries::Unpacker;

use crate::database::SharedDatabase;
use crate::filters::SplitFilter;
use crate::stage::{Needs, Reads, SharedStage, Split, Stage, StageCx, StageEntry};
use bounds::Condition;

/// `$_internalUnpackBucket`.
pub(crate) const INTERNAL_UNPACK_BUCKET: StageEntry =
    StageEntry::new("$_internalUnpackBucket", parse, Split::Shards, Needs::Nothing).not_in_facet();

/// A parsed `$_internalUnpackBucket`.
#[derive(Clone, Debug)]
pub struct UnpackBucket {
    time_field: String,
    meta_field: Option<String>,
    span_seconds: i64,
    /// What every measurement must fulfil to pass the `$match` behind; buckets where none can are left out. `None` until it has
    /// been looked for.
    conditions: Option<Arc<Vec<Condition>>>,
}

pub(crate) fn parse(argument: Value<'_>, _cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let Value::Document(spec) = argument else {
        bail!(
            5346500,
            "$_internalUnpackBucket specification must be an object, got: {}",
            argument.type_name()
        );
    };
    let (mut time_field, mut meta_field, mut span_seconds) = (None, None, 3600);
    for field in spec.iter() {
        match (field.key(), field.value()) {
            ("timeField", Value::String(name)) => time_field = Some(name),
            ("timeField", other) => {
                bail!(5346504, "timeField field must be a string, got: {}", other.type_name())
            }
            ("metaField", Value::String(name)) => meta_field = Some(name),
            ("metaField", other) => {
                bail!(5346505, "metaField field must be a string, got: {}", other.type_name())
            }
            ("bucketMaxSpanSeconds", value) => match value.as_exact_i64() {
                Some(seconds) if seconds > 0 => span_seconds = seconds,
                _ => bail!(5510600, "bucketMaxSpanSeconds field must be an integer greater than 0"),
            },
            ("exclude", Value::Array(fields)) if fields.is_empty() => {}
            (other, _) => {
                bail!(5346506, "unrecognized parameter to $_internalUnpackBucket: {other}")
            }
        }
    }
    let Some(time_field) = time_field else {
        bail!(5346508, "The $_internalUnpackBucket stage requires a timeField parameter");
    };
    Ok(vec![Arc::new(UnpackBucket {
        time_field: time_field.to_owned(),
        meta_field: meta_field.map(str::to_owned),
        span_seconds,
        conditions: None,
    })])
}

impl Stage for UnpackBucket {
    fn name(&self) -> &'static str {
        "$_internalUnpackBucket"
    }

    fn open(self: Arc<Self>, input: BoxOperator, _database: &SharedDatabase) -> BoxOperator {
        let unpacker = Unpacker::new(&self.time_field, self.meta_field.as_deref());
        Box::new(UnpackRun { stage: self, input, unpacker, open: false, row: Vec::new() })
    }

    fn dependencies(&self, _deps: &mut Deps) -> Reads {
        Reads::All
    }

    fn let_pass(&self, filter: &Arc<Matcher>) -> Option<SplitFilter> {
        bounds::meta_first(filter, self.meta_field.as_deref()?)
    }

    fn bounded_by(&self, filter: &Matcher) -> Option<(Option<Arc<Matcher>>, SharedStage)> {
        if self.conditions.is_some() {
            return None;
        }
        let conditions = bounds::conditions(filter);
        let buckets = bounds::of_times(&conditions, &self.time_field, self.span_seconds);
        let conditions = Some(Arc::new(conditions));
        Some((buckets, Arc::new(UnpackBucket { conditions, ..self.clone() })))
    }

    fn spec(&self) -> Option<DocBuf> {
        Some(DocBuf::build(|out| {
            let mut spec = out.document("$_internalUnpackBucket");
            spec.append("timeField", self.time_field.as_str());
            if let Some(meta) = &self.meta_field {
                spec.append("metaField", meta.as_str());
            }
            spec.append("bucketMaxSpanSeconds", self.span_seconds as i32);
        }))
    }
}

/// Runs `$_internalUnpackBucket`.
struct UnpackRun {
    stage: Arc<UnpackBucket>,
    input: BoxOperator,
    unpacker: Unpacker,
    /// Whether a bucket is being taken apart.
    open: bool,
    row: Vec<u8>,
}

impl Operator for UnpackRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        if self.open {
            if self.unpacker.next_into(&mut self.row)? {
                return Ok(Step::Row);
            }
            self.open = false;
        }
        let step = self.input.work(cx)?;
        if step != Step::Row {
            return Ok(step);
        }
        let bucket = self.input.row().document();
        let conditions = self.stage.conditions.as_deref().map_or(&[][..], Vec::as_slice);
        if conditions.iter().all(|condition| condition.may_hold(bucket)) {
            self.unpacker.begin(bucket);
            self.open = true;
        }
        self.input.release();
        Ok(Step::More)
    }

    fn row(&self) -> Row<'_> {
        Row::of(RawDoc::new(&self.row))
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }

    fn release(&mut self) {
        sheaf_rows::let_go(&mut self.row);
    }
}
