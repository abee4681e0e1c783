//! The laboratory: experiments on a document database, from launching the servers to the report.
//!
//! The laboratory knows a database only from outside: through its wire protocol and its processes. So the same
//! experiment runs against a Sheaf that it starts itself, against a folder with `mongod` binaries, and against
//! anything behind a connection string.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test sends a message or two"))]

pub mod check;
pub mod cli;
pub mod cluster;
pub mod compare;
pub mod context;
pub mod database;
pub mod doctor;
pub mod environment;
pub mod experiment;
pub mod fault;
pub mod generate;
pub mod journal;
pub mod measure;
pub mod part;
mod ports;
pub mod report;
pub mod results;
pub mod runner;
pub mod stats;
pub mod stop;
pub mod target;
pub mod workload;

pub use sheaf_client as client;
pub use sheaf_client::error;
pub use sheaf_client::{Error, Result};
