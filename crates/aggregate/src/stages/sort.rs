//! `$sort`.

use std::sync::Arc;

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::Result;
use sheaf_expr::{Deps, ParseCx};
use sheaf_query::sort::SortPattern;

use crate::stage::{Reads, Stage, StageCx};

/// A parsed `$sort`.
#[derive(Clone, Debug)]
pub struct Sort {
    /// The keys.
    pub pattern: Arc<SortPattern>,
    /// Only this many documents are wanted: a `$limit` that follows.
    pub limit: Option<u64>,
}

impl Sort {
    /// A sort by this pattern.
    pub fn new(pattern: RawDoc<'_>, _cx: &mut ParseCx) -> Result<Self> {
        Ok(Sort { pattern: Arc::new(SortPattern::parse(pattern)?), limit: None })
    }

    /// Notes what the sort reads.
    pub fn dependencies(&self, deps: &mut Deps) -> Reads {
        self.pattern.dependencies(deps);
        Reads::AndPassesOn
    }
}

pub(crate) fn parse(argument: Value<'_>, _cx: &mut StageCx<'_>) -> Result<Vec<Stage>> {
    let sort = Sort { pattern: Arc::new(SortPattern::parse_stage(argument)?), limit: None };
    Ok(vec![Stage::Sort(Arc::new(sort))])
}
