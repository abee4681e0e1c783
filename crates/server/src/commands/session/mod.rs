//! Commands of sessions and transactions.

use crate::command::Registered;

/// The commands of this group.
pub const COMMANDS: &[Registered] = &[];
