//! `explain`: the plan of the shard, as a router shows it.

use sheaf_errors::Result;
use sheaf_front::args::Args;
use sheaf_front::reply::Reply;

use crate::forward::{self, Body};
use crate::op::Operation;

/// `{explain: {find: "plants", ...}, verbosity: "executionStats"}`. The shape is the manual's ("Explain Results", sharded
/// collections): an aggregation's plans stand in `shards`, by name; those of the others in `winningPlan.shards`.
pub fn run<'a>(_: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let target = op.target(op.db(), false)?;
    let answer = forward::ask(op, &target, &Body { db: op.db(), body: op.body(), without: &[] })?;
    let plan = answer.reply();
    let Some(planner) = plan.get("queryPlanner").and_then(|planner| planner.as_doc()) else {
        return Ok(Reply::ok().with_fields(|out| {
            out.append("mergeType", sheaf_bson::Value::Missing);
            let mut shards = out.document("shards");
            let mut shard = shards.document(target.name());
            shard.append("host", answer.host());
            for name in ["stages", "explainVersion"] {
                if let Some(field) = plan.element(name) {
                    shard.append_element(field);
                }
            }
        }));
    };
    Ok(Reply::ok().with_fields(|out| {
        {
            let mut shown = out.document("queryPlanner");
            shown.append("mongosPlannerVersion", 1);
            let mut winning = shown.document("winningPlan");
            winning.append("stage", "SINGLE_SHARD");
            let mut shards = winning.array("shards");
            let mut shard = shards.document();
            shard.append("explainVersion", plan.get("explainVersion").unwrap_or("1".into()));
            shard.append("shardName", target.name());
            shard.append("connectionString", &target.set().address().to_string());
            if let Some(info) = plan.element("serverInfo") {
                shard.append_element(info);
            }
            shard.append_all(planner);
        }
        if let Some(stats) = plan.get("executionStats").and_then(|stats| stats.as_doc()) {
            let mut shown = out.document("executionStats");
            for name in ["nReturned", "executionTimeMillis", "totalKeysExamined", "totalDocsExamined"] {
                if let Some(field) = stats.element(name) {
                    shown.append_element(field);
                }
            }
            let mut stages = shown.document("executionStages");
            stages.append("stage", "SINGLE_SHARD");
            let mut shards = stages.array("shards");
            let mut shard = shards.document();
            shard.append("shardName", target.name());
            shard.append_all(stats);
        }
        for name in ["serverInfo", "serverParameters", "command"] {
            if let Some(field) = plan.element(name) {
                out.append_element(field);
            }
        }
    }))
}
