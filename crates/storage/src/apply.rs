//! Applying the log of a set on a member.

use sheaf_errors::Result;

use crate::core::Core;
use crate::options::OpTime;
use crate::sequencer::LogEntry;

/// Applies entries that are in the log.
pub(crate) fn apply_entries(core: &Core, entries: &[LogEntry]) -> Result<()> {
    for entry in entries {
        core.replay_entry(&entry.payload)?;
        *core.last.lock() = OpTime { term: entry.term, index: entry.index, time: entry.time };
    }
    Ok(())
}
