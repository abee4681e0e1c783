//! `$unionWith`.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use crate::database::Namespace;
use crate::pipeline::{Pipeline, SharedPipeline};
use crate::source::{BoxSource, RunCx, Source};
use crate::stage::{Place, Stage, StageCx};

/// A parsed `$unionWith`.
#[derive(Debug)]
pub struct Union {
    /// The other collection; `None` if the pipeline makes its documents itself.
    pub from: Option<Namespace>,
    /// What runs there.
    pub pipeline: SharedPipeline,
}

pub(crate) fn parse(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<Stage>> {
    let (mut collection, mut stages) = (None, None);
    match argument {
        Value::String(name) => collection = Some(name),
        Value::Document(spec) => {
            for field in spec.iter() {
                match (field.key(), field.value()) {
                    ("coll", Value::String(name)) => collection = Some(name),
                    ("coll", other) => bail!(
                        Code::TYPE_MISMATCH,
                        "BSON field '$unionWith.coll' is the wrong type '{}', expected type 'string'",
                        other.type_name()
                    ),
                    ("pipeline", Value::Array(array)) => stages = Some(array),
                    ("pipeline", other) => bail!(
                        Code::TYPE_MISMATCH,
                        "BSON field '$unionWith.pipeline' is the wrong type '{}', expected type 'array'",
                        other.type_name()
                    ),
                    (other, _) => bail!(40415, "BSON field '$unionWith.{other}' is an unknown field."),
                }
            }
        }
        other => bail!(
            Code::FAILED_TO_PARSE,
            "the $unionWith stage specification must be an object or string, but found {}",
            other.type_name()
        ),
    }
    let own = Namespace::new(cx.namespace.database.clone(), collection.unwrap_or_default());
    let pipeline = Pipeline::parse_at(stages.unwrap_or(RawDoc::EMPTY), &mut cx.nested(&own, Place::Union)?)?;
    if collection.is_none() && !pipeline.has_own_source() {
        bail!(
            Code::FAILED_TO_PARSE,
            "$unionWith stage without explicit collection must have a pipeline with $documents as first stage"
        );
    }
    let from = collection.is_some().then_some(own);
    Ok(vec![Stage::Union(Arc::new(Union { from, pipeline: Arc::new(pipeline) }))])
}

/// Runs `$unionWith`.
pub struct UnionRun {
    stage: Arc<Union>,
    input: Option<BoxSource>,
    other: Option<BoxSource>,
}

impl UnionRun {
    pub(crate) fn new(stage: Arc<Union>, input: BoxSource) -> Self {
        UnionRun { stage, input: Some(input), other: None }
    }
}

impl Source for UnionRun {
    fn next(&mut self, cx: &mut RunCx<'_>) -> Result<Option<DocBuf>> {
        if let Some(input) = &mut self.input {
            if let Some(document) = input.next(cx)? {
                return Ok(Some(document));
            }
            self.input = None;
            self.other = Some(match &self.stage.from {
                Some(namespace) if !self.stage.pipeline.has_own_source() => {
                    cx.database.run(namespace, &self.stage.pipeline, cx)?
                }
                _ => self.stage.pipeline.open_own(),
            });
        }
        match &mut self.other {
            Some(other) => other.next(cx),
            None => Ok(None),
        }
    }
}
