//! `$_internalUnpackBucket`: a time-series collection's buckets become measurements.

mod bounds;
mod latest;
mod parse;

use std::sync::Arc;

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value};
use sheaf_errors::Result;
use sheaf_expr::{Deps, FieldPath};
use sheaf_query::matcher::Matcher;
use sheaf_query::sort::SortPattern;
use sheaf_rows::{BoxOperator, Cx, Operator, Row, Step};
use sheaf_timeseries::{Fields, Unpacker};

use crate::database::SharedDatabase;
use crate::filters::SplitFilter;
use crate::stage::{Needs, Reads, Shape, SharedStage, Split, Stage, StageEntry};
use bounds::Condition;
use latest::LatestBuckets;

/// `$_internalUnpackBucket`.
pub(crate) const INTERNAL_UNPACK_BUCKET: StageEntry =
    StageEntry::new("$_internalUnpackBucket", parse::parse, Split::Shards, Needs::Nothing).not_in_facet();

/// A parsed `$_internalUnpackBucket`.
#[derive(Clone, Debug)]
pub struct UnpackBucket {
    time_field: String,
    meta_field: Option<String>,
    span_seconds: i64,
    /// The fields that measurements get.
    fields: Fields,
    /// What every measurement must fulfil to pass the `$match` behind; buckets where none can are left out. `None` until it has
    /// been looked for.
    conditions: Option<Arc<Vec<Condition>>>,
    /// Only the latest measurement of each meta value is wanted; others may come along.
    latest: bool,
}

impl Stage for UnpackBucket {
    fn name(&self) -> &'static str {
        "$_internalUnpackBucket"
    }

    fn open(self: Arc<Self>, input: BoxOperator, _database: &SharedDatabase) -> BoxOperator {
        let unpacker =
            Unpacker::new(&self.time_field, self.meta_field.as_deref()).giving(self.fields.clone());
        let input = match self.latest {
            true => Box::new(LatestBuckets::new(input, &self.time_field)),
            false => input,
        };
        Box::new(UnpackRun { stage: self, input, unpacker, open: false, row: Vec::new() })
    }

    fn dependencies(&self, _deps: &mut Deps) -> Reads {
        Reads::All
    }

    fn shape(&self) -> Shape<'_> {
        Shape::UnpackBucket(self.meta_field.as_deref())
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

    fn can_give_less(&self) -> bool {
        matches!(self.fields, Fields::All)
    }

    fn giving_only(&self, deps: &Deps) -> Option<SharedStage> {
        let mut names: Vec<String> =
            deps.paths.iter().map(|path| path.split('.').next().unwrap_or_default().to_owned()).collect();
        names.dedup();
        Some(Arc::new(UnpackBucket { fields: Fields::Only(names), ..self.clone() }))
    }

    fn before_one_of_each(
        &self,
        pattern: &SortPattern,
        path: &FieldPath,
        first: bool,
    ) -> Option<SharedStage> {
        let meta = self.meta_field.as_deref()?;
        if path.parts().first().is_none_or(|part| **part != *meta) {
            return None;
        }
        let spec = pattern.to_doc();
        let mut keys: Vec<(&str, f64)> = Vec::new();
        for part in spec.as_raw().iter() {
            keys.push((part.key(), part.value().as_f64()?));
        }
        let time = match keys.as_slice() {
            [time] => time,
            [by, time] if by.0 == path.dotted() => time,
            _ => return None,
        };
        // The least time of a bucket is rounded: the earliest measurement may be in any of several.
        let latest = time.0 == self.time_field && (time.1 < 0.0) == first;
        (latest && !self.latest).then(|| Arc::new(UnpackBucket { latest, ..self.clone() }) as SharedStage)
    }

    fn spec(&self) -> Option<DocBuf> {
        Some(DocBuf::build(|out| {
            let mut spec = out.document("$_internalUnpackBucket");
            let (name, fields) = match &self.fields {
                Fields::All => ("exclude", &[][..]),
                Fields::Only(fields) => ("include", &fields[..]),
                Fields::Without(fields) => ("exclude", &fields[..]),
            };
            let fields = ArrayBuf::of(fields.iter().map(|field| Value::String(field)));
            spec.append(name, Value::Array(fields.as_raw()));
            spec.append("timeField", self.time_field.as_str());
            if let Some(meta) = &self.meta_field {
                spec.append("metaField", meta.as_str());
            }
            spec.append("bucketMaxSpanSeconds", self.span_seconds as i32);
        }))
    }

    fn shown(&self) -> Option<Vec<DocBuf>> {
        Some(self.spec().into_iter().collect())
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
            self.unpacker.begin(bucket)?;
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
