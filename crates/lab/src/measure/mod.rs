//! Measuring: when each operation starts, how long it takes, and what it costs the machine.
//!
//! Every client thread has its own [`Local`] recorder, so that nothing is shared on the way of an operation; they are
//! merged when the threads have ended, and once a second for what happened in it.

pub mod cap;
pub mod cost;
pub mod generator;
mod load;
pub mod monitor;
mod recorder;
pub mod stalls;
pub mod trace;

pub use load::{Arrival, Load, Pace, Span, Ticket};
pub use recorder::{Local, Measured, Now, Recorder, Totals};
