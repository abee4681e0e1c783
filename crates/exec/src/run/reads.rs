//! The state that operators read at present.

use std::sync::Arc;

use parking_lot::Mutex;
use sheaf_errors::{Code, Result, bail};
use sheaf_storage::{Collection, Uuid, View};

use super::{Ownership, Part};
use crate::plan::settings::Settings;

/// The state that a run's operators read: a command's, for as long as the command pulls. A cursor keeps it empty between
/// two commands. Shared by the operators of all plans of one cursor.
#[derive(Clone, Default)]
pub struct Reads(Arc<State>);

#[derive(Default)]
struct State {
    view: Mutex<Option<View>>,
    /// Which documents may be seen; `None`: all.
    ownership: Option<Arc<dyn Ownership>>,
    /// What was the shard's when it was asked first, by collection: few collections are read.
    parts: Mutex<Vec<(Uuid, Option<Part>)>>,
    /// What was set for queries of the command's shape.
    settings: Option<Arc<Settings>>,
    /// Documents may be kept for a while before they are given: nobody changes them on the way.
    may_keep: bool,
    /// `notablescan`: what would be looked for in a whole collection fails.
    refuses_scans: bool,
}

impl Reads {
    /// Reads at a view, all that is there.
    pub fn at(view: View) -> Self {
        Reads::of(view, None)
    }

    /// Reads at a view what a shard owns.
    pub fn of(view: View, ownership: Option<Arc<dyn Ownership>>) -> Self {
        Reads(Arc::new(State { view: Mutex::new(Some(view)), ownership, ..State::default() }))
    }

    /// The same for a command that only reads, under the settings of the query's shape.
    pub fn under(view: View, ownership: Option<Arc<dyn Ownership>>, settings: Option<Arc<Settings>>) -> Self {
        let view = Mutex::new(Some(view));
        Reads(Arc::new(State { view, ownership, settings, may_keep: true, ..State::default() }))
    }

    /// The same, with what would look through whole collections failing if `refuses` (`notablescan`). For reads that nobody shares yet.
    #[must_use]
    pub fn refusing_scans(mut self, refuses: bool) -> Self {
        if let Some(state) = Arc::get_mut(&mut self.0) {
            state.refuses_scans = refuses;
        }
        self
    }

    /// Whether what would look through a whole collection fails.
    pub fn refuses_scans(&self) -> bool {
        self.0.refuses_scans
    }

    /// Whether documents may be kept for a while before they are given.
    pub(super) fn may_keep(&self) -> bool {
        self.0.may_keep
    }

    /// What was set for queries of the command's shape.
    pub fn settings(&self) -> Option<&Arc<Settings>> {
        self.0.settings.as_ref()
    }

    /// What of a collection is the shard's; `None`: it is not sharded, and all that is there may be seen.
    ///
    /// Errors: those of [`Ownership::of`].
    pub fn part(&self, collection: &Collection) -> Result<Option<Part>> {
        let Some(ownership) = &self.0.ownership else { return Ok(None) };
        let part = ownership.of(&self.view(), collection)?;
        let mut parts = self.0.parts.lock();
        if parts.iter().all(|(known, _)| *known != collection.uuid) {
            parts.push((collection.uuid, part.clone()));
        }
        Ok(part)
    }

    /// Whether documents are there that are not to be seen.
    ///
    /// Errors: those of [`Ownership::of`].
    pub fn mixed(&self, collection: &Collection) -> Result<bool> {
        Ok(self.part(collection)?.is_some_and(|part| part.mixed))
    }

    /// The next command reads at this view.
    ///
    /// Errors: `QueryPlanKilled`, where documents that were the shard's when the run began have been removed since, as other shards have them
    /// now; those of [`Ownership::keeps`].
    pub fn attach(&self, view: View) -> Result<()> {
        if let Some(ownership) = &self.0.ownership {
            for (collection, part) in &*self.0.parts.lock() {
                if !ownership.keeps(&view, collection, part.as_ref())? {
                    bail!(
                        Code::QUERY_PLAN_KILLED,
                        "ranges that the cursor was to read are another shard's now, and were removed here"
                    );
                }
            }
        }
        *self.0.view.lock() = Some(view);
        Ok(())
    }

    /// The command is over.
    pub fn detach(&self) {
        *self.0.view.lock() = None;
    }

    /// The view. Operators are pulled by commands only, which have attached one.
    pub fn view(&self) -> View {
        self.0.view.lock().clone().expect("a row was pulled while no command reads")
    }
}

/// What an operator has of [`Reads`] while its command pulls: taken at first use, given back at the end of the batch.
pub(super) struct Reader {
    reads: Reads,
    view: Option<View>,
}

impl Reader {
    pub fn new(reads: &Reads) -> Self {
        Reader { reads: reads.clone(), view: None }
    }

    pub fn view(&mut self) -> &View {
        self.view.get_or_insert_with(|| self.reads.view())
    }

    pub fn suspend(&mut self) {
        self.view = None;
    }
}
