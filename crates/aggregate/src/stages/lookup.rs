//! `$lookup`: by equality, by a pipeline, or both.

use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf, OwnedValue, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Deps, Expr, FieldPath, Slot};
use sheaf_meter::Held;

use super::unwind::{Unwind, rewrite};
use crate::database::Namespace;
use crate::join::{Join, local_values};
use crate::pipeline::{Pipeline, SharedPipeline};
use crate::print;
use crate::source::{BoxSource, Documents, RunCx, Source};
use crate::stage::{Place, Reads, Stage, StageCx};

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
        let mut read = Spec::default();
        for field in spec.iter() {
            let (key, value) = (field.key(), field.value());
            match (key, value) {
                ("pipeline", Value::Array(stages)) => read.pipeline = Some(stages),
                ("pipeline", _) => {
                    bail!(Code::TYPE_MISMATCH, "'pipeline' option must be specified as an array")
                }
                ("let", Value::Document(variables)) => read.variables = Some(variables),
                ("let", Value::Null) => {}
                ("let", other) => bail!(
                    Code::TYPE_MISMATCH,
                    "BSON field '$lookup.let' is the wrong type '{}', expected type 'object'",
                    other.type_name()
                ),
                ("from", Value::Document(namespace)) => read.from = Some(parse_from(namespace, database)?),
                ("from", Value::String(collection)) => read.from = Some(Namespace::new(database, collection)),
                ("as", Value::String(text)) => read.output = Some(text),
                ("localField", Value::String(text)) => read.local = Some(text),
                ("foreignField", Value::String(text)) => read.foreign = Some(text),
                ("from" | "as" | "localField" | "foreignField", other) => bail!(
                    Code::FAILED_TO_PARSE,
                    "$lookup argument '{key}: {}' must be a string, is type {}",
                    print::value(other),
                    other.type_name()
                ),
                _ => bail!(Code::FAILED_TO_PARSE, "unknown argument to $lookup: {key}"),
            }
        }
        Ok(read)
    }
}

/// `{db: ..., coll: ...}`, which mongod takes for a few collections of the server's own.
fn parse_from(spec: RawDoc<'_>, database: &str) -> Result<Namespace> {
    match (spec.get("db"), spec.get("coll")) {
        (Some(Value::String(db)), Some(Value::String(coll)))
            if db == database || matches!((db, coll), ("config", _) | ("local", "oplog.rs")) =>
        {
            Ok(Namespace::new(db, coll))
        }
        _ => bail!(
            Code::FAILED_TO_PARSE,
            "$lookup with syntax {{from: {{db:<>, coll:<>}},..}} is not supported for db: {} and coll: {}",
            spec.get("db").and_then(|v| v.as_str()).unwrap_or(""),
            spec.get("coll").and_then(|v| v.as_str()).unwrap_or("")
        ),
    }
}

