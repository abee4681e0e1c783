//! Sorting in memory, and beyond it on disk where that is allowed.

use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sheaf_bson::RawDoc;
use sheaf_errors::{Code, Error, Result};
use sheaf_query::sort::{Run, Runs, SortPattern, Sorted, Sorter};

use super::{Cx, Row, Stage, Step, count};

/// An order of rows.
#[derive(Clone)]
pub struct SortOrder {
    pattern: Arc<SortPattern>,
}

impl SortOrder {
    /// The order of a pattern.
    pub fn new(pattern: Arc<SortPattern>) -> Self {
        SortOrder { pattern }
    }

    /// Appends a row's comparable sort key.
    pub fn key(&self, cx: &Cx<'_>, row: Row<'_>, out: &mut Vec<u8>) -> Result<()> {
        match row.doc {
            Some(doc) => self.pattern.put_key_bytes(doc, RawDoc::EMPTY, out),
            // A row that is still a key: its record has the fields.
            None => match cx.view.get(cx.collection, row.record)? {
                Some(doc) => self.pattern.put_key_bytes(doc.as_raw(), RawDoc::EMPTY, out),
                None => Ok(()),
            },
        }
    }
}

enum State {
    Reading(Option<Sorter>),
    Giving(Sorted),
}

/// Reads all rows, then gives them in order.
pub struct Sort {
    id: usize,
    input: Box<dyn Stage>,
    order: SortOrder,
    limit: u64,
    state: State,
    /// The row being given: length of the record key, record key, document.
    current: Vec<u8>,
    buffer: Vec<u8>,
    key: Vec<u8>,
    spills: Arc<Spills>,
}

impl Sort {
    pub fn new(id: usize, input: Box<dyn Stage>, order: SortOrder, limit: u64) -> Self {
        let state = State::Reading(None);
        let (current, buffer, key) = (Vec::new(), Vec::new(), Vec::new());
        Sort { id, input, order, limit, state, current, buffer, key, spills: Arc::default() }
    }

    fn add(&mut self, cx: &mut Cx<'_>) -> Result<()> {
        let row = self.input.row();
        self.key.clear();
        self.order.key(cx, row, &mut self.key)?;
        self.buffer.clear();
        self.buffer.extend_from_slice(&(row.record.len() as u32).to_le_bytes());
        self.buffer.extend_from_slice(row.record);
        self.buffer.extend_from_slice(row.doc.unwrap_or(RawDoc::EMPTY).as_bytes());
        let stats = &mut cx.stats[self.id];
        stats.sorted_rows += 1;
        stats.sorted_bytes += self.buffer.len() as u64;
        let State::Reading(sorter) = &mut self.state else { return Ok(()) };
        let sorter = sorter.get_or_insert_with(|| {
            let runs = cx.allow_disk_use.then(|| temporary_runs(Some(self.spills.clone())));
            Sorter::new((self.limit > 0).then_some(self.limit), cx.sort_memory_bytes, runs)
        });
        sorter.add(&self.key, &self.buffer)
    }
}

impl Stage for Sort {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        if let State::Reading(sorter) = &mut self.state {
            let step = self.input.work(cx)?;
            match step {
                Step::Row => self.add(cx)?,
                Step::More => {}
                Step::Eof => {
                    let Some(sorter) = sorter.take() else {
                        return Ok(count(&mut cx.stats[self.id], Step::Eof));
                    };
                    self.state = State::Giving(sorter.finish()?);
                    let stats = &mut cx.stats[self.id];
                    stats.spills = self.spills.count.load(Ordering::Relaxed);
                    stats.spilled_bytes = self.spills.bytes.load(Ordering::Relaxed);
                }
            }
            return Ok(count(&mut cx.stats[self.id], Step::More));
        }
        let State::Giving(sorted) = &mut self.state else {
            return Ok(count(&mut cx.stats[self.id], Step::Eof));
        };
        match sorted.next() {
            Some(payload) => {
                self.current = payload?;
                Ok(count(&mut cx.stats[self.id], Step::Row))
            }
            None => Ok(count(&mut cx.stats[self.id], Step::Eof)),
        }
    }

    fn row(&self) -> Row<'_> {
        let Some(head) = self.current.first_chunk::<4>() else { return Row::default() };
        let (record, doc) = self.current[4..].split_at(u32::from_le_bytes(*head) as usize);
        Row { doc: Some(RawDoc::new(doc)), record, key: None }
    }

    fn suspend(&mut self) {
        self.input.suspend();
    }
}

/// What sorts have put on disk.
#[derive(Default, Debug)]
pub struct Spills {
    /// Times.
    pub count: AtomicU64,
    /// Rows.
    pub rows: AtomicU64,
    /// Bytes.
    pub bytes: AtomicU64,
}

/// Sorted runs in temporary files, which vanish with their last handle.
struct FileRuns {
    files: Vec<Arc<std::fs::File>>,
    spills: Option<Arc<Spills>>,
}

/// A place on disk for the runs of a sort that outgrows its memory. What goes there is counted in `spills`.
pub fn temporary_runs(spills: Option<Arc<Spills>>) -> Box<dyn Runs + Send> {
    Box::new(FileRuns { files: Vec::new(), spills })
}

fn disk(error: std::io::Error) -> Error {
    Error::new(Code::OUT_OF_DISK_SPACE, format!("error in a sort's temporary file: {error}"))
}

impl Runs for FileRuns {
    fn write(&mut self, items: &mut dyn Iterator<Item = (&[u8], &[u8])>) -> Result<()> {
        let file = tempfile::tempfile().map_err(disk)?;
        let mut out = BufWriter::with_capacity(1 << 18, file);
        let (mut rows, mut bytes) = (0, 0);
        for (key, payload) in items {
            sheaf_meter::tick_for(key.len() + payload.len())?;
            rows += 1;
            bytes += (key.len() + payload.len() + 8) as u64;
            for part in [key, payload] {
                out.write_all(&(part.len() as u32).to_le_bytes()).map_err(disk)?;
                out.write_all(part).map_err(disk)?;
            }
        }
        self.files.push(Arc::new(out.into_inner().map_err(|e| disk(e.into_error()))?));
        if let Some(spills) = &self.spills {
            spills.count.fetch_add(1, Ordering::Relaxed);
            spills.rows.fetch_add(rows, Ordering::Relaxed);
            spills.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    fn open(&mut self) -> Result<Vec<Run>> {
        let open = |file: &Arc<std::fs::File>| -> Run {
            Box::new(FileRun(BufReader::with_capacity(1 << 18, FromStart { file: file.clone(), at: 0 })))
        };
        Ok(self.files.iter().map(open).collect())
    }
}

/// Reads a file from its start, whoever else reads it.
struct FromStart {
    file: Arc<std::fs::File>,
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
    fn part(&mut self) -> Result<Option<Vec<u8>>> {
        let mut head = [0; 4];
        match self.0.read_exact(&mut head) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
            other => other.map_err(disk)?,
        }
        let mut bytes = vec![0; u32::from_le_bytes(head) as usize];
        self.0.read_exact(&mut bytes).map_err(disk)?;
        Ok(Some(bytes))
    }
}

impl Iterator for FileRun {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        match (self.part(), self.part()) {
            (Ok(Some(key)), Ok(Some(payload))) => Some(Ok((key, payload))),
            (Err(error), _) | (_, Err(error)) => Some(Err(error)),
            _ => None,
        }
    }
}
