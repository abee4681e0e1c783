//! `explain`: the plans of shards, as a router shows them.

use sheaf_bson::{DocBuf, DocWriter, RawDoc, Value};
use sheaf_cluster::{Answer, Sharded};
use sheaf_errors::{Code, Result, bail};
use sheaf_front::args::{Args, At, FromValue, NonNegative};
use sheaf_front::reply::Reply;

use super::aggregate::Plan;
use super::find::owners_of;
use super::find_and_modify::is_measured;
use crate::addressed::{Addressed, Placed};
use crate::forward::{self, Body};
use crate::op::Operation;
use crate::parameters::obey_settings;
use crate::route::until_fresh;
use crate::targeting::ranges_for_measurements;

/// `{explain: {find: "plants", ...}, verbosity: "executionStats"}`. The shape is the manual's ("Explain Results", sharded
/// collections): an aggregation's plans stand in `shards`, by name; those of the others in `winningPlan.shards`.
pub fn run<'a>(_: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let explained = op.body().iter().next().and_then(|first| first.value().as_doc());
    let named = explained.and_then(|explained| explained.iter().next());
    let (Some(explained), Some(named)) = (explained, named) else { return forward::to_database(op, false) };
    if named.key() == "bulkWrite" {
        return bulk_write(op, explained);
    }
    let Some(collection) = named.value().as_str().filter(|name| !name.is_empty()) else {
        return forward::to_database(op, false);
    };
    obey_settings(op, explained)?;
    let stages = explained.get("pipeline").and_then(|stages| stages.as_array());
    until_fresh(op, op.db(), collection, false, |placed| {
        if let Some(stages) = stages.filter(|_| named.key() == "aggregate") {
            let plan = Plan::new(op, explained, collection, stages, placed)?;
            return match &plan.to[..] {
                [only] if plan.is_local => one(op, only, &Body::of(op)),
                _ => pipeline(op, explained, &plan),
            };
        }
        match placed {
            Placed::Whole(to) => one(op, to, &Body::of(op)),
            Placed::Spread(sharded) => {
                let to = targets(op, sharded, explained)?;
                match &to[..] {
                    [only] => one(op, only, &Body::of(op)),
                    _ => several(op, op.db(), explained, &to),
                }
            }
        }
    })
}

/// The only operation of a `bulkWrite`, explained as the command that does the same.
fn bulk_write(op: &Operation<'_>, explained: RawDoc<'_>) -> Result<Reply> {
    let mut args = Args::of_document("bulkWrite", explained)?;
    let ops: Vec<RawDoc<'_>> = args.required_documents("ops")?.iter().collect();
    let namespaces: Vec<RawDoc<'_>> = args.required_documents("nsInfo")?.iter().collect();
    if op.db() != "admin" {
        bail!(Code::UNAUTHORIZED, "bulkWrite may only be run against the admin database.");
    }
    let [only] = ops[..] else { bail!(Code::INVALID_LENGTH, "explained write batches must be of size 1") };
    let Some(kind) = only.iter().next() else { return forward::to_database(op, false) };
    let place = NonNegative::from_value(kind.value(), &At::new("bulkWrite", kind.key()))?;
    let place = place.and_then(|at| usize::try_from(at.0).ok());
    let namespace = place.and_then(|at| namespaces.get(at)?.get("ns")?.as_str());
    let Some((db, collection)) = namespace.and_then(|namespace| namespace.split_once('.')) else {
        let shown = sheaf_bson::value_text(Value::Document(only));
        bail!(Code::BAD_VALUE, "BulkWrite ops entry {shown} has an invalid nsInfo index.")
    };
    if kind.key() == "insert" {
        bail!(Code::ILLEGAL_OPERATION, "Cannot explain an insert of bulkWrite");
    }
    let inner = single_write(explained, only, kind.key() == "update", collection);
    let body = with_explained(op, &inner);
    let body = Body { db, body: body.as_raw() };
    until_fresh(op, db, collection, false, |placed| match placed {
        Placed::Whole(to) => one(op, to, &body),
        Placed::Spread(sharded) => match &targets(op, sharded, inner.as_raw())?[..] {
            [only] => one(op, only, &body),
            to => several(op, db, inner.as_raw(), to),
        },
    })
}

