//! `explain`.

use std::sync::Arc;

use sheaf_aggregate::{Namespace, Pipeline};
use sheaf_bson::{ArrayBuf, Bump, DocWriter, RawDoc, Timestamp, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::database::{hint_below, resolve_view};
pub use sheaf_exec::explain::Verbosity;
use sheaf_exec::explain::pipeline::PipelineOf;
use sheaf_exec::explain::{Rows, Top, WouldModify, explain};
use sheaf_exec::plan::Query;
use sheaf_exec::plan::query::Hint;
use sheaf_exec::plan::shape::QueryShape;
use sheaf_exec::write::{FindAndModify as Action, UpdateStatement};
use sheaf_expr::Env;
use sheaf_query::update::ApplyCx;
use sheaf_storage::{Collection, View};

use super::aggregate::Aggregate;
use super::bulk_write::{BulkWrite, Only, OnlyMeasured};
use super::count::Count;
use super::delete::Delete;
use super::distinct::Distinct;
use super::find::Find;
use super::find_and_modify::FindAndModify;
use super::map_reduce::MapReduce;
use super::pipeline::{database, parse};
use super::query::parse_cx;
use super::query_settings;
use super::update::Update;
use sheaf_rows::{Cx, Limits};

use crate::args::Args;
use crate::command::*;
use crate::commands::ddl::names;
use crate::commands::timeseries::{self, MeasuredDelete, MeasuredUpdate, Selected, UpdateParts};
use crate::op::Operation;
use crate::query_settings::FIELD;
use crate::reply::Reply;

/// `{explain: {find: ...}, verbosity: "queryPlanner"}`
pub struct Explain<'a> {
    command: RawDoc<'a>,
    verbosity: Verbosity,
}

