//! Commands that show what the server does.

use crate::command::Registered;

/// The commands of this group.
pub const COMMANDS: &[Registered] = &[];
