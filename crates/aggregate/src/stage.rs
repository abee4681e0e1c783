//! The stages: one table entry each, in one place.

use std::sync::Arc;

use sheaf_bson::Value;
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Deps, ParseCx};

use sheaf_rows::{BoxOperator, Limit, Skip};

use crate::database::{Namespace, SharedDatabase};
use crate::stages::*;

/// The deepest nesting of pipelines in pipelines.
const MAX_NESTED_PIPELINES: usize = 20;

/// In which kind of pipeline a stage stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// The command's own pipeline.
    Top,
    /// A view's definition.
    View,
    /// A pipeline inside `$facet`.
    Facet,
    /// A pipeline inside `$lookup`.
    Lookup,
    /// A pipeline inside `$unionWith`.
    Union,
}

/// What parsing a stage needs.
pub struct StageCx<'c> {
    /// Variables and time, for expressions.
    pub expr: &'c mut ParseCx,
    /// The namespace that the pipeline reads.
    pub namespace: &'c Namespace,
    /// In which kind of pipeline it stands.
    pub place: Place,
    /// Whether it is inside a `$facet`, however deep: what may not stand there may not stand in the pipelines of
    /// its `$lookup` and `$unionWith` stages either.
    pub(crate) in_facet: bool,
    pub(crate) depth: usize,
}

impl StageCx<'_> {
    /// The context for a pipeline inside this one.
    pub(crate) fn nested<'n>(&'n mut self, namespace: &'n Namespace, place: Place) -> Result<StageCx<'n>> {
        if self.depth + 1 > MAX_NESTED_PIPELINES {
            bail!(
                Code::MAX_SUB_PIPELINE_DEPTH_EXCEEDED,
                "Maximum number of nested sub-pipelines exceeded. Limit is {MAX_NESTED_PIPELINES}"
            );
        }
        let in_facet = self.in_facet || place == Place::Facet;
        Ok(StageCx { expr: self.expr, namespace, place, in_facet, depth: self.depth + 1 })
    }
}

/// Where in a pipeline a stage may stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Position {
    /// Anywhere.
    Any,
    /// Only first: it makes documents of its own.
    First,
    /// Only last: it writes.
    Last,
}

/// One stage of the language.
pub struct StageEntry {
    /// The name, `$` included.
    pub name: &'static str,
    /// Where it may stand.
    pub position: Position,
    /// Whether it may stand inside `$facet`.
    pub in_facet: bool,
    /// Whether it may run without a collection (`aggregate: 1`) as the first stage.
    pub collectionless: bool,
    /// Whether the stable API (`apiStrict`) has it.
    pub stable_api: bool,
    parse: fn(Value<'_>, &mut StageCx<'_>) -> Result<Vec<Stage>>,
}

impl StageEntry {
    /// Reads the stage's argument. Some stages are short for several others.
    pub fn parse(&self, argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<Stage>> {
        (self.parse)(argument, cx)
    }
}

const ANY: StageEntry = StageEntry {
    name: "",
    position: Position::Any,
    in_facet: true,
    collectionless: false,
    stable_api: true,
    parse: |_, _| Ok(Vec::new()),
};
const FIRST: StageEntry = StageEntry { position: Position::First, in_facet: false, ..ANY };
const LAST: StageEntry = StageEntry { position: Position::Last, in_facet: false, ..ANY };

/// All stages, by name.
pub static STAGES: &[StageEntry] = &[
    StageEntry { name: "$addFields", parse: project::parse_add_fields, ..ANY },
    StageEntry { name: "$bucket", parse: bucket::parse, ..ANY },
    StageEntry { name: "$bucketAuto", parse: bucket_auto::parse, ..ANY },
    StageEntry { name: "$changeStream", parse: change_stream::parse, collectionless: true, ..FIRST },
    StageEntry { name: "$changeStreamSplitLargeEvent", parse: change_stream::parse_split, ..ANY },
    StageEntry { name: "$collStats", parse: stats::parse_coll_stats, ..FIRST },
    StageEntry { name: "$count", parse: simple::parse_count, ..ANY },
    StageEntry {
        name: "$currentOp",
        parse: stats::parse_current_op,
        collectionless: true,
        stable_api: false,
        ..FIRST
    },
    StageEntry { name: "$documents", parse: documents::parse, collectionless: true, ..FIRST },
    StageEntry { name: "$facet", parse: facet::parse, in_facet: false, ..ANY },
    StageEntry { name: "$graphLookup", parse: graph_lookup::parse, ..ANY },
    StageEntry { name: "$group", parse: group::parse, ..ANY },
    StageEntry { name: "$indexStats", parse: stats::parse_index_stats, stable_api: false, ..FIRST },
    StageEntry { name: "$limit", parse: simple::parse_limit, ..ANY },
    StageEntry {
        name: "$listLocalSessions",
        parse: stats::parse_list_local_sessions,
        collectionless: true,
        stable_api: false,
        ..FIRST
    },
    StageEntry { name: "$listSearchIndexes", parse: search::parse_list_indexes, stable_api: false, ..FIRST },
    StageEntry { name: "$lookup", parse: lookup::parse, ..ANY },
    StageEntry { name: "$match", parse: simple::parse_match, ..ANY },
    StageEntry { name: "$merge", parse: merge::parse, ..LAST },
    StageEntry { name: "$out", parse: out::parse, ..LAST },
    StageEntry { name: "$project", parse: project::parse_project, ..ANY },
    StageEntry { name: "$redact", parse: redact::parse, ..ANY },
    StageEntry { name: "$replaceRoot", parse: project::parse_replace_root, ..ANY },
    StageEntry { name: "$replaceWith", parse: project::parse_replace_with, ..ANY },
    StageEntry { name: "$sample", parse: sample::parse, ..ANY },
    StageEntry { name: "$search", parse: search::parse, stable_api: false, ..FIRST },
    StageEntry { name: "$searchMeta", parse: search::parse, stable_api: false, ..FIRST },
    StageEntry { name: "$set", parse: project::parse_set, ..ANY },
    StageEntry { name: "$skip", parse: simple::parse_skip, ..ANY },
    StageEntry { name: "$sort", parse: sort::parse, ..ANY },
    StageEntry { name: "$sortByCount", parse: group::parse_sort_by_count, ..ANY },
    StageEntry { name: "$unionWith", parse: union::parse, ..ANY },
    StageEntry { name: "$unset", parse: project::parse_unset, ..ANY },
    StageEntry { name: "$unwind", parse: unwind::parse, ..ANY },
    StageEntry { name: "$vectorSearch", parse: search::parse, stable_api: false, ..FIRST },
];

/// The entry of a stage name.
pub fn stage_entry(name: &str) -> Option<&'static StageEntry> {
    STAGES.iter().find(|entry| entry.name == name)
}

