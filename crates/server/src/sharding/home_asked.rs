//! What the directory has said of where a database lives, kept for the rest of an operation.

use std::time::Instant;

/// Where a database lives.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Home {
    /// On this shard.
    Here,
    /// On another one.
    Elsewhere,
    /// There is no such database.
    Nowhere,
}

/// What the directory has said of a database, and what of drops was known here before.
pub(crate) struct HomeAsked {
    /// Its name.
    pub db: String,
    /// When it had been dropped here.
    pub dropped: Option<Instant>,
    /// How many databases had been.
    pub drops: u64,
    /// The answer.
    pub home: Home,
}
