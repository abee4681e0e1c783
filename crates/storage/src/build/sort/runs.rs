//! Sorted runs in files, and their merge.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use sheaf_errors::{Error, Result};

use super::{BUFFER_BYTES_MAX, BUFFER_BYTES_MIN, ITEM_COST};
use crate::build::beside::Give;
use crate::build::item::{Lengths, lengths, read_lengths};
use crate::folder::{file_error, remove};

/// So many runs are merged at once: each has a file open, and a buffer.
const MERGED_MAX: usize = if cfg!(test) { 3 } else { 64 };

/// Hands over the items of all runs, keys and values, in the order of the keys. Their buffers take so much memory together.
pub(super) fn merge(runs: &[PathBuf], memory_bytes: usize, each: Give<'_>) -> Result<()> {
    let failed = |path: &Path, e: std::io::Error| file_error("reading a sorted run", path, &e);
    let buffer = (memory_bytes / runs.len().max(1)).clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX);
    let mut heap = BinaryHeap::new();
    for path in runs {
        let run = Run::open(path, buffer).map_err(|e| failed(path, e))?;
        heap.extend(run.map(Reverse));
    }
    while let Some(mut first) = heap.peek_mut() {
        sheaf_meter::tick(ITEM_COST)?;
        each(&first.0.bytes[..first.0.key_len], &first.0.bytes[first.0.key_len..])?;
        let more = first.0.advance().map_err(|e| failed(&runs[0], e))?;
        if !more {
            PeekMut::pop(first);
        }
    }
    Ok(())
}

/// Merges the oldest runs into larger ones until there are so few that they can be merged at once.
pub(super) fn few(runs: Vec<PathBuf>, dir: &Path, memory_bytes: usize) -> Result<Vec<PathBuf>> {
    let mut runs = VecDeque::from(runs);
    let mut made = 0;
    while runs.len() > MERGED_MAX {
        let some: Vec<PathBuf> = runs.drain(..MERGED_MAX).collect();
        let path = dir.join(format!("merged{made:06}.run"));
        made += 1;
        let mut out = RunWriter::create(&path)?;
        merge(&some, memory_bytes, &mut |key, value| out.write(key, value))?;
        out.finish()?;
        some.iter().try_for_each(|run| remove(run))?;
        runs.push_back(path);
    }
    Ok(runs.into())
}

/// Writes a run.
pub(super) struct RunWriter<'p> {
    path: &'p Path,
    out: BufWriter<File>,
}

impl<'p> RunWriter<'p> {
    pub fn create(path: &'p Path) -> Result<RunWriter<'p>> {
        let file = File::create(path).map_err(|e| RunWriter::failed(path, &e))?;
        Ok(RunWriter { path, out: BufWriter::with_capacity(BUFFER_BYTES_MAX, file) })
    }

    fn failed(path: &Path, error: &std::io::Error) -> Error {
        file_error("writing a sorted run", path, error)
    }

    pub fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut write = || {
            self.out.write_all(&lengths(key, value))?;
            self.out.write_all(key)?;
            self.out.write_all(value)
        };
        write().map_err(|e| RunWriter::failed(self.path, &e))
    }

    pub fn finish(self) -> Result<()> {
        let written = self.out.into_inner();
        written.map(drop).map_err(|e| RunWriter::failed(self.path, &e.into_error()))
    }
}

/// A spilled run, at one of its items.
struct Run {
    file: BufReader<File>,
    bytes: Vec<u8>,
    key_len: usize,
}

impl Run {
    /// At its first item, if it has any.
    fn open(path: &Path, buffer: usize) -> std::io::Result<Option<Run>> {
        let file = BufReader::with_capacity(buffer, File::open(path)?);
        let mut run = Run { file, bytes: Vec::new(), key_len: 0 };
        Ok(run.advance()?.then_some(run))
    }

    fn advance(&mut self) -> std::io::Result<bool> {
        let mut lengths = Lengths::default();
        if let Err(error) = self.file.read_exact(&mut lengths) {
            return if error.kind() == std::io::ErrorKind::UnexpectedEof { Ok(false) } else { Err(error) };
        }
        let (key_len, value_len) = read_lengths(&lengths);
        self.key_len = key_len;
        self.bytes.resize(key_len + value_len, 0);
        self.file.read_exact(&mut self.bytes)?;
        Ok(true)
    }
}

impl PartialEq for Run {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Run {}
impl PartialOrd for Run {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Run {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.bytes[..self.key_len].cmp(&other.bytes[..other.key_len])
    }
}