/// A parsed stage. Cloning shares what was parsed.
#[derive(Clone, Debug)]
pub enum Stage {
    /// `$match`.
    Match(Arc<simple::Match>),
    /// `$limit`.
    Limit(u64),
    /// `$skip`.
    Skip(u64),
    /// `$sort`, with the `$limit` that follows it.
    Sort(Arc<sort::Sort>),
    /// `$project`, `$unset`, `$addFields`, `$set`.
    Project(Arc<project::Project>),
    /// `$replaceRoot`, `$replaceWith`.
    ReplaceRoot(Arc<project::Replace>),
    /// `$group`.
    Group(Arc<group::Group>),
    /// `$bucketAuto`.
    BucketAuto(Arc<bucket_auto::BucketAuto>),
    /// `$count`.
    Count(Arc<str>),
    /// `$unwind`.
    Unwind(Arc<unwind::Unwind>),
    /// `$sample`.
    Sample(u64),
    /// `$facet`.
    Facet(Arc<facet::Facet>),
    /// `$lookup`.
    Lookup(Arc<lookup::Lookup>),
    /// `$graphLookup`.
    GraphLookup(Arc<graph_lookup::GraphLookup>),
    /// `$unionWith`.
    Union(Arc<union::Union>),
    /// `$redact`.
    Redact(Arc<redact::Redact>),
    /// `$documents`.
    Documents(Arc<documents::Documents>),
    /// `$collStats` and other sources outside the collection's documents.
    Stats(Arc<stats::Stats>),
    /// `$changeStream`.
    ChangeStream(Arc<change_stream::ChangeStream>),
    /// `$changeStreamSplitLargeEvent`.
    SplitLargeEvent(Arc<change_stream::Split>),
    /// `$out`.
    Out(Arc<out::Out>),
    /// `$merge`.
    Merge(Arc<merge::Merge>),
}

/// What a stage lets through of the documents' fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reads {
    /// It reads what it says, and passes all fields on: what later stages read counts too.
    AndPassesOn,
    /// It reads what it says; nothing else of its input can be seen after it.
    Only,
    /// It reads everything.
    All,
}

