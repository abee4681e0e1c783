//! `$graphLookup`: documents reached from each document by following a field through a collection.

use std::collections::HashMap;
use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf, OwnedValue, RawDoc, Value};
use sheaf_collation::{SharedCollator, key_of};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Deps, Expr, FieldPath};
use sheaf_query::matcher::{Features, Matcher};

use crate::rewrite::rewrite;
use sheaf_rows::{BoxOperator, Cx, Figures, Operator, Row, Step};

use crate::database::SharedDatabase;
use crate::join::{Join, values_at};
use crate::namespace::Namespace;
use crate::outline::Outline;
use crate::print;
use crate::stage::{Needs, Reads, Shape, SharedStage, Split, Stage, StageCx, StageEntry};

/// `$graphLookup`.
pub(crate) const GRAPH_LOOKUP: StageEntry =
    StageEntry::new("$graphLookup", parse, Split::Shards, Needs::Foreign).looked_at(look);

/// A parsed `$graphLookup`.
#[derive(Debug)]
pub struct GraphLookup {
    /// The collection that is searched.
    pub from: Namespace,
    start: Expr,
    connect_from: FieldPath,
    connect_to: FieldPath,
    output: FieldPath,
    max_depth: Option<i64>,
    depth_field: Option<FieldPath>,
    restrict: Option<Matcher>,
    collator: Option<SharedCollator>,
}

fn spec_of(argument: Value<'_>) -> Result<RawDoc<'_>> {
    let Value::Document(spec) = argument else {
        bail!(
            Code::FAILED_TO_PARSE,
            "the $graphLookup stage specification must be an object, but found {}",
            argument.type_name()
        );
    };
    Ok(spec)
}

/// Errors: `FailedToParse`, `InvalidNamespace`.
fn parse_from(spec: RawDoc<'_>, database: &str) -> Result<Namespace> {
    match spec.get("from") {
        Some(Value::String(name)) => Namespace::new(database, name).readable_by("$graphLookup"),
        Some(other) => bail!(
            Code::FAILED_TO_PARSE,
            "$graphLookup 'from' field must be a string, but found {}",
            other.type_name()
        ),
        None => bail!(
            Code::FAILED_TO_PARSE,
            "missing 'from' option to $graphLookup stage specification: {}",
            print::document(spec)
        ),
    }
}

/// What is said of the collection comes first, whatever else is wrong.
fn look(argument: Value<'_>, cx: &Outline<'_>) -> Result<()> {
    parse_from(spec_of(argument)?, cx.database).map(drop)
}

pub(crate) fn parse(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let spec = spec_of(argument)?;
    let from = parse_from(spec, &cx.namespace.database)?;
    let (mut start, mut restrict, mut max_depth, mut depth_field) = (None, None, None, None);
    let (mut connect_from, mut connect_to, mut output) = (None, None, None);
    for field in spec.iter() {
        let (key, value) = (field.key(), field.value());
        match (key, value) {
            ("startWith", value) => start = Some(Expr::parse(value, cx.expr)?),
            ("maxDepth", value) if !value.is_number() => {
                bail!(40100, "maxDepth requires numeric argument, found value of type {}", value.type_name())
            }
            ("maxDepth", value) => match value.as_exact_i64() {
                Some(n) if n >= 0 => max_depth = Some(n),
                _ if value.as_f64().is_some_and(|n| n <= -1.0) => {
                    bail!(40101, "maxDepth requires a nonnegative argument, found: {}", print::value(value))
                }
                _ => {
                    bail!(40102, "maxDepth could not be represented as a long long: {}", print::value(value))
                }
            },
            ("restrictSearchWithMatch", Value::Document(filter)) => {
                // It is a part of a search, which has no index of its own, and no JavaScript.
                let parsed = Matcher::parse_with(filter, Features::Validator, cx.expr);
                restrict = Some(parsed.map_err(|error| {
                    error.context("Failed to parse 'restrictSearchWithMatch' option to $graphLookup")
                })?)
            }
            ("restrictSearchWithMatch", other) => {
                bail!(40185, "restrictSearchWithMatch must be an object, found {}", other.type_name())
            }
            ("connectFromField", Value::String(path)) => connect_from = Some(path),
            ("connectToField", Value::String(path)) => connect_to = Some(path),
            ("as", Value::String(path)) => output = Some(path),
            ("depthField", Value::String(path)) => depth_field = Some(FieldPath::parse(path)?),
            ("from", _) => {}
            ("connectFromField" | "connectToField" | "as" | "depthField", other) => {
                bail!(40103, "expected string as argument for {key}, found: {}", print::value(other))
            }
            _ => bail!(40104, "Unknown argument to $graphLookup: {key}"),
        }
    }
    // An empty name is no field. The paths are read when all are there.
    let given = |path: &&str| !path.is_empty();
    let (Some(output), Some(start), Some(connect_from), Some(connect_to)) =
        (output.filter(given), start, connect_from.filter(given), connect_to.filter(given))
    else {
        bail!(
            40105,
            "$graphLookup requires 'from', 'as', 'startWith', 'connectFromField', and 'connectToField' to be specified."
        );
    };
    let output = FieldPath::parse(output)?;
    let (connect_from, connect_to) = (FieldPath::parse(connect_from)?, FieldPath::parse(connect_to)?);
    Ok(vec![Arc::new(GraphLookup {
        from,
        start,
        connect_from,
        connect_to,
        output,
        max_depth,
        depth_field,
        restrict,
        collator: cx.expr.collator().cloned(),
    })])
}

impl Stage for GraphLookup {
    fn name(&self) -> &'static str {
        "$graphLookup"
    }

    fn open(self: Arc<Self>, input: BoxOperator, database: &SharedDatabase) -> BoxOperator {
        Box::new(GraphLookupRun::new(self, input, database.clone()))
    }

    fn dependencies(&self, _deps: &mut Deps) -> Reads {
        Reads::All
    }

    fn shape(&self) -> Shape<'_> {
        Shape::GraphLookup(&self.output)
    }

    fn foreign_namespaces(&self, found: &mut Vec<Namespace>) {
        found.push(self.from.clone());
    }
}

