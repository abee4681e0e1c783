//! `$_internalSortKey`: what stands behind a `$sort` if a later stage asks for `{$meta: "sortKey"}`. It computes each row's key
//! once more, so that neither the sort nor the plan that may stand for it has to keep keys.

use std::sync::Arc;

use sheaf_bson::{ArrayBuf, Bump, DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::Deps;
use sheaf_query::sort::SortPattern;
use sheaf_rows::{BoxOperator, Cx, Operator, Row, Step};

use crate::database::SharedDatabase;
use crate::stage::{Needs, Reads, Shape, SharedStage, Split, Stage, StageCx, StageEntry};

const NAME: &str = "$_internalSortKey";

/// The metadata's name.
const SORT_KEY: &str = "sortKey";

/// `$_internalSortKey`.
pub(crate) const INTERNAL_SORT_KEY: StageEntry =
    StageEntry::new(NAME, parse, Split::Merger, Needs::Nothing).unstable();

/// A parsed `$_internalSortKey`.
#[derive(Debug)]
pub struct SortKey {
    pattern: Arc<SortPattern>,
}

fn parse(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let Value::Document(pattern) = argument else {
        bail!(Code::FAILED_TO_PARSE, "{NAME} takes the pattern of a sort");
    };
    Ok(vec![Arc::new(SortKey {
        pattern: Arc::new(SortPattern::parse(pattern)?.with_collator(cx.expr.collator())),
    })])
}

/// Puts the stage behind each `$sort` whose keys are asked for.
pub(crate) fn attach(stages: &mut Vec<SharedStage>) {
    let mut asked = false;
    for at in (0..stages.len()).rev() {
        if let (true, Shape::Sort { pattern, .. }) = (asked, stages[at].shape()) {
            let stage = Arc::new(SortKey { pattern: pattern.clone() });
            stages.insert(at + 1, stage);
            asked = false;
        }
        let mut deps = Deps::new();
        stages[at].dependencies(&mut deps);
        asked |= deps.metadata.contains(SORT_KEY);
    }
}

impl Stage for SortKey {
    fn name(&self) -> &'static str {
        NAME
    }

    fn open(self: Arc<Self>, input: BoxOperator, _database: &SharedDatabase) -> BoxOperator {
        Box::new(SortKeyRun { stage: self, input, metadata: DocBuf::new() })
    }

    fn dependencies(&self, deps: &mut Deps) -> Reads {
        self.pattern.dependencies(deps);
        Reads::AndPassesOn
    }

    fn keeps_count(&self) -> bool {
        true
    }

    fn spec(&self) -> Option<DocBuf> {
        Some(DocBuf::new().with(NAME, &self.pattern.to_doc()))
    }

    fn shown(&self) -> Option<Vec<DocBuf>> {
        Some(Vec::new())
    }
}

/// Runs the stage: rows go through, with their keys beside them.
struct SortKeyRun {
    stage: Arc<SortKey>,
    input: BoxOperator,
    metadata: DocBuf,
}

impl Operator for SortKeyRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let step = self.input.work(cx)?;
        if step == Step::Row {
            let other = self.input.metadata().unwrap_or(RawDoc::EMPTY);
            let key = self.stage.pattern.key(self.input.row().document(), other)?;
            let (arena, by) = (Bump::new(), self.stage.pattern.collator());
            let comparable = |value| by.map_or(value, |collator| collator.key(value, &arena));
            let key = ArrayBuf::build(|out| key.iter().for_each(|value| _ = out.push(comparable(*value))));
            self.metadata = DocBuf::build(|out| {
                for field in other.iter().filter(|field| field.key() != SORT_KEY) {
                    out.append_element(field);
                }
                out.append(SORT_KEY, &key);
            });
        }
        Ok(step)
    }

    fn row(&self) -> Row<'_> {
        self.input.row()
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        Some(self.metadata.as_raw())
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }

    fn release(&mut self) {
        self.input.release();
    }
}
