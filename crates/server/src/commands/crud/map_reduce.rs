//! `mapReduce`: a pipeline that calls the client's functions.
//!
//! As in MongoDB since 4.4 the command is translated: documents are mapped by an expression whose pairs are unwound, grouped by key with an
//! accumulator that reduces, finalised by `$function`, and written by `$out` or `$merge`. So it spills, is interrupted and writes as pipelines do.

use std::sync::Arc;

use sheaf_aggregate::{Namespace, Pipeline};
use sheaf_auth::Target;
use sheaf_bson::{ArrayBuf, DocBuf, MAX_DOCUMENT_SIZE, RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::plan::query::Hint;
use sheaf_expr::ParseCx;
use sheaf_front::access::Rights;
use sheaf_storage::Collection;

use super::pipeline::{PipelineCursor, parse};
use super::query::collated_cx;
use super::writes::check_writable;
use crate::args::{Args, check_collection_name};
use crate::audited;
use crate::command::*;
use crate::forward;
use crate::op::Operation;
use crate::reply::Reply;

/// `{mapReduce: "users", map: code, reduce: code, out: {inline: 1}}`
pub struct MapReduce<'a> {
    collection: &'a str,
    map: Value<'a>,
    reduce: Value<'a>,
    finalize: Option<Value<'a>>,
    out: Out<'a>,
    query: Option<RawDoc<'a>>,
    sort: Option<RawDoc<'a>>,
    limit: Option<i64>,
    scope: Option<RawDoc<'a>>,
    /// What the database keeps for clients' JavaScript.
    stored: DocBuf,
    collation: Option<RawDoc<'a>>,
    bypass_validation: bool,
}

