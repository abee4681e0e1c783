//! The parts of a member's state: each keeps its own count and its own rules, and knows nothing of the member that has it.
//!
//! What a member makes of them is in the files beside this folder, which add to [`super::Member`].

mod barriers;
mod elections;
mod hints;
mod listening;
mod peer;
mod reconfig;
mod reporting;
mod step_down;
mod units;
mod waiting;
mod window;

pub use barriers::Barriers;
pub use elections::{
    Attempts, CandidateMetrics, ElectionCounts, ElectionReason, Elections, Leading, ParticipantMetrics,
};
pub use hints::Hints;
pub use listening::Listening;
pub use peer::Peer;
pub use reconfig::{Phase, Reconfig};
pub use reporting::Reporting;
pub use step_down::StepDown;
pub use units::{EntryTime, Fetch, Pending};
pub use waiting::Waiting;
pub use window::Window;
