//! `$match`, `$limit`, `$skip`, `$count`: documents pass through these as they are.

use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf, RawDoc, Value};
use sheaf_errors::{Result, bail};
use sheaf_query::matcher::{Features, Matcher};

use crate::print;
use crate::stage::{Stage, StageCx};
use sheaf_rows::{BoxOperator, Cx, Operator, Row, Step};

/// A parsed `$match`.
#[derive(Debug)]
pub struct Match {
    /// The filter.
    pub matcher: Arc<Matcher>,
}

pub(crate) fn parse_match(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<Stage>> {
    let Value::Document(filter) = argument else {
        bail!(15959, "the match filter must be an expression in an object");
    };
    let matcher = Matcher::parse_with(filter, Features::Pipeline, cx.expr)?;
    Ok(vec![Stage::Match(Arc::new(Match { matcher: Arc::new(matcher) }))])
}

/// Runs `$match`.
pub(crate) struct MatchRun {
    stage: Arc<Match>,
    input: BoxOperator,
    arena: Bump,
}

impl MatchRun {
    pub(crate) fn new(stage: Arc<Match>, input: BoxOperator) -> Self {
        MatchRun { stage, input, arena: Bump::new() }
    }
}

impl Operator for MatchRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let step = self.input.work(cx)?;
        if step != Step::Row {
            return Ok(step);
        }
        let row = self.input.row();
        self.arena.reset();
        let matches = self.stage.matcher.matches(row.document(), &cx.env_over(&self.input, &self.arena))?;
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
}

/// A number of documents, as `$limit` and `$skip` take it.
fn documents(name: &str, argument: Value<'_>) -> Result<u64, String> {
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

pub(crate) fn parse_limit(argument: Value<'_>, _cx: &mut StageCx<'_>) -> Result<Vec<Stage>> {
    match documents("$limit", argument) {
        Ok(0) => bail!(15958, "the limit must be positive"),
        Ok(limit) => Ok(vec![Stage::Limit(limit)]),
        Err(reason) => bail!(5107201, "invalid argument to $limit stage: {reason}"),
    }
}

pub(crate) fn parse_skip(argument: Value<'_>, _cx: &mut StageCx<'_>) -> Result<Vec<Stage>> {
    match documents("$skip", argument) {
        Ok(skip) => Ok(vec![Stage::Skip(skip)]),
        Err(reason) => bail!(5107200, "invalid argument to $skip stage: {reason}"),
    }
}

pub(crate) fn parse_count(argument: Value<'_>, _cx: &mut StageCx<'_>) -> Result<Vec<Stage>> {
    let Value::String(field) = argument else {
        bail!(40156, "the count field must be a non-empty string");
    };
    match field {
        "" => bail!(40157, "the count field must be a non-empty string"),
        "_id" => bail!(9039800, "the count field cannot be '_id'"),
        _ if field.starts_with('$') => bail!(40158, "the count field cannot be a $-prefixed path"),
        _ if field.contains('\0') => bail!(40159, "the count field cannot contain a null byte"),
        _ if field.contains('.') => bail!(40160, "the count field cannot contain '.'"),
        _ => Ok(vec![Stage::Count(field.into())]),
    }
}

/// Runs `$count`.
pub(crate) struct CountRun {
    field: Arc<str>,
    input: BoxOperator,
    count: i64,
    output: Option<DocBuf>,
}

impl CountRun {
    pub(crate) fn new(field: Arc<str>, input: BoxOperator) -> Self {
        CountRun { field, input, count: 0, output: None }
    }
}

impl Operator for CountRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        if self.output.is_some() {
            return Ok(Step::Eof);
        }
        match self.input.work(cx)? {
            Step::Row => self.count += 1,
            Step::More => {}
            // There is no group of no documents.
            Step::Eof if self.count == 0 => return Ok(Step::Eof),
            Step::Eof => {
                let count = i32::try_from(self.count).map_or(Value::Int64(self.count), Value::Int32);
                self.output = Some(DocBuf::new().with(&self.field, count));
                return Ok(Step::Row);
            }
        }
        Ok(Step::More)
    }

    fn row(&self) -> Row<'_> {
        self.output.as_ref().map_or(Row::default(), |output| Row::of(output.as_raw()))
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }
}
