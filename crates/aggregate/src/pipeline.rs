//! Pipelines: what is known of one, and starting it over its input.

use std::sync::Arc;

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc};
use sheaf_collation::SharedCollator;
use sheaf_errors::Result;
use sheaf_expr::{Deps, Slot};
use sheaf_meter::Held;
use sheaf_query::matcher::Matcher;
use sheaf_query::sort::SortPattern;
use sheaf_rows::{BoxOperator, Cx, Deep, Empty, Operator, Row, Seen, Step, Witness};
use smallvec::SmallVec;

use crate::database::SharedDatabase;
use crate::namespace::Namespace;
use crate::stage::{Shape, SharedStage, dependencies_of, ends_here};
use crate::stages::change_stream::ChangeStream;
use crate::stages::geo_near::GeoNear;

/// So many stages call each other before one of them looks how much stack is left.
const STAGES_OF_A_STACK: u32 = 8;

/// A parsed pipeline.
#[derive(Clone, Debug, Default)]
pub struct Pipeline {
    pub(crate) stages: Vec<SharedStage>,
    /// The stages as they were given, for explain, for views and for shards.
    pub(crate) given: Vec<Given>,
    /// The first stage makes its documents itself.
    pub(crate) own_source: bool,
    /// Inside a `$facet`, whose stages mongod does not push down to its execution engine.
    pub(crate) in_facet: bool,
    /// A stage reads `$meta`.
    pub(crate) asks_metadata: bool,
    /// The memory of the stages, where they are large.
    pub(crate) held: Vec<Arc<Held>>,
    /// The variables of enclosing stages that it may read.
    pub(crate) variables: Vec<(Box<str>, Slot)>,
    /// How its stages compare strings, if not by their bytes.
    pub(crate) collator: Option<SharedCollator>,
}

/// A stage as it was given, and what it means.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) document: DocBuf,
    /// Before rewriting, which replaces some.
    pub(crate) stages: SmallVec<[SharedStage; 1]>,
}

/// The leading stages that a planner can take over: `$match`, then `$sort`, then `$skip` and `$limit`.
#[derive(Debug, Default)]
pub struct Head<'p> {
    /// The filter of the leading `$match`.
    pub matcher: Option<&'p Arc<Matcher>>,
    /// The `$sort` after it. Its own `limit` is counted in `limit`.
    pub sort: Option<&'p Arc<SortPattern>>,
    /// Documents to pass over.
    pub skip: u64,
    /// The most documents that any later stage can see.
    pub limit: Option<u64>,
    /// Number of stages that go with the filter alone.
    pub stages_of_match: usize,
    /// Number of stages that go with filter and sort.
    pub stages_of_sort: usize,
    /// Number of stages in the whole head.
    pub stages: usize,
}

impl Pipeline {
    /// The bytes that the operation's account has for the stages; 0 for small ones.
    pub fn held_bytes(&self) -> u64 {
        self.held.iter().map(|held| held.bytes()).sum()
    }

    /// Rewriting keeps what makes documents first and what writes last: the former's input is never read, the latter's output
    /// is nothing.
    pub(crate) fn check_order(&self) {
        let writes = self.stages.iter().position(|stage| stage.target_namespace().is_some());
        let last = self.stages.len().saturating_sub(1);
        assert!(
            writes.is_none_or(|at| at == last),
            "a stage that writes came to stand before others: {self:?}"
        );
        let streams = |stage: &SharedStage| matches!(stage.shape(), Shape::ChangeStream(_));
        assert!(
            !self.stages.iter().skip(1).any(streams),
            "$changeStream came to stand behind others: {self:?}"
        );
    }

    /// The change stream that the pipeline starts with.
    pub fn change_stream(&self) -> Option<&Arc<ChangeStream>> {
        match self.stages.first()?.shape() {
            Shape::ChangeStream(stream) => Some(stream),
            _ => None,
        }
    }

