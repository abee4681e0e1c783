//! A plan's documents as the input of a pipeline.

use std::sync::Arc;

use parking_lot::Mutex;
use sheaf_aggregate::{RunCx, Source};
use sheaf_bson::DocBuf;
use sheaf_errors::{Code, Result, bail};

use super::Db;
use super::tally::Tally;
use crate::run::{Executor, ReadCx};

/// A run that finds its database again at each pull.
pub struct Planned {
    run: Arc<Mutex<Executor>>,
    /// The command that used it last.
    seen: u64,
    /// The stage for which it runs, if that is measured.
    tally: Option<Arc<Tally>>,
}

impl Planned {
    pub fn new(executor: Executor, tally: Option<Arc<Tally>>) -> Self {
        Planned { run: Arc::new(Mutex::new(executor)), seen: 0, tally }
    }

    /// A run that somebody else looks at, too.
    pub fn shared(run: Arc<Mutex<Executor>>) -> Self {
        Planned { run, seen: 0, tally: None }
    }
}

impl Drop for Planned {
    fn drop(&mut self) {
        if let Some(tally) = &self.tally {
            tally.read(&self.run.lock());
        }
    }
}

impl Source for Planned {
    fn next(&mut self, cx: &mut RunCx<'_>) -> Result<Option<DocBuf>> {
        let Some(db) = cx.database.as_any().downcast_ref::<Db>() else {
            bail!(Code::INTERNAL_ERROR, "a plan was run without the database that it was made for");
        };
        let mut run = self.run.lock();
        if self.seen != db.id {
            // Not at the first use: then the plan is as new as the view.
            if self.seen != 0 {
                run.resume(&db.view)?;
            }
            self.seen = db.id;
            db.open(&self.run);
        }
        let variables: Vec<_> = cx.variables().map(|(slot, value)| (slot, value.clone())).collect();
        let interrupt = &*db.hooks.interrupt;
        let read = ReadCx {
            variables: &variables,
            allow_disk_use: cx.options.allow_disk_use,
            ..ReadCx::new(&db.view, &interrupt, db.now_millis)
        };
        Ok(run.next_document(&read)?.map(DocBuf::from_bytes))
    }
}
