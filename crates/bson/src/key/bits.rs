//! What a key's bytes do not say about its values.

use smallvec::SmallVec;

/// Numeric types, in two bits. The most common one is zero, because trailing zeros cost nothing.
pub(super) const INT32: u64 = 0;
pub(super) const DOUBLE: u64 = 1;
pub(super) const INT64: u64 = 2;
pub(super) const DECIMAL: u64 = 3;

/// A row of bits, in the order of the key's values. Zeros at the end are not kept: keys of int32,
/// strings, ObjectIds, dates and the like have no bytes here at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypeBits {
    /// Filled from the lowest bit of each byte; holds no byte beyond the last bit that is set.
    bytes: SmallVec<[u8; 16]>,
    len: usize,
}

impl TypeBits {
    /// No bits.
    pub fn new() -> Self {
        Self::default()
    }

    /// The bits as bytes to be stored beside the key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether nothing needs to be stored.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Forgets all bits.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.len = 0;
    }

    #[inline]
    pub(super) fn push(&mut self, bits: u64, count: usize) {
        if bits != 0 {
            self.set(bits);
        }
        self.len += count;
    }

    fn set(&mut self, bits: u64) {
        let (first, shift) = (self.len / 8, self.len % 8);
        // At most 64 bits, moved by at most 7.
        let mut word = u128::from(bits) << shift;
        let used = (self.len + bits.ilog2() as usize) / 8 + 1;
        self.bytes.resize(used.max(self.bytes.len()), 0);
        for byte in &mut self.bytes[first..] {
            *byte |= word as u8;
            word >>= 8;
        }
    }
}

/// Reads bits in the order in which they were pushed; those that were not kept are zeros.
#[derive(Clone, Debug)]
pub(super) struct BitReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> BitReader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        BitReader { bytes, at: 0 }
    }

    pub fn take(&mut self, count: usize) -> u64 {
        let bit =
            |place: usize| u64::from(self.bytes.get(place / 8).map_or(0, |byte| byte >> (place % 8) & 1));
        let bits = (0..count).fold(0, |bits, i| bits | bit(self.at + i) << i);
        self.at += count;
        bits
    }
}