/// An operation of a `bulkWrite` as an `update` or a `delete`.
fn single_write(explained: RawDoc<'_>, only: RawDoc<'_>, updates: bool, collection: &str) -> DocBuf {
    let multi = only.get("multi").is_some_and(|multi| multi.truthy());
    DocBuf::build(|out| {
        out.append(if updates { "update" } else { "delete" }, collection);
        {
            let mut list = out.array(if updates { "updates" } else { "deletes" });
            let mut statement = list.document();
            for field in only.iter().skip(1) {
                let name = match field.key() {
                    "filter" => "q",
                    "updateMods" => "u",
                    "constants" => "c",
                    "multi" if !updates => continue,
                    "upsertSupplied" | "sampleId" => continue,
                    name => name,
                };
                statement.append(name, field.value());
            }
            if !updates {
                statement.append("limit", i32::from(!multi));
            }
        }
        if let Some(variables) = explained.element("let") {
            out.append_element(variables);
        }
    })
}

/// The shards that the explained command needs.
fn targets(op: &Operation<'_>, sharded: &Sharded, explained: RawDoc<'_>) -> Result<Vec<Addressed>> {
    let document = |name: &str| explained.get(name).and_then(|value| value.as_doc());
    let statement =
        |list: &str| explained.get(list)?.as_array()?.values().next()?.as_doc()?.get("q")?.as_doc();
    let filter = document("filter").or_else(|| document("query"));
    let filter = filter.or_else(|| statement("updates")).or_else(|| statement("deletes"));
    let filter = filter.unwrap_or(RawDoc::EMPTY);
    if is_measured(explained) {
        return op.readers_of(sharded, &ranges_for_measurements(sharded, filter, document("collation")));
    }
    owners_of(op, sharded, filter, document("collation"))
}

/// A command that one shard runs.
fn one(op: &Operation<'_>, to: &Addressed, body: &Body<'_>) -> Result<Reply> {
    let answer = forward::ask(op, to, body)?;
    let plan = answer.reply();
    if plan.get("queryPlanner").is_some() {
        return Ok(of_plans(plan, "SINGLE_SHARD", &[(to, &answer)]));
    }
    Ok(Reply::ok().with_fields(|out| of_pipelines(&[(to, &answer)], out)))
}

/// A command that several run, each in part.
fn several(op: &Operation<'_>, db: &str, explained: RawDoc<'_>, to: &[Addressed]) -> Result<Reply> {
    let number = |name: &str| explained.get(name).and_then(|n| n.as_exact_i64()).unwrap_or(0);
    let wanted = number("limit").checked_abs().and_then(|limit| limit.checked_add(number("skip")));
    let inner = DocBuf::build(|out| {
        for field in explained.iter().filter(|field| !matches!(field.key(), "skip" | "limit")) {
            out.append_element(field);
        }
        if let Some(wanted) = wanted.filter(|_| number("limit") != 0) {
            out.append("limit", wanted);
        }
    });
    let body = with_explained(op, &inner);
    let answers = forward::ask_all(op, to, &Body { db, body: body.as_raw() })?;
    let sorts = explained.get("sort").and_then(|sort| sort.as_doc()).is_some_and(|sort| !sort.is_empty());
    let writes = matches!(inner.as_raw().iter().next().map(|first| first.key()), Some("update" | "delete"));
    let stage = match (sorts, writes) {
        (_, true) => "SHARD_WRITE",
        (true, _) => "SHARD_MERGE_SORT",
        _ => "SHARD_MERGE",
    };
    let all: Vec<(&Addressed, &Answer)> = to.iter().zip(&answers).collect();
    Ok(of_plans(answers[0].reply(), stage, &all))
}

fn with_explained(op: &Operation<'_>, inner: &DocBuf) -> DocBuf {
    DocBuf::build(|out| {
        out.append("explain", inner.as_raw());
        for field in op.body().iter().skip(1) {
            out.append_element(field);
        }
    })
}

/// A pipeline whose rows come together here. `explained` is the `aggregate` command.
pub fn pipeline(op: &Operation<'_>, explained: RawDoc<'_>, plan: &Plan<'_>) -> Result<Reply> {
    let Some(split) = plan.split() else { return forward::to_one(op, &plan.to[0]) };
    let answers = match &split.shards {
        Some(stages) => {
            let inner = DocBuf::build(|out| {
                for field in explained.iter().filter(|field| !matches!(field.key(), "explain")) {
                    match field.key() {
                        "pipeline" => _ = out.append("pipeline", Value::Array(stages.as_raw())),
                        name if is_general(name) => {}
                        _ => _ = out.append_element(field),
                    }
                }
            });
            let body = match op.command.name {
                "explain" => with_explained(op, &inner),
                _ => DocBuf::build(|out| {
                    out.append("explain", inner.as_raw()).append("verbosity", "queryPlanner");
                    for field in explained.iter().filter(|field| is_general(field.key())) {
                        out.append_element(field);
                    }
                }),
            };
            forward::ask_all(op, &plan.to, &Body { db: op.db(), body: body.as_raw() })?
        }
        None => Vec::new(),
    };
    let all: Vec<(&Addressed, &Answer)> = plan.to.iter().zip(&answers).collect();
    Ok(Reply::ok().with_fields(|out| {
        out.append("mergeType", "mongos");
        {
            let mut parts = out.document("splitPipeline");
            if let Some(stages) = &split.shards {
                parts.append("shardsPart", Value::Array(stages.as_raw()));
            }
            parts.append("mergerPart", Value::Array(split.merger.as_raw()));
        }
        of_pipelines(&all, out);
    }))
}

