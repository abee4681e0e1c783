//! `$project`, `$addFields` (`$set`), `$unset`.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use sheaf_bson::{Bump, DocBuf, DocWriter, RawDoc, Value};
use sheaf_errors::{Result, bail};
use sheaf_expr::Deps;
use sheaf_query::matcher::Matcher;
use sheaf_query::projection::{Kind, Mode, Projection};

use crate::database::SharedDatabase;
use crate::filters::{self, Read, SplitFilter};
use crate::stage::{Needs, Reads, Shape, SharedStage, Split, Stage, StageCx, StageEntry};
use sheaf_rows::{BoxOperator, Cx, Operator, Row, Step, let_go, let_go_arena};

/// `$addFields`.
pub(crate) const ADD_FIELDS: StageEntry =
    StageEntry::new("$addFields", parse_add_fields, Split::Shards, Needs::Nothing).in_change_streams();
/// `$project`.
pub(crate) const PROJECT: StageEntry =
    StageEntry::new("$project", parse_project, Split::Shards, Needs::Nothing).in_change_streams();
/// `$set`.
pub(crate) const SET: StageEntry =
    StageEntry::new("$set", parse_set, Split::Shards, Needs::Nothing).in_change_streams();
/// `$unset`.
pub(crate) const UNSET: StageEntry =
    StageEntry::new("$unset", parse_unset, Split::Shards, Needs::Nothing).in_change_streams();

/// A parsed `$project`, `$addFields` or `$unset`.
#[derive(Debug)]
pub struct Project {
    /// What it does.
    pub projection: Projection,
    /// The top-level names in the specification.
    names: BTreeSet<String>,
    /// [`Projection::included_paths`], once somebody has asked.
    included: OnceLock<Option<BTreeSet<String>>>,
    /// The stage that means the same, where nobody has given it.
    derived: Option<DocBuf>,
}

impl Project {
    fn stage(projection: Projection, spec: RawDoc<'_>) -> Vec<SharedStage> {
        let names = spec.iter().map(|element| element.key().to_owned()).collect();
        vec![Arc::new(Project { projection, names, included: OnceLock::new(), derived: None })]
    }

    /// Whether a condition sees the same before and after.
    fn preserves(&self, read: &Read<'_>) -> bool {
        let path = read.path;
        // Within arrays: elements lose or get fields, become documents, or go.
        let keeps_elements = |paths: &BTreeSet<String>| {
            let is_within = |one: &String| one.contains('.') && filters::same_field(one, path);
            read.is_blind_to_elements() || !paths.iter().any(is_within)
        };
        match self.projection.kind() {
            Kind::Inclusion => {
                let included = self.included.get_or_init(|| {
                    self.projection.included_paths().map(|paths| paths.into_iter().collect())
                });
                included
                    .as_ref()
                    .is_some_and(|included| has_at_or_above(included, path) && keeps_elements(included))
            }
            Kind::Exclusion | Kind::Addition => {
                !has_at_or_above(&self.names, path)
                    && !has_below(&self.names, path)
                    && keeps_elements(&self.names)
            }
        }
    }
}

