//! `$limit`.

use std::sync::Arc;

use sheaf_bson::{DocBuf, Value, doc};
use sheaf_errors::{Result, bail};
use sheaf_expr::Deps;
use sheaf_rows::BoxOperator;

use crate::database::SharedDatabase;
use crate::print;
use crate::stage::{Halves, Needs, Reads, Shape, SharedStage, Split, Stage, StageCx, StageEntry};

/// `$limit`.
pub(crate) const LIMIT: StageEntry = StageEntry::new("$limit", parse, Split::Both, Needs::Nothing);

/// A parsed `$limit`: a number of documents.
#[derive(Clone, Copy, Debug)]
pub struct Limit(pub u64);

pub(crate) fn parse(argument: Value<'_>, _cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    match documents("$limit", argument) {
        Ok(0) => bail!(15958, "the limit must be positive"),
        Ok(limit) => Ok(vec![Arc::new(Limit(limit))]),
        Err(reason) => bail!(5107201, "invalid argument to $limit stage: {reason}"),
    }
}

impl Stage for Limit {
    fn name(&self) -> &'static str {
        "$limit"
    }

    fn open(self: Arc<Self>, input: BoxOperator, _database: &SharedDatabase) -> BoxOperator {
        Box::new(sheaf_rows::Limit::new(input, self.0))
    }

    fn dependencies(&self, _deps: &mut Deps) -> Reads {
        Reads::AndPassesOn
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Limit(self.0)
    }

    fn joined_with(&self, next: &dyn Stage) -> Option<SharedStage> {
        let Shape::Limit(next) = next.shape() else { return None };
        Some(Arc::new(Limit(self.0.min(next))))
    }

    fn spec(&self) -> Option<DocBuf> {
        Some(doc! { "$limit": self.0 as i64 })
    }

    fn halves(&self) -> Option<Halves> {
        let limit = || vec![doc! { "$limit": self.0 as i64 }];
        Some(Halves { passes_rows: true, ..Halves::unordered(limit(), limit()) })
    }

    fn shown(&self) -> Option<Vec<DocBuf>> {
        Some(vec![doc! { "$limit": self.0 as i64 }])
    }
}

/// A number of documents, as `$limit` and `$skip` take it.
pub(super) fn documents(name: &str, argument: Value<'_>) -> Result<u64, String> {
    let shown = format!("{name}: {}", print::value(argument));
    if !argument.is_number() {
        return Err(format!("Expected a number in: {shown}"));
    }
    match argument.as_exact_i64() {
        Some(n) => u64::try_from(n).map_err(|_| format!("Expected a non-negative number in: {shown}")),
        None if argument.as_f64().is_some_and(|n| n.fract() == 0.0) => {
            Err(format!("Cannot represent as a 64-bit integer: {shown}"))
        }
        None => Err(format!("Expected an integer: {shown}")),
    }
}
