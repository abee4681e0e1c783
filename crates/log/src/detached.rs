//! Segments by their files alone: those that somebody keeps under a name of his own, when the log may not have them any more.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::damage::Damage;
use crate::entry::{HEADER_LEN, Salt};
use crate::position::OpTime;
use crate::recover::{Scanner, Source};
use crate::segment::{SEGMENT_HEADER_LEN, Segment, check_header, salt_of};
use crate::{Error, Result};

/// Gives the entries of a segment's file one after another, up to the first that is not readable: the end of what was written, or damage. Who
/// knows how far the file was written can tell which.
pub struct SegmentFile {
    scanner: Scanner,
}

impl SegmentFile {
    /// Opens a file that is, or was, a segment.
    ///
    /// Errors: `Damaged` if it begins with anything else.
    pub fn open(path: &Path) -> Result<SegmentFile> {
        let first_index = first_index_of(path)?;
        let bytes = fs::metadata(path).map_err(|e| opening(path, e))?.len();
        let mut segment = Segment::new(path.to_owned(), first_index, bytes, 1, Salt(0));
        match check_header(&segment)? {
            Ok((version, base)) => segment.salt = salt_of(version, first_index, base),
            Err(what) => return Err(Damage::of_header(&segment, what)),
        }
        let scanner = Scanner::new(Source::File(segment.open(false)?), bytes, segment.salt);
        Ok(SegmentFile { scanner })
    }

    /// How many bytes of the file, from its beginning, are whole entries that were given.
    pub fn offset(&self) -> u64 {
        self.scanner.offset
    }

    /// The next entry: its position, where its payload is in the file, and the payload.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<(OpTime, u64, &[u8])>> {
        let at = self.scanner.offset;
        let Some((header, end)) = self.scanner.entry_at(at)? else { return Ok(None) };
        self.scanner.offset = end;
        let payload = at + HEADER_LEN as u64;
        let bytes = self.scanner.bytes_at(payload, header.length as usize)?;
        Ok(bytes.map(|bytes| (header.at, payload, bytes)))
    }
}

/// What a segment's header says that it begins with.
fn first_index_of(path: &Path) -> Result<u64> {
    let mut head = [0; SEGMENT_HEADER_LEN as usize];
    let file = File::open(path).map_err(|e| opening(path, e))?;
    file.read_exact_at(&mut head, 0).map_err(|e| opening(path, e))?;
    Ok(u64::from_le_bytes(std::array::from_fn(|at| head[16 + at])))
}

fn opening(path: &Path, error: std::io::Error) -> Error {
    Error::io(format!("opening {}", path.display()), error)
}