/// The path before a stage of what is another field's value behind it: `{z: "$u"}`. Of dotted paths the values of arrays would be others.
fn renamed(shape: RawDoc<'_>, path: &str) -> Option<String> {
    let name = path.split('.').next()?;
    let source = shape.get(name)?.as_str()?.strip_prefix('$')?;
    let is_field = !source.is_empty() && !source.starts_with('$') && !source.contains('.');
    is_field.then(|| format!("{source}{}", &path[name.len()..]))
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

pub(crate) fn parse_project(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let Value::Document(spec) = argument else {
        bail!(15969, "$project specification must be an object");
    };
    let projection = Projection::parse(spec, Mode::Aggregate, cx.expr);
    Ok(Project::stage(projection.map_err(|error| error.context("Invalid $project"))?, spec))
}

pub(crate) fn parse_add_fields(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    parse_addition("$addFields", argument, cx)
}

pub(crate) fn parse_set(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    parse_addition("$set", argument, cx)
}

fn parse_addition(name: &str, argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let Value::Document(spec) = argument else {
        bail!(40272, "{name} specification stage must be an object, got {}", argument.type_name());
    };
    let projection = Projection::parse_add_fields(spec, cx.expr);
    Ok(Project::stage(projection.map_err(|error| error.context(format_args!("Invalid {name}")))?, spec))
}

pub(crate) fn parse_unset(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let spec = sheaf_query::update::unset_spec(argument)?;
    let projection = Projection::parse(spec.as_raw(), Mode::Aggregate, cx.expr);
    Ok(Project::stage(projection.map_err(|error| error.context("Invalid $unset"))?, spec.as_raw()))
}

/// A `$addFields`, or a `$project` that leaves fields out, which is part of what another stage is short for.
pub(crate) fn derived(name: &str, spec: &DocBuf, cx: &mut StageCx<'_>) -> Result<SharedStage> {
    let projection = match name {
        "$addFields" => Projection::parse_add_fields(spec.as_raw(), cx.expr)?,
        _ => Projection::parse(spec.as_raw(), Mode::Aggregate, cx.expr)?,
    };
    let names = spec.as_raw().iter().map(|element| element.key().to_owned()).collect();
    let derived = Some(DocBuf::new().with(name, spec));
    Ok(Arc::new(Project { projection, names, included: OnceLock::new(), derived }))
}

impl Stage for Project {
    fn name(&self) -> &'static str {
        if self.projection.kind() == Kind::Addition { "$addFields" } else { "$project" }
    }

    fn open(self: Arc<Self>, input: BoxOperator, _database: &SharedDatabase) -> BoxOperator {
        Box::new(ProjectRun { stage: self, input, arena: Bump::new(), output: Vec::new() })
    }

    fn dependencies(&self, deps: &mut Deps) -> Reads {
        self.projection.dependencies(deps);
        if self.projection.kind() == Kind::Inclusion { Reads::Only } else { Reads::AndPassesOn }
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Project(&self.projection)
    }

    fn spec(&self) -> Option<DocBuf> {
        self.derived.clone()
    }

    fn keeps_count(&self) -> bool {
        true
    }

    fn let_pass(&self, filter: &Arc<Matcher>) -> Option<SplitFilter> {
        let shape = self.projection.to_doc();
        filters::split_renamed(filter, |read| {
            if self.preserves(read) { Some(read.path.to_owned()) } else { renamed(shape.as_raw(), read.path) }
        })
    }

    fn shown(&self) -> Option<Vec<DocBuf>> {
        let (projection, kind) = (self.projection.to_doc(), self.projection.kind());
        Some(vec![DocBuf::build(|out| {
            let mut spec = out.document(self.name());
            let projection = projection.as_raw();
            // An `_id` that stays comes first.
            let id = projection.element("_id");
            let kept = id.is_some_and(|id| id.value().truthy());
            match (kind, id) {
                (Kind::Inclusion, Some(id)) if kept => _ = spec.append_element(id),
                _ => {}
            }
            for field in projection.iter() {
                if !(field.key() == "_id" && kept && kind == Kind::Inclusion) {
                    spec.append_element(field);
                }
            }
            if kind == Kind::Exclusion && id.is_none() {
                spec.append("_id", true);
            }
        })])
    }
}

/// Runs a projection.
struct ProjectRun {
    stage: Arc<Project>,
    input: BoxOperator,
    arena: Bump,
    output: Vec<u8>,
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
        drop(env);
        crate::check_made(RawDoc::new(&self.output))?;
        self.input.release();
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

    fn release(&mut self) {
        if self.stage.projection.is_identity() {
            self.input.release();
        }
        let_go(&mut self.output);
    }

    fn suspend(&mut self) {
        self.release();
        let_go_arena(&mut self.arena);
        self.input.suspend();
    }
}