impl<'a> Command<'a, Operation<'a>> for Explain<'a> {
    const NAME: &'static str = "explain";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "tells how a command would run",
        access: Access::Read,
        transaction: Transaction::Refused,
        secondary: Secondary::OptIn,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: true,
        admin_only: false,
        test_only: false,
        concerns: Concerns::READ,
        privileges: Privileges::OfInner,
        spread: Spread::Inner,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: true,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let command: RawDoc<'a> = args.own()?;
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
        args.ignore(&[FIELD]);
        Ok(Explain { command, verbosity })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
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
        query_settings::apply(op, self.command)?;
        let verbosity = self.verbosity;
        match name {
            "find" => {
                let find: Find<'a> = inner("find", self.command)?;
                let query = find.query(op)?;
                self.plain(op, &op.namespace(find.collection), &query, Top::Find, None, || find.pipeline())
            }
            "count" => {
                let count: Count<'a> = inner("count", self.command)?;
                let query = count.to_query(op)?;
                self.plain(op, &op.namespace(count.collection), &query, Top::Count, None, || count.pipeline())
            }
            "distinct" => {
                let distinct: Distinct<'a> = inner("distinct", self.command)?;
                let query = distinct.to_query(op)?;
                self.plain(op, &op.namespace(distinct.collection), &query, Top::Find, None, || {
                    distinct.pipeline()
                })
            }
            "update" => {
                let update: Update<'a> = inner("update", self.command)?;
                let (collection, one) = (update.collection, update.only()?);
                if let Some((view, measured)) = measured(op, collection)? {
                    return self.update_measured(op, &view, &measured, &one.parts(update.variables));
                }
                let statement = one.statement(op, collection, update.variables)?;
                let top = Top::Update { multi: statement.multi, upsert: statement.upsert };
                let test = |doc: RawDoc<'_>| would_modify(op, &statement, doc);
                self.plain(op, &op.namespace(collection), &statement.query, top, Some(&test), ArrayBuf::new)
            }
            "delete" => {
                let delete: Delete<'a> = inner("delete", self.command)?;
                let (collection, one) = (delete.collection, delete.only()?);
                if let Some((view, measured)) = measured(op, collection)? {
                    return self.delete_measured(
                        op,
                        &view,
                        &measured,
                        &one.selected(delete.variables),
                        one.multi,
                    );
                }
                let statement = one.statement(op, collection, delete.variables)?;
                let top = Top::Delete { multi: statement.multi };
                self.plain(op, &op.namespace(collection), &statement.query, top, None, ArrayBuf::new)
            }
            "bulkWrite" => {
                let command: BulkWrite<'a> = inner("bulkWrite", self.command)?;
                if op.db() != "admin" {
                    bail!(Code::UNAUTHORIZED, "bulkWrite may only be run against the admin database.");
                }
                let is_measured = |on: &str, says: bool| {
                    let view = op.view()?;
                    let found = view.collection(on).cloned();
                    let found = found
                        .filter(|found| found.is_timeseries() || (says && timeseries::is_buckets(found)));
                    Ok(found.map(|found| (view, found)))
                };
                let explained =
                    command.explain_measured(is_measured, |(view, measured), only| match only {
                        OnlyMeasured::Update(parts) => self.update_measured(op, &view, &measured, &parts),
                        OnlyMeasured::Delete(selected, multi) => {
                            self.delete_measured(op, &view, &measured, &selected, multi)
                        }
                    })?;
                if let Some(reply) = explained {
                    return Ok(reply);
                }
                match command.only(op)? {
                    (on, Only::Update(statement)) => {
                        let top = Top::Update { multi: statement.multi, upsert: statement.upsert };
                        let test = |doc: RawDoc<'_>| would_modify(op, &statement, doc);
                        self.plain(op, on, &statement.query, top, Some(&test), ArrayBuf::new)
                    }
                    (on, Only::Delete(delete)) => {
                        let top = Top::Delete { multi: delete.multi };
                        self.plain(op, on, &delete.query, top, None, ArrayBuf::new)
                    }
                }
            }
            "findAndModify" | "findandmodify" => {
                let command: FindAndModify<'a> = inner("findAndModify", self.command)?;
                if let Some((view, measured)) = measured(op, command.collection)? {
                    return self.delete_measured(op, &view, &measured, &command.measurements()?, false);
                }
                let on = op.namespace(command.collection);
                match command.explained(op)? {
                    Action::Remove(delete) => {
                        let top = Top::Delete { multi: false };
                        self.plain(op, &on, &delete.query, top, None, ArrayBuf::new)
                    }
                    Action::Update { statement, .. } => {
                        let top = Top::Update { multi: false, upsert: statement.upsert };
                        let test = |doc: RawDoc<'_>| would_modify(op, &statement, doc);
                        self.plain(op, &on, &statement.query, top, Some(&test), ArrayBuf::new)
                    }
                }
            }
            "aggregate" => {
                let mut args = Args::of_document("aggregate", self.command)?;
                let command = Aggregate::parse_as(&mut args, true)?;
                args.finish()?;
                aggregate_inner(op, &command, verbosity, self.command)
            }
            "mapReduce" | "mapreduce" => {
                let command: MapReduce<'a> = inner("mapReduce", self.command)?;
                let (namespace, pipeline) = command.explained(op)?;
                explain_pipeline(op, &namespace, &pipeline, None, Hint::None, verbosity, self.command)
            }
            other if op.node().front().knows(other) => {
                bail!(Code::ILLEGAL_OPERATION, "Cannot explain cmd: {other}")
            }
            other => bail!(Code::COMMAND_NOT_FOUND, "Explain failed due to unknown command: {other}"),
        }
    }
}

/// The time-series collection that a command names, if it is one, and the state that it is in.
fn measured(op: &Operation<'_>, collection: &str) -> Result<Option<(View, Arc<Collection>)>> {
    let view = op.view()?;
    let found = view.collection(&op.namespace(collection)).cloned();
    Ok(found.filter(|found| timeseries::is_measured(op, found)).map(|found| (view, found)))
}

/// Whether an update would change a document, tried on a copy.
fn would_modify(op: &Operation<'_>, statement: &UpdateStatement, doc: RawDoc<'_>) -> Result<Rows> {
    let matcher = statement.query.matcher();
    let arena = Bump::new();
    let now_millis = op.now_millis();
    let mut position = None;
    if statement.update.needs_matched_index() {
        let env = Env::new(&arena).with_now(now_millis);
        let details = matcher.matches_with_details(doc, &env)?;
        position = details.and_then(|details| details.elem_match_index).map(|at| at.to_string());
    }
    let timestamp = Timestamp::new((now_millis / 1000) as u32, 1);
    let cx = ApplyCx { matched_index: position.as_deref(), now_millis, timestamp };
    let changes = statement.update.apply_with(doc, &cx, &arena)?.is_some();
    Ok(Rows { taken: 1, changed: u64::from(changes) })
}

