//! `$lookup`: by equality, by a pipeline, or both.

mod bound;

use std::sync::Arc;

use sheaf_bson::{ArrayWriter, Bump, DocBuf, OwnedValue, RawDoc, Type, Value};
use sheaf_collation::SharedCollator;
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Deps, Expr, FieldPath, ParseCx, Slot};
use sheaf_meter::Held;
use sheaf_query::matcher::Matcher;

use sheaf_rows::{
    BoxOperator, Cx, Documents, Empty, Figures, Idle, Operator, Row, Step, let_go, let_go_arena, pull, tally,
};

use self::bound::BoundMatch;
use super::unwind::Unwind;
use crate::database::SharedDatabase;
use crate::filters::{self, SplitFilter};
use crate::idl::Fields;
use crate::join::{Join, local_values};
use crate::namespace::Namespace;
use crate::outline::{self, Outline};
use crate::parse;
use crate::pipeline::SharedPipeline;
use crate::rewrite::{rewrite, rewrite_into};
use crate::stage::{Needs, Place, Reads, Shape, SharedStage, Split, Stage, StageCx, StageEntry};

/// `$lookup`.
pub(crate) const LOOKUP: StageEntry =
    StageEntry::new("$lookup", parse, Split::Shards, Needs::Foreign).looked_at(look);

/// A parsed `$lookup`.
#[derive(Debug)]
pub struct Lookup {
    /// The collection that is looked into.
    pub from: Namespace,
    /// Where the array of found documents goes.
    pub output: FieldPath,
    /// The fields that must be equal: here, and there.
    pub equality: Option<(FieldPath, String)>,
    /// Variables for the pipeline.
    pub variables: Vec<(Slot, Expr)>,
    /// What runs over the found documents.
    pub pipeline: Option<SharedPipeline>,
    /// The pipeline's filter, if it may read variables.
    bound: Option<BoundMatch>,
    /// How strings compare, if not by their bytes.
    collator: Option<SharedCollator>,
}

#[derive(Default)]
struct Spec<'a> {
    from: Option<Namespace>,
    output: Option<&'a str>,
    local: Option<&'a str>,
    foreign: Option<&'a str>,
    variables: Option<RawDoc<'a>>,
    pipeline: Option<RawDoc<'a>>,
}

impl<'a> Spec<'a> {
    fn read(spec: RawDoc<'a>, database: &str) -> Result<Self> {
        let known = ["from", "as", "localField", "foreignField", "let", "pipeline", "_internalUnwind"];
        let fields = Fields::new("$lookup", spec, &known)?;
        let mut read = Spec {
            pipeline: spec.get("pipeline").map(outline::stages).transpose()?,
            from: spec.get("from").map(|from| parse_from(from, database)).transpose()?,
            ..Spec::default()
        };
        let text = |name: &str| -> Result<Option<&'a str>> {
            Ok(fields.optional(name, &[Type::String])?.and_then(|text| text.as_str()))
        };
        read.output = text("as")?;
        // An empty name is no field.
        read.local = text("localField")?.filter(|field| !field.is_empty());
        read.foreign = text("foreignField")?.filter(|field| !field.is_empty());
        read.variables = fields.document("let")?;
        if read.output.is_none() {
            return fields.missing("as");
        }
        Ok(read)
    }
}

/// The collection's name; of the server's own ones some can be named in any database, by `{db: ..., coll: ...}`.
///
/// Errors: `FailedToParse`, `InvalidNamespace`; `TypeMismatch` and 40415 for the two names.
fn parse_from(from: Value<'_>, database: &str) -> Result<Namespace> {
    let spec = match from {
        Value::String(collection) => return Namespace::new(database, collection).readable_by("$lookup"),
        Value::Document(spec) => spec,
        other => bail!(
            Code::FAILED_TO_PARSE,
            "$lookup 'from' field must be a string, but found {}",
            other.type_name()
        ),
    };
    let fields = Fields::new("from", spec, &["db", "coll"])?;
    let text =
        |name| Ok(fields.optional(name, &[Type::String])?.and_then(|text| text.as_str()).unwrap_or(""));
    let (db, coll) = (text("db")?, text("coll")?);
    let is_named =
        (db == "config" && coll.starts_with("cache.chunks.")) || (db, coll) == ("local", "oplog.rs");
    if !is_named {
        bail!(
            Code::FAILED_TO_PARSE,
            "$lookup with syntax {{from: {{db:<>, coll:<>}},..}} is not supported for db: {db} and coll: {coll}"
        );
    }
    Ok(Namespace::new(db, coll))
}

