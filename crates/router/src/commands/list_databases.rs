//! `listDatabases`: those of all shards, and `admin` and `config` from the config servers.

use std::collections::BTreeMap;

use sheaf_auth::Action;
use sheaf_cluster::CONFIG_SHARD;
use sheaf_errors::Result;
use sheaf_front::args::Args;
use sheaf_front::reply::Reply;

use crate::forward;
use crate::op::Operation;

/// What the shards tell of one database.
#[derive(Default)]
struct Database {
    bytes: i64,
    shards: Vec<(String, i64)>,
}

/// `{listDatabases: 1, filter: {...}, nameOnly: true}`. The filter looks at names and sizes of each shard.
pub fn run<'a>(_: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let config_is_shard = forward::all_shards(op)?.iter().any(|shard| shard.target.name() == CONFIG_SHARD);
    let (targets, answers) = forward::ask_those_soon(op, forward::all_sets)?;
    // The shards do not ask who the user is.
    let all = op.rights.may(sheaf_auth::Target::Cluster, &[Action::ListDatabases]);
    let only_own = op.body().get("authorizedDatabases").map_or(!all, |only| only.truthy());
    let mut databases = BTreeMap::<String, Database>::new();
    for (to, answer) in targets.iter().zip(&answers) {
        let target = &to.target;
        let is_config = target.name() == CONFIG_SHARD;
        let listed = answer.reply().get("databases").and_then(|list| list.as_array());
        for entry in listed.into_iter().flat_map(|list| list.values()).filter_map(|entry| entry.as_doc()) {
            let name = entry.get("name").and_then(|name| name.as_str()).unwrap_or_default();
            // What servers have for themselves is nobody else's business.
            let is_shown = match name {
                "local" => false,
                "admin" | "config" => is_config,
                _ => !is_config || config_is_shard,
            };
            if !is_shown || only_own && !op.rights.reach(name) {
                continue;
            }
            let bytes = entry.get("sizeOnDisk").and_then(|size| size.as_exact_i64()).unwrap_or(0);
            let database = databases.entry(name.to_owned()).or_default();
            database.bytes += bytes;
            database.shards.push((target.name().to_owned(), bytes));
        }
    }
    let name_only = op.body().get("nameOnly").is_some_and(|flag| flag.truthy());
    let reply = Reply::ok().with_array("databases", |list| {
        for (name, database) in &databases {
            let mut entry = list.document();
            entry.append("name", name);
            if !name_only {
                entry.append("sizeOnDisk", database.bytes).append("empty", false);
                let mut shards = entry.document("shards");
                for (shard, bytes) in &database.shards {
                    shards.append(shard, *bytes);
                }
            }
        }
    });
    if name_only {
        return Ok(reply);
    }
    let total: i64 = databases.values().map(|database| database.bytes).sum();
    Ok(reply.with("totalSize", total).with("totalSizeMb", total / (1024 * 1024)))
}
