//! A sorter bounded in memory.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::ops::Range;

use sheaf_errors::{Code, Result, bail};
use sheaf_meter::Held;

use super::runs::{Extent, Runs, count_to_merge, readers};
use super::sorted::Sorted;
use super::store::Store;

/// Bytes that a sort may hold in memory before it spills or gives up.
pub const MEMORY_LIMIT_BYTES: usize = 100 * 1024 * 1024;

/// Sorts payloads by comparable keys ([`super::SortPattern::put_key_bytes`]). Equal keys keep the order in
/// which they were added.
pub struct Sorter {
    limit: usize,
    memory_limit_bytes: usize,
    used_bytes: usize,
    added: u64,
    /// A heap whose top is the last of the kept items, if there is a limit; otherwise just a list.
    items: Items,
    runs: Option<Box<dyn Runs + Send>>,
    /// What was written to `runs`.
    written: Vec<Extent>,
    spills: Spills,
    /// The operation's account of `used_bytes`, in steps.
    held: Option<Held>,
}

/// Memory is accounted in steps of this.
const COUNTED_BYTES: usize = 64 << 10;

/// An item is large if it takes so much of the memory: keeping such a few is not worth what they take from those who read what is sorted.
const LARGE_PART: usize = 8;

/// What was put on disk for want of memory.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Spills {
    /// How often memory was emptied to disk.
    pub count: u64,
    /// Items written.
    pub records: u64,
    /// Bytes of the items.
    pub bytes: u64,
}

enum Items {
    List(Store),
    Top(BinaryHeap<Item>),
}

#[derive(PartialEq, Eq)]
struct Item {
    key: Box<[u8]>,
    added: u64,
    payload: Box<[u8]>,
}

/// What an item takes besides its bytes.
const ITEM_BYTES: usize = size_of::<Item>();

impl Item {
    fn bytes(&self) -> usize {
        self.key.len() + self.payload.len() + ITEM_BYTES
    }
}

impl Ord for Item {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key).then(self.added.cmp(&other.added))
    }
}

impl PartialOrd for Item {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Sorter {
    /// A sorter that keeps the first `limit` items (all, without one), in at most `memory_limit_bytes`.
    /// Beyond those it spills to `runs`, or fails with `QueryExceededMemoryLimitNoDiskUseAllowed` without
    /// them.
    pub fn new(limit: Option<u64>, memory_limit_bytes: usize, runs: Option<Box<dyn Runs + Send>>) -> Self {
        let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let items =
            if limit == usize::MAX { Items::List(Store::default()) } else { Items::Top(BinaryHeap::new()) };
        Sorter {
            limit,
            memory_limit_bytes,
            used_bytes: 0,
            added: 0,
            items,
            runs,
            written: Vec::new(),
            spills: Spills::default(),
            held: None,
        }
    }

    /// Bytes held in memory now.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    /// What was spilled so far.
    pub fn spills(&self) -> Spills {
        self.spills
    }

    /// Whether an item with this key would be kept: its payload need not be made if not.
    pub fn wants(&self, key: &[u8]) -> bool {
        match &self.items {
            // A later item with an equal key comes after, so it must be strictly smaller to get in.
            Items::Top(heap) if heap.len() >= self.limit => heap.peek().is_some_and(|last| key < &*last.key),
            _ => true,
        }
    }

    /// Adds an item.
    pub fn add(&mut self, key: &[u8], payload: &[u8]) -> Result<()> {
        self.add_parts(key, &[payload])
    }

    /// Adds an item, whose payload is made of these parts.
    pub fn add_parts(&mut self, key: &[u8], payload: &[&[u8]]) -> Result<()> {
        self.added += 1;
        if let Items::Top(heap) = &mut self.items
            && heap.len() >= self.limit
        {
            match heap.peek() {
                Some(last) if key < &*last.key => self.used_bytes -= last.bytes(),
                _ => return Ok(()),
            }
            heap.pop();
        }
        let bytes = key.len() + payload.iter().map(|part| part.len()).sum::<usize>() + ITEM_BYTES;
        self.make_room(bytes)?;
        self.used_bytes += bytes;
        match &mut self.items {
            Items::List(list) => list.push(key, payload),
            Items::Top(heap) => {
                heap.push(Item { key: key.into(), added: self.added, payload: payload.concat().into() });
            }
        }
        if self.used_bytes > self.memory_limit_bytes {
            self.spill()?;
        }
        Ok(())
    }

