//! Faults: what is done to servers while a workload runs, by a schedule or at random from a seed.
//!
//! A [`FaultPlan`] is made before anything is started, so that a slip of the pen costs nothing. A [`Fault`] has a moment,
//! counted from the beginning of the measured part, a kind, somebody whom it meets, and a length. When the workload
//! has ended, everything is healed and the set is whole again before the workload checks anything.

mod inject;
mod plan;
mod report;
#[cfg(test)]
mod tests;

pub use inject::{Injector, check};
pub use plan::{Fault, FaultPlan, Kind, Place, Whom};
pub use report::{COLUMNS, DRAWN, complete, figures};
