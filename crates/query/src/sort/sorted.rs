//! What a sorter gives.

use std::cmp::Ordering;
use std::ops::Range;

use sheaf_errors::Result;
use sheaf_meter::Held;

use super::runs::{KEY_AT_HAND, Run};
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
    /// The payload of the item that was given, if it comes from a run. Of those that wait no payload is held: all of them together may be
    /// a hundred times what there is room for.
    payload: Vec<u8>,
    /// The account of what was sorted in memory, and of what is held of runs.
    _held: Option<Held>,
}

/// A run and its next item's key, or the beginning of a long one.
struct Head {
    run: Run,
    key: Vec<u8>,
    key_bytes: usize,
}

impl Sorted {
    /// Merges runs and what is sorted in memory; gives at most `limit` items.
    pub(super) fn new(runs: Vec<Run>, memory: Store, limit: usize, held: Option<Held>) -> Result<Sorted> {
        let runs: Vec<Head> =
            runs.into_iter().map(|run| Head { run, key: Vec::new(), key_bytes: 0 }).collect();
        let (heap, payload) = (Vec::new(), Vec::new());
        let mut sorted =
            Sorted { runs, memory, at: 0, heap, given: false, left: limit, payload, _held: held };
        for source in 0..sorted.runs.len() {
            if sorted.read(source)? {
                sorted.heap.push(source);
            }
        }
        if sorted.memory.len() > 0 {
            sorted.heap.push(sorted.runs.len());
        }
        for place in (0..sorted.heap.len() / 2).rev() {
            sorted.sink(place)?;
        }
        Ok(sorted)
    }

    /// Moves to the next item; false if there are no more.
    ///
    /// Errors: those of the runs; nothing more comes behind one.
    pub fn advance(&mut self) -> Result<bool> {
        let moved = self.move_on();
        if moved.is_err() {
            self.left = 0;
        }
        moved
    }

    fn move_on(&mut self) -> Result<bool> {
        if std::mem::take(&mut self.given) {
            if !self.read(self.heap[0])? {
                _ = self.heap.swap_remove(0);
            }
            self.sink(0)?;
        }
        if self.left == 0 || self.heap.is_empty() {
            return Ok(false);
        }
        if let Some(head) = self.runs.get_mut(self.heap[0]) {
            head.run.payload(&mut self.payload)?;
        }
        self.left -= 1;
        self.given = true;
        Ok(true)
    }

    /// The item that [`Sorted::advance`] moved to.
    pub fn payload(&self) -> &[u8] {
        match self.heap.first() {
            Some(source) if self.given => match self.runs.get(*source) {
                Some(_) => &self.payload,
                None => self.memory.payload(self.at),
            },
            _ => &[],
        }
    }

    /// The same for who keeps it: without a copy, where it was read from a run.
    fn take_payload(&mut self) -> Vec<u8> {
        match self.heap.first() {
            Some(source) if self.given && self.runs.get(*source).is_some() => {
                std::mem::take(&mut self.payload)
            }
            _ => self.payload().to_vec(),
        }
    }

    /// Puts the key of that item in the place of what this holds.
    pub fn copy_key(&self, key: &mut Vec<u8>) -> Result<()> {
        key.clear();
        let Some(source) = self.heap.first().copied().filter(|_| self.given) else { return Ok(()) };
        let bytes = self.key_bytes(source);
        if key.capacity() < bytes {
            *key = Vec::with_capacity(bytes);
        }
        let at_hand = self.key(source);
        key.extend_from_slice(at_hand);
        if let Some(head) = self.runs.get(source)
            && at_hand.len() < bytes
        {
            key.resize(bytes, 0);
            head.run.key_at(at_hand.len(), &mut key[at_hand.len()..])?;
        }
        Ok(())
    }

    /// Reads a source's next item; false if there is none.
    fn read(&mut self, source: usize) -> Result<bool> {
        match self.runs.get_mut(source) {
            Some(Head { run, key, key_bytes }) => {
                let Some(bytes) = run.advance(key)? else { return Ok(false) };
                *key_bytes = bytes;
                Ok(true)
            }
            None => {
                self.at += 1;
                Ok(self.at < self.memory.len())
            }
        }
    }

    /// What is at hand of a source's key.
    fn key(&self, source: usize) -> &[u8] {
        match self.runs.get(source) {
            Some(head) => &head.key,
            None => self.memory.key(self.at),
        }
    }

    fn key_bytes(&self, source: usize) -> usize {
        self.runs.get(source).map_or_else(|| self.memory.key(self.at).len(), |head| head.key_bytes)
    }

    fn compare(&self, a: usize, b: usize) -> Result<Ordering> {
        let (left, right) = (self.key(a), self.key(b));
        let both = left.len().min(right.len());
        let mut order = left[..both].cmp(&right[..both]);
        if order.is_eq() {
            order = self.compare_from(a, b, both)?;
        }
        Ok(order.then(a.cmp(&b)))
    }

    /// Compares two keys that are equal up to here.
    fn compare_from(&self, a: usize, b: usize, mut at: usize) -> Result<Ordering> {
        let (left, right) = (self.key_bytes(a), self.key_bytes(b));
        let end = left.min(right);
        let mut rooms = (Vec::new(), Vec::new());
        while at < end {
            let part = at..end.min(at + KEY_AT_HAND);
            at = part.end;
            sheaf_meter::tick_for(part.len())?;
            let order =
                self.key_part(a, part.clone(), &mut rooms.0)?.cmp(self.key_part(b, part, &mut rooms.1)?);
            if order.is_ne() {
                return Ok(order);
            }
        }
        Ok(left.cmp(&right))
    }

    /// A part of a source's key, read into `room` if it is not at hand.
    fn key_part<'k>(&'k self, source: usize, part: Range<usize>, room: &'k mut Vec<u8>) -> Result<&'k [u8]> {
        if let Some(at_hand) = self.key(source).get(part.clone()) {
            return Ok(at_hand);
        }
        room.resize(part.len(), 0);
        if let Some(head) = self.runs.get(source) {
            head.run.key_at(part.start, room)?;
        }
        Ok(room)
    }

    /// Brings the source at this place of the heap to where it belongs below it.
    fn sink(&mut self, mut place: usize) -> Result<()> {
        loop {
            let mut least = place;
            for child in [2 * place + 1, 2 * place + 2] {
                if child < self.heap.len() && self.compare(self.heap[child], self.heap[least])?.is_lt() {
                    least = child;
                }
            }
            if least == place {
                return Ok(());
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
            Ok(true) => Some(Ok(self.take_payload())),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }
}
