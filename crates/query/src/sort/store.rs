//! The items that a sorter has in memory: their bytes one behind the other in blocks, and beside each other what orders them.

use sheaf_errors::Result;

/// Blocks grow to this.
const BLOCK_BYTES: usize = 1 << 20;
/// The first one is no larger.
const FIRST_BYTES: usize = 4 << 10;

/// Items with comparable keys.
#[derive(Default)]
pub(super) struct Store {
    blocks: Vec<Vec<u8>>,
    /// The block that is being filled.
    open: Option<usize>,
    /// What all items take together.
    bytes: usize,
    entries: Vec<Entry>,
}

/// Where an item is.
#[derive(Clone, Copy)]
struct Entry {
    /// The key's first bytes: mostly they decide, and then the key itself is not looked at.
    prefix: u64,
    block: u32,
    offset: u32,
    key_bytes: u32,
    payload_bytes: u32,
}

/// The first bytes of a key as a number: keys are in the order of their numbers, unless these are equal.
fn prefix(key: &[u8]) -> u64 {
    let mut first = [0; 8];
    let length = key.len().min(8);
    first[..length].copy_from_slice(&key[..length]);
    u64::from_be_bytes(first)
}

impl Store {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds an item, whose payload is made of these parts.
    pub(super) fn push(&mut self, key: &[u8], payload: &[&[u8]]) {
        let payload_bytes: usize = payload.iter().map(|part| part.len()).sum();
        let at = self.room_for(key.len() + payload_bytes);
        let block = &mut self.blocks[at];
        let length = |bytes: usize| u32::try_from(bytes).expect("an item is smaller than 4 GiB");
        self.entries.push(Entry {
            prefix: prefix(key),
            block: u32::try_from(at).expect("memory ends before 2^32 blocks"),
            offset: length(block.len()),
            key_bytes: length(key.len()),
            payload_bytes: length(payload_bytes),
        });
        block.extend_from_slice(key);
        payload.iter().for_each(|part| block.extend_from_slice(part));
    }

    /// A block with room for so much. What is large has one of its own, so that no other is left half empty.
    fn room_for(&mut self, bytes: usize) -> usize {
        let usual = self.bytes.clamp(FIRST_BYTES, BLOCK_BYTES);
        self.bytes += bytes;
        let fits = |at: &usize| self.blocks[*at].capacity() - self.blocks[*at].len() >= bytes;
        if let Some(open) = self.open.filter(fits) {
            return open;
        }
        let (new, alone) = (self.blocks.len(), bytes > usual / 4);
        self.blocks.push(Vec::with_capacity(if alone { bytes } else { usual }));
        if !alone {
            self.open = Some(new);
        }
        new
    }

    /// Brings the items in the order of their keys; those of equal keys stay as they are.
    pub(super) fn sort(&mut self) -> Result<()> {
        let Store { blocks, entries, .. } = self;
        sheaf_meter::sort_by_prefix(
            entries,
            |entry| entry.prefix,
            |a, b| {
                let (a, b) = (key_of(blocks, a), key_of(blocks, b));
                sheaf_meter::tick_for(a.len().min(b.len()))?;
                Ok(a.cmp(b))
            },
        )
    }

    pub(super) fn key(&self, at: usize) -> &[u8] {
        key_of(&self.blocks, &self.entries[at])
    }

    pub(super) fn payload(&self, at: usize) -> &[u8] {
        let entry = &self.entries[at];
        let start = entry.offset as usize + entry.key_bytes as usize;
        &self.blocks[entry.block as usize][start..start + entry.payload_bytes as usize]
    }

    /// Keys and payloads in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (0..self.len()).map(|at| (self.key(at), self.payload(at)))
    }
}

fn key_of<'b>(blocks: &'b [Vec<u8>], entry: &Entry) -> &'b [u8] {
    let start = entry.offset as usize;
    &blocks[entry.block as usize][start..start + entry.key_bytes as usize]
}
