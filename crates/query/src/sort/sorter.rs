//! A sorter bounded in memory.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use sheaf_errors::{Code, Result, bail};
use sheaf_meter::Held;

/// Bytes that a sort may hold in memory before it spills or gives up.
pub const MEMORY_LIMIT_BYTES: usize = 100 * 1024 * 1024;

/// Where a sorter puts what does not fit in memory: runs, each sorted.
pub trait Runs {
    /// Keeps one run; the items come in order.
    fn write(&mut self, items: &mut dyn Iterator<Item = (&[u8], &[u8])>) -> Result<()>;
    /// Gives the runs back, in the order in which they were written; each time anew.
    fn open(&mut self) -> Result<Vec<Run>>;
}

/// One run being read: keys and payloads in order.
pub type Run = Box<dyn Iterator<Item = Result<(Vec<u8>, Vec<u8>)>> + Send>;

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
    List(Vec<Item>),
    Top(BinaryHeap<Item>),
}

#[derive(PartialEq, Eq)]
struct Item {
    key: Box<[u8]>,
    added: u64,
    payload: Box<[u8]>,
}

impl Item {
    fn bytes(&self) -> usize {
        self.key.len() + self.payload.len() + size_of::<Item>()
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
        let items = if limit == usize::MAX { Items::List(Vec::new()) } else { Items::Top(BinaryHeap::new()) };
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
        let item = Item { key: key.into(), added: self.added, payload: payload.into() };
        self.used_bytes += item.bytes();
        match &mut self.items {
            Items::List(list) => list.push(item),
            Items::Top(heap) => heap.push(item),
        }
        if self.used_bytes > self.memory_limit_bytes {
            self.spill()?
        }
        self.count_memory()
    }

    fn count_memory(&mut self) -> Result<()> {
        let bytes = self.used_bytes.next_multiple_of(COUNTED_BYTES) as u64;
        match &mut self.held {
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
        let mut sources: Vec<Run> = match (self.spills.count > 0, &mut self.runs) {
            (true, Some(runs)) => runs.open()?,
            _ => Vec::new(),
        };
        let memory = self.take_sorted()?;
        sources.push(Box::new(
            memory.into_iter().map(|item| Ok((item.key.into_vec(), item.payload.into_vec()))),
        ));
        let mut sorted =
            Sorted { sources, heads: BinaryHeap::new(), left: self.limit, _held: self.held.take() };
        for source in 0..sorted.sources.len() {
            sorted.advance(source)?;
        }
        Ok(sorted)
    }

    fn take_sorted(&mut self) -> Result<Vec<Item>> {
        self.used_bytes = 0;
        match &mut self.items {
            Items::List(list) => {
                let list = std::mem::take(list);
                let mut order: Vec<u32> = (0..list.len() as u32).collect();
                sheaf_meter::sort_by(&mut order, |a, b| {
                    let (a, b) = (&list[*a as usize], &list[*b as usize]);
                    sheaf_meter::tick_for(a.key.len().min(b.key.len()))?;
                    Ok(a.cmp(b))
                })?;
                let mut list: Vec<Option<Item>> = list.into_iter().map(Some).collect();
                Ok(order.into_iter().filter_map(|at| list[at as usize].take()).collect())
            }
            Items::Top(heap) => Ok(std::mem::take(heap).into_sorted_vec()),
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
            items.iter().map(|item| (item.key.len() + item.payload.len()) as u64).sum::<u64>();
        match &mut self.runs {
            Some(runs) => runs.write(&mut items.iter().map(|item| (&*item.key, &*item.payload))),
            None => Ok(()),
        }
    }
}

/// The items of a [`Sorter`] in order: payloads.
pub struct Sorted {
    sources: Vec<Run>,
    heads: BinaryHeap<Head>,
    left: usize,
    /// The account of what was sorted in memory.
    _held: Option<Held>,
}

/// The next item of one source. The heap's top is the smallest; of equal keys, the earlier run's.
#[derive(PartialEq, Eq)]
struct Head {
    key: Vec<u8>,
    source: usize,
    payload: Vec<u8>,
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key.cmp(&self.key).then(other.source.cmp(&self.source))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Sorted {
    fn advance(&mut self, source: usize) -> Result<()> {
        if let Some((key, payload)) = self.sources[source].next().transpose()? {
            self.heads.push(Head { key, source, payload });
        }
        Ok(())
    }
}

impl Iterator for Sorted {
    type Item = Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let head = self.heads.pop()?;
        self.left -= 1;
        match self.advance(head.source) {
            Ok(()) => Some(Ok(head.payload)),
            Err(error) => {
                self.left = 0;
                Some(Err(error))
            }
        }
    }
}
