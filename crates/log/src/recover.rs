//! What start-up does with the segments: find the last whole entry, cut what was torn behind it,
//! refuse what is damaged.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::damage::Damage;
use crate::entry::{HEADER_LEN, Header, Salt};
use crate::position::OpTime;
use crate::segment::{MAGIC, SEGMENT_HEADER_LEN, Segment, VERSION, check_header, salt_of};
use crate::shared::Shared;
use crate::{Error, Result};

/// Where a segment's bytes come from.
pub(crate) enum Source {
    /// A file of its own: recovery, where nobody else is there yet.
    File(File),
    /// The open log, which knows the segment by its number.
    Log(Arc<Shared>, u64),
}

impl Source {
    fn read(&self, bytes: &mut [u8], at: u64) -> Result<()> {
        match self {
            Source::File(file) => {
                file.read_exact_at(bytes, at).map_err(|e| Error::io("reading a segment", e))
            }
            Source::Log(log, id) => log.read(*id, bytes, at),
        }
    }
}

/// Reads a segment piece by piece, so that a scan needs little memory whatever the segment's size.
pub(crate) struct Scanner {
    source: Source,
    bytes: u64,
    salt: Salt,
    /// Bytes of payloads whose checksums were computed.
    pub checksummed: u64,
    /// Bytes read so far.
    pub read: u64,
    pub offset: u64,
    buffer: Vec<u8>,
    /// What of the buffer has been read, and where.
    filled: usize,
    buffer_at: u64,
    /// So much is read at once: more each time, since whoever looks for one entry does not want a megabyte.
    chunk: usize,
}

const CHUNK: usize = 1 << 20;
const FIRST_CHUNK: usize = 64 << 10;

/// The largest buffer of one that reads small entries. To make a new one for each of several large entries costs more than to read them.
const KEPT_BYTES: usize = 4 << 20;

/// The largest buffer of one that rests.
const RESTING_BYTES: usize = 64 << 10;

/// In segments without salt, so many bytes of what looks like entries and is none are checksummed at least.
const FORGED_BYTES: u64 = 16 << 20;
/// No more entries than this stand behind one that is not readable.
const AHEAD_MAX: u64 = 1 << 32;

impl Scanner {
    pub fn new(source: Source, bytes: u64, salt: Salt) -> Scanner {
        Scanner {
            source,
            bytes,
            salt,
            checksummed: 0,
            read: 0,
            offset: SEGMENT_HEADER_LEN,
            buffer: Vec::new(),
            filled: 0,
            buffer_at: 0,
            chunk: FIRST_CHUNK,
        }
    }

    /// Reads what is known of a segment.
    pub fn of(segment: &Segment) -> Result<Scanner> {
        Ok(Scanner::new(Source::File(segment.open(false)?), segment.bytes, segment.salt))
    }

    /// Nothing more is read for a while: a large buffer is given back.
    pub fn rest(&mut self) {
        if self.buffer.capacity() > RESTING_BYTES {
            self.buffer = Vec::new();
            self.filled = 0;
        }
        self.chunk = FIRST_CHUNK;
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
        let within = at >= self.buffer_at && at + len as u64 <= self.buffer_at + self.filled as u64;
        if !within {
            let want = len.max(self.chunk).min((self.bytes - at) as usize);
            // Behind a large entry there is most likely another, of which only the head is wanted first: what is read with that is read
            // once more with the rest.
            self.chunk = if len > CHUNK { FIRST_CHUNK } else { (2 * self.chunk).min(CHUNK) };
            // One that fails leaves nothing that could be taken for the segment's bytes.
            self.filled = 0;
            if self.buffer.capacity() > KEPT_BYTES && want <= CHUNK {
                self.buffer = Vec::new();
            }
            if self.buffer.len() < want {
                self.buffer.resize(want, 0);
            }
            self.source.read(&mut self.buffer[..want], at)?;
            self.read += want as u64;
            self.filled = want;
            self.buffer_at = at;
        }
        let from = (at - self.buffer_at) as usize;
        Ok(Some(&self.buffer[from..from + len]))
    }

    /// The bytes of a header at `at` (`None`: the file ends before), and what they say, if they are one.
    pub fn head_at(&mut self, at: u64) -> Result<Option<([u8; HEADER_LEN], Option<Header>)>> {
        let salt = self.salt;
        let bytes = self.bytes_at(at, HEADER_LEN)?.and_then(|b| b.first_chunk::<HEADER_LEN>().copied());
        Ok(bytes.map(|bytes| (bytes, Header::decode(&bytes, salt))))
    }