pub(crate) fn parse(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<Stage>> {
    let Value::Document(document) = argument else {
        bail!(
            Code::FAILED_TO_PARSE,
            "the $lookup stage specification must be an object, but found {}",
            argument.type_name()
        );
    };
    let spec = Spec::read(document, &cx.namespace.database)?;
    let Some(output) = spec.output else {
        bail!(Code::FAILED_TO_PARSE, "must specify 'as' field for a $lookup");
    };
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
    let (variables, pipeline) = parse_pipeline(&spec, &from, cx)?;
    if spec.from.is_none() && !pipeline.as_ref().is_some_and(|pipeline| pipeline.has_own_source()) {
        bail!(
            Code::FAILED_TO_PARSE,
            "missing 'from' option to $lookup stage specification: {}",
            print::document(document)
        );
    }
    Ok(vec![Stage::Lookup(Arc::new(Lookup { from, output, equality, variables, pipeline }))])
}

type Correlated = (Vec<(Slot, Expr)>, Option<SharedPipeline>);

/// Reads `let` and `pipeline`: the variables are in scope in the pipeline only.
fn parse_pipeline(spec: &Spec<'_>, from: &Namespace, cx: &mut StageCx<'_>) -> Result<Correlated> {
    let Some(stages) = spec.pipeline else { return Ok((Vec::new(), None)) };
    let mut exprs = Vec::new();
    for variable in spec.variables.unwrap_or(RawDoc::EMPTY).iter() {
        sheaf_expr::validate_variable_name(variable.key())?;
        exprs.push((variable.key(), Expr::parse(variable.value(), cx.expr)?));
    }
    let scope = cx.expr.enter();
    let mut variables = Vec::with_capacity(exprs.len());
    for (name, expr) in exprs {
        variables.push((cx.expr.declare(name)?, expr));
    }
    let pipeline = Pipeline::parse_at(stages, &mut cx.nested(from, Place::Lookup)?)?;
    cx.expr.leave(scope);
    Ok((variables, Some(Arc::new(pipeline))))
}

impl Lookup {
    /// Notes what is read of the documents.
    pub fn dependencies(&self, deps: &mut Deps) -> Reads {
        if let Some((local, _)) = &self.equality {
            deps.paths.insert(local.dotted());
        }
        self.variables.iter().for_each(|(_, expr)| expr.dependencies(deps));
        Reads::AndPassesOn
    }

    /// Whether the found documents are the same for every document.
    fn is_constant(&self) -> bool {
        let Some(pipeline) = &self.pipeline else { return false };
        self.equality.is_none()
            && self.variables.is_empty()
            && !pipeline.stages().iter().any(|stage| {
                let mut deps = Deps::new();
                stage.dependencies(&mut deps);
                deps.random
                    || matches!(
                        stage,
                        Stage::Sample(_) | Stage::Lookup(_) | Stage::Facet(_) | Stage::Union(_)
                    )
            })
    }
}

/// Runs `$lookup`.
pub struct LookupRun {
    stage: Arc<Lookup>,
    input: BoxSource,
    join: Option<Join>,
    /// The found documents, if they are the same for every document.
    cached: Option<Cached>,
    constant: bool,
    arena: Bump,
}

impl LookupRun {
    pub(crate) fn new(stage: Arc<Lookup>, input: BoxSource) -> Self {
        let join = stage.equality.as_ref().map(|(_, foreign)| Join::new(stage.from.clone(), foreign));
        let constant = stage.is_constant();
        LookupRun { stage, input, join, cached: None, constant, arena: Bump::new() }
    }

    /// Starts looking for what belongs to a document.
    fn find(&mut self, document: RawDoc<'_>, cx: &mut RunCx<'_>) -> Result<Found> {
        if let Some(cached) = &self.cached {
            return Ok(Found::Cached(cached.clone(), 0));
        }
        let stage = self.stage.clone();
        let joined = match (&mut self.join, &stage.equality) {
            (Some(join), Some((local, _))) => Some(join.find(&local_values(document, local.parts()), cx)?),
            _ => None,
        };
        let Some(pipeline) = &stage.pipeline else {
            return Ok(Found::Joined(joined.unwrap_or_default().into_iter()));
        };
        self.arena.reset();
        let mut values = Vec::with_capacity(stage.variables.len());
        {
            let env = cx.env(&self.arena);
            for (slot, expr) in &stage.variables {
                values.push((*slot, OwnedValue::from(expr.eval(document, &env)?)));
            }
        }
        let source = cx.lend_variables(&mut values, |cx| match joined {
            Some(documents) => Ok(pipeline.open(Box::new(Documents::new(documents)))),
            None if pipeline.has_own_source() => Ok(pipeline.open_own()),
            None => cx.database.run(&stage.from, pipeline, cx),
        })?;
        let keep = self.constant.then(Vec::new);
        Ok(Found::Running { source, variables: values, keep, kept: sheaf_meter::reserve(0)? })
    }

    /// The next document that was found.
    fn pull(&mut self, found: &mut Found, cx: &mut RunCx<'_>) -> Result<Option<DocBuf>> {
        match found {
            Found::Joined(documents) => Ok(documents.next()),
            Found::Cached(documents, at) => {
                *at += 1;
                Ok(documents.0.get(*at - 1).cloned())
            }
            Found::Running { source, variables, keep, kept } => {
                let document = cx.lend_variables(variables, |cx| source.next(cx))?;
                match (&document, &mut *keep) {
                    (Some(document), Some(documents)) => {
                        let bytes = document.as_bytes().len() as u64 + 64;
                        // What is too much to be kept is found again for every document.
                        if kept.bytes() + bytes > CACHED_BYTES || kept.grow(bytes).is_err() {
                            *keep = None;
                            kept.set(0)?;
                        } else {
                            documents.push(document.clone());
                        }
                    }
                    (None, Some(documents)) => {
                        let documents = std::mem::take(documents);
                        self.cached = Some(Arc::new((documents, std::mem::take(kept))));
                        *keep = None;
                    }
                    (_, None) => {}
                }
                Ok(document)
            }
        }
    }
}

/// What is found for a document, coming one by one.
enum Found {
    /// By equality alone.
    Joined(std::vec::IntoIter<DocBuf>),
    /// The same as for every other document.
    Cached(Cached, usize),
    /// By a pipeline, whose variables are set while it is pulled.
    Running {
        source: BoxSource,
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

impl Source for LookupRun {
    fn next(&mut self, cx: &mut RunCx<'_>) -> Result<Option<DocBuf>> {
        let Some(document) = self.input.next(cx)? else { return Ok(None) };
        cx.check_interrupt()?;
        let mut found = self.find(document.as_raw(), cx)?;
        let mut array = Vec::new();
        let mut held = sheaf_meter::reserve(0)?;
        {
            let mut out = sheaf_bson::ArrayWriter::new(&mut array);
            while let Some(joined) = self.pull(&mut found, cx)? {
                cx.check_interrupt()?;
                held.grow(joined.as_bytes().len() as u64)?;
                out.push_raw_document(joined.as_bytes());
                // The found documents must fit into one document.
                if out.size() > crate::MAX_INTERNAL_SIZE {
                    bail!(
                        4568,
                        "Total size of documents in {} matching pipeline's $lookup stage exceeds {} bytes",
                        self.stage.from.collection,
                        crate::MAX_INTERNAL_SIZE
                    );
                }
            }
        }
        let output = rewrite(document.as_raw(), self.stage.output.parts(), Value::Array(RawDoc::new(&array)));
        crate::check_made(&output)?;
        Ok(Some(output))
    }
}

/// Runs a `$lookup` whose array is unwound at once: the array is never built, so that it may be of any size.
pub struct LookupUnwindRun {
    lookup: LookupRun,
    unwind: Arc<Unwind>,
    /// The document whose finds are coming, and how many have come.
    current: Option<(DocBuf, Found, i64)>,
}

impl LookupUnwindRun {
    pub(crate) fn new(lookup: Arc<Lookup>, unwind: Arc<Unwind>, input: BoxSource) -> Self {
        LookupUnwindRun { lookup: LookupRun::new(lookup, input), unwind, current: None }
    }
}

impl Source for LookupUnwindRun {
    fn next(&mut self, cx: &mut RunCx<'_>) -> Result<Option<DocBuf>> {
        let unwind = self.unwind.clone();
        let parts = unwind.path.parts();
        loop {
            cx.check_interrupt()?;
            let (document, mut found, index) = match self.current.take() {
                Some(current) => current,
                None => {
                    let Some(document) = self.lookup.input.next(cx)? else { return Ok(None) };
                    let found = self.lookup.find(document.as_raw(), cx)?;
                    (document, found, 0)
                }
            };
            match self.lookup.pull(&mut found, cx)? {
                Some(joined) => {
                    let output = rewrite(document.as_raw(), parts, Value::Document(joined.as_raw()));
                    crate::check_made(&output)?;
                    self.current = Some((document, found, index + 1));
                    return Ok(Some(unwind.with_index(output, Value::Int64(index))));
                }
                None if index == 0 && unwind.preserve_null_and_empty => {
                    let without = rewrite(document.as_raw(), parts, Value::Missing);
                    return Ok(Some(unwind.with_index(without, Value::Null)));
                }
                None => {}
            }
        }
    }
}
