//! The commands of a router. What a command is, its [`Spec`] says once, in the file of the mongod that runs it; where it goes from here
//! is its [`Spread`]. What has to be done here has a file here.

mod aggregate;
mod analyze;
mod batches;
mod bulk_write;
mod change_stream;
mod conducted;
mod count;
mod cursors;
mod distinct;
mod drop_database;
mod explain;
mod find;
mod find_and_modify;
mod hello;
mod isdbgrid;
mod list_collections;
mod list_databases;
mod map_reduce;
mod measured;
mod operations;
mod owners;
mod profile;
mod query_analyzer;
mod rename;
mod rights;
mod server_status;
mod sessions;
mod shards;
mod transaction;
mod version;
mod views;

use std::sync::LazyLock;

use sheaf_errors::{Code, Result, bail};
use sheaf_front::args::Args;
use sheaf_front::command::{Description, Entry, Run, Spread, Table, Threads};
use sheaf_front::command_entry;
use sheaf_front::reply::Reply;

use crate::addressed::Placed;
use crate::forward;
use crate::op::Operation;
use crate::parameters;
pub use crate::route::not_over_shards;
use crate::route::until_fresh;

/// Parses and runs a command of a router.
pub type RunOnRouter = for<'a> fn(&mut Args<'a>, &Operation<'a>) -> Result<Reply>;