    /// The whole entry at `at`, if there is one, and where it ends.
    pub fn entry_at(&mut self, at: u64) -> Result<Option<(Header, u64)>> {
        let Some((head, Some(header))) = self.head_at(at)? else { return Ok(None) };
        let (salt, length) = (self.salt, header.length as usize);
        let Some(payload) = self.bytes_at(at + HEADER_LEN as u64, length)? else {
            return Ok(None);
        };
        let fits = header.fits(&head, payload, salt);
        self.checksummed += length as u64;
        Ok(fits.then(|| (header, at + HEADER_LEN as u64 + u64::from(header.length))))
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

    /// Whether a whole entry at or behind `from` says that the log was durable beyond `index` when it was written.
    /// Entries are searched at every byte, since after a damaged one nobody knows where the next starts. What is searched may
    /// be a document's bytes, which somebody has chosen: before a checksum is computed, all must be right that can be seen
    /// without it, and checksums of what turned out to be none are not computed again and again.
    fn claims_more(&mut self, from: u64, index: u64) -> Result<bool> {
        let mut at = from;
        let begun = self.checksummed;
        let budget = FORGED_BYTES + (self.bytes.saturating_sub(from)).saturating_mul(2);
        while let Some(next) = self.likely_head(at, index + 2)? {
            at = next;
            let Some((_, header)) = self.head_at(at)? else { break };
            let candidate = header.filter(|header| {
                (index + 2..index.saturating_add(AHEAD_MAX)).contains(&header.at.index)
                    && (index + 1..header.at.index).contains(&header.durable)
            });
            let Some(header) = candidate else {
                at += 1;
                continue;
            };
            let end = at + HEADER_LEN as u64 + u64::from(header.length);
            // Headers with checks of their own are entries' beyond doubt. Others must be followed by one, or by nothing.
            let believed =
                self.salt.checks() || (self.checksummed - begun < budget && self.goes_on(&header, end)?);
            if believed && self.entry_at(at)?.is_some() {
                return Ok(true);
            }
            at += 1;
        }
        Ok(false)
    }

    /// The next whole entry from `at` on whose index is `least` or above, searched at every byte: where it is, its header, and where it ends.
    /// None is found in segments without salt, where a document may look like one.
    pub fn next_entry(&mut self, mut at: u64, least: u64) -> Result<Option<(u64, Header, u64)>> {
        while self.salt.checks()
            && let Some(next) = self.likely_head(at, least)?
        {
            if let Some((header, end)) = self.entry_at(next)? {
                return Ok(Some((next, header, end)));
            }
            at = next + 1;
        }
        Ok(None)
    }

    /// The first place from `at` on where a header can stand whose index is `least` or somewhat above. Most places are passed over
    /// here, by two comparisons.
    fn likely_head(&mut self, mut at: u64, least: u64) -> Result<Option<u64>> {
        const INDEX: usize = 16;
        while at + (HEADER_LEN as u64) <= self.bytes {
            // What has been read is looked through to its end: a place that was none has the next one a byte behind it.
            let there =
                (self.buffer_at + self.filled as u64).checked_sub(at).filter(|_| at >= self.buffer_at);
            let len = match there {
                Some(there) if there >= HEADER_LEN as u64 => there as usize,
                _ => CHUNK.min((self.bytes - at) as usize),
            };
            let Some(bytes) = self.bytes_at(at, len)? else { return Ok(None) };
            let places = len + 1 - HEADER_LEN;
            if let Some(found) = first_near(&bytes[INDEX..][..places + 7], least) {
                return Ok(Some(at + found as u64));
            }
            at += places as u64;
        }
        Ok(None)
    }

    /// Whether the entry after `header` can stand at `end`, or the log ends there.
    fn goes_on(&mut self, header: &Header, end: u64) -> Result<bool> {
        if end > self.bytes {
            return Ok(false);
        }
        let Some((bytes, next)) = self.head_at(end)? else { return Ok(true) };
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(true);
        }
        Ok(next.is_some_and(|next| {
            next.at.index == header.at.index + 1
                && next.at.term >= header.at.term
                && next.at.time >= header.at.time
                && next.durable >= header.durable
        }))
    }
}

/// So many places are looked at together.
const TOGETHER: usize = 64;

/// Where in these bytes the first number begins that is `least` or somewhat above.
fn first_near(bytes: &[u8], least: u64) -> Option<usize> {
    let places = bytes.len().saturating_sub(7);
    let mut at = 0;
    while at < places {
        let end = (at + TOGETHER).min(places);
        let none = bytes[at..].first_chunk().is_some_and(|stretch| none_near(stretch, least));
        if !none && let Some(found) = (at..end).find(|from| is_near(&bytes[*from..], least)) {
            return Some(found);
        }
        at = end;
    }
    None
}