/// What is said of the collection, and the pipeline, come first, whatever else is wrong.
fn look(argument: Value<'_>, cx: &Outline<'_>) -> Result<()> {
    let spec = spec_of(argument)?;
    let pipeline = spec.get("pipeline");
    match (spec.get("from"), pipeline) {
        (Some(from), _) => drop(parse_from(from, cx.database)?),
        (None, None) => bail!(Code::FAILED_TO_PARSE, "must specify 'pipeline' when 'from' is empty"),
        (None, Some(pipeline)) if !outline::makes_documents(outline::stages(pipeline)?) => bail!(
            Code::FAILED_TO_PARSE,
            "$lookup stage without explicit collection must have a pipeline with $documents as first stage"
        ),
        (None, Some(_)) => {}
    }
    pipeline.map_or(Ok(()), |pipeline| cx.nested(outline::stages(pipeline)?))
}

fn spec_of(argument: Value<'_>) -> Result<RawDoc<'_>> {
    let Value::Document(spec) = argument else {
        bail!(
            Code::FAILED_TO_PARSE,
            "the $lookup stage specification must be an object, but found {}",
            argument.type_name()
        );
    };
    Ok(spec)
}

pub(crate) fn parse(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let spec = Spec::read(spec_of(argument)?, &cx.namespace.database)?;
    let output = spec.output.unwrap_or_default();
    let equality = match (spec.local, spec.foreign, spec.pipeline) {
        (Some(local), Some(foreign), _) => {
            FieldPath::parse(foreign)?;
            Some((FieldPath::parse(local)?, foreign.to_owned()))
        }
        (None, None, Some(_)) => None,
        (None, None, None) => bail!(
            Code::FAILED_TO_PARSE,
            "$lookup requires either 'pipeline' or both 'localField' and 'foreignField' to be specified"
        ),
        _ => bail!(
            Code::FAILED_TO_PARSE,
            "$lookup requires both or neither of 'localField' and 'foreignField' to be specified"
        ),
    };
    if spec.variables.is_some() && spec.pipeline.is_none() {
        bail!(Code::FAILED_TO_PARSE, "$lookup with a 'let' argument must also specify 'pipeline'");
    }
    let output = FieldPath::parse(output)?;
    let database = cx.namespace.database.clone();
    let from = spec.from.clone().unwrap_or_else(|| Namespace::new(database, ""));
    let Correlated { variables, pipeline, bound } = parse_pipeline(&spec, &from, cx)?;
    let collator = cx.expr.collator().cloned();
    Ok(vec![Arc::new(Lookup { from, output, equality, variables, pipeline, bound, collator })])
}

/// What `let` and `pipeline` are.
#[derive(Default)]
struct Correlated {
    variables: Vec<(Slot, Expr)>,
    pipeline: Option<SharedPipeline>,
    bound: Option<BoundMatch>,
}

/// Reads `let` and `pipeline`: the variables are in scope in the pipeline only.
fn parse_pipeline(spec: &Spec<'_>, from: &Namespace, cx: &mut StageCx<'_>) -> Result<Correlated> {
    let Some(stages) = spec.pipeline else { return Ok(Correlated::default()) };
    let mut exprs = Vec::new();
    for variable in spec.variables.unwrap_or(RawDoc::EMPTY).iter() {
        sheaf_expr::validate_variable_name(variable.key())?;
        exprs.push((variable.key(), Expr::parse(variable.value(), cx.expr)?));
    }
    let scope = cx.expr.enter();
    let mut variables = Vec::with_capacity(exprs.len());
    let mut names: Vec<Box<str>> = Vec::with_capacity(exprs.len());
    for (name, expr) in exprs {
        variables.push((cx.expr.declare(name)?, expr));
        names.push(name.into());
    }
    let declared = cx.expr.clone();
    let pipeline = Arc::new(parse::pipeline(stages, &mut cx.nested(from, Place::Lookup)?)?);
    cx.expr.leave(scope);
    let bound = BoundMatch::of(&pipeline, names, declared);
    Ok(Correlated { variables, pipeline: Some(pipeline), bound })
}

impl Lookup {
    /// Whether the found documents are the same for every document.
    fn is_constant(&self) -> bool {
        let Some(pipeline) = &self.pipeline else { return false };
        self.equality.is_none()
            && self.variables.is_empty()
            && !pipeline.stages().iter().any(|stage| {
                let mut deps = Deps::new();
                stage.dependencies(&mut deps);
                deps.random || !stage.is_repeatable()
            })
    }
}

impl Stage for Lookup {
    fn name(&self) -> &'static str {
        "$lookup"
    }

    fn open(self: Arc<Self>, input: BoxOperator, database: &SharedDatabase) -> BoxOperator {
        Box::new(LookupRun::new(self, input, database.clone()))
    }

    fn dependencies(&self, deps: &mut Deps) -> Reads {
        if let Some((local, _)) = &self.equality {
            deps.paths.insert(local.dotted());
        }
        self.variables.iter().for_each(|(_, expr)| expr.dependencies(deps));
        Reads::AndPassesOn
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Lookup(&self.output)
    }

    fn foreign_namespaces(&self, found: &mut Vec<Namespace>) {
        found.push(self.from.clone());
        self.pipeline.iter().for_each(|pipeline| pipeline.foreign_namespaces(found));
    }

    fn keeps_count(&self) -> bool {
        true
    }

    fn is_repeatable(&self) -> bool {
        false
    }

    fn let_pass(&self, filter: &Arc<Matcher>) -> Option<SplitFilter> {
        // The array goes into a document, which an array on its path becomes.
        let output = self.output.dotted();
        filters::split_by(filter, |path| !filters::same_field(&output, path))
    }

    fn open_with(
        self: Arc<Self>,
        next: &dyn Stage,
        input: BoxOperator,
        database: &SharedDatabase,
    ) -> std::result::Result<BoxOperator, BoxOperator> {
        match next.shape() {
            Shape::Unwind { path, include_array_index, preserve_null_and_empty } if *path == self.output => {
                let include_array_index = include_array_index.cloned();
                let unwind =
                    Unwind { path: path.clone(), include_array_index, preserve_null_and_empty, fields: None };
                Ok(Box::new(LookupUnwindRun::new(self, unwind, input, database.clone())))
            }
            _ => Err(input),
        }
    }

    fn is_pushed_down(&self) -> bool {
        true
    }
}