/// Runs `$graphLookup`.
struct GraphLookupRun {
    stage: Arc<GraphLookup>,
    input: BoxOperator,
    join: Join,
    arena: Bump,
    output: Option<DocBuf>,
}

impl GraphLookupRun {
    fn new(stage: Arc<GraphLookup>, input: BoxOperator, database: SharedDatabase) -> Self {
        let join =
            Join::new(database, stage.from.clone(), &stage.connect_to.dotted(), stage.collator.clone());
        GraphLookupRun { stage, input, join, arena: Bump::new(), output: None }
    }

    /// Breadth first: every document once, at the least depth at which it is reached.
    fn search(&mut self, cx: &mut Cx<'_>) -> Result<Vec<DocBuf>> {
        let GraphLookupRun { stage, input, join, arena, .. } = self;
        arena.reset();
        let row = input.row();
        let mut frontier: Vec<OwnedValue> =
            match stage.start.eval(row.document(), &cx.env_over(input, arena))? {
                Value::Array(items) => items.values().map(OwnedValue::from).collect(),
                Value::Missing => vec![OwnedValue::from(Value::Null)],
                value => vec![OwnedValue::from(value)],
            };
        let mut asked: HashMap<OwnedValue, (), ahash::RandomState> = HashMap::default();
        let mut seen: HashMap<OwnedValue, (), ahash::RandomState> = HashMap::default();
        let mut found = Vec::new();
        let (mut depth, mut held) = (0, sheaf_meter::reserve(0)?);
        // Values that are to be asked for, and those that were.
        let mut of_values = sheaf_meter::reserve(0)?;
        while !frontier.is_empty() && stage.max_depth.is_none_or(|limit| depth <= limit) {
            frontier.retain(|value| {
                asked.insert(key_of(stage.collator.as_ref(), value.as_value()), ()).is_none()
            });
            if frontier.is_empty() {
                break;
            }
            let mut next = Vec::new();
            join.find(&mut frontier, cx)?;
            while join.next(cx)? {
                cx.check_interrupt()?;
                let reached = join.document();
                if let Some(restrict) = &stage.restrict
                    && !restrict.matches(reached, &cx.env(arena))?
                {
                    continue;
                }
                if seen.insert(OwnedValue::from(reached.get_or_missing("_id")), ()).is_some() {
                    continue;
                }
                let known = next.len();
                values_at(reached, stage.connect_from.parts(), &mut next);
                let values: usize = next[known..].iter().map(OwnedValue::memory_bytes).sum();
                of_values.grow(2 * values as u64)?;
                held.grow(reached.len() as u64 + 256)?;
                if held.bytes() > cx.limits.memory_bytes as u64 {
                    bail!(40099, "$graphLookup reached maximum memory consumption");
                }
                found.push(match &stage.depth_field {
                    Some(path) => rewrite(reached, path.parts(), Value::Int64(depth)),
                    None => DocBuf::from(reached),
                });
            }
            frontier = next;
            depth += 1;
        }
        Ok(found)
    }
}

impl Operator for GraphLookupRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let step = self.input.work(cx)?;
        if step != Step::Row {
            return Ok(step);
        }
        let found = self.search(cx)?;
        let array = sheaf_bson::ArrayBuf::build(|out| {
            found.iter().for_each(|document| _ = out.push_raw_document(document.as_bytes()));
        });
        let path = self.stage.output.parts();
        let output = rewrite(self.input.row().document(), path, Value::Array(array.as_raw()));
        crate::check_made(output.as_raw())?;
        self.input.release();
        self.output = Some(output);
        Ok(Step::Row)
    }

    fn row(&self) -> Row<'_> {
        self.output.as_ref().map_or(Row::default(), |output| Row::of(output.as_raw()))
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        self.input.metadata()
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }

    fn release(&mut self) {
        self.output = None;
    }

    fn suspend(&mut self) {
        self.release();
        sheaf_rows::let_go_arena(&mut self.arena);
        self.input.suspend();
        self.join.suspend();
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        Some(self.join.figures())
    }
}