/// Fields that are an operation's, whatever it asks.
fn is_general(name: &str) -> bool {
    name.starts_with('$')
        || matches!(name, "lsid" | "readConcern" | "maxTimeMS" | "apiVersion" | "apiStrict" | "comment")
}

/// What shards tell of pipelines.
fn of_pipelines(all: &[(&Addressed, &Answer)], out: &mut DocWriter<'_, Vec<u8>>) {
    {
        let mut shards = out.document("shards");
        for (to, answer) in all {
            let mut shard = shards.document(to.target.name());
            shard.append("host", answer.host());
            for name in ["explainVersion", "stages", "queryPlanner", "executionStats"] {
                if let Some(field) = answer.reply().element(name) {
                    shard.append_element(field);
                }
            }
        }
    }
    if let Some((_, answer)) = all.first() {
        append(answer.reply(), &["serverInfo", "serverParameters", "command"], out);
    }
}

fn append(from: RawDoc<'_>, names: &[&str], out: &mut DocWriter<'_, Vec<u8>>) {
    for field in names.iter().filter_map(|name| from.element(name)) {
        out.append_element(field);
    }
}

/// What shards tell of plans; `first` is what the first has answered.
fn of_plans(first: RawDoc<'_>, stage: &str, all: &[(&Addressed, &Answer)]) -> Reply {
    Reply::ok().with_fields(|out| {
        {
            let mut shown = out.document("queryPlanner");
            shown.append("mongosPlannerVersion", 1);
            let mut winning = shown.document("winningPlan");
            winning.append("stage", stage);
            let mut shards = winning.array("shards");
            for (to, answer) in all {
                let plan = answer.reply();
                let mut shard = shards.document();
                shard.append("explainVersion", plan.get("explainVersion").unwrap_or("1".into()));
                shard.append("shardName", to.target.name());
                shard.append("connectionString", &to.target.set().address().to_string());
                append(plan, &["serverInfo"], &mut shard);
                if let Some(planner) = plan.get("queryPlanner").and_then(|planner| planner.as_doc()) {
                    shard.append_all(planner);
                }
            }
        }
        if first.get("executionStats").is_some() {
            executed(stage, all, &mut out.document("executionStats"));
        }
        append(first, &["serverInfo", "serverParameters", "command"], out);
    })
}

fn executed(stage: &str, all: &[(&Addressed, &Answer)], out: &mut DocWriter<'_, Vec<u8>>) {
    let stats: Vec<(&Addressed, RawDoc<'_>)> = all
        .iter()
        .filter_map(|(to, answer)| Some((*to, answer.reply().get("executionStats")?.as_doc()?)))
        .collect();
    let number = |of: RawDoc<'_>, name: &str| of.get(name).and_then(|n| n.as_exact_i64()).unwrap_or(0);
    let sum = |name: &str| stats.iter().map(|(_, of)| number(*of, name)).sum::<i64>();
    let put = |out: &mut DocWriter<'_, Vec<u8>>| {
        out.append("nReturned", sum("nReturned") as i32);
        let longest = stats.iter().map(|(_, of)| number(*of, "executionTimeMillis")).max().unwrap_or(0);
        out.append("executionTimeMillis", longest as i32);
        out.append("totalKeysExamined", sum("totalKeysExamined") as i32);
        out.append("totalDocsExamined", sum("totalDocsExamined") as i32);
    };
    put(out);
    let mut stages = out.document("executionStages");
    stages.append("stage", stage);
    put(&mut stages);
    stages.append("totalChildMillis", sum("executionTimeMillis"));
    let mut shards = stages.array("shards");
    for (to, stats) in &stats {
        let mut shard = shards.document();
        shard.append("shardName", to.target.name());
        shard.append_all(*stats);
    }
}
