//! The keys of one document in one index, as a set.

use std::cmp::Ordering;

use sheaf_bson::key::TypeBits;
use sheaf_errors::Result;
use sheaf_meter::Held;
use smallvec::SmallVec;

/// Keys that are sorted without a look at whether to go on.
const SORTED_AT_ONCE: usize = 2048;

/// Keys of one document, flat in one buffer; kept and cleared, so that writing many documents allocates little.
#[derive(Default)]
pub(crate) struct KeySet {
    bytes: Vec<u8>,
    /// `(start, end of key, end of type bits)`.
    keys: Vec<(usize, usize, usize)>,
    /// Per indexed field, the positions of the path components that were arrays, as bits.
    pub arrays: SmallVec<[u64; 4]>,
    bits: TypeBits,
    /// What is taken from the operation's memory for a set that is large: each key of an array's elements has the other
    /// fields of the index too, or the whole path, which can be megabytes.
    held: Held,
}

/// Sets below this are not counted, and how much is taken at a time.
const COUNTED_BYTES: u64 = 1 << 20;

impl KeySet {
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.keys.clear();
        self.arrays.clear();
        if self.held.bytes() > 0 {
            self.held = Held::default();
        }
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn get(&self, at: usize) -> (&[u8], &[u8]) {
        let (start, key_end, end) = self.keys[at];
        (&self.bytes[start..key_end], &self.bytes[key_end..end])
    }

    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (0..self.keys.len()).map(|at| self.get(at))
    }

    /// Whether this (sorted) set holds the key.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.keys.binary_search_by(|(start, end, _)| self.bytes[*start..*end].cmp(key)).is_ok()
    }

    /// The type bits with which this (sorted) set holds the key.
    pub fn type_bits(&self, key: &[u8]) -> Option<&[u8]> {
        let found = self.keys.binary_search_by(|(start, end, _)| self.bytes[*start..*end].cmp(key));
        found.ok().map(|at| self.get(at).1)
    }

    /// Whether this (sorted) set holds the key with the same type bits.
    pub fn contains_exactly(&self, key: &[u8], bits: &[u8]) -> bool {
        self.type_bits(key) == Some(bits)
    }

    /// Calls `each` with the keys that only one of two (sorted) sets has.
    pub fn each_difference(&self, other: &KeySet, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let (mut left, mut right) = (self.iter().peekable(), other.iter().peekable());
        loop {
            let order = match (left.peek(), right.peek()) {
                (None, None) => return Ok(()),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((left, _)), Some((right, _))) => left.cmp(right),
            };
            let one = if order.is_gt() { right.next() } else { left.next() };
            match one {
                Some((key, _)) if order.is_ne() => each(key)?,
                _ => _ = right.next(),
            }
        }
    }

    /// Bytes that it takes, empty or not.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity() + self.keys.capacity() * std::mem::size_of::<(usize, usize, usize)>()
    }

    /// Adds a key and its type bits, in no order.
    pub fn push(&mut self, fill: impl FnOnce(&mut Vec<u8>, &mut TypeBits)) -> Result<()> {
        let start = self.bytes.len();
        self.bits.clear();
        fill(&mut self.bytes, &mut self.bits);
        let key_end = self.bytes.len();
        debug_assert!(key_end > start, "a key has no bytes");
        self.bytes.extend_from_slice(self.bits.as_bytes());
        self.keys.push((start, key_end, self.bytes.len()));
        let used = (self.bytes.len() + self.keys.len() * std::mem::size_of::<(usize, usize, usize)>()) as u64;
        if used > self.held.bytes() + COUNTED_BYTES { self.charge(used) } else { Ok(()) }
    }

    #[cold]
    fn charge(&mut self, used: u64) -> Result<()> {
        let more = used + COUNTED_BYTES - self.held.bytes();
        if self.held.bytes() == 0 {
            // With the account of this operation, if there is one.
            self.held = sheaf_meter::reserve(0)?;
        }
        self.held.grow(more)
    }

    /// Sorts, and leaves one of each key: the first that was made.
    pub fn sort(&mut self) -> Result<()> {
        let bytes = &self.bytes;
        let key = |(start, end, _): &(usize, usize, usize)| &bytes[*start..*end];
        if self.keys.is_sorted_by(|a, b| key(a) < key(b)) {
            return Ok(());
        }
        // In pieces, between which the operation can be ended: a document can have a million keys.
        for run in self.keys.chunks_mut(SORTED_AT_ONCE) {
            sheaf_meter::tick(run.len() as u32)?;
            run.sort_by(|a, b| key(a).cmp(key(b)));
        }
        let mut width = SORTED_AT_ONCE;
        let mut merged = Vec::new();
        while width < self.keys.len() {
            merged.reserve(self.keys.len());
            for pair in self.keys.chunks(2 * width) {
                let (mut left, mut right) = pair.split_at(width.min(pair.len()));
                while let (Some(a), Some(b)) = (left.first(), right.first()) {
                    sheaf_meter::tick(1)?;
                    if key(b) < key(a) {
                        merged.push(*b);
                        right = &right[1..];
                    } else {
                        merged.push(*a);
                        left = &left[1..];
                    }
                }
                merged.extend_from_slice(left);
                merged.extend_from_slice(right);
            }
            std::mem::swap(&mut self.keys, &mut merged);
            merged.clear();
            width *= 2;
        }
        self.keys.dedup_by(|a, b| key(a) == key(b));
        debug_assert!(self.keys.is_sorted_by(|a, b| key(a) < key(b)), "a document's keys are sorted");
        Ok(())
    }
}
