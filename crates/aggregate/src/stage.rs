//! What a stage of the language is: an entry in the table of names, and a parsed stage.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use sheaf_bson::{DocBuf, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Deps, FieldPath, ParseCx};
use sheaf_query::matcher::Matcher;
use sheaf_query::projection::Projection;
use sheaf_query::sort::SortPattern;
use sheaf_rows::BoxOperator;

use crate::database::SharedDatabase;
use crate::filters::SplitFilter;
use crate::namespace::Namespace;
use crate::outline::{MAX_NESTED_PIPELINES, Outline};
use crate::pipeline::SharedPipeline;
use crate::stages::change_stream::{ChangeStream, ResumeToken};
use crate::stages::geo_near::GeoNear;

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
    /// All stages of the language: those inside pipelines inside stages are looked up here.
    pub(crate) table: &'static [&'static StageEntry],
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
        Ok(StageCx { expr: self.expr, namespace, place, table: self.table, in_facet, depth: self.depth + 1 })
    }

    /// The entry of a stage name.
    pub(crate) fn entry(&self, name: &str) -> Option<&'static StageEntry> {
        self.table.iter().find(|entry| entry.name == name).copied()
    }
}

/// Where in a pipeline a stage may stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StagePosition {
    /// Anywhere.
    Any,
    /// Only first: it makes documents of its own.
    First,
    /// Only first, with an error of its own: it is short for stages that say how the collection is read.
    Leading,
    /// Only last: it writes.
    Last,
    /// Only last behind `$changeStream`.
    LastOfStream,
}

/// Which read concerns a stage runs with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadsAt {
    /// Any.
    AnyLevel,
    /// `local` alone: what the server does just now has no majority.
    Local,
    /// Any but `linearizable`: it writes.
    NotLinearizable,
}

/// Where a stage runs when the documents lie on several shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Split {
    /// On each shard, on its documents alone.
    Shards,
    /// A part on each shard, and the rest where their results come together.
    Both,
    /// Where the documents of all shards have come together.
    Merger,
    /// On the router, which has all that it needs.
    Router,
}

/// A stage in two halves.
#[derive(Debug)]
pub struct Halves {
    /// What each shard runs.
    pub shards: Vec<DocBuf>,
    /// The pattern by which the rows of all shards are merged, each shard's being in that order; `None` if any order will do.
    pub order: Option<DocBuf>,
    /// What makes the stage's rows of these.
    pub merger: Vec<DocBuf>,
    /// Whether the rows of shards are rows that the stage was given, so that those who follow say what is read of them.
    pub passes_rows: bool,
}

impl Halves {
    /// Halves whose rows may come together in any order.
    pub(crate) fn unordered(shards: Vec<DocBuf>, merger: Vec<DocBuf>) -> Halves {
        Halves { shards, order: None, merger, passes_rows: false }
    }
}

/// What a stage needs of the rights of who runs it, in MongoDB's names of actions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// Nothing besides: the documents that it sees were read already.
    Nothing,
    /// `find` on each of its [foreign namespaces](Stage::foreign_namespaces).
    Foreign,
    /// As a source: these actions on the pipeline's namespace, in place of `find`.
    Own(&'static [&'static str]),
    /// As a source: these actions on the cluster.
    Cluster(&'static [&'static str]),
    /// These actions on its [target](Stage::target_namespace).
    Target(&'static [&'static str]),
}

/// Parsed stages, as pipelines share them.
pub type SharedStage = Arc<dyn Stage>;

type Parse = fn(Value<'_>, &mut StageCx<'_>) -> Result<Vec<SharedStage>>;

/// The stages that a stage is short for, as a pipeline names them.
type Expand = fn(Value<'_>, &StageCx<'_>) -> Result<Vec<DocBuf>>;

/// The first look at a stage's argument.
type Look = fn(Value<'_>, &Outline<'_>) -> Result<()>;

/// How a stage's argument is read.
enum Reading {
    Parse(Parse),
    Expand(Expand),
}

