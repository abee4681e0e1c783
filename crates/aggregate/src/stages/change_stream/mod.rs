//! `$changeStream`: its argument, and what of the oplog becomes which event.
//!
//! Nothing here reads the log: [`ChangeStream`] says what a stream wants, [`events`] turns one operation of the
//! oplog into events, and [`ResumeToken`] is a position. The implementor of [`crate::Database`] pulls operations
//! and looks documents up.

mod description;
mod event;
mod split;
#[cfg(test)]
mod tests;
mod token;
mod wanted;

use std::sync::Arc;

use sheaf_bson::Value;
use sheaf_errors::{Code, Result, bail};

use sheaf_expr::Deps;
use sheaf_rows::BoxOperator;

use crate::database::SharedDatabase;
use crate::stage::{Needs, Place, Reads, Shape, SharedStage, Stage, StageCx, StageEntry};

pub use description::Description;
pub use event::{Event, Operation, Origin, events};
pub(crate) use split::SPLIT_LARGE_EVENT;
pub use split::Split;
pub use token::ResumeToken;
pub use wanted::{BeforeChange, ChangeStream, FullDocument, Start, Watched};

/// `$changeStream`.
pub(crate) const CHANGE_STREAM: StageEntry =
    StageEntry::new("$changeStream", parse, crate::stage::Split::Both, Needs::Own(&["changeStream", "find"]))
        .first()
        .collectionless()
        .not_in_transactions()
        .in_change_streams();

/// Parses `$changeStream`.
///
/// Errors: 6188500, 40415, `TypeMismatch`, `BadValue`, `APIStrictError` for the argument; `InvalidNamespace`, `InvalidOptions`, 50865,
/// 40674, `InvalidResumeToken` for what does not fit together.
pub(crate) fn parse(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let Value::Document(spec) = argument else {
        bail!(
            6188500,
            "$changeStream must take a nested object but found: $changeStream: {}",
            crate::print::value(argument)
        );
    };
    match cx.place {
        Place::Top => {}
        Place::Facet => bail!(40600, "$changeStream is not allowed to be used within a $facet stage"),
        // A standalone mongod has no such streams at all, which it looks at first.
        Place::Lookup if !cx.expr.is_clustered() => {
            bail!(40573, "The $changeStream stage is only supported on replica sets")
        }
        Place::Lookup => bail!(51047, "$changeStream is not allowed within a $lookup's sub-pipeline"),
        Place::Union => bail!(31441, "$changeStream is not allowed within a $unionWith's sub-pipeline"),
        Place::View => {
            bail!(Code::OPTION_NOT_SUPPORTED_ON_VIEW, "$changeStream cannot be used in a view definition")
        }
    }
    if cx.expr.is_api_strict() {
        for name in ["showExpandedEvents", "showRawUpdateDescription", "showSystemEvents"] {
            if spec.get(name).is_some() {
                bail!(
                    Code::API_STRICT_ERROR,
                    "The '{name}' parameter to $changeStream is not supported in API Version 1"
                );
            }
        }
    }
    let stream = ChangeStream::parse(spec, cx.namespace)?;
    Ok(vec![Arc::new(Opening(Arc::new(stream)))])
}

/// A `$changeStream` in its pipeline.
#[derive(Debug)]
struct Opening(Arc<ChangeStream>);

impl Stage for Opening {
    fn name(&self) -> &'static str {
        "$changeStream"
    }

    fn open(self: Arc<Self>, input: BoxOperator, _database: &SharedDatabase) -> BoxOperator {
        // Who can read the log opens the stream, and the stages behind it.
        input
    }

    fn dependencies(&self, _deps: &mut Deps) -> Reads {
        Reads::Only
    }

    fn shape(&self) -> Shape<'_> {
        Shape::ChangeStream(&self.0)
    }
}
