//! A step-down on its way.

/// A step-down under way.
pub struct StepDown {
    /// Until when a secondary may catch up.
    pub deadline: u64,
    /// Until when this member will not be elected.
    pub until: u64,
    pub force: bool,
    pub term: u64,
    /// Some member was offered the lead.
    pub offered: bool,
    /// The process ends after it: nothing is waited for that nobody can bring about.
    pub ending: bool,
}
