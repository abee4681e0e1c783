//! Entries of the log, as those who order, send and apply them have them.

use bytes::Bytes;
use sheaf_errors::{Code, Error};

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Raft term.
    pub term: u64,
    /// 1, 2, 3, ... without gaps.
    pub index: u64,
    /// Cluster time of its last operation.
    pub time: u64,
    /// Oplog documents; empty for the entry that begins a term.
    pub payload: Bytes,
}

impl From<sheaf_log::Entry> for LogEntry {
    fn from(entry: sheaf_log::Entry) -> LogEntry {
        let sheaf_log::Entry { at, payload } = entry;
        LogEntry { term: at.term, index: at.index, time: at.time, payload: payload.into() }
    }
}

/// The error of a log that cannot be read.
pub(crate) fn log_error(error: sheaf_log::Error) -> Error {
    let code = match &error {
        error if error.is_disk_full() => Code::OUT_OF_DISK_SPACE,
        sheaf_log::Error::Io { .. } => Code::FILE_STREAM_FAILED,
        _ => Code::CHECKSUM_MISMATCH,
    };
    Error::new(code, error.to_string())
}
