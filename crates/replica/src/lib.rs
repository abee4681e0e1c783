//! A member of a replica set: the replication core (`sheaf-repl`) with sockets, threads, a clock and a disk.
//!
//! - [`Replica`] is what the rest of the server sees: what it is made of stands in `replica`, what commands ask of it in
//!   `asking`, who is who in `addresses`.
//! - `driver` performs the effects of the core, `sequencer` orders the commits of storage.
//! - `links` is what waits to be sent to other members, `dialling` the connections to them, `receiving` those from them;
//!   `protocol` how each begins, `secured` how members prove that they have the key, `confirm` how they know each other.
//! - `state` is what must never be forgotten.
//! - `errors` is what is done about errors.
//! - `rollback` keeps writes that the set has not kept; `initial_sync` copies another member's data.
//!
//! Locks, outermost first: storage's pipeline, the state file, the core, what it tells ([`sheaf_storage::order`]). The core's
//! effects are performed under its lock, in order, and none of them waits.

#![forbid(unsafe_code)]

mod addresses;
mod asking;
mod confirm;
mod cover;
mod dialling;
mod double;
mod driver;
mod errors;
pub mod figures;
pub mod initial_sync;
mod links;
mod locked;
pub mod memory;
mod outstanding;
pub mod process;
mod processors;
pub mod protocol;
pub mod receiving;
mod replica;
mod rollback;
mod secured;
mod sequencer;
mod state;
mod strangers;
mod vain;

pub use errors::not_yet_initialized;
pub use process::spawn;
pub use replica::{Host, Replica};
pub use state::RollbackCount;
