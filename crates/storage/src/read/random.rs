//! Records by chance, without reading all of them.
//!
//! Walkers go down the keys: at each place that halves a range they go left or right in proportion to what RocksDB estimates
//! that both sides have, until a range is small. One of its records is taken, and kept or dropped by chance. How likely a
//! range was is known exactly, as is how many records it turned out to have: the more likely it was for its number, the
//! rarer its records are kept. So every record is as likely as any other however wrong the estimates are, except where they
//! say less than a third of what is there.

use std::collections::BTreeSet;

use sheaf_errors::Result;

use crate::catalog::Collection;
use crate::db::Cf;
use crate::keys::full_key;
use crate::options::Interrupt;
use crate::read::cursor::{Direction, Range, RecordCursor};
use crate::read::view::View;

/// A range of so few bytes in files is not halved any more, as estimates are of whole blocks, of 16 KiB: unless it has more
/// than so many records in memory.
const FEW_BYTES: f64 = (32 << 10) as f64;
const MANY_IN_MEMORY: f64 = 200.0;
/// Neither is one that should have so few records for each walker: halving it costs more than to read them.
const FEW_RECORDS: f64 = 25.0;
/// What a record takes in memory besides its document, about.
const ENTRY_BYTES: f64 = 32.0;
/// So many times less than what is there the estimates may say.
const ERROR: f64 = 3.0;
/// A side that has nothing as far as is known is not left out altogether.
const LEAST_SHARE: f64 = 1.0 / 256.0;
/// Walkers are sent again where too many came back with nothing; not for ever.
const ROUNDS: usize = 20;

/// Records from the key `from`, which is one's, to those before `to`.
struct Part {
    from: Vec<u8>,
    to: Vec<u8>,
    /// How likely a walker comes here.
    share: f64,
    walkers: usize,
}

/// What is estimated of a range.
#[derive(Clone, Copy)]
struct Estimate {
    file_bytes: f64,
    memory_bytes: f64,
}

/// What is needed at every step.
struct Walk<'w> {
    view: &'w View,
    ident: u32,
    cursor: RecordCursor,
    records: f64,
    /// Records to a byte of files, where they are compressed, and of memory.
    density: (f64, f64),
    random: &'w mut dyn FnMut() -> u64,
    go_on: Interrupt<'w>,
}

impl View {
    /// The keys of so many different records, drawn by chance and in an order by chance; `None` if they were not found in
    /// reasonable time. The collection should have many times as many.
    ///
    /// Errors: those of reading, and of `go_on`.
    pub fn random_records(
        &self,
        collection: &Collection,
        wanted: usize,
        random: &mut dyn FnMut() -> u64,
        go_on: Interrupt<'_>,
    ) -> Result<Option<Vec<Vec<u8>>>> {
        let mut last = self.records(collection, Range::ALL, Direction::Backward)?;
        let mut cursor = self.records(collection, Range::ALL, Direction::Forward)?;
        if !last.next()? || !cursor.next()? {
            return Ok((wanted == 0).then(Vec::new));
        }
        let first = cursor.key().to_vec();
        let behind = [last.key(), &[0]].concat();
        let records = collection.count().max(1) as f64;
        let (ident, density) = (collection.ident, (1.0, 1.0));
        let mut walk = Walk { view: self, ident, cursor, records, density, random, go_on };
        walk.density = walk.density(&first, &behind, collection.data_bytes() as f64 / records);
        let mut found = BTreeSet::new();
        for _ in 0..ROUNDS {
            let missing = wanted.saturating_sub(found.len());
            if missing == 0 {
                let mut found: Vec<Vec<u8>> = found.into_iter().collect();
                walk.shuffle(&mut found);
                found.truncate(wanted);
                return Ok(Some(found));
            }
            let walkers = (missing as f64 * ERROR * 1.1) as usize + 4;
            walk.send(Part { from: first.clone(), to: behind.clone(), share: 1.0, walkers }, &mut found)?;
        }
        Ok(None)
    }
}