/// One stage of the language. It stands beside the stage.
pub struct StageEntry {
    /// The name, `$` included.
    pub name: &'static str,
    /// Where it may stand.
    pub position: StagePosition,
    /// Whether it may stand inside `$facet`.
    pub in_facet: bool,
    /// Whether it may run without a collection (`aggregate: 1`) as the first stage.
    pub collectionless: bool,
    /// Whether the stable API (`apiStrict`) has it.
    pub stable_api: bool,
    /// Whether it may run in a transaction.
    pub in_transactions: bool,
    /// Whether it may stand behind `$changeStream`.
    pub in_change_streams: bool,
    /// Where it runs when there are shards.
    pub split: Split,
    /// The rights that it needs.
    pub needs: Needs,
    /// The read concerns that it runs with.
    pub reads_at: ReadsAt,
    reading: Reading,
    look: Option<Look>,
}

impl StageEntry {
    /// A stage that may stand anywhere.
    pub(crate) const fn new(name: &'static str, parse: Parse, split: Split, needs: Needs) -> Self {
        Self::read_by(name, Reading::Parse(parse), split, needs)
    }

    /// The same for one that is short for several others: they take its place in the pipeline.
    pub(crate) const fn short_for(name: &'static str, expand: Expand, split: Split, needs: Needs) -> Self {
        Self::read_by(name, Reading::Expand(expand), split, needs)
    }

    const fn read_by(name: &'static str, reading: Reading, split: Split, needs: Needs) -> Self {
        StageEntry {
            name,
            position: StagePosition::Any,
            in_facet: true,
            collectionless: false,
            stable_api: true,
            in_transactions: true,
            in_change_streams: false,
            split,
            needs,
            reads_at: ReadsAt::AnyLevel,
            reading,
            look: None,
        }
    }

    /// Something of its argument is checked before any stage of the pipeline is read.
    pub(crate) const fn looked_at(self, look: Look) -> Self {
        StageEntry { look: Some(look), ..self }
    }

    /// It makes documents of its own.
    pub(crate) const fn first(self) -> Self {
        StageEntry { position: StagePosition::First, in_facet: false, ..self }
    }

    /// It begins with stages that say how the collection is read.
    pub(crate) const fn leading(self) -> Self {
        StageEntry { position: StagePosition::Leading, ..self }
    }

    /// It writes.
    pub(crate) const fn last(self) -> Self {
        StageEntry {
            position: StagePosition::Last,
            in_facet: false,
            in_transactions: false,
            reads_at: ReadsAt::NotLinearizable,
            ..self
        }
    }

    /// It shows what the server does just now, which only `local` can.
    pub(crate) const fn reads_local(self) -> Self {
        StageEntry { reads_at: ReadsAt::Local, ..self }
    }

    /// It ends a change stream's pipeline.
    pub(crate) const fn last_of_stream(self) -> Self {
        StageEntry { position: StagePosition::LastOfStream, in_change_streams: true, ..self }
    }

    /// It may not stand inside `$facet`.
    pub(crate) const fn not_in_facet(self) -> Self {
        StageEntry { in_facet: false, ..self }
    }

    /// It needs no collection.
    pub(crate) const fn collectionless(self) -> Self {
        StageEntry { collectionless: true, ..self }
    }

    /// The stable API does not have it.
    pub(crate) const fn unstable(self) -> Self {
        StageEntry { stable_api: false, ..self }
    }

    /// It reads what transactions do not cover.
    pub(crate) const fn not_in_transactions(self) -> Self {
        StageEntry { in_transactions: false, ..self }
    }

    /// It may stand behind `$changeStream`.
    pub(crate) const fn in_change_streams(self) -> Self {
        StageEntry { in_change_streams: true, ..self }
    }

    /// Takes the first look at the stage's argument.
    pub(crate) fn outline(&self, argument: Value<'_>, cx: &Outline<'_>) -> Result<()> {
        self.names_each_once(argument)?;
        self.look.map_or(Ok(()), |look| look(argument, cx))
    }

    /// The stages that this one is short for, as a pipeline names them; `None` if it stands for itself.
    pub(crate) fn expand(&self, argument: Value<'_>, cx: &StageCx<'_>) -> Result<Option<Vec<DocBuf>>> {
        self.names_each_once(argument)?;
        match self.reading {
            Reading::Parse(_) => Ok(None),
            Reading::Expand(expand) => expand(argument, cx).map(Some),
        }
    }

    /// Reads the stage's argument. Some stages are several.
    pub fn parse(&self, argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
        self.names_each_once(argument)?;
        let expand = match self.reading {
            Reading::Parse(parse) => return parse(argument, cx),
            Reading::Expand(expand) => expand,
        };
        let mut parsed = Vec::new();
        for stage in expand(argument, cx)? {
            let field = stage.as_raw().iter().next();
            let entry = field.and_then(|field| cx.entry(field.key()));
            if let (Some(field), Some(entry)) = (field, entry) {
                parsed.extend(entry.parse(field.value(), cx)?);
            }
        }
        Ok(parsed)
    }

