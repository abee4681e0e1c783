//! A sorter bounded in memory.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use sheaf_errors::{Code, Result, bail};
use sheaf_meter::Held;

use super::runs::{Run, Runs};
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
    spills: Spills,
    /// The operation's account of `used_bytes`, in steps.
    held: Option<Held>,
}

/// Memory is accounted in steps of this.
const COUNTED_BYTES: usize = 64 << 10;

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
        self.used_bytes += key.len() + payload.iter().map(|part| part.len()).sum::<usize>() + ITEM_BYTES;
        match &mut self.items {
            Items::List(list) => list.push(key, payload),
            Items::Top(heap) => {
                heap.push(Item { key: key.into(), added: self.added, payload: payload.concat().into() });
            }
        }
        if self.used_bytes > self.memory_limit_bytes {
            self.spill()?
        }
        self.count_memory()
    }

    fn count_memory(&mut self) -> Result<()> {
        let bytes = self.used_bytes.next_multiple_of(COUNTED_BYTES) as u64;
        match &mut self.held {
            Some(held) if held.bytes() == bytes => Ok(()),
            Some(held) => held.set(bytes),
            None if self.used_bytes < COUNTED_BYTES => Ok(()),
            None => {
                self.held = Some(sheaf_meter::reserve(bytes)?);
                Ok(())
            }
        }
    }

    /// Ends adding; gives the items in order.
    pub fn finish(mut self) -> Result<Sorted> {
        let runs: Vec<Run> = match (self.spills.count > 0, &mut self.runs) {
            (true, Some(runs)) => runs.open()?,
            _ => Vec::new(),
        };
        let memory = self.take_sorted()?;
        Sorted::new(runs, memory, self.limit, self.held.take())
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
        if self.runs.is_none() {
            bail!(
                Code::QUERY_EXCEEDED_MEMORY_LIMIT_NO_DISK_USE_ALLOWED,
                "Sort exceeded memory limit of {} bytes, but did not opt in to external sorting.",
                self.memory_limit_bytes
            );
        }
        let items = self.take_sorted()?;
        self.spills.count += 1;
        self.spills.records += items.len() as u64;
        self.spills.bytes +=
            items.iter().map(|(key, payload)| (key.len() + payload.len()) as u64).sum::<u64>();
        match &mut self.runs {
            Some(runs) => runs.write(&mut items.iter()),
            None => Ok(()),
        }
    }
}