    /// Counts an item before it is taken. What is there goes to disk if there is no memory for both, or a large one would exceed the limit
    /// by much.
    fn make_room(&mut self, bytes: usize) -> Result<()> {
        let wanted = self.used_bytes + bytes;
        if self.runs.is_none() {
            if wanted > self.memory_limit_bytes {
                bail!(
                    Code::QUERY_EXCEEDED_MEMORY_LIMIT_NO_DISK_USE_ALLOWED,
                    "Sort exceeded memory limit of {} bytes, but did not opt in to external sorting.",
                    self.memory_limit_bytes
                );
            }
            return self.count(wanted);
        }
        let is_over = bytes > self.memory_limit_bytes / LARGE_PART && wanted > self.memory_limit_bytes;
        if self.used_bytes > 0 && (is_over || self.count(wanted).is_err()) {
            self.spill()?;
            return self.count(bytes);
        }
        self.count(wanted)
    }

    /// Counts so many bytes from now on.
    fn count(&mut self, bytes: usize) -> Result<()> {
        let bytes = bytes.next_multiple_of(COUNTED_BYTES) as u64;
        match &mut self.held {
            Some(held) if held.bytes() == bytes => Ok(()),
            Some(held) => held.set(bytes),
            None if bytes <= COUNTED_BYTES as u64 => Ok(()),
            None => {
                self.held = Some(sheaf_meter::reserve(bytes)?);
                Ok(())
            }
        }
    }

    /// Ends adding; gives the items in order.
    pub fn finish(mut self) -> Result<Sorted> {
        if self.written.is_empty() {
            let memory = self.take_sorted()?;
            return Sorted::new(Vec::new(), memory, self.limit, self.held.take());
        }
        // What is in memory goes to disk as well where the readers of the runs need its room.
        let of_readers = readers(&self.written);
        let all = self.written.iter().copied().fold(Extent::default(), Extent::and);
        let is_large = all.item() > self.memory_limit_bytes / LARGE_PART;
        if self.used_bytes > 0
            && (is_large
                || of_readers > self.memory_limit_bytes
                || self.count(self.used_bytes + of_readers + all.payload).is_err())
        {
            self.write_run()?;
        }
        self.merge_until_few()?;
        let payload = self.written.iter().map(|run| run.payload).max().unwrap_or(0);
        self.count(self.used_bytes + readers(&self.written) + payload)?;
        let runs = match &mut self.runs {
            Some(runs) => runs.open()?,
            None => Vec::new(),
        };
        let memory = self.take_sorted()?;
        Sorted::new(runs, memory, self.limit, self.held.take())
    }

    /// Merges runs until those that are left can be read together: with large items there may be thousands.
    fn merge_until_few(&mut self) -> Result<()> {
        let mut at = 0;
        while self.written.len() > 2 && readers(&self.written) > self.memory_limit_bytes {
            if at + 1 >= self.written.len() {
                at = 0;
            }
            // Runs beside each other, so that items of equal keys stay in the order in which they were added.
            let count = count_to_merge(&self.written[at..], self.written.len(), self.memory_limit_bytes);
            self.merge(at..at + count)?;
            at += 1;
        }
        Ok(())
    }

    fn merge(&mut self, which: Range<usize>) -> Result<()> {
        let Some(runs) = &mut self.runs else { return Ok(()) };
        let merged = self.written[which.clone()].iter().copied().fold(Extent::default(), Extent::and);
        // Beside what is read, the item that is written.
        let held = sheaf_meter::reserve((readers(&self.written[which.clone()]) + merged.item()) as u64)?;
        let mut items =
            Sorted::new(runs.open_some(which.clone())?, Store::default(), self.limit, Some(held))?;
        runs.merge(which.clone(), &mut items)?;
        self.written.splice(which, [merged]);
        Ok(())
    }

    fn take_sorted(&mut self) -> Result<Store> {
        self.used_bytes = 0;
        match &mut self.items {
            Items::List(list) => {
                let mut list = std::mem::take(list);
                list.sort()?;
                Ok(list)
            }
            Items::Top(heap) => {
                let mut list = Store::default();
                for item in std::mem::take(heap).into_sorted_vec() {
                    list.push(&item.key, &[&item.payload]);
                }
                Ok(list)
            }
        }
    }

    fn spill(&mut self) -> Result<()> {
        let (records, bytes) = self.write_run()?;
        self.spills.count += 1;
        self.spills.records += records;
        self.spills.bytes += bytes;
        Ok(())
    }

    /// Moves what is in memory to disk; says how many items and bytes that were.
    fn write_run(&mut self) -> Result<(u64, u64)> {
        let items = self.take_sorted()?;
        let bytes: u64 = items.iter().map(|(key, payload)| (key.len() + payload.len()) as u64).sum();
        if let Some(runs) = &mut self.runs {
            runs.write(&mut items.iter())?;
        }
        self.written.push(Extent::of(items.iter()));
        let records = items.len() as u64;
        drop(items);
        self.count(0)?;
        Ok((records, bytes))
    }
}
