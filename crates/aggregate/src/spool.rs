//! Documents that are read several times, and go to disk when they outgrow their memory.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::Result;
use sheaf_meter::Held;
use sheaf_query::sort::{Run, Runs};

use sheaf_rows::{Cx, Operator, Row, Step, temporary_runs};

/// Memory is accounted in steps of this.
const COUNTED_BYTES: u64 = 64 << 10;

/// Documents in the order in which they came.
pub(crate) struct Spool {
    /// Behind those on disk.
    documents: Arc<Vec<DocBuf>>,
    bytes: u64,
    /// Their account, in steps.
    held: Held,
    runs: Option<Box<dyn Runs + Send>>,
}

impl Spool {
    pub(crate) fn new(cx: &Cx<'_>) -> Result<Spool> {
        let runs = cx.limits.allow_disk_use.then(temporary_runs);
        Ok(Spool { documents: Arc::default(), bytes: 0, held: sheaf_meter::reserve(0)?, runs })
    }

    /// Keeps a document.
    ///
    /// Errors: `QueryExceededMemoryLimitNoDiskUseAllowed`.
    pub(crate) fn add(&mut self, document: DocBuf, cx: &Cx<'_>) -> Result<()> {
        let bytes = document.as_bytes().len() as u64 + 64;
        if let Err(refused) = self.count(self.bytes + bytes) {
            if self.bytes == 0 || self.runs.is_none() {
                return Err(refused);
            }
            self.write()?;
            self.count(bytes)?;
        }
        self.bytes += bytes;
        self.documents().push(document);
        if self.held.bytes() <= cx.limits.memory_bytes as u64 {
            return Ok(());
        }
        cx.check_memory(self.held.bytes() as usize, |limit| {
            format!("Exceeded memory limit of {limit} bytes for $facet, but didn't allow external sort.")
        })?;
        self.write()
    }

    fn documents(&mut self) -> &mut Vec<DocBuf> {
        Arc::get_mut(&mut self.documents).expect("nobody reads before all have come")
    }

    fn count(&mut self, bytes: u64) -> Result<()> {
        if bytes > self.held.bytes() { self.held.set(bytes.next_multiple_of(COUNTED_BYTES)) } else { Ok(()) }
    }

    /// Moves what is in memory to disk, if that is allowed.
    fn write(&mut self) -> Result<()> {
        if let Some(runs) = &mut self.runs {
            runs.write(&mut self.documents.iter().map(|document| (&[][..], document.as_bytes())))?;
            self.documents().clear();
            self.bytes = 0;
            self.held.set(0)?;
        }
        Ok(())
    }

    /// All documents, from the first.
    pub(crate) fn read(&mut self) -> Result<Reading> {
        let runs = match &mut self.runs {
            Some(runs) => runs.open()?,
            None => Vec::new(),
        };
        Ok(Reading {
            runs: runs.into_iter(),
            run: None,
            documents: self.documents.clone(),
            at: 0,
            read: Vec::new(),
        })
    }
}

/// A [`Spool`] being read.
pub(crate) struct Reading {
    runs: std::vec::IntoIter<Run>,
    run: Option<Run>,
    documents: Arc<Vec<DocBuf>>,
    /// How many of the documents in memory were given.
    at: usize,
    /// The document that came from disk last.
    read: Vec<u8>,
}

impl Operator for Reading {
    fn work(&mut self, _cx: &mut Cx<'_>) -> Result<Step> {
        loop {
            if let Some(run) = &mut self.run
                && run.read(&mut self.read)?
            {
                return Ok(Step::Row);
            }
            self.run = self.runs.next();
            if self.run.is_none() {
                self.at += 1;
                return Ok(if self.at <= self.documents.len() { Step::Row } else { Step::Eof });
            }
        }
    }

    fn row(&self) -> Row<'_> {
        match self.at {
            0 => Row::of(RawDoc::new(&self.read)),
            at => self.documents.get(at - 1).map_or(Row::default(), |document| Row::of(document.as_raw())),
        }
    }

    fn inputs(&mut self, _visit: &mut dyn FnMut(&mut dyn Operator)) {}
}
