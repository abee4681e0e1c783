//! `$project`, `$addFields` (`$set`), `$unset`, `$replaceRoot` (`$replaceWith`).

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use sheaf_bson::{Bump, DocWriter, RawDoc, Value};
use sheaf_errors::{Result, bail};
use sheaf_expr::Deps;
use sheaf_query::projection::{Kind, Mode, Projection};
use sheaf_query::update::ReplaceRoot;

use crate::stage::{Reads, Stage, StageCx};
use sheaf_rows::{BoxOperator, Cx, Operator, Row, Step};

/// A parsed `$project`, `$addFields` or `$unset`.
#[derive(Debug)]
pub struct Project {
    /// What it does.
    pub projection: Projection,
    /// The top-level names in the specification.
    names: BTreeSet<String>,
    /// [`Projection::included_paths`], once somebody has asked.
    included: OnceLock<Option<BTreeSet<String>>>,
}

/// A parsed `$replaceRoot` or `$replaceWith`.
pub type Replace = ReplaceRoot;

impl Project {
    fn stage(projection: Projection, spec: RawDoc<'_>) -> Vec<Stage> {
        let names = spec.iter().map(|element| element.key().to_owned()).collect();
        vec![Stage::Project(Arc::new(Project { projection, names, included: OnceLock::new() }))]
    }

    /// Notes what the projection reads.
    pub fn dependencies(&self, deps: &mut Deps) -> Reads {
        self.projection.dependencies(deps);
        if self.projection.kind() == Kind::Inclusion { Reads::Only } else { Reads::AndPassesOn }
    }

    /// Whether a filter on this path sees the same before and after.
    pub fn preserves(&self, path: &str) -> bool {
        match self.projection.kind() {
            Kind::Inclusion => {
                let included = self.included.get_or_init(|| {
                    self.projection.included_paths().map(|paths| paths.into_iter().collect())
                });
                included.as_ref().is_some_and(|included| has_at_or_above(included, path))
            }
            Kind::Exclusion | Kind::Addition => {
                !has_at_or_above(&self.names, path) && !has_below(&self.names, path)
            }
        }
    }
}

/// Whether the path is among these, or one that it lies below.
fn has_at_or_above(paths: &BTreeSet<String>, path: &str) -> bool {
    paths.contains(path) || path.match_indices('.').any(|(at, _)| paths.contains(&path[..at]))
}

/// Whether one of these lies below the path.
fn has_below(paths: &BTreeSet<String>, path: &str) -> bool {
    let prefix = format!("{path}.");
    paths.range(prefix.clone()..).next().is_some_and(|first| first.starts_with(&prefix))
}

pub(crate) fn parse_project(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<Stage>> {
    let Value::Document(spec) = argument else {
        bail!(15969, "$project specification must be an object");
    };
    let projection = Projection::parse(spec, Mode::Aggregate, cx.expr);
    Ok(Project::stage(projection.map_err(|error| error.context("Invalid $project"))?, spec))
}

pub(crate) fn parse_add_fields(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<Stage>> {
    parse_addition("$addFields", argument, cx)
}

pub(crate) fn parse_set(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<Stage>> {
    parse_addition("$set", argument, cx)
}

fn parse_addition(name: &str, argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<Stage>> {
    let Value::Document(spec) = argument else {
        bail!(40272, "{name} specification stage must be an object, got {}", argument.type_name());
    };
    let projection = Projection::parse_add_fields(spec, cx.expr);
    Ok(Project::stage(projection.map_err(|error| error.context(format_args!("Invalid {name}")))?, spec))
}

pub(crate) fn parse_unset(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<Stage>> {
    let spec = sheaf_query::update::unset_spec(argument)?;
    let projection = Projection::parse(spec.as_raw(), Mode::Aggregate, cx.expr);
    Ok(Project::stage(projection.map_err(|error| error.context("Invalid $unset"))?, spec.as_raw()))
}

pub(crate) fn parse_replace_root(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<Stage>> {
    Ok(vec![Stage::ReplaceRoot(Arc::new(ReplaceRoot::parse(argument, cx.expr)?))])
}

pub(crate) fn parse_replace_with(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<Stage>> {
    Ok(vec![Stage::ReplaceRoot(Arc::new(ReplaceRoot::parse_with(argument, cx.expr)?))])
}

/// Runs a projection.
pub(crate) struct ProjectRun {
    stage: Arc<Project>,
    input: BoxOperator,
    arena: Bump,
    output: Vec<u8>,
}

impl ProjectRun {
    pub(crate) fn new(stage: Arc<Project>, input: BoxOperator) -> Self {
        ProjectRun { stage, input, arena: Bump::new(), output: Vec::new() }
    }
}

impl Operator for ProjectRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let step = self.input.work(cx)?;
        if step != Step::Row || self.stage.projection.is_identity() {
            return Ok(step);
        }
        let row = self.input.row();
        self.arena.reset();
        let env = cx.env_over(&self.input, &self.arena);
        self.output.clear();
        let mut out = DocWriter::new(&mut self.output);
        self.stage.projection.apply(row.document(), &env, None, &mut out)?;
        drop(out);
        crate::check_made(RawDoc::new(&self.output))?;
        Ok(Step::Row)
    }

    fn row(&self) -> Row<'_> {
        if self.stage.projection.is_identity() {
            return self.input.row();
        }
        Row::of(RawDoc::new(&self.output))
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        self.input.metadata()
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }
}

/// Runs `$replaceRoot`.
pub(crate) struct ReplaceRun {
    stage: Arc<Replace>,
    input: BoxOperator,
    arena: Bump,
    output: Vec<u8>,
}

impl ReplaceRun {
    pub(crate) fn new(stage: Arc<Replace>, input: BoxOperator) -> Self {
        ReplaceRun { stage, input, arena: Bump::new(), output: Vec::new() }
    }
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
        let new = self.stage.apply(row.document(), &env)?;
        self.output.clear();
        self.output.extend_from_slice(new.as_bytes());
        crate::check_made(new)?;
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
}
