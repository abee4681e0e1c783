//! Buffers that are filled anew for each row.

use sheaf_errors::Result;
use sheaf_meter::Held;

use crate::{KEPT_BYTES, let_go};

/// A buffer that an operator fills for each row: with its key, or with what is kept of it. A large one is counted for as long as it is
/// there, and does not come to twice its size by growing.
#[derive(Default)]
pub struct Scratch {
    /// What it is filled with.
    pub bytes: Vec<u8>,
    held: Held,
}

impl Scratch {
    /// Empties it for what will be about so large.
    ///
    /// Errors: `ExceededMemoryLimit`.
    pub fn begin(&mut self, room: usize) -> Result<&mut Vec<u8>> {
        self.bytes.clear();
        if room > KEPT_BYTES && room > self.bytes.capacity() {
            self.let_go();
            self.held = sheaf_meter::reserve(room as u64)?;
            self.bytes.reserve_exact(room);
        }
        Ok(&mut self.bytes)
    }

    /// It is filled, and counted if it became larger than it was to be.
    ///
    /// Errors: `ExceededMemoryLimit`.
    pub fn settle(&mut self) -> Result<()> {
        let bytes = self.bytes.capacity();
        if bytes <= KEPT_BYTES || bytes as u64 <= self.held.bytes() {
            return Ok(());
        }
        self.held = Held::default();
        self.held = sheaf_meter::reserve(bytes as u64)?;
        Ok(())
    }

    /// Empties it. Its memory stays for the next row unless that is much.
    pub fn let_go(&mut self) {
        let_go(&mut self.bytes);
        self.held = Held::default();
    }
}