/// Where the results go.
enum Out<'a> {
    Inline,
    Replace(Place<'a>),
    Merge(Place<'a>),
    Reduce(Place<'a>),
}

/// A collection, perhaps of another database.
struct Place<'a> {
    db: Option<&'a str>,
    collection: &'a str,
}

impl<'a> Command<'a, Operation<'a>> for MapReduce<'a> {
    const NAME: &'static str = "mapReduce";
    const SPEC: Spec = Spec {
        aliases: &["mapreduce"],
        help: "maps documents to keys and values, and reduces the values of each key, with functions in JavaScript",
        access: Access::ReadOrWrite(writes),
        transaction: Transaction::Refused,
        secondary: Secondary::OptIn,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::BOTH,
        privileges: Privileges::ByCommand(
            "find on the collection; insert on the target of the output, and remove where it is replaced or update where it is not",
            may_map_reduce,
        ),
        spread: Spread::Targeted,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: true,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let collection = args.collection()?;
        let map_reduce = MapReduce {
            collection,
            map: code(args, "map")?,
            reduce: code(args, "reduce")?,
            finalize: if args.value("finalize").is_nullish() { None } else { Some(code(args, "finalize")?) },
            out: Out::parse(args.value("out"))?,
            query: args.optional("query")?,
            sort: args.optional("sort")?,
            limit: args.optional("limit")?,
            scope: scope(args.value("scope"))?,
            stored: DocBuf::new(),
            collation: args.optional("collation")?,
            bypass_validation: args.optional("bypassDocumentValidation")?.unwrap_or(false),
        };
        // Both have no effect in MongoDB either.
        for name in ["jsMode", "verbose"] {
            args.optional::<bool>(name)?;
        }
        if map_reduce.sort.is_some_and(|sort| sort.is_empty()) {
            bail!(15976, "$sort stage must have at least one sort key");
        }
        if map_reduce.limit.is_some_and(|limit| limit <= 0) {
            bail!(15958, "The limit specified to mapReduce must be positive");
        }
        Ok(map_reduce)
    }

    fn run(mut self, op: &Operation<'a>) -> Result<Reply> {
        let namespace = Namespace::new(op.db(), self.collection);
        op.metrics().namespace.replace(Some(op.namespace(self.collection)));
        let mut cx = self.parse_cx(op)?;
        if let Some(place) = self.out.place() {
            check_writable(op, place.collection)?;
            if !op.node().is_writable() && op.db() != "local" {
                return forward::to_primary(op);
            }
        }
        self.stored = cx.stored_functions()?;
        let stages = self.pipeline(op.db());
        let pipeline = parse(stages.as_raw(), &namespace, &mut cx)?;
        let target = pipeline.target_namespace().map(ToString::to_string);
        let _audited = target.and_then(|target| audited::Target::of(op, &target));
        let mut cursor =
            PipelineCursor::open(op, &namespace, &pipeline, Hint::None, Some(true), self.bypass_validation)?;
        let Some(reply) = self.output() else { return inline(op, &mut cursor) };
        op.blocking(|| cursor.each(op, |_| Ok(())))?;
        Ok(reply)
    }
}

/// The reply that has the results themselves.
fn inline(op: &Operation<'_>, cursor: &mut PipelineCursor) -> Result<Reply> {
    let mut results = Vec::new();
    let mut size = 0;
    op.blocking(|| {
        cursor.each(op, |result| {
            size += result.len();
            if size > MAX_DOCUMENT_SIZE {
                bail!(
                    Code::BSON_OBJECT_TOO_LARGE,
                    "the results of mapReduce are larger than a document may be"
                );
            }
            results.push(DocBuf::from(result));
            Ok(())
        })
    })?;
    let results = ArrayBuf::of(results.iter().map(|result| Value::Document(result.as_raw())));
    Ok(Reply::ok().with("results", Value::Array(results.as_raw())))
}

impl<'a> MapReduce<'a> {
    /// The name of the collection whose documents are mapped.
    pub fn collection(&self) -> &'a str {
        self.collection
    }

    /// The answer that names where the results are; `None` if they are the answer.
    pub fn output(&self) -> Option<Reply> {
        let place = self.out.place()?;
        Some(match place.db {
            None => Reply::ok().with("result", place.collection),
            Some(db) => Reply::ok().with("result", doc! {"db": db, "collection": place.collection}.as_raw()),
        })
    }

    /// The pipeline that does it, for `explain`.
    ///
    /// Errors: `CommandNotSupportedOnView`, and those of pipelines.
    pub(super) fn explained(&self, op: &Operation<'_>) -> Result<(Namespace, Arc<Pipeline>)> {
        let namespace = Namespace::new(op.db(), self.collection);
        let mut cx = self.parse_cx(op)?;
        let stages = self.pipeline(op.db());
        let pipeline = parse(stages.as_raw(), &namespace, &mut cx)?;
        Ok((namespace, pipeline))
    }

    /// Errors: `CommandNotSupportedOnView`, those of collations.
    fn parse_cx(&self, op: &Operation<'_>) -> Result<ParseCx> {
        let namespace = op.namespace(self.collection);
        let is_view = |collection: &Collection| collection.is_view() || collection.is_timeseries();
        if op.view()?.collection(&namespace).is_some_and(|found| is_view(found)) {
            bail!(Code::COMMAND_NOT_SUPPORTED_ON_VIEW, "mapReduce on a view is not supported");
        }
        collated_cx(op, &namespace, self.collation, None)
    }

    /// The stages that do it.
    pub fn pipeline(&self, db: &str) -> ArrayBuf {
        ArrayBuf::build(|stages| {
            if let Some(query) = self.query.filter(|query| !query.is_empty()) {
                stages.push(doc! {"$match": query}.as_raw());
            }
            if let Some(sort) = self.sort {
                stages.push(doc! {"$sort": sort}.as_raw());
            }
            if let Some(limit) = self.limit {
                stages.push(doc! {"$limit": limit}.as_raw());
            }
            let emit = self.scoped(doc! {"eval": self.map, "this": "$$ROOT"});
            stages.push(doc! {"$project": {"emits": {"$_internalJsEmit": emit.as_raw()}, "_id": 0}}.as_raw());
            stages.push(doc! {"$unwind": {"path": "$emits"}}.as_raw());
            let reduce = self.scoped(doc! {"data": "$emits", "eval": self.reduce});
            let value = doc! {"$_internalJsReduce": reduce.as_raw()};
            stages.push(doc! {"$group": {"_id": "$emits.k", "value": value.as_raw()}}.as_raw());
            // Groups come in any order; in the order of keys they can be looked at.
            stages.push(doc! {"$sort": {"_id": 1}}.as_raw());
            if let Some(finalize) = self.finalized() {
                stages.push(finalize.as_raw());
            }
            if let Some(stage) = self.writing(db) {
                stages.push(stage.as_raw());
            }
        })
    }

    /// An operator's argument with the variables that the client's functions see.
    fn scoped(&self, mut argument: DocBuf) -> DocBuf {
        if self.scope.is_some() || !self.stored.as_raw().is_empty() {
            let scope = DocBuf::build(|out| {
                out.append_all(self.stored.as_raw()).append_all(self.scope.unwrap_or(RawDoc::EMPTY));
            });
            argument.append("_internalScope", &scope);
        }
        argument
    }

    fn finalized(&self) -> Option<DocBuf> {
        let finalize = self.finalize?;
        let args = ArrayBuf::of([Value::String("$_id"), Value::String("$value")]);
        let call = self.scoped(doc! {"body": finalize, "args": Value::Array(args.as_raw()), "lang": "js"});
        Some(doc! {"$project": {"value": {"$function": call.as_raw()}}})
    }

    fn writing(&self, db: &str) -> Option<DocBuf> {
        let place = self.out.place()?;
        let target = doc! {"db": place.db.unwrap_or(db), "coll": place.collection};
        let merge = |matched: Value<'_>| {
            doc! {"$merge": {"into": target.as_raw(), "on": "_id", "whenMatched": matched, "whenNotMatched": "insert"}}
        };
        Some(match self.out {
            Out::Inline => return None,
            Out::Replace(_) => doc! {"$out": target.as_raw()},
            Out::Merge(_) => merge(Value::String("replace")),
            Out::Reduce(_) => {
                let both = ArrayBuf::of([Value::String("$value"), Value::String("$$new.value")]);
                let args = ArrayBuf::of([Value::String("$_id"), Value::Array(both.as_raw())]);
                let call = self
                    .scoped(doc! {"body": self.reduce, "args": Value::Array(args.as_raw()), "lang": "js"});
                let again = ArrayBuf::build(|stages| {
                    stages.push(doc! {"$project": {"value": {"$function": call.as_raw()}}}.as_raw());
                    if let Some(finalize) = self.finalized() {
                        stages.push(finalize.as_raw());
                    }
                });
                merge(Value::Array(again.as_raw()))
            }
        })
    }
}

