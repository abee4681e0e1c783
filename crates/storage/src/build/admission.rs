//! When a build may begin and end: beside how many others, and past which writers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sheaf_errors::Result;

use super::PATIENCE;
use super::follow::is_small;
use crate::core::Core;
use crate::locks::Closed;
use crate::options::Interrupt;

/// So many builds that commands run are at work at a time, as MongoDB's `maxNumActiveUserIndexBuilds`: each has threads, and memory to sort in.
const AT_WORK_MAX: usize = 3;

/// While one write takes long, others come past a build that waits for it: each time that it has tried, for so long.
const REST: Duration = Duration::from_millis(200);

/// After so long it waits with the door closed, whoever stands behind it.
const POLITE: Duration = Duration::from_secs(60);

/// A build's place among those at work, as long as it lives.
pub(super) struct Place<'c>(&'c AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Core {
    /// A place among the builds at work. `None`: the collection is so small that none is needed, or it is not there.
    ///
    /// Errors: those of `interrupt`.
    pub(super) fn place_for_build(
        &self,
        namespace: &str,
        interrupt: Interrupt<'_>,
    ) -> Result<Option<Place<'_>>> {
        let collection = self.published.peek_catalog().collection(namespace).cloned();
        if collection.is_none_or(|collection| is_small(&collection)) {
            return Ok(None);
        }
        let at_work = self.definitions.builds().at_work();
        let takes = |now: usize| (now < AT_WORK_MAX).then_some(now + 1);
        while at_work.fetch_update(Ordering::AcqRel, Ordering::Acquire, takes).is_err() {
            self.rest(PATIENCE);
            interrupt()?;
        }
        Ok(Some(Place(at_work)))
    }

    /// Keeps writers out of a collection. While one that is in takes long, the others are let in again and again.
    ///
    /// Errors: those of `interrupt`.
    pub(super) fn close_politely(
        &self,
        collection: &crate::catalog::Collection,
        interrupt: Interrupt<'_>,
    ) -> Result<Closed> {
        let began = Instant::now();
        while began.elapsed() < POLITE {
            if let Some(closed) = self.close_shortly(collection, interrupt)? {
                return Ok(closed);
            }
            self.rest(REST);
        }
        collection.state.gate.close(&self.base.options.block, interrupt)
    }

    /// Waits; the thread's other duties go on.
    fn rest(&self, time: Duration) {
        (self.base.options.block)(&mut || std::thread::sleep(time));
    }
}
