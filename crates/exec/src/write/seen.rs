//! What a statement has looked at.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::plan::PlanNode;
use crate::run::{Chosen, Executor};
use sheaf_rows::{Figures, Sorted};

/// What a statement has looked at and met so far. It is kept where a statement that fails, or is stopped, leaves it: of those above all
/// somebody wants to know what they did.
#[derive(Default)]
pub struct Seen {
    keys: Cell<u64>,
    docs: Cell<u64>,
    /// Write conflicts met and retried.
    pub conflicts: Cell<u64>,
    way: RefCell<Way>,
    chosen: Cell<Chosen>,
    /// What was sorted for it.
    pub sorted: Cell<Sorted>,
    /// Whether what the stages of the plan have done is kept.
    watched: bool,
    stages: RefCell<Vec<Figures>>,
}

/// How a statement's documents were found.
#[derive(Default)]
pub(super) enum Way {
    /// They were not looked for yet.
    #[default]
    None,
    /// By `_id`, without a query: the statement names nothing else.
    Express,
    /// By `_id`, which the query asks for among other things, or which the statement has in some other way than [`Way::Express`].
    Id,
    /// By a plan.
    Plan(Arc<PlanNode>),
}

impl Seen {
    /// One that keeps what the stages of a plan have done, if that is wanted.
    pub fn watched(watched: bool) -> Self {
        Seen { watched, ..Seen::default() }
    }

    /// The plan, with what its stages have done if that is kept.
    pub fn plan(&self) -> Option<(Arc<PlanNode>, Vec<Figures>)> {
        match &*self.way.borrow() {
            Way::Plan(plan) => Some((plan.clone(), self.stages.borrow().clone())),
            Way::None | Way::Express | Way::Id => None,
        }
    }

    /// How the plan was found.
    pub fn chosen(&self) -> Chosen {
        self.chosen.get()
    }

    pub(super) fn add(&self, keys: u64, docs: u64) {
        self.keys.set(self.keys.get() + keys);
        self.docs.set(self.docs.get() + docs);
    }

    /// Keys and documents.
    pub fn examined(&self) -> (u64, u64) {
        (self.keys.get(), self.docs.get())
    }

    pub(super) fn set_examined(&self, (keys, docs): (u64, u64)) {
        self.keys.set(keys);
        self.docs.set(docs);
    }

    /// Counts the key of a record that was looked for by its `_id`, if it was there.
    pub(super) fn count_key_of_record(&self) {
        let (keys, docs) = self.examined();
        self.keys.set(keys + u64::from(docs > 0));
    }

    pub(super) fn go(&self, way: Way) {
        self.way.replace(way);
    }

    /// Adds what a search has looked at that goes no further.
    pub(super) fn ran(&self, executor: &mut Executor) {
        let (keys, docs) = executor.examined();
        self.add(keys, docs);
        self.chosen.set(executor.chosen());
        if executor.plan().blocks() {
            self.sorted.set(executor.sorted());
        }
        if self.watched {
            self.stages.replace(executor.figures());
        }
    }

    /// `planSummary`; `written` is the stage by which the short way ends.
    pub fn summary(&self, written: &str) -> Option<String> {
        match &*self.way.borrow() {
            Way::None => None,
            Way::Express => Some(format!("EXPRESS_IXSCAN {{ _id: 1 }},{written}")),
            Way::Id => Some("IDHACK".to_owned()),
            Way::Plan(plan) => Some(plan.summary()),
        }
    }

    /// Whether the documents were sorted in memory.
    pub fn sorts(&self) -> bool {
        matches!(&*self.way.borrow(), Way::Plan(plan) if plan.blocks())
    }
}
