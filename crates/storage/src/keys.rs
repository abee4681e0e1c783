//! Keys and values as they stand in RocksDB. It knows bytes and numbers, and nothing of who they belong to.

use sheaf_bson::{RawDoc, Value, key};
use sheaf_errors::{Code, Result, bail};

/// Length of the collection's or index's number before every key.
pub(crate) const PREFIX: usize = 4;

/// `[ident][key]` into `out`.
pub(crate) fn prefixed(ident: u32, key: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&ident.to_be_bytes());
    out.extend_from_slice(key);
}

/// A key with its prefix, on the stack unless it is long: reads come by the million.
pub(crate) type FullKey = smallvec::SmallVec<[u8; 64]>;

/// `[ident][key]`.
pub(crate) fn full_key(ident: u32, key: &[u8]) -> FullKey {
    let mut out = FullKey::with_capacity(PREFIX + key.len());
    out.extend_from_slice(&ident.to_be_bytes());
    out.extend_from_slice(key);
    out
}

/// First bytes of everything under this number, and of what follows it.
pub(crate) fn prefix_range(ident: u32) -> ([u8; PREFIX], [u8; PREFIX]) {
    (ident.to_be_bytes(), (ident + 1).to_be_bytes())
}

/// Appends a length, seven bits to a byte.
pub(crate) fn put_length(mut n: usize, out: &mut Vec<u8>) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// A length and the bytes behind it.
pub(crate) fn take_length(bytes: &[u8]) -> (usize, &[u8]) {
    let mut n = 0;
    for (at, byte) in bytes.iter().enumerate().take(5) {
        n |= usize::from(byte & 0x7F) << (7 * at);
        if byte & 0x80 == 0 {
            return (n, &bytes[at + 1..]);
        }
    }
    (0, &[])
}

/// The parts of an index entry.
#[derive(Clone, Copy)]
pub(crate) struct EntryParts<'e> {
    pub key: &'e [u8],
    pub record_key: &'e [u8],
    pub type_bits: &'e [u8],
}

/// Takes an index entry apart; `key` is with its prefix.
pub(crate) fn entry_parts<'e>(unique: bool, key: &'e [u8], value: &'e [u8]) -> EntryParts<'e> {
    let (len, rest) = take_length(value);
    let key = key.get(PREFIX..).unwrap_or_default();
    if unique {
        let (record_key, type_bits) = rest.split_at(len.min(rest.len()));
        EntryParts { key, record_key, type_bits }
    } else {
        let (key, record_key) = key.split_at(key.len().saturating_sub(len));
        EntryParts { key, record_key, type_bits: rest }
    }
}

/// Keys of the catalog column family.
pub(crate) mod catalog_key {
    /// Applied position and next number.
    pub const APPLIED: &[u8] = b"A";
    /// Position and number of the last batch.
    pub const POSITION: &[u8] = b"P";
    /// The highest ceiling of the past (transactions over shards).
    pub const CEILING: &[u8] = b"T";
    /// The version of the keys of records and indexes.
    pub const KEYS: &[u8] = b"K";
    /// Collection documents.
    pub const COLLECTION: u8 = b'C';
    /// Document counts and bytes.
    pub const COUNTERS: u8 = b'N';
    /// Multikey bits of an index.
    pub const MULTIKEY: u8 = b'M';
    /// Files of values.
    pub const VALUES: u8 = b'V';
    /// Prefixes whose data is to be removed: `G`, column family, number.
    pub const GARBAGE: u8 = b'G';

    pub fn of(kind: u8, ident: u32) -> [u8; 5] {
        let mut key = [kind; 5];
        key[1..].copy_from_slice(&ident.to_be_bytes());
        key
    }
}

/// Record key of a capped collection's record.
pub(crate) fn capped_key(rid: u64) -> [u8; 8] {
    rid.to_be_bytes()
}

/// Appends the record key of an `_id`.
pub(crate) fn put_id_key(id: Value<'_>, out: &mut Vec<u8>) -> Result<()> {
    if id.is_missing() {
        bail!(Code::BAD_VALUE, "document has no _id");
    }
    key::encode_bound(id, false, out);
    Ok(())
}

/// The record key of a document.
pub(crate) fn id_key(doc: RawDoc<'_>) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(24);
    put_id_key(doc.get_or_missing("_id"), &mut out)?;
    Ok(out)
}
