//! What an operation may use: time, and memory.
//!
//! An operation runs on one thread at a time, so its [`Meter`] is installed in the thread by whoever starts it
//! ([`enter`]) and asked for by whoever works in it, without being handed through every signature:
//!
//! - [`check`] says whether the operation has to stop (killed, out of time, the node shuts down, its memory shed);
//! - [`tick`] is for tight loops: it counts, and asks [`check`] about every 13 microseconds of work;
//! - [`tick_for`] is the same for work on bytes, and [`sort_by`] sorts so that it can be stopped;
//! - where many long operations compute at once, those that [may](Conduct) take turns, in [`tick`];
//! - [`pause`] waits without holding up others; [`wait_until`] waits for another thread of the operation;
//! - [`reserve`] takes memory from the operation's [`Account`] and from that of the [`Process`];
//! - [`grow`] does so for the trees that parsers make, where they are large: [`growing`].
//!
//! Outside any operation time is never over, and memory is free: what is small or bounded otherwise needs no meter.
//! Background work that must end with the node, or that runs clients' expressions, installs a meter of its own.

#![forbid(unsafe_code)]

mod account;
mod current;
mod meter;
mod pressure;
mod sort;
#[cfg(test)]
mod tests;
mod tree;
mod turns;

pub use account::{Account, Held, Part, Process};
pub use current::{
    Conduct, Entered, check, current, enter, enter_as, note_wait, owner, pause, reserve, reserve_in_time,
    shield, spill_bytes, tick, tick_for, wait_until, waited,
};
pub use meter::{Meter, Source};
pub use pressure::{Marks, Pressure};
pub use sort::{sort_by, sort_by_prefix};
pub use tree::{ALLOCATION, grow, growing};
pub use turns::Park;
