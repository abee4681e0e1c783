//! What the core asks of its driver.

use std::sync::Arc;

use crate::config::{ConfigVersion, ReplSetConfig};
use crate::message::Envelope;
use crate::types::{Entry, HardState, LogPosition, MemberState};
use crate::write_concern::WaitOutcome;

/// Something for the driver to do, in the order given.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send this to that host. It may be lost, come late, or twice.
    Send {
        /// Where to.
        host: Arc<str>,
        /// What.
        envelope: Envelope,
    },
    /// Write; see [`Persist`].
    Persist(Persist),
    /// Everything up to here is majority-committed and applied here: it may be flushed and shown to
    /// majority readers.
    CommitPoint(LogPosition),
    /// What this member is has changed, or who the primary is.
    Role(MemberRole),
    /// A wait is over.
    Resolved {
        /// Which.
        waiter: WaiterId,
        /// How the wait ended.
        outcome: WaitOutcome,
    },
    /// Read entries `low..high` of the log, about `bytes_max` of them, and call `fetched`.
    Fetch {
        /// To be given back.
        token: u64,
        /// Index of the first entry.
        low: u64,
        /// Index after the last one.
        high: u64,
        /// About how many bytes are of use.
        bytes_max: u64,
    },
    /// This member's log has no overlap with the primary's any more: copy the data from `source` and call
    /// `initial_sync_finished` or `initial_sync_failed`.
    InitialSync {
        /// `_id` of the member to copy from.
        source: u64,
        /// The copy must be at least as new as this.
        at_least: LogPosition,
    },
    /// A message cannot be true and was not read: to be told to whoever looks after this member.
    Refused {
        /// The address that the message came from.
        host: Arc<str>,
        /// The sender's `_id`, as the message says.
        from: u64,
        /// Why.
        what: String,
    },
    /// The step-down that was asked for has happened, or cannot.
    SteppedDown(Result<(), sheaf_errors::Error>),
    /// The reconfiguration that was asked for is installed here, or failed.
    Reconfigured(Result<ConfigVersion, sheaf_errors::Error>),
}

/// Names a wait for a write concern or a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(pub u64);

/// A unit of writing. Units are to be done in the order of `seq`; each is reported three times: `written`
/// when the log has it (a crash of the process keeps it), `applied` when reads show it, `durable` when a
/// crash of the machine keeps it. Reporting a `seq` reports all before it.
///
/// Within a unit the order is: `install`, `rollback`, `entries`; `hard_state` and `config` at any time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Persist {
    /// The unit's number: 1, 2, 3, ...
    pub seq: u64,
    /// Term and vote to keep.
    pub hard_state: Option<HardState>,
    /// Configuration to keep, and which of its members this is.
    pub config: Option<(Arc<ReplSetConfig>, Option<u64>)>,
    /// Replace data and log by the copy that initial sync made.
    pub install: Option<LogPosition>,
    /// Take back the end of the log, and what was applied of it.
    pub rollback: Option<Rollback>,
    /// Entries to append and apply.
    pub entries: Vec<Entry>,
}

impl Persist {
    /// What may be kept of term, vote and commit point before the rest of the unit is applied. Where it takes the log's end
    /// back, or replaces the log, the commit point is one of the log to come: a start that comes in between must not take the
    /// log as it still is for committed so far.
    pub fn to_keep(&self, wanted: HardState, known: &HardState) -> HardState {
        let commit = match (self.rollback, self.install) {
            (Some(rollback), _) => wanted.commit.min(rollback.keep.index),
            (None, Some(_)) => wanted.commit.min(known.commit),
            (None, None) => wanted.commit,
        };
        HardState { commit, ..wanted }
    }
}

/// The end of the log that the set has not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rollback {
    /// The last entry that stays. It is never before the commit point.
    pub keep: LogPosition,
    /// The last entry that goes: entries after `keep` up to here are written to `rollback/`.
    pub last: LogPosition,
}

/// What a member is, as others shall see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberRole {
    /// The member's state.
    pub state: MemberState,
    /// The member's term.
    pub term: u64,
    /// The primary that it knows.
    pub primary: Option<u64>,
    /// Whether the member takes writes: primary, and everything before its term is applied.
    pub writable: bool,
    /// Counts the changes of role and configuration.
    pub topology_version: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_still_to_be_taken_back_is_not_committed() {
        let at = |index| LogPosition::new(7, index);
        let known = HardState { term: 6, vote: None, commit: 90 };
        let wanted = HardState { term: 7, vote: Some(1), commit: 200 };
        let kept = |rollback, install| {
            Persist { seq: 1, install, rollback, ..Persist::default() }.to_keep(wanted, &known)
        };
        assert_eq!(kept(None, None), wanted);
        let rollback = Rollback { keep: at(100), last: at(120) };
        assert_eq!(kept(Some(rollback), None), HardState { commit: 100, ..wanted });
        assert_eq!(kept(None, Some(at(300))), HardState { commit: 90, ..wanted });
    }
}
