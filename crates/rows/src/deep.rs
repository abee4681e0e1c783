//! Stack for long chains of operators.

use sheaf_bson::RawDoc;
use sheaf_errors::Result;

use crate::{BoxOperator, Cx, Figures, Operator, Row, Step};

/// What must be left of a stack: for a few operators, and for an expression as deep as they get.
const STACK_LEFT_BYTES: usize = 512 << 10;
/// The size of a new stack; what is not used of it takes no memory.
const STACK_BYTES: usize = 4 << 20;

/// An operator with stack to spare: working and dropping it goes on on a new stack where this thread's comes to an end.
///
/// Operators call each other, so a pipeline is as deep as it is long, and pipelines within pipelines add to that. One of
/// these stands between every few stages.
pub struct Deep(Option<BoxOperator>);

impl Deep {
    /// Guards an operator and those below it.
    pub fn new(operator: BoxOperator) -> Self {
        Deep(Some(operator))
    }

    fn inner(&mut self) -> &mut BoxOperator {
        self.0.as_mut().expect("only dropping takes the operator out")
    }
}

fn with_stack<T>(run: impl FnOnce() -> T) -> T {
    stacker::maybe_grow(STACK_LEFT_BYTES, STACK_BYTES, run)
}

impl Operator for Deep {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let inner = self.inner();
        with_stack(|| inner.work(cx))
    }

    fn row(&self) -> Row<'_> {
        let inner = self.0.as_ref().expect("only dropping takes the operator out");
        with_stack(|| inner.row())
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        let inner = self.0.as_ref().expect("only dropping takes the operator out");
        with_stack(|| inner.metadata())
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        let inner = self.inner();
        with_stack(|| inner.inputs(visit));
    }

    fn is_eof(&self) -> bool {
        let inner = self.0.as_ref().expect("only dropping takes the operator out");
        with_stack(|| inner.is_eof())
    }

    fn suspend(&mut self) {
        let inner = self.inner();
        with_stack(|| inner.suspend());
    }

    fn release(&mut self) {
        let inner = self.inner();
        with_stack(|| inner.release());
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        self.inner().figures()
    }
}

impl Drop for Deep {
    fn drop(&mut self) {
        with_stack(|| drop(self.0.take()));
    }
}
