//! The end of RocksDB's MANIFEST after a power failure.
//!
//! RocksDB syncs the file after each change of its files, and counts on an append that did not come so far being cut short. Where
//! the file kept its length but not all of the bytes, it takes the torn record for damage and does not open. What the record
//! would have said was not done: nothing has been built on it, and the log has everything since the flush before. So it is cut.
//! Where it was damage after all, RocksDB misses files, or the log does not reach back far enough; both end the start.

use std::fs::{self, OpenOptions};
use std::path::Path;

use sheaf_errors::{Code, Error, Result};

/// Records are laid out in blocks; the rest of a block that cannot hold a header is filled up.
const BLOCK: usize = 32 << 10;
/// Checksum, length, type.
const HEADER: usize = 7;

/// Cuts a torn record off the end of the current MANIFEST in RocksDB's folder.
pub(crate) fn cut_torn_end(folder: &Path) -> Result<()> {
    let Ok(current) = fs::read_to_string(folder.join("CURRENT")) else { return Ok(()) };
    let path = folder.join(current.trim_end());
    // What is not there RocksDB says better.
    let Ok(bytes) = fs::read(&path) else { return Ok(()) };
    let Some(end) = torn_at(&bytes) else { return Ok(()) };
    let cut = OpenOptions::new().write(true).open(&path).and_then(|file| {
        file.set_len(end as u64)?;
        file.sync_all()
    });
    cut.map_err(|error| {
        Error::new(Code::FILE_STREAM_FAILED, format!("cutting {} failed: {error}", path.display()))
    })?;
    tracing::warn!(bytes = bytes.len() - end, "cut an unfinished record off the end of the MANIFEST");
    Ok(())
}

/// Where the torn record begins, if the last block has one and everything before is whole.
fn torn_at(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    // Where the record began that the piece at `at` belongs to.
    let mut began = 0;
    while at + HEADER <= bytes.len() {
        let left = BLOCK - at % BLOCK;
        if left < HEADER {
            at += left;
            continue;
        }
        let header = &bytes[at..at + HEADER];
        let length = usize::from(u16::from_le_bytes([header[4], header[5]]));
        let kind = header[6];
        if matches!(kind, 1 | 2) {
            began = at;
        }
        let end = at + HEADER + length;
        if end > bytes.len() && end <= at + left {
            // Cut short: RocksDB knows what that is.
            return None;
        }
        let stored = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let whole = end <= at + left && masked(&bytes[at + HEADER - 1..end]) == stored;
        if !whole {
            let torn = if matches!(kind, 3 | 4) { began } else { at };
            // Zeros as a header are the end for RocksDB, unless they stand within a record.
            let blank = kind == 0 && length == 0 && torn == at;
            // A block that follows was begun after the record was whole.
            let last_block = bytes.len() <= at - at % BLOCK + BLOCK;
            return (last_block && !blank).then_some(torn);
        }
        at = end;
    }
    None
}

/// The checksum as it is stored.
fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut piece = vec![kind];
        piece.extend_from_slice(payload);
        let mut bytes = masked(&piece).to_le_bytes().to_vec();
        bytes.extend_from_slice(&(payload.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&piece);
        bytes
    }

    #[test]
    fn only_the_last_record_can_be_torn() {
        let mut bytes = [record(1, b"one"), record(1, b"two, which is longer"), record(1, b"three")].concat();
        assert_eq!(torn_at(&bytes), None);
        let third = record(1, b"one").len() + record(1, b"two, which is longer").len();
        // Cut short, or zeros from a header on: nothing to do.
        assert_eq!(torn_at(&bytes[..bytes.len() - 3]), None);
        let blank = [&bytes[..third], &[0; 12][..]].concat();
        assert_eq!(torn_at(&blank), None);
        // Zeros within.
        let len = bytes.len();
        bytes[len - 2..].fill(0);
        assert_eq!(torn_at(&bytes), Some(third));
        // In a block that is not the last one it is damage.
        bytes.resize(BLOCK, 0);
        assert_eq!(torn_at(&bytes), Some(third));
        bytes.extend(record(1, b"four"));
        assert_eq!(torn_at(&bytes), None);
    }

    #[test]
    fn a_record_in_pieces_is_cut_as_a_whole() {
        let filler = record(1, &vec![7; BLOCK - 2 * HEADER - 100]);
        let first = record(2, &[1; 100]);
        let mut bytes = [&filler[..], &first, &record(4, &[2; 50])].concat();
        assert_eq!(bytes.len(), BLOCK + HEADER + 50);
        assert_eq!(torn_at(&bytes), None);
        let len = bytes.len();
        bytes[len - 10..].fill(0);
        assert_eq!(torn_at(&bytes), Some(filler.len()));
    }
}
