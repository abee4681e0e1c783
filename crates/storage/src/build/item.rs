//! Items on their way: a key and a value, behind the lengths of both.

/// The lengths.
pub(super) type Lengths = [u8; 8];

/// What stands before this key and this value.
pub(super) fn lengths(key: &[u8], value: &[u8]) -> Lengths {
    let mut lengths = [0; 8];
    lengths[..4].copy_from_slice(&(key.len() as u32).to_le_bytes());
    lengths[4..].copy_from_slice(&(value.len() as u32).to_le_bytes());
    lengths
}

/// How long the key is, and the value.
pub(super) fn read_lengths(lengths: &Lengths) -> (usize, usize) {
    let length = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| lengths[at + i])) as usize;
    (length(0), length(4))
}
