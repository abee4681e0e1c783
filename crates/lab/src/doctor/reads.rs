//! How long the disk takes to read a block that no cache of this machine has.

use std::fs::File;
use std::io::{Result, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::generate::Random;
use crate::stats::median;

/// Bytes of a read, and what a buffer for it must begin at a multiple of.
const BLOCK: usize = 4096;

/// Latencies of reads, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reads {
    /// Median of a single reader.
    pub median_us: f64,
    /// 99.9th percentile of several readers at once.
    pub p999_us: f64,
    /// Reads of the several readers.
    pub count: usize,
}

/// Reads blocks at random places of a new file of so many bytes past the page cache, first one at a time, then by several
/// readers, each part for so long.
///
/// Errors: the file system cannot read past the page cache, or the disk fails.
pub fn measure(folder: &Path, bytes: usize, readers: usize, each: Duration) -> Result<Reads> {
    let mut file = tempfile::tempfile_in(folder)?;
    // Not all the same byte: some file systems compress, and holes are not read.
    let block: Vec<u8> =
        (0..1u64 << 20).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    for _ in 0..bytes.div_ceil(block.len()) {
        file.write_all(&block)?;
    }
    file.sync_data()?;
    fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::DIRECT)?;
    let blocks = (bytes / BLOCK).max(1) as u64;
    let alone = read(&file, blocks, 0, each)?;
    let all = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=readers.max(1))
            .map(|n| {
                scope.spawn({
                    let file = &file;
                    move || read(file, blocks, n, each)
                })
            })
            .collect();
        let mut all = Vec::new();
        for thread in threads {
            all.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok::<_, std::io::Error>(all)
    })?;
    let mut sorted = all;
    sorted.sort_by(f64::total_cmp);
    let at = ((sorted.len() as f64 * 0.999) as usize).min(sorted.len().saturating_sub(1));
    Ok(Reads {
        median_us: median(&alone).unwrap_or(0.0),
        p999_us: sorted.get(at).copied().unwrap_or(0.0),
        count: sorted.len(),
    })
}

/// Latencies of one reader, at least of one read.
fn read(file: &File, blocks: u64, number: usize, each: Duration) -> Result<Vec<f64>> {
    let mut random = Random::for_client(7, number);
    let mut buffer = vec![0; 2 * BLOCK];
    let from = buffer.as_ptr().align_offset(BLOCK);
    let (began, mut took) = (Instant::now(), Vec::new());
    while took.is_empty() || began.elapsed() < each {
        let at = Instant::now();
        file.read_exact_at(&mut buffer[from..from + BLOCK], random.below(blocks) * BLOCK as u64)?;
        took.push(at.elapsed().as_secs_f64() * 1e6);
    }
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_timed_and_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        // A file system in memory may refuse; then there is nothing to see.
        if let Ok(reads) = measure(folder.path(), 1 << 20, 3, Duration::from_millis(5)) {
            assert!(reads.count >= 3 && reads.median_us > 0.0 && reads.p999_us > 0.0, "{reads:?}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
