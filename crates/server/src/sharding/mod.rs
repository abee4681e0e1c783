//! A member of a shard: the machine of `sheaf_shard` with this member's log, threads, clock and connections.
//!
//! [`ShardServer`] holds the machine under a lock. Commands, the log's records, the set's commit point and the clock are told to it; what it
//! wants done is done by whoever has told it, once the lock is given back, or by a thread of its own where that may not wait.
//! An ordinary server has none, and its transactions pass by here.

mod effects;
mod identity;
mod names;
mod sending;
mod shard_server;
mod slot;

pub use names::transaction_id;
pub use shard_server::{Fate, Figures, OpenTransactions, ShardServer};
