//! The one log: journal, oplog and Raft log at once.
//!
//! A [`Log`] is a folder of append-only segment files. An entry is `(term, index, time, payload)` with
//! a CRC-32C; what the payload means is not known here. Appending is one `write` for a whole entry, so
//! an entry survives a crash of the process as soon as [`Log::append`] returns, and a crash of the
//! machine once [`Log::sync`] has returned after it.
//!
//! Where every entry is synced by itself, the file is filled with zeros ahead of the entries ([`Log::make_room`]): then a
//! sync writes a page that is there already, and no new length of the file. Segments that are not needed any more give their
//! files to new ones, unless somebody has given them another name. What is behind the last entry is zeros, torn, or entries of another segment, which the salt of this one does not fit.
//!
//! Recovery ([`Log::open`]) cuts a torn tail at the last whole entry. Telling a torn tail from damage
//! is possible because every entry also says up to which index the log was durable when it was
//! written: an unreadable entry that a later one calls durable is damage, and is reported.
//!
//! ```text
//! segment  = header(32) entry* zero*                 file name: <first index, 20 digits>.log
//! header   = "SHEAFLOG" version:u32 crc:u32 first_index:u64 salt:u64
//! entry    = length:u32 crc:u32 term:u64 index:u64 time:u64 behind:u32 check:u32 payload[length]
//! ```
//!
//! `behind` is how far the log was durable, counted back from the index. `check` covers the header and the segment's salt (from
//! version 3 on the header's with `first_index` in it), which nobody outside knows: no bytes that a client has sent can pass for an
//! entry. Segments of version 1 have neither (`0:u64`, `durable:u64`); they are read, and go on as they began. Version 4 says that the
//! file was another segment's before.

#![forbid(unsafe_code)]

mod damage;
mod detached;
mod entry;
mod files;
mod lock;
mod log;
mod marks;
mod position;
mod rate;
mod reader;
mod recover;
mod segment;
mod shared;
mod spares;
#[cfg(test)]
mod tests;
mod write;

pub use damage::{Damage, Kept, Mending};
pub use detached::SegmentFile;
pub use entry::{Entry, HEADER_LEN};
pub use files::ReadFiles;
pub use log::{Log, Options, Recovered, Stats};
pub use position::{LogPosition, OpTime, Place};
pub use reader::Reader;

/// What can go wrong with the log.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system said no; `full` tells a full disk from the rest.
    #[error("log {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// Bytes that had been durable are not what was written.
    #[error("{0}")]
    Damaged(Damage),
    /// The segment format is one that this version does not know.
    #[error("log segment {segment} has format version {version}, newer than this program knows")]
    TooNew {
        /// File name of the segment.
        segment: String,
        /// The version found.
        version: u32,
    },
    /// The entry asked for has been removed already; the oldest one left is named.
    #[error("log entry is gone; the oldest is {first}")]
    Gone {
        /// Index of the oldest entry.
        first: u64,
    },
    /// A sync failed earlier, so it is unknown what is on disk: no further appends.
    #[error("the log accepts no writes after a failed sync or write")]
    Failed,
}

impl Error {
    pub(crate) fn io(what: impl Into<String>, source: std::io::Error) -> Self {
        Error::Io { what: what.into(), source }
    }

    pub(crate) fn lacks_descriptors(&self) -> bool {
        matches!(self, Error::Io { source, .. } if files::lacks_descriptors(source))
    }

    /// Whether the disk (or quota) is full.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Error::Io { source, .. }
            if matches!(source.raw_os_error(), Some(libc::ENOSPC) | Some(libc::EDQUOT)))
    }
}

/// The result of log operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;
