//! Items that are sorted in memory, and become a run.

use std::path::Path;

use sheaf_errors::Result;

use super::ITEM_COST;
use super::runs::RunWriter;
use crate::keys::PREFIX;

/// What an item takes besides its bytes.
pub(super) const ITEM_BYTES: usize = std::mem::size_of::<Item>();

/// Items that are sorted in one go: a few milliseconds of work.
#[cfg(not(test))]
const SLICE_ITEMS: usize = 32 << 10;
#[cfg(test)]
const SLICE_ITEMS: usize = 50;

#[derive(Clone, Copy)]
struct Item {
    /// The eight bytes of the key behind what all keys of the group begin with, as a number in the same order: nearly all
    /// comparisons end there, and none of them reads the key, which would be a miss of the processor's cache.
    head: u64,
    at: usize,
    key_len: u32,
    value_len: u32,
}

impl Item {
    fn key<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        &bytes[self.at..self.at + self.key_len as usize]
    }
}

/// Items in memory.
#[derive(Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    /// Items by the number that their keys begin with. Those of one index begin alike, and those of two do not.
    groups: Vec<(u32, Vec<Item>)>,
    /// All that are in groups.
    count: usize,
}

impl Batch {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// What it would take in memory with an item more, whose key and value have so many bytes.
    pub fn size_with(&self, bytes: usize) -> usize {
        self.bytes.len() + bytes + (self.count + 1) * ITEM_BYTES
    }

    /// Adds an item whose key is the number `ident` and these parts, one after another.
    pub fn push(&mut self, ident: u32, key: &[&[u8]], value: &[u8]) {
        let at = self.bytes.len();
        let key_len: usize = PREFIX + key.iter().map(|part| part.len()).sum::<usize>();
        self.bytes.extend_from_slice(&ident.to_be_bytes());
        key.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.bytes.extend_from_slice(value);
        let item = Item { head: 0, at, key_len: key_len as u32, value_len: value.len() as u32 };
        self.count += 1;
        match self.groups.iter_mut().find(|(known, _)| *known == ident) {
            Some((_, items)) => items.push(item),
            None => self.groups.push((ident, vec![item])),
        }
    }

    /// Sorts what is in it, in pieces, so that whoever waits for the index can be stopped in between.
    fn sort(&mut self) -> Result<()> {
        self.groups.sort_unstable_by_key(|(ident, _)| *ident);
        for (_, items) in &mut self.groups {
            set_heads(items, &self.bytes)?;
            sort_items(items, &self.bytes)?;
        }
        Ok(())
    }

    /// Sorts its items, and hands each over: key and value one behind the other, and how long the key is.
    pub fn sorted(&mut self, mut each: impl FnMut(&[u8], usize) -> Result<()>) -> Result<()> {
        self.sort()?;
        for item in self.groups.iter().flat_map(|(_, items)| items) {
            sheaf_meter::tick(ITEM_COST)?;
            let size = item.key_len as usize + item.value_len as usize;
            each(&self.bytes[item.at..item.at + size], item.key_len as usize)?;
        }
        Ok(())
    }

    /// Writes its items to a file, sorted. It is empty afterwards, and keeps its memory.
    pub fn write_run(&mut self, path: &Path) -> Result<()> {
        let mut out = RunWriter::create(path)?;
        self.sorted(|item, key_len| {
            let (key, value) = item.split_at(key_len);
            out.write(key, value)
        })?;
        out.finish()?;
        self.bytes.clear();
        self.groups.iter_mut().for_each(|(_, items)| items.clear());
        self.count = 0;
        Ok(())
    }
}

/// Sets the heads of items of one group, behind what all of their keys begin with: a date has the same first bytes for years.
fn set_heads(items: &mut [Item], bytes: &[u8]) -> Result<()> {
    let Some(first) = items.first().map(|item| item.key(bytes)) else { return Ok(()) };
    let mut common = first.len();
    for slice in items.chunks(SLICE_ITEMS) {
        sheaf_meter::check()?;
        for item in slice {
            let pairs = first[..common].iter().zip(item.key(bytes));
            common = pairs.take_while(|(one, other)| one == other).count();
        }
    }
    for slice in items.chunks_mut(SLICE_ITEMS) {
        sheaf_meter::check()?;
        slice.iter_mut().for_each(|item| item.head = head_of(&item.key(bytes)[common..]));
    }
    Ok(())
}

/// Sorts items of one group: by a byte of their heads into parts that are sorted in one go.
fn sort_items(items: &mut [Item], bytes: &[u8]) -> Result<()> {
    sheaf_meter::check()?;
    let Some(first) = items.first().map(|item| item.head) else { return Ok(()) };
    let different = items.iter().fold(0, |all, item| all | (item.head ^ first));
    if items.len() <= SLICE_ITEMS || different == 0 {
        sort_slice(items, bytes);
        return Ok(());
    }
    // The first byte in which two heads differ.
    let shift = different.ilog2() / 8 * 8;
    for part in partition(items, shift) {
        sort_items(&mut items[part], bytes)?;
    }
    Ok(())
}

/// Brings items with the same byte of their heads together, in the order of the bytes, and gives where they are.
fn partition(items: &mut [Item], shift: u32) -> Vec<std::ops::Range<usize>> {
    let byte = |item: &Item| (item.head >> shift) as u8 as usize;
    let mut counts = [0; 256];
    items.iter().for_each(|item| counts[byte(item)] += 1);
    let mut parts = Vec::with_capacity(256);
    let mut from = 0;
    for count in counts {
        parts.push(from..from + count);
        from += count;
    }
    // Each part fills from its start: what is there goes to its own part, until something comes that belongs there.
    let mut next: Vec<usize> = parts.iter().map(|part| part.start).collect();
    for (value, part) in parts.iter().enumerate() {
        while next[value] < part.end {
            let at = next[value];
            let to = byte(&items[at]);
            items.swap(at, next[to]);
            next[to] += 1;
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// Sorts items of one group in one go. Those with one head come in the order in which they were added, which is mostly that of
/// their keys: documents are read in the order of their names, and these stand at the keys' ends.
fn sort_slice(items: &mut [Item], bytes: &[u8]) {
    items.sort_unstable_by_key(|item| (item.head, item.at));
    for alike in items.chunk_by_mut(|one, other| one.head == other.head).filter(|alike| alike.len() > 1) {
        alike.sort_unstable_by(|one, other| one.key(bytes).cmp(other.key(bytes)));
    }
}

/// The first bytes as a number in the same order. What ends before sorts as if zeros followed; equal heads are decided by the
/// whole keys.
fn head_of(key: &[u8]) -> u64 {
    if let Some(head) = key.first_chunk() {
        return u64::from_be_bytes(*head);
    }
    let mut head = [0; 8];
    head[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(head)
}
