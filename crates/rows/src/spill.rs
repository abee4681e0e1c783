//! Sorted runs in temporary files: what an operator keeps beyond its memory.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use sheaf_errors::{Code, Error, Result};
use sheaf_query::sort::{KEY_AT_HAND, READ_AHEAD, ReadRun, Run, Runs, Sorted};

/// Runs in files that vanish with their last handle.
struct FileRuns {
    files: Vec<OneRun>,
}

/// A run's file, and how large it is.
struct OneRun {
    file: Arc<File>,
    bytes: usize,
}

/// Where the files are; the system's folder for temporary ones until somebody says otherwise.
static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Puts the files of this process into a folder, which is made when it is needed: what is set aside is data, and belongs on the disk that has
/// room for data (MongoDB's `_tmp`). Who comes first decides.
pub fn spill_into(folder: PathBuf) {
    _ = FOLDER.set(folder);
}

fn temporary_file() -> std::io::Result<File> {
    let Some(folder) = FOLDER.get() else { return tempfile::tempfile() };
    match tempfile::tempfile_in(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            std::fs::create_dir_all(folder)?;
            tempfile::tempfile_in(folder)
        }
        made => made,
    }
}

/// A place on disk for the runs of what outgrows its memory.
pub fn temporary_runs() -> Box<dyn Runs + Send> {
    Box::new(FileRuns { files: Vec::new() })
}

fn disk(error: std::io::Error) -> Error {
    Error::new(Code::OUT_OF_DISK_SPACE, format!("error in a sort's temporary file: {error}"))
}

/// A run being written.
struct Writing {
    out: BufWriter<File>,
    bytes: usize,
}

impl Writing {
    fn begin() -> Result<Writing> {
        let file = temporary_file().map_err(disk)?;
        Ok(Writing { out: BufWriter::with_capacity(1 << 18, file), bytes: 0 })
    }

    fn add(&mut self, key: &[u8], payload: &[u8]) -> Result<()> {
        sheaf_meter::tick_for(key.len() + payload.len())?;
        for part in [key, payload] {
            self.out.write_all(&(part.len() as u32).to_le_bytes()).map_err(disk)?;
            self.out.write_all(part).map_err(disk)?;
            self.bytes += 4 + part.len();
        }
        Ok(())
    }

    fn end(self) -> Result<OneRun> {
        let file = self.out.into_inner().map_err(|e| disk(e.into_error()))?;
        Ok(OneRun { file: Arc::new(file), bytes: self.bytes })
    }
}

impl Runs for FileRuns {
    fn write(&mut self, items: &mut dyn Iterator<Item = (&[u8], &[u8])>) -> Result<()> {
        let mut run = Writing::begin()?;
        for (key, payload) in items {
            run.add(key, payload)?;
        }
        self.files.push(run.end()?);
        Ok(())
    }

    fn open_some(&mut self, which: Range<usize>) -> Result<Vec<Run>> {
        let open = |run: &OneRun| -> Run {
            let from_start = FromStart { file: run.file.clone(), at: 0 };
            let file = BufReader::with_capacity(run.bytes.min(READ_AHEAD), from_start);
            Box::new(FileRun { file, key_begin: 0 })
        };
        let runs = self.files.iter().take(which.end).skip(which.start);
        Ok(runs.map(open).collect())
    }

    fn merge(&mut self, which: Range<usize>, merged: &mut Sorted) -> Result<()> {
        let (mut run, mut key) = (Writing::begin()?, Vec::new());
        while merged.advance()? {
            merged.copy_key(&mut key)?;
            run.add(&key, merged.payload())?;
        }
        self.files.splice(which, [run.end()?]);
        Ok(())
    }
}

/// Reads a file from its start, whoever else reads it.
struct FromStart {
    file: Arc<File>,
    at: u64,
}

