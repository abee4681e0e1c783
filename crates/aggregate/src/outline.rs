//! The first look at a command's pipeline: the names of its stages, the collections that they name, and their own pipelines.
//!
//! mongod takes it of everything before it reads a single stage, so that what is wrong there is reported first, however late in
//! the pipeline, or deep in it, it stands.

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

/// The deepest nesting of pipelines in pipelines.
pub(crate) const MAX_NESTED_PIPELINES: usize = 20;

/// Takes the first look at a stage; `None` if there is none of this name.
type LookAt = fn(&str, Value<'_>, &Outline<'_>) -> Option<Result<()>>;

/// What the first look at a stage needs.
pub(crate) struct Outline<'c> {
    /// The database that the pipeline reads.
    pub(crate) database: &'c str,
    look_at: LookAt,
    depth: usize,
}

impl<'c> Outline<'c> {
    /// For a command's pipeline.
    pub(crate) fn new(database: &'c str, look_at: LookAt) -> Outline<'c> {
        Outline { database, look_at, depth: 0 }
    }

    /// Looks at a pipeline.
    ///
    /// Errors: `TypeMismatch` for what is no document, 40323, 40324; those of the stages.
    pub(crate) fn pipeline(&self, stages: RawDoc<'_>) -> Result<()> {
        check_stages(stages)?;
        for stage in stages.values() {
            sheaf_meter::tick(4)?;
            let mut fields = stage.as_doc().unwrap_or(RawDoc::EMPTY).iter();
            let (Some(field), None) = (fields.next(), fields.next()) else {
                bail!(40323, "A pipeline stage specification object must contain exactly one field.");
            };
            let Some(looked) = (self.look_at)(field.key(), field.value(), self) else {
                bail!(40324, "Unrecognized pipeline stage name: '{}'", field.key());
            };
            looked?;
        }
        Ok(())
    }

    /// Looks at a pipeline inside a stage. Reading refuses what is nested too deeply.
    ///
    /// Errors: those of [`pipeline`](Self::pipeline).
    pub(crate) fn nested(&self, stages: RawDoc<'_>) -> Result<()> {
        if self.depth == MAX_NESTED_PIPELINES {
            return Ok(());
        }
        Outline { depth: self.depth + 1, ..*self }.pipeline(stages)
    }
}

/// The stages of a pipeline that is an option of a stage.
///
/// Errors: `TypeMismatch`, for null too.
pub(crate) fn stages(pipeline: Value<'_>) -> Result<RawDoc<'_>> {
    let Value::Array(stages) = pipeline else {
        bail!(Code::TYPE_MISMATCH, "'pipeline' option must be specified as an array");
    };
    check_stages(stages)?;
    Ok(stages)
}

/// Whether a pipeline makes its documents itself, so that it needs no collection.
pub(crate) fn makes_documents(stages: RawDoc<'_>) -> bool {
    let first = stages.values().next().and_then(|first| first.as_doc());
    first.is_some_and(|first| first.get("$documents").is_some())
}

fn check_stages(stages: RawDoc<'_>) -> Result<()> {
    if stages.values().any(|stage| !matches!(stage, Value::Document(_))) {
        bail!(Code::TYPE_MISMATCH, "Each element of the 'pipeline' array must be an object");
    }
    Ok(())
}