/// Whether the number that begins these bytes is `least` or somewhat above.
fn is_near(bytes: &[u8], least: u64) -> bool {
    bytes.first_chunk().is_some_and(|number| u64::from_le_bytes(*number).wrapping_sub(least) < AHEAD_MAX)
}

/// Whether no number that begins in the first of these bytes can be near `least`: the upper halves of those that are have one of two values.
/// (A start looks so through tens of megabytes. A loop over bytes without a way out is one for wide registers.)
fn none_near(bytes: &[u8; TOGETHER + 7], least: u64) -> bool {
    let upper = (least >> 32) as u32;
    let [a, b, c, d] = upper.to_le_bytes();
    let [e, f, g, h] = upper.wrapping_add(1).to_le_bytes();
    let mut any = 0u8;
    for at in 0..TOGETHER {
        let (w, x, y, z) = (bytes[at + 4], bytes[at + 5], bytes[at + 6], bytes[at + 7]);
        let first = (w ^ a) | (x ^ b) | (y ^ c) | (z ^ d);
        let second = (w ^ e) | (x ^ f) | (y ^ g) | (z ^ h);
        any |= u8::from(first == 0) | u8::from(second == 0);
    }
    any == 0
}

/// The end of the log as recovery found it.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    pub last: OpTime,
    /// Bytes that were cut off.
    pub cut_bytes: u64,
    /// Bytes of payloads that were checksummed in the segment that was cut.
    #[cfg_attr(not(test), allow(dead_code))]
    pub checksummed: u64,
    /// Bytes that were read of it.
    #[cfg_attr(not(test), allow(dead_code))]
    pub read: u64,
}

/// Scans the segments from the one that holds `applied + 1` on, cuts a torn tail, removes segments
/// behind it, and leaves each segment's `bytes` at its last whole entry. `torn` are those from the first on whose header is
/// not whole. Without any segment the log begins behind `applied`.
pub(crate) fn recover(segments: &mut Vec<Segment>, torn: Vec<Segment>, applied: OpTime) -> Result<Tail> {
    match (segments.as_slice(), torn.as_slice()) {
        ([], [alone]) => {
            remove_unfinished(alone, applied)?;
            return Ok(Tail { last: applied, ..Tail::default() });
        }
        ([], [first, ..]) => return Err(Damage::of_header(first, "the segment's header is not readable")),
        _ => {}
    }
    // Segments wholly at or below what the storage engine has are not read: start-up must not cost
    // what the whole oplog weighs.
    let start = segments.iter().rposition(|segment| segment.first_index <= applied.index + 1).unwrap_or(0);
    let mut tail = Tail { last: applied, ..Tail::default() };
    if let Some(first) = segments.get(start) {
        tail.last.index = first.first_index.saturating_sub(1);
    }
    let whole = segments.len();
    segments.extend(torn);
    for at in start..segments.len() {
        if at > start && (segments[at].first_index != tail.last.index + 1 || at >= whole) {
            // The end of the segment before is lost. That may be, if nothing of it had been synced.
            let mut scanner = Scanner::of(&segments[at - 1])?;
            scanner.offset = segments[at - 1].bytes;
            cut(segments, at - 1, &mut scanner, applied, &mut tail)?;
            break;
        }
        if segments[at].first_index != tail.last.index + 1 {
            let what = format!("the segment follows entry {}, so entries are missing", tail.last.index);
            return Err(Damage::of_header(&segments[at], what));
        }
        let mut scanner = Scanner::of(&segments[at])?;
        loop {
            match scanner.entry_at(scanner.offset)? {
                Some((header, end)) if header.at.index == tail.last.index + 1 => {
                    tail.last = header.at;
                    scanner.offset = end;
                }
                _ => break,
            }
        }
        // What is behind the entries of a file that was another segment's before is that one's. It goes when the segment is full, which
        // may have been lost.
        let is_followed = at + 1 < whole && segments[at + 1].first_index == tail.last.index + 1;
        if (segments[at].is_recycled() && is_followed) || scanner.only_zeros(scanner.offset)? {
            segments[at].bytes = scanner.offset;
        } else {
            cut(segments, at, &mut scanner, applied, &mut tail)?;
            break;
        }
    }
    assert!(
        segments.windows(2).all(|pair| pair[0].first_index < pair[1].first_index),
        "segments are in the order of their entries"
    );
    if tail.last.index < applied.index {
        if let Some(last) = segments.last() {
            // Storage has nothing that was not durable here before.
            return Err(Error::Damaged(Damage {
                segment: last.name(),
                offset: last.bytes,
                entry: tail.last.index + 1,
                term: None,
                what: format!(
                    "the log ends here, and had been durable up to entry {} at least",
                    applied.index
                ),
            }));
        }
        tail.last = applied;
    } else if tail.last.index == applied.index {
        tail.last.time = tail.last.time.max(applied.time);
        tail.last.term = tail.last.term.max(applied.term);
    }
    Ok(tail)
}