pub(super) fn inner<'a, C: Command<'a, Operation<'a>>>(name: &'static str, command: RawDoc<'a>) -> Result<C> {
    let mut args = Args::of_document(name, command)?;
    let parsed = C::parse(&mut args)?;
    args.finish()?;
    Ok(parsed)
}

/// Whether a `find`, `distinct` or `aggregate` can be read, whatever it would find.
///
/// Errors: those of the command.
pub fn check_parses<'a>(op: &Operation<'a>, command: RawDoc<'a>) -> Result<()> {
    match command.iter().next().map_or("", |first| first.key()) {
        "find" => inner::<Find<'a>>("find", command)?.query(op).map(drop),
        "distinct" => inner::<Distinct<'a>>("distinct", command)?.to_query(op).map(drop),
        "aggregate" => {
            let mut args = Args::of_document("aggregate", command)?;
            let command = Aggregate::parse_as(&mut args, true)?;
            args.finish()?;
            parse(command.pipeline, &command.namespace(op), &mut command.parse_cx(op)?).map(drop)
        }
        _ => Ok(()),
    }
}

impl Explain<'_> {
    fn plain(
        &self,
        op: &Operation<'_>,
        namespace: &str,
        query: &Query,
        top: Top<'_>,
        would_modify: Option<WouldModify<'_>>,
        pipeline: impl FnOnce() -> ArrayBuf,
    ) -> Result<Reply> {
        let view = op.view()?;
        let found = view.collection(namespace);
        if found.is_some_and(|found| found.is_view()) {
            if !matches!(top, Top::Find | Top::Count) {
                bail!(
                    Code::COMMAND_NOT_SUPPORTED_ON_VIEW,
                    "Namespace {namespace} is a view, not a collection"
                );
            }
            let (db, collection) = names::split(namespace);
            let on = Namespace::new(db, collection);
            let stages = pipeline();
            let parsed =
                parse(stages.as_raw(), &on, &mut parse_cx(op, None)?.with_collator(query.collator.clone()))?;
            let hint = query.hint.clone();
            return explain_pipeline(op, &on, &parsed, None, hint, self.verbosity, self.command);
        }
        self.plans(op, &view, namespace, query, top, would_modify)
    }

    fn update_measured(
        &self,
        op: &Operation<'_>,
        view: &View,
        measured: &Collection,
        parts: &UpdateParts<'_>,
    ) -> Result<Reply> {
        let on = timeseries::to_explain(op, view, measured)?;
        let update = MeasuredUpdate::of(op, measured, &on, parts)?;
        let test = |bucket: RawDoc<'_>| {
            let changes = would_modify(op, &update.statement, bucket)?.changed > 0;
            update.would_update(bucket, changes)
        };
        let (query, top) = (&update.statement.query, Top::Update { multi: true, upsert: false });
        self.plans(op, view, &on.buckets.namespace, query, top, Some(&test))
    }

    fn delete_measured(
        &self,
        op: &Operation<'_>,
        view: &View,
        measured: &Collection,
        selected: &Selected<'_>,
        multi: bool,
    ) -> Result<Reply> {
        let on = timeseries::to_explain(op, view, measured)?;
        let delete = MeasuredDelete::of(op, measured, &on, selected, multi)?;
        let test = |bucket: RawDoc<'_>| delete.would_delete(bucket);
        self.plans(op, view, &on.buckets.namespace, delete.query(), delete.top(), Some(&test))
    }

    /// The plans of a query on what is stored by this name.
    fn plans(
        &self,
        op: &Operation<'_>,
        view: &View,
        namespace: &str,
        query: &Query,
        top: Top<'_>,
        would_modify: Option<WouldModify<'_>>,
    ) -> Result<Reply> {
        let stop = op.interrupter();
        let interrupt = || stop.check();
        let limits = Limits { now_millis: op.now_millis(), ..Limits::default() };
        let (reads, mut cx) = (op.reads(view.clone()), Cx::new(limits, &interrupt));
        let on = view.collection(namespace).map(|found| (found, &reads));
        let explained = explain(query, namespace, on, &mut cx, self.verbosity, top, would_modify)?;
        let mut reply = Reply::with_capacity(4096).with("explainVersion", "1");
        reply.fill(|out| {
            explained.write(out);
            tail(out, op, self.command);
        });
        Ok(reply)
    }
}

