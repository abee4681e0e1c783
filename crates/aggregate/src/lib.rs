//! The aggregation pipeline: stages as pull operators over streams of raw documents, and the accumulators.
//!
//! [`Pipeline::parse`] reads and optimises a pipeline; [`Pipeline::open`] starts it over an [`Operator`](sheaf_rows::Operator)
//! that gives documents and makes one that gives results. What a stage needs from outside (other collections,
//! statistics, writing) it asks of the [`Database`] that it was opened with. A planner can take over the leading stages,
//! which [`Pipeline::head`] shows it.
//!
//! To add a stage: write its file under `stages` (its entry, its parsing, its [`Stage`]), and name the entry in [`STAGES`]. To add an
//! accumulator: write its state under `accumulators` and its entry in [`ACCUMULATORS`].

#![forbid(unsafe_code)]

mod accumulators;
mod database;
mod filters;
mod idl;
mod join;
mod language;
mod metadata;
mod namespace;
mod optimize;
mod outline;
mod parse;
mod pipeline;
mod print;
mod rewrite;
mod split;
mod spool;
mod stage;
pub mod stages;

use sheaf_bson::{MAX_DEPTH, MAX_DOCUMENT_SIZE, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

pub use accumulators::{ACCUMULATORS, Accumulation, Accumulator, State, is_accumulator};
pub use database::{
    CollectionSize, Database, MergeIndex, MergeWrite, OutWriter, Probe, SharedDatabase, StatsSource,
};
pub use language::{STAGES, stage_entry};
pub use namespace::Namespace;
pub use pipeline::{Head, Pipeline};
pub use print::document as print_document;
pub use split::SplitPipeline;
pub use stage::{
    Halves, Needs, Place, Reads, ReadsAt, Shape, SharedStage, Split, Stage, StageCx, StageEntry,
    StagePosition,
};
pub use stages::window::window_functions;

/// Documents between stages may be much larger than stored ones: a joined array is often cut down again.
pub(crate) const MAX_INTERNAL_SIZE: usize = 100 << 20;

/// What leaves a pipeline may be a little larger than what can be stored.
const MAX_OUTPUT_SIZE: usize = MAX_DOCUMENT_SIZE + 16 * 1024;

/// Refuses a document that is larger or nested deeper than any stage may make: stage by stage it could get so deep that
/// walking it exhausts the stack.
pub(crate) fn check_made(document: RawDoc<'_>) -> Result<()> {
    check(document, MAX_INTERNAL_SIZE)?;
    sheaf_expr::check_nesting(Value::Document(document))
}

/// Refuses a document that is too large to leave a pipeline; whoever sends results of pipelines calls this.
pub fn check_output_size(document: RawDoc<'_>) -> Result<()> {
    check(document, MAX_OUTPUT_SIZE)
}

/// Refuses to store what is no valid document, whichever expression is at fault: it would be refused by everybody who reads
/// it, other members of a set above all.
pub(crate) fn check_valid(document: RawDoc<'_>) -> Result<()> {
    sheaf_bson::validate(document.as_bytes(), MAX_DEPTH).map(|_| ())
}

fn check(document: RawDoc<'_>, limit: usize) -> Result<()> {
    let size = document.len();
    if size > limit {
        bail!(
            Code::BSON_OBJECT_TOO_LARGE,
            "BSONObj size: {size} (0x{size:X}) is invalid. Size must be between 0 and {MAX_OUTPUT_SIZE}(16MB)"
        );
    }
    Ok(())
}
