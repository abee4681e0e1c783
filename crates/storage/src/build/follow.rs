//! Builds on a member that follows.
//!
//! When it applies the announcement it begins to build, on a thread of its own, from the state right there; entries go on
//! being applied and leave their changes beside the index, as a primary's writers do. The entry that ends the build waits
//! for the files to be in, if they are not, and settles the rest. Whether keys are unique the primary has decided.
//!
//! A member that becomes primary meanwhile ends the build itself, as its own; one that loses its office goes on as one
//! that follows. After a restart unfinished builds begin anew, or wait for their end if their files are in.
//!
//! None of this is needed for the index to become right: where there is no build to be ended, the entry that ends it makes
//! the index from the documents ([`super::replay`]), which only takes longer.

use std::sync::Arc;

use sheaf_errors::Result;
use sheaf_meter::{Meter, Process};
use uuid::Uuid;

use super::running::Running;
use super::{Build, PATIENCE};
use crate::catalog::Collection;
use crate::core::Core;
use crate::critical::impossible;
use crate::index::Index;
use crate::options::{Interrupt, OpTime};
use crate::read::view::View;
use crate::sequencer::stays_here;

/// Smaller collections are not worth a thread and files: fewer documents and fewer bytes than this.
const SMALL_DOCS: u64 = if cfg!(test) { 4 } else { 1000 };
const SMALL_BYTES: u64 = if cfg!(test) { 1 << 10 } else { 1 << 20 };

/// Builds at work at a time, beyond which those that begin are left to their ends: each sorts with memory of its own.
const BUILDS_MAX: usize = 4;

/// Generations drained while a build waits for its end. Their numbers are bytes.
const WAITING_GENERATIONS_MAX: usize = 200;

/// Whether an index is made from the documents in no time.
pub(super) fn is_small(collection: &Collection) -> bool {
    collection.count() < SMALL_DOCS && collection.data_bytes() < SMALL_BYTES
}

impl Core {
    /// Begins a build that the entry `at` has announced and that is in the catalog now. The pipeline is held. Nothing is
    /// begun during recovery, where the end of the build may be behind the next entry.
    pub fn follow_build(&self, collection: &Uuid, idents: &[u32], at: OpTime) {
        let Some(core) = self.me() else { return };
        let catalog = self.published.catalog();
        let Some(collection) = catalog.by_uuid(collection) else {
            impossible!("entry {at:?} has announced a build on {collection}, which is not in the catalog")
        };
        let announced = |index: &&Arc<Index>| !index.ready && idents.contains(&index.ident);
        let indexes: Vec<Arc<Index>> = collection.maintained().filter(announced).cloned().collect();
        if indexes.is_empty() || is_small(collection) || self.definitions.builds().count() >= BUILDS_MAX {
            return;
        }
        core.begin_following(collection, indexes, at);
    }

    /// Takes up the builds that a restart has interrupted. Nobody writes yet.
    pub fn resume_builds(self: &Arc<Self>) -> Result<()> {
        let _still = self.still();
        let at = self.published.last();
        let catalog = self.published.catalog();
        for collection in catalog.all().filter(|c| !stays_here(&c.namespace)) {
            for index in collection.maintained().filter(|index| !index.ready) {
                if self.mark_holds(index.ident, at)? {
                    let running = Running::new(self, collection, std::slice::from_ref(index), true);
                    let (collection, indexes) = (collection.clone(), vec![index.clone()]);
                    self.follow_on(Build {
                        collection,
                        indexes,
                        view: None,
                        at,
                        skipped: Vec::new(),
                        running,
                    });
                } else if !is_small(collection) && !self.has_entries(index.ident)? {
                    self.clear_side(index)?;
                    self.begin_following(collection, vec![index.clone()], at);
                }
            }
        }
        Ok(())
    }

    /// Begins to build from the newest state, which is that of the entry `at`. The pipeline is held.
    fn begin_following(self: &Arc<Self>, collection: &Arc<Collection>, indexes: Vec<Arc<Index>>, at: OpTime) {
        indexes.iter().for_each(|index| index.side.begin());
        let running = Running::new(self, collection, &indexes, false);
        let (view, collection) = (Some(View::newest(&self.published)), collection.clone());
        self.follow_on(Build { collection, indexes, view, at, skipped: Vec::new(), running });
    }

