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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use sheaf_bson::doc;

    use super::AT_WORK_MAX;
    use crate::Engine;
    use crate::build::Announced;
    use crate::index::Index;
    use crate::tests::support::*;

    fn with_documents(count: i32) -> (tempfile::TempDir, Engine) {
        let (dir, engine) = fresh();
        for id in 0..count {
            insert(&engine, C, &doc! { "_id": id, "a": id }).unwrap();
        }
        (dir, engine)
    }

    /// How many indexes are being built.
    fn unfinished(engine: &Engine) -> usize {
        let catalog = engine.catalog();
        catalog.collection(C).unwrap().indexes.iter().filter(|index| !index.ready).count()
    }

    #[test]
    fn no_more_builds_are_at_work_than_may_be() {
        let (_dir, engine) = with_documents(50);
        let let_go = AtomicBool::new(false);
        // Called by each build, also by those that wait for a place.
        let until_let_go = || {
            let began = Instant::now();
            while unfinished(&engine) >= AT_WORK_MAX
                && !let_go.load(Ordering::Acquire)
                && began.elapsed() < Duration::from_secs(20)
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let builds: Vec<_> = (0..AT_WORK_MAX + 2)
                .map(|n| {
                    let (engine, until_let_go) = (&engine, &until_let_go);
                    let spec = index_spec(doc! { "a": 1, (&format!("b{n}")): 1 }, &format!("i{n}"), doc! {});
                    scope.spawn(move || engine.create_indexes(C, &[spec.as_raw()], until_let_go))
                })
                .collect();
            let began = Instant::now();
            while unfinished(&engine) < AT_WORK_MAX && began.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(1));
            }
            // Time enough for one too many.
            std::thread::sleep(Duration::from_millis(200));
            let at_work = unfinished(&engine);
            let_go.store(true, Ordering::Release);
            builds.into_iter().for_each(|build| _ = build.join().unwrap().unwrap());
            assert_eq!(at_work, AT_WORK_MAX);
        });
        assert_eq!(unfinished(&engine), 0);
        assert_valid(&engine, C);
    }

    #[test]
    fn an_index_that_nobody_builds_any_more_is_built_by_who_wants_it() {
        let (_dir, engine) = with_documents(50);
        let spec = index_spec(doc! { "a": 1 }, "a_1", doc! {});
        let core = engine.core();
        let wanted = |_: &crate::Collection| {
            let ident = core.definitions.new_ident(C);
            Ok(vec![Index::from_spec(spec.as_raw(), ident, false, None)?])
        };
        // As one that failed and could not be taken back, on a full disk.
        let Announced::Building(build) = core.announce(C, GO_ON, wanted).unwrap() else {
            panic!("there is something to build");
        };
        drop(build);
        assert_eq!(unfinished(&engine), 1);
        let began = Instant::now();
        let in_time = || match began.elapsed() < Duration::from_secs(20) {
            true => Ok(()),
            false => {
                Err(sheaf_errors::Error::new(sheaf_errors::Code::MAX_TIME_MS_EXPIRED, "it waits for ever"))
            }
        };
        engine.create_indexes(C, &[spec.as_raw()], &in_time).unwrap();
        assert_eq!(unfinished(&engine), 0);
        assert_eq!(index_order(&engine, C, "a_1", crate::Direction::Forward).len(), 50);
        assert_valid(&engine, C);
    }
}
