//! One entry's bytes.

/// Bytes of an entry before its payload.
pub const HEADER_LEN: usize = 40;

/// Largest payload: what a length field of sane value may say. A group is far smaller.
pub(crate) const MAX_PAYLOAD: usize = 1 << 30;

/// Where an entry stands: in which term, at which index, and its cluster time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Raft term.
    pub term: u64,
    /// 1, 2, 3, ... without gaps.
    pub index: u64,
    /// Cluster time of the entry's last operation.
    pub time: u64,
}

/// An entry read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Term, index and time.
    pub at: Position,
    /// What was appended.
    pub payload: Vec<u8>,
}

/// The fixed part of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub length: u32,
    pub crc: u32,
    pub at: Position,
    /// The log was durable up to this index when the entry was written.
    pub durable: u64,
}

impl Header {
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Header {
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        Header {
            length: u32_at(0),
            crc: u32_at(4),
            at: Position { term: u64_at(8), index: u64_at(16), time: u64_at(24) },
            durable: u64_at(32),
        }
    }

    /// The header's bytes for these parts of a payload, checksum included.
    pub fn encode(at: Position, durable: u64, parts: &[&[u8]]) -> [u8; HEADER_LEN] {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let mut bytes = [0; HEADER_LEN];
        bytes[0..4].copy_from_slice(&(length as u32).to_le_bytes());
        bytes[8..16].copy_from_slice(&at.term.to_le_bytes());
        bytes[16..24].copy_from_slice(&at.index.to_le_bytes());
        bytes[24..32].copy_from_slice(&at.time.to_le_bytes());
        bytes[32..40].copy_from_slice(&durable.to_le_bytes());
        let mut crc = head_crc(&bytes);
        for part in parts {
            crc = crc32c::crc32c_append(crc, part);
        }
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Whether `payload` is what was written with this header's `bytes`.
    pub fn fits(&self, bytes: &[u8; HEADER_LEN], payload: &[u8]) -> bool {
        self.length as usize == payload.len() && crc32c::crc32c_append(head_crc(bytes), payload) == self.crc
    }
}

/// Checksum of the header without its checksum field.
fn head_crc(bytes: &[u8; HEADER_LEN]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[0..4]), &bytes[8..])
}
