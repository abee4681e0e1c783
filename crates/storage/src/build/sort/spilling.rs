//! Runs are sorted and written on a thread of their own.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use sheaf_errors::Result;

use super::batch::Batch;
use crate::critical::impossible;

/// Sorts and writes one batch after another, beside whoever fills the next one.
#[derive(Default)]
pub(super) struct Spilling {
    thread: Option<Thread>,
    /// A batch is being written.
    is_writing: bool,
}

struct Thread {
    full: SyncSender<(Batch, PathBuf)>,
    written: Receiver<Result<Batch>>,
    handle: JoinHandle<()>,
}

impl Spilling {
    /// Writes a batch to a file, and gives an empty one as soon as there is one.
    ///
    /// Errors: those of writing the batch before; the operation has to stop.
    pub fn write(&mut self, mut full: Batch, path: PathBuf) -> Result<Batch> {
        let empty = self.wait()?.unwrap_or_default();
        if self.thread.is_none() {
            self.thread = start();
        }
        // Where no thread can be had, this one does it.
        let Some(thread) = &self.thread else {
            full.write_run(&path)?;
            return Ok(full);
        };
        if thread.full.send((full, path)).is_err() {
            impossible!("the thread that writes sorted runs has ended");
        }
        self.is_writing = true;
        Ok(empty)
    }

    /// Waits for the batch that is being written; it is empty by then.
    fn wait(&mut self) -> Result<Option<Batch>> {
        let Some(thread) = self.thread.as_ref().filter(|_| self.is_writing) else { return Ok(None) };
        self.is_writing = false;
        match thread.written.recv() {
            Ok(written) => written.map(Some),
            Err(_) => impossible!("the thread that writes sorted runs has ended"),
        }
    }

    /// Waits until everything is written.
    ///
    /// Errors: as those of [`Spilling::write`].
    pub fn finish(mut self) -> Result<()> {
        self.wait().map(drop)
    }
}

impl Drop for Spilling {
    /// Nothing is written into a folder that may be removed next.
    fn drop(&mut self) {
        if let Some(Thread { full, written, handle }) = self.thread.take() {
            drop((full, written));
            let _ = handle.join();
        }
    }
}

fn start() -> Option<Thread> {
    let meter = sheaf_meter::current();
    let (full, batches) = sync_channel::<(Batch, PathBuf)>(1);
    let (give, written) = sync_channel(1);
    let write = move || {
        let _metered = meter.map(sheaf_meter::enter);
        for (mut batch, path) in batches {
            let written = batch.write_run(&path).map(|()| batch);
            if give.send(written).is_err() {
                return;
            }
        }
    };
    let handle = std::thread::Builder::new().name("sheaf-sort".to_owned()).spawn(write).ok()?;
    Some(Thread { full, written, handle })
}
