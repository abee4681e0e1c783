//! Pipelines: parsing and its rules, and starting one over its input.

use std::sync::Arc;

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_expr::{Deps, ParseCx};
use sheaf_meter::{ALLOCATION, Held};
use sheaf_query::matcher::Matcher;

use sheaf_rows::{BoxOperator, Cx, Deep, Empty, Operator, Row, Step};

use crate::database::{Namespace, SharedDatabase};
use crate::optimize;
use crate::stage::{Place, Reads, Shape, SharedStage, StageCx, StageEntry, StagePosition, stage_entry};
use crate::stages::change_stream::{self, ChangeStream};
use crate::stages::sort::Sort;

/// What a stage takes besides the bytes that it was given as and what is counted for its parts: in lists, which have room for
/// four, and where it is shared.
const STAGE_BYTES: usize = 4 * (size_of::<SharedStage>() + size_of::<DocBuf>() + size_of::<usize>())
    + size_of::<Matcher>()
    + 4 * ALLOCATION;

/// More stages than this are refused, those of views included.
const MAX_STAGES: usize = 1000;

/// So many stages call each other before one of them looks how much stack is left.
const STAGES_OF_A_STACK: u32 = 8;

fn check_length(stages: usize) -> Result<()> {
    if stages > MAX_STAGES {
        bail!(7749501, "Pipeline length must be no longer than {MAX_STAGES} stages");
    }
    Ok(())
}

/// A parsed pipeline.
#[derive(Clone, Debug, Default)]
pub struct Pipeline {
    stages: Vec<SharedStage>,
    /// The stages as they were given, for explain and for views.
    spec: Vec<DocBuf>,
    /// The first stage makes its documents itself.
    own_source: bool,
    /// Inside a `$facet`, whose stages mongod does not push down to its execution engine.
    in_facet: bool,
    /// The memory of the stages, where they are large.
    held: Vec<Arc<Held>>,
}

