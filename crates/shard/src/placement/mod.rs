//! Where documents belong: shard keys, the ranges of their values, who owns these and who did, and which shards a request needs.
//!
//! - [`KeyPattern`] is a collection's shard key: it takes [`Key`]s from documents, and ranges of keys from bounds on their fields.
//! - [`RoutingTable`] is the directory's view: [`Chunk`]s with their history, and the version of each shard.
//! - [`ShardPlacement`] is a shard's own view, the one that decides: what it owns and as of which version; [`CollectionPlacement`] is that
//!   as it is stored, with the shard key.

mod changes;
mod documents;
mod key;
mod pattern;
mod range;
mod row;
mod shard;
mod table;
#[cfg(test)]
mod tests;

pub use documents::{CLOSED, closed_placement};
pub use key::Key;
pub use pattern::{Interval, KeyField, KeyPattern};
pub use range::{KeyRange, Ranges};
pub use row::CollectionPlacement;
pub use shard::{Belief, ShardPlacement, Stale};
pub use table::{Chunk, Owned, RoutingTable, Version};
