//! `explain`.

use sheaf_aggregate::Pipeline;
use sheaf_bson::{ArrayBuf, DocBuf, DocWriter, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::database::{head_query, resolve_view};
pub use sheaf_exec::explain::Verbosity;
use sheaf_exec::explain::{Explained, Top, explain};
use sheaf_exec::plan::Query;
use sheaf_exec::plan::query::Hint;
use sheaf_exec::run::ReadCx;

use super::aggregate::Aggregate;
use super::count::Count;
use super::delete::Delete;
use super::distinct::Distinct;
use super::find::Find;
use super::find_and_modify::FindAndModify;
use super::pipeline::{PipelineCursor, parse};
use super::query::parse_cx;
use super::update::Update;
use crate::args::Args;
use crate::command::{Command, Spec};
use crate::op::OpContext;
use crate::reply::Reply;

/// `{explain: {find: ...}, verbosity: "queryPlanner"}`
pub struct Explain<'a> {
    command: RawDoc<'a>,
    verbosity: Verbosity,
}

impl<'a> Command<'a> for Explain<'a> {
    const NAME: &'static str = "explain";
    const SPEC: Spec = Spec::read().api_v1().may_block();

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let command = match args.own_value() {
            Value::Document(command) => command,
            other => bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'explain.explain' is the wrong type '{}', expected type 'object'",
                other.type_name()
            ),
        };
        let name: Option<&str> = args.optional("verbosity")?;
        let verbosity = match name {
            None => Verbosity::AllPlansExecution,
            Some(name) => match Verbosity::from_name(name) {
                Some(verbosity) => verbosity,
                None => bail!(
                    Code::BAD_VALUE,
                    "Enumeration value '{name}' for field 'explain.verbosity' is not a valid value."
                ),
            },
        };
        Ok(Explain { command, verbosity })
    }

    fn run(self, op: &OpContext<'a>) -> Result<Reply> {
        if let Some(Value::String(db)) = self.command.get("$db")
            && db != op.db()
        {
            bail!(
                Code::INVALID_NAMESPACE,
                "Mismatched $db in explain command. Expected {} but got {db}",
                op.db()
            );
        }
        let name = self.command.iter().next().map_or("", |first| first.key());
        let verbosity = self.verbosity;
        match name {
            "find" => {
                let find: Find<'a> = inner("find", self.command)?;
                let query = find.query(op)?;
                self.plain(op, find.collection, &query, Top::Find, || find.pipeline())
            }
            "count" => {
                let count: Count<'a> = inner("count", self.command)?;
                let query = count.to_query(op)?;
                self.plain(op, count.collection, &query, Top::Count, || count.pipeline())
            }
            "distinct" => {
                let distinct: Distinct<'a> = inner("distinct", self.command)?;
                let query = distinct.to_query(op)?;
                self.plain(op, distinct.collection, &query, Top::Find, || distinct.pipeline())
            }
            "update" => {
                let update: Update<'a> = inner("update", self.command)?;
                let (collection, statement) = update.only(op)?;
                let top = Top::Update { multi: statement.multi, upsert: statement.upsert };
                self.plain(op, collection, &statement.query, top, ArrayBuf::new)
            }
            "delete" => {
                let delete: Delete<'a> = inner("delete", self.command)?;
                let (collection, statement) = delete.only(op)?;
                let top = Top::Delete { multi: statement.multi };
                self.plain(op, collection, &statement.query, top, ArrayBuf::new)
            }
            "findAndModify" | "findandmodify" => {
                let command: FindAndModify<'a> = inner("findAndModify", self.command)?;
                let (query, remove, upsert) = command.explained(op)?;
                let top =
                    if remove { Top::Delete { multi: false } } else { Top::Update { multi: false, upsert } };
                self.plain(op, command.collection, &query, top, ArrayBuf::new)
            }
            "aggregate" => {
                let mut args = Args::of_document("aggregate", self.command)?;
                let command = Aggregate::parse_as(&mut args, true)?;
                args.finish()?;
                aggregate_inner(op, &command, verbosity, self.command)
            }
            other => bail!(Code::COMMAND_NOT_FOUND, "Explain failed due to unknown command: {other}"),
        }
    }
}

fn inner<'a, C: Command<'a>>(name: &'static str, command: RawDoc<'a>) -> Result<C> {
    let mut args = Args::of_document(name, command)?;
    let parsed = C::parse(&mut args)?;
    args.finish()?;
    Ok(parsed)
}

