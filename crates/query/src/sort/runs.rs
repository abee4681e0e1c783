//! What a sorter puts aside.

use std::ops::Range;

use sheaf_errors::Result;

use super::Sorted;

/// So many bytes of a key are at hand while runs are merged: mostly they decide, and keys may be as large as documents.
pub const KEY_AT_HAND: usize = 16 << 10;

/// So much of a run is read ahead, at most.
pub const READ_AHEAD: usize = 64 << 10;

/// Where a sorter puts what does not fit in memory: runs, each sorted.
pub trait Runs {
    /// Keeps one run; the items come in order.
    fn write(&mut self, items: &mut dyn Iterator<Item = (&[u8], &[u8])>) -> Result<()>;
    /// Gives all runs back, in the order in which they were written; each time anew.
    fn open(&mut self) -> Result<Vec<Run>> {
        self.open_some(0..usize::MAX)
    }
    /// Gives these runs back, or those of them that there are.
    fn open_some(&mut self, which: Range<usize>) -> Result<Vec<Run>>;
    /// Keeps what these runs were merged to, as one run in their place.
    fn merge(&mut self, which: Range<usize>, merged: &mut Sorted) -> Result<()>;
}

/// One run being read: keys and payloads in order.
pub trait ReadRun {
    /// Goes to the next item and puts its key, no more than [`KEY_AT_HAND`] bytes of it, in the place of what this holds. Gives the key's
    /// length; nothing at the end.
    fn advance(&mut self, key: &mut Vec<u8>) -> Result<Option<usize>>;
    /// Reads the key of the item from this place on: as many bytes as there is room for.
    fn key_at(&self, at: usize, into: &mut [u8]) -> Result<()>;
    /// Puts the item's payload in the place of what this holds. To be called once for each item.
    fn payload(&mut self, payload: &mut Vec<u8>) -> Result<()>;
    /// Puts the next item's payload in the place of what this holds, for who needs no keys; false at the end.
    fn read(&mut self, payload: &mut Vec<u8>) -> Result<bool> {
        if self.advance(&mut Vec::new())?.is_none() {
            return Ok(false);
        }
        self.payload(payload)?;
        Ok(true)
    }
}

/// One run being read.
pub type Run = Box<dyn ReadRun + Send>;

/// What is known of a run: how large it is, and its largest key and payload.
#[derive(Clone, Copy, Default)]
pub(super) struct Extent {
    bytes: usize,
    key: usize,
    pub(super) payload: usize,
}

impl Extent {
    /// Of a run with these items.
    pub(super) fn of<'r>(items: impl Iterator<Item = (&'r [u8], &'r [u8])>) -> Extent {
        // Each item takes two lengths besides.
        let one = |(key, payload): (&[u8], &[u8])| Extent {
            bytes: key.len() + payload.len() + 8,
            key: key.len(),
            payload: payload.len(),
        };
        items.map(one).fold(Extent::default(), Extent::and)
    }

    /// Of a run that both were merged to.
    pub(super) fn and(self, other: Extent) -> Extent {
        Extent {
            bytes: self.bytes + other.bytes,
            key: self.key.max(other.key),
            payload: self.payload.max(other.payload),
        }
    }

    /// Its largest item.
    pub(super) fn item(&self) -> usize {
        self.key + self.payload
    }

    /// What its reader holds: what is read ahead, and of each key what is at hand.
    fn reader(&self) -> usize {
        self.bytes.min(READ_AHEAD) + self.key.min(KEY_AT_HAND) + READER_BYTES
    }
}

/// What a reader takes besides its bytes.
const READER_BYTES: usize = 256;

/// What is held of these runs while they are read together, without the item that is given.
pub(super) fn readers(runs: &[Extent]) -> usize {
    runs.iter().map(Extent::reader).sum()
}

/// How many of the runs, from the first, are to be merged, where all of them can not be read together within `limit`. No more than it
/// takes, and two at the least, if there are two.
pub(super) fn count_to_merge(runs: &[Extent], all: usize, limit: usize) -> usize {
    let mut held = 0;
    let fit = runs.iter().take_while(|run| {
        held += run.reader();
        held <= limit
    });
    let fit = fit.count().max(2);
    fit.min((all + 1).saturating_sub(fit)).max(2).min(runs.len())
}
