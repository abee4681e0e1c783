//! `$match`, `$limit`, `$skip`, `$count`: documents pass through these as they are.

use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf, Value};
use sheaf_errors::{Result, bail};
use sheaf_query::matcher::{Features, Matcher};

use crate::print;
use crate::source::{BoxSource, RunCx, Source};
use crate::stage::{Stage, StageCx};

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
pub struct MatchRun {
    stage: Arc<Match>,
    input: BoxSource,
    arena: Bump,
}

impl MatchRun {
    pub(crate) fn new(stage: Arc<Match>, input: BoxSource) -> Self {
        MatchRun { stage, input, arena: Bump::new() }
    }
}

impl Source for MatchRun {
    fn next(&mut self, cx: &mut RunCx<'_>) -> Result<Option<DocBuf>> {
        while let Some(document) = self.input.next(cx)? {
            self.arena.reset();
            if self.stage.matcher.matches(document.as_raw(), &cx.env(&self.arena))? {
                return Ok(Some(document));
            }
            cx.check_interrupt()?;
        }
        Ok(None)
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

/// Runs `$limit`.
pub struct LimitRun {
    left: u64,
    input: BoxSource,
}

impl LimitRun {
    pub(crate) fn new(limit: u64, input: BoxSource) -> Self {
        LimitRun { left: limit, input }
    }
}

impl Source for LimitRun {
    fn next(&mut self, cx: &mut RunCx<'_>) -> Result<Option<DocBuf>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        self.input.next(cx)
    }
}

/// Runs `$skip`.
pub struct SkipRun {
    left: u64,
    input: BoxSource,
}

impl SkipRun {
    pub(crate) fn new(skip: u64, input: BoxSource) -> Self {
        SkipRun { left: skip, input }
    }
}

impl Source for SkipRun {
    fn next(&mut self, cx: &mut RunCx<'_>) -> Result<Option<DocBuf>> {
        while self.left > 0 {
            if self.input.next(cx)?.is_none() {
                return Ok(None);
            }
            self.left -= 1;
            cx.check_interrupt()?;
        }
        self.input.next(cx)
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
pub struct CountRun {
    field: Arc<str>,
    input: Option<BoxSource>,
}

impl CountRun {
    pub(crate) fn new(field: Arc<str>, input: BoxSource) -> Self {
        CountRun { field, input: Some(input) }
    }
}

impl Source for CountRun {
    fn next(&mut self, cx: &mut RunCx<'_>) -> Result<Option<DocBuf>> {
        let Some(mut input) = self.input.take() else { return Ok(None) };
        let mut count: i64 = 0;
        while input.next(cx)?.is_some() {
            count += 1;
            cx.check_interrupt()?;
        }
        if count == 0 {
            // There is no group of no documents.
            return Ok(None);
        }
        let value = i32::try_from(count).map_or(Value::Int64(count), Value::Int32);
        Ok(Some(DocBuf::new().with(&self.field, value)))
    }
}
