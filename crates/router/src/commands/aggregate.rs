//! `aggregate`: on the primary shard of its database; change streams and what is asked of the whole cluster on the shard that there is.

use sheaf_bson::RawDoc;
use sheaf_errors::{Code, Result, bail};
use sheaf_front::args::Args;
use sheaf_front::reply::Reply;
use sheaf_server::commands::crud::change_stream;

use crate::forward::{self, Body};
use crate::op::Operation;
use crate::target::Target;

/// `{aggregate: "plants", pipeline: [...], cursor: {}}`.
pub fn run<'a>(_: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let stages = op.body().get("pipeline").and_then(|pipeline| pipeline.as_array());
    let target = target(op, stages)?;
    if let Some(stages) = stages {
        check_output(op, &target, stages)?;
    }
    let result = forward::ask(op, &target, &Body { db: op.db(), body: op.body(), without: &[] });
    let result = result.and_then(|answer| forward::reply(op, &target, &answer));
    if change_stream::is_opened_by(op.body()) { result.map_err(change_stream::labelled) } else { result }
}

fn target(op: &Operation<'_>, stages: Option<RawDoc<'_>>) -> Result<Target> {
    let first = stages.and_then(|stages| stages.values().next()?.as_doc()?.iter().next());
    match first.map(|stage| stage.key()) {
        // A stream on a database that is not there yet goes where the database will be.
        Some("$changeStream") if op.db() != "admin" => op.target(op.db(), true),
        Some(stage @ ("$changeStream" | "$currentOp" | "$listLocalSessions")) => the_only_shard(op, stage),
        _ => op.target(op.db(), op.writes()),
    }
}

/// What concerns the whole cluster, in a cluster of one shard.
fn the_only_shard(op: &Operation<'_>, stage: &str) -> Result<Target> {
    let mut shards = forward::all_shards(op)?;
    match (shards.pop(), shards.is_empty()) {
        (Some(shard), true) => Ok(shard),
        (None, _) => bail!(Code::SHARD_NOT_FOUND, "No shards found"),
        _ => bail!(
            Code::COMMAND_NOT_SUPPORTED,
            "This version runs {stage} on the whole of a cluster only where the cluster has one shard"
        ),
    }
}

/// What a pipeline writes to another database has to be on the same shard.
fn check_output(op: &Operation<'_>, target: &Target, stages: RawDoc<'_>) -> Result<()> {
    let last = stages.values().last().and_then(|stage| stage.as_doc()?.iter().next());
    let Some(into) = last.and_then(|stage| match stage.key() {
        "$out" => stage.value().as_doc(),
        "$merge" => stage.value().as_doc()?.get("into")?.as_doc(),
        _ => None,
    }) else {
        return Ok(());
    };
    let Some(db) = into.get("db").and_then(|db| db.as_str()).filter(|db| *db != op.db()) else {
        return Ok(());
    };
    if op.target(db, true)?.name() != target.name() {
        bail!(
            Code::COMMAND_NOT_SUPPORTED,
            "This version writes a pipeline's results only to databases on the shard that it runs on; {db} is on another"
        );
    }
    Ok(())
}
