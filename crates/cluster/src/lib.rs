//! A sharded cluster as one of its processes sees the others: which sets there are, who leads each of them, where a database lives,
//! and how a message gets there and back.
//!
//! - [`ReplicaSet`] knows the members of one set and finds one for a request.
//! - [`Call`] is a message under way; several can be under way at once, received one after another by one thread.
//! - [`Directory`] remembers what `config.*` says of shards and databases.
//! - [`Clock`] is the newest cluster time that was heard of.

mod address;
mod call;
mod clock;
mod directory;
mod failure;
mod monitor;
mod preference;
mod set;

pub use address::SetAddress;
pub use call::{Answer, Asker, Call};
pub use clock::Clock;
pub use directory::{Directory, GoOn, Shard, run};
pub use failure::{error_in, is_not_primary, unreachable};
pub use preference::{Mode, Preference};
pub use set::ReplicaSet;
