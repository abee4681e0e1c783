//! What orders commits where a node is one of several.
//!
//! Alone, the pipeline decides by itself what the next entry of the log is. As a member of a replica set it proposes:
//! the [`Sequencer`] (the replication core with its driver, above this crate) says whether this member may, and gives
//! back units of writing in the one order that the log must have. What others have proposed comes the same way. Units
//! are applied with the pipeline held, so the log has one writer.

use bytes::Bytes;
use sheaf_errors::Result;

use crate::oplog::LogEntry;

/// One unit of writing.
#[derive(Clone, Debug)]
pub struct LogUnit {
    /// Its number; units come in ascending order.
    pub seq: u64,
    /// Entries to be appended and applied; there may be none.
    pub entries: Vec<LogEntry>,
}

/// Gives the entry its term and times: `(term, highest cluster time known)` to `(time of the last operation, payload)`.
pub type Seal<'s> = &'s mut dyn FnMut(u64, u64) -> (u64, Bytes);

/// Orders the commits of a member of a replica set. Everything here is called with the pipeline held, except
/// [`Sequencer::durable`].
pub trait Sequencer: Send + Sync {
    /// Makes a commit group the next entry, and gives the number of its unit, which [`Sequencer::take`] will give.
    ///
    /// Errors: `NotWritablePrimary`.
    fn propose(&self, seal: Seal<'_>) -> Result<u64>;

    /// The next unit to append and apply. `None`: there is none now.
    ///
    /// Errors: this member stops writing (it is about to be restarted).
    fn take(&self) -> Result<Option<LogUnit>>;

    /// Everything up to this unit is in the log, applied and visible.
    fn acknowledge(&self, seq: u64);

    /// A unit that was taken could not be applied; it is the next one again. What of its entries is in the log stays.
    fn put_back(&self, unit: LogUnit);

    /// The log has no room for a unit that was taken. It is tried again.
    fn refused(&self) {}

    /// Everything up to this unit survives a crash of the machine.
    fn durable(&self, seq: u64);

    /// Whether [`Sequencer::propose`] would be of use now.
    fn takes_writes(&self) -> bool;

    /// Whether there is no other member at all: nobody takes over where this one cannot go on.
    fn is_alone(&self) -> bool {
        false
    }

    /// This member's disk soon has no room for what adds to the data, or has some again. Returns whether another member, which has room, is about to
    /// take the lead.
    fn short_of_room(&self, _short: bool) -> bool {
        false
    }

    /// This member's disk has so little room that it would soon be short as a primary, or has more again.
    fn little_room(&self, _little: bool) {}

    /// Whether what adds to the data would not get to a majority of the set, for want of room on the disks of other members.
    fn others_lack_room(&self) -> bool {
        false
    }

    /// How long a commit is to be held back before it begins, because the set is far behind.
    fn pause(&self) -> std::time::Duration {
        std::time::Duration::ZERO
    }

    /// Index of the newest entry that a majority has and that is applied here.
    fn commit_index(&self) -> u64;

    /// Entries up to here may be gone from the log now.
    fn compacted(&self, index: u64);
}

/// Whether changes of this collection stay on this member: neither the log nor other members see them.
pub(crate) fn stays_here(namespace: &str) -> bool {
    namespace.starts_with("local.")
        || namespace.split_once('.').is_some_and(|(_, name)| name == "system.profile")
}
