//! Servers that belong together, on this machine: the launcher `sheaf cluster`, and the links between members.

pub mod links;

pub use links::{Cut, Links};
