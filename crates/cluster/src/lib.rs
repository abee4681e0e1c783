//! A sharded cluster as one of its processes sees the others: which sets there are, who leads each of them, where a database lives,
//! and how a message gets there and back.
//!
//! - [`ReplicaSet`] knows the members of one set and finds one for a request.
//! - [`Call`] is a message under way; several can be under way at once, received one after another by one thread.
//! - [`Directory`] remembers what `config.*` says of shards, databases and sharded collections ([`Sharded`]).
//! - [`Clock`] is the newest cluster time that was heard of.

#![forbid(unsafe_code)]

mod address;
mod call;
mod clock;
mod collections;
mod directory;
mod failure;
mod members;
mod monitor;
mod preference;
mod reach;
mod set;

pub use address::SetAddress;
pub use call::{Answer, Asker, Call};
pub use clock::Clock;
pub use collections::{Believed, Figures, Sharded, chunk_of};
pub use directory::{CONFIG_SHARD, Directory, GoOn, QUICK, Shard, first_batch, no_longer_than, run};
pub use failure::{error_in, for_client, is_not_primary, unreachable};
pub use preference::{LOCAL_THRESHOLD, Mode, Preference};
pub use reach::{ELECTION, Patience, ask_together, run_on_each};
pub use set::{ReplicaSet, SELECTION};
