//! `mapReduce`: where its collection and its output are on one shard, there; otherwise as the pipeline that it is.

use sheaf_bson::{RawDoc, Value, doc};
use sheaf_errors::{Code, Error, Result};
use sheaf_front::args::Args;
use sheaf_front::reply::Reply;
use sheaf_server::command::Command as _;
use sheaf_server::commands::crud::map_reduce::MapReduce;

use super::aggregate::run_here;
use crate::addressed::Placed;
use crate::forward;
use crate::merged::First;
use crate::op::Operation;
use crate::route::until_fresh;
use crate::view::view_named;

/// More documents than a reply holds: whether all fit into one is asked by their size.
const ALL: usize = i32::MAX as usize;

/// The error for a client of one that a shard has given because it has a view by that name.
fn refused_on_view(op: &Operation<'_>, name: &str, error: Error) -> Error {
    match view_named(op, name, error) {
        Ok(_) => Error::new(Code::COMMAND_NOT_SUPPORTED_ON_VIEW, "mapReduce on a view is not supported"),
        Err(error) => error,
    }
}

/// `{mapReduce: "plants", map: code, reduce: code, out: {inline: 1}}`.
pub fn run<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let command = MapReduce::parse(args)?;
    let name = command.collection();
    let whole = until_fresh(op, op.db(), name, op.writes(), |placed| match placed {
        // Without output the shard that has all documents needs nobody.
        Placed::Whole(to) if command.output().is_none() => forward::to_one(op, to).map(Some),
        _ => Ok(None),
    });
    let whole = whole.map_err(|error| refused_on_view(op, name, error))?;
    if let Some(reply) = whole {
        return Ok(reply);
    }
    let stages = command.pipeline(op.db());
    let body = doc! {
        "aggregate": name,
        "pipeline": Value::Array(stages.as_raw()),
        "cursor": {},
        "$db": op.db(),
    };
    let first = First { size: Some(ALL), single: true, ..First::default() };
    let ran = run_here(op, body.as_raw(), &op.namespace(name), first);
    let ran = ran.map_err(|error| refused_on_view(op, name, error))?;
    if let Some(output) = command.output() {
        return Ok(output);
    }
    let cursor = RawDoc::EMPTY;
    let results = sheaf_bson::Iter::over(ran.elements())
        .find(|field| field.key() == "cursor")
        .and_then(|field| field.value().as_doc())
        .unwrap_or(cursor)
        .get("firstBatch")
        .and_then(|batch| batch.as_array())
        .unwrap_or(RawDoc::EMPTY);
    Ok(Reply::ok().with("results", Value::Array(results)))
}