impl Explain<'_> {
    fn plain(
        &self,
        op: &OpContext<'_>,
        collection: &str,
        query: &Query,
        top: Top,
        pipeline: impl FnOnce() -> ArrayBuf,
    ) -> Result<Reply> {
        let namespace = op.namespace(collection);
        let view = op.view()?;
        let found = view.collection(&namespace);
        if let Some(found) = found.filter(|found| found.is_view()) {
            if !matches!(top, Top::Find | Top::Count) {
                bail!(
                    Code::COMMAND_NOT_SUPPORTED_ON_VIEW,
                    "Namespace {namespace} is a view, not a collection"
                );
            }
            let on = sheaf_aggregate::Namespace::new(op.db(), collection);
            let stages = pipeline();
            let parsed = parse(stages.as_raw(), &on, &mut parse_cx(op, None)?)?;
            return explain_pipeline(op, &parsed, found, Hint::None, self.verbosity, self.command);
        }
        let stop = op.interrupter();
        let interrupt = || stop.check();
        let cx = ReadCx::new(&view, &interrupt, op.now_millis());
        let explained = explain(query, &namespace, found, &cx, self.verbosity, top)?;
        let mut reply = Reply::with_capacity(4096).with("explainVersion", "1");
        reply.fill(|out| {
            write_explained(out, &explained);
            tail(out, op, self.command);
        });
        Ok(reply)
    }
}

/// `{aggregate: ..., explain: true}`.
pub fn aggregate(op: &OpContext<'_>, command: &Aggregate<'_>, verbosity: Verbosity) -> Result<Reply> {
    aggregate_inner(op, command, verbosity, op.body())
}

fn aggregate_inner(
    op: &OpContext<'_>,
    command: &Aggregate<'_>,
    verbosity: Verbosity,
    body: RawDoc<'_>,
) -> Result<Reply> {
    let namespace = command.namespace(op);
    let mut cx = parse_cx(op, command.variables)?;
    let pipeline = parse(command.pipeline, &namespace, &mut cx)?;
    let hint = Hint::parse(command.hint)?;
    let view = op.view()?;
    match view.collection(&namespace.to_string()) {
        Some(collection) if !pipeline.has_own_source() => {
            explain_pipeline(op, &pipeline, collection, hint, verbosity, body)
        }
        _ => explain_without_collection(op, &pipeline, &namespace.to_string(), verbosity, body),
    }
}

fn explain_without_collection(
    op: &OpContext<'_>,
    pipeline: &Pipeline,
    namespace: &str,
    verbosity: Verbosity,
    body: RawDoc<'_>,
) -> Result<Reply> {
    let view = op.view()?;
    let stop = op.interrupter();
    let interrupt = || stop.check();
    let cx = ReadCx::new(&view, &interrupt, op.now_millis());
    let explained = match pipeline.has_own_source() {
        true => None,
        false => Some(explain(&head_query(pipeline).0, namespace, None, &cx, verbosity, Top::Find)?),
    };
    let mut reply = Reply::with_capacity(4096).with("explainVersion", "1");
    reply.fill(|out| {
        match &explained {
            Some(explained) if pipeline.head().stages == pipeline.stages().len() => {
                write_explained(out, explained)
            }
            _ => write_stages(out, explained.as_ref(), pipeline, 0, None),
        }
        tail(out, op, body);
    });
    Ok(reply)
}

fn explain_pipeline(
    op: &OpContext<'_>,
    pipeline: &Pipeline,
    collection: &sheaf_storage::Collection,
    hint: Hint,
    verbosity: Verbosity,
    body: RawDoc<'_>,
) -> Result<Reply> {
    let view = op.view()?;
    let (namespace, pipeline) = resolve_view(&view, collection, pipeline)?;
    let (mut query, done) = head_query(&pipeline);
    query.hint = hint;
    let stop = op.interrupter();
    let interrupt = || stop.check();
    let cx = ReadCx::new(&view, &interrupt, op.now_millis());
    let full = namespace.to_string();
    let explained = explain(&query, &full, view.collection(&full), &cx, verbosity, Top::Find)?;
    // A pipeline that only finds is shown as a find.
    let all = done == pipeline.stages().len();
    let counted = match verbosity {
        Verbosity::QueryPlanner => None,
        _ if pipeline.target_namespace().is_some() => None,
        _ => Some(run_for_count(op, &namespace, &pipeline)?),
    };
    let mut reply = Reply::with_capacity(4096).with("explainVersion", "1");
    reply.fill(|out| {
        if all {
            write_explained(out, &explained);
        } else {
            write_stages(out, Some(&explained), &pipeline, done, counted);
        }
        tail(out, op, body);
    });
    Ok(reply)
}

