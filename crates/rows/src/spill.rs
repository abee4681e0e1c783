//! Sorted runs in temporary files: what an operator keeps beyond its memory.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use sheaf_errors::{Code, Error, Result};
use sheaf_query::sort::{ReadRun, Run, Runs};

/// Runs in files that vanish with their last handle.
struct FileRuns {
    files: Vec<Arc<File>>,
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
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
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

impl Runs for FileRuns {
    fn write(&mut self, items: &mut dyn Iterator<Item = (&[u8], &[u8])>) -> Result<()> {
        let file = temporary_file().map_err(disk)?;
        let mut out = BufWriter::with_capacity(1 << 18, file);
        for (key, payload) in items {
            sheaf_meter::tick_for(key.len() + payload.len())?;
            for part in [key, payload] {
                out.write_all(&(part.len() as u32).to_le_bytes()).map_err(disk)?;
                out.write_all(part).map_err(disk)?;
            }
        }
        self.files.push(Arc::new(out.into_inner().map_err(|e| disk(e.into_error()))?));
        Ok(())
    }

    fn open(&mut self) -> Result<Vec<Run>> {
        let open = |file: &Arc<File>| -> Run {
            Box::new(FileRun(BufReader::with_capacity(1 << 18, FromStart { file: file.clone(), at: 0 })))
        };
        Ok(self.files.iter().map(open).collect())
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

struct FileRun(BufReader<FromStart>);

impl FileRun {
    /// Reads the next part in the place of what `into` holds; false at the end of the file, which may come only before an item's length.
    fn part(&mut self, into: &mut Vec<u8>) -> Result<bool> {
        let mut head = [0; 4];
        match self.0.read_exact(&mut head) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(false),
            other => other.map_err(disk)?,
        }
        let length = u32::from_le_bytes(head) as usize;
        into.clear();
        // Mostly all of it was read ahead.
        if let Some(whole) = self.0.buffer().get(..length) {
            into.extend_from_slice(whole);
            self.0.consume(length);
            return Ok(true);
        }
        into.resize(length, 0);
        self.0.read_exact(into).map_err(disk)?;
        Ok(true)
    }
}

impl ReadRun for FileRun {
    fn read(&mut self, key: &mut Vec<u8>, payload: &mut Vec<u8>) -> Result<bool> {
        if !self.part(key)? {
            return Ok(false);
        }
        if !self.part(payload)? {
            return Err(Error::new(Code::OUT_OF_DISK_SPACE, "a sort's temporary file ends within an item"));
        }
        Ok(true)
    }
}
