//! Sorting more than fits in memory: sorted runs, spilled to files, merged when they are read.
//!
//! Items are pairs of byte strings, ordered by the first. Runs are temporary: nothing is synced, and what a crash leaves
//! is removed at the next start.
//!
//! What costs most is done by two threads: one run is sorted and written while the next one's items come ([`spilling`]), and runs are
//! merged while what they give is taken.

mod batch;
mod runs;
mod spilling;

use std::path::{Path, PathBuf};

use sheaf_errors::Result;

use super::beside::beside;
use crate::keys::PREFIX;
use batch::Batch;
use spilling::Spilling;

/// Buffers of the runs that are merged.
const BUFFER_BYTES_MIN: usize = 16 << 10;
const BUFFER_BYTES_MAX: usize = 1 << 20;

/// What handing over an item costs, in the meter's units.
const ITEM_COST: u32 = 8;

/// Takes items in any order and gives them back sorted.
pub(super) struct Sorter {
    /// Where runs are spilled to.
    dir: PathBuf,
    /// Items and their bytes stay below this: one half of it while they come, the other while those before are sorted.
    memory_bytes: usize,
    batch: Batch,
    runs: Vec<PathBuf>,
    spilling: Spilling,
}

impl Sorter {
    /// `dir` exists and is this sorter's own.
    pub fn new(dir: &Path, memory_bytes: usize) -> Sorter {
        Sorter {
            dir: dir.to_owned(),
            memory_bytes,
            batch: Batch::default(),
            runs: Vec::new(),
            spilling: Spilling::default(),
        }
    }

    /// Adds an item whose key is the number `ident` and these parts, one after another.
    ///
    /// Errors: those of writing an earlier run; the operation has to stop.
    pub fn push(&mut self, ident: u32, key: &[&[u8]], value: &[u8]) -> Result<()> {
        let size = PREFIX + key.iter().map(|part| part.len()).sum::<usize>() + value.len();
        if self.batch.size_with(size) > self.memory_bytes / 2 {
            self.spill()?;
        }
        self.batch.push(ident, key, value);
        Ok(())
    }

    /// Runs that did not fit in memory.
    #[cfg(test)]
    pub fn spilled(&self) -> usize {
        self.runs.len()
    }

    fn spill(&mut self) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let path = self.dir.join(format!("{:06}.run", self.runs.len()));
        self.runs.push(path.clone());
        let full = std::mem::take(&mut self.batch);
        self.batch = self.spilling.write(full, path)?;
        Ok(())
    }

    /// Hands all items over in order, keys and values.
    ///
    /// Errors: those of `each`; those of reading and writing runs; the operation has to stop.
    pub fn finish(mut self, mut each: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
        if self.runs.is_empty() {
            return self.batch.sorted(|item, key_len| {
                let (key, value) = item.split_at(key_len);
                each(key, value)
            });
        }
        self.spill()?;
        let Sorter { dir, runs, spilling, memory_bytes, batch } = self;
        drop(batch);
        spilling.finish()?;
        let runs = runs::few(runs, &dir, memory_bytes)?;
        beside("sheaf-merge", |give| runs::merge(&runs, memory_bytes, give), each)
    }
}

#[cfg(test)]
mod tests {
    use super::batch::ITEM_BYTES;
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
            prop_assert_eq!(sorter.spilled() > 0, room > memory / 2);
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
