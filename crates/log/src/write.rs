//! Entries' bytes on their way into a file.

use std::fs::File;
use std::io::{self, IoSlice, Seek, SeekFrom, Write};

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
pub(crate) fn write_all(mut file: &File, mut rest: &mut [IoSlice<'_>], at: u64) -> io::Result<()> {
    // Zeros behind the entry before, if there were any, are written over.
    file.seek(SeekFrom::Start(at))?;
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match file.write_vectored(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => IoSlice::advance_slices(&mut rest, n),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
