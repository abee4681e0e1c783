//! `$replaceRoot` (`$replaceWith`).

use std::sync::Arc;

use sheaf_bson::{Bump, RawDoc, Value};
use sheaf_errors::Result;
use sheaf_expr::Deps;
use sheaf_query::update::ReplaceRoot;
use sheaf_rows::{BoxOperator, Cx, Operator, Row, Step, let_go, let_go_arena};

use crate::database::SharedDatabase;
use crate::stage::{Needs, Reads, SharedStage, Split, Stage, StageCx, StageEntry};

/// `$replaceRoot`.
pub(crate) const REPLACE_ROOT: StageEntry =
    StageEntry::new("$replaceRoot", parse_replace_root, Split::Shards, Needs::Nothing).in_change_streams();
/// `$replaceWith`.
pub(crate) const REPLACE_WITH: StageEntry =
    StageEntry::new("$replaceWith", parse_replace_with, Split::Shards, Needs::Nothing).in_change_streams();

/// A parsed `$replaceRoot` or `$replaceWith`.
#[derive(Debug)]
pub struct Replace(ReplaceRoot);

pub(crate) fn parse_replace_root(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    Ok(vec![Arc::new(Replace(ReplaceRoot::parse(argument, cx.expr)?))])
}

pub(crate) fn parse_replace_with(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    Ok(vec![Arc::new(Replace(ReplaceRoot::parse_with(argument, cx.expr)?))])
}

impl Stage for Replace {
    fn name(&self) -> &'static str {
        "$replaceRoot"
    }

    fn open(self: Arc<Self>, input: BoxOperator, _database: &SharedDatabase) -> BoxOperator {
        Box::new(ReplaceRun { stage: self, input, arena: Bump::new(), output: Vec::new() })
    }

    fn dependencies(&self, deps: &mut Deps) -> Reads {
        self.0.dependencies(deps);
        Reads::Only
    }

    fn keeps_count(&self) -> bool {
        true
    }
}

/// Runs `$replaceRoot`.
struct ReplaceRun {
    stage: Arc<Replace>,
    input: BoxOperator,
    arena: Bump,
    output: Vec<u8>,
}

impl Operator for ReplaceRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let step = self.input.work(cx)?;
        if step != Step::Row {
            return Ok(step);
        }
        let row = self.input.row();
        self.arena.reset();
        let env = cx.env_over(&self.input, &self.arena);
        let new = self.stage.0.apply(row.document(), &env)?;
        self.output.clear();
        self.output.extend_from_slice(new.as_bytes());
        crate::check_made(new)?;
        drop(env);
        self.input.release();
        Ok(Step::Row)
    }

    fn row(&self) -> Row<'_> {
        Row::of(RawDoc::new(&self.output))
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        self.input.metadata()
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }

    fn release(&mut self) {
        let_go(&mut self.output);
    }

    fn suspend(&mut self) {
        self.release();
        let_go_arena(&mut self.arena);
        self.input.suspend();
    }
}
