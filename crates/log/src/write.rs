//! Entries' bytes on their way into a file.

use std::fs::File;
use std::io::{self, IoSlice};

use rustix::io::{Errno, pwritev};

/// What a file that was written before has its bytes replaced by: whole pages, so that none has to be read first.
const ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];
pub(crate) const PAGE_BYTES: u64 = 4096;

/// Writes header and parts at `at`, with `zeros` behind them.
pub(crate) fn write_entry(
    file: &File,
    header: &[u8],
    parts: &[&[u8]],
    at: u64,
    zeros: usize,
) -> io::Result<()> {
    let slice = |n: usize| match n.checked_sub(1) {
        None => IoSlice::new(header),
        Some(part) if part < parts.len() => IoSlice::new(parts[part]),
        Some(part) if part == parts.len() => IoSlice::new(&ZEROS[..zeros]),
        Some(_) => IoSlice::new(&[]),
    };
    // Most entries have one part.
    let mut few: [IoSlice<'_>; 4] = std::array::from_fn(slice);
    if parts.len() + 2 <= few.len() {
        return write_all(file, &mut few[..parts.len() + 2], at);
    }
    let mut many: Vec<IoSlice<'_>> = (0..parts.len() + 2).map(slice).collect();
    write_all(file, &mut many, at)
}

/// As many zeros.
pub(crate) fn zeros(len: usize) -> IoSlice<'static> {
    IoSlice::new(&ZEROS[..len])
}

/// Writes all of it at `at`.
pub(crate) fn write_all(file: &File, mut rest: &mut [IoSlice<'_>], mut at: u64) -> io::Result<()> {
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match pwritev(file, rest, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                at += n as u64;
                IoSlice::advance_slices(&mut rest, n);
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
