//! What a shard owns of a collection: the rest may be there, being copied or not removed yet, and is not seen.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use sheaf_bson::RawDoc;
use sheaf_errors::Result;
use sheaf_rows::{BoxOperator, Cx, Figures, Operator, Row, Step};
use sheaf_storage::{Collection, Uuid, View};

/// Tells of collections in which documents have to be looked at one by one.
pub trait Ownership: Send + Sync {
    /// What is owned of a collection in this state; `None`: it is not sharded, and all that is there may be seen.
    fn of(&self, view: &View, collection: &Collection) -> Result<Option<Part>>;

    /// Whether all documents of a part that an earlier state had are in this one, if they are not deleted: what the shard has given away since
    /// stays for a while, and is removed then. `None`: all that was there.
    fn keeps(&self, view: &View, collection: &Uuid, part: Option<&Part>) -> Result<bool>;
}

/// What a shard owns of a collection.
#[derive(Clone, Debug)]
pub struct Part {
    /// Tells of each document.
    pub owned: Arc<dyn Owned>,
    /// Whether other documents are there, too. Where they are not, they may have arrived when a cursor goes on.
    pub mixed: bool,
}

/// The documents of a collection that are the shard's.
pub trait Owned: Any + Debug + Send + Sync {
    /// Whether this one is. The buffer is the caller's, to be used again.
    fn owns(&self, document: RawDoc<'_>, buffer: &mut Vec<u8>) -> Result<bool>;
}

/// Lets the documents through that the shard owned when the run began. Where nothing else was there then it looks at none before the run
/// has rested: whoever goes on sees a later state, into which a range may have been copied.
pub struct ShardingFilter {
    input: BoxOperator,
    owned: Arc<dyn Owned>,
    looks: bool,
    buffer: Vec<u8>,
    figures: Figures,
}

impl ShardingFilter {
    /// Filters rows that have documents.
    pub fn new(input: BoxOperator, part: Part) -> Self {
        let Part { owned, mixed } = part;
        ShardingFilter { input, owned, looks: mixed, buffer: Vec::new(), figures: Figures::default() }
    }
}

impl Operator for ShardingFilter {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let step = self.input.work(cx)?;
        if step != Step::Row {
            return Ok(self.figures.count(step));
        }
        let passes = match self.input.row().doc {
            _ if !self.looks => true,
            Some(document) => self.owned.owns(document, &mut self.buffer)?,
            None => false,
        };
        Ok(self.figures.count(if passes { Step::Row } else { Step::More }))
    }

    fn row(&self) -> Row<'_> {
        self.input.row()
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        self.input.metadata()
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }

    fn is_eof(&self) -> bool {
        self.input.is_eof()
    }

    fn release(&mut self) {
        self.input.release();
    }

    fn suspend(&mut self) {
        self.looks = true;
        self.figures.saves += 1;
        self.input.suspend();
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        Some(&mut self.figures)
    }
}