/// One of the client's functions.
fn code<'a>(args: &mut Args<'a>, name: &str) -> Result<Value<'a>> {
    match args.value(name) {
        code @ (Value::String(_) | Value::JavaScript(_)) => Ok(code),
        Value::Missing => bail!(40414, "BSON field 'mapReduce.{name}' is missing but a required field"),
        _ => bail!(Code::BAD_VALUE, "'{name}' must be of string or code type"),
    }
}

/// Variables of the client's functions.
fn scope(given: Value<'_>) -> Result<Option<RawDoc<'_>>> {
    match given {
        Value::Document(scope) => Ok(Some(scope)),
        given if given.is_nullish() => Ok(None),
        _ => bail!(Code::BAD_VALUE, "'scope' must be an object"),
    }
}

impl<'a> Out<'a> {
    fn parse(out: Value<'a>) -> Result<Out<'a>> {
        match out {
            Value::Missing => bail!(40414, "BSON field 'mapReduce.out' is missing but a required field"),
            Value::String(collection) => Ok(Out::Replace(Place::new(None, collection)?)),
            Value::Document(spec) => Out::parse_document(spec),
            _ => bail!(Code::BAD_VALUE, "'out' must be either a string or an object"),
        }
    }

    /// As MongoDB's `MapReduceOutOptions` has it: one way of output, and what goes with it.
    fn parse_document(spec: RawDoc<'a>) -> Result<Out<'a>> {
        if let Some(inline) = spec.get("inline") {
            if inline.as_f64() != Some(1.0) {
                bail!(Code::BAD_VALUE, "'inline' takes only numeric '1'");
            }
            if spec.iter().nth(1).is_some() {
                bail!(Code::INVALID_OPTIONS, "'inline' must be specified alone");
            }
            return Ok(Out::Inline);
        }
        for name in ["sharded", "nonAtomic"] {
            if spec.get(name).is_some_and(|flag| flag.as_bool() != Some(true)) {
                bail!(Code::BAD_VALUE, "'{name}' in 'out' takes only true");
            }
        }
        let known = ["sharded", "nonAtomic", "db"].iter().filter(|name| spec.element(name).is_some()).count();
        if spec.iter().count() != known + 1 {
            bail!(
                Code::BAD_VALUE,
                "'out' has one of 'replace', 'merge', 'reduce' or 'inline', and perhaps 'sharded', 'nonAtomic' and 'db'"
            );
        }
        let text = |name: &str, value: Value<'a>| match value {
            Value::String(text) => Ok(text),
            _ => bail!(Code::BAD_VALUE, "'{name}' in 'out' must be a string"),
        };
        let db = spec.get("db").map(|db| text("db", db)).transpose()?;
        let way = ["replace", "merge", "reduce"].into_iter().find_map(|way| Some((way, spec.get(way)?)));
        let Some((way, collection)) = way else {
            bail!(Code::BAD_VALUE, "'out' requires 'replace', 'merge', 'reduce' or 'inline'")
        };
        let place = Place::new(db, text(way, collection)?)?;
        Ok(match way {
            "replace" => Out::Replace(place),
            "merge" => Out::Merge(place),
            _ => Out::Reduce(place),
        })
    }

    fn place(&self) -> Option<&Place<'a>> {
        match self {
            Out::Inline => None,
            Out::Replace(place) | Out::Merge(place) | Out::Reduce(place) => Some(place),
        }
    }
}

impl<'a> Place<'a> {
    fn new(db: Option<&'a str>, collection: &'a str) -> Result<Self> {
        check_collection_name(collection)?;
        if let Some(internal) = db.filter(|db| matches!(*db, "admin" | "config" | "local")) {
            bail!(
                Code::COMMAND_NOT_SUPPORTED,
                "mapReduce cannot write to the internal database '{internal}'"
            );
        }
        Ok(Place { db, collection })
    }
}

/// Whether the command writes its results to a collection.
fn writes(body: RawDoc<'_>) -> bool {
    match body.get_or_missing("out") {
        Value::String(_) => true,
        Value::Document(spec) => spec.get("inline").is_none(),
        _ => false,
    }
}

/// Whether a `mapReduce` is allowed.
fn may_map_reduce(asked: Asked<'_>, rights: &Rights) -> bool {
    if !rights.may(asked.own(), &[Action::Find]) {
        return false;
    }
    // What cannot be parsed fails.
    let Ok(command) = parsed::<MapReduce<'_>>(asked) else { return true };
    let Some(place) = command.out.place() else { return true };
    let mut actions = match command.out {
        Out::Replace(_) => vec![Action::Insert, Action::Remove],
        _ => vec![Action::Insert, Action::Update],
    };
    if command.bypass_validation {
        actions.push(Action::BypassDocumentValidation);
    }
    rights.may(Target::Collection(place.db.unwrap_or(asked.db), place.collection), &actions)
}
