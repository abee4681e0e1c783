//! `$group` and `$sortByCount`.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf, OwnedValue, Value, compare, hash_value};
use sheaf_errors::{Error, Result, bail};
use sheaf_expr::{Deps, Expr, ParseCx};
use smallvec::SmallVec;

use crate::accumulators::{Accumulation, State};
use crate::source::{BoxSource, RunCx, Source};
use crate::stage::{Reads, Stage, StageCx};
use crate::stages::sort::Sort;

/// A parsed `$group`.
#[derive(Debug)]
pub struct Group {
    /// What the documents are grouped by.
    pub id: Expr,
    /// The output fields besides `_id`.
    pub accumulations: Vec<Accumulation>,
}

pub(crate) fn parse(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<Stage>> {
    let Value::Document(spec) = argument else {
        bail!(15947, "a group's fields must be specified in an object");
    };
    let mut id = None;
    let mut accumulations = Vec::new();
    for element in spec.iter() {
        if element.key() == "_id" {
            if id.is_some() {
                bail!(15948, "a group's _id may only be specified once");
            }
            id = Some(parse_id(element.value(), cx.expr)?);
        } else if element.key() == "$doingMerge" {
            bail!(17030, "$doingMerge should be true if present");
        } else {
            accumulations.push(Accumulation::parse(element, cx.expr)?);
        }
    }
    let Some(id) = id else { bail!(15955, "a group specification must include an _id") };
    Ok(vec![Stage::Group(Arc::new(Group { id, accumulations }))])
}

/// Reads an `_id`: an object of expressions may not look like a projection.
fn parse_id(value: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    if let Value::Document(fields) = value
        && !fields.is_empty()
        && !fields.iter().next().is_some_and(|first| first.key().starts_with('$'))
    {
        for field in fields.iter() {
            if field.key().starts_with('$') {
                bail!(17390, "$group does not support inclusion-style expressions");
            }
        }
    }
    Expr::parse(value, cx)
}

pub(crate) fn parse_sort_by_count(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<Stage>> {
    match argument {
        Value::Document(spec) => {
            let mut fields = spec.iter();
            match (fields.next(), fields.next()) {
                (Some(only), None) if only.key().starts_with('$') => {}
                _ => bail!(
                    40147,
                    "the sortByCount field must be defined as a $-prefixed path or an expression inside an object"
                ),
            }
        }
        Value::String(path) if path.starts_with('$') => {}
        Value::String(_) => bail!(
            40148,
            "the sortByCount field must be defined as a $-prefixed path or an expression inside an object"
        ),
        _ => bail!(40149, "the sortByCount field must be specified as a string or as an object"),
    }
    let id = Expr::parse(argument, cx.expr)?;
    let group = Group { id, accumulations: vec![Accumulation::count("count")] };
    let pattern = DocBuf::new().with("count", -1);
    Ok(vec![Stage::Group(Arc::new(group)), Stage::Sort(Arc::new(Sort::new(pattern.as_raw(), cx.expr)?))])
}

impl Group {
    /// Notes what is read of the documents.
    pub fn dependencies(&self, deps: &mut Deps) -> Reads {
        self.id.dependencies(deps);
        self.accumulations.iter().for_each(|accumulation| accumulation.dependencies(deps));
        Reads::Only
    }
}

/// A group under way.
pub(crate) struct Running {
    pub(crate) id: OwnedValue,
    pub(crate) states: SmallVec<[Box<dyn State>; 4]>,
}

impl Running {
    /// The output document.
    pub(crate) fn finish(&self, accumulations: &[Accumulation], arena: &Bump) -> Result<DocBuf> {
        let mut document = DocBuf::new().with("_id", &self.id);
        for (accumulation, state) in accumulations.iter().zip(&self.states) {
            let value = state.result(arena)?;
            // An accumulator that saw nothing gives null, so that the output's shape does not vary.
            document.append(accumulation.field(), if value.is_missing() { Value::Null } else { value });
        }
        crate::check_size(&document)?;
        Ok(document)
    }
}

/// All groups, found by the hash of their `_id`, in which equal numbers are equal whatever their types.
#[derive(Default)]
struct Table {
    groups: Vec<Running>,
    by_hash: HashMap<u64, SmallVec<[u32; 1]>, PassThrough>,
    hasher: ahash::RandomState,
    held: usize,
}

/// The hash is the key.
#[derive(Clone, Default)]
struct PassThrough;

impl BuildHasher for PassThrough {
    type Hasher = Same;
    fn build_hasher(&self) -> Same {
        Same(0)
    }
}

struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _bytes: &[u8]) {}
    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}

