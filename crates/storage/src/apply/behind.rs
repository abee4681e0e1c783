//! Batches that a start writes to memtables on a thread of their own: meanwhile the next entries are taken apart.
//!
//! Nobody reads yet but who applies the log. It may lag as long as it inserts, which asks nothing of the database; before anything else it
//! catches up.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Scope;

use rocksdb::WriteBatch;
use sheaf_errors::{Code, Error, Result};

use crate::critical::{Critical, must};
use crate::db::Db;
use crate::order::{Condvar, Mutex, rank};

/// The way to the thread that writes. It ends when this is dropped.
pub(crate) struct Behind<'s> {
    batches: SyncSender<WriteBatch>,
    writing: &'s Writing,
}

/// What is under way. Its lock is a leaf.
#[derive(Default)]
pub(crate) struct Writing {
    state: Mutex<{ rank::LEAF }, State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// A batch is handed over and not written yet.
    busy: bool,
    /// Why one could not be written: none that follow it is.
    error: Option<Error>,
}

impl<'s> Behind<'s> {
    /// Starts the thread.
    ///
    /// Errors: there can be none.
    pub fn start(scope: &'s Scope<'s, '_>, db: &'s Db, writing: &'s Writing) -> Result<Behind<'s>> {
        let (batches, handed) = sync_channel(1);
        std::thread::Builder::new()
            .name("sheaf-start".to_owned())
            .spawn_scoped(scope, move || writing.run(db, &handed))
            .map_err(|error| Error::new(Code::INTERNAL_ERROR, format!("no thread for a start: {error}")))?;
        Ok(Behind { batches, writing })
    }

    /// Hands a batch over, when the one before it is written.
    ///
    /// Errors: that one could not be.
    pub fn write(&self, batch: WriteBatch) -> Result<()> {
        self.catch_up()?;
        self.writing.state.lock().busy = true;
        must!(self.batches.send(batch).is_ok(), "the thread that writes a start's batches has ended");
        Ok(())
    }

    /// Waits until everything is written.
    ///
    /// Errors: it could not be.
    pub fn catch_up(&self) -> Result<()> {
        let mut state = self.writing.state.lock();
        while state.busy {
            self.writing.changed.wait(&mut state);
        }
        state.error.clone().map_or(Ok(()), Err)
    }
}

impl Writing {
    fn run(&self, db: &Db, handed: &Receiver<WriteBatch>) {
        // Who waits for it would wait for ever.
        let _critical = Critical::enter("applying the log at a start");
        for batch in handed {
            // Long enough for whoever would read too early.
            #[cfg(test)]
            if batch.size_in_bytes() > 1 << 20 {
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            let written = db.write(batch);
            let mut state = self.state.lock();
            state.busy = false;
            state.error = written.err();
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Cf;
    use crate::options::Options;

    #[test]
    fn batches_come_in_order_and_are_there_after_catching_up() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), &Options::new(dir.path())).unwrap();
        let writing = Writing::default();
        std::thread::scope(|scope| {
            let behind = Behind::start(scope, &db, &writing).unwrap();
            for round in 0..200u32 {
                let mut batch = WriteBatch::default();
                batch.put_cf(db.cf(Cf::Records), b"same", round.to_be_bytes());
                batch.put_cf(db.cf(Cf::Records), round.to_be_bytes(), b"own");
                behind.write(batch).unwrap();
            }
            behind.catch_up().unwrap();
            assert_eq!(&*db.get(Cf::Records, b"same").unwrap().unwrap(), 199u32.to_be_bytes());
            for round in 0..200u32 {
                assert!(
                    db.get(Cf::Records, &round.to_be_bytes()).unwrap().is_some(),
                    "batch {round} is lost"
                );
            }
        });
    }
}