/// Runs `$lookup`.
struct LookupRun {
    stage: Arc<Lookup>,
    input: BoxOperator,
    database: SharedDatabase,
    join: Option<Join>,
    /// The found documents, if they are the same for every document.
    cached: Option<Cached>,
    constant: bool,
    arena: Bump,
    /// The values that are looked for.
    values: Vec<OwnedValue>,
    /// The array of what was found, and the document that it became a part of.
    array: Vec<u8>,
    output: Vec<u8>,
    /// What pipelines have read.
    figures: Figures,
    shown: Figures,
}

impl LookupRun {
    fn new(stage: Arc<Lookup>, input: BoxOperator, database: SharedDatabase) -> Self {
        // Documents that the pipeline makes itself are compared where they come from.
        let makes_its_own = stage.pipeline.as_ref().is_some_and(|pipeline| pipeline.has_own_source());
        let equality = stage.equality.as_ref().filter(|_| !makes_its_own);
        let join = equality.map(|(_, foreign)| {
            Join::new(database.clone(), stage.from.clone(), foreign, stage.collator.clone())
        });
        let constant = stage.is_constant();
        LookupRun {
            stage,
            input,
            database,
            join,
            cached: None,
            constant,
            arena: Bump::new(),
            values: Vec::new(),
            array: Vec::new(),
            output: Vec::new(),
            figures: Figures::default(),
            shown: Figures::default(),
        }
    }

    /// Starts looking for what belongs to the input's row.
    fn find(&mut self, cx: &mut Cx<'_>) -> Result<Found> {
        if let Some(cached) = &self.cached {
            return Ok(Found::Cached(cached.clone(), 0));
        }
        let stage = self.stage.clone();
        if let (Some(join), Some((local, _))) = (&mut self.join, &stage.equality) {
            local_values(self.input.row().document(), local.parts(), &mut self.values);
            join.find(&mut self.values, cx)?;
        }
        let Some(pipeline) = &stage.pipeline else { return Ok(Found::Joined) };
        let joined = self.join.as_mut().map(|join| gather(join, cx)).transpose()?;
        self.arena.reset();
        let mut variables = Vec::with_capacity(stage.variables.len());
        {
            let row = self.input.row();
            let env = cx.env_over(&self.input, &self.arena);
            for (slot, expr) in &stage.variables {
                variables.push((*slot, OwnedValue::from(expr.eval(row.document(), &env)?)));
            }
        }
        let database = &self.database;
        let mut kept = sheaf_meter::reserve(0)?;
        let own = match &stage.equality {
            Some((local, foreign)) if pipeline.has_own_source() => {
                local_values(self.input.row().document(), local.parts(), &mut self.values);
                Some(equal_to_any(foreign, &self.values, stage.collator.clone())?)
            }
            _ => None,
        };
        // What an equality has found is not looked for by the pipeline.
        let searches = joined.is_none() && !pipeline.has_own_source();
        let bound = stage.bound.as_ref().filter(|_| searches).map(|bound| bound.bind(pipeline, &variables));
        let run = cx.lend_variables(&mut variables, |cx| match joined {
            Some((documents, held)) => {
                kept = held;
                Ok(pipeline.open(Box::new(Documents::new(documents)), database))
            }
            None if pipeline.has_own_source() => match &own {
                Some(equality) => open_equal(pipeline, equality, database, cx),
                None => Ok(pipeline.open_own(database)),
            },
            None => database.run(&stage.from, bound.as_ref().unwrap_or(pipeline), cx),
        })?;
        let keep = self.constant.then(Vec::new);
        Ok(Found::Running { run, variables, keep, kept })
    }

