//! Commands that change and describe collections, indexes and databases.

use crate::command::Registered;

/// The commands of this group.
pub const COMMANDS: &[Registered] = &[];
