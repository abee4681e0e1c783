//! One entry's bytes.

use crate::position::OpTime;

/// Bytes of an entry before its payload.
pub const HEADER_LEN: usize = 40;

/// Largest payload: what a length field of sane value may say. A group is far smaller.
pub(crate) const MAX_PAYLOAD: usize = 1 << 30;

/// Where the entry behind this one stands. Terms and times never go back: entries are found by time, and by halves.
pub(crate) fn following(last: OpTime, term: u64, time: u64) -> OpTime {
    assert!(
        term >= last.term && time >= last.time,
        "an entry of term {term} and time {time} is to follow {last:?}"
    );
    OpTime { term, index: last.index + 1, time }
}

/// An entry read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Term, index and time.
    pub at: OpTime,
    /// What was appended.
    pub payload: Vec<u8>,
}

/// The fixed part of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub length: u32,
    pub crc: u32,
    pub at: OpTime,
    /// The log was durable up to this index when the entry was written.
    pub durable: u64,
}

/// A number that only the segment and its entries know, chosen by chance when the segment was made. It goes into a check of
/// each header, so bytes of a document that look like an entry are told from one without reading what they call its
/// payload, and nobody can make up such bytes. Segments of format version 1 have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Salt(pub u64);

impl Salt {
    /// A new one.
    pub fn new() -> Salt {
        use std::hash::{BuildHasher, Hasher};
        // Its keys come from the system's source of randomness.
        Salt(std::collections::hash_map::RandomState::new().build_hasher().finish().max(1))
    }

    /// Whether headers have checks of their own.
    pub fn checks(self) -> bool {
        self.0 != 0
    }

    fn check(self, head: &[u8]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&self.0.to_le_bytes()), head)
    }
}

/// Where a header's own check stands, and what it covers.
const CHECK: usize = 36;

impl Header {
    /// `None`: these bytes are no header of a segment with this salt.
    pub fn decode(bytes: &[u8; HEADER_LEN], salt: Salt) -> Option<Header> {
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let at = OpTime { term: u64_at(8), index: u64_at(16), time: u64_at(24) };
        let durable = if salt.checks() {
            if u32_at(CHECK) != salt.check(&bytes[..CHECK]) {
                return None;
            }
            match u32_at(32) {
                u32::MAX => 0,
                behind => at.index.checked_sub(u64::from(behind))?,
            }
        } else {
            u64_at(32)
        };
        let length = u32_at(0);
        (length as usize <= MAX_PAYLOAD).then_some(Header { length, crc: u32_at(4), at, durable })
    }

    /// The header's bytes for these parts of a payload, checksum included.
    pub fn encode(at: OpTime, durable: u64, parts: &[&[u8]], salt: Salt) -> [u8; HEADER_LEN] {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let mut bytes = [0; HEADER_LEN];
        bytes[0..4].copy_from_slice(&(length as u32).to_le_bytes());
        bytes[8..16].copy_from_slice(&at.term.to_le_bytes());
        bytes[16..24].copy_from_slice(&at.index.to_le_bytes());
        bytes[24..32].copy_from_slice(&at.time.to_le_bytes());
        if salt.checks() {
            // Further back than can be said: nothing is said.
            let behind = u32::try_from(at.index.saturating_sub(durable)).unwrap_or(u32::MAX);
            bytes[32..CHECK].copy_from_slice(&behind.to_le_bytes());
        } else {
            bytes[32..40].copy_from_slice(&durable.to_le_bytes());
        }
        let mut crc = head_crc(&bytes, salt);
        for part in parts {
            crc = crc32c::crc32c_append(crc, part);
        }
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        if salt.checks() {
            let check = salt.check(&bytes[..CHECK]);
            bytes[CHECK..].copy_from_slice(&check.to_le_bytes());
        }
        bytes
    }

    /// Whether `payload` is what was written with this header's `bytes`.
    pub fn fits(&self, bytes: &[u8; HEADER_LEN], payload: &[u8], salt: Salt) -> bool {
        self.length as usize == payload.len()
            && crc32c::crc32c_append(head_crc(bytes, salt), payload) == self.crc
    }
}

/// Checksum of the header without its checksum fields.
fn head_crc(bytes: &[u8; HEADER_LEN], salt: Salt) -> u32 {
    let end = if salt.checks() { CHECK } else { HEADER_LEN };
    crc32c::crc32c_append(crc32c::crc32c(&bytes[0..4]), &bytes[8..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_read_back_with_their_salt_only() {
        let at = OpTime { term: 3, index: 1 << 40, time: 77 };
        for (salt, durable) in [(Salt::new(), at.index - 5), (Salt::new(), 7), (Salt(0), 7)] {
            let bytes = Header::encode(at, durable, &[b"ab", b"c"], salt);
            let header = Header::decode(&bytes, salt).unwrap();
            // What cannot be said in four bytes is not said.
            let said = if salt.checks() && durable == 7 { 0 } else { durable };
            assert_eq!((header.at, header.durable, header.length), (at, said, 3));
            assert!(header.fits(&bytes, b"abc", salt) && !header.fits(&bytes, b"abd", salt));
            if salt.checks() {
                assert_eq!(Header::decode(&bytes, Salt(salt.0 ^ 2)), None);
            }
        }
    }
}
