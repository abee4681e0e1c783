//! Sorting more than fits in memory: sorted runs, spilled to files, merged when they are read.
//!
//! Items are pairs of byte strings, ordered by the first. Runs are temporary: nothing is synced, and what a crash leaves
//! is removed at the next start.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use sheaf_errors::Result;

use crate::folder::file_error;
use crate::keys::PREFIX;

/// What an item takes besides its bytes.
const ITEM_BYTES: usize = std::mem::size_of::<Item>();

/// Buffers of the runs that are merged.
const BUFFER_BYTES_MIN: usize = 16 << 10;
const BUFFER_BYTES_MAX: usize = 1 << 20;

/// Items that are sorted in one go: a few milliseconds of work.
#[cfg(not(test))]
const SLICE_ITEMS: usize = 32 << 10;
#[cfg(test)]
const SLICE_ITEMS: usize = 50;

/// What handing over an item costs, in the meter's units.
const ITEM_COST: u32 = 8;

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

/// Takes items in any order and gives them back sorted.
pub(super) struct Sorter {
    /// Where runs are spilled to.
    dir: PathBuf,
    /// Items and their bytes stay below this.
    memory_bytes: usize,
    bytes: Vec<u8>,
    /// Items by the number that their keys begin with. Those of one index begin alike, and those of two do not.
    groups: Vec<(u32, Vec<Item>)>,
    /// All that are in groups.
    count: usize,
    runs: Vec<PathBuf>,
}

impl Sorter {
    /// `dir` exists and is this sorter's own.
    pub fn new(dir: &Path, memory_bytes: usize) -> Sorter {
        Sorter {
            dir: dir.to_owned(),
            memory_bytes,
            bytes: Vec::new(),
            groups: Vec::new(),
            count: 0,
            runs: Vec::new(),
        }
    }

    /// Adds an item whose key is the number `ident` and these parts, one after another.
    pub fn push(&mut self, ident: u32, key: &[&[u8]], value: &[u8]) -> Result<()> {
        let key_len: usize = PREFIX + key.iter().map(|part| part.len()).sum::<usize>();
        let size = key_len + value.len();
        if self.bytes.len() + size + (self.count + 1) * ITEM_BYTES > self.memory_bytes {
            self.spill()?;
        }
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&ident.to_be_bytes());
        key.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.bytes.extend_from_slice(value);
        let item = Item { head: 0, at, key_len: key_len as u32, value_len: value.len() as u32 };
        self.count += 1;
        match self.groups.iter_mut().find(|(known, _)| *known == ident) {
            Some((_, items)) => items.push(item),
            None => self.groups.push((ident, vec![item])),
        }
        Ok(())
    }

    /// Runs that did not fit in memory.
    #[cfg(test)]
    pub fn spilled(&self) -> usize {
        self.runs.len()
    }

    /// Sorts what is in memory, in pieces, so that whoever waits for the index can be stopped in between.
    fn sort(&mut self) -> Result<()> {
        self.groups.sort_unstable_by_key(|(ident, _)| *ident);
        for (_, items) in &mut self.groups {
            set_heads(items, &self.bytes)?;
            sort_items(items, &self.bytes)?;
        }
        Ok(())
    }

    /// Hands over all items, which are sorted.
    fn in_order(&self, mut each: impl FnMut(&Item) -> Result<()>) -> Result<()> {
        for item in self.groups.iter().flat_map(|(_, items)| items) {
            sheaf_meter::tick(ITEM_COST)?;
            each(item)?;
        }
        Ok(())
    }

    fn spill(&mut self) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        self.sort()?;
        let path = self.dir.join(format!("{:06}.run", self.runs.len()));
        self.write_run(&path)?;
        self.runs.push(path);
        self.groups.iter_mut().for_each(|(_, items)| items.clear());
        self.count = 0;
        self.bytes.clear();
        Ok(())
    }

    fn write_run(&self, path: &Path) -> Result<()> {
        let failed = |e: std::io::Error| file_error("writing a sorted run", path, &e);
        let mut out = BufWriter::with_capacity(BUFFER_BYTES_MAX, File::create(path).map_err(failed)?);
        let mut write = |item: &Item| {
            out.write_all(&item.key_len.to_le_bytes())?;
            out.write_all(&item.value_len.to_le_bytes())?;
            let size = item.key_len as usize + item.value_len as usize;
            out.write_all(&self.bytes[item.at..item.at + size])
        };
        self.in_order(|item| write(item).map_err(failed))?;
        out.into_inner().map_err(|e| failed(e.into_error()))?;
        Ok(())
    }

    /// Hands all items over in order.
    pub fn finish(mut self, mut each: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
        if self.runs.is_empty() {
            self.sort()?;
            return self.in_order(|item| {
                let size = item.key_len as usize + item.value_len as usize;
                let (key, value) = self.bytes[item.at..item.at + size].split_at(item.key_len as usize);
                each(key, value)
            });
        }
        self.spill()?;
        self.bytes = Vec::new();
        self.groups = Vec::new();
        let buffer = (self.memory_bytes / self.runs.len()).clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX);
        let mut heap = BinaryHeap::new();
        for path in &self.runs {
            let run = Run::open(path, buffer).map_err(|e| file_error("reading a sorted run", path, &e))?;
            heap.extend(run.map(Reverse));
        }
        while let Some(mut first) = heap.peek_mut() {
            sheaf_meter::tick(ITEM_COST)?;
            each(&first.0.bytes[..first.0.key_len], &first.0.bytes[first.0.key_len..])?;
            let more = first.0.advance().map_err(|e| file_error("reading a sorted run", &self.dir, &e))?;
            if !more {
                PeekMut::pop(first);
            }
        }
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

