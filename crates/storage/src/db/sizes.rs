//! How large RocksDB's files and levels are. On a small disk they are smaller, so that a compaction comes to its end within what is kept of it
//! (`flush/disk.rs`): what it reads goes when all that it writes is there, and only then deletions give room.

use crate::flush::disk::kept_on;
use crate::options::Options;

/// Parts of what is kept: a file, with some ten that it overlaps on the next level, is a compaction.
const FILE_PART: u64 = 16;
const COMPACTION_PART: u64 = 2;

const FILE_BYTES_MIN: u64 = 1 << 20;

/// A file of large documents, all of which must be wanted no more, or copied, before it goes.
const BLOB_FILE_PART: u64 = 4;
const BLOB_FILE_BYTES_MAX: u64 = 256 << 20;

/// Bytes of a table file, of the first level below level 0, of what one compaction takes in, and of a file of large documents.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub file: u64,
    pub level: u64,
    pub compaction: u64,
    pub blob_file: u64,
}

impl Sizes {
    /// On the disk where the database is.
    pub fn of(options: &Options) -> Sizes {
        Sizes::with(kept_on(&options.path), options.memtable_bytes(), options.log_bytes())
    }

    fn with(kept: u64, memtable: u64, log: u64) -> Sizes {
        let file = memtable.clamp(16 << 20, 64 << 20).min(kept / FILE_PART).max(FILE_BYTES_MIN);
        let compaction = (kept / COMPACTION_PART).max(4 * file);
        let level = (log.max(64 << 20) * 2).min(compaction);
        Sizes { file, level, compaction, blob_file: BLOB_FILE_BYTES_MAX.min(kept / BLOB_FILE_PART) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    #[test]
    fn a_small_disk_has_small_files() {
        let on = |kept: u64| {
            let Sizes { file, level, compaction, blob_file } = Sizes::with(kept * MB, 64 * MB, 256 * MB);
            [file, level, compaction, blob_file].map(|bytes| bytes / MB)
        };
        assert_eq!(on(1024), [64, 512, 512, 256]);
        assert_eq!(on(160), [10, 80, 80, 40]);
        assert_eq!(on(8), [1, 4, 4, 2]);
    }
}