    /// Moves to the next document that was found.
    fn next(&mut self, found: &mut Found, cx: &mut Cx<'_>) -> Result<bool> {
        match found {
            Found::Joined => self.join.as_mut().expect("without a pipeline there is an equality").next(cx),
            Found::Cached(documents, at) => {
                *at += 1;
                Ok(*at <= documents.0.len())
            }
            Found::Running { run, variables, keep, kept } => {
                let more = cx.lend_variables(variables, |cx| pull(run, cx))?;
                if !more {
                    self.figures.add_foreign(&tally(run));
                }
                match (more, &mut *keep) {
                    (true, Some(documents)) => {
                        let document = run.row().document();
                        let bytes = document.len() as u64 + 64;
                        // What is too much to be kept is found again for every document.
                        if kept.bytes() + bytes > CACHED_BYTES || kept.grow(bytes).is_err() {
                            *keep = None;
                            kept.set(0)?;
                        } else {
                            documents.push(DocBuf::from(document));
                        }
                    }
                    (false, Some(documents)) => {
                        let documents = std::mem::take(documents);
                        self.cached = Some(Arc::new((documents, std::mem::take(kept))));
                        *keep = None;
                    }
                    (_, None) => {}
                }
                Ok(more)
            }
        }
    }

    /// The document that [`LookupRun::next`] moved to.
    fn found<'f>(&'f self, found: &'f Found) -> RawDoc<'f> {
        match found {
            Found::Joined => self.join.as_ref().expect("without a pipeline there is an equality").document(),
            Found::Cached(documents, at) => documents.0[at - 1].as_raw(),
            Found::Running { run, .. } => run.row().document(),
        }
    }

    /// Collects what belongs to the input's row.
    fn join_row(&mut self, cx: &mut Cx<'_>) -> Result<()> {
        let mut found = self.find(cx)?;
        let mut array = std::mem::take(&mut self.array);
        array.clear();
        let mut out = ArrayWriter::new(&mut array);
        let mut held = Held::default();
        while self.next(&mut found, cx)? {
            cx.check_interrupt()?;
            out.push_raw_document(self.found(&found).as_bytes());
            // The found documents must fit into one document.
            let size = out.size();
            if size > crate::MAX_INTERNAL_SIZE {
                bail!(
                    4568,
                    "Total size of documents in {} matching pipeline's $lookup stage exceeds {} bytes",
                    self.stage.from.collection,
                    crate::MAX_INTERNAL_SIZE
                );
            }
            if size as u64 > held.bytes() + COUNTED_BYTES {
                if held.bytes() == 0 {
                    held = sheaf_meter::reserve(0)?;
                }
                held.set(size as u64)?;
            }
        }
        drop(out);
        self.array = array;
        let (document, path) = (self.input.row().document(), self.stage.output.parts());
        rewrite_into(document, path, Value::Array(RawDoc::new(&self.array)), &mut self.output);
        let_go(&mut self.array);
        self.input.release();
        crate::check_made(RawDoc::new(&self.output))
    }
}

/// The condition that a field equals one of some values.
fn equal_to_any(field: &str, values: &[OwnedValue], collator: Option<SharedCollator>) -> Result<Matcher> {
    let filter = DocBuf::build(|out| {
        let mut any = out.array("$or");
        for value in values {
            any.document().document(field).append("$eq", value.as_value());
        }
    });
    Matcher::parse(filter.as_raw(), &mut ParseCx::new().with_collator(collator))
}

/// Starts a pipeline that makes its documents itself: those that match go on to the stages after the first.
fn open_equal(
    pipeline: &SharedPipeline,
    equality: &Matcher,
    database: &SharedDatabase,
    cx: &mut Cx<'_>,
) -> Result<BoxOperator> {
    let mut source = pipeline.stages()[0].clone().open(Box::new(Empty::default()), database);
    let mut matching = Vec::new();
    while pull(&mut source, cx)? {
        let row = source.row();
        if equality.matches_doc(row.document())? {
            matching.push(DocBuf::from(row.document()));
        }
    }
    Ok(pipeline.open_from(1, Box::new(Documents::new(matching)), database))
}