impl Table {
    /// The place of the group with this `_id`, which `start` makes if it is new.
    fn find(
        &mut self,
        id: Value<'_>,
        start: impl FnOnce() -> Result<SmallVec<[Box<dyn State>; 4]>>,
    ) -> Result<usize> {
        let mut hasher = self.hasher.build_hasher();
        hash_value(id, &mut hasher);
        let places = self.by_hash.entry(hasher.finish()).or_default();
        for place in places.iter() {
            if compare(self.groups[*place as usize].id.as_value(), id).is_eq() {
                return Ok(*place as usize);
            }
        }
        let place = self.groups.len();
        places.push(place as u32);
        let id = OwnedValue::from(id);
        let states = start()?;
        self.held += id.memory_bytes() + 64 + states.len() * 64;
        self.groups.push(Running { id, states });
        Ok(place)
    }
}

/// Runs `$group`.
pub struct GroupRun {
    stage: Arc<Group>,
    input: Option<BoxSource>,
    groups: std::vec::IntoIter<Running>,
    arena: Bump,
    pushed_down: bool,
}

impl GroupRun {
    pub(crate) fn new(stage: Arc<Group>, input: BoxSource) -> Self {
        GroupRun {
            stage,
            input: Some(input),
            groups: Vec::new().into_iter(),
            arena: Bump::new(),
            pushed_down: false,
        }
    }

    /// For a group that mongod would run in its execution engine, where some errors have numbers of their own.
    pub(crate) fn pushed_down(mut self) -> Self {
        self.pushed_down = true;
        self
    }

    fn gather(&mut self, mut input: BoxSource, cx: &mut RunCx<'_>) -> Result<()> {
        let mut table = Table::default();
        while let Some(document) = input.next(cx)? {
            self.arena.reset();
            let taken = take_in(&self.stage, &document, &mut table, cx, &self.arena);
            taken.map_err(|error| if self.pushed_down { engine_error(error) } else { error })?;
            cx.check_memory(table.held, |_| {
                "Exceeded memory limit for $group, but didn't allow external sort. Pass allowDiskUse:true to opt in."
                    .to_owned()
            })?;
            cx.check_interrupt()?;
        }
        self.groups = table.groups.into_iter();
        Ok(())
    }
}

/// The error of mongod's execution engine for one that an expression met.
fn engine_error(error: Error) -> Error {
    match (error.code().0, error.message()) {
        (2, message @ "can't $divide by zero") => Error::location(4_848_401, message),
        (16610 | 5_733_415, message) => Error::location(4_848_403, message),
        _ => error,
    }
}

fn take_in(stage: &Group, document: &DocBuf, table: &mut Table, cx: &RunCx<'_>, arena: &Bump) -> Result<()> {
    let env = cx.env(arena);
    let document = document.as_raw();
    let id = stage.id.eval(document, &env)?;
    let id = if id.is_missing() { Value::Null } else { id };
    let place = table.find(id, || stage.accumulations.iter().map(|a| a.start(id, &env)).collect())?;
    let group = &mut table.groups[place];
    for (accumulation, state) in stage.accumulations.iter().zip(&mut group.states) {
        let value = accumulation.value(document, &env)?;
        let before = state.memory_bytes();
        state.add(value)?;
        table.held = (table.held + state.memory_bytes()).saturating_sub(before);
    }
    Ok(())
}

impl Source for GroupRun {
    fn next(&mut self, cx: &mut RunCx<'_>) -> Result<Option<DocBuf>> {
        if let Some(input) = self.input.take() {
            self.gather(input, cx)?;
        }
        self.arena.reset();
        match self.groups.next() {
            Some(group) => group.finish(&self.stage.accumulations, &self.arena).map(Some),
            None => Ok(None),
        }
    }
}
