//! A member of a shard: the machine of `sheaf_shard` with this member's log, threads, clock and connections.
//!
//! [`ShardServer`] holds the machine under a lock. Commands, the log's records, the set's commit point and the clock are told to it; what it
//! wants done is done by whoever has told it, once the lock is given back, or by a thread of its own where that may not wait.
//! An ordinary server has none, and its transactions pass by here.
//!
//! [`Placements`] is what this shard owns of sharded collections, in any state that is read; requests are compared with it by their version
//! (`version`), writes by the documents' shard keys ([`Guarded`]).
//!
//! The config servers' primary has the [`conductor`]; [`participants`] is what that has shards do. The config servers may be a shard
//! themselves, and have all that shards have.

pub mod conductor;
mod databases;
mod dropped;
mod effects;
pub mod figures;
mod guarded;
mod hidden;
mod home_asked;
pub mod homes;
mod identity;
pub mod key_index;
pub mod key_rules;
mod marks;
pub mod moves;
pub mod moving;
mod names;
pub mod participants;
mod placements;
pub mod requests;
pub mod resharding;
pub mod room;
pub(crate) mod rows;
mod sending;
mod shard_server;
mod shown;
mod slot;
pub mod statements;
pub mod statistics;
mod traffic;
pub mod turns;
mod version;
mod writing;

pub use guarded::Guarded;
pub(crate) use home_asked::HomeAsked;
pub use identity::warn_of_role;
pub use names::transaction_id;
pub use placements::{Placed, Placements};
pub use shard_server::{Fate, Figures, OpenTransactions, ShardServer};
pub use writing::Writing;
