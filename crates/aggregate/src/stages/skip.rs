//! `$skip`.

use std::sync::Arc;

use sheaf_bson::{DocBuf, Value, doc};
use sheaf_errors::{Result, bail};
use sheaf_expr::Deps;
use sheaf_rows::BoxOperator;

use super::limit::documents;
use crate::database::SharedDatabase;
use crate::stage::{Needs, Reads, Shape, SharedStage, Split, Stage, StageCx, StageEntry};

/// `$skip`.
pub(crate) const SKIP: StageEntry = StageEntry::new("$skip", parse, Split::Merger, Needs::Nothing);

/// A parsed `$skip`: a number of documents.
#[derive(Clone, Copy, Debug)]
pub struct Skip(pub u64);

pub(crate) fn parse(argument: Value<'_>, _cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    match documents("$skip", argument) {
        Ok(skip) => Ok(vec![Arc::new(Skip(skip))]),
        Err(reason) => bail!(5107200, "invalid argument to $skip stage: {reason}"),
    }
}

impl Stage for Skip {
    fn name(&self) -> &'static str {
        "$skip"
    }

    fn open(self: Arc<Self>, input: BoxOperator, _database: &SharedDatabase) -> BoxOperator {
        Box::new(sheaf_rows::Skip::new(input, self.0))
    }

    fn dependencies(&self, _deps: &mut Deps) -> Reads {
        Reads::AndPassesOn
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Skip(self.0)
    }

    fn joined_with(&self, next: &dyn Stage) -> Option<SharedStage> {
        let Shape::Skip(next) = next.shape() else { return None };
        Some(Arc::new(Skip(self.0.checked_add(next)?)))
    }

    fn spec(&self) -> Option<DocBuf> {
        Some(doc! { "$skip": self.0 as i64 })
    }

    fn shown(&self) -> Option<Vec<DocBuf>> {
        Some(vec![doc! { "$skip": self.0 as i64 }])
    }
}
