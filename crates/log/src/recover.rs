//! What start-up does with the segments: find the last whole entry, cut what was torn behind it,
//! refuse what is damaged.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::entry::{HEADER_LEN, Header, MAX_PAYLOAD, Position};
use crate::segment::{SEGMENT_HEADER_LEN, Segment};
use crate::{Error, Result};

/// Reads a segment piece by piece, so that a scan needs little memory whatever the segment's size.
pub(crate) struct Scanner {
    file: File,
    bytes: u64,
    pub offset: u64,
    buffer: Vec<u8>,
    buffer_at: u64,
}

const CHUNK: usize = 1 << 20;

impl Scanner {
    pub fn new(file: File, bytes: u64) -> Scanner {
        Scanner { file, bytes, offset: SEGMENT_HEADER_LEN, buffer: Vec::new(), buffer_at: 0 }
    }

    /// The segment has grown (or is now known to end) here.
    pub fn set_end(&mut self, bytes: u64) {
        self.bytes = bytes;
    }

    /// `len` bytes at `at`, or `None` where the file ends earlier.
    pub fn bytes_at(&mut self, at: u64, len: usize) -> Result<Option<&[u8]>> {
        if at + len as u64 > self.bytes {
            return Ok(None);
        }
        let within = at >= self.buffer_at && at + len as u64 <= self.buffer_at + self.buffer.len() as u64;
        if !within {
            let want = len.max(CHUNK).min((self.bytes - at) as usize);
            self.buffer.resize(want, 0);
            self.file.read_exact_at(&mut self.buffer, at).map_err(|e| Error::io("reading a segment", e))?;
            self.buffer_at = at;
        }
        let from = (at - self.buffer_at) as usize;
        Ok(Some(&self.buffer[from..from + len]))
    }

    /// The whole entry at `at`, if there is one, and where it ends.
    pub fn entry_at(&mut self, at: u64) -> Result<Option<(Header, u64)>> {
        let Some(head) = self.bytes_at(at, HEADER_LEN)?.and_then(|b| b.first_chunk::<HEADER_LEN>().copied())
        else {
            return Ok(None);
        };
        let header = Header::decode(&head);
        if header.length as usize > MAX_PAYLOAD {
            return Ok(None);
        }
        let Some(payload) = self.bytes_at(at + HEADER_LEN as u64, header.length as usize)? else {
            return Ok(None);
        };
        Ok(header.fits(&head, payload).then(|| (header, at + HEADER_LEN as u64 + u64::from(header.length))))
    }

    /// Whether only zeros follow from here on.
    fn only_zeros(&mut self, from: u64) -> Result<bool> {
        let mut at = from;
        while at < self.bytes {
            let len = CHUNK.min((self.bytes - at) as usize);
            if !self.bytes_at(at, len)?.is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0)) {
                return Ok(false);
            }
            at += len as u64;
        }
        Ok(true)
    }

    /// Highest `durable` that any whole entry at or after `from` claims, of entries after `index`.
    /// Entries are searched at every byte, since after a damaged one nobody knows where the next starts.
    fn durable_claim(&mut self, from: u64, index: u64) -> Result<u64> {
        let mut claim = 0;
        let mut at = from;
        while let Some(head) =
            self.bytes_at(at, HEADER_LEN)?.and_then(|b| b.first_chunk::<HEADER_LEN>().copied())
        {
            let header = Header::decode(&head);
            let plausible = header.at.index > index
                && header.at.index - index < 1 << 32
                && header.durable < header.at.index
                && at + HEADER_LEN as u64 + u64::from(header.length) <= self.bytes;
            if plausible && let Some((header, end)) = self.entry_at(at)? {
                claim = claim.max(header.durable);
                at = end;
            } else {
                at += 1;
            }
        }
        Ok(claim)
    }
}

/// The end of the log as recovery found it.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    pub last: Position,
    /// Bytes that were cut off.
    pub cut_bytes: u64,
}

/// Scans the segments from the one that holds `applied + 1` on, cuts a torn tail, removes segments
/// behind it, and leaves each segment's `bytes` at its last whole entry. `torn` are those from the first on whose header is
/// not whole.
pub(crate) fn recover(segments: &mut Vec<Segment>, torn: Vec<Segment>, applied: Position) -> Result<Tail> {
    // Segments wholly at or below what the storage engine has are not read: start-up must not cost
    // what the whole oplog weighs.
    let start = segments.iter().rposition(|segment| segment.first_index <= applied.index + 1).unwrap_or(0);
    let mut tail = Tail { last: applied, cut_bytes: 0 };
    if let Some(first) = segments.get(start) {
        tail.last.index = first.first_index.saturating_sub(1);
    }
    let whole = segments.len();
    segments.extend(torn);
    for at in start..segments.len() {
        if at > start && (segments[at].first_index != tail.last.index + 1 || at >= whole) {
            // The end of the segment before is lost. That may be, if nothing of it had been synced.
            let mut scanner = Scanner::new(segments[at - 1].open(false)?, segments[at - 1].bytes);
            scanner.offset = segments[at - 1].bytes;
            cut(segments, at - 1, &mut scanner, applied, &mut tail)?;
            break;
        }
        if segments[at].first_index != tail.last.index + 1 {
            return Err(Error::Damaged {
                segment: segments[at].name(),
                offset: 0,
                what: format!("segment follows index {}, so entries are missing", tail.last.index),
            });
        }
        let mut scanner = Scanner::new(segments[at].open(false)?, segments[at].bytes);
        loop {
            match scanner.entry_at(scanner.offset)? {
                Some((header, end)) if header.at.index == tail.last.index + 1 => {
                    tail.last = header.at;
                    scanner.offset = end;
                }
                _ => break,
            }
        }
        if scanner.only_zeros(scanner.offset)? {
            segments[at].bytes = scanner.offset;
        } else {
            cut(segments, at, &mut scanner, applied, &mut tail)?;
            break;
        }
    }
    if tail.last.index < applied.index {
        tail.last = applied;
    } else if tail.last.index == applied.index {
        tail.last.time = tail.last.time.max(applied.time);
        tail.last.term = tail.last.term.max(applied.term);
    }
    Ok(tail)
}

fn cut(
    segments: &mut Vec<Segment>,
    at: usize,
    scanner: &mut Scanner,
    applied: Position,
    tail: &mut Tail,
) -> Result<()> {
    let offset = scanner.offset;
    let bad = tail.last.index + 1;
    let mut claim = applied.index.max(scanner.durable_claim(offset, tail.last.index)?);
    for later in &segments[at + 1..] {
        let mut scanner = Scanner::new(later.open(false)?, later.bytes);
        claim = claim.max(scanner.durable_claim(SEGMENT_HEADER_LEN, tail.last.index)?);
    }
    if claim >= bad {
        return Err(Error::Damaged {
            segment: segments[at].name(),
            offset,
            what: format!("entry {bad} had been durable but is not readable (checksum or length)"),
        });
    }
    for later in segments.drain(at + 1..) {
        tail.cut_bytes += later.bytes;
        fs::remove_file(&later.path).map_err(|e| Error::io("removing a segment behind a torn tail", e))?;
    }
    let segment = &mut segments[at];
    tail.cut_bytes += segment.bytes - offset;
    let file = segment.open(true)?;
    file.set_len(offset).and_then(|()| file.sync_all()).map_err(|e| Error::io("cutting a torn tail", e))?;
    segment.bytes = offset;
    Ok(())
}