/// The number of documents that the whole pipeline gives.
fn run_for_count(
    op: &OpContext<'_>,
    namespace: &sheaf_aggregate::Namespace,
    pipeline: &Pipeline,
) -> Result<u64> {
    let mut n = 0;
    let pipeline = std::sync::Arc::new(pipeline.clone());
    PipelineCursor::open(op, namespace, &pipeline, Hint::None, true, false)?.each(op, |_| {
        n += 1;
        Ok(())
    })?;
    Ok(n)
}

fn write_explained(out: &mut DocWriter<'_, Vec<u8>>, explained: &Explained) {
    out.append("queryPlanner", &explained.planner);
    if let Some(execution) = &explained.execution {
        out.append("executionStats", execution);
    }
}

fn write_stages(
    out: &mut DocWriter<'_, Vec<u8>>,
    cursor: Option<&Explained>,
    pipeline: &Pipeline,
    done: usize,
    returned: Option<u64>,
) {
    let mut stages = out.array("stages");
    if let Some(explained) = cursor {
        let mut stage = stages.document();
        write_explained(&mut stage.document("$cursor"), explained);
        if let Some(execution) = &explained.execution {
            let n = execution.as_raw().get("nReturned").and_then(|v| v.as_exact_i64()).unwrap_or(0);
            stage.append("nReturned", n).append("executionTimeMillisEstimate", 0i64);
        }
    }
    let rest: Vec<DocBuf> = remaining(pipeline, done);
    let last = rest.len().saturating_sub(1);
    for (at, spec) in rest.iter().enumerate() {
        let mut stage = stages.document();
        stage.append_all(spec.as_raw());
        if let (Some(n), true) = (returned, at == last) {
            stage.append("nReturned", n as i64).append("executionTimeMillisEstimate", 0i64);
        }
    }
}

/// The stages from `done` on, as they were given.
fn remaining(pipeline: &Pipeline, done: usize) -> Vec<DocBuf> {
    let spec = pipeline.spec();
    let total = spec.as_raw().count();
    // Stages at the beginning may have been merged, so the end is what counts.
    let left = pipeline.stages().len() - done;
    let docs = spec.as_raw();
    docs.values().skip(total.saturating_sub(left)).filter_map(|v| v.as_doc()).map(DocBuf::from).collect()
}

/// What every explain ends with.
fn tail(out: &mut DocWriter<'_, Vec<u8>>, op: &OpContext<'_>, command: RawDoc<'_>) {
    {
        let mut echo = out.document("command");
        for field in command.iter().filter(|field| !crate::generic::is_generic(field.key_bytes())) {
            echo.append_element(field);
        }
        echo.append("$db", op.db());
    }
    let address = op.node().host_and_port();
    let (host, port) = address.rsplit_once(':').unwrap_or((&address, "27017"));
    out.document("serverInfo")
        .append("host", host)
        .append("port", port.parse::<i32>().unwrap_or(27017))
        .append("version", crate::version::COMPATIBLE)
        .append("gitVersion", crate::version::OWN);
    out.document("serverParameters")
        .append("internalQueryFacetBufferSizeBytes", 104_857_600)
        .append("internalQueryFacetMaxOutputDocSizeBytes", 104_857_600)
        .append("internalLookupStageIntermediateDocumentMaxSizeBytes", 104_857_600)
        .append("internalDocumentSourceGroupMaxMemoryBytes", 104_857_600)
        .append("internalQueryMaxBlockingSortMemoryUsageBytes", 104_857_600)
        .append("internalQueryProhibitBlockingMergeOnMongoS", 0)
        .append("internalQueryMaxAddToSetBytes", 104_857_600)
        .append("internalDocumentSourceSetWindowFieldsMaxMemoryBytes", 104_857_600)
        .append("internalQueryFrameworkControl", "forceClassicEngine")
        .append("internalQueryPlannerIgnoreIndexWithCollationForRegex", 1);
}