/// A spilled run, at one of its items.
struct Run {
    file: BufReader<File>,
    bytes: Vec<u8>,
    key_len: usize,
}

impl Run {
    /// At its first item, if it has any.
    fn open(path: &Path, buffer: usize) -> std::io::Result<Option<Run>> {
        let file = BufReader::with_capacity(buffer, File::open(path)?);
        let mut run = Run { file, bytes: Vec::new(), key_len: 0 };
        Ok(run.advance()?.then_some(run))
    }

    fn advance(&mut self) -> std::io::Result<bool> {
        let mut lengths = [0; 8];
        if let Err(error) = self.file.read_exact(&mut lengths) {
            return if error.kind() == std::io::ErrorKind::UnexpectedEof { Ok(false) } else { Err(error) };
        }
        let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| lengths[at + i])) as usize;
        self.key_len = number(0);
        self.bytes.resize(self.key_len + number(4), 0);
        self.file.read_exact(&mut self.bytes)?;
        Ok(true)
    }
}

impl PartialEq for Run {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Run {}
impl PartialOrd for Run {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Run {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.bytes[..self.key_len].cmp(&other.bytes[..other.key_len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn gives_everything_back_in_order(
            items in prop::collection::vec((prop::collection::vec(0u8..4, 0..12), prop::collection::vec(any::<u8>(), 0..5)), 0..400),
            idents in prop::collection::vec(any::<u32>(), 1..4),
            common in prop::collection::vec(any::<u8>(), 0..12),
            ordered: bool,
            memory in 200usize..20_000,
        ) {
            let mut items = items;
            if ordered {
                items.sort();
            }
            let ident = |at: usize| idents[at % idents.len()];
            let full = |at: usize, key: &[u8]| [&ident(at).to_be_bytes()[..], &common, key].concat();
            let dir = tempfile::tempdir().unwrap();
            let mut sorter = Sorter::new(dir.path(), memory);
            for (at, (key, value)) in items.iter().enumerate() {
                let (head, tail) = key.split_at(key.len() / 2);
                sorter.push(ident(at), &[&common, head, tail], value).unwrap();
            }
            let mut expected: Vec<_> =
                items.iter().enumerate().map(|(at, (key, value))| (full(at, key), value.clone())).collect();
            let room: usize = expected.iter().map(|(key, value)| key.len() + value.len() + ITEM_BYTES).sum();
            prop_assert_eq!(sorter.spilled() > 0, room > memory);
            let mut found = Vec::new();
            sorter.finish(|key, value| { found.push((key.to_vec(), value.to_vec())); Ok(()) }).unwrap();
            let keys: Vec<_> = found.iter().map(|(key, _)| key.clone()).collect();
            expected.sort();
            prop_assert_eq!(&keys, &expected.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>());
            found.sort();
            prop_assert_eq!(found, expected);
        }
    }
}
