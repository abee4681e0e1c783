//! The server: sockets, dispatch, sessions, cursors, metrics; one file per command.
//!
//! A request's way: [`connection`] reads a message, [`dispatch`] does once what every command
//! needs, the command's handler (under [`commands`]) parses its [`args::Args`] and runs with an
//! [`op::OpContext`], and its [`reply::Reply`] goes out in the buffer in which it was built.

pub mod args;
pub mod background;
pub mod buffers;
pub mod busy;
pub mod client;
pub mod command;
pub mod commands;
pub mod concern;
pub mod connection;
pub mod cursors;
pub mod dispatch;
pub mod failpoint;
pub mod first_start;
pub mod forward;
pub mod generic;
pub mod guard;
pub mod listener;
pub mod log;
pub mod metrics;
pub mod node;
pub mod op;
pub mod oplog_size;
pub mod options;
pub mod params;
pub mod parked;
pub mod profile;
pub mod reactor;
pub mod reaper;
pub mod replication;
pub mod reply;
pub mod role;
pub mod session;
pub mod shutdown;
pub mod stream;
pub mod system;
pub mod ttl;
pub mod version;
pub mod watch;