/// The commands that only a router has.
static OWN: &[Entry<RunOnRouter>] = &[
    command_entry!(shards::AddShard<'_>, Operation),
    command_entry!(shards::EnableSharding<'_>, Operation),
    command_entry!(shards::GetShardMap, Operation),
    command_entry!(analyze::AnalyzeShardKey<'_>, Operation),
    command_entry!(query_analyzer::ConfigureQueryAnalyzer<'_>, Operation),
    command_entry!(version::GetShardVersion<'_>, Operation),
    command_entry!(shards::FlushRouterConfig, Operation),
    command_entry!(shards::ListShards, Operation),
    command_entry!(isdbgrid::IsDbGrid, Operation),
    command_entry!(conducted::Conducted<conducted::ShardCollection>, Operation),
    command_entry!(conducted::Conducted<conducted::AddShardToZone>, Operation),
    command_entry!(conducted::Conducted<conducted::BalancerCollectionStatus>, Operation),
    command_entry!(conducted::Conducted<conducted::BalancerStart>, Operation),
    command_entry!(conducted::Conducted<conducted::BalancerStatus>, Operation),
    command_entry!(conducted::Conducted<conducted::BalancerStop>, Operation),
    command_entry!(conducted::Conducted<conducted::ClearJumboFlag>, Operation),
    command_entry!(conducted::Conducted<conducted::ConfigureCollectionBalancing>, Operation),
    command_entry!(conducted::Conducted<conducted::MergeAllChunksOnShard>, Operation),
    command_entry!(conducted::Conducted<conducted::MergeChunks>, Operation),
    command_entry!(conducted::CheckMetadataConsistency<'_>, Operation),
    command_entry!(conducted::Conducted<conducted::MoveChunk>, Operation),
    command_entry!(conducted::Conducted<conducted::MovePrimary>, Operation),
    command_entry!(conducted::Conducted<conducted::MoveRange>, Operation),
    command_entry!(conducted::Conducted<conducted::SetAllowMigrations>, Operation),
    command_entry!(conducted::Conducted<conducted::RefineCollectionShardKey>, Operation),
    command_entry!(conducted::Conducted<conducted::MoveCollection>, Operation),
    command_entry!(conducted::Conducted<conducted::ReshardCollection>, Operation),
    command_entry!(conducted::Conducted<conducted::UnshardCollection>, Operation),
    command_entry!(conducted::Conducted<conducted::AbortMoveCollection>, Operation),
    command_entry!(conducted::Conducted<conducted::AbortUnshardCollection>, Operation),
    command_entry!(conducted::Conducted<conducted::AbortReshardCollection>, Operation),
    command_entry!(conducted::Conducted<conducted::CommitReshardCollection>, Operation),
    command_entry!(conducted::Conducted<conducted::CleanupReshardCollection>, Operation),
    command_entry!(conducted::Conducted<conducted::CommitShardRemoval>, Operation),
    command_entry!(conducted::Conducted<conducted::RemoveShard>, Operation),
    command_entry!(conducted::Conducted<conducted::RemoveShardFromZone>, Operation),
    command_entry!(conducted::Conducted<conducted::ShardDrainingStatus>, Operation),
    command_entry!(conducted::Conducted<conducted::StartShardDraining>, Operation),
    command_entry!(conducted::Conducted<conducted::TransitionFromDedicatedConfigServer>, Operation),
    command_entry!(conducted::Conducted<conducted::TransitionToDedicatedConfigServer>, Operation),
    command_entry!(conducted::Conducted<conducted::StopShardDraining>, Operation),
    command_entry!(conducted::Conducted<conducted::Split>, Operation),
    command_entry!(conducted::Conducted<conducted::UpdateZoneKeyRange>, Operation),
];

/// The commands that other servers have, too, and that a router runs in its own way.
const HERE: &[(&str, RunOnRouter)] = &[
    ("aggregate", aggregate::run),
    ("mapReduce", map_reduce::run),
    ("insert", batches::insert),
    ("update", batches::update),
    ("delete", batches::delete),
    ("findAndModify", find_and_modify::run),
    ("bulkWrite", bulk_write::run),
    ("createSearchIndexes", |_, op| forward::to_database(op, false)),
    ("dropSearchIndex", |_, op| forward::to_database(op, false)),
    ("updateSearchIndex", |_, op| forward::to_database(op, false)),
    ("currentOp", operations::current),
    ("killOp", operations::kill),
    ("hello", hello::hello),
    ("isMaster", hello::is_master),
    ("getMore", cursors::get_more),
    ("collMod", measured::coll_mod),
    ("collStats", owners::coll_stats),
    ("create", owners::create),
    ("createIndexes", owners::create_indexes),
    ("dataSize", owners::data_size),
    ("dbStats", owners::db_stats),
    ("drop", conducted::drop_collection),
    ("dropIndexes", owners::drop_indexes),
    ("listIndexes", owners::on_primary),
    ("planCacheClear", owners::change),
    ("planCacheClearFilters", owners::change),
    ("planCacheListFilters", owners::list_filters),
    ("planCacheSetFilter", owners::change),
    ("validate", owners::validate),
    ("dropDatabase", drop_database::run),
    ("explain", explain::run),
    ("find", find::run),
    ("count", count::run),
    ("distinct", distinct::run),
    ("listCollections", list_collections::run),
    ("listDatabases", list_databases::run),
    ("renameCollection", rename::run),
    ("commitTransaction", transaction::commit),
    ("abortTransaction", transaction::abort),
    ("profile", profile::run),
    ("serverStatus", server_status::run),
    ("refreshSessions", sessions::refresh),
    ("setAuditConfig", parameters::configure_audit),
    ("setClusterParameter", parameters::change),
    ("setQuerySettings", parameters::change),
    ("removeQuerySettings", parameters::change),
];

/// All commands of a router.
pub static TABLE: LazyLock<Table<RunOnRouter>> = LazyLock::new(|| {
    let is_here = |name: &str| HERE.iter().any(|(here, _)| *here == name);
    let is_front_s =
        |name: &str| sheaf_front::commands::COMMANDS.iter().any(|entry| entry.description.name == name);
    let routed = sheaf_server::commands::TABLE.all();
    let routed = routed.filter(|command| is_here(command.name) || !is_front_s(command.name));
    let routed: Vec<_> = routed.filter_map(|command| Some(entry(command, way(command)?))).collect();
    Table::new(&[OWN, Vec::leak(routed)])
});

/// The names of all commands of a router, other spellings with them.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.all().flat_map(|command| std::iter::once(command.name).chain(command.spec.aliases.iter().copied()))
}

fn entry(command: &Description, run: RunOnRouter) -> Entry<RunOnRouter> {
    let mut spec = command.spec;
    if !spec.threads.is_control() {
        // Whoever waits for a shard holds a thread.
        spec.threads = Threads::DataMayBlock;
    }
    Entry { description: Description { name: command.name, spec }, run }
}

/// How a router runs a mongod's command; `None`: not at all.
fn way(command: &Description) -> Option<RunOnRouter> {
    if let Some((_, run)) = HERE.iter().find(|(name, _)| *name == command.name) {
        return Some(*run);
    }
    let run: RunOnRouter = match command.spec.spread {
        Spread::Targeted | Spread::PrimaryShard | Spread::Owners | Spread::AnyOwner | Spread::Inner => {
            |_, op| to_collection(op)
        }
        // It may change users or roles.
        Spread::ConfigServers => |_, op| {
            let reply = forward::to_config(op);
            op.router.accounts.doubt();
            reply
        },
        Spread::AllShards => |_, op| forward::to_all_shards(op),
        Spread::Router | Spread::CursorOwners | Spread::Participants | Spread::Refused => return None,
    };
    Some(run)
}

/// Runs the command where its collection is. What is sharded has a way of its own, or none yet.
fn to_collection(op: &Operation<'_>) -> Result<Reply> {
    let makes = makes_database(op);
    let named = op.body().iter().next().and_then(|first| first.value().as_str());
    let Some(collection) = named.filter(|name| !name.is_empty()) else {
        return forward::to_database(op, makes);
    };
    until_fresh(op, op.db(), collection, makes, |placed| match placed {
        Placed::Whole(to) => forward::to_one(op, to),
        Placed::Spread(sharded) if op.command.spec.spread == Spread::AnyOwner => {
            let any = op.owners(sharded)?.swap_remove(0);
            forward::to_one(op, &any)
        }
        Placed::Spread(_) if op.command.name == "convertToCapped" => {
            bail!(Code::ILLEGAL_OPERATION, "You can't convertToCapped a sharded collection")
        }
        Placed::Spread(sharded) => Err(not_over_shards(op, sharded)),
    })
}

/// Whether the command makes the database that it writes to: those that only take away, or change what is there, do not.
fn makes_database(op: &Operation<'_>) -> bool {
    const CHANGE: [&str; 7] =
        ["delete", "drop", "dropIndexes", "collMod", "convertToCapped", "compact", "cloneCollectionAsCapped"];
    op.writes() && !CHANGE.contains(&op.command.name)
}

/// Parses and runs the command of a request.
pub fn run<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    match TABLE.at(op.at) {
        Run::Front(run) => run(args, op.request),
        Run::Role(run) => measured::run(args, op, run),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_of_its_own_is_one_that_a_mongod_describes() {
        for (name, _) in HERE {
            let found = sheaf_server::commands::TABLE.find(name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(found.command.name, *name);
            assert!(TABLE.find(name).is_some());
        }
    }

    #[test]
    fn what_routers_refuse_they_do_not_know() {
        for name in ["replSetInitiate", "replSetGetStatus", "replSetStepDown"] {
            assert!(TABLE.find(name).is_none(), "{name}");
        }
        for name in ["find", "insert", "aggregate", "ping", "addShard", "addshard"] {
            assert!(TABLE.find(name).is_some(), "{name}");
        }
    }
}