/// `{aggregate: ..., explain: true}`.
pub fn aggregate(op: &Operation<'_>, command: &Aggregate<'_>, verbosity: Verbosity) -> Result<Reply> {
    aggregate_inner(op, command, verbosity, op.body())
}

fn aggregate_inner(
    op: &Operation<'_>,
    command: &Aggregate<'_>,
    verbosity: Verbosity,
    body: RawDoc<'_>,
) -> Result<Reply> {
    let namespace = command.namespace(op);
    let pipeline = parse(command.pipeline, &namespace, &mut command.parse_cx(op)?)?;
    let hint = Hint::parse(command.hint)?;
    explain_pipeline(op, &namespace, &pipeline, command.variables, hint, verbosity, body)
}

fn explain_pipeline(
    op: &Operation<'_>,
    namespace: &Namespace,
    pipeline: &Pipeline,
    variables: Option<RawDoc<'_>>,
    hint: Hint,
    verbosity: Verbosity,
    body: RawDoc<'_>,
) -> Result<Reply> {
    let db = database(op, None, false)?;
    let view = op.view()?;
    let (_, hint) = hint_below(&view, namespace, hint);
    let named = view.collection(&namespace.to_string()).cloned();
    let resolved = match named.as_ref().filter(|found| found.is_view() && !pipeline.has_own_source()) {
        Some(found) => Some(resolve_view(&view, found, pipeline, op.system_variables())?),
        None => None,
    };
    let (namespace, pipeline) = resolved.as_ref().map_or((namespace, pipeline), |(on, joined)| (on, joined));
    let full = namespace.to_string();
    let collection = view.collection(&full).cloned();
    let fresh = || parse_cx(op, variables).unwrap_or_default().with_collator(pipeline.collator().cloned());
    let of = PipelineOf {
        db: &db,
        pipeline,
        namespace: &full,
        collection: collection.as_ref(),
        hint,
        fresh: &fresh,
    };
    let stop = op.interrupter();
    let interrupt = || stop.check();
    let limits = Limits { now_millis: op.now_millis(), ..Limits::default() };
    let mut cx = Cx::new(limits, &interrupt);
    let explained = sheaf_exec::explain::pipeline::explain_pipeline(&of, &mut cx, verbosity)?;
    let mut reply = Reply::with_capacity(4096).with("explainVersion", "1");
    reply.fill(|out| {
        match (&explained.cursor, explained.stages.is_empty()) {
            // A pipeline that only finds is shown as a find.
            (Some(cursor), true) => cursor.write(out),
            _ => _ = out.append("stages", &explained.documents()),
        }
        tail(out, op, body);
    });
    Ok(reply)
}

/// What every explain ends with.
fn tail(out: &mut DocWriter<'_, Vec<u8>>, op: &Operation<'_>, command: RawDoc<'_>) {
    {
        let mut echo = out.document("command");
        for field in command.iter().filter(|field| !crate::generic::is_generic(field.key_bytes())) {
            echo.append_element(field);
        }
        echo.append("$db", op.db());
    }
    // Who has no time left for it goes without.
    if let Some(Ok(hash)) = QueryShape::of(op.db(), command).map(|shape| shape.hash()) {
        out.append("queryShapeHash", hash.as_str());
    }
    let address = op.node().host_and_port();
    let (host, port) = address.rsplit_once(':').unwrap_or((&address, "27017"));
    out.document("serverInfo")
        .append("host", host)
        .append("port", port.parse::<i32>().unwrap_or(27017))
        .append("version", crate::version::COMPATIBLE)
        .append("gitVersion", crate::version::GIT);
    op.front.parameters.write_explained(&mut out.document("serverParameters"));
}
