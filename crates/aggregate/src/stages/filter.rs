//! `$match`.

use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Result, bail};
use sheaf_expr::Deps;
use sheaf_query::matcher::{Features, Matcher};
use sheaf_rows::{BoxOperator, Cx, Operator, Row, Step, let_go_arena};

use crate::database::SharedDatabase;
use crate::filters;
use crate::stage::{Needs, Reads, Shape, SharedStage, Split, Stage, StageCx, StageEntry};

/// `$match`.
pub(crate) const MATCH: StageEntry =
    StageEntry::new("$match", parse, Split::Shards, Needs::Nothing).in_change_streams();

/// A parsed `$match`. Clones share the filter.
#[derive(Clone, Debug)]
pub struct Match {
    /// The filter.
    pub matcher: Arc<Matcher>,
}

pub(crate) fn parse(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let Value::Document(filter) = argument else {
        bail!(15959, "the match filter must be an expression in an object");
    };
    let matcher = Matcher::parse_with(filter, Features::Pipeline, cx.expr)?;
    Ok(vec![Arc::new(Match { matcher: Arc::new(matcher) })])
}

impl Stage for Match {
    fn name(&self) -> &'static str {
        "$match"
    }

    fn open(self: Arc<Self>, input: BoxOperator, _database: &SharedDatabase) -> BoxOperator {
        Box::new(MatchRun { stage: self, input, arena: Bump::new() })
    }

    fn dependencies(&self, deps: &mut Deps) -> Reads {
        self.matcher.dependencies(deps);
        Reads::AndPassesOn
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Match(&self.matcher)
    }

    fn with_filter(&self, filter: Arc<Matcher>) -> Option<SharedStage> {
        Some(Arc::new(Match { matcher: filter }))
    }

    fn spec(&self) -> Option<DocBuf> {
        Some(doc! { "$match": self.matcher.filter() })
    }

    fn joined_with(&self, next: &dyn Stage) -> Option<SharedStage> {
        let Shape::Match(next) = next.shape() else { return None };
        Some(Arc::new(Match { matcher: filters::both(&self.matcher, next)? }))
    }

    fn shown(&self) -> Option<Vec<DocBuf>> {
        Some(vec![doc! { "$match": &self.matcher.to_doc() }])
    }
}

/// Runs `$match`.
struct MatchRun {
    stage: Arc<Match>,
    input: BoxOperator,
    arena: Bump,
}

impl Operator for MatchRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let step = self.input.work(cx)?;
        if step != Step::Row {
            return Ok(step);
        }
        let (row, matcher) = (self.input.row(), &self.stage.matcher);
        let matches = if matcher.has_expr() {
            self.arena.reset();
            matcher.matches(row.document(), &cx.env_over(&self.input, &self.arena))?
        } else {
            matcher.matches_doc(row.document())?
        };
        Ok(if matches { Step::Row } else { Step::More })
    }

    fn row(&self) -> Row<'_> {
        self.input.row()
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        self.input.metadata()
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }

    fn release(&mut self) {
        self.input.release();
    }

    fn suspend(&mut self) {
        let_go_arena(&mut self.arena);
        self.input.suspend();
    }
}
