//! Servers that belong together, on this machine: the launcher `sheaf cluster` for sets and sharded clusters, and the links
//! between members.
//!
//! The launcher leaves processes behind that go on without it. What it must know of them is a file in the cluster's
//! folder ([`record::Record`]); every command that it runs is printed as a line that a person could type.

mod cli;
mod control;
mod down;
mod faults;
pub mod links;
mod names;
mod process;
mod record;
mod secrets;
mod secured;
mod sharded;
mod show;
mod up;

pub use cli::{Cluster, cluster};
pub use links::{Cut, Links};
pub use secrets::Secrets;