    /// The `$geoNear` that the pipeline starts with.
    pub fn geo_near(&self) -> Option<&GeoNear> {
        match self.stages.first()?.shape() {
            Shape::GeoNear(near) => Some(near),
            _ => None,
        }
    }

    /// The `$geoNear` over measurements that the pipeline starts with, and the name of their meta field.
    pub fn measured_near(&self) -> Option<(&GeoNear, Option<&str>)> {
        measured_near(&self.stages)
    }

    /// The stages, optimised.
    pub fn stages(&self) -> &[SharedStage] {
        &self.stages
    }

    /// How the stages compare strings, if not by their bytes.
    pub fn collator(&self) -> Option<&SharedCollator> {
        self.collator.as_ref()
    }

    /// Whether there are no stages.
    pub fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }

    /// Whether the first stage makes the documents, so that the collection is not read.
    pub fn has_own_source(&self) -> bool {
        self.own_source
    }

    /// The variables of enclosing stages that it may read, whose values are in the [`Cx`] of who pulls; of two with one name the last
    /// counts.
    pub fn variables(&self) -> impl Iterator<Item = (&str, Slot)> {
        self.variables.iter().map(|(name, slot)| (&**name, *slot))
    }

    /// The stages as they were given.
    pub fn spec(&self) -> ArrayBuf {
        ArrayBuf::of(self.given.iter().map(|given| &given.document))
    }

    /// Starts the pipeline over the documents of its collection.
    pub fn open(&self, input: BoxOperator, database: &SharedDatabase) -> BoxOperator {
        self.open_from(0, input, database)
    }

    /// Starts the stages from this one on, over a source that has done the work of those before.
    pub fn open_from(&self, first: usize, input: BoxOperator, database: &SharedDatabase) -> BoxOperator {
        assert!(first <= self.stages.len(), "{first} stages are done of {}", self.stages.len());
        let pushed_down = self.pushed_down();
        let mut source = input;
        let (mut at, mut opened) = (first, 0u32);
        while let Some(stage) = self.stages.get(at).cloned() {
            let next = self.stages.get(at + 1);
            let at_once = match next {
                Some(next) => stage.clone().open_with(&**next, source, database),
                None => Err(source),
            };
            source = match at_once {
                Ok(both) => {
                    at += 1;
                    both
                }
                Err(source) if at < pushed_down => stage.open_pushed_down(source, database),
                Err(source) => stage.open(source, database),
            };
            at += 1;
            opened += 1;
            if opened.is_multiple_of(STAGES_OF_A_STACK) {
                source = Box::new(Deep::new(source));
            }
        }
        if self.held.is_empty() {
            source
        } else {
            Box::new(Large { inner: source, _held: self.held.clone() })
        }
    }

    /// The pipeline with a stage behind its own, and the name that it has there; nothing is rewritten yet.
    #[must_use]
    pub(crate) fn with_last(&self, stage: SharedStage, document: DocBuf) -> Pipeline {
        let mut longer = self.clone();
        longer.given.push(Given { document, stages: SmallVec::from_iter([stage.clone()]) });
        longer.stages.push(stage);
        longer
    }

    /// The pipeline without its last stage.
    pub fn without_last(&self) -> Pipeline {
        let mut rest = self.clone();
        rest.stages.pop();
        rest
    }

    /// The stages from this one on, each by itself and measured; what is seen of them is told when they are gone.
    pub fn open_measured(
        &self,
        first: usize,
        input: BoxOperator,
        database: &SharedDatabase,
    ) -> (BoxOperator, Vec<Seen>) {
        let (mut run, mut seen) = (input, Vec::new());
        for stage in &self.stages[first..] {
            let witness = Witness::measured(stage.clone().open(run, database));
            seen.push(witness.seen());
            run = Box::new(witness);
        }
        (run, seen)
    }

    /// The number of leading stages that mongod gives to its execution engine below the pipeline: a `$group` or
    /// `$lookup` with nothing before it but those, and what the query at the pipeline's head takes over. Some
    /// errors have other numbers there.
    fn pushed_down(&self) -> usize {
        if self.in_facet || self.own_source {
            return 0;
        }
        let head = self.head().stages;
        let rest = &self.stages[head..];
        head + rest.iter().take_while(|stage| stage.is_pushed_down()).count()
    }

    /// Starts a pipeline that [has its own source](Pipeline::has_own_source).
    pub fn open_own(&self, database: &SharedDatabase) -> BoxOperator {
        self.open(Box::new(Empty::default()), database)
    }

    /// The leading stages that a planner can take over.
    pub fn head(&self) -> Head<'_> {
        let mut head = Head::default();
        let mut shapes = self.stages.iter().map(|stage| stage.shape()).peekable();
        let mut at = 0;
        if let Some(Shape::Match(filter)) = shapes.peek() {
            head.matcher = Some(filter);
            shapes.next();
            at = 1;
        }
        head.stages_of_match = at;
        if let Some(Shape::Sort { pattern, limit }) = shapes.peek() {
            head.sort = Some(pattern);
            head.limit = *limit;
            shapes.next();
            at += 1;
        }
        head.stages_of_sort = at;
        for shape in shapes {
            match (shape, head.limit) {
                (Shape::Limit(limit), known) => {
                    head.limit = Some(known.map_or(limit, |known| known.min(limit)))
                }
                // A skip after a limit also lowers the limit, which a planner need not know how to do.
                (Shape::Skip(skip), None) => head.skip = head.skip.saturating_add(skip),
                _ => break,
            }
            at += 1;
        }
        head.stages = at;
        head
    }

    /// What the stages from this one on read of their input. `None` if they need whole documents.
    pub fn dependencies_from(&self, first: usize) -> Option<Deps> {
        dependencies_of(self.stages.get(first..)?)
    }

    /// The metadata that the pipeline's stages ask their input for.
    pub fn metadata(&self) -> std::collections::BTreeSet<&'static str> {
        let mut deps = Deps::new();
        if self.asks_metadata {
            let last = self.stages.iter().position(ends_here).map_or(self.stages.len(), |at| at + 1);
            self.stages[..last].iter().for_each(|stage| _ = stage.dependencies(&mut deps));
        }
        deps.metadata
    }

    /// Whether the stages from this one on read metadata of this name that their input has.
    pub fn reads_metadata(&self, first: usize, name: &str) -> bool {
        let mut deps = Deps::new();
        for stage in self.stages.get(first..).unwrap_or_default() {
            stage.dependencies(&mut deps);
            if deps.metadata.contains(name) {
                return true;
            }
            if ends_here(stage) {
                return false;
            }
        }
        false
    }

    /// Other namespaces that the pipeline reads.
    pub fn foreign_namespaces(&self, found: &mut Vec<Namespace>) {
        self.stages.iter().for_each(|stage| stage.foreign_namespaces(found));
    }

    /// The namespace that the pipeline writes (`$out`, `$merge`).
    pub fn target_namespace(&self) -> Option<&Namespace> {
        self.stages.last().and_then(|last| last.target_namespace())
    }
}

/// A running pipeline whose stages are large: their memory is the cursor's for as long as it runs.
struct Large {
    inner: BoxOperator,
    _held: Vec<Arc<Held>>,
}

impl Operator for Large {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        self.inner.work(cx)
    }

    fn row(&self) -> Row<'_> {
        self.inner.row()
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        self.inner.metadata()
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.inner);
    }

    fn release(&mut self) {
        self.inner.release();
    }
}

/// A shared pipeline, as stages keep those inside them.
pub(crate) type SharedPipeline = Arc<Pipeline>;

/// The `$geoNear` behind the stage that takes measurements out of their buckets, and the name of their meta field.
pub(crate) fn measured_near(stages: &[SharedStage]) -> Option<(&GeoNear, Option<&str>)> {
    match (stages.first()?.shape(), stages.get(1)?.shape()) {
        (Shape::UnpackBucket(meta), Shape::GeoNear(near)) => Some((near, meta)),
        _ => None,
    }
}
