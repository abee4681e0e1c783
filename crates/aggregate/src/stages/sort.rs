//! `$sort`.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::Result;
use sheaf_expr::{Deps, ParseCx};
use sheaf_query::sort::{SortPattern, Sorted, Sorter};

use crate::source::{BoxSource, RunCx, Source};
use crate::stage::{Reads, Stage, StageCx};

/// A parsed `$sort`.
#[derive(Clone, Debug)]
pub struct Sort {
    /// The keys.
    pub pattern: SortPattern,
    /// Only this many documents are wanted: a `$limit` that follows.
    pub limit: Option<u64>,
}

impl Sort {
    /// A sort by this pattern.
    pub fn new(pattern: RawDoc<'_>, _cx: &mut ParseCx) -> Result<Self> {
        Ok(Sort { pattern: SortPattern::parse(pattern)?, limit: None })
    }

    /// Notes what the sort reads.
    pub fn dependencies(&self, deps: &mut Deps) -> Reads {
        self.pattern.dependencies(deps);
        Reads::AndPassesOn
    }
}

pub(crate) fn parse(argument: Value<'_>, _cx: &mut StageCx<'_>) -> Result<Vec<Stage>> {
    let sort = Sort { pattern: SortPattern::parse_stage(argument)?, limit: None };
    Ok(vec![Stage::Sort(Arc::new(sort))])
}

/// Runs `$sort`.
pub struct SortRun {
    stage: Arc<Sort>,
    input: Option<BoxSource>,
    sorted: Option<Sorted>,
}

impl SortRun {
    pub(crate) fn new(stage: Arc<Sort>, input: BoxSource) -> Self {
        SortRun { stage, input: Some(input), sorted: None }
    }
}

impl Source for SortRun {
    fn next(&mut self, cx: &mut RunCx<'_>) -> Result<Option<DocBuf>> {
        if let Some(mut input) = self.input.take() {
            let mut sorter = new_sorter(self.stage.limit, cx)?;
            let mut key = Vec::new();
            while let Some(document) = input.next(cx)? {
                key.clear();
                self.stage.pattern.put_key_bytes(document.as_raw(), RawDoc::EMPTY, &mut key)?;
                sorter.add(&key, document.as_bytes())?;
                cx.check_interrupt()?;
            }
            cx.note_spills(&sorter);
            self.sorted = Some(sorter.finish()?);
        }
        match self.sorted.as_mut().and_then(Iterator::next) {
            Some(document) => Ok(Some(DocBuf::from_bytes(document?))),
            None => Ok(None),
        }
    }
}

/// A sorter with this command's memory, which spills where the database lets it.
pub(crate) fn new_sorter(limit: Option<u64>, cx: &RunCx<'_>) -> Result<Sorter> {
    let runs = if cx.options.allow_disk_use { cx.database.sort_runs()? } else { None };
    let memory = if cx.options.allow_disk_use && runs.is_none() {
        // Without a place to spill to, what may use the disk uses memory.
        usize::MAX
    } else {
        cx.options.stage_memory_bytes
    };
    Ok(Sorter::new(limit, memory, runs))
}
