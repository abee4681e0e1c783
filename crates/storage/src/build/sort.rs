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

/// What an item takes besides its bytes.
const ITEM_BYTES: usize = std::mem::size_of::<Item>();

/// Buffers of the runs that are merged.
const BUFFER_BYTES_MIN: usize = 16 << 10;
const BUFFER_BYTES_MAX: usize = 1 << 20;

/// Items that are sorted in one go: a few milliseconds of work. The slices are merged when they are read.
#[cfg(not(test))]
const SLICE_ITEMS: usize = 32 << 10;
#[cfg(test)]
const SLICE_ITEMS: usize = 50;

/// What handing over an item costs, in the meter's units.
const ITEM_COST: u32 = 8;

#[derive(Clone, Copy)]
struct Item {
    /// First bytes of the key, as a number in the same order: most comparisons end there.
    head: u64,
    at: usize,
    key_len: u32,
    value_len: u32,
}

/// Takes items in any order and gives them back sorted.
pub(super) struct Sorter {
    /// Where runs are spilled to.
    dir: PathBuf,
    /// Items and their bytes stay below this.
    memory_bytes: usize,
    bytes: Vec<u8>,
    items: Vec<Item>,
    runs: Vec<PathBuf>,
}

impl Sorter {
    /// `dir` exists and is this sorter's own.
    pub fn new(dir: &Path, memory_bytes: usize) -> Sorter {
        Sorter { dir: dir.to_owned(), memory_bytes, bytes: Vec::new(), items: Vec::new(), runs: Vec::new() }
    }

    /// Adds an item whose key is these parts one after another.
    pub fn push(&mut self, key: &[&[u8]], value: &[u8]) -> Result<()> {
        let key_len: usize = key.iter().map(|part| part.len()).sum();
        let size = key_len + value.len();
        if self.bytes.len() + size + (self.items.len() + 1) * ITEM_BYTES > self.memory_bytes {
            self.spill()?;
        }
        let at = self.bytes.len();
        key.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.bytes.extend_from_slice(value);
        let head = head_of(&self.bytes[at..at + key_len]);
        self.items.push(Item { head, at, key_len: key_len as u32, value_len: value.len() as u32 });
        Ok(())
    }

    /// Runs that did not fit in memory.
    #[cfg(test)]
    pub fn spilled(&self) -> usize {
        self.runs.len()
    }

    /// Sorts slice by slice, so that whoever waits for the index can be stopped in between.
    fn sort(&mut self) -> Result<()> {
        let bytes = &self.bytes;
        let key = |item: &Item| &bytes[item.at..item.at + item.key_len as usize];
        for slice in self.items.chunks_mut(SLICE_ITEMS) {
            sheaf_meter::check()?;
            slice.sort_unstable_by(|a, b| a.head.cmp(&b.head).then_with(|| key(a).cmp(key(b))));
        }
        Ok(())
    }

    /// Hands over the items of all slices in order.
    fn in_order(&self, mut each: impl FnMut(&Item) -> Result<()>) -> Result<()> {
        let slices = self.items.chunks(SLICE_ITEMS);
        let mut slices: BinaryHeap<_> =
            slices.filter_map(|slice| Slice::at_next(&self.bytes, slice.iter())).map(Reverse).collect();
        while let Some(mut first) = slices.peek_mut() {
            sheaf_meter::tick(ITEM_COST)?;
            each(&first.0.item)?;
            match Slice::at_next(&self.bytes, first.0.rest.clone()) {
                Some(next) => first.0 = next,
                None => drop(PeekMut::pop(first)),
            }
        }
        Ok(())
    }

    fn spill(&mut self) -> Result<()> {
        if self.items.is_empty() {
            return Ok(());
        }
        self.sort()?;
        let path = self.dir.join(format!("{:06}.run", self.runs.len()));
        self.write_run(&path)?;
        self.runs.push(path);
        self.items.clear();
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
        self.items = Vec::new();
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

/// A sorted slice of the items in memory, at one of them.
struct Slice<'s> {
    item: Item,
    key: &'s [u8],
    rest: std::slice::Iter<'s, Item>,
}

impl<'s> Slice<'s> {
    fn at_next(bytes: &'s [u8], mut rest: std::slice::Iter<'s, Item>) -> Option<Self> {
        let item = *rest.next()?;
        Some(Slice { item, key: &bytes[item.at..item.at + item.key_len as usize], rest })
    }
}

impl PartialEq for Slice<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Slice<'_> {}
impl PartialOrd for Slice<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Slice<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.item.head.cmp(&other.item.head).then_with(|| self.key.cmp(other.key))
    }
}

fn head_of(key: &[u8]) -> u64 {
    // A key that ends within the head sorts as if zeros followed; equal heads are decided by the whole keys.
    let mut head = [0; 8];
    let len = key.len().min(8);
    head[..len].copy_from_slice(&key[..len]);
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
            memory in 200usize..20_000,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let mut sorter = Sorter::new(dir.path(), memory);
            for (key, value) in &items {
                let (head, tail) = key.split_at(key.len() / 2);
                sorter.push(&[head, tail], value).unwrap();
            }
            let room: usize = items.iter().map(|(key, value)| key.len() + value.len() + ITEM_BYTES).sum();
            prop_assert_eq!(sorter.spilled() > 0, room > memory);
            let mut found = Vec::new();
            sorter.finish(|key, value| { found.push((key.to_vec(), value.to_vec())); Ok(()) }).unwrap();
            let keys: Vec<_> = found.iter().map(|(key, _)| key.clone()).collect();
            let mut expected = items;
            expected.sort();
            prop_assert_eq!(&keys, &expected.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>());
            found.sort();
            prop_assert_eq!(found, expected);
        }
    }
}
