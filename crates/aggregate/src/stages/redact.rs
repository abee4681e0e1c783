//! `$redact`.

use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf, RawDoc, Value, array_in, document_in};
use sheaf_errors::{Result, bail};
use sheaf_expr::{Deps, Env, Expr, Slot};
use sheaf_query::matcher::Matcher;

use crate::database::SharedDatabase;
use crate::filters;
use crate::print;
use crate::stage::{Needs, Reads, SharedStage, Split, Stage, StageCx, StageEntry};
use sheaf_rows::{BoxOperator, Cx, Operator, Row, Step, let_go, let_go_arena};

/// `$redact`.
pub(crate) const REDACT: StageEntry =
    StageEntry::new("$redact", parse, Split::Shards, Needs::Nothing).in_change_streams();

/// A parsed `$redact`.
#[derive(Debug)]
pub struct Redact {
    expr: Arc<Expr>,
    /// `$$ROOT`, which stays the whole document at every level.
    root: Slot,
    /// As it was given.
    given: DocBuf,
    /// What a `$match` behind it says of its input is known.
    is_bounded: bool,
}

pub(crate) fn parse(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let scope = cx.expr.enter();
    let root = cx.expr.declare_root()?;
    cx.expr.set_redact(true);
    let expr = Expr::parse(argument, cx.expr);
    cx.expr.set_redact(false);
    cx.expr.leave(scope);
    let given = DocBuf::new().with("$redact", argument);
    Ok(vec![Arc::new(Redact { expr: Arc::new(expr?), root, given, is_bounded: false })])
}

impl Redact {
    /// What of a level stays; `None` for nothing.
    fn level<'a>(&'a self, level: RawDoc<'a>, env: &Env<'a>) -> Result<Option<RawDoc<'a>>> {
        match self.expr.eval(level, env)? {
            Value::String("keep") => Ok(Some(level)),
            Value::String("prune") => Ok(None),
            Value::String("descend") => {
                let mut fields = Vec::new();
                for element in level.iter() {
                    let value = self.inside(element.value(), env)?;
                    if !value.is_missing() {
                        fields.push((element.key(), value));
                    }
                }
                Ok(Some(document_in(env.arena(), |out| {
                    for (key, value) in fields {
                        out.append(key, value);
                    }
                })))
            }
            other => bail!(
                17053,
                "$redact's expression should not return anything aside from the variables $$KEEP, $$DESCEND, and \
                 $$PRUNE, but returned {}",
                print::value(other)
            ),
        }
    }

    /// Descends into documents, also those in arrays.
    fn inside<'a>(&'a self, value: Value<'a>, env: &Env<'a>) -> Result<Value<'a>> {
        Ok(match value {
            Value::Document(level) => self.level(level, env)?.map_or(Value::Missing, Value::Document),
            Value::Array(items) => {
                let mut kept = Vec::new();
                for item in items.values() {
                    let item = self.inside(item, env)?;
                    if !item.is_missing() {
                        kept.push(item);
                    }
                }
                Value::Array(array_in(env.arena(), |out| {
                    kept.into_iter().for_each(|item| _ = out.push(item))
                }))
            }
            other => other,
        })
    }
}

impl Stage for Redact {
    fn name(&self) -> &'static str {
        "$redact"
    }

    fn open(self: Arc<Self>, input: BoxOperator, _database: &SharedDatabase) -> BoxOperator {
        Box::new(RedactRun::new(self, input))
    }

    fn dependencies(&self, _deps: &mut Deps) -> Reads {
        Reads::All
    }

    fn bounded_by(&self, filter: &Matcher) -> Option<(Option<Arc<Matcher>>, SharedStage)> {
        if self.is_bounded {
            return None;
        }
        let (expr, given) = (self.expr.clone(), self.given.clone());
        let bounded = Redact { expr, root: self.root, given, is_bounded: true };
        Some((filters::lasting(filter), Arc::new(bounded)))
    }

    fn spec(&self) -> Option<DocBuf> {
        Some(self.given.clone())
    }
}

/// Runs `$redact`.
struct RedactRun {
    stage: Arc<Redact>,
    input: BoxOperator,
    arena: Bump,
    output: Vec<u8>,
}

impl RedactRun {
    fn new(stage: Arc<Redact>, input: BoxOperator) -> Self {
        RedactRun { stage, input, arena: Bump::new(), output: Vec::new() }
    }
}

impl Operator for RedactRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let step = self.input.work(cx)?;
        if step != Step::Row {
            return Ok(step);
        }
        let row = self.input.row();
        self.arena.reset();
        let env = cx.env_over(&self.input, &self.arena);
        env.set(self.stage.root, Value::Document(row.document()));
        let Some(kept) = self.stage.level(row.document(), &env)? else { return Ok(Step::More) };
        self.output.clear();
        self.output.extend_from_slice(kept.as_bytes());
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