impl Walk<'_> {
    /// Sends walkers, and adds what they come back with.
    fn send(&mut self, all: Part, found: &mut BTreeSet<Vec<u8>>) -> Result<()> {
        let estimate = self.estimate(&all.from, &all.to);
        let mut parts = vec![(all, estimate)];
        while let Some((part, estimate)) = parts.pop() {
            (self.go_on)()?;
            let in_memory = estimate.memory_bytes * self.density.1;
            let small = self.records * part.share <= FEW_RECORDS * part.walkers as f64
                || (estimate.file_bytes <= FEW_BYTES && in_memory <= MANY_IN_MEMORY);
            let Some(middle) = middle(&part.from, &part.to).filter(|_| !small) else {
                self.take(&part, found)?;
                continue;
            };
            let right = self.cursor.seek(&middle)?.then(|| self.cursor.key().to_vec());
            let Some(right) = right.filter(|right| *right < part.to) else {
                parts.push((Part { to: middle, ..part }, estimate));
                continue;
            };
            let sides = [self.estimate(&part.from, &right), self.estimate(&right, &part.to)];
            let [left, all] = [self.likely(sides[0]), self.likely(sides[0]) + self.likely(sides[1])];
            let share = if all > 0.0 { left / all } else { 0.5 };
            let share = share.clamp(LEAST_SHARE, 1.0 - LEAST_SHARE);
            let left = (0..part.walkers).filter(|_| self.chance() < share).count();
            let below = [
                Part { to: right.clone(), from: part.from, share: part.share * share, walkers: left },
                Part {
                    from: right,
                    to: part.to,
                    share: part.share * (1.0 - share),
                    walkers: part.walkers - left,
                },
            ];
            parts.extend(below.into_iter().zip(sides).filter(|(part, _)| part.walkers > 0));
        }
        Ok(())
    }

    /// Each walker takes another record of the range, and keeps it if that makes all of them equally likely.
    fn take(&mut self, part: &Part, found: &mut BTreeSet<Vec<u8>>) -> Result<()> {
        let mut taken: Vec<Vec<u8>> = Vec::new();
        let mut records = 0;
        let mut there = self.cursor.seek(&part.from)?;
        while there && self.cursor.key() < &part.to[..] {
            records += 1;
            if taken.len() < part.walkers {
                taken.push(self.cursor.key().to_vec());
            } else if let Some(place) = taken.get_mut(((self.random)() % records) as usize) {
                self.cursor.key().clone_into(place);
            }
            (self.go_on)()?;
            there = self.cursor.next()?;
        }
        let kept = records as f64 / part.share / (self.records * ERROR);
        for key in taken {
            if self.chance() < kept {
                found.insert(key);
            }
        }
        Ok(())
    }

    fn estimate(&self, from: &[u8], to: &[u8]) -> Estimate {
        let (from, to) = (full_key(self.ident, from), full_key(self.ident, to));
        let db = &self.view.at.published.db;
        let file_bytes = db.size_of(Cf::Records, &from, &to) as f64;
        Estimate { file_bytes, memory_bytes: db.memtable_bytes(Cf::Records, &from, &to) as f64 }
    }

    /// Records to a byte in files and in memory, by what a document takes on average.
    fn density(&self, from: &[u8], to: &[u8], document: f64) -> (f64, f64) {
        let all = self.estimate(from, to);
        let memory = 1.0 / (document + ENTRY_BYTES);
        let in_files = self.records - all.memory_bytes * memory;
        // Nearly all may be in memory a second time, as it has been changed.
        (in_files.max(self.records / 8.0) / all.file_bytes.max(1.0), memory)
    }

    /// How many records there seem to be.
    fn likely(&self, estimate: Estimate) -> f64 {
        estimate.file_bytes * self.density.0 + estimate.memory_bytes * self.density.1
    }

    /// A number from 0 to 1.
    fn chance(&mut self) -> f64 {
        ((self.random)() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn shuffle(&mut self, keys: &mut [Vec<u8>]) {
        for at in (1..keys.len()).rev() {
            keys.swap(at, ((self.random)() % (at as u64 + 1)) as usize);
        }
    }
}

/// Bytes in the middle between two keys; `None` if they are next to each other.
fn middle(from: &[u8], to: &[u8]) -> Option<Vec<u8>> {
    let same = from.iter().zip(to).take_while(|(a, b)| a == b).count();
    let number = |key: &[u8]| {
        let mut bytes = [0; 16];
        let rest = &key[same..key.len().min(same + 15)];
        // The first byte stays free, for sums.
        bytes[1..=rest.len()].copy_from_slice(rest);
        u128::from_be_bytes(bytes)
    };
    let (low, high) = (number(from), number(to));
    let mid = (low + high) / 2;
    if mid <= low {
        return None;
    }
    let mut key = from[..same].to_vec();
    key.extend_from_slice(&mid.to_be_bytes()[1..]);
    Some(key)
}
