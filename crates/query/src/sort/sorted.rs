//! What a sorter gives.

use std::cmp::Ordering;

use sheaf_errors::Result;
use sheaf_meter::Held;

use super::runs::Run;
use super::store::Store;

/// The items of a [`Sorter`](super::Sorter) in order: payloads.
pub struct Sorted {
    /// What came to disk, from the first to the last.
    runs: Vec<Head>,
    /// What stayed in memory, which was added after all of them, and which of it is next.
    memory: Store,
    at: usize,
    /// The sources that have something left, as a heap: the one with the smallest key comes first, of equal keys the earlier run's. What
    /// is in memory is the last of all sources.
    heap: Vec<usize>,
    /// Whether the first source of the heap has given its item.
    given: bool,
    left: usize,
    /// The account of what was sorted in memory.
    _held: Option<Held>,
}

/// A run and its next item.
struct Head {
    run: Run,
    key: Vec<u8>,
    payload: Vec<u8>,
}

impl Sorted {
    /// Merges runs and what is sorted in memory; gives at most `limit` items.
    pub(super) fn new(runs: Vec<Run>, memory: Store, limit: usize, held: Option<Held>) -> Result<Sorted> {
        let runs: Vec<Head> =
            runs.into_iter().map(|run| Head { run, key: Vec::new(), payload: Vec::new() }).collect();
        let mut sorted =
            Sorted { runs, memory, at: 0, heap: Vec::new(), given: false, left: limit, _held: held };
        for source in 0..sorted.runs.len() {
            if sorted.read(source)? {
                sorted.heap.push(source);
            }
        }
        if sorted.memory.len() > 0 {
            sorted.heap.push(sorted.runs.len());
        }
        for place in (0..sorted.heap.len() / 2).rev() {
            sorted.sink(place);
        }
        Ok(sorted)
    }

    /// Moves to the next item; false if there are no more.
    ///
    /// Errors: those of the runs; nothing more comes behind one.
    pub fn advance(&mut self) -> Result<bool> {
        if std::mem::take(&mut self.given) {
            let source = self.heap[0];
            match self.read(source) {
                Ok(true) => {}
                Ok(false) => _ = self.heap.swap_remove(0),
                Err(error) => {
                    self.left = 0;
                    return Err(error);
                }
            }
            self.sink(0);
        }
        if self.left == 0 || self.heap.is_empty() {
            return Ok(false);
        }
        self.left -= 1;
        self.given = true;
        Ok(true)
    }

    /// The item that [`Sorted::advance`] moved to.
    pub fn payload(&self) -> &[u8] {
        match self.heap.first() {
            Some(source) if self.given => match self.runs.get(*source) {
                Some(head) => &head.payload,
                None => self.memory.payload(self.at),
            },
            _ => &[],
        }
    }

    /// Reads a source's next item; false if there is none.
    fn read(&mut self, source: usize) -> Result<bool> {
        match self.runs.get_mut(source) {
            Some(Head { run, key, payload }) => run.read(key, payload),
            None => {
                self.at += 1;
                Ok(self.at < self.memory.len())
            }
        }
    }

    fn key(&self, source: usize) -> &[u8] {
        match self.runs.get(source) {
            Some(head) => &head.key,
            None => self.memory.key(self.at),
        }
    }

    fn compare(&self, a: usize, b: usize) -> Ordering {
        self.key(a).cmp(self.key(b)).then(a.cmp(&b))
    }

    /// Brings the source at this place of the heap to where it belongs below it.
    fn sink(&mut self, mut place: usize) {
        loop {
            let mut least = place;
            for child in [2 * place + 1, 2 * place + 2] {
                if child < self.heap.len() && self.compare(self.heap[child], self.heap[least]).is_lt() {
                    least = child;
                }
            }
            if least == place {
                return;
            }
            self.heap.swap(place, least);
            place = least;
        }
    }
}

impl Iterator for Sorted {
    type Item = Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.advance() {
            Ok(true) => Some(Ok(self.payload().to_vec())),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }
}
