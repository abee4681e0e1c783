//! Commands that read and write documents.

use crate::command::Registered;

/// The commands of this group.
pub const COMMANDS: &[Registered] = &[];
