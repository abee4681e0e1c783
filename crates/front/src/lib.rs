//! The front of every server: it listens, reads messages, finds the command and sorts the arguments that all commands
//! share, keeps count, waits for what an answer waits for, and answers. It knows no data: what a command does is the
//! [role]'s, a mongod's or a router's.
//!
//! A request's way: [`connection`] reads a message, [`dispatch`] does once what every command needs, the role runs it with
//! [`args::Args`] and a [`request::Request`], and its [`reply::Reply`] goes out in the buffer in which it was built.

#![forbid(unsafe_code)]

pub mod access;
pub mod args;
pub mod audit;
mod buffers;
mod busy;
pub mod client;
pub mod command;
pub mod commands;
pub mod concern;
pub mod connection;
pub mod cursors;
pub mod dispatch;
mod failpoint;
pub mod front;
pub mod generic;
pub mod guard;
pub mod handshake;
pub mod listener;
pub mod log;
pub mod message;
pub mod metrics;
pub mod oidc;
pub mod operations;
pub mod options;
pub mod outcome;
pub mod params;
pub mod profile;
pub mod reactor;
pub mod redact;
pub mod reply;
pub mod request;
pub mod role;
pub mod sampling;
pub mod sasl;
pub mod session;
pub mod status;
pub mod strangers;
mod stream;
pub mod system;
pub mod tls;
pub mod version;
mod watch;
