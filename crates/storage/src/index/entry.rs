//! An index's entries as they stand in RocksDB.

use super::Index;
use crate::keys::{prefixed, put_length};

/// An index entry's key: of unique indexes without the record key, so that a second one meets the first.
pub(crate) fn entry_key(index: &Index, key: &[u8], record_key: &[u8], out: &mut Vec<u8>) {
    prefixed(index.ident, key, out);
    if !index.unique {
        out.extend_from_slice(record_key);
    }
}

/// An index entry's value: length of the record key, the record key if it is not in the key, type bits.
pub(crate) fn entry_value(index: &Index, record_key: &[u8], type_bits: &[u8], out: &mut Vec<u8>) {
    out.clear();
    put_length(record_key.len(), out);
    if index.unique {
        out.extend_from_slice(record_key);
    }
    out.extend_from_slice(type_bits);
}
