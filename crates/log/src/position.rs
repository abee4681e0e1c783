//! Positions in the log, for all who name one: the log itself, storage, and the replication core.

/// Which entry: Raft's term and index.
///
/// Two logs that hold an entry of the same term and index are equal up to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition {
    /// The election term in which the entry was made.
    pub term: u64,
    /// The entry's index, 1, 2, 3, ... without gaps; 0 is the position before the first entry.
    pub index: u64,
}

impl LogPosition {
    /// The position of this term and index.
    pub fn new(term: u64, index: u64) -> LogPosition {
        LogPosition { term, index }
    }

    /// The position with the cluster time of its entry.
    pub fn at_time(self, time: u64) -> OpTime {
        OpTime { term: self.term, index: self.index, time }
    }
}

/// A position with its cluster time, as clients see it: MongoDB's OpTime, and the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpTime {
    /// Raft term.
    pub term: u64,
    /// 1, 2, 3, ... without gaps.
    pub index: u64,
    /// Cluster time of the entry's last operation (`operationTime`).
    pub time: u64,
}

impl OpTime {
    /// The position without its time.
    pub fn position(self) -> LogPosition {
        LogPosition { term: self.term, index: self.index }
    }
}

/// Where bytes are in the log's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the first entry of the segment.
    pub segment: u64,
    /// Bytes from the beginning of its file.
    pub offset: u64,
}
