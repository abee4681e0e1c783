//! Where writers leave what they change of an index while it is being built.
//!
//! The index's own place belongs to the build until it commits: it is filled with whole files, under which nothing may
//! lie yet. Writers put their changes beside it, in *generations*. A generation is closed by letting no writer in for a
//! moment; from then on it is complete, and can be drained into the index (in order of generations, the last word on a key wins)
//! while writers fill the next one.
//!
//! ```text
//! [ident | SPACE] [generation u8] [key] [record key]  ->  PUT | DELETE, length of the record key, type bits
//! ```
//!
//! A unique index keeps one entry per key, but while it is built several documents may have the same key for a while.
//! What meets another document's entry stays here until the end, when the documents themselves decide.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::critical::{impossible, must};
use crate::keys::{PREFIX, put_length, take_length};

/// Numbers with this bit are the side space of the index without it.
const SPACE: u32 = 1 << 31;

/// Holds the snapshot's duplicates, from a file that came with the index's own.
pub(crate) const DUPLICATES: u8 = 0;
/// The first that writers fill.
pub(crate) const FIRST: u8 = 1;
/// What recovery applies comes after all that was there before the crash.
const REPLAY: u8 = u8::MAX;

const DELETE: u8 = 0;
const PUT: u8 = 1;

/// The side space's number of an index.
pub(crate) fn side_ident(ident: u32) -> u32 {
    ident | SPACE
}

/// Which generation writers fill, and how much they have. Shared by all catalog versions of the index.
pub(crate) struct Side {
    generation: AtomicU8,
    written: AtomicU64,
}

impl Default for Side {
    fn default() -> Self {
        Side { generation: AtomicU8::new(REPLAY), written: AtomicU64::new(0) }
    }
}

impl Side {
    /// The build begins; no writer may be at work.
    pub fn begin(&self) {
        self.generation.store(FIRST, Ordering::Release);
    }

    /// Closes the generation and gives its number; no writer may be at work.
    pub fn close_generation(&self) -> u8 {
        self.written.store(0, Ordering::Release);
        let closed = self.generation.load(Ordering::Acquire);
        self.generation.store(closed.saturating_add(1).min(REPLAY - 1), Ordering::Release);
        closed
    }

    /// Changes in the generation that is open.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Makes the key and value of a change; `type_bits` are missing when the entry goes.
    pub fn change(
        &self,
        ident: u32,
        key: &[u8],
        record_key: &[u8],
        type_bits: Option<&[u8]>,
        (out_key, out_value): (&mut Vec<u8>, &mut Vec<u8>),
    ) {
        self.written.fetch_add(1, Ordering::AcqRel);
        debug_assert_eq!(ident & SPACE, 0, "{ident} is no index's number");
        side_key(ident, self.generation.load(Ordering::Acquire), key, record_key, out_key);
        side_value(record_key, type_bits, out_value);
    }
}

/// The key of a change.
pub(crate) fn side_key(ident: u32, generation: u8, key: &[u8], record_key: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&side_ident(ident).to_be_bytes());
    out.push(generation);
    out.extend_from_slice(key);
    out.extend_from_slice(record_key);
}

/// The value of a change.
pub(crate) fn side_value(record_key: &[u8], type_bits: Option<&[u8]>, out: &mut Vec<u8>) {
    out.clear();
    out.push(if type_bits.is_some() { PUT } else { DELETE });
    put_length(record_key.len(), out);
    out.extend_from_slice(type_bits.unwrap_or_default());
}

/// A change, taken apart.
pub(crate) struct Change<'s> {
    pub key: &'s [u8],
    pub record_key: &'s [u8],
    pub type_bits: Option<&'s [u8]>,
}

impl<'s> Change<'s> {
    /// From a key and a value beside an index.
    pub fn read(key: &'s [u8], value: &'s [u8]) -> Change<'s> {
        let rest = key.get(PREFIX + 1..).unwrap_or_default();
        let Some((put, value)) = value.split_first() else {
            impossible!("a change beside an index has no value")
        };
        must!([PUT, DELETE].contains(put), "a change beside an index is {put}");
        let (len, type_bits) = take_length(value);
        must!(
            len <= rest.len(),
            "a change beside an index has {} bytes, {len} of them a record's key",
            rest.len()
        );
        let (key, record_key) = rest.split_at(rest.len() - len);
        Change { key, record_key, type_bits: (*put == PUT).then_some(type_bits) }
    }
}