/// Removes the only segment, whose header is not whole: the folder is new, and power was lost before it was synced.
///
/// Errors: it had been more than begun, so that it is damaged.
fn remove_unfinished(segment: &Segment, applied: OpTime) -> Result<()> {
    let mut head = [0; SEGMENT_HEADER_LEN as usize];
    let mut scanner = Scanner::of(segment)?;
    if let Some(bytes) = scanner.bytes_at(0, head.len())? {
        head.copy_from_slice(bytes);
    }
    // It may be the header's other bytes that are wrong.
    let base = Salt(u64::from_le_bytes(std::array::from_fn(|at| head[24 + at])));
    let mut held = applied.index >= segment.first_index
        // Of a page that was written only the end can be missing.
        || (head.starts_with(MAGIC) && !scanner.only_zeros(SEGMENT_HEADER_LEN)?);
    for version in [1, VERSION] {
        scanner.salt = salt_of(version, segment.first_index, base);
        held = held || scanner.claims_more(SEGMENT_HEADER_LEN, segment.first_index.saturating_sub(1))?;
    }
    if held {
        let what = "the segment's header is not readable, but there are entries behind it";
        return Err(Damage::of_header(segment, what));
    }
    fs::remove_file(&segment.path).map_err(|e| Error::io("removing an unfinished segment", e))
}

fn cut(
    segments: &mut Vec<Segment>,
    at: usize,
    scanner: &mut Scanner,
    applied: OpTime,
    tail: &mut Tail,
) -> Result<()> {
    let offset = scanner.offset;
    let bad = tail.last.index + 1;
    let mut claimed = applied.index >= bad || scanner.claims_more(offset, tail.last.index)?;
    for later in &segments[at + 1..] {
        claimed = claimed || Scanner::of(later)?.claims_more(SEGMENT_HEADER_LEN, tail.last.index)?;
    }
    (tail.checksummed, tail.read) = (scanner.checksummed, scanner.read);
    if claimed {
        // Where a segment is followed by one that does not begin as one, that is what is damaged.
        if let Some(next) = segments.get(at + 1).filter(|next| next.first_index == bad)
            && let Err(what) = check_header(next)?
        {
            return Err(Damage::of_header(next, what));
        }
        let header = scanner.head_at(offset)?.and_then(|(_, header)| header);
        return Err(Error::Damaged(Damage {
            segment: segments[at].name(),
            offset,
            entry: bad,
            term: header.filter(|header| header.at.index == bad).map(|header| header.at.term),
            what: "it had been durable but is not readable (checksum or length)".to_owned(),
        }));
    }
    for later in segments.drain(at + 1..) {
        tail.cut_bytes += later.bytes;
        fs::remove_file(&later.path).map_err(|e| Error::io("removing a segment behind a torn tail", e))?;
    }
    let segment = &mut segments[at];
    // Another segment's entries, which were there before, are nothing that is lost.
    if !segment.is_recycled() || matches!(scanner.head_at(offset)?, Some((_, Some(_)))) {
        tail.cut_bytes += segment.bytes - offset;
    }
    let file = segment.open(true)?;
    file.set_len(offset).and_then(|()| file.sync_all()).map_err(|e| Error::io("cutting a torn tail", e))?;
    segment.bytes = offset;
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_number_is_found_at_every_byte(
            mut bytes in prop::collection::vec(any::<u8>(), 0..300),
            put in prop::option::of((any::<prop::sample::Index>(), 0..AHEAD_MAX + 2)),
            least in any::<u64>(),
        ) {
            if let (Some((at, more)), Some(last)) = (put, bytes.len().checked_sub(8)) {
                let at = at.index(last + 1);
                bytes[at..at + 8].copy_from_slice(&least.wrapping_add(more).to_le_bytes());
            }
            let one_by_one = (0..bytes.len().saturating_sub(7)).find(|at| {
                let found = u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
                found.wrapping_sub(least) < AHEAD_MAX
            });
            prop_assert_eq!(first_near(&bytes, least), one_by_one);
        }
    }
}
