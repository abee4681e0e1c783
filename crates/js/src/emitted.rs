//! What a map function has emitted.

use std::ops::Deref;

use sheaf_bson::OwnedValue;
use sheaf_errors::{Result, bail};
use sheaf_meter::Held;

/// What one call emits takes at most so much (`internalQueryMaxJsEmitBytes`).
const MAX_BYTES: usize = 100 << 20;

/// Keys and values that `emit` was called with, in their order, which the operation's account pays for.
#[derive(Default)]
pub struct Emitted {
    pairs: Vec<(OwnedValue, OwnedValue)>,
    bytes: usize,
    held: Held,
}

impl Deref for Emitted {
    type Target = [(OwnedValue, OwnedValue)];

    fn deref(&self) -> &Self::Target {
        &self.pairs
    }
}

/// Bytes of a pair's data.
fn size((key, value): &(OwnedValue, OwnedValue)) -> usize {
    key.data().len() + value.data().len()
}

/// What a pair takes of memory.
fn memory(pair: &(OwnedValue, OwnedValue)) -> u64 {
    (size(pair) + size_of_val(pair)) as u64
}

impl Emitted {
    /// Nothing yet; what comes is taken from the account of `held`.
    pub(crate) fn new(held: Held) -> Self {
        Emitted { pairs: Vec::new(), bytes: 0, held }
    }

    /// Bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a pair.
    ///
    /// Errors: 31292 above the limit; `ExceededMemoryLimit`.
    pub(crate) fn push(&mut self, pair: (OwnedValue, OwnedValue)) -> Result<()> {
        let bytes = self.bytes + size(&pair);
        if bytes > MAX_BYTES {
            bail!(31292, "Size of emitted values exceeds the set size limit of {MAX_BYTES} bytes");
        }
        self.held.grow(memory(&pair))?;
        self.bytes = bytes;
        self.pairs.push(pair);
        Ok(())
    }

    /// Forgets all but the first ones.
    pub(crate) fn truncate(&mut self, len: usize) {
        for pair in self.pairs.drain(len..) {
            self.bytes -= size(&pair);
            self.held.shrink(memory(&pair));
        }
    }

    /// Takes all.
    pub(crate) fn take(&mut self) -> Emitted {
        let rest = self.held.beside(0).expect("nothing can always be had");
        std::mem::replace(self, Emitted::new(rest))
    }
}
