//! A plan whose stages are told of while it runs below a pipeline: for the profiler.

use std::sync::Arc;

use parking_lot::Mutex;
use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::Result;
use sheaf_rows::{Cx, Figures, Operator, Row, Step};
use sheaf_storage::Collection;

use super::Executor;
use crate::explain::{Rows, Top, stages_of};
use crate::plan::{PlanNode, Query};

/// The stages of a plan that runs below a pipeline.
#[derive(Clone)]
pub struct Watch(Arc<Inner>);

struct Inner {
    query: Query,
    plan: Arc<PlanNode>,
    collection: Arc<Collection>,
    figures: Mutex<Vec<Figures>>,
}

impl Watch {
    /// The stages with what they had done when the last batch ended.
    pub fn stages(&self) -> DocBuf {
        let Inner { query, plan, collection, figures } = &*self.0;
        let figures = figures.lock();
        let rows = Rows { taken: figures.first().map_or(0, |root| root.advanced), changed: 0 };
        stages_of(query, collection, plan, &figures, rows, Top::Find)
    }
}

/// A plan that tells what its stages have done whenever a batch ends, and when it is gone.
pub struct Watched {
    inner: Executor,
    watch: Watch,
}

/// Has a plan tell.
pub fn watched(executor: Executor, query: Query) -> (Watched, Watch) {
    let (plan, collection) = (executor.plan().clone(), executor.collection().clone());
    let watch = Watch(Arc::new(Inner { query, plan, collection, figures: Mutex::default() }));
    (Watched { inner: executor, watch: watch.clone() }, watch)
}

impl Watched {
    fn tell(&mut self) {
        *self.watch.0.figures.lock() = self.inner.figures();
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.tell();
    }
}

impl Operator for Watched {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        self.inner.work(cx)
    }

    fn row(&self) -> Row<'_> {
        self.inner.row()
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        Operator::metadata(&self.inner)
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        self.inner.inputs(visit);
    }

    fn is_eof(&self) -> bool {
        self.inner.is_eof()
    }

    fn release(&mut self) {
        self.inner.release();
    }

    fn suspend(&mut self) {
        self.tell();
        self.inner.suspend();
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        Operator::figures(&mut self.inner)
    }
}