impl Stage {
    /// Starts the stage over its input.
    pub fn open(&self, input: BoxOperator, database: &SharedDatabase) -> BoxOperator {
        match self {
            Stage::Match(stage) => Box::new(simple::MatchRun::new(stage.clone(), input)),
            Stage::Limit(limit) => Box::new(Limit::new(input, *limit)),
            Stage::Skip(skip) => Box::new(Skip::new(input, *skip)),
            Stage::Sort(stage) => Box::new(sheaf_rows::Sort::new(input, stage.pattern.clone(), stage.limit)),
            Stage::Project(stage) => Box::new(project::ProjectRun::new(stage.clone(), input)),
            Stage::ReplaceRoot(stage) => Box::new(project::ReplaceRun::new(stage.clone(), input)),
            Stage::Group(stage) => Box::new(group::GroupRun::new(stage.clone(), input)),
            Stage::BucketAuto(stage) => Box::new(bucket_auto::BucketAutoRun::new(stage.clone(), input)),
            Stage::Count(field) => Box::new(simple::CountRun::new(field.clone(), input)),
            Stage::Unwind(stage) => Box::new(unwind::UnwindRun::new(stage.clone(), input)),
            Stage::Sample(size) => Box::new(sample::SampleRun::new(*size, input, database.clone())),
            Stage::Facet(stage) => Box::new(facet::FacetRun::new(stage.clone(), input, database.clone())),
            Stage::Lookup(stage) => Box::new(lookup::LookupRun::new(stage.clone(), input, database.clone())),
            Stage::GraphLookup(stage) => {
                Box::new(graph_lookup::GraphLookupRun::new(stage.clone(), input, database.clone()))
            }
            Stage::Union(stage) => Box::new(union::UnionRun::new(stage.clone(), input, database.clone())),
            Stage::Redact(stage) => Box::new(redact::RedactRun::new(stage.clone(), input)),
            Stage::Documents(stage) => Box::new(documents::DocumentsRun::new(stage.clone())),
            Stage::Stats(stage) => Box::new(stats::StatsRun::new(stage.clone(), database.clone())),
            // Who can read the log opens the stream, and the stages behind it.
            Stage::ChangeStream(_) => input,
            Stage::SplitLargeEvent(stage) => Box::new(change_stream::SplitRun::new(stage.clone(), input)),
            Stage::Out(stage) => Box::new(out::OutRun::new(stage.clone(), input, database.clone())),
            Stage::Merge(stage) => Box::new(merge::MergeRun::new(stage.clone(), input, database.clone())),
        }
    }

    /// The stage's name. Stages that are short for others have those names.
    pub fn name(&self) -> &'static str {
        match self {
            Stage::Match(_) => "$match",
            Stage::Limit(_) => "$limit",
            Stage::Skip(_) => "$skip",
            Stage::Sort(_) => "$sort",
            Stage::Project(stage) => match stage.projection.kind() {
                sheaf_query::projection::Kind::Addition => "$addFields",
                _ => "$project",
            },
            Stage::ReplaceRoot(_) => "$replaceRoot",
            Stage::Group(_) => "$group",
            Stage::BucketAuto(_) => "$bucketAuto",
            Stage::Count(_) => "$count",
            Stage::Unwind(_) => "$unwind",
            Stage::Sample(_) => "$sample",
            Stage::Facet(_) => "$facet",
            Stage::Lookup(_) => "$lookup",
            Stage::GraphLookup(_) => "$graphLookup",
            Stage::Union(_) => "$unionWith",
            Stage::Redact(_) => "$redact",
            Stage::Documents(_) => "$documents",
            Stage::Stats(stage) => stage.source.stage_name(),
            Stage::ChangeStream(_) => "$changeStream",
            Stage::SplitLargeEvent(_) => "$changeStreamSplitLargeEvent",
            Stage::Out(_) => "$out",
            Stage::Merge(_) => "$merge",
        }
    }

    /// Notes what the stage reads of its input.
    pub fn dependencies(&self, deps: &mut Deps) -> Reads {
        match self {
            Stage::Match(stage) => {
                stage.matcher.dependencies(deps);
                Reads::AndPassesOn
            }
            Stage::Limit(_) | Stage::Skip(_) | Stage::Sample(_) => Reads::AndPassesOn,
            Stage::Sort(stage) => stage.dependencies(deps),
            Stage::Project(stage) => stage.dependencies(deps),
            Stage::ReplaceRoot(stage) => {
                stage.dependencies(deps);
                Reads::Only
            }
            Stage::Group(stage) => stage.dependencies(deps),
            Stage::BucketAuto(stage) => stage.dependencies(deps),
            Stage::Count(_) => Reads::Only,
            Stage::Unwind(stage) => {
                deps.paths.insert(stage.path.dotted());
                Reads::AndPassesOn
            }
            Stage::Facet(stage) => stage.dependencies(deps),
            Stage::Lookup(stage) => stage.dependencies(deps),
            Stage::GraphLookup(_)
            | Stage::Union(_)
            | Stage::Redact(_)
            | Stage::SplitLargeEvent(_)
            | Stage::Out(_)
            | Stage::Merge(_) => Reads::All,
            Stage::Documents(_) | Stage::Stats(_) | Stage::ChangeStream(_) => Reads::Only,
        }
    }

    /// Other namespaces that the stage reads, also inside its own pipelines.
    pub fn foreign_namespaces(&self, found: &mut Vec<Namespace>) {
        match self {
            Stage::Lookup(stage) => {
                found.push(stage.from.clone());
                stage.pipeline.iter().for_each(|pipeline| pipeline.foreign_namespaces(found));
            }
            Stage::GraphLookup(stage) => found.push(stage.from.clone()),
            Stage::Union(stage) => {
                found.extend(stage.from.clone());
                stage.pipeline.foreign_namespaces(found);
            }
            Stage::Facet(stage) => {
                stage.facets.iter().for_each(|(_, pipeline)| pipeline.foreign_namespaces(found));
            }
            _ => {}
        }
    }

    /// The namespace that the stage writes.
    pub fn target_namespace(&self) -> Option<&Namespace> {
        match self {
            Stage::Out(stage) => Some(&stage.target),
            Stage::Merge(stage) => Some(&stage.target),
            _ => None,
        }
    }
}
