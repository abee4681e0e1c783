//! The commands of a router. What a command is, its [`Spec`] says once, in the file of the mongod that runs it; where it goes from here
//! is its [`Spread`]. What has to be done here has a file here.

mod aggregate;
mod bulk_write;
mod cursors;
mod drop_database;
mod explain;
mod hello;
mod isdbgrid;
mod list_databases;
mod operations;
mod rename;
mod server_status;
mod sessions;
mod shards;
mod transaction;

use std::sync::LazyLock;

use sheaf_errors::Result;
use sheaf_front::args::Args;
use sheaf_front::command::{Description, Entry, Run, Spread, Table, Threads};
use sheaf_front::command_entry;
use sheaf_front::reply::Reply;

use crate::forward;
use crate::op::Operation;

/// Parses and runs a command of a router.
pub type RunOnRouter = for<'a> fn(&mut Args<'a>, &Operation<'a>) -> Result<Reply>;

/// The commands that only a router has.
static OWN: &[Entry<RunOnRouter>] = &[
    command_entry!(shards::AddShard<'_>, Operation),
    command_entry!(shards::EnableSharding<'_>, Operation),
    command_entry!(shards::GetShardMap, Operation),
    command_entry!(shards::FlushRouterConfig, Operation),
    command_entry!(shards::ListShards, Operation),
    command_entry!(isdbgrid::IsDbGrid, Operation),
];

/// The commands that other servers have, too, and that a router runs in its own way.
const HERE: &[(&str, RunOnRouter)] = &[
    ("aggregate", aggregate::run),
    ("bulkWrite", bulk_write::run),
    ("createSearchIndexes", |_, op| forward::to_database(op, false)),
    ("dropSearchIndex", |_, op| forward::to_database(op, false)),
    ("updateSearchIndex", |_, op| forward::to_database(op, false)),
    ("currentOp", operations::current),
    ("killOp", operations::kill),
    ("hello", hello::hello),
    ("isMaster", hello::is_master),
    ("getMore", cursors::get_more),
    ("killCursors", cursors::kill_cursors),
    ("dropDatabase", drop_database::run),
    ("explain", explain::run),
    ("listDatabases", list_databases::run),
    ("renameCollection", rename::run),
    ("commitTransaction", transaction::commit),
    ("abortTransaction", transaction::abort),
    ("serverStatus", server_status::run),
    ("refreshSessions", sessions::end),
    ("endSessions", sessions::end),
    ("killSessions", sessions::end),
    ("killAllSessions", sessions::end),
    ("killAllSessionsByPattern", sessions::end),
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
            |_, op| forward::to_database(op, makes_database(op))
        }
        Spread::ConfigServers => |_, op| forward::to_config(op),
        Spread::AllShards => |_, op| forward::to_all_shards(op),
        Spread::Router | Spread::CursorOwners | Spread::Participants | Spread::Refused => return None,
    };
    Some(run)
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
        Run::Role(run) => run(args, op),
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