    /// What a stage needs of the rights of who runs it is read of its argument before it is parsed: both must see the same there. Names
    /// within `$facet` are those of the result, and each of them is looked at. Of sources of their own nothing but `$changeStream` has
    /// rights that depend on fields; what the others make of a field that stands twice is theirs.
    fn names_each_once(&self, argument: Value<'_>) -> Result<()> {
        let free = match self.needs {
            Needs::Nothing => true,
            Needs::Own(_) => self.name != "$changeStream",
            Needs::Foreign | Needs::Cluster(_) | Needs::Target(_) => self.name == "$facet",
        };
        let (Value::Document(spec), false) = (argument, free) else { return Ok(()) };
        let mut known = HashSet::new();
        for field in spec.iter() {
            if !known.insert(field.key_bytes()) {
                bail!(40413, "BSON field '{}.{}' is a duplicate field", self.name, field.key());
            }
        }
        Ok(())
    }
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

/// The stages that planning, rewriting and explain look into.
#[derive(Clone, Copy, Debug)]
pub enum Shape<'s> {
    /// `$match`.
    Match(&'s Arc<Matcher>),
    /// `$sort`, with the `$limit` that follows it.
    Sort {
        /// The keys.
        pattern: &'s Arc<SortPattern>,
        /// Only this many documents are wanted.
        limit: Option<u64>,
    },
    /// `$skip`.
    Skip(u64),
    /// `$limit`.
    Limit(u64),
    /// `$sample`, and how many documents are wanted.
    Sample(u64),
    /// `$project`, `$unset`, `$addFields`, `$set`.
    Project(&'s Projection),
    /// `$group`, `$sortByCount`, `$bucket`, and what is short for a group.
    Group {
        /// The path whose distinct values are all that it gives.
        distinct: Option<&'s FieldPath>,
    },
    /// `$bucketAuto`.
    BucketAuto,
    /// `$lookup`, and where the array of found documents goes.
    Lookup(&'s FieldPath),
    /// `$graphLookup`, and where the array of found documents goes.
    GraphLookup(&'s FieldPath),
    /// `$facet`: output fields and their pipelines.
    Facet(&'s [(String, SharedPipeline)]),
    /// `$unionWith`.
    Union {
        /// The other collection; `None` if the pipeline makes its documents itself.
        from: Option<&'s Namespace>,
        /// What runs there.
        pipeline: &'s SharedPipeline,
    },
    /// `$unwind`.
    Unwind {
        /// The array's path.
        path: &'s FieldPath,
        /// Where the element's index goes.
        include_array_index: Option<&'s FieldPath>,
        /// Whether documents without elements stay.
        preserve_null_and_empty: bool,
    },
    /// `$geoNear`.
    GeoNear(&'s GeoNear),
    /// `$_internalUnpackBucket`, and the name of the meta field.
    UnpackBucket(Option<&'s str>),
    /// `$changeStream`.
    ChangeStream(&'s Arc<ChangeStream>),
    /// Any other, of which nobody needs to know more than [`Stage`] says.
    Other,
}

/// A parsed stage.
pub trait Stage: fmt::Debug + Send + Sync {
    /// The stage's name. Stages that are short for others have those names.
    fn name(&self) -> &'static str;

    /// Starts the stage over its input.
    fn open(self: Arc<Self>, input: BoxOperator, database: &SharedDatabase) -> BoxOperator;

    /// Notes what the stage reads of its input.
    fn dependencies(&self, deps: &mut Deps) -> Reads;

    /// What planning and rewriting need to know.
    fn shape(&self) -> Shape<'_> {
        Shape::Other
    }

    /// Other namespaces that the stage reads, also inside its own pipelines.
    fn foreign_namespaces(&self, found: &mut Vec<Namespace>) {
        let _ = found;
    }

    /// The metadata that the stage gives each document.
    fn sets_metadata(&self) -> Option<&str> {
        None
    }

    /// The namespace that the stage writes.
    fn target_namespace(&self) -> Option<&Namespace> {
        None
    }

    /// Whether one document comes out for each that goes in.
    fn keeps_count(&self) -> bool {
        false
    }

    /// Whether it gives the same each time, so that what it gave can be kept for another run.
    fn is_repeatable(&self) -> bool {
        true
    }

    /// What of the filter of a `$match` behind this stage can go before it; `None` if nothing can.
    fn let_pass(&self, filter: &Arc<Matcher>) -> Option<SplitFilter> {
        let _ = filter;
        None
    }

    /// What a `$match` behind this stage, which stays there, says of this one's input: a filter for it, if there is one, and the stage
    /// that knows of the `$match`. `None` if it is known already.
    fn bounded_by(&self, filter: &Matcher) -> Option<(Option<Arc<Matcher>>, SharedStage)> {
        let _ = filter;
        None
    }

    /// The same stage, doing what the next does for the rows that do not come from its input: then the next may stand before it.
    fn with_next_inside(&self, next: &SharedStage) -> Option<SharedStage> {
        let _ = next;
        None
    }

    /// Whether [`giving_only`](Self::giving_only) is worth asking for.
    fn can_give_less(&self) -> bool {
        false
    }

    /// The same stage knowing that nothing else is read of its rows.
    fn giving_only(&self, deps: &Deps) -> Option<SharedStage> {
        let _ = deps;
        None
    }

    /// The path by which the stage groups its input, if it wants nothing but the first row of each group, or (false) the last.
    fn one_of_each(&self) -> Option<(&FieldPath, bool)> {
        None
    }

    /// The same stage knowing that its rows are sorted by this pattern and then only the first, or last, with each value at the path is wanted.
    fn before_one_of_each(
        &self,
        pattern: &SortPattern,
        path: &FieldPath,
        first: bool,
    ) -> Option<SharedStage> {
        let _ = (pattern, path, first);
        None
    }

    /// The same stage with another filter, if it is a `$match`.
    fn with_filter(&self, filter: Arc<Matcher>) -> Option<SharedStage> {
        let _ = filter;
        None
    }

    /// The same stage knowing that only so many of its documents are wanted, if that spares it work.
    fn limited_to(&self, wanted: u64) -> Option<SharedStage> {
        let _ = wanted;
        None
    }

    /// The stage that does the work of this one and of the next.
    fn joined_with(&self, next: &dyn Stage) -> Option<SharedStage> {
        let _ = next;
        None
    }

    /// The stage as pipelines name it, where that is not how it was given: it is short for others, or rewriting has made it.
    fn spec(&self) -> Option<DocBuf> {
        None
    }

    /// The two halves of a stage that [splits](Split::Both) between shards and where their rows come together.
    fn halves(&self) -> Option<Halves> {
        None
    }

    /// An operator for this stage and the next, if both are better done at once.
    fn open_with(
        self: Arc<Self>,
        next: &dyn Stage,
        input: BoxOperator,
        database: &SharedDatabase,
    ) -> std::result::Result<BoxOperator, BoxOperator> {
        let _ = (next, database);
        Err(input)
    }

    /// Starts the stage where mongod runs it in its execution engine below the pipeline, where some errors have other numbers.
    fn open_pushed_down(self: Arc<Self>, input: BoxOperator, database: &SharedDatabase) -> BoxOperator {
        self.open(input, database)
    }

    /// Whether mongod runs it there, given the chance.
    fn is_pushed_down(&self) -> bool {
        false
    }

    /// The stage as explain shows it, if more is known of it than what was given.
    fn shown(&self) -> Option<Vec<DocBuf>> {
        None
    }

    /// The stage in a change stream that is resumed at this token.
    fn resumed_at(&self, token: &ResumeToken) -> Option<SharedStage> {
        let _ = token;
        None
    }
}

/// What these stages read of their input; `None` if they need whole documents.
pub(crate) fn dependencies_of(stages: &[SharedStage]) -> Option<Deps> {
    let mut deps = Deps::new();
    for stage in stages {
        match stage.dependencies(&mut deps) {
            Reads::AndPassesOn => {}
            Reads::Only => return (!deps.whole_document).then_some(deps),
            Reads::All => return None,
        }
    }
    None
}

/// Whether a stage makes documents of many, which have no metadata.
pub(crate) fn ends_here(stage: &SharedStage) -> bool {
    matches!(stage.shape(), Shape::Group { .. } | Shape::BucketAuto | Shape::Facet(_))
}
