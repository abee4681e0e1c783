//! The mongod role: commands on a storage engine, sessions with their transactions, and what a mongod does by itself. The
//! [front](sheaf_front) reads the messages and answers; one file per command.
//!
//! A request's way: the front finds the command ([`mongod`] is its role here), [`Operation`](op::Operation) is what the
//! command's handler (under [`commands`]) runs with.

#![forbid(unsafe_code)]

mod accounts;
mod audited;
pub mod auto_compact;
mod background;
pub mod check;
pub mod command;
pub mod commands;
mod compaction;
mod concern;
mod cursors;
mod default_concerns;
mod feature_version;
pub mod first_start;
mod forward;
mod in_session;
pub mod mongod;
pub mod node;
pub mod op;
mod oplog_size;
pub mod options;
mod parked;
mod place;
pub mod query_settings;
pub mod query_stats;
mod quiesce;
mod read;
pub mod reaper;
mod sampling;
pub mod session;
pub mod shard_key;
pub mod sharding;
mod shutdown;
mod stored_functions;
mod transitions;
pub mod ttl;
mod wait;

pub(crate) use sheaf_front::{
    args, client, dispatch, generic, log, message, metrics, profile, reactor, reply, system, version,
};
pub(crate) use sheaf_replica as replication;
pub use sheaf_rows::spill_into;
