//! The mongos role: a server that has no data, and sends each command to the shards that have it.
//!
//! A router keeps nothing that could be lost: where databases live stands in `config.*`, and what it remembers of that it can ask for
//! again. What a transaction or a cursor is, its shards know; the router knows which shards those are.

#![forbid(unsafe_code)]

mod accounts;
mod addressed;
mod catalog;
mod collation;
mod commands;
mod commit;
mod config_servers;
mod cursor;
mod database;
mod decided;
mod deciding;
mod forward;
mod gather;
mod merged;
mod mongos;
mod op;
mod open_times;
mod out;
mod parameters;
mod partial;
mod past;
mod probe;
mod route;
mod router;
mod sampling;
mod session;
mod stats;
mod streams;
mod target;
mod targeting;
mod told;
mod transaction;
mod view;
mod write;

pub use commands::names as command_names;
pub use mongos::Mongos;
pub use router::Router;