/// The leading stages that a planner can take over: `$match`, then `$sort`, then `$skip` and `$limit`.
#[derive(Debug, Default)]
pub struct Head<'p> {
    /// The filter of the leading `$match`.
    pub matcher: Option<&'p Arc<Matcher>>,
    /// The `$sort` after it. Its own `limit` is counted in `limit`.
    pub sort: Option<&'p Sort>,
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
    /// Reads a command's pipeline: an array of stages. The command ends its parsing with
    /// [`ParseCx::finish`].
    pub fn parse(stages: RawDoc<'_>, namespace: &Namespace, cx: &mut ParseCx) -> Result<Pipeline> {
        Self::parse_whole(stages, namespace, Place::Top, cx)
    }

    /// Reads a view's pipeline, which may not write.
    pub fn parse_view(stages: RawDoc<'_>, namespace: &Namespace, cx: &mut ParseCx) -> Result<Pipeline> {
        Self::parse_whole(stages, namespace, Place::View, cx)
    }

    fn parse_whole(
        stages: RawDoc<'_>,
        namespace: &Namespace,
        place: Place,
        cx: &mut ParseCx,
    ) -> Result<Pipeline> {
        let mut cx = StageCx { expr: cx, namespace, place, in_facet: false, depth: 0 };
        let (mut pipeline, held) = sheaf_meter::growing(|| Self::parse_at(stages, &mut cx))?;
        if held.bytes() > 0 {
            pipeline.held.push(Arc::new(held));
        }
        Ok(pipeline)
    }

    /// The bytes that the operation's account has for the stages; 0 for small ones.
    pub fn held_bytes(&self) -> u64 {
        self.held.iter().map(|held| held.bytes()).sum()
    }

    /// Reads a pipeline in any place, and optimises it.
    pub(crate) fn parse_at(stages: RawDoc<'_>, cx: &mut StageCx<'_>) -> Result<Pipeline> {
        let mut pipeline = Pipeline { in_facet: cx.in_facet, ..Pipeline::default() };
        let mut entries = Vec::new();
        let mut without_text_index = None;
        let count = stages.count();
        check_length(count)?;
        sheaf_meter::grow(size_of::<Pipeline>() + 2 * ALLOCATION)?;
        for (at, stage) in stages.values().enumerate() {
            let Value::Document(spec) = stage else {
                bail!(Code::TYPE_MISMATCH, "Each element of the 'pipeline' array must be an object");
            };
            let mut fields = spec.iter();
            let (Some(field), None) = (fields.next(), fields.next()) else {
                bail!(40323, "A pipeline stage specification object must contain exactly one field.");
            };
            sheaf_meter::grow(STAGE_BYTES + spec.len())?;
            let Some(entry) = stage_entry(field.key()) else {
                bail!(40324, "Unrecognized pipeline stage name: '{}'", field.key());
            };
            if cx.expr.is_api_strict() && !entry.stable_api {
                bail!(
                    Code::API_STRICT_ERROR,
                    "stage {} is not allowed with 'apiStrict: true' in API Version 1",
                    entry.name
                );
            }
            let parsed = match entry.parse(field.value(), cx) {
                // That no index serves is found out when everything else has been read.
                Err(error) if entry.name == "$match" && error.code() == Code::INDEX_NOT_FOUND => {
                    if at > 0 {
                        bail!(17313, "$match with $text is only allowed as the first pipeline stage");
                    }
                    without_text_index = Some(error);
                    Vec::new()
                }
                parsed => parsed?,
            };
            entries.push(entry);
            pipeline.own_source |= at == 0 && matches!(entry.position, StagePosition::First);
            pipeline.stages.extend(parsed);
            pipeline.spec.push(DocBuf::from(spec));
        }
        // A stage that cannot be read is reported before one that stands in the wrong place.
        for (at, entry) in entries.iter().enumerate() {
            check_position(entry, at, count, cx)?;
        }
        change_stream::check(&entries, &mut pipeline.stages)?;
        pipeline.check_namespace(cx)?;
        if let Some(error) = without_text_index {
            return Err(error);
        }
        optimize::optimize(&mut pipeline.stages);
        pipeline.check_order();
        Ok(pipeline)
    }

    /// Rewriting keeps what makes documents first and what writes last: the former's input is never read, the latter's output
    /// is nothing.
    fn check_order(&self) {
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

    /// A pipeline without a collection must start with a stage that needs none.
    fn check_namespace(&self, cx: &StageCx<'_>) -> Result<()> {
        let first = self.spec.first().and_then(|spec| spec.as_raw().iter().next());
        let entry = first.and_then(|first| stage_entry(first.key()));
        if !cx.namespace.collection.is_empty() || cx.place != Place::Top {
            return Ok(());
        }
        match entry {
            Some(entry) if entry.collectionless => Ok(()),
            Some(entry) => bail!(
                Code::INVALID_NAMESPACE,
                "{{aggregate: 1}} is not valid for '{}'; a collection is required.",
                entry.name
            ),
            None => bail!(Code::INVALID_NAMESPACE, "{{aggregate: 1}} is not valid for an empty pipeline."),
        }
    }

    /// This view's pipeline followed by another: what a query on the view runs.
    ///
    /// Errors: 7749501 if that is too long.
    pub fn followed_by(&self, rest: &Pipeline) -> Result<Pipeline> {
        check_length(self.spec.len() + rest.spec.len())?;
        let mut joined = Pipeline {
            stages: self.stages.iter().chain(&rest.stages).cloned().collect(),
            spec: self.spec.iter().chain(&rest.spec).cloned().collect(),
            own_source: self.own_source || (self.stages.is_empty() && rest.own_source),
            in_facet: self.in_facet,
            held: self.held.iter().chain(&rest.held).cloned().collect(),
        };
        optimize::optimize(&mut joined.stages);
        joined.check_order();
        Ok(joined)
    }

    /// The change stream that the pipeline starts with.
    pub fn change_stream(&self) -> Option<&Arc<ChangeStream>> {
        match self.stages.first()?.shape() {
            Shape::ChangeStream(stream) => Some(stream),
            _ => None,
        }
    }

    /// The stages, optimised.
    pub fn stages(&self) -> &[SharedStage] {
        &self.stages
    }

    /// Whether there are no stages.
    pub fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }

    /// Whether the first stage makes the documents, so that the collection is not read.
    pub fn has_own_source(&self) -> bool {
        self.own_source
    }

    /// The stages as they were given.
    pub fn spec(&self) -> ArrayBuf {
        ArrayBuf::of(self.spec.iter())
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
        if let Some(Shape::Match(stage)) = shapes.peek() {
            head.matcher = Some(&stage.matcher);
            shapes.next();
            at = 1;
        }
        head.stages_of_match = at;
        if let Some(Shape::Sort(sort)) = shapes.peek() {
            head.sort = Some(sort);
            head.limit = sort.limit;
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
        let mut deps = Deps::new();
        for stage in self.stages.iter().skip(first) {
            match stage.dependencies(&mut deps) {
                Reads::AndPassesOn => {}
                Reads::Only => return (!deps.whole_document).then_some(deps),
                Reads::All => return None,
            }
        }
        None
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

fn check_position(entry: &StageEntry, at: usize, count: usize, cx: &StageCx<'_>) -> Result<()> {
    let name = entry.name;
    match cx.place {
        Place::Lookup if entry.position == StagePosition::Last => {
            bail!(51047, "{name} is not allowed within a $lookup's sub-pipeline");
        }
        Place::Union if entry.position == StagePosition::Last => {
            bail!(31441, "{name} is not allowed within a $unionWith's sub-pipeline");
        }
        Place::View if entry.position == StagePosition::Last => bail!(
            Code::OPTION_NOT_SUPPORTED_ON_VIEW,
            "The aggregation stage {name} in location {at} of the pipeline cannot be used in the view definition"
        ),
        _ => {}
    }
    if cx.in_facet && !entry.in_facet {
        bail!(40600, "{name} is not allowed to be used within a $facet stage");
    }
    match entry.position {
        StagePosition::First if at != 0 => {
            Err(Error::location(40602, format!("{name} is only valid as the first stage in a pipeline")))
        }
        StagePosition::Last if at + 1 != count => {
            Err(Error::location(40601, format!("{name} can only be the final stage in the pipeline")))
        }
        _ => Ok(()),
    }
}
