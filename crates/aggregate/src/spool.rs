//! Documents that are read several times, and go to disk when they outgrow their memory.

use std::sync::Arc;

use sheaf_bson::DocBuf;
use sheaf_errors::Result;
use sheaf_meter::Held;
use sheaf_query::sort::{Run, Runs};

use crate::source::{RunCx, Source};

/// Documents in the order in which they came.
pub(crate) struct Spool {
    /// Behind those on disk.
    documents: Arc<Vec<DocBuf>>,
    held: Held,
    runs: Option<Box<dyn Runs + Send>>,
}

impl Spool {
    pub(crate) fn new(cx: &RunCx<'_>) -> Result<Spool> {
        let runs = if cx.options.allow_disk_use { cx.database.sort_runs()? } else { None };
        Ok(Spool { documents: Arc::default(), held: sheaf_meter::reserve(0)?, runs })
    }

    /// Keeps a document.
    ///
    /// Errors: `QueryExceededMemoryLimitNoDiskUseAllowed`.
    pub(crate) fn add(&mut self, document: DocBuf, cx: &RunCx<'_>) -> Result<()> {
        self.held.grow(document.as_bytes().len() as u64 + 64)?;
        let documents = Arc::get_mut(&mut self.documents).expect("nobody reads before all have come");
        documents.push(document);
        if self.held.bytes() <= cx.options.stage_memory_bytes as u64 {
            return Ok(());
        }
        cx.check_memory(self.held.bytes() as usize, |limit| {
            format!("Exceeded memory limit of {limit} bytes for $facet, but didn't allow external sort.")
        })?;
        // Without a place on disk there is only the operation's memory.
        if let Some(runs) = &mut self.runs {
            runs.write(&mut documents.iter().map(|document| (&[][..], document.as_bytes())))?;
            documents.clear();
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
        Ok(Reading { runs: runs.into_iter(), run: None, documents: self.documents.clone(), at: 0 })
    }
}

/// A [`Spool`] being read.
pub(crate) struct Reading {
    runs: std::vec::IntoIter<Run>,
    run: Option<Run>,
    documents: Arc<Vec<DocBuf>>,
    at: usize,
}

impl Source for Reading {
    fn next(&mut self, _cx: &mut RunCx<'_>) -> Result<Option<DocBuf>> {
        loop {
            if let Some(item) = self.run.as_mut().and_then(Iterator::next) {
                return Ok(Some(DocBuf::from_bytes(item?.1)));
            }
            self.run = self.runs.next();
            if self.run.is_none() {
                let document = self.documents.get(self.at).cloned();
                self.at += 1;
                return Ok(document);
            }
        }
    }
}
