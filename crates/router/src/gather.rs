//! Rows of several shards as those of one: cursors on shards, read from in turn or merged by a sort.

mod link;
mod merge;
mod on_member;
mod open;
mod ready;
mod remote;

pub use link::{Cluster, Current, Link, Reads};
pub use merge::{Gather, Order};
pub use on_member::{Abandoned, OnMember};
pub use open::{is_out_of_reach, opened};
pub use ready::as_they_come;
pub use remote::Remote;