impl Read for FromStart {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

struct FileRun {
    file: BufReader<FromStart>,
    /// Where the item's key begins.
    key_begin: u64,
}

impl FileRun {
    /// Reads the length of a key or a payload; nothing at the end of the file.
    fn length(&mut self) -> Result<Option<usize>> {
        let mut head = [0; 4];
        match self.file.read_exact(&mut head) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(disk(error)),
            Ok(()) => Ok(Some(u32::from_le_bytes(head) as usize)),
        }
    }

    /// Reads so many bytes in the place of what `into` holds.
    fn bytes(&mut self, length: usize, into: &mut Vec<u8>) -> Result<()> {
        into.clear();
        // Mostly all of it was read ahead.
        if let Some(whole) = self.file.buffer().get(..length) {
            into.extend_from_slice(whole);
            self.file.consume(length);
            return Ok(());
        }
        // A large one takes what it needs and no more, and what was there goes before it comes.
        if into.capacity() < length {
            *into = Vec::new();
            into.reserve_exact(length);
        }
        into.resize(length, 0);
        self.file.read_exact(into).map_err(disk)
    }

    fn skip(&mut self, bytes: usize) {
        let ahead = bytes.min(self.file.buffer().len());
        self.file.consume(ahead);
        // If there is more, all that was read ahead is used up, and the next is read from there.
        self.file.get_mut().at += (bytes - ahead) as u64;
    }
}

impl ReadRun for FileRun {
    fn advance(&mut self, key: &mut Vec<u8>) -> Result<Option<usize>> {
        let Some(length) = self.length()? else { return Ok(None) };
        self.key_begin = self.file.get_ref().at - self.file.buffer().len() as u64;
        self.bytes(length.min(KEY_AT_HAND), key)?;
        self.skip(length.saturating_sub(KEY_AT_HAND));
        Ok(Some(length))
    }

    fn key_at(&self, at: usize, into: &mut [u8]) -> Result<()> {
        self.file.get_ref().file.read_exact_at(into, self.key_begin + at as u64).map_err(disk)
    }

    fn payload(&mut self, payload: &mut Vec<u8>) -> Result<()> {
        match self.length()? {
            Some(length) => self.bytes(length, payload),
            None => Err(Error::new(Code::OUT_OF_DISK_SPACE, "a sort's temporary file ends within an item")),
        }
    }
}

#[cfg(test)]
mod tests {
    use sheaf_query::sort::Sorter;

    use super::*;

    /// Keys that are equal for long, or all the way, beside short ones, in runs of a few items.
    #[test]
    fn long_keys_are_in_order_and_items_of_equal_ones_as_they_came() {
        let mut expected: Vec<(Vec<u8>, Vec<u8>)> = (0..120_u32)
            .map(|at| {
                let mut key = vec![7; [10, KEY_AT_HAND, KEY_AT_HAND + 1, 3 * KEY_AT_HAND][at as usize % 4]];
                if at % 3 > 0 {
                    key.push((at % 5) as u8);
                }
                (key, at.to_le_bytes().to_vec())
            })
            .collect();
        // So little that runs are merged several times, and so much that they are read together.
        for memory in [25_000, 200_000, 1_000_000] {
            let mut sorter = Sorter::new(None, memory, Some(temporary_runs()));
            expected.sort_by(|a, b| a.1.cmp(&b.1));
            for (key, payload) in &expected {
                sorter.add(key, payload).unwrap();
            }
            assert!(sorter.spills().count > 1);
            expected.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| number(&a.1).cmp(&number(&b.1))));
            let got: Vec<u32> = sorter.finish().unwrap().map(|payload| number(&payload.unwrap())).collect();
            let wanted: Vec<u32> = expected.iter().map(|(_, payload)| number(payload)).collect();
            assert_eq!(got, wanted, "{memory}");
        }
    }

    fn number(payload: &[u8]) -> u32 {
        u32::from_le_bytes(payload.try_into().unwrap())
    }
}
