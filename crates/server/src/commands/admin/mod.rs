//! Commands for administrators and handshakes.

use crate::command::Registered;

/// The commands of this group.
pub const COMMANDS: &[Registered] = &[];
