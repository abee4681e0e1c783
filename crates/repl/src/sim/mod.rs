//! The simulator: a whole replica set with its network, disks and clients in one thread, from one seed.
//!
//! [`run`] plays a seed: first with faults, then without, and checks all the time what must always hold
//! ([`checks`]), and at the end that the set has come to rest in one state. Nothing in it depends on
//! anything but the seed, so that a failing seed fails again in the same way; [`Tally::trace`] is a hash
//! of everything that happened.

pub mod checks;
mod clients;
mod disk;
pub mod failover;
mod faults;
mod machine;
mod model;
mod mutation;
pub mod noise;
mod plan;
mod storage;
mod tally;
mod tell;
#[cfg(test)]
mod tests;
mod world;

pub use mutation::Mutation;
pub use plan::Plan;
pub use tally::{Failure, Tally};
pub use world::World;

/// Plays one seed.
pub fn run(seed: u64, mutation: Option<Mutation>) -> Result<Tally, Failure> {
    World::new(Plan::of(seed), mutation).play()
}