/// What a join found, with its account.
fn gather(join: &mut Join, cx: &mut Cx<'_>) -> Result<(Vec<DocBuf>, Held)> {
    let (mut documents, mut held) = (Vec::new(), sheaf_meter::reserve(0)?);
    while join.next(cx)? {
        held.grow(join.document().len() as u64 + 64)?;
        documents.push(DocBuf::from(join.document()));
    }
    Ok((documents, held))
}

/// What is found for a document, coming one by one.
enum Found {
    /// By equality alone.
    Joined,
    /// The same as for every other document.
    Cached(Cached, usize),
    /// By a pipeline, whose variables are set while it is pulled.
    Running {
        run: BoxOperator,
        variables: Vec<(Slot, OwnedValue)>,
        /// What came so far, if it can be kept for other documents.
        keep: Option<Vec<DocBuf>>,
        kept: Held,
    },
}

/// Found documents with the account of their memory.
type Cached = Arc<(Vec<DocBuf>, Held)>;

/// More than this is not kept.
const CACHED_BYTES: u64 = 16 << 20;

/// The memory of an array is accounted in steps of this.
const COUNTED_BYTES: u64 = 256 << 10;

impl Operator for LookupRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let step = self.input.work(cx)?;
        if step == Step::Row {
            self.join_row(cx)?;
        }
        Ok(step)
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
        if let Some(join) = &mut self.join {
            join.suspend();
        }
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        self.shown = self.figures.clone();
        if let Some(join) = &mut self.join {
            self.shown.add_foreign(join.figures());
        }
        Some(&mut self.shown)
    }
}

/// Runs a `$lookup` whose array is unwound at once: the array is never built, so that it may be of any size.
struct LookupUnwindRun {
    lookup: LookupRun,
    unwind: Unwind,
    /// The document whose finds are coming.
    document: Vec<u8>,
    /// They, and how many have come.
    current: Option<(Found, i64)>,
    output: Option<DocBuf>,
    idle: Idle,
}

impl LookupUnwindRun {
    fn new(lookup: Arc<Lookup>, unwind: Unwind, input: BoxOperator, database: SharedDatabase) -> Self {
        let lookup = LookupRun::new(lookup, input, database);
        let (document, idle) = (Vec::new(), Idle::default());
        LookupUnwindRun { lookup, unwind, document, current: None, output: None, idle }
    }

    /// Gives the next document that was found; [`Step::More`] if there is none.
    fn give(&mut self, mut found: Found, index: i64, cx: &mut Cx<'_>) -> Result<Step> {
        let (document, parts) = (RawDoc::new(&self.document), self.unwind.path.parts());
        if self.lookup.next(&mut found, cx)? {
            let joined = Value::Document(self.lookup.found(&found));
            let output = rewrite(document, parts, joined);
            crate::check_made(output.as_raw())?;
            self.output = Some(self.unwind.with_index(output, Value::Int64(index)));
            self.current = Some((found, index + 1));
            return Ok(Step::Row);
        }
        if index > 0 || !self.unwind.preserve_null_and_empty {
            return Ok(Step::More);
        }
        let without = rewrite(document, parts, Value::Missing);
        self.output = Some(self.unwind.with_index(without, Value::Null));
        Ok(Step::Row)
    }
}

impl Operator for LookupUnwindRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        self.idle.resume()?;
        if let Some((found, index)) = self.current.take() {
            return self.give(found, index, cx);
        }
        let step = self.lookup.input.work(cx)?;
        if step != Step::Row {
            return Ok(step);
        }
        let found = self.lookup.find(cx)?;
        self.document.clear();
        self.document.extend_from_slice(self.lookup.input.row().document().as_bytes());
        self.lookup.input.release();
        self.give(found, 0, cx)
    }

    fn row(&self) -> Row<'_> {
        self.output.as_ref().map_or(Row::default(), |output| Row::of(output.as_raw()))
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        self.lookup.input.metadata()
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.lookup.input);
    }

    fn release(&mut self) {
        self.output = None;
    }

    fn suspend(&mut self) {
        self.release();
        self.lookup.suspend();
        match &mut self.current {
            None => let_go(&mut self.document),
            Some((Found::Running { run, .. }, _)) => run.suspend(),
            Some(_) => {}
        }
        self.idle.suspend(self.document.capacity());
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        self.lookup.figures()
    }
}