    /// Goes on with a build on a thread of its own.
    pub(super) fn follow_on(self: &Arc<Self>, mut build: Build) {
        let core = self.clone();
        let spawned = std::thread::Builder::new().name("sheaf-build".to_owned()).spawn(move || {
            let followed = core.follow_metered(&mut build);
            let (collection, over) = (build.collection.clone(), build.turn().has_ended() || core.is_stopping());
            drop(build);
            let Some(error) = followed.err().filter(|_| !over) else { return };
            tracing::warn!(%error, collection = collection.namespace, "an index build of another primary has failed");
            // Nobody else ends it, where this member leads.
            if core.base.leads()
                && let Err(error) = core.abort_orphaned_builds()
            {
                tracing::warn!(%error, "index builds of an earlier primary stay for now");
            }
        });
        match spawned {
            Ok(thread) => self.definitions.builds().add_thread(thread),
            // The entry that ends the build makes the index.
            Err(error) => tracing::warn!(%error, "no thread for an index build"),
        }
    }

    /// [`Core::follow`] in pieces as short as those of an operation: one document can have a million keys.
    fn follow_metered(self: &Arc<Self>, build: &mut Build) -> Result<()> {
        let (core, turn) = (Arc::downgrade(self), build.turn().clone());
        // Asked while the turn's lock may be held.
        let go_on = move || match core.upgrade() {
            Some(core) if !turn.is_over() && !core.is_stopping() => Ok(()),
            _ => Err(turn.aborted()),
        };
        let unlimited = Process::new(u64::MAX, u64::MAX);
        let _entered = sheaf_meter::enter(Meter::new(&unlimited, Arc::new(go_on)));
        self.follow(build)
    }

    /// Builds until an entry of the log, or this member as a new primary, has ended the build.
    fn follow(&self, build: &mut Build) -> Result<()> {
        let turn = build.turn().clone();
        let go_on = || {
            if turn.has_ended() || self.is_stopping() { Err(turn.aborted()) } else { Ok(()) }
        };
        // What was there before a restart is settled as a whole in the end.
        let resumed = build.view.is_none();
        if !resumed {
            self.fill(build, &go_on)?;
        }
        let mut generations = 0;
        loop {
            go_on()?;
            if self.base.leads() {
                match self.finish_as_primary(build, &go_on) {
                    // Not any more.
                    Err(_) if !self.base.leads() => {}
                    ended => return ended,
                }
            }
            if !resumed && generations < WAITING_GENERATIONS_MAX && build.has_many_changes() {
                generations += 1;
                self.drain_generation(build, &go_on)?;
            } else {
                turn.wait(PATIENCE);
            }
        }
    }

    /// This member was made primary while it built.
    fn finish_as_primary(&self, build: &Build, interrupt: Interrupt<'_>) -> Result<()> {
        let closed = build.collection.state.gate.close(&self.base.options.block, interrupt)?;
        let ended = self.finish(build, closed, interrupt)?;
        tracing::info!(
            collection = build.collection.namespace,
            index = ended.index,
            "ended an index build of an earlier primary"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::doc;
    use sheaf_errors::Code;

    use crate::build::Announced;
    use crate::index::Index;
    use crate::tests::support::*;

    #[test]
    fn a_build_that_was_filled_may_be_over_when_it_goes_on_as_one_that_follows() {
        let (_dir, engine) = fresh();
        for id in 0..50 {
            insert(&engine, C, &doc! { "_id": id, "a": id }).unwrap();
        }
        let spec = index_spec(doc! { "a": 1 }, "a_1", doc! {});
        let core = engine.core();
        let wanted = |_: &crate::Collection| {
            Ok(vec![Index::from_spec(spec.as_raw(), core.definitions.new_ident(C), false, None)?])
        };
        let Announced::Building(mut build) = core.announce(C, GO_ON, wanted).unwrap() else {
            panic!("there is something to build");
        };
        core.fill(&mut build, GO_ON).unwrap();
        // The next primary's entry.
        build.turn().end();
        assert_eq!(core.follow(&mut build).unwrap_err().code(), Code::INDEX_BUILD_ABORTED);
    }
}
